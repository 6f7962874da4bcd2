//! `libstreamline_udp.so`, preloaded into a program (`LD_PRELOAD`): UDP sockets of the program
//! receive from rings of Streamline's kernel programs. [SL §4.3; FEATURES C1]
//!
//! The program's socket stays a socket of the kernel, the *placeholder*: it owns the port, sends,
//! and receives what the ring does not. A socket that has received many datagrams is *promoted*: a
//! kernel program takes the datagrams for its address and port on the interface, and puts them into
//! a ring that the program's own thread reads.
//!
//! ```text
//!   interface ─► kernel program ─┬─► ring ───────────────────┬─► recvfrom, recvmsg, recvmmsg
//!                                └─► stack ─► placeholder ───┘   poll, select, epoll
//! ```
//!
//! The kernel program takes datagrams without IP options or extension headers that are addressed to
//! one of the interface's own addresses. Fragments, multicast, loopback and everything else reach
//! the placeholder. A call reads the ring first, and the placeholder if the ring is empty; the
//! order of datagrams between the two is unspecified.
//!
//! Invariants. A socket that is not promoted is the kernel's, and its calls are passed through. A
//! promoted socket returns to the kernel for good before it is connected again, and when it gets an
//! option that only the kernel can implement; before a fork, and when other sockets share its port,
//! it returns until it is promoted again. Datagrams in the ring can still be read. If the kernel
//! program ends for another reason (the interface or the daemon is gone), datagrams reach the
//! placeholder automatically (docs/book/decisions/0112).
#![deny(unsafe_code)]

mod address;
mod control;
mod drops;
#[expect(unsafe_code, reason = "functions that C programs call")]
pub mod export;
mod promotion;
mod registration;
mod report;
mod ring;
mod share;
mod socket;
mod table;
