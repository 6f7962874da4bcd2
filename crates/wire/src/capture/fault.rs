//! What can be wrong with a capture: always the capture's fault, never the reader's or the user's.

use core::fmt;

/// Why a capture cannot be read further, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The offset in the capture.
    pub at: u64,
    /// The number of the packet, counted from one; zero for the header of the file.
    pub record: u64,
    /// What is wrong.
    pub why: Why,
}

/// What is wrong with a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// The first bytes are those of no capture.
    NotACapture {
        /// The first bytes.
        magic: [u8; 4],
    },
    /// A version that nobody has defined.
    Version {
        /// `pcap` or `pcapng`.
        format: &'static str,
        /// The major version.
        major: u16,
        /// The minor version.
        minor: u16,
    },
    /// Reserved bits beside the link type are set; a reader that knows their meaning is needed.
    Reserved {
        /// The bits.
        bits: u32,
    },
    /// The capture ends within a record or a header.
    Ends,
    /// A record that is longer than its link type or a block allows.
    TooLong {
        /// Its length.
        length: u32,
        /// The longest that is accepted.
        max: u32,
    },
    /// A pcapng block whose length is no multiple of four or less than its fields take.
    BlockLength {
        /// The type of the block.
        kind: u32,
        /// Its length.
        length: u32,
    },
    /// A pcapng block whose two lengths differ.
    BlockTrailer {
        /// The length before the block.
        before: u32,
        /// The length behind it.
        behind: u32,
    },
    /// A pcapng section whose byte order cannot be told.
    ByteOrder {
        /// What stands where the byte order should.
        magic: u32,
    },
    /// A packet of an interface that the section did not describe.
    Interface {
        /// The interface.
        interface: u32,
        /// How many are described.
        described: u32,
    },
    /// A section that describes more interfaces than can be numbered.
    TooManyInterfaces,
    /// Packet data longer than the pcapng block around it.
    Overrun {
        /// The length of the data.
        length: u32,
        /// How much the block holds.
        held: u32,
    },
    /// An option that does not fit into its block or has the wrong length.
    BadOption {
        /// The option's number.
        code: u16,
        /// The option's length.
        length: u16,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, record, why } = *self;
        match (why, record) {
            (Why::Ends, 0) => write!(f, "capture ends in the middle of its header at byte {at}"),
            (Why::Ends, _) => {
                write!(f, "capture ends in the middle of record {record} at byte {at}")
            }
            (Why::NotACapture { .. } | Why::Version { .. } | Why::Reserved { .. }, _) => {
                write!(f, "{why}")
            }
            _ => write!(f, "{why}, in record {record} at byte {at}"),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotACapture { magic } => not_a_capture(f, magic),
            Self::Version { format, major, minor } => {
                write!(f, "unsupported {format} savefile version {major}.{minor}")
            }
            Self::Reserved { bits } => {
                write!(f, "savefile linktype reserved field not zero (0x{bits:08x})")
            }
            Self::Ends => f.write_str("capture ends in the middle of a record"),
            Self::TooLong { length, max } => {
                write!(f, "invalid packet capture length {length}, bigger than maximum of {max}")
            }
            Self::BlockLength { kind, length } => {
                write!(f, "pcapng block of type 0x{kind:x} with impossible length {length}")
            }
            Self::BlockTrailer { before, behind } => {
                write!(f, "pcapng block with length {before} in front and {behind} at its end")
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
            Self::Overrun { length, held } => {
                write!(f, "packet data of {length} bytes in a block that holds {held}")
            }
            Self::BadOption { code, length } => {
                write!(f, "pcapng option {code} with impossible length {length}")
            }
        }
    }
}

impl core::error::Error for Fault {}

fn not_a_capture(f: &mut fmt::Formatter<'_>, magic: [u8; 4]) -> fmt::Result {
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
