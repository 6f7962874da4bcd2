//! The cost of passing the blocks of a written stream to filters in the kernel, compared with the
//! same filters in the thread that receives the blocks. FEATURES B8
//!
//! A frame from outside can be passed to a program in the kernel in two ways: by sending it over a
//! device, at whose other end the program runs, or by a test run of the program on the frame
//! (`BPF_PROG_TEST_RUN`).

use super::kernel::CountingProgram;
use crate::flood::{Flood, ReceivingHost};
use crate::harness::{
    BetterDirection, Candidate, is_row_selected, measure_interleaved, rows_of_samples,
};
use crate::processes::{Children, has_ingress_program, streamline_path};
use crate::request_run::run_request;
use crate::row::Row;
use std::process::Stdio;
use testkit::net::{SERVER_DEVICE, wait_until};

/// Length in bytes of each frame that is passed to the filters.
const FRAME_LENGTH: usize = 64;
/// Number of blocks in a measurement of the filters in a thread.
const BLOCK_COUNT: u32 = 2_000_000;
/// Number of frames in each measurement of a program in the kernel.
const FRAME_COUNT: u32 = 100_000;
/// The chain of filters to which frames are passed.
const FILTER_CHAIN: &str = "ip | udp | dport |53 count";

/// Measures the processor time per frame of each way to pass frames to the filters.
pub(super) fn run_bench(rounds: usize) -> Result<Vec<Row>, String> {
    const ROW_NAME: &str = "back into the kernel";
    if !is_row_selected(ROW_NAME) {
        return Ok(Vec::new());
    }
    let program = CountingProgram::load(false)?;
    let mut flood = Flood::new(FRAME_LENGTH, 1, ReceivingHost::Ignores)?;
    let observer = format!("rx@kernel {SERVER_DEVICE} | {}", pinned_filters());
    let mut command =
        flood.pair.server.command(streamline_path().ok_or("there is nothing to measure")?);
    command.args(["run", "-q", "--no-adapt", &observer]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut observers = Children::default();
    observers.add(command.spawn().map_err(|why| why.to_string())?);
    wait_until("the program is attached", || {
        observers.first_exited().is_some() || has_ingress_program(&flood.pair.server)
    });
    if observers.first_exited().is_some() {
        return Err(format!("`{observer}` failed"));
    }
    let candidates = vec![
        Candidate { name: "in the thread", measure: Box::new(measure_filters_in_thread) },
        Candidate {
            name: "sent over a device",
            measure: Box::new(|| {
                Ok(flood.send(FRAME_COUNT as usize)? as f64 / f64::from(FRAME_COUNT))
            }),
        },
        Candidate { name: "a test run", measure: Box::new(|| measure_test_runs(&program)) },
    ];
    let (sentinel_ns, samples) = measure_interleaved(rounds, candidates)?;
    observers.interrupt_and_wait(&observer)?;
    let subject = ("pipesfs", ROW_NAME, f64::NAN);
    Ok(rows_of_samples(
        subject,
        ("ns CPU/frame", BetterDirection::Less),
        sentinel_ns,
        &samples,
        &[],
    ))
}

/// Returns the text of [`FILTER_CHAIN`] with each filter pinned to the kernel.
fn pinned_filters() -> String {
    FILTER_CHAIN
        .split(" |")
        .map(|filter| format!("{filter} @kernel"))
        .collect::<Vec<_>>()
        .join(" |")
}

/// Returns the cost of the filters in a thread, in ns per block, without the cost of the source.
fn measure_filters_in_thread() -> Result<f64, String> {
    let cost = |behind: &str| {
        let began = sys::clock::thread_cpu_ns();
        run_request(&format!(
            "generate count={BLOCK_COUNT} size={FRAME_LENGTH} port=53 | {behind}"
        ))?;
        Ok::<f64, String>((sys::clock::thread_cpu_ns() - began) as f64 / f64::from(BLOCK_COUNT))
    };
    Ok((cost(FILTER_CHAIN)? - cost("discard")?).max(0.001))
}

/// Returns the cost of a test run of the program on one frame, in ns. Each run is a separate call.
fn measure_test_runs(program: &CountingProgram) -> Result<f64, String> {
    let frame = crate::flood::udp_frame(crate::flood::WANTED_PORT, FRAME_LENGTH);
    let began = sys::clock::thread_cpu_ns();
    for _ in 0..FRAME_COUNT {
        program.program.test_run(&frame, 1).map_err(|why| why.to_string())?;
    }
    Ok((sys::clock::thread_cpu_ns() - began) as f64 / f64::from(FRAME_COUNT))
}
