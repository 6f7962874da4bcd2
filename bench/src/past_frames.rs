//! `bench past`: the amount of past frames that fits into 64 MB, and the cost of retaining them.
//! FEATURES D16, V9
//!
//! The requests run as a user runs them: `freeze`, which retains frames for a trigger that never
//! occurs, and `--history`, with which a source retains frames for later readers. The reference is
//! the same request without either option. The frames have 1400 bytes: lines of text with running
//! numbers, which compress, or random bytes, which do not. The bench reports the bytes retained at
//! the end per byte of memory, the processor time of the whole process per frame, and the rate of
//! the path, which the compressing thread of a history must not reduce.

use crate::harness::{BetterDirection, Samples, median, rows_of_samples};
use crate::options::Options;
use crate::row::Row;
use crate::sentinel::CacheRoundTrip;
use crate::temp_directory::TempDirectory;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use testkit::traffic::Capture;
use testkit::{Frame, Random};

/// Number of frames, three times as many as fit uncompressed into the memory of
/// [`RETAINED_MEMORY_SIZE`] bytes.
const FRAME_COUNT: usize = 140_000;
/// Length in bytes of the payload of each frame.
const PAYLOAD_LENGTH: usize = 1358;
/// Size of the memory in which a request retains past frames.
const RETAINED_MEMORY_SIZE: &str = "64M";
const NOTHING_KEPT_NAME: &str = "nothing kept";
const FREEZE_NAME: &str = "freeze";
const HISTORY_NAME: &str = "history";

/// The processor time, the rate and the retained bytes of one run.
#[derive(Clone, Copy, Debug, Default)]
struct PastFramesSample {
    /// Processor time of the process per frame, in ns.
    processor: f64,
    /// Rate of the path in frames per microsecond.
    rate: f64,
    /// Bytes of frames retained at the end, per byte of memory.
    kept: f64,
}

pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    let folder = TempDirectory::new("past").map_err(|why| why.to_string())?;
    let mut rows = Vec::new();
    for (content, payload) in
        [("text", log_content as fn(usize, &mut Random) -> Vec<u8>), ("noise", random_content)]
    {
        let file = folder.0.join(content);
        let mut random = Random::new(7);
        let frame = |number| {
            let payload = payload(number, &mut random);
            Frame::ethernet().ipv4("10.0.0.1", "10.0.0.2").udp(4000, 53, &payload)
        };
        let capture = Capture::from_frames((0..FRAME_COUNT).map(frame)).to_pcap();
        std::fs::write(&file, capture).map_err(|why| why.to_string())?;
        rows.extend(measure_content(content, &file, &folder, options.rounds)?);
    }
    Ok(rows)
}

/// Returns lines of a log: words and running numbers.
fn log_content(number: usize, _: &mut Random) -> Vec<u8> {
    let mut lines = String::new();
    for line in number * 20.. {
        if lines.len() >= PAYLOAD_LENGTH {
            break;
        }
        let _ = writeln!(lines, "{:08x} GET /page/{} 200 {}", line * 7919, line % 977, line * 31);
    }
    lines.truncate(PAYLOAD_LENGTH);
    lines.into_bytes()
}

fn random_content(_: usize, random: &mut Random) -> Vec<u8> {
    random.bytes(PAYLOAD_LENGTH)
}

fn measure_content(
    content: &str,
    file: &Path,
    folder: &TempDirectory,
    rounds: usize,
) -> Result<Vec<Row>, String> {
    let read = format!("replay '{}'", file.display());
    let never = folder.0.join("never.pcap");
    let freeze = format!(
        "{read} | freeze '{}' when=\"ether[12:2] = 1\" before=1h bytes={RETAINED_MEMORY_SIZE}",
        never.display()
    );
    let discard = format!("{read} | discard");
    let history = format!("--history={RETAINED_MEMORY_SIZE}");
    let requests: [(&'static str, Vec<&str>); 3] = [
        (NOTHING_KEPT_NAME, vec![&discard]),
        (FREEZE_NAME, vec![&freeze]),
        (HISTORY_NAME, vec![&history, &discard]),
    ];
    let mut samples = vec![Vec::new(); requests.len()];
    let mut sentinels = Vec::new();
    for round in 0..=rounds {
        sentinels.push(CacheRoundTrip::measure());
        for ((_, words), samples) in requests.iter().zip(&mut samples) {
            let sample = run_once(words, folder)?;
            // The first round is a warm-up.
            if round > 0 {
                samples.push(sample);
            }
        }
    }
    let of = |value: fn(&PastFramesSample) -> f64, from: usize| -> Vec<Samples> {
        let all = requests.iter().zip(&samples).skip(from);
        all.map(|((name, _), samples)| Samples {
            name,
            values: samples.iter().map(value).collect(),
        })
        .collect()
    };
    let sentinel = median(&sentinels);
    let row = |what: &str| format!("{content}, {what}");
    let cost = (("past", &*row("CPU"), f64::NAN), ("ns/frame", BetterDirection::Less));
    let rate = (("past", &*row("rate"), f64::NAN), ("M/s", BetterDirection::More));
    let kept = (("past", &*row("kept"), f64::NAN), ("B/B", BetterDirection::More));
    let mut rows = rows_of_samples(cost.0, cost.1, sentinel, &of(|s| s.processor, 0), &[]);
    rows.extend(rows_of_samples(rate.0, rate.1, sentinel, &of(|s| s.rate, 0), &[]));
    rows.extend(rows_of_samples(kept.0, kept.1, sentinel, &of(|s| s.kept, 1), &[]));
    Ok(rows)
}

#[expect(clippy::cast_precision_loss, reason = "figures have few digits")]
fn run_once(words: &[&str], folder: &TempDirectory) -> Result<PastFramesSample, String> {
    let own = std::env::current_exe().map_err(|why| why.to_string())?.with_file_name("streamline");
    let report = folder.0.join("report");
    let mut command = Command::new(own);
    command.args(["run", "--json", "--quiet", "--report"]).arg(&report).args(words);
    command.stdout(Stdio::null());
    let child = command.spawn().map_err(|why| format!("{command:?}: {why}"))?;
    let (status, used) = sys::usage::wait(child).map_err(|why| why.to_string())?;
    if !status.success() {
        return Err(format!("{command:?}: {status}"));
    }
    let text = std::fs::read_to_string(&report).map_err(|why| why.to_string())?;
    let report: serde_json::Value = serde_json::from_str(&text).map_err(|why| why.to_string())?;
    let filters = report["filters"].as_array().cloned().unwrap_or_default();
    let kept = filters.iter().find_map(|filter| {
        let kept = &filter["kept"];
        Some(kept["bytes"].as_f64()? / kept["stored"].as_f64()?.max(1.0))
    });
    let elapsed_ns = report["elapsed_ns"].as_f64().unwrap_or(f64::NAN);
    Ok(PastFramesSample {
        processor: used.processor_ns as f64 / FRAME_COUNT as f64,
        rate: FRAME_COUNT as f64 * 1e3 / elapsed_ns,
        kept: kept.unwrap_or(f64::NAN),
    })
}
