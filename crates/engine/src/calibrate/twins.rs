//! Costs of kernel twins. Each twin is measured alone, in test runs, and compared with a program
//! that does nothing.
//!
//! Twins that edit frames run at XDP. If one system call repeats a test run, each repetition gets
//! the frame as edited by the previous one. These twins, and the empty program to which they are
//! compared, are therefore measured with many calls of a single run each.

use super::calibration::{Calibration, Result, min_of_rounds};
use super::test_traffic::datagram_frame;
use super::user_filters::split_example;
use crate::registry::MachineRegistry;
use ebpf::insn::{Insn, R0, encode};
use filter::{
    Arguments, AttachTarget, Description, FilterKind, emit_chain_program, program_target,
};
use std::os::fd::{AsFd as _, AsRawFd as _};
use sys::bpf::{Map, Program, ProgramKind};

/// Number of test runs per system call.
const RUNS_PER_CALL: u32 = 50_000;
/// Number of system calls per measurement. The result is the time of the fastest call.
const ROUNDS: usize = 5;
/// Number of test runs per system call in the measurement of a twin that edits frames.
const EDITING_RUNS_PER_CALL: u32 = 1;
/// Number of system calls per measurement of a twin that edits frames. The result is the time of
/// the fastest call.
const EDITING_CALLS: usize = 2_000;

pub(super) fn measure(calibration: &mut Calibration) {
    let measure_empty_program_ns = match measure_empty_program_ns() {
        Ok(measure_empty_program_ns) => measure_empty_program_ns,
        Err(why) => {
            return calibration.record_missing_figures(&["filters in the kernel"], &*why);
        }
    };
    let mut all = Vec::new();
    for description in filters_with_twins() {
        let measured = match description.kind {
            FilterKind::Editing => measure_editing_cost(description),
            _ => measure_cost(description, &AttachTarget::observing(""))
                .map(|ns| ns - measure_empty_program_ns),
        };
        let measured = measured.map(|ns| ns.max(0.0));
        all.extend(measured.as_ref().ok());
        calibration.record_filter_cost(description.name, true, measured.map(|block| (block, 0.0)));
    }
    all.sort_by(f64::total_cmp);
    let middle = all.get(all.len() / 2).copied();
    calibration.record_cost("twin", middle.ok_or_else(|| "no twin was loaded".into()));
}

/// Returns the filters that have a kernel twin.
pub(super) fn filters_with_twins() -> impl Iterator<Item = &'static Description> {
    let all = filter::catalog::FILTERS.iter().copied();
    all.filter(|description| description.emit_twin.is_some())
}

/// Measures the additional time, in ns, of the twin of an editing filter, compared with a program
/// that does nothing.
fn measure_editing_cost(description: &Description) -> Result<f64> {
    let measure_empty_program_ns = min_round_ns(
        &load_program(ProgramKind::Xdp, &[Insn::mov(R0, XDP_PASS), Insn::exit()])?,
        (EDITING_RUNS_PER_CALL, EDITING_CALLS),
    )?;
    measure_cost(description, &AttachTarget { redirects: true, ..AttachTarget::observing("") })
        .map(|ns| ns - measure_empty_program_ns)
}

/// The action XDP_PASS, which passes a frame to the host's network stack.
const XDP_PASS: i32 = 2;

/// Measures the time, in ns, of one run of a program that does nothing.
pub(super) fn measure_empty_program_ns() -> Result<f64> {
    min_run_ns(&load_program(ProgramKind::Tc, &[Insn::mov(R0, -1), Insn::exit()])?)
}

/// Loads a program into the kernel.
pub(super) fn load_program(kind: ProgramKind, code: &[Insn]) -> Result<Program> {
    Ok(Program::load(kind, "calibrate", &encode(code))?)
}

/// Returns the minimum time, in ns, of a test run of this program.
pub(super) fn min_run_ns(program: &Program) -> Result<f64> {
    min_round_ns(program, (RUNS_PER_CALL, ROUNDS))
}

fn min_round_ns(program: &Program, (repeat, rounds): (u32, usize)) -> Result<f64> {
    let frame = datagram_frame(1);
    min_of_rounds(rounds, || Ok(program.test_run(&frame, repeat)?.duration_ns.into()))
}

/// Measures the time, in ns, of a test run of a filter's twin, in a program for the attach point
/// `at`. The filter's arguments come from its example. If the twin does not support these arguments
/// at this attach point, they come from the first test case that it supports. Fails if there is no
/// such test case.
fn measure_cost(description: &Description, at: &AttachTarget) -> Result<f64> {
    let example = split_example(description).map(|(_, own)| own.to_owned());
    let examined =
        description.twin_test_arguments.iter().map(|given| format!("{} {given}", description.name));
    let mut last = "its example does not use it".to_owned();
    for own in example.into_iter().chain(examined) {
        match emit_chain_program(
            &[(description, &parse_arguments(description, &own)?)],
            program_target(at, false),
        ) {
            Ok(program) => return measure_loaded_program(&program, at.redirects),
            Err((_, why)) => last = why,
        }
    }
    Err(last.into())
}

fn measure_loaded_program(code: &ebpf::Program, takes: bool) -> Result<f64> {
    let maps = code.maps.iter();
    let maps: sys::Result<Vec<Map>> =
        maps.map(|spec| Map::array(&spec.name, spec.value_size, 1, spec.mappable)).collect();
    let maps = maps?;
    let descriptors: Vec<i32> = maps.iter().map(|map| map.as_fd().as_raw_fd()).collect();
    let code = code.relocate(&descriptors).ok_or("a map is missing")?;
    let (kind, how) = match takes {
        true => (ProgramKind::Xdp, (EDITING_RUNS_PER_CALL, EDITING_CALLS)),
        false => (ProgramKind::Tc, (RUNS_PER_CALL, ROUNDS)),
    };
    min_round_ns(&load_program(kind, &code)?, how)
}

/// Parses a filter's arguments from their text.
fn parse_arguments(description: &Description, own: &str) -> Result<Arguments> {
    let line = format!("generate | {own} |all discard");
    let (graph, mistakes) = pipeline::read_request(&line, &MachineRegistry::Calibration);
    if let Some(mistake) = mistakes.iter().find(|mistake| mistake.is_error()) {
        return Err(format!("{mistake:?}").into());
    }
    let used = graph.nodes_with_ids().find_map(|(_, node)| {
        node.filter().filter(|used| used.description.name == description.name)
    });
    used.map(|used| used.arguments.clone()).ok_or_else(|| "it is not there".into())
}
