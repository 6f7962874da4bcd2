//! `libstreamline_pcap.so`, preloaded into a program (`LD_PRELOAD`): live captures of the program
//! read the rings of Streamline's kernel programs instead of separate packet sockets. [SL §4.3,
//! §9.2.3; FEATURES C5]
//!
//! The program is linked against libpcap, which stays loaded and does everything else: it compiles
//! filters, reads and writes capture files, and lists devices. This library exports only the
//! functions of libpcap that concern a live handle, and the loader finds them first.
//!
//! ```text
//!   tcpdump ──► pcap_create, pcap_loop, … ──► this library ──┬─► ring of the kernel program
//!           └─► pcap_compile, pcap_dump, … ──► libpcap ◄─────┘   everything that is not ours
//! ```
//!
//! A handle is always a handle of libpcap (`pcap_create`), which this library identifies by its
//! address ([`handle`]). When the program activates the handle, this library decides whether to
//! read it. If this library reads the handle ([`live`]), libpcap's handle is never activated;
//! otherwise libpcap activates it, and every call on it is passed through. A handle therefore also
//! works with functions that this library does not implement, and can be left to libpcap until it
//! is activated (docs/book/decisions/0103).
//!
//! A program that loads libpcap at run time receives this library's functions from `dlsym`
//! ([`export::lookup`]).
//!
//! Invariants. `pcap_breakloop` may be called in a signal handler. The frame that a callback
//! receives is a copy of at most the snapshot length, because the ring may lap (CONTRACT 14).
#![deny(unsafe_code)]

mod any;
#[expect(unsafe_code, reason = "functions that C programs call")]
pub mod export;
mod filter;
mod handle;
mod kernel_filter;
mod live;
mod report;
mod settings;
