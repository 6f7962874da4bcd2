//! The fuzz target of the language.

use super::limits::{DIAGNOSTICS_MAX, TEXT_MAX};
use super::{parse, parse_and_count_steps, render};

/// Maximum number of parser steps per byte of text. A byte can be a token, and each level of the
/// grammar inspects the token (measured: 15 steps for a text that consists of pipes).
pub const STEPS_PER_BYTE_MAX: u64 = 20;

/// Parses arbitrary bytes as a request and asserts the guarantees of the language.
///
/// # Panics
/// If a guarantee is violated: parsing takes more than linear time, there are too many diagnostics,
/// a span is outside the text, the rendered diagnostics are too long or contain hidden characters,
/// or the canonical form of a text without errors is not a fixed point.
pub fn check_language(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (request, mistakes, steps) = parse_and_count_steps(&text);
    let allowed = STEPS_PER_BYTE_MAX * (text.len() as u64 + 4);
    assert!(steps <= allowed, "{steps} steps for {} bytes: {text:?}", text.len());
    assert!(mistakes.len() <= DIAGNOSTICS_MAX + 1);
    for mistake in &mistakes {
        let span = mistake.span;
        assert!(span.start <= span.end && span.end <= text.len(), "{span:?} in {text:?}");
        assert!(text.is_char_boundary(span.start) && text.is_char_boundary(span.end), "{span:?}");
        assert!(!mistake.what.is_empty());
    }
    let listed = render(&text, &mistakes, false);
    assert!(listed.len() <= (mistakes.len() + 1) * 4096, "{} bytes of report", listed.len());
    assert!(!listed.contains(|c: char| filter::text::is_hidden(c) && c != '\n'), "{listed:?}");

    let (outline, printed) = (request.outline(), request.to_string());
    if !mistakes.is_empty() || printed.len() > TEXT_MAX {
        return;
    }
    let (again, wrong) = parse(&printed);
    assert!(wrong.is_empty(), "{text:?} prints as {printed:?}: {wrong:?}");
    assert_eq!(again.outline(), outline, "{text:?} prints as {printed:?}");
    assert_eq!(again.to_string(), printed, "{text:?}");
}
