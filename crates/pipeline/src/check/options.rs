//! The options of a request, which precede its first filter.

use filter::{Arguments, Parameter, ParameterType, Value};

use crate::graph::Graph;
use crate::language::label::truncate_word;
use crate::language::{Diagnostic, Request, find_nearest_word};
use crate::plan::{REPLICAS_MAX, is_valid_parallel_value, ring_size, signal};
use crate::prefix::terms;
use crate::share::RingSharing;
use crate::workers::{self, WORKERS_MAX};

/// All options of a request, in the order of the help text.
pub const REQUEST_OPTIONS: &[Parameter] = &[
    Parameter::optional(
        "latency",
        ParameterType::Duration,
        "maximum time of a block from source to sink; rings notify their readers early enough for \
         it",
    ),
    Parameter::optional(
        "batch",
        ParameterType::Number { low: 1, high: 65_536 },
        "number of blocks after which a ring notifies its reader; a thread processes as many at \
         once, but at most 64",
    ),
    Parameter::optional(signal::SIGNAL_OPTION, ParameterType::Text, SIGNAL_HELP),
    Parameter::optional(ring_size::RING_OPTION, ParameterType::Text, RING_HELP),
    Parameter::optional(
        "policy",
        ParameterType::OneOf(&["cost", "deepest", "power", "latency", "throughput"]),
        "where filters run: where they cost least (cost), or in the kernel if they can (deepest); \
         and, for threads, only those that are well used (power), all that gain anything \
         (latency), or all that gain 5 % (throughput)",
    ),
    Parameter::optional("parallel", ParameterType::Text, PARALLEL_HELP),
    Parameter::optional("engines", ParameterType::Text, ENGINES_HELP),
    Parameter::optional("share", ParameterType::Text, SHARE_HELP),
    Parameter::optional(
        terms::PREFIX_OPTION,
        ParameterType::OneOf(terms::PREFIX_VALUES),
        PREFIX_HELP,
    ),
    Parameter::optional(
        "adapt",
        ParameterType::Flag,
        "move filters between kernel and process at run time whenever measurements favor it",
    ),
    Parameter::optional(
        "no-adapt",
        ParameterType::Flag,
        "keep the plan: by default a request measures the shares of its arcs during the first two \
         seconds of traffic, and moves filters between kernel and process if that pays",
    ),
    Parameter::optional(
        "force",
        ParameterType::Flag,
        "take packets even from the interface of the default route, or of your own SSH connection",
    ),
    Parameter::optional("no-loss", ParameterType::Flag, "end with status 1 if any block was lost"),
];

const SIGNAL_HELP: &str = "when a ring wakes its reader: [NODE:]BLOCKS[:TIME],…, for the rings to \
                           NODE or for all, as in dport:64:200us; by default the \
                           number of blocks follows \
                      the rate";

const RING_HELP: &str = "a fixed size of rings between threads: [NODE:]ENTRIES,…, for the rings to \
                    NODE or for all, as in count:4096; by default each ring follows its load";

const PARALLEL_HELP: &str = "distribution of work over threads: by default stages and branches \
                        get threads if that pays; auto (costly filters also get replicas), power \
                        (few threads, well used), latency (all that gain anything), no, or a \
                        number of replicas";

const ENGINES_HELP: &str = "number of processes that run the whole request, each on its \
                            own processor \
                       and for its share of the sessions: auto (one per \
                            processor), or a number";

const SHARE_HELP: &str = "memory for frames from the kernel: user (the default: your \
                     own), group:NAME \
                     (shared by all members of the group that set this at the same \
                     interface: a \
                     frame is stored once, and each of them can read the frames that any of \
                     them \
                     selects), or world (shared by all users that set this)";

const PREFIX_HELP: &str = "where the start of the request runs, from a live source to `tcp` or a \
                           parser after it: private (in the request itself), shared (in one \
                           process for all requests of the user with this start; needs a daemon), \
                           or auto (the default: shared if such a process runs already and the \
                           start ends with a parser)";

