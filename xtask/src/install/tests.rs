//! Tests of an installation: it writes, replaces and removes its own files and directories only.

use super::*;
use std::fs;

/// A temporary directory, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("streamline-install-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    fn paths(&self) -> InstallPaths {
        InstallPaths { prefix: PathBuf::from("/opt/own"), staging: Some(self.0.clone()) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn installed_files(names: &[&str]) -> Vec<InstallFile> {
    names.iter().map(|name| InstallFile::new(*name, "a file", name.as_bytes().to_vec())).collect()
}

#[test]
fn removal_deletes_all_installed_files_and_no_others() {
    let scratch = Scratch::new("removed");
    let paths = scratch.paths();
    let staged_path = |name: &str| scratch.0.join("opt/own").join(name);
    fs::create_dir_all(staged_path("share")).unwrap();
    write_files_and_manifest(
        &paths,
        &installed_files(&["bin/streamline", "share/man/man1/streamline.1"]),
    )
    .unwrap();
    let mode = fs::metadata(staged_path("bin/streamline")).unwrap().mode() & 0o777;
    assert_eq!(mode, 0o755);
    assert_eq!(
        fs::read(staged_path("share/man/man1/streamline.1")).unwrap(),
        b"share/man/man1/streamline.1"
    );
    // Another revision installs other files.
    write_files_and_manifest(&paths, &installed_files(&["bin/streamline", "lib/libstreamline.so"]))
        .unwrap();
    assert!(!staged_path("share/man/man1/streamline.1").exists(), "the new one does not have it");
    let text = fs::read_to_string(paths.manifest_path()).unwrap();
    assert!(text.contains("/opt/own/bin/streamline\n"), "{text}");
    assert!(!text.contains(&scratch.0.display().to_string()), "DESTDIR is in no file: {text}");
    fs::write(staged_path("bin/other"), "of somebody else").unwrap();
    assert_eq!(
        InstallManifest::read(&paths.manifest_path())
            .unwrap()
            .remove_installed_files(&paths)
            .unwrap(),
        2
    );
    assert!(staged_path("bin/other").exists() && staged_path("share").is_dir(), "not ours");
    assert!(
        !staged_path("lib").exists()
            && !staged_path("share/man").exists()
            && !paths.manifest_path().exists()
    );
}

#[test]
fn prefix_is_parsed_in_both_forms_and_made_absolute() {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    for line in ["--prefix /opt/own --bench", "--prefix=/opt/own --bench"] {
        let line = words(line);
        let (paths, rest) = InstallPaths::parse(&line).unwrap();
        assert_eq!((paths.prefix.to_str(), &rest[..]), (Some("/opt/own"), &["--bench"][..]));
    }
    let relative = words("--prefix here");
    assert!(InstallPaths::parse(&relative).unwrap().0.prefix.is_absolute());
    assert!(InstallPaths::parse(&words("--prefix")).is_err());
}

#[test]
fn pkg_config_file_contains_the_prefix() {
    let text =
        fs::read_to_string(crate::workspace_root().join("crates/capi/streamline.pc")).unwrap();
    let own = file_list::replace_prefix(&text, Path::new("/opt/own"));
    assert!(
        own.starts_with("prefix=/opt/own\n") && own.contains("libdir=${prefix}/lib\n"),
        "{own}"
    );
}
