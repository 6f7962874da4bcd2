//! Tests of servers from packages of the distribution, other than name servers. Each server must
//! work as without a ring; the test prints the share of datagrams that came from the ring.
//! [FEATURES C1]

use super::{
    PORT, REPLY_TIMEOUT, STREAMLINE, prepare_server_test, receive_datagram,
    reported_counts_per_socket, server_address,
};
use crate::common::{ChildGuard, Folder};
use std::fs::File;
use std::net::UdpSocket;
use std::process::Command;
use testkit::net::{NamespacePair, SERVER};
use testkit::{need, wait_until};

/// A server program under `streamline exec`.
struct Service {
    folder: Folder,
    process: ChildGuard,
}

impl Service {
    /// Starts a program with a configuration file. `configure` returns the text of the file, given
    /// the program's directory. Reports a skip and returns `None` if the program is not installed.
    fn start(
        pair: &NamespacePair,
        program: &str,
        words: &[&str],
        configure: impl Fn(&str) -> String,
    ) -> Option<Self> {
        let program = need::require_command(program)?;
        let folder = Folder::new();
        let place = folder.path().display().to_string();
        std::fs::write(folder.path().join("configuration"), configure(&place)).unwrap();
        let mut command = pair.server.command(STREAMLINE);
        command.args(["exec", "--with=udp"]).arg(program);
        command.args(words.iter().map(|word| word.replace("FOLDER", &place)));
        folder.set_environment(&mut command);
        command.env("STREAMLINE_UDP", "report,spin");
        let output = File::create(folder.path().join("output")).unwrap();
        command.stdout(output.try_clone().unwrap()).stderr(output);
        let process = ChildGuard(command.spawn().unwrap());
        Some(Self { folder, process })
    }

    /// Ends the program with SIGTERM. Returns its output.
    fn finish(mut self) -> String {
        let number = self.process.0.id().to_string();
        assert!(Command::new("kill").arg(&number).status().unwrap().success());
        self.process.0.wait().unwrap();
        self.folder.read("output")
    }
}

fn open_client_socket(pair: &NamespacePair) -> UdpSocket {
    let client = pair.client.run_in_network_namespace(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    client.set_read_timeout(Some(REPLY_TIMEOUT)).unwrap();
    client
}

/// chronyd requests timestamps from the kernel (`SO_TIMESTAMPING`), so its socket is not promoted.
#[test]
fn chronyd_answers_from_its_socket_with_a_note() {
    let Some((pair, ..)) = prepare_server_test() else { return };
    let configure = |place: &str| {
        format!(
            "local stratum 1\nallow all\nport {PORT}\ncmdport 0\nbindaddress {SERVER}\n\
             bindcmdaddress /\npidfile {place}/process\ndriftfile {place}/drift\n"
        )
    };
    let words = ["-d", "-x", "-u", "root", "-f", "FOLDER/configuration"];
    let Some(service) = Service::start(&pair, "chronyd", &words, configure) else { return };
    let bound = || service.folder.read("output").contains("Running with root privileges");
    wait_until("chronyd runs", bound);
    let client = open_client_socket(&pair);
    for number in 1..=200_u64 {
        let request = [&[0x23][..], &[0; 39], &number.to_be_bytes()].concat();
        client.send_to(&request, server_address()).unwrap();
        let mut answer = [0; 100];
        let (length, from) = receive_datagram(&client, &mut answer);
        assert_eq!((length, from), (48, server_address()));
        // The reply must be an NTP server response of stratum 1 to this request.
        assert_eq!((answer[0] & 7, answer[1], &answer[24..32]), (4, 1, &request[40..]));
    }
    let output = service.finish();
    println!("chronyd: no datagram came from a ring: {output}");
    assert!(output.contains("it asks for timestamps (SO_TIMESTAMPING)"), "{output}");
    assert!(reported_counts_per_socket(&output).is_empty(), "{output}");
}

#[test]
fn rsyslogd_writes_each_message_from_its_ring() {
    const MESSAGE_COUNT: usize = 1000;
    let Some((pair, ..)) = prepare_server_test() else { return };
    let configure = |place: &str| {
        format!(
            "module(load=\"imudp\")\n\
             template(name=\"message\" type=\"string\" string=\"%msg%\\n\")\n\
             input(type=\"imudp\" port=\"{PORT}\" address=\"{SERVER}\")\n\
             action(type=\"omfile\" file=\"{place}/lines\" template=\"message\")\n"
        )
    };
    let words = ["-n", "-f", "FOLDER/configuration", "-i", "FOLDER/process"];
    let Some(service) = Service::start(&pair, "rsyslogd", &words, configure) else { return };
    let client = open_client_socket(&pair);
    let lines = || std::fs::read_to_string(service.folder.path().join("lines")).unwrap_or_default();
    let send = |text: &str| {
        let message = format!("<13>Nov 29 17:00:00 host tag: {text}");
        client.send_to(message.as_bytes(), server_address()).unwrap();
    };
    wait_until("rsyslogd writes a message", || {
        send("ready");
        lines().contains("ready")
    });
    for number in 0..MESSAGE_COUNT {
        send(&format!("number {number}"));
        // The test pauses after 50 messages, which fit into the receive buffer.
        if (number + 1) % 50 == 0 {
            let last = format!("number {number}\n");
            wait_until("rsyslogd has written the messages", || lines().ends_with(&last));
        }
    }
    let written = lines();
    let numbers = written.lines().filter_map(|line| line.trim().strip_prefix("number "));
    let numbers: Vec<usize> = numbers.map(|number| number.parse().unwrap()).collect();
    assert_eq!(numbers, (0..MESSAGE_COUNT).collect::<Vec<_>>());
    let output = service.finish();
    println!("rsyslogd: {output}");
    let [(ring, all)] = reported_counts_per_socket(&output)[..] else { panic!("{output}") };
    assert!(ring >= 500 && ring * 100 >= all * 90, "{ring} of {all}");
}
