//! Measurement of filters that are called directly. Each filter is called for a number of blocks
//! before the next filter is called: for part of a batch, a full batch of 64, or several batches
//! with 256 or 1024 blocks in total. Without the walk, the ledger and the source, only the calls
//! and their memory accesses remain.

use crate::harness::Candidate;
use crate::request_run::plan_request;
use abi::{BlockMetadata, Class, DbufId, Entry, Extent, Marks, RichPointer};
use filter::{
    Batch, BatchMemory, Block, ClassifyContext, Counts, FillFn, Filter, Gateway, LANES,
    LaneContext, OldBytes, PinId,
};
use std::cell::RefCell;
use std::rc::Rc;
use testkit::Frame;
use wire::link::LinkType;

/// Numbers of blocks for which a filter is called before the next filter is called, each with its
/// name in the result rows.
const BATCH_SIZES: [(usize, &str); 7] =
    [(64, "64"), (32, "32"), (16, "16"), (8, "8"), (1, "1"), (256, "256"), (1024, "1024")];
/// Number of blocks in a pass, each at a different address.
const BLOCKS_PER_PASS: usize = 1_024;
/// Maximum number of blocks in a measurement.
const MEASURED_BLOCKS_MAX: usize = 65_536;
/// Approximate number of bytes that a measurement of long blocks reads. A measurement has at least
/// one pass.
const MEASURED_BYTES: usize = 256 << 20;

/// Returns a candidate for each batch size. The candidate calls the given filters for blocks of
/// `length` bytes.
pub(super) fn batch_size_candidates(
    filters: &str,
    length: u64,
) -> Result<Vec<Candidate<'static>>, String> {
    let bench = Rc::new(RefCell::new(HandWrittenWalk::new(filters, length)?));
    Ok(BATCH_SIZES
        .map(|(blocks, name)| {
            let bench = Rc::clone(&bench);
            Candidate { name, measure: Box::new(move || bench.borrow_mut().measure_rate(blocks)) }
        })
        .into())
}

struct HandWrittenWalk {
    filters: Vec<(Filter, Counts)>,
    memory: Vec<u8>,
    entries: Vec<Entry>,
    /// Memory for batches, which is reused for each batch, as in a space.
    batch_memory: Vec<BatchMemory>,
}

impl HandWrittenWalk {
    fn new(text: &str, length: u64) -> Result<Self, String> {
        let plan = plan_request(&format!("generate | {text} discard"))?;
        let mut filters = Vec::new();
        for used in plan.graph.nodes_with_ids().filter_map(|(_, node)| node.filter()) {
            // Skips sources and sinks.
            let Some(make) = used.description.constructor else { continue };
            let filter = make(&used.arguments).map_err(|mistake| mistake.to_string())?;
            let known = (used.description.reasons.len(), used.description.counters.len());
            filters.push((filter, Counts::new(known.0, known.1)));
        }
        let length = usize::try_from(length).map_err(|why| why.to_string())?;
        let headers = Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1").udp(10_000, 9, &[]).len();
        let payload = vec![0x55; length.saturating_sub(headers)];
        let frame = Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1").udp(10_000, 9, &payload);
        let dbuf = DbufId::new(1).ok_or("1 is no number of a dbuf")?;
        let bytes = u32::try_from(frame.len()).map_err(|why| why.to_string())?;
        let entry = |number: usize| {
            let place = Extent::new((number * frame.len()) as u64, bytes);
            let marks = Marks::frame(LinkType::ETHERNET.0, bytes, bytes);
            Entry::new(RichPointer::new(dbuf, place, Class::YES), BlockMetadata::default(), marks)
        };
        let entries = (0..BLOCKS_PER_PASS).map(entry).collect();
        Ok(Self {
            filters,
            memory: frame.repeat(BLOCKS_PER_PASS),
            entries,
            batch_memory: Vec::new(),
        })
    }

