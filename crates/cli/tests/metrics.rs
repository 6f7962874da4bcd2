//! Tests of `--metrics` and `--alarm`. The metrics equal the report, and are accepted by an
//! OpenMetrics parser and by Prometheus. Every query of the Grafana dashboard has a result.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::{ChildGuard, CommandResult, Folder};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use testkit::{need, wait_until};

const WEB_REQUEST: &str = "replay examples/web.pcap | tcp | http | pcap out.pcap";
/// Maximum length, in bytes, of an HTTP request head that a server accepts.
const REQUEST_HEAD_BYTES_MAX: usize = 8 << 10;
/// A time limit that is long enough for a busy machine.
const LONG_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the value of a time series in a text of Prometheus metrics. `series` contains the name
/// and the labels.
fn series_value(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{series} is not in\n{text}")).parse().unwrap()
}

/// Sends a request to an address and returns the response.
fn send_http_request(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG_TIMEOUT)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut reply = Vec::new();
    // A server that does not read all of the request resets the connection after its response.
    let _ = stream.read_to_end(&mut reply);
    String::from_utf8(reply).unwrap()
}

/// Requests the metrics from a server. Returns the body of the response.
fn scrape(address: &str, accept: &str) -> String {
    let reply = send_http_request(
        address,
        &format!("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n"),
    );
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    body.to_owned()
}

/// Starts a command that serves metrics on a free port. Returns the process, the address of the
/// server, and standard error.
fn start_server(
    mut command: Command,
) -> (ChildGuard, String, BufReader<std::process::ChildStderr>) {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child: Child = command.spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let child = ChildGuard(child);
    let mut line = String::new();
    let address = loop {
        line.clear();
        assert!(errors.read_line(&mut line).unwrap() > 0, "no address is printed");
        if let Some((_, place)) = line.split_once("metrics are at http://") {
            break place.trim().trim_end_matches("/metrics").to_owned();
        }
    };
    (child, address, errors)
}

fn report_amount(of: &Value, field: &str, unit: &str) -> u64 {
    of[field][unit].as_u64().unwrap()
}

#[test]
fn metrics_file_equals_the_final_report() {
    let folder = Folder::new();
    let ran =
        folder.run(&["run", WEB_REQUEST, "--metrics", "web.prom", "--json", "--report", "r.json"]);
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    let (text, report) = (folder.read("web.prom"), folder.read("r.json"));
    let report: Value = serde_json::from_str(&report).unwrap();
    let mut compared = 0;
    for filter in report["filters"].as_array().unwrap() {
        let (name, space) = (filter["name"].as_str().unwrap(), filter["space"].as_str().unwrap());
        if name.contains(' ') {
            continue;
        }
        let series = |family: &str| {
            let labels = format!("path=\"web\",filter=\"{name}\",space=\"{space}\"");
            series_value(&text, &format!("streamline_filter_{family}{{{labels}}}"))
        };
        for unit in ["blocks", "bytes"] {
            let both = report_amount(filter, "taken", unit) + report_amount(filter, "made", unit);
            assert_eq!(series(&format!("{unit}_total")), both as f64, "{name}");
        }
        for fate in ["passed", "unselected", "consumed"] {
            let blocks = report_amount(filter, fate, "blocks") as f64;
            assert_eq!(series(&format!("{fate}_blocks_total")), blocks, "{name} {fate}");
        }
        compared += 1;
    }
    assert_eq!(compared, 4);
    let lost = report["lost"].as_u64().unwrap() as f64;
    assert_eq!(series_value(&text, "streamline_path_lost_blocks_total{path=\"web\"}"), lost);
    assert_eq!(series_value(&text, "streamline_path_up{path=\"web\"}"), 0.0);
    let ring = "path=\"web\",from=\"http\",to=\"pcap\"";
    let taken = series_value(&text, &format!("streamline_ring_taken_blocks_total{{{ring}}}"));
    let edges = report["edges"].as_array().unwrap();
    let edge = edges.iter().find(|edge| edge["kind"] == "ring").unwrap();
    assert_eq!(taken, report_amount(edge, "taken", "blocks") as f64);
    let elapsed = series_value(&text, "streamline_path_elapsed_seconds{path=\"web\"}");
    assert_eq!(elapsed, report["elapsed_ns"].as_u64().unwrap() as f64 / 1e9);
}

#[test]
fn drops_are_counted_by_reason_and_are_no_losses() {
    let folder = Folder::new();
    let line = "replay examples/web.pcap | udp | drop";
    let ran = folder.run(&["run", "-q", line, "--metrics", "d.prom"]);
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    let text = folder.read("d.prom");
    let all = series_value(
        &text,
        "streamline_filter_blocks_total{path=\"d\",filter=\"drop\",space=\"thread0\"}",
    );
    let series = "streamline_filter_dropped_total\
        {path=\"d\",filter=\"drop\",space=\"thread0\",reason=\"by request\"}";
    assert!(all > 0.0);
    assert_eq!(series_value(&text, series), all);
    assert_eq!(series_value(&text, "streamline_path_lost_blocks_total{path=\"d\"}"), 0.0);
}

