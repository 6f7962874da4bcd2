//! The benchmarks of the project: `streamline bench NAME…` runs this program.
//!
//! Candidates and references are interleaved in one run. A row is a median over rounds with its
//! spread, the ratio to its reference, and the state of the machine: the round-trip time of a cache
//! line between two cores. `--json` prints one JSON object per row. `--plot` draws bars in the
//! terminal or, given a directory, writes one SVG chart per bench.
#![forbid(unsafe_code)]

mod bars;
mod c_program;
mod capture;
mod chain;
mod child;
mod copying_endpoints;
mod edits;
mod file;
mod flood;
mod frame_selection;
mod harness;
mod lazy;
mod live;
mod moderation;
mod mpipe;
mod observation_cost;
mod options;
mod page;
mod parallel;
mod past_frames;
mod pcap;
mod peek;
mod peers;
mod pipe;
mod piped_matcher;
mod pipesfs;
mod placement;
mod plot;
mod processes;
mod program_cost;
mod readers;
mod replay;
mod request_run;
mod rings;
mod row;
mod scale;
mod sentinel;
mod share;
mod splice;
mod take;
mod tap;
mod tcpdump;
mod temp_directory;
mod udp;
mod walk;

use clap::Parser;
use options::Options;
use row::Row;
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs the benchmarks: ours, the best peer and the limit of the machine, side by side.
#[derive(Parser, Debug)]
#[command(name = "streamline bench", bin_name = "streamline bench", version)]
struct Arguments {
    /// The benches to run (see --list); default: all.
    names: Vec<String>,
    /// Print one JSON object per row on standard output.
    #[arg(long)]
    json: bool,
    /// Draw bars in the terminal, or write a chart per bench, as SVG, into this directory.
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    plot: Option<Option<PathBuf>>,
    /// The number of measurements of every candidate.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Size of the generated captures in bytes; goals are judged at 1,000,000,000.
    #[arg(long, default_value_t = 1_000_000_000)]
    size: u64,
    /// Run only the rows whose names contain one of these words: `--only 'one core'`.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Run this request in one thread instead, and print the time per block.
    #[arg(long, value_name = "REQUEST", conflicts_with = "names")]
    line: Option<String>,
    /// Write a capture instead: kind, file and size.
    #[arg(long, hide = true, num_args = 3, value_names = ["KIND", "FILE", "SIZE"])]
    capture: Vec<String>,
    /// Run as the reading process of a bench: kind, processor, and block size in bytes.
    #[arg(long, hide = true, num_args = 3, value_names = ["KIND", "PROCESSOR", "BLOCK"])]
    reader: Vec<String>,
    /// List the benches.
    #[arg(long)]
    list: bool,
}

/// A bench: its name, its summary in the list, and the function that runs it.
struct Bench {
    name: &'static str,
    summary: &'static str,
    run: fn(&Options) -> Result<Vec<Row>, String>,
}

