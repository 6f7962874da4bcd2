//! Generator of requests from the catalog. This file contains no filter names, so that new filters
//! and sinks are tested without changing it.

use filter::catalog::FILTERS;
use filter::{Description, FilterKind, Form, OutputForm, Parameter, ParameterType};
use pipeline::language::tree::{FilterTerm, Term};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Once;

/// Number of requests that [`wide_requests`] returns.
pub(crate) const WIDE_REQUEST_COUNT: usize = 4;

/// Returns the requests in which as many filters as possible receive every packet of `capture`:
/// observers in a chain, observers and editors in a chain, all filters in parallel, and all
/// classifiers as one Boolean section.
pub(crate) fn wide_requests(capture: &Path) -> [String; WIDE_REQUEST_COUNT] {
    let replay = &RequestSources::replaying_capture(capture).replay;
    let framed = |d: &&&Description| d.input_forms.contains(Form::Frame);
    let uses = |wanted: fn(&Description) -> bool| -> Vec<String> {
        FILTERS.iter().filter(framed).filter(|d| wanted(d)).map(|d| example_text(d)).collect()
    };
    let answers = uses(|d| d.kind.only_sets_class());
    let either: Vec<_> =
        answers.chunks(2).map(|pair| format!("({})", pair.join(" +* !"))).collect();
    [
        format!(
            "{replay} |all {} |all discard",
            longest_chain(|d| d.kind < FilterKind::Editing).join(" |all ")
        ),
        format!(
            "{replay} |all {} |all discard",
            longest_chain(|d| d.kind >= FilterKind::Editing).join(" |all ")
        ),
        format!(
            "{replay} |all ({}) |all discard",
            uses(|d| d.kind < FilterKind::Editing).join(" + ")
        ),
        format!("{replay} |all ({}) |all discard", either.join(" ++ ")),
    ]
}

/// Returns a request for every filter with the arguments of its example, and a request for every
/// keyword of each parameter.
pub(crate) fn single_filter_requests(capture: &Path) -> Vec<String> {
    let sources = RequestSources::replaying_capture(capture);
    FILTERS.iter().flat_map(|d| requests_for_filter(d, &sources)).collect()
}

/// Returns a request for every sink that writes to a given file or directory, once after frames and
/// once after bytes.
pub(crate) fn file_sink_requests(capture: &Path, folder: &Path) -> Vec<String> {
    sink_requests(
        capture,
        |d| d.parameters.iter().any(|p| p.kind == ParameterType::Path),
        Some(folder),
    )
}

/// Returns a request for every sink that writes to standard output. Two kinds of sinks are omitted,
/// because their results depend on the machine: sinks that send over an interface, and named sinks,
/// which may wait for a reader (`crates/cli/tests/named.rs`).
pub(crate) fn stdout_sink_requests(capture: &Path) -> Vec<String> {
    let needs_path =
        |p: &Parameter| p.kind == ParameterType::Path || p.default.is_none() && !p.optional;
    let leaves = |d: &Description| ["name", "interface"].iter().any(|p| d.parameter(p).is_some());
    sink_requests(capture, |d| !leaves(d) && !d.parameters.iter().any(needs_path), None)
}

/// Returns a filter or sink with the arguments of its example.
pub(crate) fn example_term(d: &Description) -> FilterTerm {
    let (request, mistakes) = pipeline::parse(d.example);
    assert!(mistakes.is_empty(), "the example of `{}`: {mistakes:?}", d.name);
    let found = request.pipelines.iter().find_map(|term| find_filter_term(term, d.name));
    let found = found.unwrap_or_else(|| panic!("`{}` is not in its own example", d.name));
    let mut node = found.clone();
    for argument in &mut node.arguments {
        let name = argument.key.as_ref().map_or("", |key| &key.text);
        let is_file = d.parameter(name).is_some_and(|known| known.kind == ParameterType::Path);
        // The file that a filter reads contains a key.
        if d.constructor.is_some() && is_file {
            (argument.value.bytes, argument.value.quoted) = (key_file().into(), true);
        }
    }
    node
}

/// Returns the path of a key file, created on the first call.
fn key_file() -> &'static str {
    const HOSTILE_KEY_PATH: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/hostile.key");
    static CREATED: Once = Once::new();
    CREATED.call_once(|| {
        // Another process may be reading it: it is replaced atomically.
        let made = format!("{HOSTILE_KEY_PATH}.{}", std::process::id());
        fs::write(&made, "00112233445566778899aabbccddeeff").expect("a file");
        fs::set_permissions(&made, Permissions::from_mode(0o600)).expect("its mode");
        fs::rename(&made, HOSTILE_KEY_PATH).expect("its name");
    });
    HOSTILE_KEY_PATH
}

struct RequestSources {
    replay: String,
    others: [String; 2],
}

