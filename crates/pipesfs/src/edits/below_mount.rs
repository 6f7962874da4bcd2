//! Detection of files inside the mount itself. No filter may open such a file: the path of the
//! filter would wait for a reply from this server, while the server waits for the path to apply the
//! edit.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// Maximum number of symbolic links followed in one file name, as in the kernel (`MAXSYMLINKS`).
const LINKS_MAX: usize = 40;

/// Returns true if a file is below the directory of a mount, directly or through symbolic links.
/// Accesses no file inside the mount. Relative file names are resolved against the root directory.
pub(super) fn is_below_mount(mount: &Path, file: &Path) -> bool {
    if mount.as_os_str().is_empty() {
        return false;
    }
    let mut rest: VecDeque<OsString> = components(file).collect();
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    while let Some(part) = rest.pop_front() {
        if part == ".." {
            at.pop();
            continue;
        }
        at.push(part);
        if at == mount {
            return true;
        }
        let Ok(target) = std::fs::read_link(&at) else { continue };
        links += 1;
        if links > LINKS_MAX {
            return false;
        }
        match target.is_absolute() {
            true => at = PathBuf::from("/"),
            false => drop(at.pop()),
        }
        for part in components(&target).collect::<Vec<_>>().into_iter().rev() {
            rest.push_front(part);
        }
    }
    false
}

/// Returns the components of a file name, without `.` and the root.
fn components(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn t20_files_below_the_mount_are_found_through_links() {
        let base = std::env::temp_dir().join(format!("own-mount-{}", std::process::id()));
        std::fs::create_dir_all(base.join("pipes")).unwrap();
        std::fs::create_dir(base.join("else")).unwrap();
        let base = base.canonicalize().unwrap();
        let mount = base.join("pipes");
        symlink(&mount, base.join("else/absolute")).unwrap();
        symlink("../pipes/x", base.join("else/relative")).unwrap();
        symlink("loop", base.join("else/loop")).unwrap();
        for (file, inside) in [
            ("pipes", true),
            ("pipes/web/all.pcap", true),
            ("pipes/../else/x", true),
            ("else/../pipes/x", true),
            ("else/absolute/web/all", true),
            ("else/relative", true),
            ("else/relative/../../out", true),
            ("else/x.pcap", false),
            ("else/loop/x", false),
            ("pipes2/x", false),
            ("missing/x", false),
        ] {
            assert_eq!(is_below_mount(&mount, &base.join(file)), inside, "{file}");
        }
        assert!(!is_below_mount(Path::new(""), &mount));
        std::fs::remove_dir_all(&base).unwrap();
    }
}
