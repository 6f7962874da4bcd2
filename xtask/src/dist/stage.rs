//! Creation of the file trees of packages, and of tarballs.

use super::release::{Release, program_output};
use crate::install::file_list::InstallFile;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// Removes a directory with its contents, and creates it again.
pub(super) fn create_empty_directory(folder: &Path) -> io::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    create_directory(folder)
}

/// Creates a directory and its missing parents. All users may read them regardless of the umask.
fn create_directory(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(parent) = folder.parent() {
        create_directory(parent)?;
    }
    fs::create_dir(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))
}

/// Writes files at their paths below a directory, and creates missing directories.
pub(super) fn write_files(folder: &Path, files: &[InstallFile]) -> io::Result<()> {
    for file in files {
        let path = folder.join(&file.to);
        create_directory(path.parent().unwrap_or(folder))?;
        file.write(&path)?;
    }
    Ok(())
}

/// Packs the directory `name` in `parent` into `NAME.tar.gz` in `output`. Owner and times do not
/// depend on this machine, and the files are sorted by name.
pub(super) fn pack_tarball(
    parent: &Path,
    name: &str,
    output: &Path,
    release: &Release,
) -> Result<(), String> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--format=ustar", "--numeric-owner"]);
    tar.args(["--owner=0", "--group=0", "--use-compress-program=gzip -9 -n"]);
    tar.arg(format!("--mtime=@{}", release.epoch)).arg("--directory").arg(parent);
    tar.arg("--file").arg(output.join(format!("{name}.tar.gz"))).arg(name).env("LC_ALL", "C");
    program_output(&mut tar).map(drop)
}
