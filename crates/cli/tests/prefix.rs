//! Tests of shared prefixes (`--prefix=shared`), with traffic over a virtual cable: requests that
//! begin with the same filters share one process for these filters.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;
#[path = "prefix/prefix_processes.rs"]
mod prefix_processes;

use common::{ChildGuard, CommandResult, Folder};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use testkit::net::{DevicePairSettings, NamespacePair, SERVER, SERVER_DEVICE};
use testkit::wait_until;

const PORT: u16 = 80;
const PREFIX: &str = "rx server0 both=yes | tcp";

/// A virtual cable, with a daemon and a web server at one end.
struct PrefixFixture {
    pair: NamespacePair,
    folder: Folder,
    daemon: Option<ChildGuard>,
    server: Option<JoinHandle<()>>,
    ended: Arc<AtomicBool>,
}

impl PrefixFixture {
    fn new() -> Option<Self> {
        let pair = NamespacePair::new(DevicePairSettings::default())?;
        let listener =
            pair.server.run_in_network_namespace(|| TcpListener::bind((SERVER, PORT)).unwrap());
        let ended = Arc::new(AtomicBool::new(false));
        let is_ended = Arc::clone(&ended);
        let server = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if is_ended.load(Ordering::Relaxed) {
                    return;
                }
                let stream = stream.unwrap();
                std::thread::spawn(move || serve_connection(stream));
            }
        });
        let folder = Folder::new();
        let mut site = Self { pair, folder, daemon: None, server: Some(server), ended };
        let mut daemon =
            site.command(&["daemon", "--socket", site.daemon_directory().to_str().unwrap()]);
        let silent = daemon.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        site.daemon = Some(ChildGuard(silent.spawn().unwrap()));
        wait_until("a daemon answers", || site.run(&["ps"]).status == Some(0));
        Some(site)
    }

    fn daemon_directory(&self) -> std::path::PathBuf {
        self.folder.path().join("daemon")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.pair.server.command(env!("CARGO_BIN_EXE_streamline"));
        command.args(words).current_dir(self.folder.path());
        command.env("STREAMLINE_DAEMON", self.daemon_directory()).env("NO_COLOR", "1");
        command.env("XDG_STATE_HOME", self.folder.path().join("state"));
        command
    }

    fn run(&self, words: &[&str]) -> CommandResult {
        CommandResult::from(self.command(words).output().unwrap())
    }

    /// Starts a request as a path with a name, and waits until its source is open.
    fn start(&self, name: &str, line: &str) -> Reader {
        let file = |end: &str| File::create(self.folder.path().join(format!("{name}.{end}")));
        let report = format!("--report={name}.report");
        let mut command = self.command(&["run", "--json", &report, "--as", name, line]);
        command.stdout(file("out").unwrap()).stderr(file("err").unwrap());
        let mut reader = Reader { name: name.to_owned(), child: command.spawn().unwrap() };
        wait_until("it is listed", || {
            let ended = reader.child.try_wait().unwrap();
            assert_eq!(ended, None, "{}", self.folder.read(&format!("{name}.err")));
            self.listed_paths().contains(name)
        });
        reader
    }

    fn listed_paths(&self) -> String {
        self.run(&["ps"]).out
    }

    /// Returns the ids of the processes that run shared prefixes.
    fn prefix_server_ids(&self) -> Vec<u32> {
        self.server_ids_by_request("| share ")
    }

    /// Returns the process ids of the paths whose requests contain `part`.
    fn server_ids_by_request(&self, part: &str) -> Vec<u32> {
        let paths: Value = serde_json::from_str(&self.run(&["ps", "--json"]).out).unwrap();
        let all = paths["paths"].as_array().unwrap().iter();
        let serves = |path: &&Value| path["line"].as_str().unwrap().contains(part);
        let process = |path: &Value| u32::try_from(path["process"].as_u64().unwrap()).unwrap();
        all.filter(serves).map(process).collect()
    }

    /// Opens a connection from the client to the web server.
    fn open_connection(&self) -> Connection {
        Connection(BufReader::new(
            self.pair
                .client
                .run_in_network_namespace(|| TcpStream::connect((SERVER, PORT)).unwrap()),
        ))
    }

    /// Requests responses of these sizes in bytes, each over a separate connection.
    fn request_over_separate_connections(&self, sizes: impl IntoIterator<Item = usize>) {
        sizes.into_iter().for_each(|size| self.open_connection().request_http_body(size));
    }

    /// Waits until a reader has printed at least `count` HTTP messages.
    fn wait_until_printed(&self, reader: &Reader, count: usize) {
        wait_until("it has printed them", || self.printed_messages(reader).len() >= count);
    }

    /// Returns, for each HTTP message that a reader has printed, the path of a request or the
    /// status of a response.
    fn printed_messages(&self, reader: &Reader) -> Vec<String> {
        let out = self.folder.read(&format!("{}.out", reader.name));
        let whole = out.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let message = |line: &str| -> Option<String> {
            let message: Value = serde_json::from_str(line).ok()?;
            let what = message.get("url").or_else(|| message.get("status"))?;
            Some(what.to_string())
        };
        whole.filter_map(message).collect()
    }

    /// Stops a reader, and asserts that its ledger balances. Returns its report.
    fn stop(&self, mut reader: Reader) -> Value {
        signal_process(reader.child.id(), "-INT");
        let ended = reader.child.wait().unwrap();
        let errors = self.folder.read(&format!("{}.err", reader.name));
        assert!(ended.success(), "{}: {ended}: {errors}", reader.name);
        let report = self.folder.read(&format!("{}.report", reader.name));
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["balanced"], true, "{report}");
        report
    }
}

