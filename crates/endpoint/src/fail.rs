//! Turns a refusal of the machine into a [`Failure`]: the call, the target, the reason in plain
//! words, and a remedy where there is one.

use crate::Failure;
use std::io;

/// The failure of `call` on `target` for this reason.
pub(crate) fn failed(call: &'static str, target: &str, error: &io::Error) -> Failure {
    let errno = error.raw_os_error();
    let failure = Failure::new(call, target, reason(error)).errno(errno);
    let advice = errno.and_then(|errno| sys::Error::new(call, target.to_owned(), errno).advice());
    match advice {
        Some(advice) => failure.hint(advice),
        None => failure,
    }
}

/// The reason in lower case and without the number of the error.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => "unknown error".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_reads_as_a_sentence() {
        let full = io::Error::from_raw_os_error(28);
        assert_eq!(
            failed("write", "out.pcap", &full).to_string(),
            "cannot write out.pcap: no space left on device; \
             free space there, or choose another place"
        );
        let missing = io::Error::from_raw_os_error(2);
        let missing = failed("open", "a b", &missing);
        assert_eq!(missing.to_string(), "cannot open a b: no such file or directory");
        assert!(missing.is_missing() && !failed("write", "out.pcap", &full).is_missing());
    }
}
