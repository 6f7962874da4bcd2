//! Handlers for the actions of the page: check, completion and explanation of a request, start and
//! stop of a path, edits, messages of a filter, traces of flows, and captures.

use crate::captures::CaptureChoice;
use crate::commands::{CommandOutcome, split_words};
use crate::failure::{Failure, run_blocking};
use crate::flow::{self, FlowChoice};
use crate::messages::TapMessages;
use crate::server::Server;
use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::convert::Infallible;
use std::time::Duration;
use streamline::paths::{self, ChangeParameters};
use streamline::{OpenError, Options, read_graph};

/// The parameters of an action on a request that is not running: its text, and an optional name for
/// its path.
#[derive(Debug, Deserialize)]
pub(crate) struct RequestText {
    line: String,
    name: Option<String>,
}

/// An edit of a path, in the words of `streamline set PATH`.
#[derive(Debug, Deserialize)]
pub(crate) struct PathEdit {
    path: u32,
    edit: String,
    /// The request that the page displayed when the user wrote the edit. The edit fails if the path
    /// now runs another request. `None` disables this check.
    running: Option<String>,
}

/// The parameter of an action on a path: the path's number in the daemon's registry.
#[derive(Debug, Deserialize)]
pub(crate) struct PathChoice {
    path: u32,
}

/// The parameters of an action on a node: the path's number and the node's name.
#[derive(Debug, Deserialize)]
pub(crate) struct NodeChoice {
    path: u32,
    node: String,
}

/// The parameter of an action on a capture: the capture's number.
#[derive(Debug, Deserialize)]
pub(crate) struct CaptureNumber {
    number: u32,
}

/// A mistake in a request. Positions are in UTF-16 code units, as in JavaScript.
#[derive(Debug, Serialize)]
struct Mistake {
    start: usize,
    end: usize,
    what: String,
    hint: String,
    error: bool,
}

/// Returns the mistakes in a request.
pub(crate) async fn check_request(Json(given): Json<RequestText>) -> Result<Json<Value>, Failure> {
    let mistakes = run_blocking(move || request_mistakes(&given.line)).await?;
    Ok(Json(serde_json::json!({ "mistakes": mistakes })))
}

fn request_mistakes(line: &str) -> Vec<Mistake> {
    let list = match read_graph(line, &Options::without_daemon()) {
        Ok(_) => return Vec::new(),
        Err(OpenError::Mistakes { list, .. }) => list,
        Err(other) => {
            let what = other.to_string();
            return vec![Mistake { start: 0, end: 0, what, hint: String::new(), error: true }];
        }
    };
    let position = |at: usize| line.get(..at).unwrap_or(line).encode_utf16().count();
    let mistakes = list.into_iter().map(|found| Mistake {
        start: position(found.span.start),
        end: position(found.span.end),
        error: found.is_error(),
        what: found.what,
        hint: if found.hint.is_empty() { found.why } else { found.hint },
    });
    mistakes.collect()
}

/// Time limit for an edit of a path.
const EDIT_TIMEOUT: Duration = Duration::from_secs(30);

/// Checks an edit without applying it. Returns the request that would result, the mistakes in that
/// request, and the request that the path is running. The resulting request is absent if only the
/// path itself can compute it.
pub(crate) async fn check_edit(
    State(server): State<Server>,
    Json(given): Json<PathEdit>,
) -> Result<Json<Value>, Failure> {
    let refuse = |text: String| Failure::new(StatusCode::BAD_REQUEST, text);
    let line = server.live.listed_request(given.path);
    let gone = || refuse("the path has ended, or belongs to another user".to_owned());
    let line = line.ok_or_else(gone)?;
    let checked = run_blocking(move || match paths::check_edit(&line, &split_words(&given.edit)) {
        Ok(edited) => {
            let mistakes = edited.as_deref().map(request_mistakes).unwrap_or_default();
            serde_json::json!({ "line": edited, "mistakes": mistakes, "running": line })
        }
        Err(what) => {
            let hint = String::new();
            let mistakes = [Mistake { start: 0, end: 0, what, hint, error: true }];
            serde_json::json!({ "line": null, "mistakes": mistakes, "running": line })
        }
    });
    Ok(Json(checked.await?))
}

/// Returns the possible completions of an incomplete request. Each completion is a whole request.
pub(crate) async fn complete_request(
    State(server): State<Server>,
    Json(given): Json<RequestText>,
) -> Result<Json<Value>, Failure> {
    let line = format!("--line={}", given.line);
    let outcome = run_streamline(server, vec!["complete".to_owned(), line]).await?;
    Ok(Json(Value::from_iter(outcome.output.lines())))
}

