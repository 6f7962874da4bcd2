//! Parsing of PipesFS directory names that specify filters, such as `sample:3` or `bpf:tcp port
//! 80`.

use engine::registry::MachineRegistry;
use filter::{Description, FilterKind, Parameter, ParameterType};
use member::protocol::NodeDetails;
use pipeline::Registry as _;
use pipeline::edit::single_filter_name;
use pipeline::quoted_word;

/// A filter to be added to a path, as specified by the name of a new directory in PipesFS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewFilter {
    /// Name of the filter in the catalog.
    pub name: String,
    /// The filter and its arguments in the syntax of a request.
    pub text: String,
    /// True if the filter can begin a path.
    pub is_source: bool,
    /// True if the filter can receive blocks from another filter.
    pub has_input: bool,
    /// True if the filter opens files or runs a program.
    pub opens_files: bool,
    /// The files and directories in the filter's arguments.
    pub files: Vec<String>,
}

/// Parses a filter from its name and the text of its arguments. Returns `None` if the catalog has
/// no filter with this name. Fails with the reason if the arguments are malformed, or if they
/// contain more than the arguments of this filter.
pub fn parse_new_filter(name: &str, arguments: Option<&str>) -> Result<Option<NewFilter>, String> {
    let (bare, _) = name.split_once('@').unwrap_or((name, ""));
    let all: Vec<&Description> =
        MachineRegistry::descriptions().filter(|entry| entry.name == bare).collect();
    let Some(first) = all.first() else { return Ok(None) };
    let text = match arguments.filter(|arguments| !arguments.is_empty()) {
        None => name.to_owned(),
        Some(arguments) => format!("{name} {}", convert_arguments(first, arguments)),
    };
    // A bare filter name is always exactly one filter, so only other texts are checked.
    if text != bare {
        let read = single_filter_name(&text).map_err(|error| error.0)?;
        if read != bare {
            return Err(format!("`{text}` is not the filter `{bare}`"));
        }
    }
    let opens = |entry: &&Description| {
        let files = entry.parameters.iter().any(|parameter| parameter.kind == ParameterType::Path);
        files || MachineRegistry::Local.endpoint_facts(entry).writes_files
    };
    let program = endpoint::catalog::find_process(bare).is_some();
    let is_source = all.iter().any(|entry| entry.kind == FilterKind::Source);
    let has_input = program || all.iter().any(|entry| entry.kind != FilterKind::Source);
    let opens_files = program || all.iter().any(opens);
    let files = if opens_files { file_arguments(bare, &text) } else { Vec::new() };
    let name = bare.to_owned();
    Ok(Some(NewFilter { name, text, is_source, has_input, opens_files, files }))
}

/// Returns the arguments of a filter that are file names; incomplete if `text` has errors.
fn file_arguments(name: &str, text: &str) -> Vec<String> {
    let below = format!("stream form=bytes | {text}");
    let mut files = Vec::new();
    for request in [text, &below] {
        let (graph, _) = pipeline::read_request(request, &MachineRegistry::Local);
        let used = graph.nodes.iter().filter_map(|node| node.filter());
        for used in used.filter(|used| used.description.name == name) {
            let of_files = used
                .description
                .parameters
                .iter()
                .filter(|parameter| parameter.kind == ParameterType::Path);
            let values = of_files.filter_map(|parameter| used.arguments.text(parameter.name));
            files.extend(values.map(str::to_owned));
        }
    }
    files
}

/// Returns the request text of a running filter, with its required and positional arguments
/// replaced by the arguments in `filter.text`. Keeps all other arguments that differ from their
/// defaults.
#[must_use]
pub fn replace_arguments(node: &NodeDetails, filter: &NewFilter) -> String {
    let known = MachineRegistry::descriptions().find(|entry| entry.name == node.filter);
    let parameter = |name: &str| known.and_then(|entry| entry.parameter(name));
    let mut text = filter.text.clone();
    for argument in node.arguments.iter().filter(|argument| !argument.given) {
        let is_default = |known: &Parameter| {
            let default = known.default.and_then(|default| known.parse(default).ok());
            default.is_some() && default == known.parse(&argument.value).ok()
        };
        if !parameter(&argument.name).is_some_and(is_default) {
            text.push_str(&format!(" {}={}", argument.name, quoted_word(&argument.value)));
        }
    }
    text
}

/// Converts the arguments of a filter from the form in a directory name to the syntax of a request.
/// For a filter with a single positional argument, the whole text is this argument, unless the text
/// contains a quotation mark or assigns a value to a parameter.
fn convert_arguments(entry: &Description, arguments: &str) -> String {
    let positional = entry.parameters.iter().filter(|parameter| parameter.positional);
    let single = positional.clone().count() == 1 && positional.clone().all(|one| !one.repeatable);
    let assigns =
        |word: &str| word.split_once('=').is_some_and(|(name, _)| entry.parameter(name).is_some());
    let is_one = !arguments.contains('"') && !arguments.split(' ').any(assigns);
    let spaced = arguments.contains(' ');
    match is_one && (single || !spaced) {
        true => quoted_word(arguments),
        false => arguments.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b3_every_filter_name_parses_as_a_single_filter() {
        for name in crate::paths::manual_names() {
            assert_eq!(single_filter_name(name).ok().as_deref(), Some(name));
        }
    }

    #[test]
    fn b3_directory_name_is_parsed_as_filter_with_arguments() {
        let text =
            |name, arguments| parse_new_filter(name, arguments).map(|one| one.map(|one| one.text));
        for (name, arguments, expected) in [
            ("count", None, "count"),
            ("sample", Some("3"), "sample 3"),
            ("bpf", Some("tcp port 80"), "bpf \"tcp port 80\""),
            ("generate", Some("rate=5 seq=yes"), "generate rate=5 seq=yes"),
            ("rx", Some("eth0"), "rx eth0"),
            ("regex", Some("\"a b\" c"), "regex \"a b\" c"),
            ("count@thread1", None, "count@thread1"),
            ("match", Some("a|b"), "match \"a|b\""),
        ] {
            assert_eq!(text(name, arguments), Ok(Some(expected.to_owned())), "{name}");
        }
        assert_eq!(text("httpclean", None), Ok(None));
        for (name, arguments) in [
            ("count", Some("x=1 | exec sh")),
            ("tcp", Some("held=1M | exec sh")),
            ("count@a | exec", None),
            ("regex", Some("\"a\" ; exec sh")),
        ] {
            let read = parse_new_filter(name, arguments);
            assert!(read.is_err(), "{name} {arguments:?}: {read:?}");
        }
        for (name, opens) in
            [("exec", true), ("files", true), ("pcap", true), ("replay", true), ("count", false)]
        {
            let read = parse_new_filter(name, Some("x")).unwrap().unwrap();
            assert_eq!(read.opens_files, opens, "{name}");
        }
    }
}
