//! Permissions of output files: readable by those who may read all inputs. Real users, real files.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::{Folder, Ran};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use testkit::need;

const ALICE: u32 = 41_001;
const BOB: u32 = 41_002;
/// The group in which both are, if they are started so.
const TEAM: u32 = 41_200;

/// A folder with captures: of everybody, of a group, of alice alone.
fn captures() -> Folder {
    let folder = Folder::for_everybody();
    for (name, group, mode) in
        [("open.pcap", 0, 0o644), ("team.pcap", TEAM, 0o640), ("secret.pcap", ALICE, 0o600)]
    {
        let file = folder.path().join(name);
        fs::write(&file, fs::read(common::examples().join("web.pcap")).unwrap()).unwrap();
        chown(&file, Some(ALICE), Some(group)).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
    }
    folder
}

/// Runs a line as alice with this group, under the usual umask.
fn run(folder: &Folder, group: u32, line: &str) {
    let mut shell = folder.command_of((ALICE, group), Some("/bin/sh"));
    shell.args(["-c", "umask 022; exec ./streamline -q \"$0\" < secret.pcap", line]);
    let ran = Ran::from(shell.output().unwrap());
    assert_eq!(ran.status, Some(0), "{line}: {ran:?}");
}

/// Returns true if the user can read the file.
fn reads(folder: &Folder, who: (u32, u32), file: &str) -> bool {
    let ran = folder.command_of(who, Some("cat")).arg(file).output().unwrap();
    assert!(folder.path().join(file).exists(), "{file}");
    assert!(ran.status.success() || String::from_utf8_lossy(&ran.stderr).contains("denied"));
    ran.status.success()
}

#[test]
fn p6_a_file_is_for_those_who_may_read_all_that_was_joined_in_it() {
    if need::root().is_none() {
        return;
    }
    let folder = captures();
    let [alice, bob, member] = [(ALICE, ALICE), (BOB, BOB), (BOB, TEAM)];
    // The group under which alice works, what is joined, and who reads it beside her: bob, and bob
    // as one of the group.
    for (at, (group, inputs, others, members)) in [
        (ALICE, "replay open.pcap + replay open.pcap", true, true),
        (ALICE, "replay open.pcap + replay secret.pcap", false, false),
        (ALICE, "replay secret.pcap + generate count=3", false, false),
        (ALICE, "replay - + generate count=3", false, false),
        (TEAM, "replay team.pcap + replay open.pcap", false, true),
        // What alice makes outside of the group is not the group's.
        (ALICE, "replay team.pcap + replay open.pcap", false, false),
        (TEAM, "replay team.pcap + replay secret.pcap", false, false),
    ]
    .into_iter()
    .enumerate()
    {
        let file = format!("joined-{at}.pcap");
        run(&folder, group, &format!("({inputs}) | ip | pcap {file}"));
        assert!(reads(&folder, alice, &file), "{inputs}");
        assert_eq!(reads(&folder, bob, &file), others, "{inputs}");
        assert_eq!(reads(&folder, member, &file), members, "{inputs}");
    }
}

#[test]
fn p6_folders_that_give_their_group_and_files_that_are_there() {
    if need::root().is_none() {
        return;
    }
    let folder = captures();
    let [bob, member] = [(BOB, BOB), (BOB, TEAM)];
    // Many files in a folder of their own, and the table of them.
    run(&folder, ALICE, "(replay open.pcap + replay secret.pcap) | files out per=block");
    let made: Vec<_> = fs::read_dir(folder.path().join("out")).unwrap().flatten().collect();
    assert!(made.len() > 2);
    for entry in &made {
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o077, 0, "{entry:?}");
    }
    assert!(!reads(&folder, bob, "out/index.jsonl"));
    // A folder whose group is given to what is made there: alice is in another one.
    let given = folder.path().join("given");
    fs::create_dir(&given).unwrap();
    chown(&given, Some(ALICE), Some(TEAM)).unwrap();
    fs::set_permissions(&given, Permissions::from_mode(0o2775)).unwrap();
    run(&folder, ALICE, "(replay open.pcap + replay team.pcap) | pcap given/team.pcap");
    assert!(reads(&folder, member, "given/team.pcap") && !reads(&folder, bob, "given/team.pcap"));
    // What was there is its owner's to open: its mode stays.
    File::create(folder.path().join("there.pcap")).unwrap();
    chown(folder.path().join("there.pcap"), Some(ALICE), None).unwrap();
    run(&folder, ALICE, "(replay open.pcap + replay secret.pcap) | pcap there.pcap");
    assert!(reads(&folder, bob, "there.pcap"));
}
