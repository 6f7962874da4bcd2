//! Writer of an initial ramdisk: a cpio archive in the `newc` format, which every kernel can unpack
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;
use std::path::Path;

/// A cpio archive to which files and directories are added.
#[derive(Default)]
pub(super) struct CpioArchive {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
    entries: u32,
}

impl CpioArchive {
    /// Adds a directory and its parents.
    pub(super) fn add_directory(&mut self, path: &str) {
        let mut whole = String::new();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            whole = if whole.is_empty() { part.to_owned() } else { format!("{whole}/{part}") };
            if self.folders.insert(whole.clone()) {
                self.append_entry(&whole, 0o040_755, &[]);
            }
        }
    }

    /// Adds an executable file and its parent directories.
    pub(super) fn add_file(&mut self, path: &str, bytes: &[u8]) {
        if let Some(parent) = Path::new(path).parent() {
            self.add_directory(&parent.to_string_lossy());
        }
        self.append_entry(path.trim_start_matches('/'), 0o100_755, bytes);
    }

    /// Appends the trailer, and returns the finished archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.append_entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn append_entry(&mut self, name: &str, mode: u32, bytes: &[u8]) {
        self.entries += 1;
        let length = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            length(bytes.len()),
            0,
            0,
            0,
            0,
            length(name.len() + 1),
            0,
        ];
        self.bytes.extend(b"070701");
        fields.iter().for_each(|field| self.bytes.extend(format!("{field:08x}").bytes()));
        self.bytes.extend(name.bytes().chain([0]));
        self.pad_to_four_bytes();
        self.bytes.extend(bytes);
        self.pad_to_four_bytes();
    }

    fn pad_to_four_bytes(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpio_entry_has_110_byte_header_and_is_padded() {
        let mut archive = CpioArchive::default();
        archive.add_file("/bin/it", b"five!");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        // The entries are the folder, the file and the trailer.
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches("070701").count(), 3);
        let file = text.find("bin/it").unwrap();
        assert!(text[file - 110..].starts_with("070701"));
        assert!(text[file..].contains("five!"));
    }
}
