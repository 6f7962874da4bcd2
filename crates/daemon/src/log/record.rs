//! One line of the log, and its output formats.

use abi::text::{EscapedJson, VisibleText};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;

/// Version of the JSON format of a line.
const JSON_VERSION: u32 = 1;

/// The kind of a logged event, written in kebab case, such as `path-started`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// The daemon serves its clients.
    DaemonStarted,
    /// The daemon has stopped serving.
    DaemonStopped,
    /// The daemon ends because of an error.
    DaemonFailed,
    /// The daemon runs with a limitation.
    DaemonWarning,
    /// A metrics server accepts connections.
    MetricsStarted,
    /// The live page (`--page`) has reported its address, or the start or end of a user's process.
    PageReported,
    /// The mount (`--mount`) has reported its directory, or the reason why it failed.
    MountReported,
    /// A path has registered.
    PathStarted,
    /// A path of the previous daemon was adopted.
    PathAdopted,
    /// A path has switched to another request.
    PathChanged,
    /// A path has adapted itself to its load, or has decided against an adaptation.
    PathAdapted,
    /// A path has lost blocks.
    PathLost,
    /// An alarm set with `--alarm` was raised or has ended.
    PathAlarm,
    /// Blocks took longer than `--latency` allows.
    PathLate,
    /// A change of a path was refused, and the path runs as before.
    PathUnchanged,
    /// A path has ended.
    PathEnded,
    /// Part of a request now runs in the kernel.
    KernelAttached,
    /// The part of a request that runs in the kernel was replaced by that of another request.
    KernelSwitched,
    /// Part of a request no longer runs in the kernel.
    KernelDetached,
    /// A call of a client was refused.
    RequestRefused,
    /// A connection was refused.
    ConnectionRefused,
    /// Lines of the log were suppressed or dropped.
    LogSuppressed,
}

/// The severity of a logged event, written in lower case.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Information that needs no action.
    Info,
    /// A problem that may need action.
    Warning,
    /// A failure.
    Error,
}

