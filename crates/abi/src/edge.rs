//! How a program that was started with a preloaded library learns which of its pipes may become
//! streams: one variable of the environment, an entry for each edge. [SL §5.1: the file interface]
//!
//! ```text
//! STREAMLINE_EDGES = r:7104:900:7106,w:7108:901:7111
//!                    │   │    │    └ inode of the meeting place
//!                    │   │    └ its descriptor
//!                    │   └ inode of the pipe
//!                    └ the end that the program has: reads or writes
//! ```
//!
//! Inodes say what is meant whatever number it has been given since, and tell an inherited variable
//! from inherited descriptors: a program whose descriptors were closed or replaced finds nothing
//! that fits, and has ordinary pipes.

use core::fmt;
use core::str::FromStr;

/// The variable.
pub const VARIABLE: &str = "STREAMLINE_EDGES";
/// The variable that says which programs copy lazily: `1`, or missing.
pub const LAZY: &str = "STREAMLINE_LAZY";
/// Descriptors of meeting places have this number or a larger one, out of the way of programs.
pub const LOWEST: i32 = 700;
/// The most edges that one program has.
pub const EDGES_MAX: usize = 4;

/// Which end of an edge a program has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It reads.
    Reads,
    /// It writes.
    Writes,
}

/// One edge of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edge {
    /// Which end the program has.
    pub end: End,
    /// The inode of the pipe.
    pub pipe: u64,
    /// The descriptor of the meeting place: a socket whose other end the other program has.
    pub socket: i32,
    /// Its inode.
    pub inode: u64,
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = match self.end {
            End::Reads => 'r',
            End::Writes => 'w',
        };
        write!(f, "{end}:{}:{}:{}", self.pipe, self.socket, self.inode)
    }
}

/// What an entry is not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoEdge;

impl fmt::Display for NoEdge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an edge: r or w, and three numbers between colons")
    }
}

impl core::error::Error for NoEdge {}

impl FromStr for Edge {
    type Err = NoEdge;

    fn from_str(text: &str) -> Result<Self, NoEdge> {
        let mut parts = text.split(':');
        let end = match parts.next() {
            Some("r") => End::Reads,
            Some("w") => End::Writes,
            _ => return Err(NoEdge),
        };
        let mut number = || parts.next().and_then(|part| part.parse::<u64>().ok()).ok_or(NoEdge);
        let (pipe, socket, inode) = (number()?, number()?, number()?);
        let socket = i32::try_from(socket).map_err(|_| NoEdge)?;
        if parts.next().is_some() { Err(NoEdge) } else { Ok(Self { end, pipe, socket, inode }) }
    }
}

/// The edges of a variable; what is none is passed over.
pub fn edges(variable: &str) -> impl Iterator<Item = Edge> {
    variable.split(',').filter_map(|entry| entry.parse().ok()).take(EDGES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::fmt::Write as _;

    #[test]
    fn an_edge_is_read_as_it_was_written() {
        let text = "r:7104:900:7106,w:7108:901:7111";
        let mut again = Text([0; 64], 0);
        for (i, edge) in edges(text).enumerate() {
            write!(again, "{}{edge}", if i > 0 { "," } else { "" }).unwrap();
        }
        assert_eq!(&again.0[..again.1], text.as_bytes());
    }

    #[test]
    fn what_is_no_edge_is_passed_over() {
        for text in ["", "r", "x:1:2:3", "r:1:2", "r:1:2:3:4", "r:-1:2:3", "w:1:99999999999:3"] {
            assert_eq!(text.parse::<Edge>(), Err(NoEdge), "{text}");
        }
        assert_eq!(edges("nonsense,w:1:2:3,,").count(), 1);
    }

    struct Text([u8; 64], usize);

    impl fmt::Write for Text {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let to = self.0.get_mut(self.1..self.1 + text.len()).ok_or(fmt::Error)?;
            to.copy_from_slice(text.as_bytes());
            self.1 += text.len();
            Ok(())
        }
    }
}