/// Returns the plan of a request, with the candidate placements of each filter, in the format of
/// `explain --json`.
pub(crate) async fn explain_request(
    State(server): State<Server>,
    Json(given): Json<RequestText>,
) -> Result<Json<Value>, Failure> {
    let words = ["explain", "--json", "--", &given.line].map(str::to_owned);
    let outcome = run_streamline(server, words.into()).await?;
    match serde_json::from_str(&outcome.output) {
        Ok(plan) if outcome.succeeded => Ok(Json(plan)),
        _ => Err(Failure::new(StatusCode::BAD_REQUEST, outcome.messages.trim())),
    }
}

/// Starts a path in the background, and returns the path's number.
pub(crate) async fn start_path(
    State(server): State<Server>,
    Json(given): Json<RequestText>,
) -> Result<Json<Value>, Failure> {
    let name = given.name.filter(|name| !name.is_empty());
    let is_name = |name: &String| {
        !name.starts_with('-')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c))
    };
    if name.as_ref().is_some_and(|name| !is_name(name)) {
        let text = "a name has letters, digits, `.`, `-` and `_`";
        return Err(Failure::new(StatusCode::BAD_REQUEST, text));
    }
    let words = ["start".to_owned(), "--".to_owned()].into_iter().chain(name).chain([given.line]);
    let outcome = run_streamline(server, words.collect()).await?;
    match outcome.output.trim().parse::<u32>() {
        Ok(number) if outcome.succeeded => Ok(Json(serde_json::json!({ "number": number }))),
        _ => Err(Failure::new(StatusCode::BAD_REQUEST, outcome.messages.trim())),
    }
}

/// Stops a path: its sources end, but blocks that they have already read are still processed.
pub(crate) async fn stop_path(
    State(server): State<Server>,
    Json(given): Json<PathChoice>,
) -> Result<Json<Value>, Failure> {
    run_blocking(move || {
        let client = server.live.connect()?;
        client.connect_and_describe(&given.path.to_string())?.0.stop()
    })
    .await??;
    Ok(Json(serde_json::json!({})))
}

/// Edits a path. The reply contains the new request, and a sentence with the block counts of the
/// change. Fails if the path no longer runs the request for which the edit was written.
pub(crate) async fn change_path(
    State(server): State<Server>,
    Json(given): Json<PathEdit>,
) -> Result<Json<Value>, Failure> {
    let reply = run_blocking(move || {
        let client = server.live.connect()?;
        let (to, _) = client.connect_and_describe(&given.path.to_string())?;
        let words = split_words(&given.edit);
        let change =
            ChangeParameters { words, running: given.running, ..ChangeParameters::default() };
        to.change_within(&change, EDIT_TIMEOUT)
    })
    .await??;
    Ok(Json(serde_json::to_value(reply).unwrap_or_default()))
}

/// Sends each message that leaves a node as a server-sent event, while the connection is open.
pub(crate) async fn stream_messages(
    State(server): State<Server>,
    Query(given): Query<NodeChoice>,
) -> Result<impl IntoResponse, Failure> {
    let tap =
        run_blocking(move || TapMessages::tap(&server.live, given.path, given.node)).await??;
    let events = stream::unfold(tap, |mut tap| async move {
        let line = tap.next().await?;
        Some((Ok::<_, Infallible>(Event::default().event("message").data(line)), tap))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

/// Traces a flow through a path. Returns the output of `streamline why --json`, with the numbers of
/// collected and skipped frames.
pub(crate) async fn trace_flow(
    State(server): State<Server>,
    Json(given): Json<FlowChoice>,
) -> Result<Json<Value>, Failure> {
    Ok(Json(run_blocking(move || flow::trace_flow(&server.live, &server.program, &given)).await??))
}

/// Starts a capture. Fails if the file exists or the node cannot be tapped.
pub(crate) async fn start_capture(
    State(server): State<Server>,
    Json(given): Json<CaptureChoice>,
) -> Result<Json<Value>, Failure> {
    let number = run_blocking(move || server.captures.start(&server.live, given)).await??;
    Ok(Json(serde_json::json!({ "number": number })))
}

/// Stops a capture. Replies when the file of the capture is complete.
pub(crate) async fn stop_capture(
    State(server): State<Server>,
    Json(given): Json<CaptureNumber>,
) -> Result<Json<Value>, Failure> {
    run_blocking(move || server.captures.stop(given.number)).await?;
    Ok(Json(serde_json::json!({})))
}

/// Returns all captures with the sizes of their files.
pub(crate) async fn list_captures(State(server): State<Server>) -> Result<Json<Value>, Failure> {
    Ok(Json(run_blocking(move || server.captures.list()).await?))
}

/// Runs `streamline` with these arguments in a thread that may block.
async fn run_streamline(server: Server, words: Vec<String>) -> Result<CommandOutcome, Failure> {
    let outcome = run_blocking(move || server.program.run(&words)).await?;
    outcome.map_err(|error| {
        let text = format!("the program `streamline` cannot run: {error}");
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    })
}
