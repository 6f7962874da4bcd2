//! Descriptions that a chain of filters emits for a capture, and suricata's checks that these
//! descriptions must pass.

#![allow(dead_code, reason = "each test uses its share")]

use abi::Class;
use filter::testing::{Arena, Node, Space, read_capture};
use filter::{Batch, Description, LANES};
use std::fs;
use std::path::{Path, PathBuf};
use wire::record::{Field, FieldType, Record};

/// The description of one message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DescribedMessage {
    /// Class of the message.
    pub(crate) class: Class,
    /// Fields with their values as text, in the order of the description.
    pub(crate) fields: Vec<(Field, String)>,
}

impl DescribedMessage {
    fn from_record(class: Class, frame: &[u8]) -> Self {
        let record = Record::parse(frame).expect("the frame of a description is a record");
        let fields = record.fields().map(|(field, value)| (field, value_text(field, value)));
        Self { class, fields: fields.collect() }
    }

    /// Returns all values of a field in the description.
    pub(crate) fn all_values(&self, field: Field) -> Vec<&str> {
        let values = self.fields.iter().filter(|(found, _)| *found == field);
        values.map(|(_, value)| value.as_str()).collect()
    }

    /// Returns the first value of a field, or an empty string.
    pub(crate) fn first_value(&self, field: Field) -> &str {
        self.all_values(field).first().copied().unwrap_or_default()
    }
}

fn value_text(field: Field, value: &[u8]) -> String {
    match field.shape() {
        FieldType::Number | FieldType::Flag | FieldType::Time => {
            wire::record::decode_number(value).unwrap_or_default().to_string()
        }
        FieldType::Address => match (<[u8; 4]>::try_from(value), <[u8; 16]>::try_from(value)) {
            (Ok(four), _) => std::net::Ipv4Addr::from(four).to_string(),
            (_, Ok(sixteen)) => std::net::Ipv6Addr::from(sixteen).to_string(),
            _ => String::new(),
        },
        FieldType::Text | FieldType::RepeatedText => String::from_utf8_lossy(value).into_owned(),
    }
}

/// A chain of filters, and the descriptions that it has emitted.
pub(crate) struct FilterChain {
    nodes: Vec<Node>,
    messages: Vec<DescribedMessage>,
}

impl FilterChain {
    /// Creates a chain of these filters, with default arguments.
    pub(crate) fn new(filters: &[&'static Description]) -> Self {
        let node = |d: &&'static Description| Node::new(d, &[]).expect("defaults are arguments");
        Self { nodes: filters.iter().map(node).collect(), messages: Vec::new() }
    }

    /// Runs the chain over a capture, and returns the descriptions that the last filter has
    /// emitted.
    pub(crate) fn describe(&mut self, path: &Path) -> &[DescribedMessage] {
        let bytes = fs::read(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        let frames = read_capture(&bytes);
        let arena = Arena::new(16 * frames.len() + 1024);
        let mut space = Space::new(&arena);
        let mut now = 0;
        for frames in frames.chunks(LANES) {
            now = frames.iter().map(|frame| frame.time).fold(now, u64::max);
            let batch = space.batch(frames);
            self.run_from(0, vec![batch], &mut space, now);
        }
        for at in 0..self.nodes.len() {
            let rest = self.nodes[at].finish(&mut space, now);
            self.run_from(at + 1, rest, &mut space, now);
        }
        &self.messages
    }

    /// Runs batches through the filters from index `at` on, and keeps the descriptions found in
    /// their output. Every filter after the first receives only blocks with a class.
    fn run_from<'a>(
        &mut self,
        at: usize,
        batches: Vec<Batch<'a>>,
        space: &mut Space<'a>,
        now: u64,
    ) {
        let Some(node) = self.nodes.get_mut(at) else {
            for batch in &batches {
                let described = batch.blocks().filter(|(_, block)| block.marks.is_description());
                let messages =
                    described.map(|(_, b)| DescribedMessage::from_record(b.pointer.class, b.frame));
                self.messages.extend(messages);
            }
            return;
        };
        let mut after = Vec::new();
        for mut batch in batches {
            if at > 0 {
                batch.retain_lanes(batch.lanes_with_class(Class::is_answered));
            }
            after.extend(node.process_batch(batch, space, now));
        }
        self.run_from(at + 1, after, space, now);
    }
}

/// A check in a suricata test: the number of events with these fields that suricata must report.
#[derive(Clone, Debug)]
pub(crate) struct SuricataCheck {
    /// Name of the suricata test to which the check belongs.
    pub(crate) test: String,
    /// Path of the test's capture.
    pub(crate) capture: PathBuf,
    /// Number of matching events that the test expects.
    pub(crate) count: usize,
    /// Names and values of the fields that an event must have.
    pub(crate) fields: Vec<(String, String)>,
}

/// Returns the checks of events of type `event` in all tests whose captures are present. Skips
/// tests for versions of suricata other than 8, because only version 8 has one event per DNS
/// message.
pub(crate) fn parse_checks(suricata: &Path, event: &str) -> Vec<SuricataCheck> {
    let mut tests = Vec::new();
    find_tests(suricata, &mut tests);
    tests.sort();
    tests.iter().flat_map(|test| parse_check_file(test, event)).collect()
}

fn find_tests(directory: &Path, found: &mut Vec<PathBuf>) {
    for path in fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            find_tests(&path, found);
        } else if path.ends_with("test.yaml") {
            found.push(path);
        }
    }
}

