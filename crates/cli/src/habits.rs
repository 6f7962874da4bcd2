//! Suggestions for command lines written in the style of other programs, such as tcpdump.

use crate::terminal;
use abi::text::VisibleText;
use engine::registry::MachineRegistry;
use pipeline::translate;
use std::ffi::OsString;

/// Commands that take a request.
const REQUEST_COMMANDS: [&str; 4] = ["run", "check", "explain", "start"];

/// Prints the name of the program with this syntax, and the equivalent Streamline command. Returns
/// false if no known program has this syntax.
pub(crate) fn suggest(given: impl Iterator<Item = OsString>) -> bool {
    let words: Option<Vec<String>> = given.skip(1).map(|word| word.into_string().ok()).collect();
    let words = words.unwrap_or_default();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let words = match words.as_slice() {
        [first, rest @ ..] if REQUEST_COMMANDS.contains(first) => rest,
        all => all,
    };
    let Some(meant) = translate::translate_command(words, &MachineRegistry::Local) else {
        return false;
    };
    let command = words.join(" ");
    terminal::print_error(&format!("`{}` {}", VisibleText(&command), meant.message));
    terminal::print_error_text(&format!("  write: {}\n", VisibleText(&meant.command())));
    true
}
