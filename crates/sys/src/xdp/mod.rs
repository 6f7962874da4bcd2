//! AF_XDP sockets, which move frames between a queue of an interface and our memory.
//!
//! The memory is divided into frames ([`Umem`]); an [`XdpSocket`] is bound to a queue and has four
//! rings. Frames are lent to the kernel through the [`FillRing`], and return with received data
//! through the [`RxRing`]. Frames to send go to the [`TxRing`], and return through the
//! [`CompletionRing`]. At any time, each frame is either in exactly one ring or with this process.
//! Sockets of several queues and interfaces may share a UMEM, so one socket can send, without a
//! copy, a frame that another has received. An XDP program redirects frames to a socket through a
//! map ([`XdpRedirect`]).
//!
//! Other processes may map the rings too, so every index and descriptor is read once and checked
//! (RELIABILITY T3, T14).

mod frames;
mod receiver;
mod redirect;
mod ring;
mod sender;
mod socket;
mod uapi;
mod umem;

pub use frames::Frames;
pub use receiver::XdpReceiver;
pub use redirect::{BuildRedirectProgramFn, FrameStamp, RedirectCounts, TagLookup, XdpRedirect};
pub use ring::{CompletionRing, FillRing, RxRing, TxRing, XdpDescriptor};
pub use sender::{PushReport, TxPacket, XdpSender};
pub use socket::{CopyMode, SocketSettings, WakeOutcome, XdpSocket, XdpStatistics};
pub use umem::{Umem, UmemSizes};
