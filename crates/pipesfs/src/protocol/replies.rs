//! Replies to the kernel's FUSE requests.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::BorrowedFd;
use streamline::paths::TapRingReader;
use sys::memory::GatherWrite;
use zerocopy::{Immutable, IntoBytes};

/// A reply to one request. Any thread may send the reply, with a single write(2) to the FUSE
/// device.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'d> {
    device: &'d File,
    unique: u64,
}

/// Length of the header of a reply, in bytes.
pub const REPLY_HEADER_LENGTH: usize = 16;

#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
struct Head {
    length: u32,
    error: i32,
    unique: u64,
}

/// Attributes of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub struct Attributes {
    /// Inode number.
    pub inode: u64,
    /// Length in bytes; 0 if the length is unknown until the file is read.
    pub size: u64,
    /// Length in units of 512 bytes.
    pub blocks: u64,
    /// Times of the last access, modification and status change, in seconds since 1970.
    pub times: [u64; 3],
    /// Nanosecond parts of `times`.
    pub nanoseconds: [u32; 3],
    /// File type and permission bits.
    pub mode: u32,
    /// Number of hard links.
    pub links: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id of the object.
    pub gid: u32,
    /// Device number; 0 if the object is not a device.
    pub device: u32,
    /// Block size in bytes; 0 for the default.
    pub block_size: u32,
    /// FUSE flags of the attributes.
    pub flags: u32,
}

/// Time for which the kernel may cache names and attributes, in seconds and nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryTimeout(pub u64, pub u32);

#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
struct EntryReply {
    inode: u64,
    generation: u64,
    valid: [u64; 2],
    valid_ns: [u32; 2],
    attributes: Attributes,
}

/// Code of the notification that a file has become readable (`FUSE_NOTIFY_POLL`).
const NOTIFY_POLL: i32 = 1;

impl<'d> Reply<'d> {
    /// Creates the reply to a request.
    #[must_use]
    pub const fn new(device: &'d File, unique: u64) -> Self {
        Self { device, unique }
    }

    /// Sends a successful reply that contains these bytes after its header.
    pub fn data(self, data: &[u8]) {
        let mut message = Vec::with_capacity(REPLY_HEADER_LENGTH + data.len());
        message.resize(REPLY_HEADER_LENGTH, 0);
        message.extend_from_slice(data);
        self.send_message(message);
    }

    /// Writes the header into the first [`REPLY_HEADER_LENGTH`] bytes of `message`, and sends the
    /// message.
    pub(crate) fn send_message(self, mut message: Vec<u8>) {
        let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
        let head = Head { length, error: 0, unique: self.unique };
        if let Some(room) = message.get_mut(..REPLY_HEADER_LENGTH) {
            room.copy_from_slice(head.as_bytes());
        }
        self.send(&message);
    }

    /// Sends a successful reply with the next `length` bytes of a ring. The kernel reads the bytes
    /// directly from the ring. Returns false if the caller no longer waits for the reply.
    pub(crate) fn send_from_ring(self, ring: &TapRingReader, length: usize) -> bool {
        let total = u32::try_from(REPLY_HEADER_LENGTH + length).unwrap_or(u32::MAX);
        let head = Head { length: total, error: 0, unique: self.unique };
        let mut message = GatherWrite::with_capacity(3);
        message.push_bytes(head.as_bytes());
        ring.gather(length, &mut message);
        // A write to the FUSE device never blocks.
        let refuse = |_: BorrowedFd<'_>| Err(io::ErrorKind::WouldBlock.into());
        message.write_all(self.device, refuse).1.is_ok()
    }

    /// Replies with an error number.
    pub fn error(self, errno: i32) {
        let head = Head { length: REPLY_HEADER_LENGTH as u32, error: -errno, unique: self.unique };
        self.send(head.as_bytes());
    }

    /// Replies to a lookup with the attributes of the object that it found, and the time for which
    /// the kernel may cache the attributes.
    pub fn entry(self, attributes: Attributes, times: EntryTimeout) {
        self.data(entry_reply(attributes, times).as_bytes());
    }

    /// Replies with the attributes of an object.
    pub fn attributes(self, attributes: Attributes, times: EntryTimeout) {
        let EntryTimeout(seconds, nanoseconds) = times;
        let mut message = seconds.to_le_bytes().to_vec();
        message.extend_from_slice(&nanoseconds.to_le_bytes());
        message.extend_from_slice(&[0; 4]);
        message.extend_from_slice(attributes.as_bytes());
        self.data(&message);
    }

    /// Replies with the handle of an opened file, and with flags that tell the kernel how to treat
    /// the file.
    pub fn opened(self, handle: u64, flags: u32) {
        let mut message = handle.to_le_bytes().to_vec();
        message.extend_from_slice(&flags.to_le_bytes());
        message.extend_from_slice(&[0; 4]);
        self.data(&message);
    }

