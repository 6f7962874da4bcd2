//! The sockets of one user, whose packets a program processes. [CONTRACT 22]
//!
//! Input: the user id, as the kernel knows it, and the network namespace. Output: the program's
//! test of each packet, and the map in which programs claim memory regions for packets in flight.
//! All programs of a user share this map, because they write to the same rings.

use ebpf::emit::user_sockets::{CLAIM_FAILURES_OFFSET, CLAIMS_STRIDE, UserSocketsConfig};
use endpoint::source::kernel::attach_point::{AttachError, AttachPoint};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use sys::bpf::Map;

/// The sockets of a user in a network namespace.
#[derive(Debug)]
pub(super) struct UserSockets {
    uid: u32,
    netns: u64,
    pub(super) claims: Map,
}

impl UserSockets {
    /// Opens the sockets of a user in the network namespace of `place`. Adopts the map `claims`, or
    /// creates a map if `claims` is `None`. Fails if `uid` is the overflow user id, which stands
    /// for all unmapped users, or if the adopted map has an unexpected size.
    pub(super) fn open(
        place: &AttachPoint,
        uid: u32,
        claims: Option<OwnedFd>,
    ) -> Result<Self, AttachError> {
        let unsupported = |error: sys::Error| AttachError::Unsupported(error.to_string());
        if uid == sys::process::overflow_uid() {
            let why = format!("user id {uid} stands for all unmapped users");
            return Err(AttachError::Unsupported(why));
        }
        let netns = place.socket_namespace_cookie()?;
        let processors = sys::machine::count_possible_processors().map_err(unsupported)?;
        let bytes = u32::try_from(processors).unwrap_or(u32::MAX).saturating_mul(CLAIMS_STRIDE);
        let claims = match claims {
            Some(kept) => Map::from_received(kept).map_err(unsupported)?,
            None => Map::array("claims", bytes, 1, false).map_err(unsupported)?,
        };
        let info = claims.info().map_err(unsupported)?;
        if (info.value_size, info.entries) != (bytes, 1) {
            return Err(AttachError::Unsupported(
                "the persisted claims have another layout".to_owned(),
            ));
        }
        Ok(Self { uid, netns, claims })
    }

    /// Returns the user id of the sockets' owner, and the number that identifies their network
    /// namespace.
    pub(super) const fn user_and_namespace(&self) -> (u32, u64) {
        (self.uid, self.netns)
    }

    /// Returns the facts about the sockets that the assembly of a program needs. `give` adds the
    /// map of claimed memory regions to the program's maps, and returns the map's index.
    pub(super) fn user_sockets_config(&self, give: impl FnOnce(i32) -> u32) -> UserSocketsConfig {
        UserSocketsConfig {
            uid: self.uid,
            netns: self.netns,
            claims: give(self.claims.as_fd().as_raw_fd()),
        }
    }

    /// Returns the number of packets that were skipped because all memory regions of their
    /// processor were in use.
    pub(super) fn busy_packets(&self) -> u64 {
        let bytes = self.claims.get(0).unwrap_or_default();
        let word = |of: &[u8]| of.get(CLAIM_FAILURES_OFFSET as usize..)?.first_chunk().copied();
        bytes.chunks(CLAIMS_STRIDE as usize).filter_map(word).map(u64::from_ne_bytes).sum()
    }
}
