//! The table of contents: one JSON object per finished file, appended.

use super::Habits;
use super::volume::Volume;
use crate::Failure;
use crate::clock::Rfc3339;
use crate::sink::json::{Ends, VERSION};
use crate::sink::names::Names;
use crate::sink::object;
use crate::sink::out::Out;
use crate::sink::tail::Lines;
use crate::sink::told::{Fields, Told};
use serde::Serialize;
use sha2::Digest;
use std::fmt::Write as _;
use std::fs::File;

/// The open index.
#[derive(Debug)]
pub(super) struct Index(Out);

/// One line: the schema. It shares its version and the fields about the two ends with `json`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    version: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    first: Rfc3339,
    last: Rfc3339,
    blocks: u64,
    bytes: u64,
    #[serde(skip_serializing_if = "is_zero")]
    missing: u64,
    #[serde(skip_serializing_if = "is_zero")]
    unfilled: u64,
    complete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
    #[serde(skip_serializing_if = "is_zero")]
    messages: u64,
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
    #[serde(flatten)]
    told: Option<Fields<'a>>,
}

impl Index {
    /// An index that is appended to this file.
    pub(super) fn new(file: File, target: String) -> Self {
        Self(Out::shared(file, target, Lines::Json))
    }

    /// Returns remarks for the final report.
    pub(super) fn remarks(&self) -> &[String] {
        self.0.remarks()
    }

    /// Adds the line of a finished file.
    pub(super) fn tell(
        &mut self,
        volume: &Volume,
        names: &Names,
        how: &Habits,
    ) -> Result<(), Failure> {
        let paper = volume.paper.as_ref();
        let line = Line {
            version: VERSION,
            file: paper.map(|paper| paper.name.as_str()),
            first: Rfc3339(volume.first),
            last: Rfc3339(volume.last),
            blocks: volume.blocks,
            bytes: volume.bytes,
            missing: volume.missing,
            unfilled: if how.fills && paper.is_some() { volume.missing - volume.filled } else { 0 },
            complete: volume.is_complete(how.begun),
            sha256: paper.and_then(|paper| paper.digest.clone()).map(|d| hex(&d.finalize())),
            messages: if how.single { 0 } else { volume.messages },
            origin: names.origin(volume.origin),
            session: (volume.session != 0).then_some(volume.session),
            direction: volume.direction,
            class: names.class(volume.class),
            class_name: names.class_name(volume.class),
            ends: &volume.ends,
            told: volume.told().filter(|_| how.single).map(Told::fields),
        };
        let written = object::write(self.0.text(), &line);
        self.0.text().push(b'\n');
        written.map_err(|error| Failure::new("write", self.0.target(), error))?;
        self.0.ended(0)
    }

    /// Writes the lines that were gathered.
    pub(super) fn write(&mut self) -> Result<(), Failure> {
        self.0.flush()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
const fn is_zero(value: &u64) -> bool {
    *value == 0
}
