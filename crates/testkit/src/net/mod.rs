//! Private networks for tests: network namespaces, pairs of virtual Ethernet devices between them,
//! and functions that wait until a device or a listening socket is ready.
//!
//! Each namespace name contains the process id (`sl-<process>-<number>`), so concurrent tests never
//! share a namespace. Dropping a [`Namespace`] kills all processes in it and removes it. If a test
//! is killed, the next test that creates a namespace removes the namespaces of the killed test.
//!
//! Networks are created with `ip` of iproute2, as root. [`NamespacePair::new`] skips the test if
//! root privileges, `ip` or kernel support are missing. Any other failure panics.
//!
//! ```no_run
//! use streamline_testkit::net::{DevicePairSettings, NamespacePair, SERVER};
//! let Some(pair) = NamespacePair::new(DevicePairSettings::default()) else { return };
//! let listen = || std::net::TcpListener::bind((SERVER, 80));
//! let listener = pair.server.run_in_network_namespace(listen);
//! ```

mod packets;

pub use crate::wait::{WAIT_TIMEOUT, wait_until};
pub use packets::{
    DeviceCounters, device_counters, is_capturing, packet_socket_inodes, wait_until_received,
};

use crate::need;
use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The client's IPv4 address on the device of a [`NamespacePair`].
pub const CLIENT: &str = "10.77.0.1";
/// The server's IPv4 address on the device of a [`NamespacePair`].
pub const SERVER: &str = "10.77.0.2";
/// The client's IPv6 address on the device of a [`NamespacePair`].
pub const CLIENT6: &str = "fd77::1";
/// The server's IPv6 address on the device of a [`NamespacePair`].
pub const SERVER6: &str = "fd77::2";

/// The name of the client's device.
pub const CLIENT_DEVICE: &str = "client0";
/// The name of the server's device.
pub const SERVER_DEVICE: &str = "server0";

/// The directory in which `ip netns` stores the names of namespaces.
const NAMES_DIRECTORY: &str = "/run/netns";

/// A private network namespace, removed on drop.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Creates a namespace with only a loopback device, which is up. Reports a skip and returns
    /// `None` if the required privileges or kernel support are missing.
    pub fn new() -> Option<Self> {
        need::require_root()?;
        need::require_net_admin()?;
        need::require_command("ip")?;
        static REMOVE_STALE_NAMESPACES: Once = Once::new();
        // This runs before the process creates its first namespace, so a namespace with its process
        // id was left by an earlier process.
        let own = std::process::id();
        REMOVE_STALE_NAMESPACES
            .call_once(|| remove_stale_namespaces(|process| process == own || !is_alive(process)));
        static NEXT_NAMESPACE_NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NEXT_NAMESPACE_NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("sl-{}-{number}", std::process::id());
        if let Err(why) = try_ip_command(&["netns", "add", &name]) {
            return need::report_skip(&format!("needs network namespaces: {why}"));
        }
        let made = Self { name };
        // Entering a namespace needs more privileges than creating one, because `ip netns exec`
        // mounts `/sys` again.
        if let Err(why) = try_ip_command(&["netns", "exec", &made.name, "true"]) {
            return need::report_skip(&format!("needs to enter network namespaces: {why}"));
        }
        made.run_ip("link set dev lo up");
        Some(made)
    }

    /// Returns the name of the namespace in `ip netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path of the namespace file.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(NAMES_DIRECTORY).join(&self.name)
    }

    /// Returns a command that runs a program in the namespace, with empty standard input. The
    /// command's process becomes the program (exec), so signals to the process reach the program.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program).stdin(Stdio::null());
        command
    }

    /// Runs a program in the namespace, and waits until it exits. Returns its standard output.
    ///
    /// # Panics
    /// If the program cannot be run or fails.
    pub fn run_program(&self, program: &str, words: &str) -> String {
        let done = command_output(self.command(program).args(words.split_whitespace()));
        done.unwrap_or_else(|why| panic!("{why}"))
    }

    /// Runs `ip` on this namespace, and waits until it exits. Returns its standard output.
    ///
    /// # Panics
    /// If `ip` fails.
    pub fn run_ip(&self, words: &str) -> String {
        let words: Vec<&str> = ["-n", &self.name].into_iter().chain(words.split(' ')).collect();
        run_ip_command(&words)
    }

    /// Runs `work` in a new thread inside the namespace, and returns its result. Sockets that
    /// `work` creates remain in the namespace.
    ///
    /// # Panics
    /// If `work` panics.
    pub fn run_in_network_namespace<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            let file = File::open(self.path()).expect("the namespace exists");
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(file.as_fd(), network).expect("root may go there");
            work()
        };
        let done = std::thread::scope(|scope| scope.spawn(inside).join());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Switches offload features of a device on or off, as in `set_offload("client0", "tso off gso
    /// off")`. If `ethtool` is not installed, reports a skip and returns `None`.
    ///
    /// # Panics
    ///
    /// If `ethtool` fails.
    pub fn set_offload(&self, device: &str, features: &str) -> Option<()> {
        need::require_command("ethtool")?;
        self.run_program("ethtool", &format!("-K {device} {features}"));
        Some(())
    }

    /// Waits until a device is up and has a carrier. A device has a carrier when both ends of its
    /// pair are up.
    ///
    /// # Panics
    /// After [`WAIT_TIMEOUT`].
    pub fn wait_until_up(&self, device: &str) {
        wait_until(&format!("{device} is up"), || {
            self.run_ip(&format!("-o link show dev {device}")).contains(" state UP ")
        });
    }

    /// Waits until a socket in the namespace accepts TCP connections to this address.
    ///
    /// # Panics
    /// After [`WAIT_TIMEOUT`].
    pub fn wait_until_listening(&self, address: (&str, u16)) {
        wait_until(&format!("somebody listens at {address:?}"), || {
            self.run_in_network_namespace(|| std::net::TcpStream::connect(address).is_ok())
        });
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove_namespace(&self.name);
    }
}