#[test]
fn unusable_metrics_target_stops_the_run_before_it_begins() {
    let folder = Folder::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (target, why, status) in [
        (taken.as_str(), "already in use; choose another port", 1),
        ("no/such/dir/x.prom", "no such file or directory", 1),
        ("host:9", "`host` is not an IP address", 2),
    ] {
        let ran = folder.run(&["run", WEB_REQUEST, "--metrics", target]);
        assert_eq!(ran.status, Some(status), "{}", ran.err);
        assert!(ran.err.to_lowercase().contains(&why.to_lowercase()), "{}", ran.err);
        assert!(!folder.path().join("out.pcap").exists() || status == 1);
    }
    let ran = folder.run(&["daemon", "--metrics", "x.prom"]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.err.contains("streamline run --metrics=FILE"), "{}", ran.err);
}

#[test]
fn server_answers_only_short_reads_of_metrics() {
    let folder = Folder::new();
    let words =
        ["run", "generate rate=1000 | count", "--metrics", ":0", "--metrics", "unix:m.sock"];
    let (_run, address, _errors) = start_server(folder.streamline_command(&words));
    let text = scrape(&address, "text/plain");
    assert!(text.contains("# TYPE streamline_filter_blocks_total counter\n"), "{text}");
    let status = |request: &str| {
        send_http_request(&address, request).lines().next().unwrap_or("").to_owned()
    };
    assert_eq!(status("GET /other HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
    assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}", "a".repeat(REQUEST_HEAD_BYTES_MAX));
    assert_eq!(status(&long), "HTTP/1.1 431 Request Header Fields Too Large");
    // Clients that send nothing do not block other clients.
    let silent: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(&address).unwrap()).collect();
    assert!(scrape(&address, "*/*").contains("streamline_path_up{path=\"run\"} 1\n"));
    drop(silent);
    let mut local = UnixStream::connect(folder.path().join("m.sock")).unwrap();
    local.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    local.shutdown(Shutdown::Write).unwrap();
    let mut reply = String::new();
    local.read_to_string(&mut reply).unwrap();
    assert!(reply.contains("streamline_path_up{path=\"run\"} 1\n"), "{reply}");
    // Counters grow while the path runs.
    let series = "streamline_source_given_blocks_total{path=\"run\",source=\"generate\"}";
    let before = series_value(&text, series);
    wait_until("blocks are counted", || series_value(&scrape(&address, ""), series) > before);
}

#[test]
fn openmetrics_text_is_read_by_the_parser_of_prometheus_client() {
    let Some(python) = need::require_command("python3") else { return };
    // Python packages of the distribution are available only to the interpreter of the
    // distribution.
    let python = [Path::new("/usr/bin/python3"), &python].into_iter().find(|p| p.exists()).unwrap();
    let has = |module: &str| {
        let tried = Command::new(python).args(["-c", &format!("import {module}")]).output();
        tried.is_ok_and(|tried| tried.status.success())
    };
    if !has("prometheus_client.openmetrics.parser") {
        let _: Option<()> = need::report_skip("needs the Python module prometheus_client");
        return;
    }
    let folder = Folder::new();
    let words = ["run", "--latency=1s generate rate=1000 | pcap out.pcap", "--metrics", ":0"];
    let (_run, address, _errors) = start_server(folder.streamline_command(&words));
    let text = scrape(&address, "application/openmetrics-text; version=1.0.0");
    assert!(text.ends_with("# EOF\n"), "{text}");
    let script = "import sys\n\
         from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse\n\
         for family in parse(sys.stdin.read()):\n\
         \x20   assert family.documentation and len(family.samples) > 0, family\n\
         \x20   print(family.name, family.type, family.unit, len(family.samples))\n";
    let mut judge = Command::new(python);
    judge.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut judge = judge.spawn().unwrap();
    judge.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let judged = CommandResult::from(judge.wait_with_output().unwrap());
    assert_eq!(judged.status, Some(0), "{}\n{text}", judged.err);
    for family in [
        "streamline_filter_blocks counter blocks 2",
        "streamline_ring_fill_ratio gauge ratio 1",
        "streamline_path_elapsed_seconds gauge seconds 1",
        "streamline_latency_late_blocks counter blocks 1",
    ] {
        assert!(judged.out.lines().any(|line| line == family), "{family}: {}", judged.out);
    }
}

/// A Prometheus that scrapes one address every 0.5 s.
struct Prometheus {
    _process: ChildGuard,
    address: String,
}

