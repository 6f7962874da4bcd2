//! AF_XDP: frames between an interface's queue and memory of ours, by descriptors alone.
//!
//! In: memory cut into frames ([`Umem`]), an interface and a queue. Out: a [`Socket`] with four
//! rings: frames that we lend to the kernel ([`Fill`]) come back with what was received ([`Rx`]);
//! frames that we give to be sent ([`Tx`]) come back empty ([`Completion`]). A frame is always in
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
pub use receiver::Receiver;
pub use redirect::{Asks, Led, Make, Redirect, Stamp};
pub use ring::{Completion, Descriptor, Fill, Rx, Tx};
pub use sender::{Packet, Pushed, Sender};
pub use socket::{Mode, Settings, Socket, Statistics, Woken};
pub use umem::{Umem, UmemShape};
