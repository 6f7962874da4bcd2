//! A file of metrics for the textfile collector of node_exporter.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Permission bits of a file of metrics. All users can read the file, so that the collector can run
/// as any user.
const FILE_PERMISSIONS: u32 = 0o644;

/// Replaces the content of a file with rename(2), so that a reader sees either the old or the new
/// text. All users can read the file. A symbolic link stays, and the file to which it points is
/// replaced. Fails if the path names something other than a regular file, such as a device.
pub fn write_file(path: &Path, text: &str) -> io::Result<()> {
    let target = match fs::canonicalize(path) {
        Ok(target) if target.is_file() => target,
        Ok(_) => {
            let why = "it is not a regular file, and metrics replace their file every few seconds";
            return Err(io::Error::other(why));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
        Err(error) => return Err(error),
    };
    let name = target.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    // The collector ignores files whose names do not end with `.prom`, so it never reads this file.
    let new = target.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    let written = fs::write(&new, text)
        .and_then(|()| fs::set_permissions(&new, Permissions::from_mode(FILE_PERMISSIONS)))
        .and_then(|()| fs::rename(&new, &target));
    if written.is_err() {
        // The first error says more than a failed removal.
        let _ = fs::remove_file(&new);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt as _, symlink};
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_a_regular_file_is_replaced() {
        let folder = std::env::temp_dir().join(format!("metrics-file-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let at = |name: &str| folder.join(name);
        write_file(&at("own.prom"), "one").unwrap();
        symlink("own.prom", at("link")).unwrap();
        write_file(&at("link"), "two").unwrap();
        assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(at("own.prom")).unwrap(), "two");
        let _socket = UnixListener::bind(at("socket")).unwrap();
        let why = write_file(&at("socket"), "three").unwrap_err().to_string();
        assert!(why.contains("not a regular file"), "{why}");
        assert!(fs::symlink_metadata(at("socket")).unwrap().file_type().is_socket());
        assert!(write_file(Path::new("/dev/null"), "four").is_err());
        assert!(write_file(&folder, "five").is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
