//! `account`: writes the account of each flow: its two peers, the amount of data in each direction,
//! and the duration.
//!
//! The sink accepts all blocks, and writes one JSON object per line for each flow. A flow is a
//! session that a filter upstream has assigned or, for blocks without a session, a pair of
//! addresses and ports. A flow is written when its session ends, when it has been idle for the idle
//! time, when the path ends, or when the table is full. The memory is limited by the size of the
//! table. The report counts the flows that were written because the table was full. [SL §6.1]

mod flow_table;

use super::buffered_output::BufferedOutputFile;
use super::headers::Headers;
use super::json::EndpointFields;
use super::json_object::{add_member, write_line};
use super::line_repair::LineFormat;
use super::message::MessageRecord;
use super::recent_frames::RecentFrames;
use super::text_sink::{BlockFormatter, TextSink};
use crate::entry::{is_file_standard_output, standard_output_use};
use crate::timestamp_text::Rfc3339;
use crate::{Failure, OpenArguments, Origins, Sink, SinkEntry};
use abi::BlockFlags;
use filter::{Block, Description, Parameter, ParameterType, Report, Time};
use flow_table::{FlowKey, FlowTable};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use wire::flow::Direction;

/// Version of the output schema of `account`.
pub const SCHEMA_VERSION: u32 = 1;

/// Description of `account`, the sink that writes the accounts of flows.
pub const ACCOUNT: Description = Description {
    name: "account",
    summary: "write the account of each flow: peers, blocks, bytes, time",
    details: "\
Writes one JSON object per line for each flow: version (1), start and end (times of its first and
last block, RFC 3339 in UTC), blocks and bytes (in view, without lost ones) from the peer that
began, blocks_back and bytes_back to this peer, wire_bytes and wire_bytes_back (lengths of the
frames on the wire, each counted once), why it was written: end (its session has ended both ways),
idle (`idle=` without a block), full (the table had `flows=` others; the rest of the flow is another
line), stop (the path has ended). If known: origin, session, vlan, network, src, dst, proto,
src_port, dst_port.

Behind a filter of messages such as `http`, the blocks are descriptions and parts of messages, and
no block says that a session has ended: the flow is written when it is idle, or at the end.

A flow is a session if a filter such as `tcp` or `udp` has numbered them, otherwise all blocks
between two addresses and ports. Times are those of the blocks, so an idle flow is written when
another block comes. Appends to an existing file. Blocks without addresses and session are counted
in the report, as are flows that were cut short.",
    example: "replay web.pcap | tcp | account flows.jsonl",
    parameters: &[
        Parameter::with_default(
            "file",
            ParameterType::Path,
            "-",
            "the file to write; - is standard output",
        )
        .positional(),
        Parameter::table_size("flows", "65536", "maximum number of flows in memory"),
        Parameter::with_default(
            "idle",
            ParameterType::Duration,
            "60s",
            "time without a block that ends a flow",
        ),
    ],
    ..Description::SINK_DEFAULTS
};

/// The catalog entry of `account`.
pub const ENTRY: SinkEntry = SinkEntry::new(&ACCOUNT, open)
    .with_file_writes()
    .with_append_only(|given| !is_file_standard_output(given))
    .with_standard_output(standard_output_use);

/// Amounts of data in one direction of a flow: blocks, viewed bytes, and bytes on the wire.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    blocks: u64,
    /// Number of viewed bytes that were captured; bytes of holes do not count.
    bytes: u64,
    /// Sum of the lengths of the frames on the wire, in bytes. A frame with several views is
    /// counted once.
    wire_bytes: u64,
}

impl Traffic {
    fn add(&mut self, block: &Block<'_>, has_new_frame: bool) {
        self.blocks += u64::from(!block.is_end_marker());
        self.bytes += block.bytes().len() as u64;
        if has_new_frame {
            self.wire_bytes += u64::from(block.marks.wire_length);
        }
    }
}

