//! Reasons and counters of `tcp`.

use crate::contract::{Counter, Reason};

/// Reasons of `tcp` for a missing class or a drop. The catalog entry lists them in this order.
pub(super) const REASONS: &[&str] = &[
    "not ip",
    "malformed",
    "cut",
    "too deep",
    "fragment",
    "not tcp",
    "overlapped",
    "closed",
    "out of window",
    "checksum",
    "late",
];

/// Names of the counters of `tcp`. The catalog entry lists them in this order.
pub(super) const COUNTERS: &[&str] = &[
    "new sessions",
    "evicted sessions",
    "timed out sessions",
    "duplicates",
    "gaps",
    "missing bytes",
    "late bytes",
    "resets ignored",
    "resets taken back",
];

pub(super) const NOT_TCP: Reason = Reason::from_name(REASONS, "not tcp");
pub(super) const OVERLAPPED: Reason = Reason::from_name(REASONS, "overlapped");
pub(super) const CONNECTION_CLOSED: Reason = Reason::from_name(REASONS, "closed");
pub(super) const OUT_OF_WINDOW: Reason = Reason::from_name(REASONS, "out of window");
pub(super) const WRONG_CHECKSUM: Reason = Reason::from_name(REASONS, "checksum");
pub(super) const LATE_SEGMENT: Reason = Reason::from_name(REASONS, "late");

pub(super) const NEW_SESSIONS: Counter = Counter::from_name(COUNTERS, "new sessions");
pub(super) const SESSIONS_EVICTED: Counter = Counter::from_name(COUNTERS, "evicted sessions");
pub(super) const SESSIONS_TIMED_OUT: Counter = Counter::from_name(COUNTERS, "timed out sessions");
pub(super) const DUPLICATES: Counter = Counter::from_name(COUNTERS, "duplicates");
pub(super) const GAPS: Counter = Counter::from_name(COUNTERS, "gaps");
pub(super) const STREAM_BYTES_MISSING: Counter = Counter::from_name(COUNTERS, "missing bytes");
pub(super) const LATE_BYTES: Counter = Counter::from_name(COUNTERS, "late bytes");
pub(super) const RESETS_IGNORED: Counter = Counter::from_name(COUNTERS, "resets ignored");
pub(super) const RESETS_WITHDRAWN: Counter = Counter::from_name(COUNTERS, "resets taken back");