impl Drop for PrefixFixture {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = self.pair.client.run_in_network_namespace(|| TcpStream::connect((SERVER, PORT)));
        self.server.take().map(JoinHandle::join);
    }
}

/// Serves the HTTP requests on one connection. The body of the response to `/N` has N bytes. The
/// body of the response to `/half/N` also has N bytes, but its second half is sent only after the
/// client has sent one more byte.
fn serve_connection(stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut to = stream;
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if line == "\r\n" {
                break;
            }
            head.push(line);
        }
        let path = head[0].split(' ').nth(1).unwrap();
        let size: usize = path.rsplit('/').next().unwrap().parse().unwrap();
        let body = vec![b'x'; size];
        let (first, second) = body.split_at(size / 2);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n");
        to.write_all(&[head.as_bytes(), first].concat()).unwrap();
        if path.starts_with("/half/") {
            reader.read_exact(&mut [0]).unwrap();
        }
        to.write_all(second).unwrap();
    }
}

/// A connection from the client to the web server.
struct Connection(BufReader<TcpStream>);

impl Connection {
    fn send_text(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    /// Requests a body of `size` bytes, and reads the response.
    fn request_http_body(&mut self, size: usize) {
        self.send_text(&format!("GET /{size} HTTP/1.1\r\nHost: here\r\n\r\n"));
        self.read_bytes(size, true);
    }

    fn read_bytes(&mut self, size: usize, with_head: bool) {
        let mut line = String::new();
        while with_head && line != "\r\n" {
            line.clear();
            self.0.read_line(&mut line).unwrap();
        }
        self.0.read_exact(&mut vec![0; size]).unwrap();
    }
}

/// A running request of a test, which is killed on drop. It reads a shared prefix if its text
/// begins with `--prefix=shared`.
struct Reader {
    name: String,
    child: Child,
}

impl Reader {
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal_process(process: u32, name: &str) {
    let done = Command::new("kill").arg(name).arg(process.to_string()).status();
    assert!(done.unwrap().success(), "{name} {process}");
}

fn prefix_request(rest: &str) -> String {
    format!("--prefix=shared {PREFIX} | http |{rest} json")
}

fn http_request_paths(sizes: impl IntoIterator<Item = usize>) -> Vec<String> {
    sizes.into_iter().map(|size| format!("\"/{size}\"")).collect()
}

/// Asserts that the field `remark` of the source `shared` in a report contains the text `what`.
fn assert_source_remark(site: &PrefixFixture, report: &Value, what: &str) {
    let remark = shared_source_counters(report)["remark"].as_str().unwrap();
    assert!(remark.contains(what), "{remark}: {}", site.listed_paths());
}

/// Returns the counters of the source `shared` in a report.
fn shared_source_counters(report: &Value) -> &Value {
    &report["sources"][0]
}

#[test]
fn o6_o7_sharers_print_what_private_requests_print() {
    let Some(site) = PrefixFixture::new() else { return };
    assert_eq!(SERVER_DEVICE, "server0");
    let private = site.start("private", &format!("--prefix=private {PREFIX} | http |request json"));
    let [one, other] = ["one", "other"].map(|name| site.start(name, &prefix_request("request")));
    let answers = site.start("answers", &prefix_request("response"));
    // One process reassembles streams for all three requests.
    assert_eq!(site.prefix_server_ids().len(), 1, "{}", site.listed_paths());
    let mut several = site.open_connection();
    (1..20).for_each(|size| several.request_http_body(size * 100));
    site.request_over_separate_connections(20..60);
    let wanted: Vec<String> = http_request_paths((1..20).map(|size| size * 100).chain(20..60));
    for reader in [&private, &one, &other, &answers] {
        site.wait_until_printed(reader, wanted.len());
    }
    assert_eq!(site.printed_messages(&answers).len(), wanted.len());
    for reader in [&private, &one, &other] {
        assert_eq!(site.printed_messages(reader), wanted, "{}", reader.name);
    }
    drop(several);
    site.stop(private);
    for reader in [one, other, answers] {
        let report = site.stop(reader);
        assert_eq!(report["lost"], 0, "{report}");
        let source = shared_source_counters(&report);
        assert_eq!(source["name"], "shared");
        assert_eq!(source["seen"], source["given"], "{report}");
    }
    // The process that runs the prefix exits after its last reader, without waiting for another
    // block.
    wait_until("it has ended", || site.prefix_server_ids().is_empty());
}

/// Inserts a filter that reads bytes (`match`) into a path that reads a shared prefix. Asserts that
/// the path then receives the bytes of messages, and that its counts equal those of a path that
/// runs its prefix itself.
#[test]
fn o6_sharer_gets_bytes_once_a_filter_reads_them() {
    let Some(site) = PrefixFixture::new() else { return };
    let tail = format!("{PREFIX} | http |request count");
    let private = site.start("private", &format!("--prefix=private {tail}"));
    let sharer = site.start("sharer", &format!("--prefix=shared {tail}"));
    let count = |name: &str| {
        let top: Value =
            serde_json::from_str(&site.run(&["top", "--once", "--json", name]).out).unwrap();
        let nodes = top["nodes"].as_array().unwrap();
        let last = nodes.iter().find(|node| node["name"] == "count").unwrap();
        last["taken"]["blocks"].as_u64().unwrap()
    };
    let wait_equal = |least: u64| {
        wait_until("both have counted", || {
            let counts = ["private", "sharer"].map(count);
            counts[0] == counts[1] && counts[0] >= least
        });
        count("private")
    };
    site.request_over_separate_connections(20..40);
    // Each message is two blocks, its description and its bytes. `match` passes only the second
    // one.
    let before = wait_equal(2 * 20);
    for name in ["private", "sharer"] {
        let set = site.run(&["set", name, "insert", "match \"GET /5\"", "before", "count"]);
        assert_eq!(set.status, Some(0), "{}", set.err);
    }
    site.request_over_separate_connections(45..55);
    wait_equal(before + 5);
    let reports = [private, sharer].map(|reader| site.stop(reader));
    let taken = |report: &Value| report["filters"].as_array().unwrap().last().cloned().unwrap();
    let [private, shared] = reports.each_ref().map(taken);
    assert_eq!(private["taken"], shared["taken"], "{}", reports[1]);
    assert_eq!(reports[1]["lost"], 0, "{}", reports[1]);
    assert_eq!(private["taken"]["blocks"], before + 5, "{}", reports[0]);
}

#[test]
fn o6_joining_leaving_or_killed_sharers_disturb_no_other() {
    let Some(site) = PrefixFixture::new() else { return };
    let mut first = site.start("first", &prefix_request("request"));
    let stays = site.start("stays", &prefix_request("request"));
    let mut open = site.open_connection();
    open.request_http_body(100);
    site.wait_until_printed(&stays, 1);
    first.kill();
    let late = site.start("late", &prefix_request("request"));
    let streams = site.start("streams", &format!("--prefix=shared {PREFIX} | count"));
    open.request_http_body(101);
    site.request_over_separate_connections(200..210);
    let wanted = http_request_paths([100, 101].into_iter().chain(200..210));
    site.wait_until_printed(&stays, 12);
    site.wait_until_printed(&late, 11);
    assert_eq!(site.printed_messages(&stays), wanted);
    // A sharer that starts late receives all messages that begin after its start, even on a
    // connection that was already open.
    assert_eq!(site.printed_messages(&late), wanted[1..]);
    let report = site.stop(late);
    assert_eq!(report["lost"], 0, "{report}");
    assert_source_remark(&site, &report, "11 messages of `rx server0 both=yes | tcp | http`");
    // A sharer of streams that starts late receives nothing from a connection that was already
    // open.
    let report = site.stop(streams);
    assert_source_remark(&site, &report, "10 connections of `rx server0 both=yes | tcp`");
    assert_source_remark(&site, &report, "had begun before this request joined");
    open.request_http_body(102);
    site.wait_until_printed(&stays, 13);
    assert_eq!(site.prefix_server_ids().len(), 1);
    assert_eq!(site.stop(stays)["lost"], 0);
}

#[test]
fn o6_stopped_sharer_reports_its_loss_and_delays_no_other() {
    const BODY_BYTES: usize = 40 << 20;
    let Some(site) = PrefixFixture::new() else { return };
    let exchange = |path: &str, size: usize| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: here\r\n\r\n").len();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n").len();
        (request + head + size) as u64
    };
    let before = exchange("/10", 10);
    // The stream includes the byte with which the client requests the second half.
    let sent =
        before + exchange(&format!("/half/{BODY_BYTES}"), BODY_BYTES) + 1 + exchange("/11", 11);
    let given = |name: &str| {
        let top = site.run(&["top", "--once", "--json", name]).out;
        let top: Value = serde_json::from_str(&top).unwrap();
        top["given"]["bytes"].as_u64().unwrap_or_default()
    };
    let reads = site.start("reads", &format!("--prefix=shared {PREFIX} | count"));
    let stops = site.start("stops", &format!("--prefix=shared {PREFIX} | count"));
    let mut open = site.open_connection();
    open.request_http_body(10);
    wait_until("it knows the connection", || given("stops") == before);
    signal_process(stops.child.id(), "-STOP");
    open.send_text(&format!("GET /half/{BODY_BYTES} HTTP/1.1\r\nHost: here\r\n\r\n"));
    open.read_bytes(BODY_BYTES / 2, true);
    // The other sharer receives the first half without delay.
    wait_until("what was sent has arrived", || given("reads") >= (BODY_BYTES / 2) as u64);
    signal_process(stops.child.id(), "-CONT");
    open.send_text("!");
    open.read_bytes(BODY_BYTES / 2, false);
    open.request_http_body(11);
    drop(open);
    for name in ["reads", "stops"] {
        wait_until("all bytes have arrived", || given(name) == sent);
    }
    let (whole, torn) = (site.stop(reads), site.stop(stops));
    let lost = torn["lost"].as_u64().unwrap();
    let [whole, torn] = [shared_source_counters(&whole), shared_source_counters(&torn)];
    assert!(lost > 0 && torn["dropped"]["overwritten"] == lost, "{torn}");
    // The lost part of the connection appears as a hole of the same length, so the total is the
    // same.
    assert_eq!([&whole["given"]["bytes"], &torn["given"]["bytes"]], [sent, sent], "{torn}");
}

