//! `weblog`: one line per HTTP exchange, as web servers write them.
//!
//! In: exchanges (`http |exchange`). Out: the combined log format, byte for byte as nginx writes it
//! with `$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent
//! "$http_referer" "$http_user_agent"` and its default escapes, or one object of the Elastic Common
//! Schema per line (`ecs`).
//!
//! Where it differs from a server: the time is that of the last byte that was seen, not that at
//! which a server looked at its clock; bytes of a body are counted without the framing of chunks
//! (as Apache does; nginx counts it); a request without response has status 000; what is longer
//! than a record holds is cut.

mod ecs;

use super::object;
use super::out::Out;
use super::tail::Lines;
use super::text::{Text, Written};
use super::told::{Plain, Told};
use crate::clock::LogTime;
use crate::{Failure, Opening, Sink, SinkEntry};
use filter::{
    Block, Description, Form, Forms, Gives, Kind, Needs, Parameter, Report, Time, Type, Usable,
    ValueRange,
};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::io::Write;
use wire::record::{self, Field};

/// The description of `weblog`.
pub const WEBLOG: Description = Description {
    name: "weblog",
    summary: "write HTTP exchanges as the log of a web server",
    details: "\
Writes one line per exchange (a request with its response), in the combined log format of nginx and
Apache: address, -, user, [time], \"request\", status, bytes of the response's body, \"referer\",
\"user agent\". What is missing is -; quotes, backslashes and all but printable ASCII are written as
\\x0A. The time is that of the last byte of the exchange, in the time zone of this machine, or in
UTC with `zone=utc`. A request that saw no response has status 000.

A file that is there is continued. `ecs=yes` writes one JSON object per line instead, with the names
of the Elastic Common Schema.

An exchange is given to those who ask for it: write `http |exchange weblog`. Blocks that are none
are counted in the report.",
    example: "replay web.pcap | tcp | http |exchange weblog access.log",
    kind: Kind::Sink,
    takes: Forms::of(&[Form::Message]),
    needs: Needs {
        otherwise: "it writes the exchanges of `http`",
        ..Needs::of(&[Usable {
            giver: "http",
            classes: ValueRange { low: 1000, high: 1999 },
            on_request: true,
            hint: "write `http |exchange weblog`, or `http |1404 weblog` for one status",
        }])
    },
    gives: Gives::Nothing,
    parameters: &[
        Parameter::named("file", Type::Path, "-", "the file to write; - is standard output")
            .positional(),
        Parameter::named("zone", Type::OneOf(&["local", "utc"]), "local", "the zone of the times"),
        Parameter::named("ecs", Type::Flag, "no", "whether to write ECS objects"),
    ],
    ..Description::EMPTY
};

/// The line in the catalogue.
pub const ENTRY: SinkEntry = SinkEntry::new(&WEBLOG, open).writing_files();

#[derive(Debug)]
struct Weblog {
    out: Out,
    ecs: bool,
    stamp: Stamp,
    exchanges: u64,
    others: u64,
}

fn open(opening: &Opening<'_>) -> Result<Box<dyn Sink>, Failure> {
    let utc = opening.arguments.text("zone") == Some("utc");
    let zone = if utc { TimeZone::UTC } else { TimeZone::system() };
    let ecs = opening.arguments.flag("ecs");
    Ok(Box::new(Written(Weblog {
        out: Out::append(
            opening.arguments.text("file").unwrap_or("-"),
            if ecs { Lines::Json } else { Lines::Text },
            (opening.steps, opening.readers),
        )?,
        ecs,
        stamp: Stamp { zone, second: None, text: Vec::new() },
        exchanges: 0,
        others: 0,
    })))
}

impl Text for Weblog {
    fn out(&self) -> &Out {
        &self.out
    }

    fn out_mut(&mut self) -> &mut Out {
        &mut self.out
    }

