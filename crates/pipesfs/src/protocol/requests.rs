//! Parsing of the kernel's FUSE requests.

use super::edits::TreeEdit;
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// The header of every request.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// Length of the request in bytes.
    pub length: u32,
    opcode: u32,
    /// Number of the request, which the reply repeats.
    pub unique: u64,
    /// Inode number of the object on which the request operates.
    pub inode: u64,
    /// User id of the caller.
    pub uid: u32,
    /// Group id of the caller.
    pub gid: u32,
    /// Process id of the caller.
    pub pid: u32,
    _extensions: u32,
}

/// A request that the kernel sends to the file system.
#[derive(Clone, Debug)]
pub struct Request {
    /// The header, with the caller and the object.
    pub header: Header,
    /// The operation with its arguments.
    pub operation: Operation,
}

/// An operation with its arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Begins the FUSE session.
    Init {
        /// Major and minor protocol version of the kernel.
        version: (u32, u32),
        /// Maximum readahead in bytes.
        readahead: u32,
        /// Feature flags of the kernel.
        flags: u32,
    },
    /// Looks up a name in a directory.
    Lookup(String),
    /// Drops references to objects. Each pair is an inode number and a number of references.
    Forget(Vec<(u64, u64)>),
    /// Returns the attributes of the object.
    GetAttributes,
    /// Checks access permissions; the mask consists of R_OK, W_OK and X_OK. The kernel sends this
    /// request only if it does not check permissions itself.
    Access(u32),
    /// Returns the target of a symbolic link.
    ReadLink,
    /// Opens a file with these flags of open(2).
    Open(u32),
    /// Reads from an open file.
    Read {
        /// Handle of the open file.
        handle: u64,
        /// Position in the file, in bytes.
        offset: u64,
        /// Maximum number of bytes to read.
        size: u32,
        /// Flags of the open file.
        flags: u32,
    },
    /// Writes bytes to an open file.
    Write(WriteRequest),
    /// Changes attributes of the object.
    SetAttributes(AttributeChange),
    /// Creates a file with this name, and opens it.
    Create(String),
    /// Flushes an open file (fsync(2)). The file system has nothing to do for this operation.
    Sync,
    /// Closes an open file or directory.
    Release(u64),
    /// Opens the object, which is a directory.
    OpenDirectory,
    /// Lists the entries of an open directory.
    ReadDirectory {
        /// Handle of the open directory.
        handle: u64,
        /// Number of the first entry to list.
        offset: u64,
        /// Maximum length of the reply in bytes.
        size: u32,
        /// True if the kernel requests the attributes of the entries too.
        plus: bool,
    },
    /// Returns the statistics of the file system (statfs(2)).
    StatFs,
    /// Returns the event bits for poll(2) and, if `notify` is true, requests a notification of the
    /// next event.
    Poll {
        /// Handle of the open file.
        handle: u64,
        /// Number by which the kernel identifies this poll in a later notification (`kh`).
        wake: u64,
        /// True if the kernel requests a notification when the file becomes ready.
        notify: bool,
    },
    /// Interrupts the request with this number, because its caller received a signal.
    Interrupt(u64),
    /// Ends the FUSE session.
    Destroy,
    /// Reports that a file descriptor was closed, which requires no action.
    Flush,
    /// Changes the tree of directories.
    Edit(TreeEdit),
    /// Any other change to the file system, which is refused.
    Change,
    /// An unsupported operation.
    Unknown,
}

/// A write to an open file. The file position in the request is ignored, because no file of this
/// file system has positions for writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteRequest {
    /// Handle of the open file.
    pub handle: u64,
    /// Flags of the open file.
    pub flags: u32,
    /// The bytes to write.
    pub bytes: Vec<u8>,
}

/// A change of attributes. Attributes that are `None` remain unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AttributeChange {
    /// New file mode: type and permissions.
    pub mode: Option<u32>,
    /// User id of the new owner.
    pub uid: Option<u32>,
    /// Id of the new group.
    pub gid: Option<u32>,
    /// New length in bytes.
    pub size: Option<u64>,
}

/// Bit in the mask of [`Operation::Access`]: execution of a file, or search of a directory.
pub const X_OK: u32 = 1;
/// Flag of an open file: reads and writes do not block.
pub const O_NONBLOCK: u32 = 0o4000;
/// Bits of the flags of an open file that determine the access mode; 0 means read-only.
pub const O_ACCMODE: u32 = 3;

/// Length of the header of a write request, in bytes.
const WRITE_HEADER_LENGTH: usize = 40;
/// Length of the header of a create request, in bytes.
const CREATE_HEADER_LENGTH: usize = 16;
/// Bits of the field `valid` in a SETATTR request; each set bit selects an attribute that the
/// request changes.
const FATTR_MODE: u32 = 1;
const FATTR_UID: u32 = 1 << 1;
const FATTR_GID: u32 = 1 << 2;
const FATTR_SIZE: u32 = 1 << 3;