impl RequestSources {
    fn replaying_capture(capture: &Path) -> Self {
        let file = format!("'{}'", capture.display());
        let others = [format!("read {file} block=1500"), format!("read {file} lines=yes")];
        Self { replay: format!("replay {file}"), others }
    }
}

fn requests_for_filter(d: &Description, sources: &RequestSources) -> Vec<String> {
    let mut heads = Vec::new();
    if d.input_forms.contains(Form::Frame) {
        heads.push(sources.replay.clone());
    } else {
        let feeds = |f: &&&Description| {
            f.input_forms.contains(Form::Frame)
                && d.input_forms.contains(output_form(f, Form::Frame))
                && f.name != d.name
        };
        let feeder = FILTERS.iter().find(feeds);
        let feeder = feeder.unwrap_or_else(|| panic!("no filter of frames feeds `{}`", d.name));
        heads.push(format!("{} |all {}", sources.replay, example_text(feeder)));
    }
    if d.input_forms.contains(Form::Bytes) {
        heads.extend(sources.others.iter().cloned());
    }
    let uses = filter_variants(d);
    let line = |head: &String, used: &String| format!("{head} |all {used} |all discard");
    heads.iter().flat_map(|head| uses.iter().map(|used| line(head, used))).collect()
}

/// Returns a chain of the filters that `wanted` selects, in catalog order. Omits each filter that
/// does not accept the output form of the filter before it.
fn longest_chain(wanted: fn(&Description) -> bool) -> Vec<String> {
    let mut form = Form::Frame;
    let mut uses = Vec::new();
    for d in FILTERS.iter().filter(|d| wanted(d)) {
        if d.input_forms.contains(form) {
            form = output_form(d, form);
            uses.push(example_text(d));
        }
    }
    uses
}

fn sink_requests(
    capture: &Path,
    wanted: impl Fn(&Description) -> bool,
    folder: Option<&Path>,
) -> Vec<String> {
    let sources = RequestSources::replaying_capture(capture);
    let sinks = endpoint::catalog::SINKS.iter().map(|entry| entry.description);
    let mut lines = Vec::new();
    for d in sinks.filter(|d| wanted(d)) {
        let place = folder.map(|folder| folder.join(format!("{}-out", d.name)));
        let place = place.map_or_else(String::new, |place| format!(" '{}'", place.display()));
        for words in argument_variants(d) {
            let used = format!("{}{place}{words}", d.name);
            if d.input_forms.contains(Form::Frame) {
                lines.push(format!("{} |all {used}", sources.replay));
            }
            if d.input_forms.contains(Form::Bytes) {
                lines.push(format!("{} |all {used}", sources.others[1]));
            }
        }
    }
    lines
}

/// Returns uses of the filter for requests: one with the arguments of the filter's example, and one
/// for each keyword of each parameter.
fn filter_variants(d: &Description) -> Vec<String> {
    let node = example_term(d);
    let needed = |key: &str| d.parameter(key).is_some_and(|p| p.default.is_none() && !p.optional);
    let stays = |key: Option<&str>| key.is_none_or(needed);
    let arguments = node.arguments.iter();
    let needed: Vec<_> =
        arguments.filter(|a| stays(a.key.as_ref().map(|key| &*key.text))).collect();
    let mut uses = vec![node.to_string()];
    for words in argument_variants(d).into_iter().filter(|words| !words.is_empty()) {
        let needed: String = needed.iter().map(|argument| format!(" {argument}")).collect();
        uses.push(format!("{}{needed}{words}", d.name));
    }
    uses
}

/// Returns the argument texts with which a filter is tested: the empty text, and one text for each
/// keyword or Boolean of each parameter.
fn argument_variants(d: &Description) -> Vec<String> {
    let mut all = vec![String::new()];
    for parameter in d.parameters {
        let words: &[&str] = match parameter.kind {
            ParameterType::OneOf(words) => words,
            ParameterType::Flag => &["yes", "no"],
            _ => &[],
        };
        all.extend(words.iter().map(|word| format!(" {}={word}", parameter.name)));
    }
    all
}

fn example_text(d: &Description) -> String {
    example_term(d).to_string()
}

fn output_form(d: &Description, form: Form) -> Form {
    match d.output_form {
        OutputForm::Form(given) => given,
        OutputForm::Same | OutputForm::Nothing => form,
    }
}

fn find_filter_term<'t>(term: &'t Term, name: &str) -> Option<&'t FilterTerm> {
    match term {
        Term::Hole(_) => None,
        Term::Filter(node) => (node.name.text == name).then_some(node),
        Term::Not(not) => find_filter_term(&not.term, name),
        Term::Group(group) => group.branches.iter().find_map(|b| find_filter_term(&b.term, name)),
        Term::Pipeline(pipeline) => find_filter_term(&pipeline.first, name)
            .or_else(|| pipeline.rest.iter().find_map(|stage| find_filter_term(&stage.term, name))),
    }
}
