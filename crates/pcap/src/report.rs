//! Messages for the user: the reason why libpcap reads a handle, and the number of packets from a
//! ring.
//!
//! The environment variable [`OPTIONS_VARIABLE`] contains options, separated by commas: `off`
//! leaves all handles to libpcap, `quiet` suppresses the message about handles that libpcap reads,
//! and `report` prints a line when a handle is closed, or at exit if it is still open.

use std::sync::atomic::{AtomicBool, Ordering};
use sys::preload::message::print_message;

/// Name of the environment variable with which the user sets options of this library.
const OPTIONS_VARIABLE: &str = "STREAMLINE_PCAP";

/// The packet counts of a handle.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// Packets passed to the program, from the ring or from a packet socket.
    pub(crate) given: u64,
    /// Packets that the program received from a packet socket instead of the ring.
    pub(crate) from_socket: u64,
    /// Packets that were overwritten in the ring.
    pub(crate) lost: u64,
    /// Packets in the ring that the program has not read.
    pub(crate) unread: u64,
}

/// Returns true if the user leaves all handles to libpcap (`off`).
pub(crate) fn is_left_to_libpcap() -> bool {
    has_option("off")
}

fn has_option(word: &str) -> bool {
    let value = std::env::var(OPTIONS_VARIABLE).unwrap_or_default();
    value.split(',').any(|one| one.trim() == word)
}

/// Prints, once per process, the reason why libpcap reads a handle.
pub(crate) fn report_fallback(device: &str, why: &str) {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    if !has_option("quiet") && !IS_REPORTED.swap(true, Ordering::Relaxed) {
        print_message(&format!("{device}: read by libpcap, not from a shared ring: {why}"));
    }
}

/// Prints the reason why a capture was interrupted. Called once the capture has resumed.
pub(crate) fn report_interruption(device: &str, why: &str) {
    if !has_option("quiet") {
        print_message(&format!(
            "{device}: {why}; the capture continues with programs of its own, without the packets \
             that arrived in between"
        ));
    }
}

/// Prints the counts of a handle that was read from a ring, if the user has requested `report`.
/// `place` is a phrase that names the component that ran the filter.
pub(crate) fn print_totals(device: &str, totals: &Totals, place: &str) {
    if !has_option("report") {
        return;
    }
    let Totals { given, from_socket, lost, unread } = *totals;
    let from_ring = given - from_socket.min(given);
    print_message(&format!(
        "{device}: {from_ring} of {given} packets came from the ring; {lost} lost, \
         {unread} unread{place}"
    ));
}

/// Prints the count of packets of a handle that libpcap has read, if the user has requested
/// `report`.
pub(crate) fn print_libpcap_count(device: &str, received: u32) {
    if has_option("report") {
        print_message(&format!("{device}: 0 of {received} packets came from the ring"));
    }
}