    fn tell(&mut self, block: &Block<'_>) -> Result<(), Failure> {
        match Told::of(block).filter(|told| told.kind() == record::RecordKind::HttpExchange) {
            Some(told) => self.exchange(block, &told),
            None => {
                self.others += 1;
                Ok(())
            }
        }
    }

    fn report(&self) -> Report {
        let mut rows = vec![("exchanges".to_owned(), self.exchanges)];
        let what = match self.exchanges {
            0 => "blocks that are no exchange; write `http |exchange weblog`",
            _ => "blocks that are no exchange",
        };
        if self.others > 0 {
            rows.push((what.to_owned(), self.others));
        }
        self.out.report(rows, self.exchanges, "line")
    }
}

impl Weblog {
    fn exchange(&mut self, block: &Block<'_>, told: &Told<'_>) -> Result<(), Failure> {
        self.exchanges += 1;
        if self.ecs {
            let object = ecs::object(told, block.context.time);
            let written = object::write(self.out.text(), &object);
            written.map_err(|error| Failure::new("write", self.out.target(), error))?;
        } else {
            let stamp = self.stamp.of(told.end().unwrap_or(block.context.time));
            combined(self.out.text(), told, stamp);
        }
        self.out.text().push(b'\n');
        Ok(())
    }
}

/// Appends an exchange in the combined log format.
fn combined(line: &mut Vec<u8>, told: &Told<'_>, stamp: &[u8]) {
    match told.address(Field::Client) {
        Some(address) => append(line, format_args!("{address}")),
        None => line.push(b'-'),
    }
    line.extend_from_slice(b" - ");
    value(line, told.text(Field::User).filter(|user| !user.is_empty()));
    line.extend_from_slice(b" [");
    line.extend_from_slice(stamp);
    line.extend_from_slice(b"] \"");
    request(line, told);
    let status = told.number(Field::Status).unwrap_or(0);
    let bytes = told.number(Field::ResponseBody).unwrap_or(0);
    append(line, format_args!("\" {status:03} {bytes} \""));
    value(line, told.text(Field::Referer));
    line.extend_from_slice(b"\" \"");
    value(line, told.text(Field::UserAgent));
    line.push(b'"');
}

/// The first line of the request. HTTP/0.9 has no version.
fn request(line: &mut Vec<u8>, told: &Told<'_>) {
    let Some(method) = told.text(Field::Method) else { return line.push(b'-') };
    Plain(method).add_to(line);
    if let Some(url) = told.text(Field::Url) {
        line.push(b' ');
        Plain(url).add_to(line);
    }
    let version = told.text(Field::Version).unwrap_or_default();
    if version.starts_with(b"HTTP/") {
        line.push(b' ');
    } else if !version.is_empty() && version != b"0.9" {
        line.extend_from_slice(b" HTTP/");
    } else {
        return;
    }
    Plain(version).add_to(line);
}

fn value(line: &mut Vec<u8>, text: Option<&[u8]>) {
    match text {
        Some(text) => Plain(text).add_to(line),
        None => line.push(b'-'),
    }
}

/// Appends text to a line in memory, which cannot fail.
fn append(line: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let _ = line.write_fmt(text);
}

/// The time of a line, written once a second.
#[derive(Debug)]
struct Stamp {
    zone: TimeZone,
    second: Option<u64>,
    text: Vec<u8>,
}

impl Stamp {
    fn of(&mut self, time: Time) -> &[u8] {
        let second = time / 1_000_000_000;
        if self.second != Some(second) {
            let instant = i64::try_from(second).ok().and_then(|s| Timestamp::from_second(s).ok());
            let offset_s = instant.map_or(0, |instant| self.zone.to_offset(instant).seconds());
            self.text.clear();
            append(&mut self.text, format_args!("{}", LogTime { time, offset_s }));
            self.second = Some(second);
        }
        &self.text
    }
}

#[cfg(test)]
mod tests;
