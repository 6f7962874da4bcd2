//! Tests of processes that are killed (SIGKILL) before each step: paths, daemons and clients.

use super::Fixture;
use crate::common::ChildGuard;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};
use sys::local_socket::{self, Framing};
use testkit::net::{DevicePairSettings, NamespacePair, packet_socket_inodes};
use testkit::resources::KernelObjects;
use testkit::{need, wait_until};

/// The times from each kill to the release of all resources of the killed process.
#[derive(Default)]
struct ReleaseTimes {
    times: Vec<Duration>,
}

impl ReleaseTimes {
    fn print_times(mut self, what: &str) -> usize {
        self.times.sort_unstable();
        let at = |part: usize| self.times[(self.times.len() - 1) * part / 100];
        let many = self.times.len();
        let [median, late, last] = [50, 99, 100].map(at);
        eprintln!(
            "{what}: {many} kills, free after {median:?} (median), {late:?} (p99), {last:?} (most)"
        );
        many
    }
}

/// Returns true if a process is stopped, false if it is running, or `None` if it has exited.
fn is_stopped(guard: &mut ChildGuard) -> Option<bool> {
    if guard.0.try_wait().unwrap().is_some() {
        return None;
    }
    let stat = fs::read_to_string(format!("/proc/{}/stat", guard.0.id())).unwrap_or_default();
    Some(stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
}

/// Waits until a process has stopped at its injected fault or has exited. Also returns if the
/// process continues without reaching the fault, which `past` reports. Returns true if the process
/// is stopped.
pub(crate) fn wait_for_step(guard: &mut ChildGuard, past: &dyn Fn() -> bool) -> bool {
    let mut stood = false;
    wait_until("a process stands still or is done", || match is_stopped(guard) {
        None => true,
        Some(true) => {
            stood = true;
            true
        }
        Some(false) => past(),
    });
    stood
}

/// Kills a stopped process, and returns the time until its resources are released. These are its
/// kernel objects, and the resources that `left` lists until they are released.
fn kill_and_time_release(guard: &mut ChildGuard, left: &dyn Fn() -> Vec<String>) -> Duration {
    let held = KernelObjects::of_process(guard.0.id());
    let begin = Instant::now();
    guard.0.kill().unwrap();
    guard.0.wait().unwrap();
    let mut looks = 0;
    wait_until("nothing is left of a process that was killed", || {
        let mut all = held.remaining_objects();
        all.extend(left());
        looks += 1;
        if looks % 5000 == 0 {
            eprintln!("this is still there: {}", all.join(", "));
        }
        all.is_empty()
    });
    begin.elapsed()
}

/// The requests of the runs whose processes are killed before a step of their start.
const KILLED_REQUESTS: [&str; 5] = [
    "rx server0 | ip | udp | dport |53 count ; rx server0 | ip | udp | dport |80 count",
    "rx@thread0 server0 | udp @thread1 | count",
    "rx server0 | tcp | http | pcap out.pcap",
    "rx server0 take | count",
    "generate rate=1000 | exec \"cat\" | count",
];

/// Runs the requests `lines`, and kills each of their processes before a different step of its
/// start. Tests one step in `every`. After each kill, another run on the same interface must
/// continue.
fn kill_runs(lines: &[&str], every: usize, kills: &mut ReleaseTimes) {
    let Some(pair) = NamespacePair::new(DevicePairSettings {
        addresses: false,
        ..DevicePairSettings::default()
    }) else {
        return;
    };
    let fixture = Fixture::new();
    let within = |words: &[&str]| {
        let mut command = pair.server.command(env!("CARGO_BIN_EXE_streamline"));
        command.args(words).current_dir(fixture.folder.path());
        fixture.set_fixture_environment(command)
    };
    // This run uses the same interface as the killed runs.
    let survivor = ["run", "--embedded", "-q", "rx@thread0 server0 | count"];
    let mut survivor = ChildGuard(within(&survivor).spawn().unwrap());
    wait_until("the survivor listens", || packet_socket_inodes(&pair.server).len() == 1);
    for line in lines {
        for step in (0..).step_by(every) {
            let fault = format!("--fault=stop={step}");
            let words = ["run", "--embedded", "-q", "--for", "1ms", &fault, line];
            let mut run = ChildGuard(within(&words).spawn().unwrap());
            if !wait_for_step(&mut run, &|| false) {
                assert!(step > 8, "{line}: {step} steps");
                break;
            }
            let left = || {
                let sockets = packet_socket_inodes(&pair.server).len();
                if sockets > 1 { vec![format!("{sockets} packet sockets")] } else { Vec::new() }
            };
            kills.times.push(kill_and_time_release(&mut run, &left));
            assert!(survivor.0.try_wait().unwrap().is_none(), "{line}: {step}");
        }
    }
    let link = pair.server.run_ip("link show dev server0");
    assert!(!link.contains("xdp"), "{link}");
    let interrupted = Command::new("kill").args(["-INT", &survivor.0.id().to_string()]).status();
    assert!(interrupted.unwrap().success() && survivor.0.wait().unwrap().success());
}

/// Starts paths with a name, and kills each before a different step of its start. Tests one step in
/// `every`. After each kill, the name must be free immediately, and other paths must continue.
fn kill_paths(every: usize, kills: &mut ReleaseTimes) {
    let fixture = Fixture::new();
    let _daemon = fixture.start_daemon();
    let _survivor = fixture.spawn(&["run", "--as", "survivor", "-q", "generate rate=1000 | count"]);
    wait_until("the survivor is registered", || fixture.list_paths().len() == 1);
    for step in (0..).step_by(every) {
        let fault = format!("--fault=stop={step}");
        let line = "generate rate=1000 | count @thread1";
        let words = ["run", "--as", "victim", "-q", "--for", "1ms", &fault, line];
        let mut run = fixture.spawn(&words);
        if !wait_for_step(&mut run, &|| false) {
            assert!(step > 8, "{step} steps");
            break;
        }
        let left = || {
            let names = fixture.list_paths().into_iter().filter_map(|path| path.name);
            names.filter(|name| name == "victim").collect()
        };
        kills.times.push(kill_and_time_release(&mut run, &left));
    }
    let again = fixture.run(&["run", "--as", "victim", "-q", "--for", "1ms", "generate | count"]);
    assert_eq!(again.status, Some(0), "{again:?}");
    fixture.wait_for_progress("survivor");
}

/// Starts daemons, and kills each before a different step. Tests one step in `every`. After each
/// kill, the next daemon must serve immediately, and paths must register with it.
fn kill_daemons(every: usize, kills: &mut ReleaseTimes) {
    let fixture = Fixture::new();
    let mut first = fixture.start_daemon();
    let _survivor = fixture.spawn(&["run", "--as", "survivor", "-q", "generate rate=1000 | count"]);
    wait_until("the survivor is registered", || fixture.list_paths().len() == 1);
    first.0.kill().unwrap();
    first.0.wait().unwrap();
    for step in (0..).step_by(every) {
        let fault = format!("--fault=stop={step}");
        let mut words = fixture.daemon_args();
        words.push(fault);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut daemon = fixture.spawn(&words);
        // The daemon has passed its last step when the surviving path has registered by itself.
        let past = || is_registered(&fixture, "survivor").unwrap_or(false);
        let stood = wait_for_step(&mut daemon, &past);
        if !stood {
            assert!(step > 4, "{step} steps");
            break;
        }
        kills.times.push(kill_and_time_release(&mut daemon, &Vec::new));
        let next = fixture.start_daemon();
        wait_until("the path is registered again", || fixture.list_paths().len() == 1);
        drop(next);
    }
    let _last = fixture.start_daemon();
    fixture.wait_for_progress("survivor");
}

/// Returns true if a path with this name or request is registered. Returns `None` if the daemon
/// does not reply soon, because it may be stopped.
pub(crate) fn is_registered(fixture: &Fixture, name: &str) -> Option<bool> {
    let packets = fixture.daemon_dir().join("io.streamline.packets");
    let socket =
        local_socket::connect_to(&packets, Framing::Packets, Duration::from_millis(300)).ok()?;
    sys::descriptor::send(&socket, b"{\"method\":\"io.streamline.List\"}", &[]).ok()?;
    let mut answer = vec![0; 1 << 16];
    let (length, _) = sys::descriptor::receive(&socket, &mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer[..length]).contains(&format!("\"{name}\"")))
}

