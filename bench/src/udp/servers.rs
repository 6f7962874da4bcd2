//! The servers that `bench udp` measures. They are started as usual, or under `streamline exec
//! --with=udp` with a daemon.

use crate::processes::{
    Children, interrupt_and_wait, is_installed, number_before, processor_ns, read_text,
    start_on_second_processor, streamline_path,
};
use crate::replay::find_program;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use testkit::net::{Namespace, SERVER, wait_until};

/// UDP port on which all measured servers listen.
pub(super) const SERVER_PORT: u16 = 5400;

/// A way to start a server: directly, or under `streamline exec`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum UdpLaunch {
    /// The server runs without `streamline exec`, and receives from its socket.
    Stock,
    /// The server runs under `streamline exec --with=udp`, with a daemon, and receives from a ring.
    /// The text is the value of `STREAMLINE_UDP`.
    Exec(&'static str),
}

/// A server that answers each request with one datagram.
pub(super) struct UdpServer {
    pub(super) name: &'static str,
    /// Name of the program; empty for the echo server, which is compiled.
    program: &'static str,
    package: &'static str,
    /// Text that the server prints when it is ready to answer.
    ready: &'static str,
    /// Function that writes the server's configuration into a directory, and returns the server's
    /// arguments.
    configure: fn(&Path) -> std::io::Result<Vec<String>>,
    /// Function that returns the request with the given number.
    pub(super) request: fn(u16) -> Vec<u8>,
    /// Number of requests per sample at full rate.
    pub(super) requests: usize,
}

impl UdpServer {
    /// Describes an installed program whose package has the same name. The fields for requests and
    /// for the text that shows readiness are empty.
    pub(super) fn new(
        program: &'static str,
        configure: fn(&Path) -> std::io::Result<Vec<String>>,
    ) -> Self {
        let request = |_| Vec::new();
        Self {
            name: program,
            program,
            package: program,
            ready: "",
            configure,
            request,
            requests: 0,
        }
    }
}

/// Returns the servers whose programs are installed, including the compiled echo server.
pub(super) fn installed_servers() -> Vec<UdpServer> {
    let echo = UdpServer {
        name: "echo of 64 B",
        program: "",
        package: "",
        ready: "ready",
        configure: |_| Ok(vec![SERVER_PORT.to_string()]),
        request: |number| [&number.to_be_bytes()[..], &[7; 62]].concat(),
        requests: 200_000,
    };
    let named = UdpServer {
        name: "named",
        program: "named",
        package: "bind9",
        ready: "all zones loaded",
        configure: configure_named,
        request: dns_query,
        requests: 50_000,
    };
    let knot = UdpServer {
        name: "knotd",
        program: "knotd",
        package: "knot",
        ready: "server started",
        configure: configure_knot,
        request: dns_query,
        requests: 100_000,
    };
    let is_there = |server: &UdpServer| match server.program {
        "" => is_installed("cc", "gcc"),
        program => is_installed(program, server.package),
    };
    [echo, named, knot].into_iter().filter(is_there).collect()
}

