//! The settings that a program makes on a handle before it activates the handle.

/// The settings of a handle before activation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    pub(crate) device: String,
    /// Snapshot length in bytes, as set; libpcap interprets 0 or less as its maximum.
    pub(crate) snapshot: i32,
    pub(crate) is_promiscuous: bool,
    /// Read timeout in milliseconds; no timeout if 0 or less.
    pub(crate) timeout_ms: i32,
    pub(crate) is_immediate: bool,
    pub(crate) is_nonblocking: bool,
    /// Requested size of the capture buffer in bytes; 0 for the default.
    pub(crate) buffer: i32,
    /// True if timestamps count nanoseconds, false if microseconds.
    pub(crate) has_nanoseconds: bool,
    /// Setting that only libpcap supports, as a reason why libpcap must read the handle; `None` if
    /// there is none.
    pub(crate) libpcap_only_reason: Option<&'static str>,
    /// True if libpcap has activated the handle.
    pub(crate) is_activated_by_libpcap: bool,
}

impl Settings {
    pub(crate) const fn new() -> Self {
        Self {
            device: String::new(),
            snapshot: 0,
            is_promiscuous: false,
            timeout_ms: 0,
            is_immediate: false,
            is_nonblocking: false,
            buffer: 0,
            has_nanoseconds: false,
            libpcap_only_reason: None,
            is_activated_by_libpcap: false,
        }
    }

    /// If `is_set` is true, records that only libpcap can read the handle, for the reason `why`. If
    /// a reason has already been recorded, keeps that one.
    pub(crate) fn leave_to_libpcap(&mut self, is_set: bool, why: &'static str) {
        if is_set && self.libpcap_only_reason.is_none() {
            self.libpcap_only_reason = Some(why);
        }
    }
}
