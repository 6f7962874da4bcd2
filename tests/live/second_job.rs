//! Test of the paper's second shell job over PipesFS: requests of persistent connections pass
//! through grep, and are parsed again after it. [SL §4.1]

use crate::scratch::Scratch;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use testkit::need;
use testkit::net::{
    DevicePairSettings, Namespace, NamespacePair, SERVER, SERVER_DEVICE, wait_until,
};
use testkit::streamline_program;

/// The shell job as printed in the paper, for PipesFS mounted at `/pipes`.
const SHELL_JOB: [&str; 3] = [
    "mkdir /pipes/httpclean",
    "mv /pipes/[...]/http/get /pipes/httpclean/",
    r"cat /pipes/[...]/http/all | grep -v '\.\.' > /pipes/httpclean/all",
];
/// The directories between the source and `http`, for which the paper prints `[...]`.
const SOURCE_DIRECTORIES: &str = "ip/dport/80/untcp";
/// The filters after the source of the path that the job changes and reads.
const PATH_FILTERS: &str = "ip | dport |80 untcp | http |get count";
/// Number of requests per connection. The line of every seventh request contains `..`, so that the
/// job removes the request.
const REQUESTS_PER_CONNECTION: usize = 1000;
const CONNECTIONS: usize = 10;

/// A server that replies to each request of a persistent connection.
const SERVER_PROGRAM: &str = r"
import socket, threading
listener = socket.create_server(('SERVER', 80), backlog=64)
def serve(peer):
    text = b''
    while part := peer.recv(65536):
        text += part
        count = text.count(b'\r\n\r\n')
        text = text[text.rfind(b'\r\n\r\n') + 4:] if count else text
        peer.sendall(b'HTTP/1.1 204 No Content\r\n\r\n' * count)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
";
/// A client with several connections, each of which waits for ten replies after ten requests.
const CLIENT_PROGRAM: &str = r"
import socket, threading
def ask(number):
    peer = socket.create_connection(('SERVER', 80))
    replies = peer.makefile('rb')
    for first in range(0, REQUESTS, 10):
        for n in range(first, first + 10):
            up = '/..' if n % 7 == 0 else ''
            peer.sendall(f'GET {up}/c{number}/{n} HTTP/1.1\r\nHost: h\r\nX-N: {n}\r\n\r\n'.encode())
        for n in range(10):
            assert b'204' in replies.readline()
            replies.readline()
threads = [threading.Thread(target=ask, args=(n,)) for n in range(CONNECTIONS)]
for thread in threads: thread.start()
for thread in threads: thread.join()
";

/// A process that is killed on drop.
pub(crate) struct KillOnDropChild(pub(crate) Child);

impl Drop for KillOnDropChild {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A mount that is removed on drop.
pub(crate) struct MountGuard(pub(crate) PathBuf);

impl MountGuard {
    fn read_number_file(&self, name: &str) -> u64 {
        fs::read_to_string(self.0.join(name))
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0)
    }
}

impl Drop for MountGuard {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).stderr(Stdio::null()).status();
    }
}

pub(crate) fn spawn(mut command: Command) -> KillOnDropChild {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    KillOnDropChild(command.spawn().expect("a program"))
}

pub(crate) fn streamline_command(words: &[&str], daemon: &str) -> Command {
    let mut command = Command::new(streamline_program());
    command.args(words).env("STREAMLINE_DAEMON", daemon);
    command
}

/// Stops the path whose listing contains a word.
fn stop_path_listed_with(word: &str, daemon: &str) {
    let listed = streamline_command(&["ps"], daemon).output().expect("ps").stdout;
    let listed = String::from_utf8_lossy(&listed);
    let line = listed.lines().find(|line| line.contains(word)).expect("the path");
    let number = line.split_whitespace().next().expect("a number");
    assert!(streamline_command(&["stop", number], daemon).status().expect("stop").success());
}

/// Waits until a process has opened this file.
fn wait_until_file_is_open(file: &Path) {
    wait_until("the stream is open", || {
        let processes = fs::read_dir("/proc").expect("processes").flatten();
        let mut open = processes.filter_map(|one| fs::read_dir(one.path().join("fd")).ok());
        open.any(|all| all.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == file)))
    });
}

/// Returns a request as the client sends it.
fn http_request_text(connection: usize, number: usize) -> String {
    let up = if number.is_multiple_of(7) { "/.." } else { "" };
    format!("GET {up}/c{connection}/{number} HTTP/1.1\r\nHost: h\r\nX-N: {number}\r\n\r\n")
}

/// Returns a Python program in which the addresses and numbers of this test replace the
/// placeholders.
fn replace_placeholders(program: &str) -> String {
    program
        .replace("SERVER", SERVER)
        .replace("REQUESTS", &REQUESTS_PER_CONNECTION.to_string())
        .replace("CONNECTIONS", &CONNECTIONS.to_string())
}

/// Asserts that a text contains each request without `..` exactly once, in the order of its
/// connection.
fn assert_each_clean_request_once(text: &str) {
    let got = request_numbers_in(text);
    for connection in 0..CONNECTIONS {
        let own = got.iter().filter(|(of, _)| *of == connection).map(|(_, number)| *number);
        let sent = (0..REQUESTS_PER_CONNECTION).filter(|number| !number.is_multiple_of(7));
        assert!(own.eq(sent), "each clean request of connection {connection} once, in order");
    }
    assert_eq!(got.len(), text.matches("X-N: ").count(), "each request is whole");
    assert!(!text.contains(".."));
}

