//! AF_XDP: frames moved between an interface's queue and our memory, by descriptors.
//!
//! The memory is divided into frames ([`Umem`]); an [`XdpSocket`] at a queue has four rings. Frames
//! lent to the kernel ([`FillRing`]) return when received ([`RxRing`]); frames to send ([`TxRing`])
//! return empty ([`CompletionRing`]). A frame is in exactly one place at a time. Sockets of several
//! queues and interfaces may share a UMEM, so a frame received by one is sent by another without a
//! copy. An XDP program redirects frames to a socket through a map ([`Redirect`]).
//!
//! Other processes may map the rings too, so every index and descriptor is read once and checked
//! (RELIABILITY T3, T14).

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
pub use redirect::{BuildProgram, Redirect, RedirectCounts, Stamp, TagLookup};
pub use ring::{CompletionRing, Descriptor, FillRing, RxRing, TxRing};
pub use sender::{PushReport, TxPacket, XdpSender};
pub use socket::{CopyMode, SocketSettings, WakeOutcome, XdpSocket, XdpStatistics};
pub use umem::{Umem, UmemShape};