/// Parses the options of a request. Invalid options are reported and omitted.
pub(super) fn parse_options(request: &Request, mistakes: &mut Vec<Diagnostic>) -> Arguments {
    let mut given = Arguments::default();
    for option in &request.options {
        let Some(known) = REQUEST_OPTIONS.iter().find(|known| known.name == option.key.text) else {
            mistakes.push(unknown_option_error(&option.key.text, option.span));
            continue;
        };
        if given.get(known.name).is_some() {
            let what = format!("`--{}` is given twice", known.name);
            mistakes.push(Diagnostic::error(option.span, what));
            continue;
        }
        let value = match &option.value {
            None if known.kind == ParameterType::Flag => Ok(Value::Flag(true)),
            None => Err(("a value is missing".to_owned(), option.span)),
            Some(text) => {
                parse_value(known, &text.to_string_lossy()).map_err(|what| (what, text.span))
            }
        };
        match value {
            Ok(value) => given.set(known.name, value),
            Err((what, span)) => {
                let mistake = Diagnostic::error(span, format!("`--{}`: {what}", known.name));
                mistakes.push(mistake.hint(known.help));
            }
        }
    }
    let mut named = request.options.iter().filter(|option| option.key.text == "no-adapt");
    if let (true, Some(option)) = (given.flag("adapt"), named.next()) {
        let what = "`--no-adapt` contradicts `--adapt`";
        mistakes.push(Diagnostic::error(option.span, what).hint("leave one of them out"));
    }
    given
}

/// Parses the value of an option. Fails with the reason.
fn parse_value(option: &Parameter, text: &str) -> Result<Value, String> {
    if option.name == "parallel" && !is_valid_parallel_value(text) {
        return Err(format!(
            "`{}` is not one of auto, no, power, latency, or a number from 1 to {REPLICAS_MAX}",
            truncate_word(text)
        ));
    }
    if option.name == "share" && RingSharing::parse(text).is_none() {
        return Err(format!(
            "`{}` is not user, world, or group:NAME with the name or the number of a group",
            truncate_word(text)
        ));
    }
    if option.name == workers::WORKERS_OPTION && !workers::is_valid_worker_count(text) {
        let given = truncate_word(text);
        return Err(format!("`{given}` is neither auto nor a number from 1 to {WORKERS_MAX}"));
    }
    option.parse(text).map_err(|mistake| mistake.message)
}

/// Checks the options whose values name nodes of the graph, and returns an error for each invalid
/// value.
pub(super) fn check_node_options(request: &Request, graph: &Graph) -> Vec<Diagnostic> {
    let wrong = request.options.iter().filter_map(|option| {
        let text = option.value.as_ref()?;
        let (checked, help) = match option.key.text.as_str() {
            signal::SIGNAL_OPTION => {
                (signal::check_option(&text.to_string_lossy(), graph), SIGNAL_HELP)
            }
            ring_size::RING_OPTION => {
                (ring_size::check_ring_option(&text.to_string_lossy(), graph), RING_HELP)
            }
            _ => return None,
        };
        let what = format!("`--{}`: {}", option.key.text, checked.err()?);
        Some(Diagnostic::error(text.span, what).hint(help))
    });
    wrong.collect()
}

fn unknown_option_error(name: &str, span: crate::language::Span) -> Diagnostic {
    let names: Vec<&str> = REQUEST_OPTIONS.iter().map(|known| known.name).collect();
    let hint = match (name, find_nearest_word(name, names.iter().copied())) {
        ("name", _) => "a mark follows its filter: `rx --name=X`".to_owned(),
        (_, Some(meant)) => format!("did you mean `--{meant}`?"),
        (_, None) => format!("there are `--{}`", names.join("`, `--")),
    };
    Diagnostic::error(span, format!("no option is called `--{}`", truncate_word(name))).hint(hint)
}