impl Request {
    /// Parses a request. Returns `None` if the bytes are not a valid request.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (header, rest) = Header::read_from_prefix(bytes).ok()?;
        let operation = Operation::read(header.opcode, rest)?;
        Some(Self { header, operation })
    }
}

impl Operation {
    fn read(opcode: u32, body: &[u8]) -> Option<Self> {
        let words = |at: usize| Some(u32::from_le_bytes(*body.get(at * 4..)?.first_chunk()?));
        let long = |at: usize| Some(u64::from_le_bytes(*body.get(at..)?.first_chunk()?));
        let name_at = |start: usize| {
            let rest = body.get(start..)?;
            let end = rest.iter().position(|byte| *byte == 0)?;
            // No object has a name that is not UTF-8, so such a name becomes the empty name.
            Some(String::from_utf8(rest.get(..end)?.to_vec()).unwrap_or_default())
        };
        let name = || name_at(0);
        Some(match opcode {
            1 => Self::Lookup(name()?),
            2 => Self::Forget(vec![(u64::MAX, long(0)?)]),
            3 => Self::GetAttributes,
            4 => {
                let valid = words(0)?;
                let word = |bit: u32, at: usize| (valid & bit != 0).then(|| words(at)).flatten();
                Self::SetAttributes(AttributeChange {
                    mode: word(FATTR_MODE, 17),
                    uid: word(FATTR_UID, 19),
                    gid: word(FATTR_GID, 20),
                    size: (valid & FATTR_SIZE != 0).then(|| long(16)).flatten(),
                })
            }
            5 => Self::ReadLink,
            14 => Self::Open(words(0)?),
            15 => {
                Self::Read { handle: long(0)?, offset: long(8)?, size: words(4)?, flags: words(8)? }
            }
            16 => {
                let end = WRITE_HEADER_LENGTH.checked_add(words(4)? as usize)?;
                let bytes = body.get(WRITE_HEADER_LENGTH..end)?.to_vec();
                Self::Write(WriteRequest { handle: long(0)?, flags: words(8)?, bytes })
            }
            17 => Self::StatFs,
            20 => Self::Sync,
            18 | 29 => Self::Release(long(0)?),
            25 => Self::Flush,
            26 => Self::Init {
                version: (words(0)?, words(1)?),
                readahead: words(2).unwrap_or_default(),
                flags: words(3).unwrap_or_default(),
            },
            27 => Self::OpenDirectory,
            34 => Self::Access(words(0)?),
            28 | 44 => Self::ReadDirectory {
                handle: long(0)?,
                offset: long(8)?,
                size: words(4)?,
                plus: opcode == 44,
            },
            35 => Self::Create(name_at(CREATE_HEADER_LENGTH)?),
            36 => Self::Interrupt(long(0)?),
            38 => Self::Destroy,
            40 => Self::Poll { handle: long(0)?, wake: long(8)?, notify: words(4)? & 1 == 1 },
            42 => {
                let count = words(0)? as usize;
                let one = |at: usize| Some((long(8 + at * 16)?, long(16 + at * 16)?));
                Self::Forget((0..count.min(body.len() / 16)).filter_map(one).collect())
            }
            6 | 9..=13 | 45 => Self::Edit(TreeEdit::read(opcode, body)?),
            // MKNOD, SETXATTR, REMOVEXATTR, FALLOCATE and TMPFILE.
            8 | 21 | 24 | 43 | 51 => Self::Change,
            _ => Self::Unknown,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opcode: u32, body: &[u8]) -> Option<Request> {
        let mut bytes = vec![0; 40];
        bytes[4..8].copy_from_slice(&opcode.to_le_bytes());
        bytes[16..24].copy_from_slice(&7u64.to_le_bytes());
        bytes.extend_from_slice(body);
        Request::read(&bytes)
    }

    #[test]
    fn b1_requests_of_any_length_are_parsed_or_refused() {
        for opcode in 0..60 {
            for length in 0..80 {
                let _ = request(opcode, &vec![0xff; length]);
            }
        }
        let lookup = request(1, b"all\0").unwrap();
        assert_eq!((lookup.header.inode, lookup.operation), (7, Operation::Lookup("all".into())));
        assert!(request(1, b"all").is_none(), "a name ends with a zero");
        assert_eq!(request(34, &[X_OK as u8, 0, 0, 0]).unwrap().operation, Operation::Access(X_OK));
        let mut write = vec![0; 40];
        (write[0], write[16], write[33]) = (9, 3, 8);
        assert!(request(16, &write).is_none(), "the bytes are missing");
        write.extend_from_slice(b"abc");
        let wanted = WriteRequest { handle: 9, flags: 0x800, bytes: b"abc".to_vec() };
        assert_eq!(request(16, &write).unwrap().operation, Operation::Write(wanted));
        let mut attributes = vec![0; 88];
        (attributes[0], attributes[16], attributes[68]) = (1 << 3, 5, 7);
        let size = AttributeChange { size: Some(5), ..AttributeChange::default() };
        assert_eq!(request(4, &attributes).unwrap().operation, Operation::SetAttributes(size));
    }
}
