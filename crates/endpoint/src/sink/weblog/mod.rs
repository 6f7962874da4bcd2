//! `weblog`: writes HTTP exchanges as a web server log.
//!
//! The sink writes exchanges (`http |exchange`) either in the combined log format, byte for byte as
//! nginx does with `$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent
//! "$http_referer" "$http_user_agent"` and its default escapes, or as one object of the Elastic
//! Common Schema per line (`ecs`).
//!
//! The log differs from the log of a server as follows. The time is the arrival time of the last
//! captured byte. Body bytes exclude chunk framing, as in Apache (nginx includes it). A request
//! without a response has status 000. Texts that exceed the maximum in a record are truncated.

mod ecs;

use super::buffered_output::BufferedOutputFile;
use super::json_object;
use super::line_repair::LineFormat;
use super::message::{EscapedBytes, MessageRecord};
use super::text_sink::{BlockFormatter, TextSink};
use crate::entry::{is_file_standard_output, standard_output_use};
use crate::timestamp_text::timestamp;
use crate::{Failure, OpenArguments, Sink, SinkEntry};
use filter::{
    Block, Description, Form, Forms, InputNeeds, Parameter, ParameterType, Report, Time,
    UsableInput, ValueRange,
};
use jiff::tz::TimeZone;
use std::io::Write;
use wire::record::{self, Field};

/// Description of `weblog`, the sink that writes web server logs.
pub const WEBLOG: Description = Description {
    name: "weblog",
    summary: "write HTTP exchanges as the log of a web server",
    details: "\
Writes one line per exchange (a request with its response) in the combined log format of nginx and
Apache: address, -, user, [time], \"request\", status, bytes of the response's body, \"referer\",
\"user agent\". An unknown value is -; quotes, backslashes and bytes other than printable ASCII are
written as \\x0A. The time is that of the last byte of the exchange, in the time zone of this
machine, or in UTC with `zone=utc`. A request without a response has status 000. Texts are cut after
8,192 bytes; the report counts the exchanges for which this happened.

Appends to an existing file. `ecs=yes` writes one JSON object per line instead, with the names of
the Elastic Common Schema.

`http` produces exchanges only if an arc selects them: write `http |exchange weblog`. Other blocks
are counted in the report.",
    example: "replay web.pcap | tcp | http |exchange weblog access.log",
    input_forms: Forms::of(&[Form::Message]),
    needs: InputNeeds {
        required_input: "it writes the exchanges of `http`",
        ..InputNeeds::from_usable_inputs(&[UsableInput {
            upstream: "http",
            classes: ValueRange { low: 1000, high: 1999 },
            hint: "write `http |exchange weblog`, or `http |1404 weblog` for one status",
        }])
    },
    parameters: &[
        Parameter::with_default(
            "file",
            ParameterType::Path,
            "-",
            "the file to write; - is standard output",
        )
        .positional(),
        Parameter::with_default(
            "zone",
            ParameterType::OneOf(&["local", "utc"]),
            "local",
            "time zone of the times",
        ),
        Parameter::with_default(
            "ecs",
            ParameterType::Flag,
            "no",
            "write ECS objects instead of lines",
        ),
    ],
    ..Description::SINK_DEFAULTS
};

/// The catalog entry of `weblog`.
pub const ENTRY: SinkEntry = SinkEntry::new(&WEBLOG, open)
    .with_file_writes()
    .with_append_only(|given| !is_file_standard_output(given))
    .with_standard_output(standard_output_use);

#[derive(Debug)]
struct WeblogFormatter {
    ecs: bool,
    time_text: CachedTime,
    truncated_exchanges: u64,
    other_blocks: u64,
}

fn open(opening: &OpenArguments<'_>) -> Result<Box<dyn Sink>, Failure> {
    let utc = opening.arguments.text("zone") == Some("utc");
    let zone = if utc { TimeZone::UTC } else { TimeZone::system() };
    let ecs = opening.arguments.flag("ecs");
    let lines = if ecs { LineFormat::Json } else { LineFormat::Text };
    let file = opening.arguments.text("file").unwrap_or("-");
    let out = BufferedOutputFile::append(file, lines, (opening.rollback_log, opening.readers))?
        .with_stop_limit(&opening.stopped);
    let time_text = CachedTime { zone, second: None, text: Vec::new() };
    let formatter = WeblogFormatter { ecs, time_text, truncated_exchanges: 0, other_blocks: 0 };
    Ok(Box::new(TextSink { formatter, out }))
}

