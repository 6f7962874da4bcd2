//! The kernel as the producer: frames of a flood that a program at traffic control writes into a
//! kernel ring, with a bell after T_b of them, whether the reader sleeps or not. [SL fig. 9]
//!
//! A bell here is an interrupt that the kernel sends to itself and the wake of a process, so that
//! few frames for a bell cost far more than the frames. The rule of lines is measured beside: a
//! bell after 32 frames, but at most one in 5 ms.

use super::EVERY;
use crate::flood::{Flood, Host};
use crate::harness::{Candidate, interleave};
use crate::row::Row;
use crate::tap::{NEVER, Reader, Tap, WakePolicy, Wakeup, usual};
use std::cell::RefCell;
use sys::bpf::RingsLayout;

/// Frames of a sample, those that are sent before, unmeasured, and how many are sent before the
/// records of bells are taken out.
const FRAMES: usize = 20_000;
const BEFORE: usize = 1_000;
const BUNCH: usize = 2_000;
/// Bytes of a ring: nothing is ever written over here.
const RING: u32 = 4 << 20;
/// The rule of lines.
const LIMITED: &str = "T_b 32, 5 ms";

/// The wake policy of rings of this shape.
type When = Box<dyn Fn(RingsLayout) -> WakePolicy>;

/// Both lines of the figure.
pub(super) fn figure(rounds: usize, processors: usize) -> Result<Vec<Row>, String> {
    if testkit::need::bpf().is_none() || testkit::need::net_admin().is_none() {
        eprintln!("left out: the kernel as producer: it needs root");
        return Ok(Vec::new());
    }
    let flood = RefCell::new(Flood::new(64, 1, Host::Ignores)?);
    let mut all = Vec::new();
    for (processor, name) in [(0, "kernel ring, one core"), (1, "kernel ring, two cores")] {
        if processor >= processors {
            continue;
        }
        let flood = &flood;
        let candidate = move |(name, when): (&'static str, When)| Candidate {
            name,
            measure: Box::new(move || sample(&mut flood.borrow_mut(), processor, &when)),
        };
        let every = EVERY.iter().map(|(every, name)| {
            let blocks = u32::try_from(*every).unwrap_or(NEVER);
            let (wait_ns, bytes, most, wakes) = (NEVER, NEVER, NEVER, Wakeup::Everyone);
            let bell = WakePolicy { blocks, apart_ns: 0, wait_ns, bytes, most, wakes };
            (*name, Box::new(move |_| bell) as When)
        });
        let limited: (_, When) = (LIMITED, Box::new(usual));
        let candidates = every.chain([limited]).map(candidate).collect();
        let subject = ("moderation", name, f64::NAN);
        let rows = interleave(subject, "kframes/s", rounds, candidates, &[])?;
        all.extend(rows.into_iter().map(|row| placed(row, name)));
    }
    Ok(all)
}

/// The same row as a point of its line.
fn placed(row: Row, line: &'static str) -> Row {
    let Some((every, name)) = EVERY.iter().find(|(_, name)| *name == row.candidate) else {
        return row;
    };
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let x = *every as f64;
    Row { row: format!("{}, {name}", row.row), candidate: line, x, ..row }
}

/// Thousands of frames per second that one sends while another one reads them all.
fn sample(flood: &mut Flood, processor: usize, when: &When) -> Result<f64, String> {
    let mut tap = Tap::new(RING, 2048, when)?;
    let reader = Reader::start(&tap, processor)?;
    let device = flood.device()?;
    tap.attach(&flood.pair.server, device)?;
    flood.send(BEFORE)?;
    reader.seen(BEFORE as u64)?;
    let mut ns = 0;
    for _ in 0..FRAMES / BUNCH {
        // A bell whose records nobody takes out falls silent.
        tap.rewind();
        ns += flood.send(BUNCH)?;
    }
    let seen = reader.seen((BEFORE + FRAMES) as u64)?;
    if seen.lost > 0 {
        return Err(format!("{} frames were lost in a ring that never comes round", seen.lost));
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
    Ok(FRAMES as f64 * 1e6 / ns.max(1) as f64)
}