/// Kills `streamline start` before each step. Afterwards, the path either runs under its name or
/// does not run, and the name can be used again.
fn kill_clients(kills: &mut ReleaseTimes) {
    let fixture = Fixture::new();
    let _daemon = fixture.start_daemon();
    for step in 0.. {
        let fault = format!("--fault=stop={step}");
        let mut start = fixture.spawn(&["start", &fault, "web", "generate rate=1000 | count"]);
        if !wait_for_step(&mut start, &|| false) {
            assert!(step >= 5, "{step} steps");
            break;
        }
        let begin = Instant::now();
        start.0.kill().unwrap();
        start.0.wait().unwrap();
        // The path of the killed client may still register. Both outcomes are valid; if the path
        // registers, it can be stopped by name.
        wait_until("its path can be stopped, or is none", || {
            fixture.run(&["stop", "web"]).status == Some(0)
                || background_process_ids(&fixture).is_empty()
        });
        wait_until("nothing is registered", || {
            let _ = fixture.run(&["stop", "web"]);
            fixture.list_paths().is_empty() && background_process_ids(&fixture).is_empty()
        });
        kills.times.push(begin.elapsed());
    }
    let _ = fixture.run(&["stop", "web"]);
    wait_until("nothing is registered", || fixture.list_paths().is_empty());
}

