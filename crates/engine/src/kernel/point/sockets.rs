//! The sockets of a user that a program covers. [CONTRACT 22]
//!
//! In: the user whose line it is, as the kernel says who that is, and the name space of the
//! network. Out: what the program asks of every packet, and the seats of those that are under way,
//! which all programs for one user share because they write the same rings.

use ebpf::emit::user_sockets::{CLAIM_FAILURES, CLAIMS_STRIDE, UserSockets};
use endpoint::source::kernel::place::{Closed, Place};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use sys::bpf::Map;

/// The sockets of a user in a name space.
#[derive(Debug)]
pub(super) struct Sockets {
    uid: u32,
    netns: u64,
    seats: Map,
}

impl Sockets {
    /// Opens the sockets of this user, with the persisted seats if there are any. Fails if the user
    /// cannot be told from others.
    pub(super) fn of(place: &Place, uid: u32, seats: Option<OwnedFd>) -> Result<Self, Closed> {
        let told = |error: sys::Error| Closed::Program(error.to_string());
        if uid == sys::process::overflow_uid() {
            let why = format!("the number {uid} stands for all users that have none of their own");
            return Err(Closed::Program(why));
        }
        let netns = place.sockets()?;
        let processors = sys::machine::possible_processors().map_err(told)?;
        let bytes = u32::try_from(processors).unwrap_or(u32::MAX).saturating_mul(CLAIMS_STRIDE);
        let seats = match seats {
            Some(kept) => Map::received(kept).map_err(told)?,
            None => Map::array("seats", bytes, 1, false).map_err(told)?,
        };
        let info = seats.info().map_err(told)?;
        if (info.value_size, info.entries) != (bytes, 1) {
            return Err(Closed::Program("the seats that were kept are others".to_owned()));
        }
        Ok(Self { uid, netns, seats })
    }

    /// The map of the seats.
    pub(super) fn seats(&self) -> BorrowedFd<'_> {
        self.seats.as_fd()
    }

    /// The user, and the name space.
    pub(super) const fn whose(&self) -> (u32, u64) {
        (self.uid, self.netns)
    }

    /// The same for a program, which is given the map of seats under the number that `give` says.
    pub(super) fn own(&self, give: impl FnOnce(i32) -> u32) -> UserSockets {
        UserSockets {
            uid: self.uid,
            netns: self.netns,
            claims: give(self.seats.as_fd().as_raw_fd()),
        }
    }

    /// Returns the number of packets that found no free seat.
    pub(super) fn busy(&self) -> u64 {
        let bytes = self.seats.get(0).unwrap_or_default();
        let word = |of: &[u8]| of.get(CLAIM_FAILURES as usize..)?.first_chunk().copied();
        bytes.chunks(CLAIMS_STRIDE as usize).filter_map(word).map(u64::from_ne_bytes).sum()
    }
}
