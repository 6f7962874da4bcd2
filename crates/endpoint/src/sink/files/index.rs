//! The table of contents: one JSON object per finished file, appended.

use super::volume::Volume;
use crate::Failure;
use crate::clock::Rfc3339;
use crate::fail::failed;
use crate::sink::json::{Ends, VERSION};
use crate::sink::names::Names;
use serde::Serialize;
use std::fs::File;
use std::io::Write;

/// How many bytes are gathered before they are written.
const FULL: usize = 64 * 1024;

/// The open index.
#[derive(Debug)]
pub(super) struct Index {
    file: File,
    target: String,
    lines: Vec<u8>,
}

/// One line: the schema. It shares its version and the fields about the two ends with `json`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    version: u32,
    file: &'a str,
    first: Rfc3339,
    last: Rfc3339,
    blocks: u64,
    bytes: u64,
    complete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    direction: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class_name: Option<&'static str>,
    #[serde(flatten)]
    ends: &'a Ends,
}

impl Index {
    /// An index that is appended to this file.
    pub(super) const fn new(file: File, target: String) -> Self {
        Self { file, target, lines: Vec::new() }
    }

    /// Adds the line of a finished file.
    pub(super) fn tell(&mut self, volume: &Volume, names: &Names) -> Result<(), Failure> {
        let line = Line {
            version: VERSION,
            file: &volume.name,
            first: Rfc3339(volume.first),
            last: Rfc3339(volume.last),
            blocks: volume.amount.blocks,
            bytes: volume.amount.bytes,
            complete: volume.begun && volume.ended,
            origin: names.origin(volume.origin),
            session: (volume.session != 0).then_some(volume.session),
            direction: volume.direction,
            class: names.class(volume.class),
            class_name: names.class_name(volume.class),
            ends: &volume.ends,
        };
        let written = serde_json::to_writer(&mut self.lines, &line);
        self.lines.push(b'\n');
        written.map_err(|error| Failure::new("write", self.target.as_str(), error))?;
        if self.lines.len() >= FULL { self.write() } else { Ok(()) }
    }

    /// Writes the lines that were gathered.
    pub(super) fn write(&mut self) -> Result<(), Failure> {
        let lines = std::mem::take(&mut self.lines);
        self.file.write_all(&lines).map_err(|error| failed("write", &self.target, &error))
    }
}
