//! The index of a file set, to which one JSON object is appended per finished file.

use super::FileSetPolicy;
use super::output_file::OutputFile;
use crate::Failure;
use crate::sink::buffered_output::BufferedOutputFile;
use crate::sink::class_names::ClassNames;
use crate::sink::json::SCHEMA_VERSION;
use crate::sink::json_object::{add_member, write_line};
use crate::sink::line_repair::LineFormat;
use crate::timestamp_text::Rfc3339;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use sha2::Digest;
use std::fmt::Write as _;
use std::fs::File;

/// The open index file of a file set.
#[derive(Debug)]
pub(super) struct IndexFile(BufferedOutputFile);

/// One line of the index of a file set. Its schema is public. The schema version and the address
/// fields are those of the sink `json`.
struct IndexLine<'a> {
    file: &'a OutputFile,
    names: &'a ClassNames,
    policy: &'a FileSetPolicy,
}

impl Serialize for IndexLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { file, names, policy } = self;
        let disk = file.disk.as_ref();
        let unfilled =
            if policy.fills_holes && disk.is_some() { file.missing - file.filled } else { 0 };
        let messages = if policy.has_single_message { 0 } else { file.messages };
        let counted = |count: u64| (count > 0).then_some(count);
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("version", &SCHEMA_VERSION)?;
        add_member(&mut map, "file", disk.map(|disk| disk.name.as_str()))?;
        map.serialize_entry("first", &Rfc3339(file.first))?;
        map.serialize_entry("last", &Rfc3339(file.last))?;
        map.serialize_entry("blocks", &file.blocks)?;
        map.serialize_entry("bytes", &file.bytes)?;
        add_member(&mut map, "missing", counted(file.missing))?;
        add_member(&mut map, "unfilled", counted(unfilled))?;
        map.serialize_entry("complete", &file.is_complete(policy.needs_beginning))?;
        let decoded =
            file.is_content_decoded().filter(|_| policy.has_single_message && disk.is_some());
        add_member(&mut map, "decoded", decoded)?;
        let digest = disk.and_then(|disk| disk.digest.clone());
        add_member(&mut map, "sha256", digest.map(|digest| format_hex(&digest.finalize())))?;
        add_member(&mut map, "messages", counted(messages))?;
        add_member(&mut map, "origin", names.origin_name(file.origin))?;
        add_member(&mut map, "session", (file.session != 0).then_some(file.session))?;
        add_member(&mut map, "direction", file.direction)?;
        add_member(&mut map, "class", names.class_value(file.class))?;
        add_member(&mut map, "class_name", names.class_name(file.class))?;
        file.ends.write_members(&mut map)?;
        if let Some(record) = file.description().filter(|_| policy.has_single_message) {
            record.write_fields(&mut map)?;
        }
        map.end()
    }
}

impl IndexFile {
    /// Creates an index that appends to this file.
    pub(super) fn new(file: File, target: String) -> Self {
        Self(BufferedOutputFile::from_shared_file(file, target, LineFormat::Json))
    }

    /// Returns the notes about the index for the final report.
    pub(super) fn remarks(&self) -> &[String] {
        self.0.remarks()
    }

    /// Appends the line for a finished file to the index.
    pub(super) fn append(
        &mut self,
        file: &OutputFile,
        names: &ClassNames,
        policy: &FileSetPolicy,
    ) -> Result<(), Failure> {
        write_line(&mut self.0, &IndexLine { file, names, policy })?;
        self.0.end_block(0)
    }

    /// Writes the buffered lines to the index file.
    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        self.0.flush()
    }
}

fn format_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
