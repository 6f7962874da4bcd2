//! Request methods: their numbers, from which the filter `http` derives its classes and class
//! names, and their effect on the framing of responses.

/// Methods with the names of their classes, numbered from 1 in this order: RFC 9110 §9 and RFC 5789
/// (1 to 9), WebDAV (RFC 4918, 3253, 3744, 5323, 5842), calendars (RFC 4791), links (RFC 2068), and
/// other methods from the IANA registry and UPnP.
pub const METHOD_CLASSES: [(&str, &str); 36] = [
    ("GET", "get"),
    ("HEAD", "head"),
    ("POST", "post"),
    ("PUT", "put"),
    ("DELETE", "delete"),
    ("CONNECT", "connect"),
    ("OPTIONS", "options"),
    ("TRACE", "trace"),
    ("PATCH", "patch"),
    ("PROPFIND", "propfind"),
    ("PROPPATCH", "proppatch"),
    ("MKCOL", "mkcol"),
    ("COPY", "copy"),
    ("MOVE", "move"),
    ("LOCK", "lock"),
    ("UNLOCK", "unlock"),
    ("REPORT", "report"),
    ("SEARCH", "search"),
    ("MKCALENDAR", "mkcalendar"),
    ("ACL", "acl"),
    ("BIND", "bind"),
    ("UNBIND", "unbind"),
    ("REBIND", "rebind"),
    ("CHECKOUT", "checkout"),
    ("CHECKIN", "checkin"),
    ("MERGE", "merge"),
    ("MKACTIVITY", "mkactivity"),
    ("LINK", "link"),
    ("UNLINK", "unlink"),
    ("QUERY", "query"),
    ("PURGE", "purge"),
    ("SOURCE", "source"),
    ("NOTIFY", "notify"),
    ("SUBSCRIBE", "subscribe"),
    ("UNSUBSCRIBE", "unsubscribe"),
    ("M-SEARCH", "m_search"),
];

/// Method number that stands for every method that [`METHOD_CLASSES`] does not contain.
pub const OTHER_METHOD: u8 = 99;

/// Returns the number of a method; [`OTHER_METHOD`] if [`METHOD_CLASSES`] does not contain it.
#[inline]
#[must_use]
pub fn method_number(name: &[u8]) -> u8 {
    match name {
        b"GET" => 1,
        b"HEAD" => 2,
        b"POST" => 3,
        _ => {
            let numbered = (1..).zip(METHOD_CLASSES);
            let mut known = numbered.filter(|(_, (known, _))| known.as_bytes() == name);
            known.next().map_or(OTHER_METHOD, |(number, _)| number)
        }
    }
}

/// The request method, as far as it affects the framing of the response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestMethod {
    /// `HEAD`: no body follows, regardless of the response's header fields.
    Head,
    /// `CONNECT`: after a successful response, another protocol follows.
    Connect,
    /// Any other method.
    Other,
    /// The request was not observed. It may have been `HEAD`.
    Unknown,
}
