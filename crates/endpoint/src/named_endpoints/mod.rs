//! Endpoints of a path that other programs open by name: `user` and `socket` for readers, `buffer`
//! for writers. [SL §4.3, §5.1]
//!
//! ```text
//! … | user name=N    ring of blocks, written by the path ──► any number of readers, by permission
//! buffer N | …       one ring for each writer, read by the path ◄── any number of writers
//! ```
//!
//! [`buffer::name`] implements the rings and their grants: a name belongs to a user and a network
//! namespace, and disappears with the path. Rust programs open a name with [`NamedReader`] or
//! [`NamedWriter`], C programs with `streamline_open`, and shell users with `streamline cat`.

pub mod buffer_source;
mod open;
mod ring;
pub mod ring_sinks;
mod writers;

pub use buffer::name::Error as NameError;
pub use open::{NamedReader, NamedWriter, capture_packets};
pub use ring::{RingState, ring_size_bounds, writer_ring_size_bounds};

use crate::Failure;
use crate::permitted_readers::PermittedReaders;
use abi::access::AccessList;
use buffer::name::Error;
use filter::{Arguments, Parameter, ParameterType};
use std::path::Path;

/// The parameter `size` of named endpoints. It sets a fixed size for the ring.
const SIZE_PARAMETER: Parameter = Parameter::optional(
    "size",
    ParameterType::Size { low: 64 << 10, high: 1 << 30 },
    "bytes that wait for the slowest reader (default 1M, and more with full=wait)",
);

/// Returns the access list of a named endpoint: the permission bits in the argument `mode`, by
/// default 600. Permissions of users who may not read every input file of the path are removed
/// (CONTRACT 21).
fn access_list(arguments: &Arguments, readers: &PermittedReaders) -> AccessList {
    let mode = arguments.text("mode").and_then(|mode| u32::from_str_radix(mode, 8).ok());
    let mode = readers.file_mode(Path::new("/"), mode.unwrap_or(0o600));
    AccessList { mode, ..AccessList::private(sys::process::effective_ids()) }
}

/// Converts an error from opening a named endpoint into a failure that names the endpoint.
fn open_failure(call: &'static str, name: &str, error: &Error) -> Failure {
    Failure::new(call, format!("`{name}`"), error)
}
