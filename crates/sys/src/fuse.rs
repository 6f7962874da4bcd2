//! Mounts of FUSE file systems: by mount(2), through the helper fusermount3, or in a user namespace
//! of this process.

use crate::descriptor;
use crate::error::{Error, ErrorContext as _, Result};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::ffi::CString;
use std::io::Read as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

/// File system name that mount tables show for mounts of this file system.
const FUSE_NAME: &str = "pipesfs";
/// File mode of the mount's root directory, in octal.
const ROOT_MODE: &str = "40000";
const ROOT_UID: u32 = 0;
/// Name of the set-user-ID helper through which unprivileged users mount.
const MOUNT_HELPER: &str = "fusermount3";

/// Mounts a FUSE file system on `directory`, and returns the device over which the kernel sends
/// requests. Users other than the caller have access only if `for_all` is true. Needs CAP_SYS_ADMIN
/// in the user namespace of this process.
///
/// The kernel itself checks permissions against the attributes of the files, except on a mount that
/// only root may access. Root would pass every check. Yet after every change in a directory, a
/// check would make the kernel request the attributes of the directory again. On a mount for root,
/// the kernel asks the server only for access(2) and chdir(2), with ACCESS requests.
pub fn mount(directory: &Path, for_all: bool) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device =
        rustix::fs::open("/dev/fuse", flags, Mode::empty()).context("open", "/dev/fuse")?;
    let (uid, gid) = crate::process::effective_ids();
    let others = if for_all { ",allow_other" } else { "" };
    let checks = if for_all || uid != ROOT_UID { ",default_permissions" } else { "" };
    let options = format!(
        "fd={},rootmode={ROOT_MODE},user_id={uid},group_id={gid}{checks}{others}",
        device.as_raw_fd()
    );
    let options = CString::new(options).map_err(|_| invalid_directory_error(directory))?;
    let kind = format!("fuse.{FUSE_NAME}");
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    rustix::mount::mount(FUSE_NAME, directory, kind.as_str(), flags, Some(options.as_c_str()))
        .context("mount", directory.display().to_string())?;
    Ok(device)
}

/// Mounts a FUSE file system on `directory` through the set-user-ID helper, and returns the device
/// over which the kernel sends requests. Only the calling user has access. Blocks until the helper
/// has exited. Fails with ENOENT if the helper is not installed.
pub fn mount_by_helper(directory: &Path) -> Result<OwnedFd> {
    let target = || format!("{MOUNT_HELPER} {}", directory.display());
    let (own_end, helper_end) = descriptor::socket_pair()?;
    let mut command = Command::new(MOUNT_HELPER);
    let options =
        format!("fsname={FUSE_NAME},subtype={FUSE_NAME},nosuid,nodev,noatime,default_permissions");
    command.args(["-o", &options, "--"]).arg(directory);
    // The helper sends the device over this descriptor.
    command.env("_FUSE_COMMFD", "0").stdin(Stdio::from(helper_end));
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().context("execve", MOUNT_HELPER)?;
    // The command owns the helper's end. It is closed here, so that `receive` returns when the
    // helper exits.
    drop(command);
    let received = descriptor::receive(&own_end, &mut [0; 8]);
    let mut words = String::new();
    if let Some(errors) = &mut child.stderr {
        // If the helper printed nothing, its exit status is reported instead.
        let _ = errors.read_to_string(&mut words);
    }
    let status = child.wait().context("waitpid", target())?;
    let device = received.ok().and_then(|(_, descriptors)| descriptors.into_iter().next());
    device.filter(|_| status.success()).ok_or_else(|| {
        let (reason, errno) = parse_helper_failure(&words);
        let reason = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
        Error::new("mount", format!("{} by {MOUNT_HELPER}{reason}", directory.display()), errno)
    })
}

/// Splits the helper's error message, such as `fusermount3: failed to open /dev/fuse: Permission
/// denied`, into the failed operation and an error number. The number is EPERM if the end of the
/// message is not the text of a known error.
fn parse_helper_failure(words: &str) -> (&str, i32) {
    let words = words.trim();
    let words =
        words.strip_prefix(MOUNT_HELPER).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(words);
    let known = [
        ("Permission denied", libc::EACCES),
        ("No such file or directory", libc::ENOENT),
        ("No such device", libc::ENODEV),
        ("Operation not permitted", libc::EPERM),
    ];
    let found = known.into_iter().find_map(|(text, errno)| {
        let reason = words.strip_suffix(text)?.trim_end();
        Some((reason.strip_suffix(':').unwrap_or(reason), errno))
    });
    found.unwrap_or((words, libc::EPERM))
}

/// Unmounts `directory`, even if files are open; later accesses to these files fail. If this
/// process lacks the privilege, runs the set-user-ID helper, whose failure is not reported.
/// Succeeds if nothing is mounted there.
pub fn unmount(directory: &Path) -> Result<()> {
    match rustix::mount::unmount(directory, UnmountFlags::DETACH) {
        Err(rustix::io::Errno::PERM) => {
            let status = Command::new(MOUNT_HELPER)
                .args(["-u", "-q", "-z", "--"])
                .arg(directory)
                .stdin(Stdio::null())
                .stderr(Stdio::null())
                .status();
            status.context("execve", MOUNT_HELPER).map(drop)
        }
        Err(rustix::io::Errno::INVAL) => Ok(()),
        done => done.context("umount", directory.display().to_string()),
    }
}

/// Moves this process into a new user namespace and a new mount namespace, in which it may mount
/// file systems. The process keeps its user and group ids. Mounts in the new namespace are
/// invisible outside. The process must have a single thread.
pub fn enter_user_namespace() -> Result<()> {
    let (uid, gid) = crate::process::effective_ids();
    // SAFETY: the process has a single thread, and neither descriptors nor memory are unshared.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS) }
        .context("unshare", "a user namespace")?;
    for (file, text) in [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("{uid} {uid} 1")),
        ("/proc/self/gid_map", format!("{gid} {gid} 1")),
    ] {
        std::fs::write(file, text).context("write", file)?;
    }
    Ok(())
}

/// Makes reads from this descriptor return EAGAIN instead of blocking. All duplicates of the
/// descriptor are affected.
pub fn set_nonblocking(descriptor: impl std::os::fd::AsFd) -> Result<()> {
    let flags = rustix::fs::fcntl_getfl(&descriptor).context("fcntl", "F_GETFL")?;
    rustix::fs::fcntl_setfl(&descriptor, flags | OFlags::NONBLOCK).context("fcntl", "F_SETFL")
}

fn invalid_directory_error(directory: &Path) -> Error {
    Error::new("mount", directory.display().to_string(), libc::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_of_the_helper_is_split_into_reason_and_error() {
        let message = "fusermount3: failed to open /dev/fuse: Permission denied\n";
        assert_eq!(parse_helper_failure(message), ("failed to open /dev/fuse", libc::EACCES));
        let message = "fusermount3: mount failed: Operation not permitted";
        assert_eq!(parse_helper_failure(message), ("mount failed", libc::EPERM));
        assert_eq!(parse_helper_failure("fusermount3: busy"), ("busy", libc::EPERM));
        assert_eq!(parse_helper_failure(""), ("", libc::EPERM));
        let error =
            Error::new("mount", "/m by fusermount3 (failed to open /dev/fuse)", libc::EACCES);
        assert!(error.to_string().ends_with("permit it with `chmod 666 /dev/fuse`"), "{error}");
    }
}
