//! A file of metrics for the textfile collector of node_exporter.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Mode of the file. It lets other users read the file, such as the user that runs the collector.
const MODE: u32 = 0o644;

/// Replaces the content of a file with rename(2), so that a reader sees either the old or the new
/// text. All users can read the file.
pub fn write_file(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    // The collector ignores files whose names do not end with `.prom`.
    let new = path.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    let written = fs::write(&new, text)
        .and_then(|()| fs::set_permissions(&new, Permissions::from_mode(MODE)))
        .and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        // The first error says more than a failed removal.
        let _ = fs::remove_file(&new);
    }
    written
}
