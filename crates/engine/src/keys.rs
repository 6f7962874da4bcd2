//! Key files, for filters that need a secret.
//!
//! A key must be in a regular file that only its owner may open, because anyone who knows the key
//! can forge the filter's proofs. Messages never contain bytes of the file.

use filter::{Key, KeyReader};
use std::fs::Metadata;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use sys::open::RegularOpenOptions;

/// The key files of this machine, opened with the privileges of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyFileReader;

/// A key store for calibration, which returns the same key for every name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FixedKeyReader;

impl KeyReader for FixedKeyReader {
    fn read_key(&self, _: &str) -> Result<Key, String> {
        Ok(Key([7; 16]))
    }
}

/// Maximum number of bytes read from a key file, enough for a key with surrounding white space.
const KEY_FILE_BYTES_MAX: u64 = 4096;
/// Permission bits of the group and of others in a file's mode. All of them must be clear on a key
/// file.
const GROUP_AND_OTHER_BITS: u32 = 0o077;

impl KeyReader for KeyFileReader {
    fn read_key(&self, file: &str) -> Result<Key, String> {
        let failed = |error: std::io::Error| format!("cannot read the key file {file}: {error}");
        let opened = RegularOpenOptions::read().open(file).map_err(failed)?;
        check_key_file_is_private(file, &opened.metadata().map_err(failed)?)?;
        let mut text = Vec::new();
        opened.take(KEY_FILE_BYTES_MAX).read_to_end(&mut text).map_err(failed)?;
        Key::parse(&text).ok_or_else(|| {
            format!(
                "{file} does not contain a key: write 32 hexadecimal digits (`openssl rand -hex \
                 16`)"
            )
        })
    }
}

fn check_key_file_is_private(file: &str, about: &Metadata) -> Result<(), String> {
    let mode = about.permissions().mode() & 0o777;
    if mode & GROUP_AND_OTHER_BITS != 0 {
        return Err(format!("other users can open {file} (mode {mode:04o}): `chmod 600 {file}`"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};

    #[test]
    fn h22_key_file_must_be_private_to_its_owner() {
        let folder = std::env::temp_dir().join(format!("streamline-keys-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("key");
        let name = path.to_str().expect("a name in UTF-8");
        let asked = |text: &str, mode: u32| {
            fs::write(&path, text).expect("a file");
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("its mode");
            KeyFileReader.read_key(name)
        };
        let digits = "00112233445566778899aabbccddeeff";
        assert!(asked(digits, 0o600).is_ok() && asked(&format!("{digits}\n"), 0o400).is_ok());
        for mode in [0o640, 0o604, 0o610, 0o601] {
            let why = asked(digits, mode).expect_err("others may open it");
            assert!(why.contains("chmod 600") && why.contains(&format!("{mode:04o}")), "{why}");
        }
        let why = asked("ffffeeeeddddccccbbbbaaaa9999888", 0o600).expect_err("a digit is missing");
        assert!(why.contains("does not contain a key") && !why.contains("ffff"), "{why}");
        let long = format!("{digits}{}", " ".repeat(5000));
        assert!(asked(&long, 0o600).is_ok(), "white space is nothing");
        fs::remove_file(&path).expect("it is there");
        assert!(
            KeyFileReader.read_key(name).expect_err("none").contains("cannot read the key file")
        );
        let why = KeyFileReader.read_key(folder.to_str().expect("UTF-8")).expect_err("a folder");
        assert!(why.ends_with("not a regular file"), "{why}");
        fs::remove_dir(&folder).expect("it is empty");
    }
}
