//! The environment variable that lists which pipes of a program can become streams, and its parser.
//! The library that is preloaded into the program reads the variable. [SL §5.1: the file interface]
//!
//! ```text
//! STREAMLINE_EDGES = r:7104:900:7106:0,w:7108:901:7111:1
//! │   │    │    │    └ number of the edge in the pipeline
//! │   │    │    └ inode of the rendezvous socket
//! │   │    └ its descriptor
//! │   └ inode of the pipe
//! └ the program's end: r (reads) or w (writes)
//! ```
//!
//! Inodes identify the pipe and the socket even if their descriptors were renumbered. They also
//! reveal a variable that was inherited without its descriptors: the program then finds no match
//! and keeps its ordinary pipes.

use core::fmt;
use core::str::FromStr;

/// Name of the environment variable that lists the edges of a program, the pipes that can become
/// streams.
pub const EDGES_VARIABLE: &str = "STREAMLINE_EDGES";
/// Name of the environment variable that identifies the memory in which programs count the bytes of
/// each edge. Its value is the number of the memory's descriptor and the descriptor's inode,
/// separated by a colon.
pub const EDGE_COUNTS_VARIABLE: &str = "STREAMLINE_COUNTS";
/// Name of the environment variable that, if set to `1`, makes programs copy bytes read from a
/// stream only when they first access them (lazy copies).
pub const LAZY_COPIES_VARIABLE: &str = "STREAMLINE_LAZY";
/// Lowest number of the descriptors that a program inherits for its edges: rendezvous sockets, the
/// memory for byte counts, and the file with the counter of dbuf ids. Programs usually use lower
/// numbers.
pub const INHERITED_DESCRIPTOR_MIN: i32 = 700;
/// Maximum number of edges (pipes that can become streams) per program.
pub const EDGES_MAX: usize = 4;

/// An end of a pipe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PipeEnd {
    /// The program has the reading end of the pipe.
    Reads,
    /// The program has the writing end of the pipe.
    Writes,
}

/// A pipe of a program that can become a stream (an edge).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edge {
    /// The end of the pipe that the program holds.
    pub end: PipeEnd,
    /// Inode of the pipe.
    pub pipe: u64,
    /// Descriptor of the rendezvous socket, over which the programs at the two ends of the pipe
    /// replace the pipe by a ring. The program at the other end holds the peer socket.
    pub socket: i32,
    /// Inode of the rendezvous socket, which identifies the socket even if its descriptor has been
    /// renumbered.
    pub inode: u64,
    /// Number of the edge in the pipeline, from 0.
    pub number: u32,
}

/// A value that one end of an edge publishes: a number of bytes, the current or the maximum size of
/// the ring that replaces the pipe, or the number of times that this ring has changed its size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EdgeCount {
    /// Bytes that the writer has written into the kernel pipe.
    WrittenToPipe,
    /// Bytes that the writer has copied into the ring that replaces the pipe.
    CopiedIn,
    /// Bytes of a file that the writer has passed as pointers into the file, without copying them.
    PassedIn,
    /// Bytes that the reader has read from the kernel pipe.
    ReadFromPipe,
    /// Bytes that the reader has copied out of the file or out of the ring that replaces the pipe.
    CopiedOut,
    /// Bytes that the reader has passed to its own output without reading or copying them.
    PassedOut,
    /// Current size in bytes of the ring that replaces the pipe. After the ring is closed, its last
    /// size.
    RingSize,
    /// Maximum size in bytes of the ring that replaces the pipe.
    RingSizeMax,
    /// Number of times that the ring that replaces the pipe has grown.
    RingGrown,
    /// Number of times that the ring that replaces the pipe has shrunk.
    RingShrunk,
}

impl EdgeCount {
    /// Size in bytes of the area for the counters of one edge. A counter is one 8-byte word.
    pub const EDGE_COUNTERS_SIZE: usize = 128;

    /// Returns the byte offset of this counter, for the edge with this number, in the memory that
    /// [`EDGE_COUNTS_VARIABLE`] identifies.
    #[must_use]
    pub const fn offset(self, edge: u32) -> usize {
        edge as usize * Self::EDGE_COUNTERS_SIZE + self as usize * size_of::<u64>()
    }
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = match self.end {
            PipeEnd::Reads => 'r',
            PipeEnd::Writes => 'w',
        };
        write!(f, "{end}:{}:{}:{}:{}", self.pipe, self.socket, self.inode, self.number)
    }
}

/// The error returned for text that does not describe an edge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParseEdgeError;

impl fmt::Display for ParseEdgeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an edge: write r or w and four numbers, separated by colons")
    }
}

impl core::error::Error for ParseEdgeError {}

impl FromStr for Edge {
    type Err = ParseEdgeError;

    fn from_str(text: &str) -> Result<Self, ParseEdgeError> {
        let mut parts = text.split(':');
        let end = match parts.next() {
            Some("r") => PipeEnd::Reads,
            Some("w") => PipeEnd::Writes,
            _ => return Err(ParseEdgeError),
        };
        let mut number =
            || parts.next().and_then(|part| part.parse::<u64>().ok()).ok_or(ParseEdgeError);
        let (pipe, socket, inode) = (number()?, number()?, number()?);
        let socket = i32::try_from(socket).map_err(|_| ParseEdgeError)?;
        let number = u32::try_from(number()?).map_err(|_| ParseEdgeError)?;
        if parts.next().is_some() {
            Err(ParseEdgeError)
        } else {
            Ok(Self { end, pipe, socket, inode, number })
        }
    }
}

/// Parses the value of [`EDGES_VARIABLE`]. Skips invalid entries, and returns at most [`EDGES_MAX`]
/// edges.
pub fn parse_edges(variable: &str) -> impl Iterator<Item = Edge> {
    variable.split(',').filter_map(|entry| entry.parse().ok()).take(EDGES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::fmt::Write as _;

    #[test]
    fn edge_survives_formatting_and_parsing() {
        let text = "r:7104:900:7106:0,w:7108:901:7111:12";
        let mut again = FixedBuffer([0; 64], 0);
        for (i, edge) in parse_edges(text).enumerate() {
            write!(again, "{}{edge}", if i > 0 { "," } else { "" }).unwrap();
        }
        assert_eq!(&again.0[..again.1], text.as_bytes());
    }

    #[test]
    fn invalid_edges_in_the_variable_are_skipped() {
        for text in
            ["", "r", "x:1:2:3:0", "r:1:2:3", "r:1:2:3:4:5", "r:-1:2:3:0", "w:1:99999999999:3:0"]
        {
            assert_eq!(text.parse::<Edge>(), Err(ParseEdgeError), "{text}");
        }
        assert_eq!(parse_edges("nonsense,w:1:2:3:0,,").count(), 1);
    }

    /// A fixed-size text buffer: the bytes, and the number of bytes used.
    struct FixedBuffer([u8; 64], usize);

    impl fmt::Write for FixedBuffer {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let to = self.0.get_mut(self.1..self.1 + text.len()).ok_or(fmt::Error)?;
            to.copy_from_slice(text.as_bytes());
            self.1 += text.len();
            Ok(())
        }
    }
}
