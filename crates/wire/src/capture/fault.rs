//! Errors that end the reading of a capture file.

use core::fmt;

/// A fault that ends the reading of a capture, with its position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CaptureFault {
    /// Offset of the fault in the capture, in bytes.
    pub at: u64,
    /// Number of the packet that was being read, counted from 1; 0 for a fault in the header of a
    /// pcap file, and for a capture that ends in its first header.
    pub record: u64,
    /// Kind of the fault, with details.
    pub kind: FaultKind,
}

/// Kinds of faults that end the reading of a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// The file is not a capture.
    NotACapture {
        /// First four bytes of the file.
        magic: [u8; 4],
    },
    /// The version of the capture's format is unknown.
    Version {
        /// Format of the capture: `pcap` or `pcapng`.
        format: &'static str,
        /// Major version of the format.
        major: u16,
        /// Minor version of the format.
        minor: u16,
    },
    /// A reserved bit in the link type field of the file header is set.
    Reserved {
        /// Value of the reserved bits.
        bits: u32,
    },
    /// The capture ends in the middle of a record or header.
    Truncated,
    /// A record is longer than its link type allows, or a pcapng block that must be complete in the
    /// buffer is longer than [`super::BLOCK_LENGTH_MAX`].
    TooLong {
        /// Length that the record states, in bytes.
        length: u32,
        /// Maximum accepted length of the record or block, in bytes.
        max: u32,
    },
    /// The length of a pcapng block is not a multiple of four, or too small for the fields of the
    /// block.
    BlockLength {
        /// Type number of the block.
        kind: u32,
        /// Length that the block states, in bytes.
        length: u32,
    },
    /// The total length is not the same at the beginning and at the end of a pcapng block.
    BlockTrailer {
        /// Block length that stands at the beginning of the block.
        before: u32,
        /// Block length that stands at the end of the block.
        after: u32,
    },
    /// A pcapng section has an unknown byte order.
    ByteOrder {
        /// The byte-order magic of the section.
        magic: u32,
    },
    /// A packet refers to an interface that its section does not describe.
    Interface {
        /// Number of the interface to which the packet refers.
        interface: u32,
        /// Number of interfaces that the section has described so far.
        described: u32,
    },
    /// A pcapng section describes more interfaces than the reader can number.
    TooManyInterfaces,
    /// The data of a packet extend beyond the end of the pcapng block.
    Overrun {
        /// Captured length that the packet states, in bytes.
        length: u32,
        /// Number of bytes available for data in the block.
        available: u32,
    },
    /// An option extends beyond the end of its block, or has an invalid length.
    BadOption {
        /// Code number of the option.
        code: u16,
        /// Length that the option states, in bytes.
        length: u16,
    },
}

impl fmt::Display for CaptureFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, record, kind: why } = *self;
        match (why, record) {
            (FaultKind::Truncated, 0) => {
                write!(f, "capture ends in the middle of its header at byte {at}")
            }
            (FaultKind::Truncated, _) => {
                write!(f, "capture ends in the middle of record {record} at byte {at}")
            }
            (
                FaultKind::NotACapture { .. }
                | FaultKind::Version { .. }
                | FaultKind::Reserved { .. },
                _,
            ) => {
                write!(f, "{why}")
            }
            _ => write!(f, "{why}, in record {record} at byte {at}"),
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotACapture { magic } => write_not_a_capture(f, magic),
            Self::Version { format, major, minor } => {
                write!(f, "unsupported {format} savefile version {major}.{minor}")
            }
            Self::Reserved { bits } => {
                write!(f, "savefile linktype reserved field not zero (0x{bits:08x})")
            }
            Self::Truncated => f.write_str("capture ends in the middle of a record"),
            Self::TooLong { length, max } => {
                write!(f, "invalid packet capture length {length}, bigger than maximum of {max}")
            }
            Self::BlockLength { kind, length } => {
                write!(f, "pcapng block of type 0x{kind:x} with impossible length {length}")
            }
            Self::BlockTrailer { before, after } => {
                write!(f, "pcapng block with length {before} in front and {after} at its end")
            }
            Self::ByteOrder { magic } => {
                write!(f, "pcapng section with unknown byte order 0x{magic:08x}")
            }
            Self::Interface { interface, described } => {
                write!(f, "packet of interface {interface}, of which the section describes ")?;
                write!(f, "{described}")
            }
            Self::TooManyInterfaces => {
                f.write_str("pcapng section with more than 65536 interfaces")
            }
            Self::Overrun { length, available: held } => {
                write!(f, "packet data of {length} bytes in a block that holds {held}")
            }
            Self::BadOption { code, length } => {
                write!(f, "pcapng option {code} with impossible length {length}")
            }
        }
    }
}

impl core::error::Error for CaptureFault {}

fn write_not_a_capture(f: &mut fmt::Formatter<'_>, magic: [u8; 4]) -> fmt::Result {
    let program = match magic {
        [0x1f, 0x8b, ..] => "gunzip",
        [0x28, 0xb5, 0x2f, 0xfd] => "unzstd",
        [0xfd, b'7', b'z', b'X'] => "unxz",
        [0x04, 0x22, 0x4d, 0x18] => "unlz4",
        [a, b, c, d] => {
            return write!(
                f,
                "not a capture: it begins with {a:02x} {b:02x} {c:02x} {d:02x}, \
                 which is neither pcap nor pcapng"
            );
        }
    };
    write!(f, "not a capture but a compressed file: put it through {program} first")
}