/// Returns the process ids of the background paths of this fixture.
fn background_process_ids(fixture: &Fixture) -> Vec<u32> {
    let folder = fixture.folder.path().display().to_string();
    let all = fs::read_dir("/proc").unwrap().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let ours = |process: &u32| {
        let words = fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default();
        words.contains("--background") && words.contains(&folder)
    };
    all.filter(ours).collect()
}

#[test]
fn a17_o4_run_killed_before_any_step_leaves_nothing() {
    if need::require_bpf().is_none() || need::require_root().is_none() {
        return;
    }
    let mut kills = ReleaseTimes::default();
    kill_runs(&KILLED_REQUESTS[..1], 9, &mut kills);
    kill_runs(&KILLED_REQUESTS[3..], 11, &mut kills);
    kills.print_times("runs");
}

#[test]
fn t10_path_killed_before_any_step_is_unregistered() {
    let mut kills = ReleaseTimes::default();
    kill_paths(5, &mut kills);
    kills.print_times("paths");
}

#[test]
fn t10_daemon_killed_before_any_step_is_replaced_at_once() {
    let mut kills = ReleaseTimes::default();
    kill_daemons(3, &mut kills);
    kills.print_times("daemons");
}

#[test]
#[ignore = "long: cargo test -p streamline-cli --test steps -- --ignored --nocapture five_hundred"]
fn processes_killed_500_times_release_all_resources() {
    if need::require_bpf().is_none() || need::require_root().is_none() {
        return;
    }
    let mut all = 0;
    while all < 500 {
        let mut kills = ReleaseTimes::default();
        kill_runs(&KILLED_REQUESTS, 1, &mut kills);
        all += kills.print_times("runs");
        let mut kills = ReleaseTimes::default();
        kill_paths(1, &mut kills);
        all += kills.print_times("paths");
        let mut kills = ReleaseTimes::default();
        kill_daemons(1, &mut kills);
        all += kills.print_times("daemons");
        let mut kills = ReleaseTimes::default();
        kill_clients(&mut kills);
        all += kills.print_times("clients (until their path was stopped)");
    }
    eprintln!("{all} kills");
}
