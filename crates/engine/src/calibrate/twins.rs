//! Costs of twins in the kernel: each alone, by test runs, beside a program that does nothing.
//!
//! Those that change frames do it where frames are taken, at XDP, and a test run that repeats them
//! gives each the frame as the one before has left it. So these run once for each call, many times,
//! as does the program beside which they are set.

use super::figures::Calibration;
use super::made::Made;
use super::user::words;
use ebpf::insn::{Insn, R0, encode};
use filter::{Arguments, Attach, Description, Kind as FilterKind, joined, target};
use pipeline::plan::FilterCost;
use std::os::fd::{AsFd as _, AsRawFd as _};
use sys::bpf::{Map, Program, ProgramKind};

/// Test runs of a round, and rounds.
const REPEAT: u32 = 50_000;
const ROUNDS: usize = 5;
/// The same for twins that change frames.
const ONCE: u32 = 1;
const MANY: usize = 2_000;

pub(super) fn measure(calibration: &mut Calibration) {
    let empty = match empty() {
        Ok(empty) => empty,
        Err(why) => {
            calibration.missing.push(("filters in the kernel".to_owned(), why));
            return;
        }
    };
    let mut all = Vec::new();
    for description in measurable() {
        let measured = match description.kind {
            FilterKind::Editing => changing(description),
            _ => cost(description, &Attach::observing("")).map(|ns| ns - empty),
        };
        match measured.map(|ns| ns.max(0.0)) {
            Ok(block) => {
                all.push(block);
                let filter = description.name.to_owned();
                calibration.costs.put(FilterCost { filter, kernel: true, block, byte: 0.0 });
            }
            Err(why) => {
                calibration.missing.push((format!("{} in the kernel", description.name), why));
            }
        }
    }
    all.sort_by(f64::total_cmp);
    let middle = all.get(all.len() / 2).copied();
    calibration.note("twin", middle.ok_or_else(|| "no twin was loaded".to_owned()));
}

/// The filters with a twin.
pub(super) fn measurable() -> impl Iterator<Item = &'static Description> {
    let all = filter::catalog::FILTERS.iter().copied();
    all.filter(|description| description.kernel.is_some())
}

/// Measures the cost of a twin that changes frames, beyond a program that does nothing.
fn changing(description: &Description) -> Result<f64, String> {
    let code = encode(&[Insn::mov(R0, PASS), Insn::exit()]);
    let empty = Program::load(ProgramKind::Xdp, "empty", &code).map_err(|why| why.to_string())?;
    let empty = rounds(&empty, (ONCE, MANY))?;
    cost(description, &Attach { takes: true, ..Attach::observing("") }).map(|ns| ns - empty)
}

/// XDP_PASS.
const PASS: i32 = 2;

/// Measures a program that does nothing in a test run.
pub(super) fn empty() -> Result<f64, String> {
    let code = encode(&[Insn::mov(R0, -1), Insn::exit()]);
    let program = Program::load(ProgramKind::Tc, "empty", &code).map_err(|why| why.to_string())?;
    run(&program)
}

/// The least time of a test run, in ns.
pub(super) fn run(program: &Program) -> Result<f64, String> {
    rounds(program, (REPEAT, ROUNDS))
}

fn rounds(program: &Program, (repeat, rounds): (u32, usize)) -> Result<f64, String> {
    let frame = frame();
    let mut best = f64::INFINITY;
    for _ in 0..rounds {
        let ran = program.test_run(&frame, repeat).map_err(|why| why.to_string())?;
        best = best.min(f64::from(ran.duration_ns));
    }
    Ok(best)
}

/// A datagram to port 53, with 86 bytes in it: what most filters look at is there.
fn frame() -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend([0x45, 0, 0, 114, 0, 1, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 19, 0, 1]);
    frame.extend([0x9c, 0x40, 0, 53, 0, 94, 0, 0]);
    frame.resize(frame.len() + 86, b'x');
    frame
}

/// Measures a program of this filter in a test run at this attach point, with the arguments of its
/// own example, or the first of those of the exam that can be expressed there.
fn cost(description: &Description, at: &Attach) -> Result<f64, String> {
    let shown = words(description).map(|(_, own)| own.to_owned());
    let examined = description.examined.iter().map(|given| format!("{} {given}", description.name));
    let mut last = "its example does not show it".to_owned();
    for own in shown.into_iter().chain(examined) {
        match joined(&[(description, &arguments(description, &own)?)], target(at, false)) {
            Ok(program) => return loaded(&program, at.takes),
            Err((_, why)) => last = why,
        }
    }
    Err(last)
}

fn loaded(program: &ebpf::Program, takes: bool) -> Result<f64, String> {
    let maps = program.maps.iter();
    let maps: sys::Result<Vec<Map>> =
        maps.map(|spec| Map::array(&spec.name, spec.value_size, 1, spec.mappable)).collect();
    let maps = maps.map_err(|why| why.to_string())?;
    let descriptors: Vec<i32> = maps.iter().map(|map| map.as_fd().as_raw_fd()).collect();
    let code = program.relocate(&descriptors).ok_or("a map is missing")?;
    let (kind, how) = match takes {
        true => (ProgramKind::Xdp, (ONCE, MANY)),
        false => (ProgramKind::Tc, (REPEAT, ROUNDS)),
    };
    let loaded = Program::load(kind, "calibrate", &encode(&code));
    rounds(&loaded.map_err(|why| why.to_string())?, how)
}

/// The arguments of a filter as a request says it.
fn arguments(description: &Description, own: &str) -> Result<Arguments, String> {
    let line = format!("generate | {own} |all discard");
    let (graph, mistakes) = pipeline::read(&line, &Made);
    if let Some(mistake) = mistakes.iter().find(|mistake| mistake.is_error()) {
        return Err(format!("{mistake:?}"));
    }
    let used = graph.ids().find_map(|(_, node)| {
        node.filter().filter(|used| used.description.name == description.name)
    });
    used.map(|used| used.arguments.clone()).ok_or_else(|| "it is not there".to_owned())
}
