//! The messages of the kernel's FUSE protocol, version 7.31 (linux/fuse.h), that this server uses.
//!
//! The protocol is implemented here because of INTERRUPT, which the kernel sends when a process
//! receives a signal during a blocked read. The available library rejects INTERRUPT, so the process
//! would stay blocked.

mod edits;
mod replies;
mod requests;

pub use edits::TreeEdit;
pub use replies::{
    Attributes, DirectoryBuffer, EntryTimeout, REPLY_HEADER_LENGTH, Reply, init_reply, statfs_reply,
};
pub use requests::{
    AttributeChange, Header, O_ACCMODE, O_NONBLOCK, Operation, Request, WriteRequest, X_OK,
};

/// Error numbers in replies.
pub mod errno {
    /// The operation is not permitted.
    pub const EPERM: i32 = 1;
    /// The object does not exist.
    pub const ENOENT: i32 = 2;
    /// A signal ended the operation.
    pub const EINTR: i32 = 4;
    /// The operation failed.
    pub const EIO: i32 = 5;
    /// The operation would block.
    pub const EAGAIN: i32 = 11;
    /// The object belongs to another user.
    pub const EACCES: i32 = 13;
    /// The operation needs a single path, but the directory represents several paths.
    pub const EBUSY: i32 = 16;
    /// The entry exists.
    pub const EEXIST: i32 = 17;
    /// The object is not a directory.
    pub const ENOTDIR: i32 = 20;
    /// The object is a directory.
    pub const EISDIR: i32 = 21;
    /// The argument is invalid.
    pub const EINVAL: i32 = 22;
    /// The file system is read-only.
    pub const EROFS: i32 = 30;
    /// The path no longer accepts writes.
    pub const EPIPE: i32 = 32;
    /// The operation would wait for itself.
    pub const EDEADLK: i32 = 35;
    /// The operation is not supported.
    pub const ENOSYS: i32 = 38;
    /// The directory is not empty.
    pub const ENOTEMPTY: i32 = 39;
    /// The object does not support the operation.
    pub const EOPNOTSUPP: i32 = 95;
    /// The path did not reply in time.
    pub const ETIMEDOUT: i32 = 110;
    /// The object no longer exists.
    pub const ESTALE: i32 = 116;
}
