//! Tests of the permissions of output files: only users who may read all inputs may read an output.
//! The tests use real users and real files.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::{CommandResult, Folder};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use testkit::need;

const ALICE: u32 = 41_001;
const BOB: u32 = 41_002;
/// Id of a group to which a test may add either of its two users.
const READER_GROUP_ID: u32 = 41_200;

/// Creates a directory with three captures: `open.pcap` is readable by all users, `team.pcap` by
/// the group [`READER_GROUP_ID`], and `secret.pcap` only by the user [`ALICE`].
fn create_captures_with_modes() -> Folder {
    let folder = Folder::accessible_to_all();
    for (name, group, mode) in [
        ("open.pcap", 0, 0o644),
        ("team.pcap", READER_GROUP_ID, 0o640),
        ("secret.pcap", ALICE, 0o600),
    ] {
        let file = folder.path().join(name);
        fs::write(&file, fs::read(common::examples_directory().join("web.pcap")).unwrap()).unwrap();
        chown(&file, Some(ALICE), Some(group)).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
    }
    folder
}

/// Runs a request as user ALICE in the group `group`, with umask 022.
fn run_as_alice(folder: &Folder, group: u32, line: &str) {
    let mut shell = folder.command_as_user((ALICE, group), Some("/bin/sh"));
    shell.args(["-c", "umask 022; exec ./streamline -q \"$0\" < secret.pcap", line]);
    let ran = CommandResult::from(shell.output().unwrap());
    assert_eq!(ran.status, Some(0), "{line}: {ran:?}");
}

/// Returns true if the user and group `who` can read the file.
fn can_read(folder: &Folder, who: (u32, u32), file: &str) -> bool {
    let ran = folder.command_as_user(who, Some("cat")).arg(file).output().unwrap();
    assert!(folder.path().join(file).exists(), "{file}");
    assert!(ran.status.success() || String::from_utf8_lossy(&ran.stderr).contains("denied"));
    ran.status.success()
}

#[test]
fn p6_output_is_readable_by_readers_of_all_inputs() {
    if need::require_root().is_none() {
        return;
    }
    let folder = create_captures_with_modes();
    let [alice, bob, member] = [(ALICE, ALICE), (BOB, BOB), (BOB, READER_GROUP_ID)];
    // Each case contains the group of ALICE, the inputs, and two flags: the output is readable by
    // BOB, and by BOB as a member of the group TEAM.
    for (at, (group, inputs, others, members)) in [
        (ALICE, "replay open.pcap + replay open.pcap", true, true),
        (ALICE, "replay open.pcap + replay secret.pcap", false, false),
        (ALICE, "replay secret.pcap + generate count=3", false, false),
        (ALICE, "replay - + generate count=3", false, false),
        (READER_GROUP_ID, "replay team.pcap + replay open.pcap", false, true),
        // ALICE is not a member of the group, so she cannot change the group of her files to TEAM.
        (ALICE, "replay team.pcap + replay open.pcap", false, false),
        (READER_GROUP_ID, "replay team.pcap + replay secret.pcap", false, false),
    ]
    .into_iter()
    .enumerate()
    {
        let file = format!("joined-{at}.pcap");
        run_as_alice(&folder, group, &format!("({inputs}) | ip | pcap {file}"));
        assert!(can_read(&folder, alice, &file), "{inputs}");
        assert_eq!(can_read(&folder, bob, &file), others, "{inputs}");
        assert_eq!(can_read(&folder, member, &file), members, "{inputs}");
    }
}

#[test]
fn p6_setgid_directory_and_existing_file_keep_their_modes() {
    if need::require_root().is_none() {
        return;
    }
    let folder = create_captures_with_modes();
    let [bob, member] = [(BOB, BOB), (BOB, READER_GROUP_ID)];
    // `files` writes its index into a separate directory.
    run_as_alice(&folder, ALICE, "(replay open.pcap + replay secret.pcap) | files out per=block");
    let made: Vec<_> = fs::read_dir(folder.path().join("out")).unwrap().flatten().collect();
    assert!(made.len() > 2);
    for entry in &made {
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o077, 0, "{entry:?}");
    }
    assert!(!can_read(&folder, bob, "out/index.jsonl"));
    // The setgid directory has a group of which ALICE is not a member.
    let given = folder.path().join("given");
    fs::create_dir(&given).unwrap();
    chown(&given, Some(ALICE), Some(READER_GROUP_ID)).unwrap();
    fs::set_permissions(&given, Permissions::from_mode(0o2775)).unwrap();
    run_as_alice(&folder, ALICE, "(replay open.pcap + replay team.pcap) | pcap given/team.pcap");
    assert!(
        can_read(&folder, member, "given/team.pcap") && !can_read(&folder, bob, "given/team.pcap")
    );
    // The mode of an existing file is the choice of its owner, so it is not changed.
    File::create(folder.path().join("there.pcap")).unwrap();
    chown(folder.path().join("there.pcap"), Some(ALICE), None).unwrap();
    run_as_alice(&folder, ALICE, "(replay open.pcap + replay secret.pcap) | pcap there.pcap");
    assert!(can_read(&folder, bob, "there.pcap"));
}
