//! Captures of the blocks on which filters failed, kept so that the failure can be replayed.

use crate::options::Notices;
use crate::report::quoted;
use engine::{calibrate, suspect};
use pipeline::Graph;
use runtime::failure::{Cause, PathFailure};
use std::path::PathBuf;

/// A block on which a filter failed, in a file.
#[derive(Debug)]
pub struct CrashCapture {
    /// The file.
    pub path: PathBuf,
    /// The command that fails again.
    pub command: String,
}

/// Keeps the blocks on which filters failed, a place for each failure.
pub(crate) fn keep(
    text: &str,
    graph: &Graph,
    failures: &[PathFailure],
    notices: &Notices,
) -> Vec<Option<CrashCapture>> {
    let one = |failure: &PathFailure| {
        let Cause::Panic { block: Some(block), .. } = &failure.cause else { return None };
        let Some(folder) = calibrate::folder() else {
            notices.warn("nothing can be kept: neither XDG_STATE_HOME nor HOME is set");
            return None;
        };
        match suspect::keep(block, &failure.node, &folder) {
            Ok(kept) => {
                let request = replaced(text, graph, &kept.source);
                let command = format!("streamline {}", quoted(&request));
                Some(CrashCapture { path: kept.path, command })
            }
            Err(why) => {
                notices.warn(&format!("the block could not be kept: {why}"));
                None
            }
        }
    };
    failures.iter().map(one).collect()
}

/// The request with another source in the place of each of its own.
#[must_use]
pub fn replaced(text: &str, graph: &Graph, source: &str) -> String {
    let mut spans: Vec<_> = graph.heads().into_iter().map(|head| graph.node(head).span).collect();
    spans.sort_unstable();
    let mut request = String::new();
    let mut from = 0;
    for span in spans {
        request.push_str(text.get(from..span.start).unwrap_or_default());
        request.push_str(source);
        from = span.end;
    }
    request.push_str(text.get(from..).unwrap_or_default());
    request
}
