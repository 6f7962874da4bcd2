//! The sinks `user` and `socket`. Other programs open them by name and read their blocks.
//!
//! The viewed bytes of each block become one block of the stream. Every reader has its own
//! position, and starts with the first block that is written after the reader has opened the name.
//! Unless the request specifies otherwise, a block that arrives while there is no reader, or no
//! room in the ring, is dropped and counted.

use super::ring::ring_config;
use super::{SIZE_PARAMETER, access_list, open_failure};
use crate::{DropReason, Failure, OpenArguments, RingState, Sink, SinkEntry};
use buffer::name::{Address, NameHost, ReaderLimits};
use buffer::stream::{Output, WakingOverrides};
use buffer::{Fault, OverflowPolicy};
use filter::{
    Amount, Batch, Block, Description, Parameter, ParameterType, Report, StateFacts, Time,
    WorkerRule,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Description of `user`, the sink that other programs read as a stream of blocks.
pub const USER: Description = Description {
    name: "user",
    summary: "offer the blocks to programs that open them by name",
    details: "\
Writes the bytes in view to a ring that other programs open by name and read at their own pace:
`streamline cat NAME` in a shell, `streamline_open(\"NAME\", STREAMLINE_READ)` in C, `NamedReader`
in Rust; `UID/NAME` for another user. Any number may read, as far as `mode` permits: 600 this user
alone, 640 the group, 644 everybody. Users who may not read a capture file never get its frames. A
reader gets blocks written after it opened the ring, and may leave or die without harm to others.

`full` decides about a block for which a slow reader leaves no room: `drop` counts it (`reader too
slow`), `overwrite` replaces the oldest block and reports the loss to that reader, and `wait` waits
for the reader, and also for the first one, so that nothing is lost. Without readers, blocks are
dropped and counted (`no reader`), unless `full=wait`. Holes are dropped (`never seen`). A block
longer than half of the ring is written in parts, each of which is a block for readers; if the first
of them have been written when there is no room for the next, readers have the beginning, and the
block is counted as `cut short`.

With `full=wait` and no `size` the ring grows from 1 MB while its readers are late, within the
caches of the machine; otherwise its size is fixed, because it decides which blocks are lost.

The name belongs to this process and its network namespace, and is removed with it.",
    example: "replay web.pcap | bpf \"tcp\" | user name=tcp_frames",
    state: StateFacts::NONE.with_worker_rule(|_| {
        WorkerRule::Differs(
            "a name belongs to one ring, which one process writes",
            WorkerRule::DEFAULT_HINT,
        )
    }),
    parameters: &[
        Parameter::with_default(
            "name",
            ParameterType::Name,
            "user",
            "the name by which programs open the ring",
        )
        .positional(),
        MODE_PARAMETER,
        FULL_PARAMETER,
        SIZE_PARAMETER,
    ],
    ..Description::SINK_DEFAULTS
};

/// Description of `socket`, the sink that other programs read like a socket.
pub const SOCKET: Description = Description {
    name: "socket",
    summary: "offer the blocks as the receiving end of a socket, by name",
    details: "\
Acts as the receiving end of a socket. Like `user`, it writes the bytes in view, for instance the
data of datagrams after `udp`, to a ring that programs open by `name`. `export=no` would hide it
from all programs, and is refused. The sending end is `buffer NAME |all tx INTERFACE`.",
    example: "rx lo | udp | dport |53 socket export=yes name=rxport_53",
    parameters: &[
        Parameter::required(
            "name",
            ParameterType::Name,
            "the name by which programs open the ring",
        ),
        Parameter::with_default(
            "export",
            ParameterType::OneOf(&["yes"]),
            "yes",
            "programs may open the ring",
        ),
        MODE_PARAMETER,
        FULL_PARAMETER,
        SIZE_PARAMETER,
    ],
    ..USER
};

const MODE_PARAMETER: Parameter = Parameter::with_default(
    "mode",
    ParameterType::OneOf(&["600", "640", "644"]),
    "600",
    "who may read: you alone, your group, everybody",
);

const FULL_PARAMETER: Parameter = Parameter::with_default(
    "full",
    ParameterType::OneOf(&["drop", "overwrite", "wait"]),
    "drop",
    "what happens to a block for which a slow reader leaves no room",
);

/// Drop reason for blocks that arrived while no reader was connected.
const NO_READER_REASON: DropReason = DropReason::Named("no reader");
/// Drop reason for blocks that did not fit in the ring because a reader was too slow.
const READER_TOO_SLOW_REASON: DropReason = DropReason::Named("reader too slow");
/// Drop reason for blocks of which readers have the beginning only.
const CUT_SHORT_REASON: DropReason = DropReason::Named("cut short");

/// Interval between checks for a stop request while the sink waits for readers.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum time for which the sink of a stopped path waits for a reader that makes no progress.
const STALL_MAX: Duration = Duration::from_secs(1);

/// A `user` or `socket` sink, which writes to a ring that other programs open by name.
struct NamedSink {
    /// Thread that admits the readers that open the sink by name.
    host: NameHost,
    output: Option<Output>,
    address: Address,
    waits: bool,
    stopped: Arc<AtomicBool>,
    /// Time since which the sink of a stopped path has waited for room while no reader made
    /// progress; `None` while the sink is not waiting or the path is running.
    idle_since: Option<Instant>,
    written: Amount,
    unread: Amount,
    refused: Amount,
    cut: Amount,
    holes: Amount,
    /// Highest number of concurrent readers of the ring so far.
    readers_max: usize,
    overwrites: bool,
    /// Size of the ring to which the sink writes, at the time when the sink finished; `None` before
    /// that.
    last_ring: Option<RingState>,
}

/// Outcome of writing a block to the ring of a `user` or `socket` sink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WriteOutcome {
    Written,
    NoReader,
    TooSlow,
    /// Some pieces of the block were written, and then there was no room for the next one.
    CutShort,
}

