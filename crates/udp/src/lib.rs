//! `libstreamline_udp.so`, preloaded into a program (`LD_PRELOAD`): UDP sockets of the program
//! receive from rings of Streamline's kernel programs. [SL §4.3; FEATURES C1]
//!
//! The program's socket remains a kernel socket, the *placeholder*. The placeholder owns the port,
//! sends, and receives the datagrams that do not enter the ring. A socket that has received many
//! datagrams is *promoted*: a kernel program at the interface takes the datagrams for the socket's
//! address and port, and puts them into a ring that the program's own thread reads.
//!
//! ```text
//!   interface ─► kernel program ─┬─► ring ───────────────────┬─► recvfrom, recvmsg, recvmmsg
//!                                └─► stack ─► placeholder ───┘   poll, select, epoll
//! ```
//!
//! The kernel program takes datagrams without IP options or extension headers that are addressed to
//! one of the interface's own addresses, and only while the ring is *awake*. Fragments, multicast,
//! loopback, all other frames, and all datagrams while the ring is asleep reach the placeholder. A
//! ring is awake only while no thread waits for the socket, so that the placeholder wakes the
//! program, and only while datagrams arrive at a high rate (docs/book/decisions/0122). A call reads
//! the ring first, and the placeholder if the ring is empty. After the ring has woken up, a call
//! reads the placeholder first, until the placeholder is empty.
//!
//! Invariants. A socket that is not promoted belongs to the kernel, and calls on it are passed
//! through. While the program may wait without reading a ring first, that ring is asleep and empty.
//! A promoted socket returns to the kernel permanently before it is connected again, and when the
//! program sets an option that only the kernel can implement. It returns until its next promotion
//! before a fork, at a low rate, and when other sockets share its port. Datagrams that are already
//! in the ring can still be read. If the kernel program ends for another reason (the interface or
//! the daemon is gone), datagrams reach the placeholder automatically (docs/book/decisions/0112).
#![deny(unsafe_code)]

mod address;
mod control;
mod descriptor_waits;
mod drops;
mod epoll_sets;
#[expect(unsafe_code, reason = "functions that C programs call")]
pub mod export;
mod flow_share;
mod promotion;
mod registration;
mod report;
mod ring;
mod socket;
mod socket_origin;
mod socket_table;
