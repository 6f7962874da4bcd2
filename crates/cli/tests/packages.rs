//! Tests of the files in `dist`, from which packages are built. systemd accepts the units, and the
//! directory and the user of the daemon. The maintainer scripts refer to existing units.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::Folder;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::need;

fn dist_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist")
}

#[test]
fn units_are_accepted_by_systemd() {
    let Some(systemd) = need::require_command("systemd-analyze") else { return };
    let folder = Folder::new();
    let mut units = Vec::new();
    for name in ["streamline.service", "streamline.socket", "streamline-page.service"] {
        let text = fs::read_to_string(dist_directory().join("systemd").join(name)).unwrap();
        // systemd checks that the program exists, so the test substitutes a program that does.
        let started = text.lines().find_map(|line| line.strip_prefix("ExecStart="));
        let text = started.map_or_else(|| text.clone(), |program| text.replace(program, "/bin/sh"));
        let unit = folder.path().join(name);
        fs::write(&unit, text).unwrap();
        units.push(unit);
    }
    let verified =
        Command::new(&systemd).args(["verify", "--man=no"]).args(&units).output().unwrap();
    let stderr = String::from_utf8_lossy(&verified.stderr).into_owned();
    assert!(verified.status.success() && !stderr.contains("streamline"), "{stderr}");
    // The exposure level must be at most 3.0 of 10. The daemon has three capabilities.
    let mut rated = Command::new(&systemd);
    rated.args(["security", "--offline=yes", "--threshold=30", "--no-pager"]).arg(&units[0]);
    let rated = rated.output().unwrap();
    assert!(rated.status.success(), "{}", String::from_utf8_lossy(&rated.stdout));
}

#[test]
fn daemon_user_and_directory_are_made_by_systemd() {
    let wanted = ["systemd-sysusers", "systemd-tmpfiles"].map(need::require_command);
    let [Some(sysusers), Some(tmpfiles)] = wanted else { return };
    if need::require_root().is_none() {
        return;
    }
    let folder = Folder::new();
    let root = folder.path().join("root");
    for (command, directory) in [(sysusers, "sysusers.d"), (tmpfiles, "tmpfiles.d")] {
        let to = root.join("usr/lib").join(directory);
        fs::create_dir_all(&to).unwrap();
        fs::create_dir_all(root.join("etc")).unwrap();
        let text = fs::read(dist_directory().join(directory).join("streamline.conf")).unwrap();
        fs::write(to.join("streamline.conf"), text).unwrap();
        let mut command = Command::new(command);
        command.arg(format!("--root={}", root.display()));
        if directory == "tmpfiles.d" {
            command.arg("--create");
        }
        let made = command.output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    let users = fs::read_to_string(root.join("etc/passwd")).unwrap();
    let user = users.lines().find(|line| line.starts_with("streamline:")).unwrap();
    let parts: Vec<&str> = user.split(':').collect();
    assert!(parts[6].ends_with("nologin"), "{user}");
    let made = fs::metadata(root.join("run/streamline")).unwrap();
    assert_eq!((made.uid().to_string().as_str(), made.mode() & 0o7777), (parts[2], 0o755));
}

#[test]
fn maintainer_scripts_are_shell_and_name_units_that_exist() {
    let Some(shell) = need::require_command("sh") else { return };
    let mut scripts = 0;
    let entries =
        fs::read_dir(dist_directory().join("debian")).unwrap().map(|entry| entry.unwrap().path());
    for folder in entries.filter(|path| path.is_dir()) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            if !text.starts_with("#!/bin/sh\n") {
                continue;
            }
            scripts += 1;
            let parsed = Command::new(&shell).arg("-n").arg(&path).output().unwrap();
            assert!(parsed.status.success(), "{}: {parsed:?}", path.display());
            assert!(text.contains("\nset -e\n"), "{}", path.display());
            for word in text.split_whitespace() {
                let word = word.trim_end_matches(';');
                if word.ends_with(".service") || word.ends_with(".socket") {
                    let unit = dist_directory().join("systemd").join(word);
                    assert!(unit.exists(), "{word} in {}", path.display());
                }
            }
        }
    }
    assert!(scripts >= 7, "{scripts}");
}
