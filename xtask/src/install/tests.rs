//! Tests: an installation writes, replaces and removes its files and directories only.

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

    fn place(&self) -> Folders {
        Folders { prefix: PathBuf::from("/opt/own"), staging: Some(self.0.clone()) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn parts(names: &[&str]) -> Vec<InstalledFile> {
    names.iter().map(|name| InstalledFile::new(*name, "a part", name.as_bytes().to_vec())).collect()
}

#[test]
fn removal_deletes_all_installed_files_and_no_others() {
    let scratch = Scratch::new("removed");
    let place = scratch.place();
    let staged = |name: &str| scratch.0.join("opt/own").join(name);
    fs::create_dir_all(staged("share")).unwrap();
    write_all(&place, &parts(&["bin/streamline", "share/man/man1/streamline.1"])).unwrap();
    let mode = fs::metadata(staged("bin/streamline")).unwrap().mode() & 0o777;
    assert_eq!(mode, 0o755);
    assert_eq!(
        fs::read(staged("share/man/man1/streamline.1")).unwrap(),
        b"share/man/man1/streamline.1"
    );
    // Another revision has other files.
    write_all(&place, &parts(&["bin/streamline", "lib/libstreamline.so"])).unwrap();
    assert!(!staged("share/man/man1/streamline.1").exists(), "the new one does not have it");
    let text = fs::read_to_string(place.manifest()).unwrap();
    assert!(text.contains("/opt/own/bin/streamline\n"), "{text}");
    assert!(!text.contains(&scratch.0.display().to_string()), "DESTDIR is in no file: {text}");
    fs::write(staged("bin/other"), "of somebody else").unwrap();
    assert_eq!(Installed::read(&place.manifest()).unwrap().remove_all(&place).unwrap(), 2);
    assert!(staged("bin/other").exists() && staged("share").is_dir(), "not ours");
    assert!(!staged("lib").exists() && !staged("share/man").exists() && !place.manifest().exists());
}

#[test]
fn prefix_is_parsed_in_both_forms_and_must_be_absolute() {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    for line in ["--prefix /opt/own --bench", "--prefix=/opt/own --bench"] {
        let line = words(line);
        let (place, rest) = Folders::parse(&line).unwrap();
        assert_eq!((place.prefix.to_str(), &rest[..]), (Some("/opt/own"), &["--bench"][..]));
    }
    let relative = words("--prefix here");
    assert!(Folders::parse(&relative).unwrap().0.prefix.is_absolute());
    assert!(Folders::parse(&words("--prefix")).is_err());
}

#[test]
fn pkg_config_file_contains_the_prefix() {
    let text = fs::read_to_string(crate::root().join("crates/capi/streamline.pc")).unwrap();
    let own = parts::with_prefix(&text, Path::new("/opt/own"));
    assert!(
        own.starts_with("prefix=/opt/own\n") && own.contains("libdir=${prefix}/lib\n"),
        "{own}"
    );
}