#[test]
fn o6_o7_longer_and_shorter_prefixes_run_tcp_and_http_once() {
    let Some(site) = PrefixFixture::new() else { return };
    let gets = site.start("gets", &prefix_request("get"));
    let all = site.start("all", &prefix_request("request"));
    let streams = site.start("streams", &format!("--prefix=shared {PREFIX} | count"));
    // One process runs both prefixes.
    assert_eq!(site.prefix_server_ids().len(), 1, "{}", site.listed_paths());
    site.request_over_separate_connections(10..30);
    [&gets, &all].iter().for_each(|reader| site.wait_until_printed(reader, 20));
    let late_one = site.start("late", &prefix_request("request"));
    // The prefix of this request extends a prefix that is already running.
    let classes = site.start("classes", &format!("--prefix=shared {PREFIX} |80 http |get json"));
    assert_eq!(site.prefix_server_ids().len(), 2, "{}", site.listed_paths());
    site.request_over_separate_connections(30..40);
    [&late_one, &classes].iter().for_each(|reader| site.wait_until_printed(reader, 10));
    [&gets, &all].iter().for_each(|reader| site.wait_until_printed(reader, 30));
    assert_eq!(
        [&gets, &all].map(|reader| site.printed_messages(reader)),
        [http_request_paths(10..40), http_request_paths(10..40)]
    );
    assert_eq!(site.printed_messages(&late_one), http_request_paths(30..40));
    assert_eq!(site.printed_messages(&classes), http_request_paths(30..40));
    let explained = site.run(&["explain", &prefix_request("get")]).out;
    assert!(
        explained.contains("`rx server0 both=yes | tcp | http` with 3 requests"),
        "{explained}"
    );
    // `explain` reports running requests that begin with the same filters. A filter in a shared
    // prefix cannot be changed.
    let alike = site.run(&["explain", &format!("--prefix=private {PREFIX} | http |get json")]).out;
    assert!(alike.contains("`rx server0 both=yes | tcp | http` also begins paths "), "{alike}");
    for (path, why) in [
        ("gets", "it runs in the shared prefix `rx server0 both=yes | tcp | http`"),
        ("1", "it runs `rx server0 both=yes | tcp` for other requests"),
    ] {
        let refused = site.run(&["set", path, "arg", "tcp", "gap=2s"]);
        assert_ne!(refused.status, Some(0));
        assert!(refused.err.contains(why), "{}", refused.err);
        assert!(refused.err.contains("`--prefix=private`"), "{}", refused.err);
    }
    let streamed = site.stop(streams);
    assert_source_remark(&site, &streamed, "30 connections of `rx server0 both=yes | tcp`");
    for reader in [gets, all, late_one, classes] {
        let report = site.stop(reader);
        assert_eq!(report["lost"], 0, "{report}");
        assert_source_remark(&site, &report, "http`, which runs once for all that share it");
    }
    wait_until("both have ended", || site.prefix_server_ids().is_empty());
}

