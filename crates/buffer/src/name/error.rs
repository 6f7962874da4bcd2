//! Errors in creating a name or opening an object by name.

use super::Address;
use crate::share::OfferRefusal;

/// Reason why a name could not be created or opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The text is not a valid name.
    #[error("`{name}` is not a valid name: {why}")]
    Name {
        /// The text that is not a valid name, truncated if it is long.
        name: String,
        /// Reason why the name is invalid.
        why: &'static str,
    },
    /// No process has created the name.
    #[error(
        "no {} is called {} in this network namespace: a process of user {} has to create it \
         first",
        .0.object_kind_name(), .0, .0.uid()
    )]
    Unknown(Address),
    /// This process or another one of the same user has already created the name.
    #[error(
        "the name {} is taken by another {} of the same user: choose another name, or end that \
         process (`ss -xlp | grep {}`)",
        .0, .0.object_kind_name(), .0.name()
    )]
    Taken(Address),
    /// The name is occupied by a process of a user other than its owner.
    #[error(
        "the name {address} is held by a process of user {holder}, who does not own it: nothing \
         was opened (`ss -xlp | grep {}` shows the process to root)",
        address.name()
    )]
    Squatted {
        /// Requested name.
        address: Address,
        /// User ID of the process that occupies the name.
        holder: u32,
    },
    /// The access list denies this user access.
    #[error(
        "{} may not open {address}: it belongs to user {owner}, group {group}, and has mode \
         {mode:03o}",
        format_current_user()
    )]
    Forbidden {
        /// Requested name.
        address: Address,
        /// User ID of the owner of the name.
        owner: u32,
        /// Group ID to which the middle permission bits apply.
        group: u32,
        /// Permission bits of the access list.
        mode: u32,
    },
    /// All reader slots are in use, or all slots that one untrusted user is allowed to occupy.
    #[error(
        "{address} has {limit} readers{}",
        if *is_per_user { USER_LIMIT_SUFFIX } else { CREATOR_LIMIT_SUFFIX }
    )]
    Full {
        /// Requested name.
        address: Address,
        /// Number of readers that the limit allows.
        limit: u64,
        /// True if the limit is the one per untrusted user, false if it is the total.
        is_per_user: bool,
    },
    /// The writer has ended the stream.
    #[error("the {} {} has just ended", .0.object_kind_name(), .0)]
    Ended(Address),
    /// The name refers to another kind of object.
    #[error("{address} is {is}, not {wanted}")]
    Kind {
        /// Requested name.
        address: Address,
        /// Kind of the object that has the name instead, such as `a region`.
        is: &'static str,
        /// Kind of object that the caller expects under the name, such as `a stream to read`.
        wanted: &'static str,
    },
    /// The process that holds the name has not replied in time, because it is stopped or
    /// overloaded.
    #[error("the process that holds the name {0} does not reply: it is stopped, or overloaded")]
    Silent(Address),
    /// The reply does not come from a host, has another protocol version, or grants an object other
    /// than the requested filter state.
    #[error("the server at {0} does not speak this protocol, or speaks another version of it")]
    InvalidReply(Address),
    /// A descriptor that the host sent failed validation.
    #[error("invalid descriptors received: {0}")]
    Refused(#[from] OfferRefusal),
    /// The range exceeds the region.
    #[error("{length} bytes at {at} exceed a region of {bytes} bytes")]
    Range {
        /// Start of the range in bytes.
        at: u64,
        /// Length of the range in bytes.
        length: usize,
        /// Size of the region in bytes.
        bytes: usize,
    },
    /// This process has read-only access to the region.
    #[error("this region was opened read-only")]
    ReadOnly,
    /// The kernel refused a system call.
    #[error("{0}")]
    System(#[from] sys::Error),
}

/// Suffix of the message for [`Error::Full`] if the total limit is reached.
const CREATOR_LIMIT_SUFFIX: &str = ", the maximum set by its creator: wait until one leaves";
/// Suffix of the message for [`Error::Full`] if the limit per untrusted user is reached.
const USER_LIMIT_SUFFIX: &str = " of this user, the maximum set by its creator for another user";

/// Returns the user and group of this process for an error message.
fn format_current_user() -> String {
    let (uid, gid) = sys::process::effective_ids();
    format!("user {uid}, group {gid},")
}