    /// Replies to a write with the number of bytes that it accepted.
    pub fn written(self, bytes: usize) {
        self.data(&(bytes as u64).to_le_bytes());
    }

    /// Replies to a poll with its event bits, as in poll(2).
    pub fn polled(self, events: u32) {
        self.data(&u64::from(events).to_le_bytes());
    }

    /// Wakes the callers of poll(2) that wait for the notification number `wake`.
    pub fn wake_poll_callers(device: &File, wake: u64) {
        let head = Head { length: REPLY_HEADER_LENGTH as u32 + 8, error: NOTIFY_POLL, unique: 0 };
        let message = [head.as_bytes(), &wake.to_le_bytes()].concat();
        Reply { device, unique: 0 }.send(&message);
    }

    /// Writes a message. Ignores errors: ENOENT means that the caller no longer waits, and any
    /// other error means that the file system is unmounted.
    fn send(self, message: &[u8]) {
        let mut device = self.device;
        let _: io::Result<usize> = device.write(message);
    }
}

fn entry_reply(
    attributes: Attributes,
    EntryTimeout(seconds, nanoseconds): EntryTimeout,
) -> EntryReply {
    EntryReply {
        inode: attributes.inode,
        generation: 0,
        valid: [seconds; 2],
        valid_ns: [nanoseconds; 2],
        attributes,
    }
}

/// The entries of a directory in the kernel's format, up to a maximum length.
#[derive(Debug)]
pub struct DirectoryBuffer {
    bytes: Vec<u8>,
    size: usize,
    plus: bool,
}

impl DirectoryBuffer {
    /// Creates a buffer for at most `size` bytes. If `plus` is true, the entries contain
    /// attributes.
    #[must_use]
    pub const fn new(size: usize, plus: bool) -> Self {
        Self { bytes: Vec::new(), size, plus }
    }

    /// Returns true if an entry with this name still fits.
    #[must_use]
    pub fn fits(&self, name: &str) -> bool {
        let head = if self.plus { size_of::<EntryReply>() } else { 0 };
        self.bytes.len() + head + (24 + name.len()).next_multiple_of(8) <= self.size
    }

    /// Adds an entry. `next` is the number of the following entry. Without `looked_up`, the kernel
    /// lists the entry, but adds no reference to its object.
    pub fn add(
        &mut self,
        name: &str,
        next: u64,
        (inode, mode): (u64, u32),
        looked_up: Option<(Attributes, EntryTimeout)>,
    ) {
        if self.plus {
            let (attributes, times) =
                looked_up.unwrap_or_else(|| (Attributes::default(), EntryTimeout(0, 0)));
            self.bytes.extend_from_slice(entry_reply(attributes, times).as_bytes());
        }
        self.bytes.extend_from_slice(&inode.to_le_bytes());
        self.bytes.extend_from_slice(&next.to_le_bytes());
        self.bytes.extend_from_slice(&(name.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(&(mode >> 12).to_le_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
    }

    /// Returns the collected entries, encoded in the kernel's format.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Protocol version of the replies.
const PROTOCOL_VERSION: (u32, u32) = (7, 31);
/// Supported features: PARALLEL_DIROPS, READDIRPLUS_AUTO, DO_READDIRPLUS, MAX_PAGES.
const SUPPORTED_INIT_FLAGS: u32 = 1 << 18 | 1 << 14 | 1 << 13 | 1 << 22;
/// Maximum length of a read, in pages of 4 KB.
const READ_PAGES_MAX: u32 = 256;

/// Returns the reply to INIT. The kernel sends writes of at most `write_max` bytes.
#[must_use]
pub fn init_reply(readahead: u32, flags: u32, write_max: u32) -> Vec<u8> {
    let mut words = [0u32; 16];
    (words[0], words[1]) = PROTOCOL_VERSION;
    words[2] = readahead;
    words[3] = flags & SUPPORTED_INIT_FLAGS;
    // The low half is the maximum number of background requests; the high half is the congestion
    // threshold.
    words[4] = 16 | 12 << 16;
    words[5] = write_max;
    words[6] = 1;
    words[7] = READ_PAGES_MAX;
    words.as_bytes().to_vec()
}

/// Returns the reply to STATFS: an empty file system with names of 255 bytes.
#[must_use]
pub fn statfs_reply() -> Vec<u8> {
    let mut words = [0u32; 20];
    (words[10], words[11], words[12]) = (4096, 255, 4096);
    words.as_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b1_replies_have_the_sizes_of_the_kernel_interface() {
        assert_eq!((size_of::<Attributes>(), size_of::<EntryReply>()), (88, 128));
        assert_eq!((init_reply(0, u32::MAX, 4096).len(), statfs_reply().len()), (64, 80));
        let mut listing = DirectoryBuffer::new(200, true);
        assert!(listing.fits("name"));
        listing.add("name", 1, (5, 0o040_000), None);
        assert!(!listing.fits("name"));
        assert_eq!(listing.into_bytes().len(), 128 + 32);
    }
}
