//! Suggestions for users who write a command line in the syntax of another program, such as
//! tcpdump.

use crate::terminal;
use abi::text::VisibleText;
use engine::registry::MachineRegistry;
use pipeline::translate;
use std::ffi::OsString;

/// Commands of `streamline` whose argument is a request.
const REQUEST_COMMANDS: [&str; 4] = ["run", "check", "explain", "start"];

/// Recognizes the syntax of another program. Prints the name of the program, and the equivalent
/// Streamline command. Returns false if the command line is in the syntax of no known program.
pub(crate) fn suggest_equivalent_command(given: impl Iterator<Item = OsString>) -> bool {
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
