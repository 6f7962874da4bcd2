//! Networks of a test's own: name spaces, pairs of virtual Ethernet devices between them, and
//! conditions to wait for.
//!
//! Every name holds the number of its process (`sl-<process>-<number>`). What a test made goes away
//! with its values, and with it every process that still runs there; what a killed test left is
//! removed by the next one that makes a network. Tests may run side by side: no name is used twice.
//!
//! Everything is done by `ip` of iproute2, as a user would do it, and needs root: [`Pair::new`]
//! skips loudly where there is none, and where the kernel has no such things. Any other step that
//! fails ends the test by a panic.
//!
//! ```no_run
//! use streamline_testkit::net::{Cable, Pair, SERVER};
//! let Some(pair) = Pair::new(Cable::default()) else { return };
//! let listener = pair.server.enter(|| std::net::TcpListener::bind((SERVER, 80)));
//! ```

mod packets;

pub use crate::wait::{LIMIT, until};
pub use packets::{Counters, counters, packet_sockets, until_received, watches};

use crate::need;
use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The client's addresses and those of the server, on the devices of a [`Pair`].
pub const CLIENT: &str = "10.77.0.1";
/// See [`CLIENT`].
pub const SERVER: &str = "10.77.0.2";
/// See [`CLIENT`].
pub const CLIENT6: &str = "fd77::1";
/// See [`CLIENT`].
pub const SERVER6: &str = "fd77::2";

/// The client's device in its name space.
pub const CLIENT_DEVICE: &str = "client0";
/// The server's device in its name space.
pub const SERVER_DEVICE: &str = "server0";

/// The folder of the names of `ip netns`.
const NAMES: &str = "/run/netns";

