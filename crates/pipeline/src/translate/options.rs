//! Options of tcpdump and tshark, and the requests equivalent to them.

use filter::general::bpf::parses_as_expression;

use super::{TCPDUMP_MESSAGE, Translation, format_with_argument, quote_word};

/// The part of a request or command line that is equivalent to an option of tcpdump.
#[derive(Clone, Copy)]
enum OptionEquivalent {
    /// A source whose argument is the value of the option.
    Source(&'static str),
    /// A sink whose argument is the value of the option.
    Sink(&'static str),
    /// A limit on the number of delivered blocks (`-c`), which is the value of the option.
    Count,
    /// A filter expression, which is the value of the option.
    Expression,
    /// No equivalent; the translation ignores the option and its value.
    Nothing,
}

/// The flags of tcpdump and tshark, which are options without a value. They have no equivalent, or
/// describe the default behaviour of this program.
const TCPDUMP_FLAGS: &str = "nvqelptxAKSUX";

/// The options of tcpdump and tshark with a value.
const TCPDUMP_OPTIONS: &[(&str, OptionEquivalent)] = &[
    ("-i", OptionEquivalent::Source("rx")),
    ("--interface", OptionEquivalent::Source("rx")),
    ("-r", OptionEquivalent::Source("replay")),
    ("-w", OptionEquivalent::Sink("pcap")),
    ("-c", OptionEquivalent::Count),
    ("-f", OptionEquivalent::Expression),
    ("-s", OptionEquivalent::Nothing),
    ("-B", OptionEquivalent::Nothing),
];

/// Returns true if the word is a tcpdump option.
pub(super) fn is_option(word: &str) -> bool {
    let is_flag = || {
        word.len() == 2 && word.starts_with('-') && word.ends_with(|c| TCPDUMP_FLAGS.contains(c))
    };
    TCPDUMP_OPTIONS.iter().any(|(known, _)| *known == word) || is_flag()
}

/// Translates a command with tcpdump options. Returns `None` if the command has no options or an
/// unknown one, or if an option lacks its value.
pub(super) fn translate_options(words: &[&str]) -> Option<Translation> {
    let (mut source, mut sink, mut count) = ("rx".to_owned(), "print".to_owned(), None);
    let mut rest: Vec<&str> = Vec::new();
    let mut words = words.iter().copied();
    let mut has_option = false;
    while let Some(word) = words.next() {
        if !word.starts_with('-') || word == "-" {
            rest.push(word);
            continue;
        }
        has_option = true;
        let Some((asks, glued)) = parse_option(word)? else { continue };
        let value = glued.or_else(|| words.next())?;
        match asks {
            // The default is to capture from all interfaces.
            OptionEquivalent::Source("rx") if value == "any" => {}
            OptionEquivalent::Source(name) => source = format_with_argument(name, Some(value)),
            OptionEquivalent::Sink(name) => sink = format_with_argument(name, Some(value)),
            OptionEquivalent::Count => count = Some(value.to_owned()),
            OptionEquivalent::Expression => rest.push(value),
            OptionEquivalent::Nothing => {}
        }
    }
    let rest = rest.join(" ");
    let line = match rest.as_str() {
        "" => format!("{source} | {sink}"),
        text if parses_as_expression(text) => {
            format!("{source} | bpf {} | {sink}", quote_word(text))
        }
        text if sink == "print" => format!("{source} | {text}"),
        text => format!("{source} | {text} | {sink}"),
    };
    has_option.then_some(Translation { message: TCPDUMP_MESSAGE, line, count, shell: None })
}

/// Parses an option with an optional adjacent value: `-i`, `-ieth0`, `-nni`. Returns `None` for an
/// unknown option, and `Some(None)` for flags.
fn parse_option(word: &str) -> Option<Option<(OptionEquivalent, Option<&str>)>> {
    let (key, value) = word.split_once('=').map_or((word, None), |(k, v)| (k, Some(v)));
    if let Some((_, equivalent)) = TCPDUMP_OPTIONS.iter().find(|(known, _)| *known == key) {
        return Some(Some((*equivalent, value)));
    }
    let Some((at, letter)) = key.char_indices().skip(1).find(|(_, c)| !TCPDUMP_FLAGS.contains(*c))
    else {
        return Some(None);
    };
    let (_, equivalent) =
        TCPDUMP_OPTIONS.iter().find(|(known, _)| known.chars().eq(['-', letter]))?;
    let glued = word.get(at + letter.len_utf8()..).filter(|glued| !glued.is_empty());
    Some(Some((*equivalent, glued)))
}
