//! A command line that other programs would understand: what to write instead.

use crate::terminal;
use abi::text::Visible;
use engine::catalogue::House;
use pipeline::habits;
use std::ffi::OsString;

/// Commands before which the words of a line stand.
const LINES: [&str; 4] = ["run", "check", "explain", "start"];

/// Says whose words these are, and the command that means them. Answers whether it knows them.
pub(crate) fn tell(given: impl Iterator<Item = OsString>) -> bool {
    let words: Option<Vec<String>> = given.skip(1).map(|word| word.into_string().ok()).collect();
    let words = words.unwrap_or_default();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let words = match words.as_slice() {
        [first, rest @ ..] if LINES.contains(first) => rest,
        all => all,
    };
    let Some(meant) = habits::command(words, &House) else { return false };
    let said = words.join(" ");
    terminal::complain(&format!("`{}` {}", Visible(&said), meant.said));
    terminal::tell(&format!("  write: {}\n", Visible(&meant.command())));
    true
}
