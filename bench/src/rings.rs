//! `bench rings`: the ring between two threads of a request as `streamline run` plans it, compared
//! with fixed rings. [SL §5.4; Th §5.2.2], FEATURES F6, K5
//!
//! The request runs on threads, as for a user. Candidates change the plan: the number of entries,
//! which by default depends on the pressure, and T_b, the number of blocks after which a sleeping
//! reader is woken, which by default depends on the rate. Processor time is measured in addition to
//! the rate, because a request that seldom wakes its reader leaves processor time for other
//! programs. The mechanism alone is a bare crossing, in which batches of 64 pointers pass from one
//! thread to another.

use crate::harness::{BetterDirection, Samples, median, rows_of_samples};
use crate::options::Options;
use crate::request_run::plan_for_machine;
use crate::row::Row;
use crate::sentinel::CacheRoundTrip;
use abi::{Entry, RichPointer};
use buffer::crossing::{CrossingReader, CrossingWriter, RingConfig, crossing};
use buffer::scale::ScalingParameters;
use buffer::signal::Doorbell;
use engine::build::{PathOptions, RunSettings, build_with_options};
use engine::kernel::shared_attach_point::AttachPoints;
use engine::run::{StopConditions, run as go};
use pipeline::plan::{Machine, PlannedEdge, RingPlan};
use std::sync::Arc;

/// A candidate: its name, and the change that it makes to the planned ring.
type RingChange = (&'static str, fn(&mut RingPlan));

const CANDIDATES: [RingChange; 5] = [
    ("fixed 4096, T_b 32", |ring| fix_ring_parameters(ring, ring.entries, 32)),
    ("fixed 256, T_b 32", |ring| fix_ring_parameters(ring, ring.entries_min, 32)),
    ("fixed 4096, T_b adapts", |ring| ring.entries_min = ring.entries),
    ("fixed 16384, T_b adapts", |ring| (ring.entries, ring.entries_min) = (16_384, 16_384)),
    ("self-sizing, T_b adapts", |_| ()),
];
/// Number of blocks per run of a request.
const BLOCKS_PER_RUN: u64 = 4_000_000;
/// Number of batches that one run passes over a bare crossing, without a request.
const BATCHES_PER_RUN: u64 = 400_000;
/// Number of blocks per batch in a run of the mechanism alone. It is the same as in a request.
const BLOCKS_PER_BATCH: usize = 64;

fn fix_ring_parameters(ring: &mut RingPlan, entries: usize, signal_blocks: usize) {
    (ring.entries, ring.entries_min) = (entries, entries);
    (ring.signal_blocks, ring.signal_blocks_max) = (signal_blocks, signal_blocks);
}

pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    let allowed = sys::process::allowed_processors().map_err(|why| why.to_string())?;
    let one = allowed.get(..1).unwrap_or_default();
    let mut all = Vec::new();
    for (place, processors) in [("two processors", allowed.as_slice()), ("one processor", one)] {
        // The threads of the run inherit this affinity.
        sys::process::pin_to_processors(processors).map_err(|why| why.to_string())?;
        for size in [64, 1400] {
            let blocks = BLOCKS_PER_RUN * 64 / (64 + size / 4);
            let text = format!(
                "generate count={blocks} size={size} seq=yes | udp | match \"qqqq\" @thread1 |0 \
                 count @thread1"
            );
            all.extend(measure_request(
                &format!("line, {size} B, {place}"),
                &text,
                options.rounds,
            )?);
        }
        all.extend(measure_crossing(&format!("mechanism, {place}"), options.rounds));
    }
    sys::process::pin_to_processors(&allowed).map_err(|why| why.to_string())?;
    Ok(all)
}

/// Measures a request with each candidate: blocks per second, and processor time per block.
fn measure_request(name: &str, text: &str, rounds: usize) -> Result<Vec<Row>, String> {
    let (mut rates, mut costs) = (empty_samples(), empty_samples());
    let mut sentinels = Vec::new();
    for round in 0..=rounds {
        sentinels.push(CacheRoundTrip::measure());
        for (at, (_, change)) in CANDIDATES.iter().enumerate() {
            let (rate, cost) = run_and_measure_request(text, *change)?;
            // The first round is a warm-up.
            if round > 0 {
                rates[at].values.push(rate);
                costs[at].values.push(cost);
            }
        }
    }
    let sentinel = median(&sentinels);
    let mut all = rows_of_samples(
        ("rings", name, f64::NAN),
        ("Mblocks/s", BetterDirection::More),
        sentinel,
        &rates,
        &[],
    );
    all.extend(rows_of_samples(
        ("rings", name, f64::NAN),
        ("cpu ns/block", BetterDirection::Less),
        sentinel,
        &costs,
        &[],
    ));
    Ok(all)
}

fn empty_samples() -> Vec<Samples> {
    CANDIDATES.iter().map(|(name, _)| Samples { name, values: Vec::new() }).collect()
}

