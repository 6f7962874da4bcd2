//! Messages for the user: the reason why a socket is not promoted, and the number of datagrams from
//! the ring of a promoted socket.
//!
//! The environment variable [`OPTIONS_VARIABLE`] contains options, separated by commas: `report`
//! prints a line when a promoted socket is closed; `quiet` suppresses the message about a socket
//! that is not promoted; `force` promotes sockets although firewall rules exist, which then do not
//! apply; `always` promotes sockets however few datagrams they receive; `spin` does so too, and
//! lets waits spin instead of sleeping. `delay=MICROSECONDS` lets datagrams wait in the ring of a
//! sleeping server for at most this time.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use sys::preload::message::print_message;

/// Name of the environment variable with the user's options.
const OPTIONS_VARIABLE: &str = "STREAMLINE_UDP";

/// Numbers of datagrams of a socket since its promotion.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DatagramTotals {
    /// Number of datagrams that the program received from the ring.
    pub(crate) from_ring: u64,
    /// Datagrams that the program received from the placeholder (kernel socket).
    pub(crate) from_kernel: u64,
    /// Datagrams that were overwritten in the ring.
    pub(crate) lost: u64,
    /// Datagrams in the ring that had a wrong length or checksum.
    pub(crate) damaged: u64,
}

/// Returns true if the environment variable [`OPTIONS_VARIABLE`] contains this option.
pub(crate) fn has_option(word: &str) -> bool {
    let value = std::env::var(OPTIONS_VARIABLE).unwrap_or_default();
    value.split(',').any(|one| one.trim() == word)
}

/// Returns true if the user has requested rings however low the rate is (`always` or `spin`).
pub(crate) fn is_rate_ignored() -> bool {
    static IS_RATE_IGNORED: OnceLock<bool> = OnceLock::new();
    *IS_RATE_IGNORED.get_or_init(|| has_option("always") || has_option("spin"))
}

/// Returns true if the user has requested that waits spin instead of sleeping (`spin`).
pub(crate) fn is_spin_requested() -> bool {
    static IS_SPINNING: OnceLock<bool> = OnceLock::new();
    *IS_SPINNING.get_or_init(|| has_option("spin"))
}

/// Minimum delay that the user may request.
const RING_DELAY_MIN: Duration = Duration::from_micros(50);

/// Maximum delay that the user may request.
const RING_DELAY_MAX: Duration = Duration::from_millis(10);

/// Returns the maximum time for which datagrams may wait in the ring of a sleeping server, or
/// `None` if the user has not requested such a delay.
pub(crate) fn ring_delay() -> Option<Duration> {
    static RING_DELAY: OnceLock<Option<Duration>> = OnceLock::new();
    *RING_DELAY.get_or_init(|| parse_delay(&std::env::var(OPTIONS_VARIABLE).unwrap_or_default()))
}

fn parse_delay(words: &str) -> Option<Duration> {
    let text = words.split(',').find_map(|word| word.trim().strip_prefix("delay="))?;
    let delay = Duration::from_micros(text.parse().ok()?);
    (!delay.is_zero()).then(|| delay.clamp(RING_DELAY_MIN, RING_DELAY_MAX))
}

/// Prints, once per process, the reason why a socket is not promoted, unless the user has requested
/// `quiet`.
pub(crate) fn report_refusal(local: SocketAddr, why: &str) {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    if !has_option("quiet") && !IS_REPORTED.swap(true, Ordering::Relaxed) {
        print_message(&format!("udp {local}: received by the kernel, not from a ring: {why}"));
    }
}

/// Prints the counts of a promoted socket that is closed, if the user has requested `report`.
pub(crate) fn print_totals(local: SocketAddr, interfaces: &str, totals: &DatagramTotals) {
    if !has_option("report") {
        return;
    }
    let DatagramTotals { from_ring, from_kernel, lost, damaged } = *totals;
    let all = from_ring + from_kernel;
    print_message(&format!(
        "udp {local}: {from_ring} of {all} datagrams came from the ring of \
         {interfaces} since it was opened; {lost} lost, {damaged} damaged"
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_option_is_parsed_and_clamped() {
        let micros = |words| parse_delay(words).map(|delay| delay.as_micros());
        assert_eq!(micros("report, delay=500"), Some(500));
        assert_eq!(micros("delay=1"), Some(50));
        assert_eq!(micros("delay=99999999"), Some(10_000));
        assert_eq!(micros("delay=0"), None);
        assert_eq!(micros("delay=soon,report"), None);
        assert_eq!(micros("report"), None);
    }
}