/// Returns a DNS query for the IPv4 address of `hN.example`, where N is `number` modulo 50.
fn dns_query(number: u16) -> Vec<u8> {
    let mut bytes = [number.to_be_bytes(), [0, 0], [0, 1]].concat();
    bytes.extend([0; 6]);
    for label in [format!("h{}", number % 50), "example".to_owned()] {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}

/// Writes a DNS zone file with 50 hosts for the name servers.
fn write_dns_zone(folder: &Path) -> std::io::Result<()> {
    let hosts: String = (0..50).map(|n| format!("h{n} IN A 10.1.2.{n}\n")).collect();
    let begin = format!("$TTL 60\n@ IN SOA ns a 1 60 60 60 60\n@ IN NS ns\nns IN A {SERVER}\n");
    fs::write(folder.join("zone"), begin + &hosts)
}

fn configure_named(folder: &Path) -> std::io::Result<Vec<String>> {
    write_dns_zone(folder)?;
    let (file, place) = (folder.join("named.conf"), folder.display());
    let text = format!(
        "options {{ directory \"{place}\"; listen-on port {SERVER_PORT} {{ {SERVER}; }};\n\
         listen-on-v6 {{ none; }}; recursion no; pid-file none; session-keyfile none;\n\
         managed-keys-directory \"{place}\"; dnssec-validation no; }};\n\
         controls {{ }};\n\
         zone \"example\" {{ type primary; file \"{place}/zone\"; }};\n"
    );
    fs::write(&file, text)?;
    let words = ["-g", "-4", "-n", "1", "-c"].map(str::to_owned);
    Ok([&words[..], &[file.display().to_string()]].concat())
}

fn configure_knot(folder: &Path) -> std::io::Result<Vec<String>> {
    write_dns_zone(folder)?;
    let (file, place) = (folder.join("knot.conf"), folder.display());
    let text = format!(
        "server:\n  rundir: \"{place}\"\n  listen: [ 0.0.0.0@{SERVER_PORT} ]\n  \
         udp-workers: 1\n  tcp-workers: 1\n  background-workers: 1\n\
         database:\n  storage: \"{place}\"\n\
         log:\n  - target: stderr\n    any: info\n\
         zone:\n  - domain: example\n    storage: \"{place}\"\n    file: zone\n"
    );
    fs::write(&file, text)?;
    Ok(vec!["-c".to_owned(), file.display().to_string()])
}

/// A running server, with its daemon if it runs under `streamline exec`.
pub(super) struct RunningServer {
    name: &'static str,
    server: Child,
    daemon: Children,
    output: PathBuf,
}

impl RunningServer {
    /// Starts a server on the second processor, and waits until it is ready.
    pub(super) fn start(
        space: &Namespace,
        folder: &Path,
        launch: UdpLaunch,
        server: &UdpServer,
        environment: &[(&str, String)],
    ) -> Result<Self, String> {
        let program = match server.program {
            "" => compile_echo_server(folder)?,
            name => find_program(name).ok_or_else(|| format!("{name} is not installed"))?,
        };
        let arguments = (server.configure)(folder).map_err(|why| why.to_string())?;
        let mut daemon = Children::default();
        let mut command = Command::new(&program);
        if let UdpLaunch::Exec(options) = launch {
            let state = folder.join("daemon");
            let ours = |words: &[&str]| {
                let path = streamline_path().ok_or("there is nothing to measure")?;
                let mut command = Command::new(path);
                command.args(words).env("STREAMLINE_DAEMON", &state).env("HOME", folder);
                command.env("STREAMLINE_UDP", options).stdin(Stdio::null());
                command.stdout(Stdio::null()).stderr(Stdio::null());
                Ok::<_, String>(command)
            };
            let mut serve = ours(&["daemon", "--socket"])?;
            daemon.add(start_on_second_processor(space, serve.arg(&state))?);
            wait_until("the daemon answers", || {
                let asked = ours(&["ps"]).and_then(|mut ps| ps.status().map_err(|e| e.to_string()));
                asked.is_ok_and(|status| status.success())
            });
            command = ours(&["exec", "--with=udp"])?;
            command.arg(&program);
        }
        let output = folder.join("output");
        let file = File::create(&output).map_err(|why| why.to_string())?;
        let errors = file.try_clone().map_err(|why| why.to_string())?;
        command.args(arguments).envs(environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        let child = start_on_second_processor(space, &mut command)?;
        let mut running = Self { name: server.name, server: child, daemon, output };
        let mut ended = false;
        wait_until("the server is ready", || {
            ended = !matches!(running.server.try_wait(), Ok(None));
            ended || read_text(&running.output).contains(server.ready)
        });
        match ended {
            true => Err(format!("{}: {}", server.name, read_text(&running.output))),
            false => Ok(running),
        }
    }

    /// Returns the process id of the server.
    pub(super) fn process_id(&self) -> u32 {
        self.server.id()
    }

    /// Returns the output of the server so far.
    pub(super) fn output(&self) -> String {
        read_text(&self.output)
    }

    /// Returns the processor time of the server and the daemon so far, in ns.
    pub(super) fn processor_ns(&self) -> u64 {
        let daemon = self.daemon.process_ids();
        daemon.into_iter().chain([self.server.id()]).map(processor_ns).sum()
    }

    /// Stops the server and the daemon. Returns the share of the server's datagrams that came from
    /// the ring, from 0 to 1.
    pub(super) fn stop(self) -> Result<f64, String> {
        let Self { name, server, daemon, output } = self;
        interrupt_and_wait(server, name)?;
        daemon.interrupt_and_wait("the daemon")?;
        Ok(parse_ring_share(&read_text(&output)))
    }

    /// Kills the server, which may not react to an interrupt, and then stops the daemon.
    pub(super) fn kill(self) -> Result<(), String> {
        let Self { mut server, daemon, .. } = self;
        let killed = server.kill().and_then(|()| server.wait());
        killed.map_err(|why| why.to_string())?;
        daemon.interrupt_and_wait("the daemon")
    }
}

/// Reads, from the final report of the server, the share of datagrams that came from the ring (0 to
/// 1). Only datagrams received since the socket got a ring count.
fn parse_ring_share(text: &str) -> f64 {
    let ring = " datagrams came from the ring";
    if !text.contains(ring) {
        return 0.0;
    }
    let all = number_before(text, ring);
    number_before(text, &format!(" of {all}{ring}")) as f64 / all.max(1) as f64
}

fn compile_echo_server(folder: &Path) -> Result<PathBuf, String> {
    let (source, program) = (folder.join("udp_echo.c"), folder.join("udp_echo"));
    if !program.is_file() {
        fs::write(&source, include_str!("../../c/udp_echo.c")).map_err(|why| why.to_string())?;
        let mut command = Command::new("cc");
        command.args(["-O2", "-Wall", "-Werror", "-o"]).arg(&program).arg(&source);
        let output = command.output().map_err(|why| format!("cc: {why}"))?;
        if !output.status.success() {
            return Err(format!("cc: {}", String::from_utf8_lossy(&output.stderr)));
        }
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_of_the_ring_is_read_from_the_report() {
        let line = "streamline: udp 0.0.0.0:5400: 90 of 100 datagrams came from the ring of eth0;";
        assert_eq!(parse_ring_share(&format!("ready\n{line} 0 lost, 0 damaged\n")), 0.9);
        assert_eq!(parse_ring_share("ready\n"), 0.0);
    }
}
