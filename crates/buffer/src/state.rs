//! The state of a filter, as a table that other processes read by name. [Th §5.3.3, "communicating
//! state"], FEATURES M3
//!
//! ```text
//!  writer: one process                     a region of memory             readers: any number
//!  TableWriter::put(row, …) ──────►  head │ columns │ row │ row … ◄──── TableReader::snapshot()
//!                                      one word before each row and one before all of them
//! ```
//!
//! One process writes; the others map the memory read-only. The writer neither waits for readers
//! nor is aware of them. The table has columns with names and units, which are stored in the region
//! itself, so a reader needs only the name of the table. Each value is one 64-bit word.
//!
//! **Torn rows.** A word in front of each row is odd while the row is written (`rows`). A reader
//! checks this word before and after its copy, and retries if the word has changed. A second such
//! word covers all rows: if it has not changed either, the snapshot is consistent across rows.
//! Everything read is foreign memory: it is copied, and nothing but the size of the region is
//! trusted.
//!
//! **Names** of tables follow the rules of [`crate::name`] on ownership and access, in a separate
//! namespace. Readers detect that the writer has exited, even if it was killed, because the socket
//! to its host hangs up.

#[cfg(not(loom))]
mod layout;
#[cfg(all(test, loom))]
mod models;
#[cfg(not(loom))]
mod reader;
mod rows;
#[cfg(not(loom))]
mod table;
#[cfg(not(loom))]
mod table_names;
#[cfg(all(test, not(loom), not(miri)))]
mod tests;
#[cfg(not(loom))]
mod writer;

#[cfg(not(loom))]
pub use layout::{Column, TableShape};
#[cfg(not(loom))]
pub use reader::{Snapshot, TableReader};
#[cfg(not(loom))]
pub use table::Table;
#[cfg(not(loom))]
pub use table_names::TableNames;
#[cfg(not(loom))]
pub use writer::TableWriter;