impl Prometheus {
    /// Starts Prometheus. Reports a skip and returns `None` if it is not installed.
    fn start(folder: &Folder, scraped: &str) -> Option<Self> {
        let program = need::require_command("prometheus")?;
        // The test chooses a free port, because Prometheus does not print a port that it chooses
        // itself.
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        let config = format!(
            "global:\n  scrape_interval: 500ms\n  scrape_timeout: 500ms\nscrape_configs:\n  \
             - job_name: s\n    static_configs:\n      - targets: ['{scraped}']\n"
        );
        std::fs::write(folder.path().join("prometheus.yml"), config).unwrap();
        let mut command = Command::new(program);
        command.current_dir(folder.path()).args(["--config.file=prometheus.yml"]);
        command.args(["--storage.tsdb.path=data", &format!("--web.listen-address={address}")]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = ChildGuard(command.spawn().unwrap());
        let started = Self { _process: process, address };
        wait_until("Prometheus is ready", || {
            TcpStream::connect(&started.address).is_ok()
                && send_http_request(&started.address, "GET /-/ready HTTP/1.0\r\n\r\n")
                    .contains("200 OK")
        });
        Some(started)
    }

    /// Returns the result of a query: series with their labels and values.
    fn query(&self, expression: &str) -> Vec<Value> {
        let escaped: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let request = format!("GET /api/v1/query?query={escaped} HTTP/1.0\r\n\r\n");
        let reply = send_http_request(&self.address, &request);
        let (_, body) = reply.split_once("\r\n\r\n").unwrap();
        let reply: Value = serde_json::from_str(body).unwrap();
        assert_eq!(reply["status"], "success", "{expression}: {reply}");
        reply["data"]["result"].as_array().unwrap().clone()
    }
}

/// Returns each query of the dashboard with the title of its panel, and with values in place of
/// variables.
fn dashboard_queries() -> Vec<(String, String)> {
    let file = testkit::cases::workspace_root().join("dist/grafana/streamline.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter().flat_map(|panel| {
        let title = panel["title"].as_str().unwrap();
        let targets = panel["targets"].as_array().unwrap().iter();
        targets.map(move |target| (title.to_owned(), target["expr"].as_str().unwrap().to_owned()))
    });
    let filled = |(title, query): (String, String)| {
        let query = query.replace("$__rate_interval", "10s").replace("$__range", "10s");
        (title, query.replace("$path", ".*"))
    };
    panels.map(filled).collect()
}

#[test]
fn prometheus_answers_every_query_of_the_dashboard() {
    let folder = Folder::new();
    let place = folder.path().join("no-daemon").display().to_string();
    let words = ["daemon", "--socket", &place, "--metrics", ":0"];
    let (_daemon, address, _errors) = start_server(folder.streamline_command(&words));
    let Some(prometheus) = Prometheus::start(&folder, &address) else { return };
    // A path with a ring, a latency bound and drops.
    let _busy = folder.spawn_named_path(
        "busy",
        "--latency=1s generate rate=2000 | (sample 2 | pcap out.pcap + drop + count)",
    );
    // This path receives no more input, but its pipe stays open, so its counters are constant.
    let mut still = folder.streamline_command(&["run", "--as", "still", "--json"]);
    still.args(["replay - | dport |80 json"]);
    still.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut still = still.spawn().unwrap();
    let mut pipe = still.stdin.take().unwrap();
    let capture = std::fs::read(folder.path().join("examples/web.pcap")).unwrap();
    pipe.write_all(&capture).unwrap();
    folder.wait_until_listed("still");
    let blocks = "streamline_source_given_blocks_total{path=\"still\"}";
    wait_until("all blocks are scraped", || {
        prometheus.query(blocks).first().is_some_and(|found| found["value"][1] == "105")
    });
    let scraped = prometheus.query("streamline_filter_blocks_total{path=\"still\"}");
    for (title, query) in dashboard_queries() {
        // These queries may have no result: in these paths, no block is held, and none is lost
        // before a source or on an edge.
        let may_be_empty = ["Blocks held", "Drops before", "Drops between"];
        if may_be_empty.iter().any(|known| title.starts_with(known)) {
            prometheus.query(&query);
            continue;
        }
        wait_until(&format!("`{title}` has a result"), || !prometheus.query(&query).is_empty());
    }
    drop(pipe);
    let ended = CommandResult::from(still.wait_with_output().unwrap());
    assert_eq!(ended.status, Some(0), "{}", ended.err);
    let report: Value = serde_json::from_str(ended.err.trim()).unwrap();
    let filters = report["filters"].as_array().unwrap();
    assert!(scraped.len() >= 3, "{scraped:?}");
    for series in &scraped {
        let name = &series["metric"]["filter"];
        let filter = filters.iter().find(|filter| filter["name"] == *name).unwrap();
        let both =
            report_amount(filter, "taken", "blocks") + report_amount(filter, "made", "blocks");
        assert_eq!(series["value"][1], both.to_string(), "{name}");
        assert_eq!(series["metric"]["space"], filter["space"]);
    }
    let labels = ["__name__", "filter", "instance", "job", "path", "space"];
    let found: Vec<&String> = scraped[0]["metric"].as_object().unwrap().keys().collect();
    assert_eq!(found, labels);
}