impl Level {
    /// Returns the priority of syslog(3).
    const fn priority(self) -> u8 {
        match self {
            Self::Info => 6,
            Self::Warning => 4,
            Self::Error => 3,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// A line of the log. Properties that the event does not have are `None`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Record {
    /// Severity of the event.
    pub level: Level,
    /// The kind of the event.
    pub event: EventKind,
    /// A sentence about the event, without the request and the reason.
    pub message: String,
    /// Number of the path that the event concerns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<u32>,
    /// Name of the path, if its user chose one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Id of the plan that the path runs, as in `explain --json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// Id of the user who owns the path or has made the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Id of the process that runs the path or has made the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<i32>,
    /// Text of the request that the path runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// Name of the method that the client called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Name of the error that the caller received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Reason for the event, or the report of a path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Exit status that the ended path reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u8>,
}

impl Record {
    /// Creates a line with a message and without properties.
    #[must_use]
    pub fn new(event: EventKind, level: Level, message: impl Into<String>) -> Self {
        Self {
            level,
            event,
            message: message.into(),
            path: None,
            name: None,
            plan: None,
            uid: None,
            process: None,
            request: None,
            method: None,
            error: None,
            reason: None,
            status: None,
        }
    }

    /// Returns the message, followed by the reason and by the request if they are known.
    fn sentence(&self) -> String {
        match (&self.reason, &self.request) {
            (Some(reason), Some(request)) => format!("{}: {reason}: {request}", self.message),
            (Some(more), None) | (None, Some(more)) => format!("{}: {more}", self.message),
            (None, None) => self.message.clone(),
        }
    }

    /// Formats the line as text: time, severity and sentence, without control characters.
    pub(super) fn to_text(&self) -> String {
        let (time, level, what) = (current_timestamp(), self.level.name(), self.sentence());
        format!("{time} {level}: {}\n", VisibleText(&what))
    }

    /// Returns the line as a JSON object.
    pub(super) fn to_json(&self) -> String {
        #[derive(Serialize)]
        struct JsonLine<'r> {
            version: u32,
            time: String,
            #[serde(flatten)]
            record: &'r Record,
        }
        let line = JsonLine { version: JSON_VERSION, time: current_timestamp(), record: self };
        // Only numbers and texts are serialized, so this cannot fail.
        format!("{}\n", EscapedJson(&serde_json::to_string(&line).unwrap_or_default()))
    }

    /// Formats the line with the function `form`. If the result is longer than `bytes_max` bytes,
    /// shortens the texts of the line and formats it again.
    pub(super) fn bounded_line(&self, bytes_max: usize, form: fn(&Self) -> String) -> String {
        let line = form(self);
        if line.len() <= bytes_max {
            return line;
        }
        // JSON may escape one byte with six.
        let short = |text: &Option<String>| text.as_deref().map(|text| shorten(text, 100));
        let short = Self {
            message: shorten(&self.message, 80),
            request: short(&self.request),
            reason: short(&self.reason).map(|text| shorten(&text, 80)),
            ..self.clone()
        };
        form(&short)
    }

    /// Returns the line in the native protocol of journald: a field per property.
    pub(super) fn to_journal(&self) -> Vec<u8> {
        let mut out = Vec::new();
        push_field(&mut out, "MESSAGE", &self.sentence());
        push_field(&mut out, "PRIORITY", &self.level.priority().to_string());
        push_field(&mut out, "SYSLOG_IDENTIFIER", "streamline");
        let Ok(Value::Object(fields)) = serde_json::to_value(self) else { return out };
        for (name, value) in fields.iter().filter(|(name, _)| !has_standard_field(name)) {
            let name = format!("STREAMLINE_{}", name.to_uppercase());
            match value {
                Value::String(text) => push_field(&mut out, &name, text),
                other => push_field(&mut out, &name, &other.to_string()),
            }
        }
        out
    }
}

/// Returns true if journald has a standard field for this property.
fn has_standard_field(name: &str) -> bool {
    matches!(name, "message" | "level")
}

/// Appends a field. A value with line breaks is preceded by its length, as the protocol requires.
fn push_field(out: &mut Vec<u8>, name: &str, value: &str) {
    out.extend_from_slice(name.as_bytes());
    if value.contains('\n') {
        out.push(b'\n');
        out.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        out.push(b'=');
    }
    out.extend_from_slice(value.as_bytes());
    out.push(b'\n');
}

/// Formats the current time in UTC with microseconds, as in RFC 3339.
fn current_timestamp() -> String {
    format!("{:.6}", Timestamp::now())
}

/// Returns at most `chars_max` characters of a text, with an ellipsis if it is longer.
fn shorten(text: &str, chars_max: usize) -> String {
    let mut short: String = text.chars().take(chars_max).collect();
    if short.len() < text.len() {
        let _ = write!(short, "…");
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path_started_record() -> Record {
        Record {
            path: Some(3),
            name: Some("web".to_owned()),
            request: Some("rx lo\n | count".to_owned()),
            uid: Some(0),
            ..Record::new(EventKind::PathStarted, Level::Info, "path 3 web started")
        }
    }

    #[test]
    fn journal_form_has_a_field_per_property() {
        let bytes = path_started_record().to_journal();
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("\nPRIORITY=6\nSYSLOG_IDENTIFIER=streamline\n"), "{text}");
        assert!(text.contains("\nSTREAMLINE_EVENT=path-started\n"), "{text}");
        assert!(text.contains("\nSTREAMLINE_PATH=3\n"), "{text}");
        // A value with line breaks is preceded by its length, in 8 bytes.
        let value = b"STREAMLINE_REQUEST\n\x0e\0\0\0\0\0\0\0rx lo\n | count\n";
        assert!(bytes.windows(value.len()).any(|part| part == value), "{text}");
    }

    #[test]
    fn text_form_is_one_line_without_control_characters() {
        let text = path_started_record().to_text();
        assert!(text.ends_with(" info: path 3 web started: rx lo· | count\n"), "{text}");
        assert_eq!(text.matches('\n').count(), 1);
        let time = text.split(' ').next().unwrap();
        assert!(time.parse::<Timestamp>().is_ok() && time.ends_with('Z'), "{time}");
    }

    #[test]
    fn json_form_omits_absent_properties_and_long_lines_shrink() {
        let object: Value = serde_json::from_str(&path_started_record().to_json()).unwrap();
        assert_eq!(object["request"], "rx lo\n | count");
        assert_eq!((object["version"].as_u64(), object["path"].as_u64()), (Some(1), Some(3)));
        assert!(object.get("status").is_none());
        let long = Record { request: Some("\u{202e}".repeat(9000)), ..path_started_record() };
        for form in [Record::to_json, Record::to_text] {
            let line = long.bounded_line(4096, form);
            assert!(line.len() <= 4096 && line.contains('…'), "{}", line.len());
        }
    }
}
