//! State of a filter as a table that other processes read by name. [Th §5.3.3, "communicating
//! state"], FEATURES M3
//!
//! ```text
//!  writer: one process                     a region of memory             readers: any number
//!  Writer::put(row, numbers) ───────►  head │ columns │ row │ row … ◄───────  Reader::look()
//!                                      one word before each row and one before all of them
//! ```
//!
//! One process writes, the others have the memory mapped to be read, nothing else; the writer
//! neither waits for a reader nor knows of one. A table has columns with names and units, which
//! stand in the region itself, so a reader needs nothing but the name; numbers are words.
//!
//! **Torn rows.** A word before each row is odd while the row is written (`rows`): who reads looks
//! at it before and after, and reads again. A second such word stands before all rows: where it did
//! not change either, the rows are of one moment. All that is read is foreign memory: it is copied,
//! and believed only as far as the size of the region.
//!
//! **Names** are those of [`crate::name`], in a realm of their own: who owns one and who may open
//! it is decided by the same host in the same way. The end of the writer, also by a signal, is seen
//! at the socket to its host.

#[cfg(not(loom))]
mod layout;
#[cfg(not(loom))]
mod list;
#[cfg(all(test, loom))]
mod models;
#[cfg(not(loom))]
mod reader;
mod rows;
#[cfg(not(loom))]
mod table;
#[cfg(all(test, not(loom), not(miri)))]
mod tests;
#[cfg(not(loom))]
mod writer;

#[cfg(not(loom))]
pub use layout::{Column, Shape};
#[cfg(not(loom))]
pub use list::Names;
#[cfg(not(loom))]
pub use reader::{Look, Reader};
#[cfg(not(loom))]
pub use table::Table;
#[cfg(not(loom))]
pub use writer::Writer;
