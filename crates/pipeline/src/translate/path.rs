//! Conversion of PipesFS paths to requests: `/pipes/rx/ip/dport/80/untcp/http/get/all`.
//!
//! A directory is a filter, with arguments after a colon, or a class of the previous filter. A
//! class with the name of a filter leads to that filter, so `untcp/http` denotes the filter `http`;
//! `all` at the end denotes the entire output. The directories before the first source are the
//! mount point of the file system. [SL §4.1]

use filter::{Classes, Description, FilterKind};

use super::{format_with_argument, quote_word};
use crate::registry::Registry;

pub(super) const PIPES_PATH_MESSAGE: &str = "is a path of PipesFS";

/// Returns the request for a path followed by the stages `behind`. Adds `print` if the request
/// would have no output. Returns `None` if no directory is a source, or if a later one is neither a
/// filter nor a class.
pub(super) fn pipes_path_request(
    path: &str,
    behind: Option<String>,
    registry: &dyn Registry,
) -> Option<String> {
    let mut parts = path.strip_prefix('/')?.split('/').filter(|part| !part.is_empty());
    let source = parts.find(|part| registry.find_source(split_directory(part).0).is_some())?;
    let mut line = filter_text(source);
    let (mut upstream, mut entry) = (None, registry.find_source(split_directory(source).0)?);
    let mut label = String::new();
    while let Some(part) = parts.next() {
        if part == "all" && parts.clone().next().is_none() {
            break;
        }
        let classifier = if entry.classes == Classes::Same { upstream } else { Some(entry) };
        let is_filter = registry.find(split_directory(part).0).is_some();
        if label.is_empty()
            && !is_filter
            && classifier.is_some_and(|filter| has_class(filter, part))
        {
            label = part.to_owned();
            continue;
        }
        let next = registry.find(split_directory(part).0).filter(|next| !next.kind.is_source())?;
        line = format!("{line} |{label} {}", filter_text(part));
        (upstream, entry) = (classifier, next);
        label.clear();
    }
    Some(match (behind, entry.kind) {
        (Some(behind), _) => format!("{line} |{label} {behind}"),
        (None, FilterKind::Sink) => line,
        _ if entry.ends_with_report() && label.is_empty() => line,
        _ => format!("{line} |{label} print"),
    })
}

/// Splits a directory name into the filter's name and its arguments: `bpf:tcp port 80`.
fn split_directory(part: &str) -> (&str, Option<&str>) {
    part.split_once(':').map_or((part, None), |(name, rest)| (name, Some(rest)))
}

fn filter_text(part: &str) -> String {
    match split_directory(part) {
        ("bpf", Some(expression)) => format!("bpf {}", quote_word(expression)),
        (name, arguments) => format_with_argument(name, arguments),
    }
}

fn has_class(filter: &Description, part: &str) -> bool {
    let Classes::Number { names, range, .. } = filter.classes else {
        return filter.classes == Classes::YesNo && part == "1";
    };
    let number = |text: &str| text.parse().is_ok_and(|n| (range.low..=range.high).contains(&n));
    let value = |text: &str| number(text) || names.iter().any(|(name, _)| *name == text);
    filter.class_groups.iter().any(|(name, _)| *name == part)
        || part.split_once(':').map_or_else(|| value(part), |(low, high)| value(low) && value(high))
}