/// The catalog entry of `user`.
pub const USER_ENTRY: SinkEntry = SinkEntry::new(&USER, open);
/// The catalog entry of `socket`.
pub const SOCKET_ENTRY: SinkEntry = SinkEntry::new(&SOCKET, open);

/// Opens the sink `user` or `socket`.
fn open(opening: &OpenArguments<'_>) -> Result<Box<dyn Sink>, Failure> {
    let arguments = opening.arguments;
    let name = arguments.text("name").unwrap_or_default();
    let used_up = || {
        Failure::new(
            "create",
            name,
            "the ids of dbufs in this process tree are used up: start the program again",
        )
    };
    let id = buffer::ids::allocate_id().ok_or_else(used_up)?;
    let config = ring_config(id, arguments);
    let policy = config.ring.policy;
    let wrong = |error| open_failure("create", name, &error);
    let address = Address::for_current_user(name).map_err(wrong)?;
    let host = NameHost::open().map_err(|error| Failure::new("create", name, error))?;
    let access = access_list(arguments, opening.readers);
    let mut output = host.create(name, access, &config, ReaderLimits::default()).map_err(wrong)?;
    output.set_waking_overrides(WakingOverrides {
        sleep_limit: Some(STOP_CHECK_INTERVAL),
        ..WakingOverrides::default()
    });
    Ok(Box::new(NamedSink {
        host,
        output: Some(output),
        address,
        waits: policy == OverflowPolicy::Block,
        stopped: Arc::clone(&opening.stopped),
        idle_since: None,
        written: Amount::default(),
        unread: Amount::default(),
        refused: Amount::default(),
        cut: Amount::default(),
        holes: Amount::default(),
        readers_max: 0,
        overwrites: policy == OverflowPolicy::Overwrite,
        last_ring: None,
    }))
}

/// Returns the report of a sink that writes to a ring: the amount written, and the maximum number
/// of concurrent readers.
pub(crate) fn ring_report(written: Amount, readers_max: usize) -> Report {
    let rows = [("blocks", written.blocks), ("bytes", written.bytes)];
    Report::from_rows(rows).with_nonzero_rows([("readers at most", readers_max as u64)])
}

impl Sink for NamedSink {
    fn consume(&mut self, batch: &Batch<'_>, _now: Time) -> Result<(), Failure> {
        for (_, block) in batch.blocks() {
            self.write_block(&block)?;
        }
        self.on_idle()
    }

