//! Test of the paper's first shell job over PipesFS, with the requests of a real client to a real
//! server over a veth pair. [SL §4.1]

use crate::scratch::Scratch;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use testkit::need;
use testkit::net::{DevicePairSettings, NamespacePair, SERVER, wait_until};
use testkit::streamline_program;

/// The shell job as printed in the paper, for PipesFS mounted at `/pipes`.
const SHELL_JOB: &str = "cat /pipes/rx/ip/dport/80/untcp/http/get/all | gzip > log.gz";
/// The request of the path that the shell job reads.
const REQUEST: &str = "rx | ip | dport |80 untcp | http |get count";
/// Number of GET requests, as many as a client makes over a few connections.
const REQUEST_COUNT: usize = 60;

/// A process that is killed on drop.
struct KillOnDropChild(Child);

impl Drop for KillOnDropChild {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A mount that is removed on drop.
struct MountGuard(PathBuf);

impl Drop for MountGuard {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).stderr(Stdio::null()).status();
    }
}

fn spawn(mut command: Command) -> KillOnDropChild {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    KillOnDropChild(command.spawn().expect("a program"))
}

fn streamline_command(words: &[&str], daemon: &str) -> Command {
    let mut command = Command::new(streamline_program());
    command.args(words).env("STREAMLINE_DAEMON", daemon);
    command
}

/// Waits until a process has opened this file.
fn wait_until_file_is_open(file: &Path) {
    wait_until("the stream is open", || {
        let processes = fs::read_dir("/proc").expect("processes").flatten();
        let mut open = processes.filter_map(|one| fs::read_dir(one.path().join("fd")).ok());
        open.any(|all| all.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == file)))
    });
}

#[test]
fn b11_each_get_request_is_compressed_once() {
    let here = (|| {
        need::require_root()?;
        need::require_file("/dev/fuse")?;
        need::require_command("python3")?;
        need::require_command("curl")?;
        NamespacePair::new(DevicePairSettings::default())
    })();
    let Some(pair) = here else { return };
    let folder = Scratch::new();
    let (daemon, pipes) = (folder.path("daemon").display().to_string(), folder.path("pipes"));
    fs::create_dir(&pipes).expect("a folder");
    for number in 0..REQUEST_COUNT {
        fs::write(folder.path(&format!("page{number}")), format!("page {number}")).expect("a file");
    }
    let _daemon = spawn(streamline_command(&["daemon", "--socket", &daemon], &daemon));
    wait_until("a daemon answers", || {
        streamline_command(&["ps"], &daemon).output().is_ok_and(|ran| ran.status.success())
    });
    let mut server = pair.server.command("python3");
    server.args(["-m", "http.server", "80", "--bind", SERVER]);
    let _server = spawn({
        server.current_dir(folder.path(""));
        server
    });
    pair.server.wait_until_listening((SERVER, 80));
    let mut path = pair.server.command(streamline_program());
    path.args(["run", "-q", REQUEST]).env("STREAMLINE_DAEMON", &daemon);
    let _path = spawn(path);
    let mounted = MountGuard(pipes.clone());
    let mut mount = streamline_command(&["mount"], &daemon);
    assert!(mount.arg(&pipes).stderr(Stdio::null()).status().expect("a mount").success());
    let stream = pipes.join("rx/ip/dport/80/untcp/http/get/all");
    wait_until("the path is shown", || stream.symlink_metadata().is_ok());
    let mut job = Command::new("sh");
    job.args(["-c", &SHELL_JOB.replace("/pipes", &pipes.display().to_string())]);
    let mut job = KillOnDropChild(job.current_dir(folder.path("")).spawn().expect("a shell"));
    wait_until_file_is_open(&stream.with_file_name(".streams").join("all"));
    let urls: Vec<String> =
        (0..REQUEST_COUNT).map(|number| format!("http://{SERVER}/page{number}")).collect();
    let mut client = pair.client.command("curl");
    client.args(["-sS", "--no-progress-meter", "--parallel", "--parallel-max", "8"]).args(&urls);
    assert!(client.stdout(Stdio::null()).status().expect("curl").success());
    // A POST request does not match the filter for GET.
    let mut post = pair.client.command("curl");
    post.args(["-s", "-d", "x", &format!("http://{SERVER}/page0")]);
    assert!(post.stdout(Stdio::null()).status().expect("curl").success());
    let counted = stream.with_file_name("count").join("stats/blocks");
    let blocks = || fs::read_to_string(&counted).ok()?.trim().parse::<usize>().ok();
    wait_until("all requests are counted", || blocks() >= Some(2 * REQUEST_COUNT));
    // The end of the path ends the job.
    assert!(streamline_command(&["stop", "1"], &daemon).status().expect("stop").success());
    wait_until("the job ends", || job.0.try_wait().expect("a child").is_some());
    let log = File::open(folder.path("log.gz")).expect("a log");
    let log = Command::new("gzip").arg("-dc").stdin(log).output().expect("gzip").stdout;
    let log = String::from_utf8(log).expect("text");
    let mut got: Vec<&str> = log.lines().filter(|line| line.ends_with(" HTTP/1.1")).collect();
    got.sort_unstable();
    let mut sent: Vec<String> =
        (0..REQUEST_COUNT).map(|number| format!("GET /page{number} HTTP/1.1")).collect();
    sent.sort_unstable();
    assert_eq!(got, sent);
    assert_eq!(log.matches("Host: ").count(), REQUEST_COUNT, "each request is whole");
    drop(mounted);
}
