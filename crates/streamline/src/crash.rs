//! Captures of the blocks on which filters panicked, saved so that the failure can be reproduced.

use crate::notice::{CrashCapture, Notices};
use crate::report::quote_word;
use engine::{calibrate, crash_capture};
use pipeline::Graph;
use runtime::failure::{FailureCause, PathFailure};

/// Saves the blocks on which filters panicked. Returns one element per failure: `None` if the
/// failure has no block, or if the block could not be saved. A notice states why a block could not
/// be saved.
pub(crate) fn save_crash_blocks(
    text: &str,
    graph: &Graph,
    failures: &[PathFailure],
    notices: &Notices,
) -> Vec<Option<CrashCapture>> {
    let one = |failure: &PathFailure| {
        let FailureCause::Panic { block: Some(block), .. } = &failure.cause else { return None };
        let Some(folder) = calibrate::state_directory() else {
            notices.raise_warning("nothing can be saved: neither XDG_STATE_HOME nor HOME is set");
            return None;
        };
        match crash_capture::write(block, &failure.node, &folder) {
            Ok(saved) => {
                let request = replace_sources(text, graph, &saved.source);
                let command = format!("streamline {}", quote_word(&request));
                Some(CrashCapture { path: saved.path, command })
            }
            Err(why) => {
                notices.raise_warning(&format!("the block could not be saved: {why}"));
                None
            }
        }
    };
    failures.iter().map(one).collect()
}

/// Returns the text of the request after replacing each of its sources with `source`.
#[must_use]
pub fn replace_sources(text: &str, graph: &Graph, source: &str) -> String {
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
