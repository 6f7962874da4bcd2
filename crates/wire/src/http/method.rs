//! Method numbers, on which classes and class names of the filter `http` are based.

/// Methods with a number: 1 to 9 of RFC 9110 §9 and RFC 5789; then WebDAV (RFC 4918, 3253, 3744,
/// 5323), calendars (RFC 4791), links (RFC 2068), and others of the IANA registry and UPnP.
pub const METHODS: &[(&[u8], u8)] = &[
    (b"GET", 1),
    (b"HEAD", 2),
    (b"POST", 3),
    (b"PUT", 4),
    (b"DELETE", 5),
    (b"CONNECT", 6),
    (b"OPTIONS", 7),
    (b"TRACE", 8),
    (b"PATCH", 9),
    (b"PROPFIND", 10),
    (b"PROPPATCH", 11),
    (b"MKCOL", 12),
    (b"COPY", 13),
    (b"MOVE", 14),
    (b"LOCK", 15),
    (b"UNLOCK", 16),
    (b"REPORT", 17),
    (b"SEARCH", 18),
    (b"MKCALENDAR", 19),
    (b"ACL", 20),
    (b"BIND", 21),
    (b"UNBIND", 22),
    (b"REBIND", 23),
    (b"CHECKOUT", 24),
    (b"CHECKIN", 25),
    (b"MERGE", 26),
    (b"MKACTIVITY", 27),
    (b"LINK", 28),
    (b"UNLINK", 29),
    (b"QUERY", 30),
    (b"PURGE", 31),
    (b"SOURCE", 32),
    (b"NOTIFY", 33),
    (b"SUBSCRIBE", 34),
    (b"UNSUBSCRIBE", 35),
    (b"M-SEARCH", 36),
];

/// Number of every other method.
pub(super) const OTHER: u8 = 99;

/// Returns the number of a method.
#[inline]
#[must_use]
pub fn method_number(name: &[u8]) -> u8 {
    match name {
        b"GET" => 1,
        b"HEAD" => 2,
        b"POST" => 3,
        _ => METHODS.iter().find(|(known, _)| *known == name).map_or(OTHER, |(_, number)| *number),
    }
}