/// A network name space of a test's own.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// A new one, in which nothing but the loopback device is, and that is up. `None`: this test is
    /// skipped, and has said why.
    pub fn new() -> Option<Self> {
        need::root()?;
        need::net_admin()?;
        need::command("ip")?;
        static BEFORE: Once = Once::new();
        // As long as we have made none, one of our own number is of a process before us.
        let own = std::process::id();
        BEFORE.call_once(|| remove_what_others_left(|process| process == own || !alive(process)));
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("sl-{}-{number}", std::process::id());
        if let Err(why) = try_ip(&["netns", "add", &name]) {
            return need::skip(&format!("needs network name spaces: {why}"));
        }
        let made = Self { name };
        // Entering it takes more rights than making it: `/sys` is mounted anew.
        if let Err(why) = try_ip(&["netns", "exec", &made.name, "true"]) {
            return need::skip(&format!("needs to enter network name spaces: {why}"));
        }
        made.ip("link set dev lo up");
        Some(made)
    }

    /// Its name, as `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that names it.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(NAMES).join(&self.name)
    }

    /// A command that runs a program here. The process that is started becomes the program, so that
    /// signals reach it. Its standard input is empty.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program).stdin(Stdio::null());
        command
    }

    /// Runs a program here to its end; returns its output.
    ///
    /// # Panics
    /// If it fails.
    pub fn run(&self, program: &str, words: &str) -> String {
        let done = done(self.command(program).args(words.split_whitespace()));
        done.unwrap_or_else(|why| panic!("{why}"))
    }

    /// Runs `ip` on this name space; returns its output.
    ///
    /// # Panics
    /// If it fails.
    pub fn ip(&self, words: &str) -> String {
        let words: Vec<&str> = ["-n", &self.name].into_iter().chain(words.split(' ')).collect();
        ip(&words)
    }

    /// Does something here, in a thread of its own: sockets that are made there stay here.
    ///
    /// # Panics
    /// If that panics.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            let file = File::open(self.path()).expect("the name space is there");
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(file.as_fd(), network).expect("root may go there");
            work()
        };
        let done = std::thread::scope(|scope| scope.spawn(inside).join());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Switches offloads of a device: `offload("client0", "tso off gso off")`. `None`: this test is
    /// skipped, because `ethtool` is not here.
    ///
    /// # Panics
    /// If the device refuses.
    pub fn offload(&self, device: &str, features: &str) -> Option<()> {
        need::command("ethtool")?;
        self.run("ethtool", &format!("-K {device} {features}"));
        Some(())
    }

    /// Waits until a device carries: both ends of it are up.
    ///
    /// # Panics
    /// If that does not come.
    pub fn until_up(&self, device: &str) {
        until(&format!("{device} is up"), || {
            self.ip(&format!("-o link show dev {device}")).contains(" state UP ")
        });
    }

    /// Waits until a socket here listens at this address.
    ///
    /// # Panics
    /// If none does.
    pub fn until_listens(&self, address: (&str, u16)) {
        until(&format!("somebody listens at {address:?}"), || {
            self.enter(|| std::net::TcpStream::connect(address).is_ok())
        });
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

/// The settings of a pair of devices.
#[derive(Clone, Copy, Debug)]
pub struct Cable {
    /// The largest packet.
    pub mtu: u32,
    /// Receive and transmit queues of each end.
    pub queues: u32,
    /// True if the ends have addresses. Without them the test alone sends frames over it: no ARP,
    /// no router solicitation, no report of a multicast listener.
    pub addresses: bool,
}

impl Default for Cable {
    fn default() -> Self {
        Self { mtu: 1500, queues: 1, addresses: true }
    }
}

/// Two name spaces, joined by a pair of virtual Ethernet devices: [`CLIENT_DEVICE`] and
/// [`SERVER_DEVICE`].
#[derive(Debug)]
pub struct Pair {
    /// The end that sends requests.
    pub client: Namespace,
    /// The end that answers them.
    pub server: Namespace,
}

impl Pair {
    /// Both, with a cable between them that is up. `None`: this test is skipped, and has said why.
    pub fn new(cable: Cable) -> Option<Self> {
        let pair = Self { client: Namespace::new()?, server: Namespace::new()? };
        let Cable { mtu, queues, addresses } = cable;
        let end = format!("mtu {mtu} numrxqueues {queues} numtxqueues {queues}");
        let server = pair.server.name();
        let words = format!(
            "-n {} link add {CLIENT_DEVICE} {end} type veth \
             peer name {SERVER_DEVICE} {end} netns {server}",
            pair.client.name()
        );
        if let Err(why) = try_ip(&words.split(' ').collect::<Vec<_>>()) {
            return need::skip(&format!("needs virtual Ethernet devices: {why}"));
        }
        let ends = [
            (&pair.client, CLIENT_DEVICE, CLIENT, CLIENT6),
            (&pair.server, SERVER_DEVICE, SERVER, SERVER6),
        ];
        for (space, device, four, six) in ends {
            if addresses {
                space.ip(&format!("address add {four}/24 dev {device}"));
                // Nobody else has it: asking whether somebody has takes a second.
                space.ip(&format!("address add {six}/64 dev {device} nodad"));
            } else {
                space.ip(&format!("link set dev {device} addrgenmode none arp off"));
            }
            space.ip(&format!("link set dev {device} up"));
        }
        for (space, device, ..) in ends {
            space.until_up(device);
        }
        Some(pair)
    }
}

/// Removes the name spaces of processes that have gone.
fn remove_what_others_left(has_gone: impl Fn(u32) -> bool) {
    let names = fs::read_dir(NAMES).into_iter().flatten().flatten();
    for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
        if owner(&name).is_some_and(&has_gone) {
            remove(&name);
        }
    }
}

/// Returns the process that made a name space of this name.
fn owner(name: &str) -> Option<u32> {
    let (process, number) = name.strip_prefix("sl-")?.split_once('-')?;
    number.parse::<u32>().ok()?;
    process.parse().ok()
}

fn alive(process: u32) -> bool {
    fs::exists(format!("/proc/{process}")).unwrap_or(true)
}