#[test]
fn o6_request_joins_a_running_prefix_of_messages() {
    let Some(site) = PrefixFixture::new() else { return };
    let plain = format!("{PREFIX} | http |get json");
    let alone = site.start("alone", &plain);
    assert!(site.prefix_server_ids().is_empty(), "{}", site.listed_paths());
    let shares = site.start("shares", &prefix_request("request"));
    let joins = site.start("joins", &plain);
    let private = site.start("private", &format!("--prefix=private {plain}"));
    let streams = site.start("streams", &format!("{PREFIX} | count"));
    assert_eq!(site.prefix_server_ids().len(), 1, "{}", site.listed_paths());
    let explained = site.run(&["explain", &plain]);
    assert!(
        explained.out.contains("`rx server0 both=yes | tcp | http` with 2 requests"),
        "{explained:?}"
    );
    assert!(explained.err.contains("with `--prefix=private` it runs its own"), "{explained:?}");
    site.request_over_separate_connections(10..20);
    let all = [&alone, &shares, &joins, &private];
    all.iter().for_each(|reader| site.wait_until_printed(reader, 10));
    all.iter()
        .for_each(|reader| assert_eq!(site.printed_messages(reader), http_request_paths(10..20)));
    site.stop(shares);
    let joined = site.stop(joins);
    assert_source_remark(&site, &joined, "http`, which runs once for all that share it");
    // The prefix is not shared by a request that started earlier, requires a private prefix, or
    // reads streams.
    for reader in [alone, private, streams] {
        assert_eq!(site.stop(reader)["sources"][0]["name"], "rx");
    }
    wait_until("the prefix has ended", || site.prefix_server_ids().is_empty());
}