/// The account of a flow, from its first block to the latest.
#[derive(Clone, Debug)]
struct FlowAccount {
    origin: u16,
    session: Option<u32>,
    endpoints: EndpointFields,
    /// True if `endpoints` come from the headers of a frame, false if they come from a description
    /// or are unknown.
    has_headers: bool,
    /// For a flow without a session, the direction of its first block, which counts as forward.
    /// `None` for a flow with a session, and before the first block.
    first: Option<Direction>,
    /// True for each direction in which the session has ended; forward first.
    ended: [bool; 2],
    start: Time,
    end: Time,
    forward: Traffic,
    backward: Traffic,
}

impl FlowAccount {
    /// Stores the addresses and ports of the flow. Uses the first block with headers and, until one
    /// arrives, a block with a message description. If `is_back`, exchanges source and destination.
    fn copy_endpoints(&mut self, block: &Block<'_>, headers: Option<&Headers<'_>>, is_back: bool) {
        if self.has_headers {
            return;
        }
        let described = || MessageRecord::from_block(block)?.flow();
        let endpoints = match headers {
            Some(_) => EndpointFields::from_headers(headers),
            None if self.endpoints.has_addresses() => return,
            None => described().map(EndpointFields::from_described_flow).unwrap_or_default(),
        };
        self.has_headers = headers.is_some();
        self.endpoints = if is_back { endpoints.reversed() } else { endpoints };
    }
}

/// A reason for writing the account of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum WriteCause {
    End,
    Idle,
    Full,
    Stop,
}

/// A line of the output of `account`, which describes one flow.
struct AccountLine<'f> {
    flow: &'f FlowAccount,
    origin: Option<&'f str>,
    why: WriteCause,
}

impl Serialize for AccountLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { flow, origin, why } = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("version", &SCHEMA_VERSION)?;
        map.serialize_entry("start", &Rfc3339(flow.start))?;
        map.serialize_entry("end", &Rfc3339(flow.end))?;
        map.serialize_entry("why", why)?;
        add_member(&mut map, "origin", *origin)?;
        add_member(&mut map, "session", flow.session)?;
        flow.endpoints.write_members(&mut map)?;
        map.serialize_entry("blocks", &flow.forward.blocks)?;
        map.serialize_entry("bytes", &flow.forward.bytes)?;
        map.serialize_entry("wire_bytes", &flow.forward.wire_bytes)?;
        map.serialize_entry("blocks_back", &flow.backward.blocks)?;
        map.serialize_entry("bytes_back", &flow.backward.bytes)?;
        map.serialize_entry("wire_bytes_back", &flow.backward.wire_bytes)?;
        map.end()
    }
}

#[derive(Debug)]
struct AccountFormatter {
    origins: Origins,
    flows: FlowTable<FlowAccount>,
    frames: RecentFrames,
    cut_short: u64,
    /// Number of blocks that belong to no flow.
    blocks_without_flow: u64,
}

fn open(opening: &OpenArguments<'_>) -> Result<Box<dyn Sink>, Failure> {
    let number = |name: &str| opening.arguments.number(name).unwrap_or_default();
    let flows_max = usize::try_from(number("flows")).unwrap_or(usize::MAX);
    let file = opening.arguments.text("file").unwrap_or("-");
    let out = BufferedOutputFile::append(
        file,
        LineFormat::Json,
        (opening.rollback_log, opening.readers),
    )?
    .with_stop_limit(&opening.stopped);
    let formatter = AccountFormatter {
        origins: opening.origins.clone(),
        flows: FlowTable::new(flows_max, number("idle"), opening.live),
        frames: RecentFrames::new(opening),
        cut_short: 0,
        blocks_without_flow: 0,
    };
    Ok(Box::new(TextSink { formatter, out }))
}