const BENCHES: &[Bench] = &[
    Bench {
        name: "edits",
        summary: "edits in place against edits in copies of frames [Th 5.3]",
        run: |options| edits::run_bench(options.rounds),
    },
    Bench {
        name: "past",
        summary: "how much of the past fits into 64 MB, and at what cost [D16]",
        run: past_frames::run_bench,
    },
    Bench {
        name: "moderation",
        summary: "the cost of a notification per number of blocks [Th fig. 5.2], goals G8, G9",
        run: moderation::run_bench,
    },
    Bench {
        name: "chain",
        summary: "a chain of filters against pipes and an indirect-call loop [Th fig. 5.1], G11",
        run: |options| chain::run_bench(options.rounds),
    },
    Bench {
        name: "walk",
        summary: "the number of blocks walked at once, from 1 to 64 [SL 6.2], goal K2",
        run: walk::run_bench,
    },
    Bench {
        name: "replay",
        summary: "HTTP requests in a capture against tshark, tcpflow, suricata, tcpdump, goal G17",
        run: replay::run_bench,
    },
    Bench {
        name: "take",
        summary: "frames by packet socket, kernel ring or AF_XDP, forwarded [SL 5.5], goal G16",
        run: take::run_bench,
    },
    Bench {
        name: "pipe",
        summary: "bytes between processes, against pipes and other rings, goals G1 to G4",
        run: pipe::run_bench,
    },
    Bench {
        name: "peek",
        summary: "reading a block in place instead of copying it [SL fig. 3], goal G5",
        run: peek::run_bench,
    },
    Bench {
        name: "mpipe",
        summary: "one producer, several consumers, against n pipes and tee(2) [SL §5.1]",
        run: mpipe::run_bench,
    },
    Bench {
        name: "splice",
        summary: "blocks from a dbuf to an ibuf without a copy [SL fig. 4], goals G6, G7",
        run: splice::run_bench,
    },
    Bench {
        name: "scale",
        summary: "rings of fixed sizes, and a self-sizing ring [SL figs. 11, 12], goal G10",
        run: scale::run_bench,
    },
    Bench {
        name: "rounds",
        summary: "a ring that starts too large, round by round [SL fig. 7]",
        run: scale::rounds::run_bench,
    },
    Bench {
        name: "lazy",
        summary: "reads that copy on first access only [SL 5.3.3]: an experiment",
        run: lazy::run_bench,
    },
    Bench {
        name: "file",
        summary: "cat, grep, wc and dd with the preloaded library [SL fig. 16], goals G12, G13",
        run: file::run_bench,
    },
    Bench {
        name: "capture",
        summary: "N readers of one stream against N tcpdumps [SL fig. 15], goal G15; needs root",
        run: capture::run_bench,
    },
    Bench {
        name: "readers",
        summary: "ten and one `rx IF | pcap FILE` against tcpdumps, goal G20; needs root",
        run: readers::run_bench,
    },
    Bench {
        name: "pcap",
        summary: "ten and one `exec tcpdump` against stock tcpdumps, goal G20; needs root",
        run: pcap::run_bench,
    },
    Bench {
        name: "udp",
        summary: "UDP servers under `exec --with=udp` [SL figs. 13, 14], goal G18; needs root",
        run: udp::run_bench,
    },
    Bench {
        name: "batching",
        summary: "UDP servers by batch and delay, at 10,000/s [SL figs. 13, 14]; needs root",
        run: udp::batching::run_bench,
    },
    Bench {
        name: "pipesfs",
        summary: "streams as files against kernel pipes, requests [SL §4.1], G21; needs root",
        run: pipesfs::run_bench,
    },
    Bench {
        name: "share",
        summary: "N users with a request each, against N tcpdumps with equal filters; needs root",
        run: share::run_bench,
    },
    Bench {
        name: "kernel",
        summary: "a generated kernel program against C by hand, nftables and tc; needs root",
        run: program_cost::run_bench,
    },
    Bench {
        name: "filter",
        summary: "1 % of a flood against tcpdump, AF_XDP and Click; needs root",
        run: frame_selection::run_bench,
    },
    Bench {
        name: "placement",
        summary: "all placements of requests against the choices of the policies; needs root",
        run: placement::run_bench,
    },
    Bench {
        name: "parallel",
        summary: "one filter on two processors against one, by load and by session [Th §5.4]",
        run: parallel::run_bench,
    },
    Bench {
        name: "rings",
        summary: "the self-sizing ring of a request against fixed rings [SL §5.4]",
        run: rings::run_bench,
    },
    Bench {
        name: "page",
        summary: "the live page: processor time of daemon, paths and page, with and without viewer",
        run: |options| page::run_bench(options.rounds),
    },
    Bench {
        name: "live",
        summary: "HTTP requests on a veth pair against suricata, tcpflow, tcpdump; needs root",
        run: live::run_bench,
    },
];

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list {
        for bench in BENCHES {
            print_line(&format!("{:10} {}", bench.name, bench.summary));
        }
        return ExitCode::SUCCESS;
    }
    if !arguments.reader.is_empty() {
        return run_reader(&arguments.reader);
    }
    if let [kind, file, size] = arguments.capture.as_slice() {
        return match replay::write_capture(kind, file.as_ref(), size) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                eprintln!("{why}");
                ExitCode::FAILURE
            }
        };
    }
    if let Some(text) = &arguments.line {
        return match request_run::measure_cost_per_block(text) {
            Ok(description) => {
                print_line(&description);
                ExitCode::SUCCESS
            }
            Err(why) => {
                eprintln!("{why}");
                ExitCode::FAILURE
            }
        };
    }
    if let Some(unknown) = arguments.names.iter().find(|n| BENCHES.iter().all(|b| b.name != **n)) {
        let names: Vec<_> = BENCHES.iter().map(|b| b.name).collect();
        eprintln!("error: no bench is called `{unknown}`; there are: {}", names.join(", "));
        if arguments.plot == Some(None) {
            eprintln!("note: for charts in a directory write --plot={unknown}");
        }
        return ExitCode::from(2);
    }
    // The machine must be inspected before a bench pins the process to one processor.
    sentinel::CacheRoundTrip::measure();
    let wanted =
        |b: &&Bench| arguments.names.is_empty() || arguments.names.iter().any(|n| n == b.name);
    harness::select_rows(arguments.only);
    let options = Options { rounds: arguments.rounds.max(1), size: arguments.size };
    for bench in BENCHES.iter().filter(wanted) {
        let rows = match run_in_thread(bench.name, || (bench.run)(&options)) {
            Ok(rows) => rows,
            Err(why) => {
                eprintln!("error: {}: {why}", bench.name);
                return ExitCode::FAILURE;
            }
        };
        for row in &rows {
            print_line(&if arguments.json { row.to_json() } else { row.to_string() });
        }
        if arguments.plot == Some(None) {
            print_line(&bars::draw_bars(bench.name, &rows, terminal_columns()));
        }
        if let Some(Some(folder)) = &arguments.plot
            && let Err(why) = plot::draw_chart(folder, bench.name, &rows)
        {
            eprintln!("error: cannot draw into {}: {why}", folder.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Runs a bench in its own thread. CPU affinity, scheduling class, timers and namespaces belong to
/// a thread, and each bench must start with the defaults.
fn run_in_thread<T: Send>(
    name: &str,
    run: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, String> {
    // The stack is as large as the stack of the main thread.
    const STACK_SIZE: usize = 8 << 20;
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_SIZE);
        let running = thread.spawn_scoped(scope, run).map_err(|why| why.to_string())?;
        running.join().unwrap_or_else(|_| Err("it panicked".to_owned()))
    })
}

/// Runs the reading process of a bench. Returns its exit status.
fn run_reader(words: &[String]) -> ExitCode {
    let done = match words.first().map(String::as_str) {
        Some("events") => moderation::serve(words),
        Some("xdp") => frame_selection::serve(words),
        Some("tap") => tap::serve(words),
        Some("scale") => scale::serve(words),
        Some("pointers") => splice::serve(1),
        Some("peek-stream" | "peek-place" | "peek-indirect") => peek::serve(words),
        Some(kind) if kind.starts_with("mpipe-") => mpipe::serve(words),
        _ => pipe::serve(words),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: the reading process: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the width of the terminal, or `None` if standard output is not a terminal.
fn terminal_columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

#[expect(clippy::print_stdout, reason = "rows are the output of this program")]
fn print_line(line: &str) {
    println!("{line}");
}

#[cfg(test)]
mod tests {
    use super::run_in_thread;
    use sys::process::{allowed_processors, pin_to_processor};

    #[test]
    fn bench_leaves_all_processors_to_the_next() {
        let before = allowed_processors().unwrap();
        let here = before[before.len() - 1];
        let pinned = run_in_thread("first", || {
            pin_to_processor(here).map_err(|why| why.to_string())?;
            allowed_processors().map_err(|why| why.to_string())
        });
        assert_eq!(pinned, Ok(vec![here]));
        let next = run_in_thread("second", || allowed_processors().map_err(|why| why.to_string()));
        assert_eq!(next, Ok(before));
        assert_eq!(
            run_in_thread("third", || -> Result<(), String> { panic!("a bug") }),
            Err("it panicked".to_owned())
        );
    }
}