/// The settings of a pair of devices.
#[derive(Clone, Copy, Debug)]
pub struct DevicePairSettings {
    /// The MTU in bytes.
    pub mtu: u32,
    /// The number of receive queues of each device, which is also its number of transmit queues.
    pub queues: u32,
    /// True if the devices have addresses. Without addresses, the host itself sends no frames (ARP,
    /// router solicitations, multicast listener reports), so only the test sends frames.
    pub addresses: bool,
}

impl Default for DevicePairSettings {
    fn default() -> Self {
        Self { mtu: 1500, queues: 1, addresses: true }
    }
}

/// Two namespaces joined by a pair of virtual Ethernet devices, [`CLIENT_DEVICE`] and
/// [`SERVER_DEVICE`].
#[derive(Debug)]
pub struct NamespacePair {
    /// The namespace of the client.
    pub client: Namespace,
    /// The namespace of the server.
    pub server: Namespace,
}

impl NamespacePair {
    /// Creates both namespaces and the devices between them, and waits until the devices are up.
    /// Reports a skip and returns `None` if the required privileges or kernel support are missing.
    pub fn new(cable: DevicePairSettings) -> Option<Self> {
        let pair = Self { client: Namespace::new()?, server: Namespace::new()? };
        let DevicePairSettings { mtu, queues, addresses } = cable;
        let end = format!("mtu {mtu} numrxqueues {queues} numtxqueues {queues}");
        let server = pair.server.name();
        let words = format!(
            "-n {} link add {CLIENT_DEVICE} {end} type veth \
             peer name {SERVER_DEVICE} {end} netns {server}",
            pair.client.name()
        );
        if let Err(why) = try_ip_command(&words.split(' ').collect::<Vec<_>>()) {
            return need::report_skip(&format!("needs virtual Ethernet devices: {why}"));
        }
        let ends = [
            (&pair.client, CLIENT_DEVICE, CLIENT, CLIENT6),
            (&pair.server, SERVER_DEVICE, SERVER, SERVER6),
        ];
        for (space, device, four, six) in ends {
            if addresses {
                space.run_ip(&format!("address add {four}/24 dev {device}"));
                // Duplicate address detection is disabled, because it would take a second.
                space.run_ip(&format!("address add {six}/64 dev {device} nodad"));
            } else {
                space.run_ip(&format!("link set dev {device} addrgenmode none arp off"));
            }
            space.run_ip(&format!("link set dev {device} up"));
        }
        for (space, device, ..) in ends {
            space.wait_until_up(device);
        }
        Some(pair)
    }
}