    fn on_idle(&mut self) -> Result<(), Failure> {
        if let Some(output) = &mut self.output {
            output.flush();
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        self.last_ring = self.ring_state();
        let grown = self.last_ring.as_ref().filter(|ring| ring.grown + ring.shrunk > 0);
        // Readers consume the remaining blocks and then reach the end of the stream.
        self.output = None;
        let rows = ring_report(self.written, self.readers_max)
            .with_nonzero_rows([("bytes of the ring", grown.map_or(0, |ring| ring.bytes))]);
        let done = format!("written for the readers of {}", self.address);
        let mut report = rows.with_delivered_items(self.written.blocks, "block", done);
        if self.overwrites && self.written.blocks > 0 {
            report.remarks.push("slow readers are notified of overwritten blocks".to_owned());
        }
        Ok(report)
    }

    fn amount_written(&self) -> Option<Amount> {
        Some(self.written)
    }

    fn ring_state(&self) -> Option<RingState> {
        let Some(output) = &self.output else { return self.last_ring.clone() };
        let bytes = output.capacity() as u64;
        Some(output.sizing_state().map_or_else(
            || RingState { bytes, ..RingState::default() },
            |scale| {
                let (grown, shrunk, because) =
                    (scale.grown, scale.shrunk, scale.last_change_reason());
                RingState { bytes, grown, shrunk, because }
            },
        ))
    }

    fn drops_by_reason(&self) -> Vec<(DropReason, Amount)> {
        let all = [
            (NO_READER_REASON, self.unread),
            (READER_TOO_SLOW_REASON, self.refused),
            (CUT_SHORT_REASON, self.cut),
            (DropReason::Hole, self.holes),
        ];
        all.into_iter().filter(|(_, amount)| amount.blocks > 0).collect()
    }
}

impl NamedSink {
    fn write_block(&mut self, block: &Block<'_>) -> Result<(), Failure> {
        let bytes = block.bytes();
        if (bytes.len() as u64) < u64::from(block.length()) {
            self.holes.add_block(block.length());
            return Ok(());
        }
        let outcome =
            if bytes.is_empty() { WriteOutcome::Written } else { self.write_bytes(bytes)? };
        let amount = match outcome {
            WriteOutcome::Written => &mut self.written,
            WriteOutcome::NoReader => &mut self.unread,
            WriteOutcome::TooSlow => &mut self.refused,
            WriteOutcome::CutShort => &mut self.cut,
        };
        amount.add_block(block.length());
        Ok(())
    }

    /// Writes the bytes of a block, split into several blocks if they exceed the ring's maximum
    /// block length.
    fn write_bytes(&mut self, bytes: &[u8]) -> Result<WriteOutcome, Failure> {
        if !self.await_reader()? {
            return Ok(WriteOutcome::NoReader);
        }
        let Some(length_max) = self.output.as_ref().map(Output::block_length_max) else {
            return Ok(WriteOutcome::NoReader);
        };
        let mut without_room = WriteOutcome::TooSlow;
        for piece in bytes.chunks(length_max.max(1)) {
            if self.waits && !self.wait_for_room(piece.len())? {
                return Ok(without_room);
            }
            let Some(output) = &mut self.output else { return Ok(WriteOutcome::NoReader) };
            match output.write(piece) {
                Ok(true) => without_room = WriteOutcome::CutShort,
                Ok(false) => return Ok(without_room),
                Err(Fault::Abandoned) => return Ok(WriteOutcome::NoReader),
                Err(fault) => return Err(self.failure(fault)),
            }
        }
        Ok(WriteOutcome::Written)
    }

    /// Returns true if there is a reader. With `full=wait`, blocks until there is a reader or the
    /// path is stopped.
    fn await_reader(&mut self) -> Result<bool, Failure> {
        loop {
            let Some(output) = &mut self.output else { return Ok(false) };
            let readers = output.present_reader_count();
            self.readers_max = self.readers_max.max(readers);
            if readers > 0 || !self.waits || self.stopped.load(Ordering::Acquire) {
                return Ok(readers > 0);
            }
            let waited = output.wait_for_reader(Some(STOP_CHECK_INTERVAL));
            waited.map_err(|error| Failure::new("wait for", "a reader", error))?;
        }
    }

    /// Blocks until a block of this length fits or all readers have left, and then returns true.
    /// Returns false if the path is stopped and no reader makes progress for [`STALL_MAX`].
    fn wait_for_room(&mut self, length: usize) -> Result<bool, Failure> {
        loop {
            let Some(output) = &mut self.output else { return Ok(false) };
            let ready = output.is_ready(length).and_then(|ready| {
                Ok(ready || output.wait(length)? == buffer::stream::WaitResult::Ready)
            });
            match ready {
                Ok(true) => {
                    self.idle_since = None;
                    return Ok(true);
                }
                // The last reader has left, so the ring has room and the block is not needed.
                Err(Fault::Abandoned) => return Ok(true),
                Err(fault) => return Err(self.failure(fault)),
                Ok(false) => {}
            }
            if self.stopped.load(Ordering::Acquire) {
                let since = *self.idle_since.get_or_insert_with(Instant::now);
                if since.elapsed() > STALL_MAX {
                    return Ok(false);
                }
            }
        }
    }

    fn failure(&self, fault: Fault) -> Failure {
        Failure::new("write to", self.address.to_string(), fault)
    }
}

impl Drop for NamedSink {
    fn drop(&mut self) {
        // Ends the stream before its host ends, so that the name is free again when this function
        // returns.
        self.output = None;
        self.host.withdraw(&self.address);
    }
}
