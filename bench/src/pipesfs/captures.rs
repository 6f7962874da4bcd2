//! Live traffic of a path, which capture programs read from a file of the mount. Each frame that
//! the path has received is read by the program, or counted as lost in `.error`.

use super::programs::Programs;
use crate::flood::{Flood, ReceivingHost};
use crate::harness::{
    BetterDirection, Candidate, Goal, is_row_selected, measure_interleaved, rows_of_samples,
};
use crate::processes::{number_before, read_text};
use crate::row::Row;
use std::cell::RefCell;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use testkit::net::{SERVER_DEVICE, wait_until};

/// Length in bytes of each frame that is sent.
const FRAME_LENGTH: usize = 200;
/// Rate at which frames are sent, in frames per second.
const FRAMES_PER_SECOND: f64 = 300_000.0;
/// Number of frames in a measurement, which are sent within three seconds.
const FRAME_COUNT: u32 = 900_000;
/// Name of the path whose capture is read, and of its directory in the mount.
const PATH_NAME: &str = "line";

/// A program that reads a capture from standard input, and prints the number of its frames.
struct CaptureReader {
    name: &'static str,
    words: &'static [&'static str],
    /// Function that reads the number of frames from the program's output.
    count: fn(&str) -> u64,
}

const CAPTURE_READERS: [CaptureReader; 2] = [
    CaptureReader {
        name: "tcpdump -r -",
        words: &["tcpdump", "-n", "-r", "-", "--count"],
        count: |printed| number_before(printed, " packet"),
    },
    CaptureReader {
        name: "tshark -i -",
        words: &["tshark", "-n", "-q", "-i", "-", "-z", "io,stat,0"],
        // The only line of the table: `| 0.0 <> Dur | FRAMES | BYTES |`.
        count: |printed| {
            let line = printed.lines().find(|line| line.contains("<>"));
            let frames = line.and_then(|line| line.split('|').nth(2));
            frames.and_then(|frames| frames.trim().parse().ok()).unwrap_or(u64::MAX)
        },
    },
];

/// Measures the frames that each program reads, and the frames that are counted as lost.
pub(super) fn run_bench(rounds: usize) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for reader in &CAPTURE_READERS {
        let row = format!("300,000 frames/s, {}", reader.name);
        if !is_row_selected(&row) {
            continue;
        }
        if Command::new(reader.words[0]).arg("--version").output().is_err() {
            eprintln!("left out: {} is not installed", reader.words[0]);
            continue;
        }
        let accounted = RefCell::new(Vec::new());
        let candidates = vec![
            Candidate {
                name: "read",
                measure: Box::new(|| {
                    let (read, lost) = measure(reader)?;
                    accounted.borrow_mut().push(read + lost);
                    Ok(read)
                }),
            },
            Candidate {
                name: "read or told",
                measure: Box::new(|| accounted.borrow().last().copied().ok_or_else(String::new)),
            },
            Candidate { name: "passed", measure: Box::new(|| Ok(1.0)) },
        ];
        let (sentinel_ns, samples) = measure_interleaved(rounds, candidates)?;
        let goal =
            Goal { candidate: "read or told", reference: "passed", goal: "G21", target: 1.0 };
        let subject = ("pipesfs", row.as_str(), f64::NAN);
        let unit = ("of frames", BetterDirection::More);
        rows.extend(rows_of_samples(subject, unit, sentinel_ns, &samples, &[goal]));
    }
    Ok(rows)
}

/// Sends frames to a device while a path captures them and a program reads the path's capture.
/// Returns two shares of the frames that the path has received: those that the program has read,
/// and those that were counted as lost.
fn measure(reader: &CaptureReader) -> Result<(f64, f64), String> {
    let text = |why: std::io::Error| why.to_string();
    let mut flood = Flood::new(FRAME_LENGTH, 1, ReceivingHost::Ignores)?;
    flood.set_rate(Some(FRAMES_PER_SECOND));
    let mut programs = Programs::start()?;
    let request = format!("rx {SERVER_DEVICE} | count");
    programs.add_path_in_namespace(Some(&flood.pair.server), PATH_NAME, &request)?;
    let mount = programs.mount("pipes", None)?;
    let source = mount.join(format!("{PATH_NAME}/rx:{SERVER_DEVICE}"));
    wait_until("it is shown", || source.is_dir());
    let capture = File::open(source.join("all.pcap")).map_err(text)?;
    let printed = mount.with_file_name("printed");
    let mut command = Command::new(reader.words[0]);
    command.args(&reader.words[1..]).stdin(capture);
    command.stdout(File::create(&printed).map_err(text)?).stderr(std::process::Stdio::null());
    let mut child = command.spawn().map_err(text)?;
    // The command still holds the capture open.
    drop(command);
    flood.send(FRAME_COUNT as usize)?;
    let count_received = || read_number(&source.join("stats/blocks"));
    let lost = || dropped_frames(&source);
    wait_until("the path has seen all frames", || {
        count_received() + lost() >= u64::from(FRAME_COUNT)
    });
    let received = count_received();
    let path = streamline::paths::connect(&programs.client()?, PATH_NAME);
    path.and_then(|path| path.stop()).map_err(|why| why.to_string())?;
    let status = child.wait().map_err(text)?;
    let read = (reader.count)(&read_text(&printed));
    if !status.success() || read == u64::MAX {
        return Err(format!("{} ended with {status}: {}", reader.name, read_text(&printed)));
    }
    let error = read_text(&mount.join(".error"));
    let reported = match error {
        error if error.contains(" blocks were skipped, ") => {
            number_before(&error, " blocks were skipped, ")
        }
        // The path has ended without reporting the number.
        error if error.contains("may be incomplete") => received.saturating_sub(read),
        _ => 0,
    };
    let share = |frames: u64| frames as f64 / received as f64;
    Ok((share(read), share(reported)))
}

/// Returns the number in a file, or 0 if there is none.
fn read_number(file: &Path) -> u64 {
    read_text(file).trim().parse().unwrap_or(0)
}

/// Returns the number of frames that a source has counted as dropped. `source` is the directory of
/// the source in the mount.
fn dropped_frames(source: &Path) -> u64 {
    let reasons = fs::read_dir(source.join("stats/dropped")).into_iter().flatten().flatten();
    reasons.map(|reason| read_number(&reason.path())).sum()
}