/// Removes the namespaces created by processes for which `has_gone` returns true.
fn remove_stale_namespaces(has_gone: impl Fn(u32) -> bool) {
    let names = fs::read_dir(NAMES_DIRECTORY).into_iter().flatten().flatten();
    for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
        if owner_process(&name).is_some_and(&has_gone) {
            remove_namespace(&name);
        }
    }
}

/// Returns the ID of the process that created the namespace with this name, or `None` if this
/// module did not create the namespace.
fn owner_process(name: &str) -> Option<u32> {
    let (process, number) = name.strip_prefix("sl-")?.split_once('-')?;
    number.parse::<u32>().ok()?;
    process.parse().ok()
}

fn is_alive(process: u32) -> bool {
    fs::exists(format!("/proc/{process}")).unwrap_or(true)
}

/// Kills all processes in a namespace and removes it. Ignores failures, because another test may
/// remove the same namespace.
fn remove_namespace(name: &str) {
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

fn run_ip_command(words: &[&str]) -> String {
    try_ip_command(words).unwrap_or_else(|why| panic!("{why}"))
}

fn try_ip_command(words: &[&str]) -> Result<String, String> {
    command_output(Command::new("ip").args(words).stdin(Stdio::null()))
}

/// Runs a command and waits until it exits. Returns its standard output, or a description of the
/// failure.
fn command_output(command: &mut Command) -> Result<String, String> {
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
    fn owner_process_is_parsed_from_the_namespace_name() {
        assert_eq!(owner_process("sl-17-3"), Some(17));
        for name in ["sl-17", "sl-x-3", "sl-17-x", "other", "sl--1", "esl-1-1"] {
            assert_eq!(owner_process(name), None, "{name}");
        }
        assert!(is_alive(std::process::id()));
    }

    #[test]
    fn bytes_cross_between_paired_namespaces() {
        let Some(pair) = NamespacePair::new(DevicePairSettings::default()) else { return };
        for (address, of) in [(SERVER, CLIENT), (SERVER6, CLIENT6)] {
            let listener =
                pair.server.run_in_network_namespace(|| TcpListener::bind((address, 7)).unwrap());
            let mut near =
                pair.client.run_in_network_namespace(|| TcpStream::connect((address, 7)).unwrap());
            let (mut far, from) = listener.accept().unwrap();
            assert_eq!(from.ip().to_string(), of);
            near.write_all(b"over").unwrap();
            drop(near);
            let mut text = String::new();
            far.read_to_string(&mut text).unwrap();
            assert_eq!(text, "over");
        }
        let [near, far] = [(&pair.client, CLIENT_DEVICE), (&pair.server, SERVER_DEVICE)]
            .map(|(space, device)| device_counters(space, device).unwrap());
        assert!(near.sent > 0 && far.received > 0, "{near:?} {far:?}");
        assert_eq!(pair.client.run_program("echo", "here"), "here\n");
    }

    #[test]
    fn pair_without_addresses_sends_no_frames() {
        let cable = DevicePairSettings { addresses: false, mtu: 9000, queues: 2 };
        let Some(pair) = NamespacePair::new(cable) else { return };
        let text = pair.client.run_ip(&format!("link show dev {CLIENT_DEVICE}"));
        assert!(text.contains("mtu 9000"), "{text}");
        let sent = |space, device| device_counters(space, device).unwrap().sent;
        let silent = sent(&pair.client, CLIENT_DEVICE) + sent(&pair.server, SERVER_DEVICE);
        assert_eq!(silent, 0);
    }

    #[test]
    fn only_namespaces_of_dead_processes_are_removed() {
        let Some(kept) = Namespace::new() else { return };
        // The process has exited and has been reaped, so its process id is free.
        let mut gone = Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        let left = format!("sl-{}-0", gone.id());
        run_ip_command(&["netns", "add", &left]);
        let mut lives = Command::new("ip");
        let mut lives = lives.args(["netns", "exec", &left, "sleep", "1000"]).spawn().unwrap();
        wait_until("it runs there", || !run_ip_command(&["netns", "pids", &left]).is_empty());
        remove_stale_namespaces(|process| !is_alive(process));
        assert!(!fs::exists(format!("{NAMES_DIRECTORY}/{left}")).unwrap());
        assert!(!lives.wait().unwrap().success(), "what ran there has been ended");
        let path = kept.path();
        assert!(path.exists());
        drop(kept);
        assert!(!path.exists());
    }
}
