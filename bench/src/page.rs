//! `bench page`: processor time of the live page, of the daemon and of the paths that the page
//! shows, without a viewer and with a viewer who has selected a path.

use crate::harness::{BetterDirection, Samples, is_row_selected, median, rows_of_samples};
use crate::pipesfs::programs::Programs;
use crate::processes::processor_ns;
use crate::row::Row;
use crate::sentinel::CacheRoundTrip;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Number of running paths that the page shows.
const PATH_COUNT: usize = 50;
/// Number of filters in a path between the source and the sink.
const FILTER_COUNT: usize = 28;
/// Duration for which processor times are measured in one sample.
const SAMPLE_DURATION: Duration = Duration::from_secs(5);
/// Maximum processor time that a viewer may add to the daemon and the paths together, in percent
/// of a core.
const ADDED_TIME_PERCENT_MAX: f64 = 3.0;
/// Maximum time to wait for data from the page.
const PAGE_DATA_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn run_bench(rounds: usize) -> Result<Vec<Row>, String> {
    const ROW_NAME: &str = "50 paths of 30 nodes";
    if !is_row_selected(ROW_NAME) {
        return Ok(Vec::new());
    }
    let mut programs = Programs::start()?;
    let request = format!("generate rate=10 | {}", vec!["count"; FILTER_COUNT].join(" | "));
    for number in 0..PATH_COUNT {
        programs.add_path(&format!("p{number}"), &request)?;
    }
    let page = Page::start(&programs)?;
    let sentinel_ns = CacheRoundTrip::measure();
    let (mut rows, mut alone) = (Vec::new(), 0.0);
    for looks in [false, true] {
        let viewer = looks.then(|| Viewer::open(&page.url)).transpose()?;
        let mut shares = Vec::new();
        for _ in 0..rounds {
            shares.push(measure_processor_usage(&programs, &page)?);
        }
        drop(viewer);
        let names = if looks {
            ["daemon", "paths", "page", "daemon and paths, more"]
        } else {
            ["daemon, nobody looks", "paths, nobody looks", "page, nobody looks", ""]
        };
        if !looks {
            let all: Vec<f64> = shares.iter().map(|share| share[0] + share[1]).collect();
            alone = median(&all);
        }
        let value = |at: usize, share: &[f64; 3]| match at {
            // The page does not cause the time that the daemon and the paths use without a viewer.
            3 => share[0] + share[1] - alone,
            _ => share[at],
        };
        for (at, name) in names.into_iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            let values = shares.iter().map(|share| value(at, share)).collect();
            let subject = ("page", ROW_NAME, f64::NAN);
            let unit = ("% of a core", BetterDirection::Less);
            let mut row =
                rows_of_samples(subject, unit, sentinel_ns, &[Samples { name, values }], &[]);
            if let (Some(row), 3) = (row.last_mut(), at) {
                (row.reference, row.ratio) = ("limit", ADDED_TIME_PERCENT_MAX / row.value);
            }
            rows.append(&mut row);
        }
    }
    Ok(rows)
}

/// Returns the processor time of the daemon, of all paths and of the page during a sample, in
/// percent of a core.
fn measure_processor_usage(programs: &Programs, page: &Page) -> Result<[f64; 3], String> {
    let all = programs.process_ids();
    let (daemon, paths) = all.split_first().ok_or("no daemon")?;
    let used = || {
        let paths: u64 = paths.iter().map(|path| processor_ns(*path)).sum();
        [processor_ns(*daemon), paths, processor_ns(page.process.id())]
    };
    let (start, before) = (Instant::now(), used());
    // Without descriptors, this call only waits.
    sys::poll::wait_until_readable(&[], Some(SAMPLE_DURATION));
    let (now, took) = (used(), start.elapsed().as_nanos() as f64);
    let share = |at: usize| now[at].saturating_sub(before[at]) as f64 * 100.0 / took;
    Ok([share(0), share(1), share(2)])
}

/// The process of the page, killed on drop.
struct Page {
    process: Child,
    url: String,
}

impl Page {
    fn start(programs: &Programs) -> Result<Self, String> {
        let failed = |why: std::io::Error| format!("`streamline page`: {why}");
        let mut command = programs.command("page");
        command.args(["page", "--listen", "127.0.0.1:0", "--socket"]);
        command.arg(programs.daemon_directory()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(failed)?;
        let mut url = String::new();
        if let Some(output) = process.stdout.take() {
            BufReader::new(output).read_line(&mut url).map_err(failed)?;
        }
        let page = Self { process, url: url.trim().to_owned() };
        if page.url.is_empty() {
            let build = "`cargo build --release -p streamline-page` builds the page";
            return Err(format!("{}; {build}", programs.messages("page").trim()));
        }
        Ok(page)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A viewer who has selected a path. Reads the figures and discards them.
struct Viewer(TcpStream);

impl Viewer {
    /// Opens the page's stream of figures, and waits until all paths have a rate.
    fn open(url: &str) -> Result<Self, String> {
        let parts = url.strip_prefix("http://").and_then(|rest| rest.split_once("/#token="));
        let (host, token) = parts.ok_or_else(|| format!("an unexpected URL: {url}"))?;
        let failed = |why: std::io::Error| why.to_string();
        let mut socket = TcpStream::connect(host).map_err(failed)?;
        socket.set_read_timeout(Some(PAGE_DATA_TIMEOUT)).map_err(failed)?;
        let request = format!(
            "GET /api/live?path=1 HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
        socket.write_all(request.as_bytes()).map_err(failed)?;
        let viewer = Self(socket.try_clone().map_err(failed)?);
        let mut events = BufReader::new(socket);
        let mut line = String::new();
        while !has_all_rates(&line) {
            line.clear();
            if events.read_line(&mut line).map_err(failed)? == 0 {
                return Err("the page has ended".to_owned());
            }
        }
        std::thread::spawn(move || {
            let mut bytes = [0; 1 << 16];
            while events.read(&mut bytes).is_ok_and(|length| length > 0) {}
        });
        Ok(viewer)
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

fn has_all_rates(line: &str) -> bool {
    let Some(data) = line.strip_prefix("data: ") else { return false };
    let event: Value = serde_json::from_str(data).unwrap_or_default();
    let paths = event["paths"].as_array().map(Vec::as_slice).unwrap_or_default();
    let has_rate = |path: &&Value| path["rate"]["blocks"].as_f64() > Some(0.0);
    paths.iter().filter(has_rate).count() == PATH_COUNT
}