/// Returns the checks in one file of a suricata test. Only the simple form is parsed: `count`, and
/// names with values under `match`.
fn parse_check_file(path: &Path, event: &str) -> Vec<SuricataCheck> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let folder = path.parent().unwrap_or(path);
    let test = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some(capture) = find_test_capture(folder, &text) else { return Vec::new() };
    // Before version 8 each question and each answer was an event.
    let config = fs::read_to_string(folder.join("suricata.yaml")).unwrap_or_default();
    let old = ["lt-version: 8", "dns.version: 2", "dns.version: 1"];
    if old.iter().any(|line| text.contains(line)) || config.contains("version: 2") {
        return Vec::new();
    }
    let mut checks = Vec::new();
    for block in text.split("- filter:").skip(1) {
        let block = block.split("\n  - ").next().unwrap_or(block);
        let lines: Vec<&str> =
            block.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let pairs: Vec<(&str, &str)> = lines.iter().filter_map(|l| l.split_once(':')).collect();
        let value = |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| v.trim());
        let plain = pairs.len() == lines.len() && value("match") == Some("");
        let count = value("count").and_then(|count| count.parse().ok());
        let (true, Some(count)) = (plain, count) else { continue };
        let fields = pairs.iter().filter(|(n, _)| !["count", "match", "event_type"].contains(n));
        let ours = |(n, _): &(&str, &str)| n.split('.').next() == Some(event);
        let kind = value("event_type").or_else(|| fields.clone().all(ours).then_some(event));
        let unquoted = |v: &str| v.trim().trim_matches(['"', '\'']).to_owned();
        let fields = fields.map(|(n, v)| ((*n).to_owned(), unquoted(v))).collect();
        if kind == Some(event) {
            checks.push(SuricataCheck {
                test: test.clone(),
                capture: capture.clone(),
                count,
                fields,
            });
        }
    }
    checks
}

/// Returns the capture that the text of a test names, or else the only capture in the directory of
/// the test. Returns `None` if there is no such file.
fn find_test_capture(directory: &Path, text: &str) -> Option<PathBuf> {
    let named = text.lines().find_map(|line| line.strip_prefix("pcap:"));
    if let Some(named) = named {
        return Some(directory.join(named.trim().trim_matches(['"', '\''])))
            .filter(|p| p.is_file());
    }
    let beside = fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path());
    let mut captures = beside.filter(|path| {
        path.extension().is_some_and(|extension| extension == "pcap" || extension == "pcapng")
    });
    captures.next().filter(|_| captures.next().is_none())
}