    /// Returns the rate in millions of blocks per second with this batch size.
    fn measure_rate(&mut self, at_once: usize) -> Result<f64, String> {
        let passes =
            (MEASURED_BYTES / self.memory.len()).clamp(1, MEASURED_BLOCKS_MAX / BLOCKS_PER_PASS);
        let begin = sys::clock::monotonic_ns();
        for _ in 0..passes {
            self.run_pass(at_once)?;
        }
        let elapsed = sys::clock::monotonic_ns() - begin;
        Ok((passes * BLOCKS_PER_PASS) as f64 * 1e3 / elapsed as f64)
    }

    fn run_pass(&mut self, at_once: usize) -> Result<(), String> {
        let Self { filters, memory, entries, batch_memory } = self;
        let dbuf = entries.first().map(|entry| entry.pointer.dbuf()).ok_or("no blocks")?;
        for group in entries.chunks(at_once) {
            let mut taken: Vec<Batch<'_>> = Vec::with_capacity(at_once.div_ceil(LANES));
            for some in group.chunks(LANES) {
                let mut room = batch_memory.pop().unwrap_or_default();
                room.columns.extend(&mut some.iter().copied());
                let batch = Batch::from_segment(room, dbuf, 0, memory);
                taken.push(batch.map_err(|_| "blocks do not lie near each other")?);
            }
            for (filter, counts) in &mut *filters {
                for batch in &mut taken {
                    call_filter(filter, counts, batch)?;
                }
            }
            batch_memory.extend(taken.into_iter().map(Batch::into_memory));
        }
        Ok(())
    }
}

/// Calls a filter for a batch, as a space does. Fails for a kind of filter that needs services of a
/// space.
fn call_filter<'a>(
    filter: &mut Filter,
    counts: &mut Counts,
    batch: &mut Batch<'a>,
) -> Result<(), String> {
    match filter {
        Filter::Statistics(filter) => filter.record(batch.metadata_view(), 0),
        Filter::Lanes(filter) => {
            filter.process(
                batch,
                &mut LaneContext::new(ClassifyContext::new(0, counts), &mut NullSpace),
            );
        }
        Filter::Edit(_) | Filter::Stream(_) => {
            return Err(format!("{filter:?} needs more of a space than there is by hand"));
        }
    }
    Ok(())
}

/// A space that provides no services to filters, for calls outside a path. All bytes are present,
/// and no block is held or edited.
struct NullSpace;

impl<'a> Gateway<'a> for NullSpace {
    fn frame(&self, _: &Entry) -> &'a [u8] {
        &[]
    }

    fn complete_block(&mut self, block: Block<'a>) -> Option<Block<'a>> {
        Some(block)
    }

    fn pin(&mut self, _: &Block<'a>) -> Option<(Entry, PinId)> {
        None
    }

    fn unpin(&mut self, _: PinId) {}

    fn append(&mut self, _: usize, _: &mut FillFn<'_>) -> Option<(RichPointer, &'a [u8])> {
        None
    }

    fn edit(
        &mut self,
        _: &Block<'a>,
        _: OldBytes,
        _: &mut dyn FnMut(&mut [u8]),
    ) -> Option<(RichPointer, &'a [u8])> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k2_every_filter_receives_all_blocks_at_any_batch_size() {
        for (at_once, name) in BATCH_SIZES {
            let mut bench = HandWrittenWalk::new("ipproto |all hist of=length |all", 64).unwrap();
            bench.run_pass(at_once).unwrap();
            let [_, (Filter::Statistics(hist), _)] = &mut *bench.filters else {
                panic!("two filters, the second of which counts")
            };
            let counted = hist.report().rows.first().map(|(_, blocks)| *blocks);
            assert_eq!(counted, Some(BLOCKS_PER_PASS as u64), "{name}");
        }
        let why = HandWrittenWalk::new("tcp |all", 64).unwrap().run_pass(1).unwrap_err();
        assert!(why.contains("needs more"), "{why}");
    }
}
