//! Reasons and counters of `http`.

use crate::contract::{Counter, Reason};

/// Reasons for which `http` returns no class, in the order of its catalog entry.
pub(super) const REASONS: &[&str] =
    &["not http", "malformed", "lost", "cut", "switched", "after close", "no session"];

/// Names of the counters of `http`, in the order of its catalog entry.
pub(super) const COUNTERS: &[&str] = &[
    "requests",
    "responses",
    "missing bytes",
    "incomplete messages",
    "ambiguous lengths",
    "found again",
    "unpaired",
    "evicted connections",
    "decoded bodies",
    "decoded in part",
    "not decodable",
    "too large to decode",
];

pub(super) const NOT_HTTP: Reason = Reason::from_name(REASONS, "not http");
pub(super) const MALFORMED: Reason = Reason::from_name(REASONS, "malformed");
pub(super) const MESSAGE_START_LOST: Reason = Reason::from_name(REASONS, "lost");
pub(super) const CUT: Reason = Reason::from_name(REASONS, "cut");
pub(super) const PROTOCOL_SWITCHED: Reason = Reason::from_name(REASONS, "switched");
pub(super) const AFTER_CLOSE: Reason = Reason::from_name(REASONS, "after close");
pub(super) const NO_SESSION: Reason = Reason::from_name(REASONS, "no session");
pub(super) const REQUESTS: Counter = Counter::from_name(COUNTERS, "requests");
pub(super) const RESPONSES: Counter = Counter::from_name(COUNTERS, "responses");
pub(super) const MISSING_BYTES: Counter = Counter::from_name(COUNTERS, "missing bytes");
pub(super) const INCOMPLETE_MESSAGES: Counter = Counter::from_name(COUNTERS, "incomplete messages");
pub(super) const AMBIGUOUS_LENGTHS: Counter = Counter::from_name(COUNTERS, "ambiguous lengths");
pub(super) const MESSAGES_FOUND_AGAIN: Counter = Counter::from_name(COUNTERS, "found again");
pub(super) const UNPAIRED_MESSAGES: Counter = Counter::from_name(COUNTERS, "unpaired");
pub(super) const EVICTED_CONNECTIONS: Counter = Counter::from_name(COUNTERS, "evicted connections");
pub(super) const DECODED_BODIES: Counter = Counter::from_name(COUNTERS, "decoded bodies");
pub(super) const PARTLY_DECODED_BODIES: Counter = Counter::from_name(COUNTERS, "decoded in part");
pub(super) const UNDECODABLE_BODIES: Counter = Counter::from_name(COUNTERS, "not decodable");
pub(super) const BODIES_TOO_LARGE: Counter = Counter::from_name(COUNTERS, "too large to decode");