impl BlockFormatter for WeblogFormatter {
    fn append(&mut self, block: &Block<'_>, out: &mut BufferedOutputFile) -> Result<(), Failure> {
        match MessageRecord::from_block(block)
            .filter(|record| record.kind() == record::RecordKind::HttpExchange)
        {
            Some(record) => self.append_exchange(block, &record, out),
            None => {
                self.other_blocks += 1;
                Ok(())
            }
        }
    }

    fn report(&self, out: &BufferedOutputFile) -> Report {
        let row_name = match out.items_written() {
            0 => "blocks that are no exchange; write `http |exchange weblog`",
            _ => "blocks that are no exchange",
        };
        let rows = Report::from_rows([("exchanges", out.items_written())]).with_nonzero_rows([
            ("exchanges with a text that was cut", self.truncated_exchanges),
            (row_name, self.other_blocks),
        ]);
        out.report(rows, "line")
    }
}

impl WeblogFormatter {
    fn append_exchange(
        &mut self,
        block: &Block<'_>,
        record: &MessageRecord<'_>,
        out: &mut BufferedOutputFile,
    ) -> Result<(), Failure> {
        self.truncated_exchanges += u64::from(record.is_truncated());
        if self.ecs {
            return json_object::write_line(out, &ecs::exchange_object(record, block.context.time));
        }
        let time_text = self.time_text.format_time(record.end_time().unwrap_or(block.context.time));
        append_combined_log_line(out.buffer(), record, time_text);
        out.buffer().push(b'\n');
        out.end_item();
        Ok(())
    }
}

/// Appends an exchange in the combined log format, without a line terminator.
fn append_combined_log_line(line: &mut Vec<u8>, record: &MessageRecord<'_>, time_text: &[u8]) {
    match record.address(Field::Client) {
        Some(address) => append_formatted(line, format_args!("{address}")),
        None => line.push(b'-'),
    }
    line.extend_from_slice(b" - ");
    append_value(line, record.text(Field::User).filter(|user| !user.is_empty()));
    line.extend_from_slice(b" [");
    line.extend_from_slice(time_text);
    line.extend_from_slice(b"] \"");
    append_request_line(line, record);
    let status = record.number(Field::Status).unwrap_or(0);
    let bytes = record.number(Field::ResponseBody).unwrap_or(0);
    append_formatted(line, format_args!("\" {status:03} {bytes} \""));
    append_value(line, record.text(Field::Referer));
    line.extend_from_slice(b"\" \"");
    append_value(line, record.text(Field::UserAgent));
    line.push(b'"');
}

/// Appends the request line. HTTP/0.9 requests have no version.
fn append_request_line(line: &mut Vec<u8>, record: &MessageRecord<'_>) {
    let Some(method) = record.text(Field::Method) else { return line.push(b'-') };
    EscapedBytes(method).append_to_line(line);
    if let Some(url) = record.text(Field::Url) {
        line.push(b' ');
        EscapedBytes(url).append_to_line(line);
    }
    let version = record.text(Field::Version).unwrap_or_default();
    if version.starts_with(b"HTTP/") {
        line.push(b' ');
    } else if !version.is_empty() && version != b"0.9" {
        line.extend_from_slice(b" HTTP/");
    } else {
        return;
    }
    EscapedBytes(version).append_to_line(line);
}

fn append_value(line: &mut Vec<u8>, text: Option<&[u8]>) {
    match text {
        Some(text) => EscapedBytes(text).append_to_line(line),
        None => line.push(b'-'),
    }
}

/// Appends formatted text to a line in memory, which cannot fail.
fn append_formatted(line: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let _ = line.write_fmt(text);
}

/// The time of the latest log line as text, which is reused for all lines of the same second.
#[derive(Debug)]
struct CachedTime {
    zone: TimeZone,
    second: Option<u64>,
    text: Vec<u8>,
}

impl CachedTime {
    fn format_time(&mut self, time: Time) -> &[u8] {
        let second = time / 1_000_000_000;
        if self.second != Some(second) {
            let local = timestamp(time).to_zoned(self.zone.clone());
            self.text.clear();
            append_formatted(
                &mut self.text,
                format_args!("{}", local.strftime("%d/%b/%Y:%H:%M:%S %z")),
            );
            self.second = Some(second);
        }
        &self.text
    }
}

#[cfg(test)]
mod tests;