/// Returns, for each request in a text, the number of its connection and its number in the
/// connection.
fn request_numbers_in(text: &str) -> Vec<(usize, usize)> {
    let line = |line: &str| {
        let path = line.trim_end().strip_prefix("GET /c")?.strip_suffix(" HTTP/1.1")?;
        let (connection, number) = path.split_once('/')?;
        Some((connection.parse().ok()?, number.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

#[test]
fn b8_each_clean_request_passes_once_and_in_order() {
    run_clean_requests_job("rx", "thread0");
}

#[test]
fn b8_clean_requests_pass_with_filters_in_the_kernel() {
    run_clean_requests_job(&format!("rx {SERVER_DEVICE}"), "kernel");
}

/// Returns the command that runs a Python program in a namespace.
fn python_command(namespace: &Namespace, program: &str) -> Command {
    let mut command = namespace.command("python3");
    command.args(["-c", &replace_placeholders(program)]);
    command
}

/// Returns the length in bytes of all requests that the client sends.
fn bytes_sent() -> u64 {
    let sent = (0..CONNECTIONS).flat_map(|connection| {
        (0..REQUESTS_PER_CONNECTION)
            .map(move |number| http_request_text(connection, number).len() as u64)
    });
    sent.sum()
}

/// Runs the paper's shell job on a path with the given source, whose filter `dport` must run in the
/// space `space`.
fn run_clean_requests_job(source: &str, space: &str) {
    let here = (|| {
        need::require_root()?;
        need::require_file("/dev/fuse")?;
        need::require_command("python3")?;
        NamespacePair::new(DevicePairSettings::default())
    })();
    let Some(pair) = here else { return };
    let folder = Scratch::new();
    let (daemon, pipes) = (folder.path("daemon").display().to_string(), folder.path("pipes"));
    fs::create_dir(&pipes).expect("a folder");
    let _daemon = spawn(streamline_command(&["daemon", "--socket", &daemon], &daemon));
    wait_until("a daemon answers", || {
        streamline_command(&["ps"], &daemon).output().is_ok_and(|ran| ran.status.success())
    });
    let _server = spawn(python_command(&pair.server, SERVER_PROGRAM));
    pair.server.wait_until_listening((SERVER, 80));
    let mut path = pair.server.command(streamline_program());
    path.args(["run", "-q", "--no-adapt", &format!("{source} | {PATH_FILTERS}")])
        .env("STREAMLINE_DAEMON", &daemon);
    let _path = spawn(path);
    let mounted = MountGuard(pipes.clone());
    let mount = streamline_command(&["mount"], &daemon).arg(&pipes).stderr(Stdio::null()).status();
    assert!(mount.expect("a mount").success());
    let above = format!("{}/{SOURCE_DIRECTORIES}", source.replace(' ', ":"));
    let head = format!("{above}/http");
    wait_until("the path is shown", || pipes.join(&head).join("get/count").is_dir());
    let place = pipes.join(&above).join("../../place");
    assert_eq!(fs::read_to_string(place).expect("a place").trim(), space);
    let shell = |script: &str| {
        let mounted = pipes.display().to_string();
        let script = script.replace("[...]", &above).replace("/pipes", &mounted);
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]);
        shell
    };
    for step in &SHELL_JOB[..2] {
        let done = shell(step).status().expect("a shell");
        let why = fs::read_to_string(pipes.join(".error")).unwrap_or_default();
        assert!(done.success(), "{step}: {why}");
    }
    let get = pipes.join("httpclean/http/get/all");
    wait_until("the moved part is shown", || get.symlink_metadata().is_ok());
    let received = folder.path("received");
    let mut reader = Command::new("cat");
    reader.arg(&get).stdout(fs::File::create(&received).expect("a file"));
    let mut reader = KillOnDropChild(reader.spawn().expect("cat"));
    wait_until_file_is_open(&get.with_file_name(".streams").join("all"));
    let mut job = KillOnDropChild(shell(SHELL_JOB[2]).spawn().expect("a shell"));
    wait_until_file_is_open(&pipes.join(&head).join(".streams/all"));
    assert!(python_command(&pair.client, CLIENT_PROGRAM).status().expect("a client").success());
    let sent = bytes_sent();
    wait_until("all are read", || {
        mounted.read_number_file(&format!("{head}/stats/taken_by_readers")) == sent
    });
    // The end of the first path ends the job, as grep keeps its output until then.
    stop_path_listed_with("untcp", &daemon);
    wait_until("the job ends", || job.0.try_wait().expect("a child").is_some());
    let written = || mounted.read_number_file("httpclean/stats/written");
    wait_until("all are written", || {
        written() > 0 && written() == mounted.read_number_file("httpclean/stats/bytes")
    });
    assert!(written() < sent, "lines are missing");
    assert!(streamline_command(&["stop", "httpclean"], &daemon).status().expect("stop").success());
    wait_until("the reader ends", || reader.0.try_wait().expect("a child").is_some());
    let text = fs::read_to_string(&received).expect("a text");
    assert_each_clean_request_once(&text);
}
