//! kill -9 in front of each step, of a path, a daemon, a client.

use super::House;
use crate::common::Guard;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};
use sys::local_socket::{self, Framing};
use testkit::net::{Cable, Pair, packet_sockets};
use testkit::resources::KernelObjects;
use testkit::{need, until};

/// A series of kills: the victim, their number, and the time until all of it was gone.
#[derive(Default)]
struct Kills {
    times: Vec<Duration>,
}

impl Kills {
    fn tell(mut self, what: &str) -> usize {
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

/// Returns true if a process is stopped; `None` if it has ended.
fn stands(guard: &mut Guard) -> Option<bool> {
    if guard.0.try_wait().unwrap().is_some() {
        return None;
    }
    let stat = fs::read_to_string(format!("/proc/{}/stat", guard.0.id())).unwrap_or_default();
    Some(stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
}

/// Waits until a process stands still in front of its step (true), or has ended, or is `past` it.
pub(crate) fn comes_to_its_step(guard: &mut Guard, past: &dyn Fn() -> bool) -> bool {
    let mut stood = false;
    until("a process stands still or is done", || match stands(guard) {
        None => true,
        Some(true) => {
            stood = true;
            true
        }
        Some(false) => past(),
    });
    stood
}

/// Kills a process that stands still; answers how long it took until nothing of it was left.
fn kill(guard: &mut Guard, left: &dyn Fn() -> Vec<String>) -> Duration {
    let held = KernelObjects::of(guard.0.id());
    let begin = Instant::now();
    guard.0.kill().unwrap();
    guard.0.wait().unwrap();
    let mut looks = 0;
    until("nothing is left of a process that was killed", || {
        let mut all = held.left();
        all.extend(left());
        looks += 1;
        if looks % 5000 == 0 {
            eprintln!("this is still there: {}", all.join(", "));
        }
        all.is_empty()
    });
    begin.elapsed()
}

/// Lines that are killed.
const LINES: [&str; 5] = [
    "rx server0 | ip | udp | dport |53 count ; rx server0 | ip | udp | dport |80 count",
    "rx@thread0 server0 | udp @thread1 | count",
    "rx server0 | tcp | http | pcap out.pcap",
    "rx server0 take | count",
    "generate rate=1000 | exec \"cat\" | count",
];

/// Kills runs of lines in front of every n-th step, beside others that go on.
fn runs(lines: &[&str], every: usize, kills: &mut Kills) {
    let Some(pair) = Pair::new(Cable { addresses: false, ..Cable::default() }) else { return };
    let house = House::new();
    let within = |words: &[&str]| {
        let mut command = pair.server.command(env!("CARGO_BIN_EXE_streamline"));
        command.args(words).current_dir(house.folder.path());
        house.tamed(command)
    };
    // It shares the interface with those that are killed.
    let survivor = ["run", "--embedded", "-q", "rx@thread0 server0 | count"];
    let mut survivor = Guard(within(&survivor).spawn().unwrap());
    until("the survivor listens", || packet_sockets(&pair.server).len() == 1);
    for line in lines {
        for step in (0..).step_by(every) {
            let fault = format!("--fault=stop={step}");
            let words = ["run", "--embedded", "-q", "--for", "1ms", &fault, line];
            let mut run = Guard(within(&words).spawn().unwrap());
            if !comes_to_its_step(&mut run, &|| false) {
                assert!(step > 8, "{line}: {step} steps");
                break;
            }
            let left = || {
                let sockets = packet_sockets(&pair.server).len();
                if sockets > 1 { vec![format!("{sockets} packet sockets")] } else { Vec::new() }
            };
            kills.times.push(kill(&mut run, &left));
            assert!(survivor.0.try_wait().unwrap().is_none(), "{line}: {step}");
        }
    }
    let shown = pair.server.ip("link show dev server0");
    assert!(!shown.contains("xdp"), "{shown}");
    let asked = Command::new("kill").args(["-INT", &survivor.0.id().to_string()]).status();
    assert!(asked.unwrap().success() && survivor.0.wait().unwrap().success());
}

/// Kills paths of a daemon in front of every n-th step: the name is free at once, another goes on.
fn paths(every: usize, kills: &mut Kills) {
    let house = House::new();
    let _daemon = house.daemon();
    let _survivor = house.spawn(&["run", "--as", "survivor", "-q", "generate rate=1000 | count"]);
    until("the survivor is registered", || house.list().len() == 1);
    for step in (0..).step_by(every) {
        let fault = format!("--fault=stop={step}");
        let line = "generate rate=1000 | count @thread1";
        let words = ["run", "--as", "victim", "-q", "--for", "1ms", &fault, line];
        let mut run = house.spawn(&words);
        if !comes_to_its_step(&mut run, &|| false) {
            assert!(step > 8, "{step} steps");
            break;
        }
        let left = || {
            let names = house.list().into_iter().filter_map(|path| path.name);
            names.filter(|name| name == "victim").collect()
        };
        kills.times.push(kill(&mut run, &left));
    }
    let again = house.run(&["run", "--as", "victim", "-q", "--for", "1ms", "generate | count"]);
    assert_eq!(again.status, Some(0), "{again:?}");
    house.goes_on("survivor");
}

/// Kills daemons in front of every n-th step: the next one is there at once, and the path too.
fn daemons(every: usize, kills: &mut Kills) {
    let house = House::new();
    let mut first = house.daemon();
    let _survivor = house.spawn(&["run", "--as", "survivor", "-q", "generate rate=1000 | count"]);
    until("the survivor is registered", || house.list().len() == 1);
    first.0.kill().unwrap();
    first.0.wait().unwrap();
    for step in (0..).step_by(every) {
        let fault = format!("--fault=stop={step}");
        let mut words = house.daemon_words();
        words.push(fault);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut daemon = house.spawn(&words);
        // The path that goes on registers with it by itself, which is the last step.
        let past = || is_registered(&house, "survivor").unwrap_or(false);
        let stood = comes_to_its_step(&mut daemon, &past);
        if !stood {
            assert!(step > 4, "{step} steps");
            break;
        }
        kills.times.push(kill(&mut daemon, &Vec::new));
        let next = house.daemon();
        until("the path is registered again", || house.list().len() == 1);
        drop(next);
    }
    let _last = house.daemon();
    house.goes_on("survivor");
}

/// Returns true if a path of this name or line is registered; `None` if the daemon, which may be
/// stopped, does not answer soon.
pub(crate) fn is_registered(house: &House, name: &str) -> Option<bool> {
    let packets = house.place().join("io.streamline.packets");
    let socket =
        local_socket::connect_to(&packets, Framing::Packets, Duration::from_millis(300)).ok()?;
    sys::descriptor::send(&socket, b"{\"method\":\"io.streamline.List\"}", &[]).ok()?;
    let mut answer = vec![0; 1 << 16];
    let (length, _) = sys::descriptor::receive(&socket, &mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer[..length]).contains(&format!("\"{name}\"")))
}

/// Kills `streamline start` in front of each step: its path runs under its name or does not, and
/// the name can be had afterwards.
fn clients(kills: &mut Kills) {
    let house = House::new();
    let _daemon = house.daemon();
    for step in 0.. {
        let fault = format!("--fault=stop={step}");
        let mut start = house.spawn(&["start", &fault, "web", "generate rate=1000 | count"]);
        if !comes_to_its_step(&mut start, &|| false) {
            assert!(step >= 5, "{step} steps");
            break;
        }
        let begin = Instant::now();
        start.0.kill().unwrap();
        start.0.wait().unwrap();
        // Whose client has gone may be about to register: both ends are fine, and both can be
        // ended by name.
        until("its path can be stopped, or is none", || {
            house.run(&["stop", "web"]).status == Some(0) || started(&house).is_empty()
        });
        until("nothing is registered", || {
            let _ = house.run(&["stop", "web"]);
            house.list().is_empty() && started(&house).is_empty()
        });
        kills.times.push(begin.elapsed());
    }
    let _ = house.run(&["stop", "web"]);
    until("nothing is registered", || house.list().is_empty());
}

/// The processes of paths in the background of this house.
fn started(house: &House) -> Vec<u32> {
    let folder = house.folder.path().display().to_string();
    let all = fs::read_dir("/proc").unwrap().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let ours = |process: &u32| {
        let words = fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default();
        words.contains("--background") && words.contains(&folder)
    };
    all.filter(ours).collect()
}

#[test]
fn a17_o4_whoever_is_killed_in_front_of_a_step_leaves_nothing() {
    if need::bpf().is_none() || need::root().is_none() {
        return;
    }
    let mut kills = Kills::default();
    runs(&LINES[..1], 9, &mut kills);
    runs(&LINES[3..], 11, &mut kills);
    kills.tell("runs");
}

#[test]
fn t10_a_path_that_is_killed_in_front_of_a_step_is_registered_no_more() {
    let mut kills = Kills::default();
    paths(5, &mut kills);
    kills.tell("paths");
}

#[test]
fn t10_a_daemon_that_is_killed_in_front_of_a_step_has_a_successor_at_once() {
    let mut kills = Kills::default();
    daemons(3, &mut kills);
    kills.tell("daemons");
}

#[test]
#[ignore = "long: cargo test -p streamline-cli --test steps -- --ignored --nocapture five_hundred"]
fn five_hundred_kills_in_front_of_every_step() {
    if need::bpf().is_none() || need::root().is_none() {
        return;
    }
    let mut all = 0;
    while all < 500 {
        let mut kills = Kills::default();
        runs(&LINES, 1, &mut kills);
        all += kills.tell("runs");
        let mut kills = Kills::default();
        paths(1, &mut kills);
        all += kills.tell("paths");
        let mut kills = Kills::default();
        daemons(1, &mut kills);
        all += kills.tell("daemons");
        let mut kills = Kills::default();
        clients(&mut kills);
        all += kills.tell("clients (until their path was stopped)");
    }
    eprintln!("{all} kills");
}
