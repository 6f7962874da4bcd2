//! AF_XDP: frames between an interface's queue and memory of ours, by descriptors alone.
//!
//! In: memory cut into frames ([`Umem`]), an interface and a queue. Out: a [`XdpSocket`] with four
//! rings: frames that we lend to the kernel ([`FillRing`]) come back with what was received ([`RxRing`]);
//! frames that we give to be sent ([`TxRing`]) come back empty ([`CompletionRing`]). A frame is always in
//! exactly one place: who keeps count loses none. Sockets of several queues and interfaces may
//! share one memory, so that what one received another one sends without a copy. An XDP program
//! leads frames to a socket by a map ([`Redirect`]).
//!
//! Indices and descriptors lie in memory that others may have mapped too, so they are looked at
//! once, checked, and refused when they cannot be (RELIABILITY T3, T14).

mod frames;
mod receiver;
mod redirect;
mod ring;
mod sender;
mod setting;
mod socket;
mod umem;

pub use frames::Frames;
pub use receiver::XdpReceiver;
pub use redirect::{TagLookup, RedirectCounts, BuildProgram, Redirect, Stamp};
pub use ring::{CompletionRing, Descriptor, FillRing, RxRing, TxRing};
pub use sender::{TxPacket, PushReport, XdpSender};
pub use socket::{CopyMode, SocketSettings, XdpSocket, XdpStatistics, WakeOutcome};
pub use umem::{Umem, UmemShape};