/// Ends what runs in a name space of ours, and removes it. What has gone already is no mistake:
/// another test may remove the same.
fn remove(name: &str) {
    let quiet = |words: &[&str]| {
        let mut command = Command::new("ip");
        command.args(words).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()
    };
    if let Some(output) = quiet(&["netns", "pids", name]) {
        for process in String::from_utf8_lossy(&output.stdout).split_whitespace() {
            let _ = Command::new("kill").args(["-KILL", process]).stderr(Stdio::null()).status();
        }
    }
    quiet(&["netns", "delete", name]);
}

fn ip(words: &[&str]) -> String {
    try_ip(words).unwrap_or_else(|why| panic!("{why}"))
}

fn try_ip(words: &[&str]) -> Result<String, String> {
    done(Command::new("ip").args(words).stdin(Stdio::null()))
}

/// Runs a command to its end; returns its output, or the reason of its failure.
fn done(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|why| format!("{command:?}: {why}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?} ended with {}: {}", output.status, text.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn owner_is_read_from_a_name() {
        assert_eq!(owner("sl-17-3"), Some(17));
        for name in ["sl-17", "sl-x-3", "sl-17-x", "other", "sl--1", "esl-1-1"] {
            assert_eq!(owner(name), None, "{name}");
        }
        assert!(alive(std::process::id()));
    }

    #[test]
    fn bytes_go_from_one_name_space_to_the_other() {
        let Some(pair) = Pair::new(Cable::default()) else { return };
        for (address, of) in [(SERVER, CLIENT), (SERVER6, CLIENT6)] {
            let listener = pair.server.enter(|| TcpListener::bind((address, 7)).unwrap());
            let mut near = pair.client.enter(|| TcpStream::connect((address, 7)).unwrap());
            let (mut far, from) = listener.accept().unwrap();
            assert_eq!(from.ip().to_string(), of);
            near.write_all(b"over").unwrap();
            drop(near);
            let mut text = String::new();
            far.read_to_string(&mut text).unwrap();
            assert_eq!(text, "over");
        }
        let [near, far] = [(&pair.client, CLIENT_DEVICE), (&pair.server, SERVER_DEVICE)]
            .map(|(space, device)| counters(space, device).unwrap());
        assert!(near.sent > 0 && far.received > 0, "{near:?} {far:?}");
        assert_eq!(pair.client.run("echo", "here"), "here\n");
    }

    #[test]
    fn without_addresses_the_cable_is_silent() {
        let cable = Cable { addresses: false, mtu: 9000, queues: 2 };
        let Some(pair) = Pair::new(cable) else { return };
        let text = pair.client.ip(&format!("link show dev {CLIENT_DEVICE}"));
        assert!(text.contains("mtu 9000"), "{text}");
        let sent = |space, device| counters(space, device).unwrap().sent;
        let silent = sent(&pair.client, CLIENT_DEVICE) + sent(&pair.server, SERVER_DEVICE);
        assert_eq!(silent, 0);
    }

    #[test]
    fn only_leftovers_of_killed_tests_are_removed() {
        let Some(kept) = Namespace::new() else { return };
        // A process that has gone, and been waited for: its number is free.
        let mut gone = Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        let left = format!("sl-{}-0", gone.id());
        ip(&["netns", "add", &left]);
        let mut lives = Command::new("ip");
        let mut lives = lives.args(["netns", "exec", &left, "sleep", "1000"]).spawn().unwrap();
        until("it runs there", || !ip(&["netns", "pids", &left]).is_empty());
        remove_what_others_left(|process| !alive(process));
        assert!(!fs::exists(format!("{NAMES}/{left}")).unwrap());
        assert!(!lives.wait().unwrap().success(), "what ran there has been ended");
        let path = kept.path();
        assert!(path.exists());
        drop(kept);
        assert!(!path.exists());
    }
}
