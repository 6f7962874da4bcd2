//! Measurements with the kernel as the producer: a tc program writes the frames of a flood into a
//! kernel ring and sends a doorbell every T_b frames, even if the reader is awake. [SL fig. 9]
//!
//! Each doorbell costs an interrupt that the kernel sends to itself and the wakeup of a process.
//! With few frames per doorbell, this is far more than the cost of the frames. The wake policy of
//! requests is measured too: a doorbell after 32 frames, but at most one in 5 ms.

use super::BLOCKS_PER_NOTIFICATION;
use crate::flood::{Flood, ReceivingHost};
use crate::harness::{Candidate, measure_interleaved_rows};
use crate::row::Row;
use crate::tap::{
    Tap, TapReader, UNREACHABLE_LIMIT, WakePolicy, WakeupTarget, policy_for_several_readers,
};
use std::cell::RefCell;
use sys::bpf::RingsLayout;

/// Number of frames sent in one sample, that is, in one measurement of one wake policy.
const FRAMES_PER_SAMPLE: usize = 20_000;
/// Number of frames sent for warm-up before a sample.
const WARM_UP_FRAMES: usize = 1_000;
/// Number of frames sent between two drains of the doorbells.
const FRAMES_PER_DRAIN: usize = 2_000;
/// Ring size in bytes, so large that no record is overwritten.
const RING_SIZE: u32 = 4 << 20;
/// The name, in the result rows, of the wake policy that requests use.
const DEFAULT_POLICY_NAME: &str = "T_b 32, 5 ms";

/// A function that returns a wake policy for the given layout of the rings.
type PolicyForLayout = Box<dyn Fn(RingsLayout) -> WakePolicy>;

/// Measures the curves of the thesis's figure 5.2 with the kernel as the writer: with the reader on
/// the writer's core, and on another core.
pub(super) fn measure_kernel_curves(rounds: usize, processors: usize) -> Result<Vec<Row>, String> {
    if testkit::need::require_bpf().is_none() || testkit::need::require_net_admin().is_none() {
        eprintln!("left out: the kernel as producer: it needs root");
        return Ok(Vec::new());
    }
    let flood = RefCell::new(Flood::new(64, 1, ReceivingHost::Ignores)?);
    let mut all = Vec::new();
    for (processor, name) in [(0, "kernel ring, one core"), (1, "kernel ring, two cores")] {
        if processor >= processors {
            continue;
        }
        let flood = &flood;
        let candidate = move |(name, when): (&'static str, PolicyForLayout)| Candidate {
            name,
            measure: Box::new(move || {
                measure_frame_rate(&mut flood.borrow_mut(), processor, &when)
            }),
        };
        let every = BLOCKS_PER_NOTIFICATION.iter().map(|(every, name)| {
            let blocks = u32::try_from(*every).unwrap_or(UNREACHABLE_LIMIT);
            let (wait_ns, bytes, most, wakes) =
                (UNREACHABLE_LIMIT, UNREACHABLE_LIMIT, UNREACHABLE_LIMIT, WakeupTarget::Everyone);
            let policy =
                WakePolicy { blocks, apart_ns: 0, wait_ns, bytes, frames: most, target: wakes };
            (*name, Box::new(move |_| policy) as PolicyForLayout)
        });
        let limited: (_, PolicyForLayout) =
            (DEFAULT_POLICY_NAME, Box::new(policy_for_several_readers));
        let candidates = every.chain([limited]).map(candidate).collect();
        let subject = ("moderation", name, f64::NAN);
        let rows = measure_interleaved_rows(subject, "kframes/s", rounds, candidates, &[])?;
        all.extend(rows.into_iter().map(|row| curve_point(row, name)));
    }
    Ok(all)
}

/// Converts a row to a point of the curve `line`. The number of frames per doorbell becomes the x
/// value of the point. Returns a row without such a number unchanged.
fn curve_point(row: Row, line: &'static str) -> Row {
    let Some((every, name)) =
        BLOCKS_PER_NOTIFICATION.iter().find(|(_, name)| *name == row.candidate)
    else {
        return row;
    };
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let x = *every as f64;
    Row { row: format!("{}, {name}", row.row), candidate: line, x, ..row }
}

/// Returns the rate in thousands of frames per second of the sender's processor time. Fails if a
/// frame is lost.
fn measure_frame_rate(
    flood: &mut Flood,
    processor: usize,
    when: &PolicyForLayout,
) -> Result<f64, String> {
    let mut tap = Tap::new(RING_SIZE, 2048, when)?;
    let reader = TapReader::start(&tap, processor)?;
    let device = flood.receiving_device_index()?;
    tap.attach(&flood.pair.server, device)?;
    flood.send(WARM_UP_FRAMES)?;
    reader.wait_for_records(WARM_UP_FRAMES as u64)?;
    let mut ns = 0;
    for _ in 0..FRAMES_PER_SAMPLE / FRAMES_PER_DRAIN {
        // The tap sends no notification until the doorbell is drained.
        tap.drain_doorbell();
        ns += flood.send(FRAMES_PER_DRAIN)?;
    }
    let observed = reader.wait_for_records((WARM_UP_FRAMES + FRAMES_PER_SAMPLE) as u64)?;
    if observed.lost > 0 {
        return Err(format!("{} frames were lost in a ring that never comes round", observed.lost));
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
    Ok(FRAMES_PER_SAMPLE as f64 * 1e6 / ns.max(1) as f64)
}