impl BlockFormatter for AccountFormatter {
    fn append(&mut self, block: &Block<'_>, out: &mut BufferedOutputFile) -> Result<(), Failure> {
        let now = block.context.time;
        while let Some(idle) = self.flows.take_idle_flow(block.context.origin, now) {
            self.write(&idle, WriteCause::Idle, out)?;
        }
        let session = Some(block.context.session).filter(|session| *session != 0);
        let headers = Headers::parse_frame(block).or_else(|| Headers::parse_derived_block(block));
        let pair = headers.as_ref().and_then(|headers| headers.flow).map(|flow| flow.normalized());
        let key = match (session, pair) {
            (Some(session), _) => FlowKey::Session(block.context.origin, session),
            (None, Some((pair, _))) => FlowKey::Endpoints(block.context.origin, pair),
            (None, None) => {
                self.blocks_without_flow += 1;
                return Ok(());
            }
        };
        if !self.flows.contains(&key) {
            if block.pointer.is_hole() {
                // A gap in, or the end of, a session whose flow has been written already, because
                // it was idle or cut short.
                return Ok(());
            }
            if let Some(oldest) = self.flows.evict_flow_if_full() {
                self.cut_short += 1;
                self.write(&oldest, WriteCause::Full, out)?;
            }
            self.flows.add(key, now, new_flow_account(block, session));
        }
        let has_new_frame = block.marks.is_frame() && self.frames.add(block);
        let Some(flow) = self.flows.record_block(&key, now) else { return Ok(()) };
        flow.end = flow.end.max(now);
        let is_back = match pair {
            // Without a session, the sender of the first block is treated as the initiator.
            Some((_, direction)) if session.is_none() => {
                *flow.first.get_or_insert(direction) != direction
            }
            _ => block.context.flags.contains(BlockFlags::BACKWARD),
        };
        flow.copy_endpoints(block, headers.as_ref(), is_back && session.is_some());
        let traffic = if is_back { &mut flow.backward } else { &mut flow.forward };
        traffic.add(block, has_new_frame);
        if session.is_some() && block.context.flags.contains(BlockFlags::SESSION_END) {
            flow.ended[usize::from(is_back)] = true;
        }
        let has_ended = flow.ended == [true; 2];
        match has_ended.then(|| self.flows.remove(&key)).flatten() {
            Some(ended) => self.write(&ended, WriteCause::End, out),
            None => Ok(()),
        }
    }

    fn append_remainder(&mut self, out: &mut BufferedOutputFile) -> Result<(), Failure> {
        while let Some(flow) = self.flows.take_oldest_flow() {
            self.write(&flow, WriteCause::Stop, out)?;
        }
        Ok(())
    }

    fn report(&self, out: &BufferedOutputFile) -> Report {
        let rows = Report::from_rows([("flows", out.items_written())]).with_nonzero_rows([
            ("flows cut short: the table was full", self.cut_short),
            ("blocks without addresses and session", self.blocks_without_flow),
        ]);
        let mut report = out.report(rows, "line");
        if self.cut_short > 0 {
            report.remarks.push(format!(
                "flows cut short, because the table of `flows=` entries was full: {}; their lines \
                 contain `full`",
                self.cut_short
            ));
        }
        report
    }
}

impl AccountFormatter {
    fn write(
        &mut self,
        flow: &FlowAccount,
        why: WriteCause,
        out: &mut BufferedOutputFile,
    ) -> Result<(), Failure> {
        let origin = self.origins.distinguishing_name(flow.origin);
        write_line(out, &AccountLine { flow, origin, why })
    }
}

/// Creates the account of the flow to which `block` belongs. Does not count the block.
fn new_flow_account(block: &Block<'_>, session: Option<u32>) -> FlowAccount {
    FlowAccount {
        origin: block.context.origin,
        session,
        endpoints: EndpointFields::default(),
        has_headers: false,
        first: None,
        ended: [false; 2],
        start: block.context.time,
        end: block.context.time,
        forward: Traffic::default(),
        backward: Traffic::default(),
    }
}

#[cfg(test)]
mod tests;