/// Runs a request. Returns its rate in millions of blocks per second, and its processor time in ns
/// per block.
pub(crate) fn run_and_measure_request(
    text: &str,
    change: fn(&mut RingPlan),
) -> Result<(f64, f64), String> {
    let mut plan = plan_for_machine(text, &Machine::example())?;
    for edge in &mut plan.edges {
        if let PlannedEdge::Ring(ring) = edge {
            change(ring);
        }
    }
    let paths = build_with_options(
        &plan,
        RunSettings::default(),
        &AttachPoints::default(),
        &PathOptions::default(),
    );
    let paths = paths.map_err(|why| why.to_string())?;
    let before = sys::clock::process_cpu_ns();
    let outcome = go(paths, StopConditions::default()).map_err(|why| why.to_string())?;
    let spent = sys::clock::process_cpu_ns().saturating_sub(before);
    if let Some(failure) = outcome.failures.first() {
        return Err(failure.to_string());
    }
    if let Some(imbalance) = outcome.ledger.imbalances().first() {
        return Err(imbalance.to_string());
    }
    let given: u64 = outcome.ledger.sources.iter().map(|(_, counts)| counts.given.blocks).sum();
    let given = given.max(1) as f64;
    Ok((given * 1e3 / outcome.elapsed_ns.max(1) as f64, spent as f64 / given))
}

/// Measures the mechanism alone: a crossing over which pointers pass without the bytes of blocks.
/// Compares a fixed ring with a self-sizing ring.
fn measure_crossing(name: &str, rounds: usize) -> Vec<Row> {
    let mut samples: Vec<Samples> =
        ["fixed 4096", "self-sizing"].map(|name| Samples { name, values: Vec::new() }).into();
    let mut sentinels = Vec::new();
    for round in 0..=rounds {
        sentinels.push(CacheRoundTrip::measure());
        for (scales, candidate) in samples.iter_mut().enumerate() {
            let rate = run_crossing(scales == 1);
            if round > 0 {
                candidate.values.push(rate);
            }
        }
    }
    let subject = ("rings", name, f64::NAN);
    rows_of_samples(
        subject,
        ("Mblocks/s", BetterDirection::More),
        median(&sentinels),
        &samples,
        &[],
    )
}

/// Passes batches over a crossing. Returns the rate in millions of blocks per second. If `scales`
/// is true, the crossing has a self-sizing ring.
fn run_crossing(scales: bool) -> f64 {
    let (near, far) = (Arc::new(Doorbell::new()), Arc::new(Doorbell::new()));
    let entries = if scales { 1024 } else { 4096 };
    let config = RingConfig { entries, ..RingConfig::default() };
    let Ok((writer, mut readers)) = crossing(&config, near.clone(), std::slice::from_ref(&far))
    else {
        return 0.0;
    };
    let Some(reader) = readers.pop() else { return 0.0 };
    let writer = if scales {
        writer.with_scaling(ScalingParameters::for_pointers(16 << 10, 256 << 10))
    } else {
        writer
    };
    let begin = sys::clock::monotonic_ns();
    let reading = std::thread::spawn(move || read_all(reader, &far));
    write_all(writer, &near);
    let read = reading.join().unwrap_or(0);
    read as f64 * 1e3 / sys::clock::monotonic_ns().saturating_sub(begin).max(1) as f64
}

fn write_all(mut writer: CrossingWriter, doorbell: &Doorbell) {
    let entry = Entry { pointer: RichPointer::hole(64), ..Entry::default() };
    let batch = [entry; BLOCKS_PER_BATCH];
    for _ in 0..BATCHES_PER_RUN {
        let mut rest = batch.as_slice();
        while let Ok(pushed) = writer.push(rest, &[])
            && pushed.put < rest.len()
        {
            rest = &rest[pushed.put..];
            if !writer.grow() {
                writer.wake_readers();
                doorbell.wait_until(0, || writer.free_entries(1).is_ok_and(|room| room > 0));
            }
        }
    }
}

fn read_all(mut reader: CrossingReader, doorbell: &Doorbell) -> u64 {
    while !reader.is_finished().unwrap_or(true) {
        doorbell.wait_until(0, || {
            reader.unread_entries().is_ok_and(|waiting| waiting > 0)
                || reader.is_finished().unwrap_or(true)
        });
        let _ = reader.release(BLOCKS_PER_BATCH);
    }
    reader.counts().blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f6_every_candidate_ring_delivers_all_blocks() {
        let text = "generate count=50000 size=64 seq=yes | udp | match \"qqqq\" @thread1 |0 count \
                    @thread1";
        for (name, change) in CANDIDATES {
            let (rate, cost) = run_and_measure_request(text, change).unwrap();
            assert!(rate > 0.0 && cost > 0.0, "{name}");
        }
    }
}