#[test]
fn daemon_without_root_rights_exports_the_paths_of_all_users() {
    let Some(()) = need::require_root() else { return };
    let programs = ["unshare", "setpriv"].map(need::require_command);
    let [Some(unshare), Some(_)] = programs else { return };
    let folder = Folder::accessible_to_all();
    // Clients trust a daemon without root privileges only in the directory of the machine.
    let script = "export HOME=/run; unset STREAMLINE_DAEMON XDG_RUNTIME_DIR XDG_STATE_HOME\n\
         mount -t tmpfs tmpfs /run && mkdir -m 755 /run/streamline\n\
         chown 41011:41011 /run/streamline\n\
         as() { uid=$1; shift; setpriv --reuid=$uid --regid=$uid --clear-groups \"$@\"; }\n\
         for uid in 41012 41013; do\n\
         as $uid sh -c 'until ./streamline ps; do :; done >/dev/null 2>&1\n\
         exec ./streamline run -q --as web \"generate rate=100 | count\"' >/dev/null 2>&1 &\n\
         done\n\
         as 41011 ./streamline daemon --metrics :0";
    let mut command = Command::new(unshare);
    command.current_dir(folder.path()).args(["-m", "-p", "-f", "--kill-child", "--mount-proc"]);
    command.args(["sh", "-c", script]);
    let (_all, address, _errors) = start_server(command);
    let is_up = |name: &str| {
        let series = format!("streamline_path_up{{path=\"{name}\"}} 1");
        scrape(&address, "").lines().any(|line| line == series)
    };
    // Both users have given their path the same name.
    wait_until("both paths are exported", || is_up("41012/web") && is_up("41013/web"));
}

#[test]
fn alarm_warns_runs_its_command_and_sets_the_exit_status() {
    let folder = Folder::new();
    let condition = "blocks>=100";
    let words = ["run", WEB_REQUEST, "--alarm", condition, "--alarm-exec"];
    let command = "echo \"$STREAMLINE_ALARM is $STREAMLINE_VALUE in $STREAMLINE_PATH\" > said";
    let ran = folder.run(&[&words[..], &[command]].concat());
    assert_eq!(ran.status, Some(4), "{}", ran.err);
    assert!(ran.err.contains("warning: alarm `blocks>=100`: blocks is 105\n"), "{}", ran.err);
    assert_eq!(folder.read("said"), "blocks>=100 is 105 in run\n");
    let ran = folder.run(&["run", WEB_REQUEST, "--alarm", "lost>0", "--alarm", "fill>=90% for 5s"]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    assert!(!ran.err.contains("alarm"), "{}", ran.err);
}

#[test]
fn rate_alarm_clears_when_the_rate_falls() {
    let folder = Folder::new();
    let mut command =
        folder.streamline_command(&["run", "replay - | count", "--alarm", "blocks/s>0 for 0s"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let capture = std::fs::read(folder.path().join("examples/web.pcap")).unwrap();
    let (head, packets) = capture.split_at(24);
    pipe.write_all(head).unwrap();
    let mut line = String::new();
    // The packets are written repeatedly, until two samples of the counters differ.
    let raised = std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            errors.read_line(&mut line).unwrap();
        });
        while !waits.is_finished() {
            pipe.write_all(packets).unwrap();
            let (_, pause) = (pipe.flush(), Duration::from_millis(100));
            std::thread::park_timeout(pause);
        }
        waits.join().is_ok()
    });
    assert!(
        raised && line.starts_with("warning: alarm `blocks/s>0 for 0s`: blocks/s is "),
        "{line}"
    );
    line.clear();
    errors.read_line(&mut line).unwrap();
    assert_eq!(line, "note: alarm `blocks/s>0 for 0s` is over: blocks/s is 0\n");
    drop(pipe);
    assert_eq!(child.wait().unwrap().code(), Some(4));
}

#[test]
fn failed_alarm_command_is_reported_and_changes_nothing_else() {
    let folder = Folder::new();
    let words = ["run", WEB_REQUEST, "--alarm", "blocks>0", "--alarm-exec", "echo said; exit 7"];
    let ran = folder.run(&words);
    assert_eq!(ran.status, Some(4), "{}", ran.err);
    assert!(ran.err.contains("said\n") && !ran.out.contains("said"), "{}", ran.err);
    assert!(ran.err.contains("the command of --alarm-exec failed: exit status: 7"), "{}", ran.err);
}
