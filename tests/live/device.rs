//! Tests of a capturing request while devices and namespaces change.

use crate::frame_sending::{capture_length, send_frames};
use crate::numbered_frames::{FRAME_LENGTH, frame_numbers, numbered_frames};
use crate::observer::Observer;
use std::net::UdpSocket;
use std::process::Command;
use testkit::net::{
    CLIENT, CLIENT_DEVICE, DevicePairSettings, Namespace, NamespacePair, SERVER, SERVER_DEVICE,
    WAIT_TIMEOUT, packet_socket_inodes, wait_until,
};
use testkit::streamline_program;
use testkit::{Frame, need};

fn short_frames(range: std::ops::Range<u64>) -> Vec<Vec<u8>> {
    numbered_frames(range, FRAME_LENGTH)
}

/// Returns a veth pair without addresses, so that it carries only the test's traffic, or `None`
/// without the privileges to create it.
fn quiet_pair() -> Option<NamespacePair> {
    NamespacePair::new(DevicePairSettings { addresses: false, ..DevicePairSettings::default() })
}

#[test]
fn vanished_device_ends_the_run_with_captured_frames() {
    let Some(pair) = quiet_pair() else { return };
    let mut observer =
        Observer::start(&pair.server, &format!("rx {SERVER_DEVICE} | pcap seen.pcap"));
    let frames = short_frames(0..1000);
    send_frames(&pair.client, CLIENT_DEVICE, &frames);
    observer.wait_until_file_has_length("seen.pcap", capture_length(&frames));
    send_frames(&pair.client, CLIENT_DEVICE, &short_frames(1000..1010));
    pair.server.run_ip(&format!("link delete dev {SERVER_DEVICE}"));
    let ran = observer.wait();
    assert_eq!(ran.status, Some(1), "{}", ran.err);
    assert_eq!(ran.ledger["balanced"], true, "{}", ran.ledger);
    assert!(ran.err.contains(SERVER_DEVICE), "{}", ran.err);
    assert_eq!(frame_numbers(&ran.frames("seen.pcap")), Vec::from_iter(0..1010), "{}", ran.ledger);
}

#[test]
fn vanished_device_is_reported_with_all_its_frames() {
    // The same frames, both where the program in the kernel counts all of them and where a socket's
    // filter does not.
    let came = "the interface was removed after 10 frames;";
    let passed = "the interface was removed after 1 frame that passed the kernel's filter;";
    for (line, text) in [("rx", came), ("rx@thread0", passed)] {
        if need::require_bpf().is_none() {
            return;
        }
        let Some(pair) = quiet_pair() else { return };
        let line = format!("{line} {SERVER_DEVICE} | bpf \"udp port 80\" | pcap seen.pcap");
        let mut observer = Observer::start(&pair.server, &line);
        let datagram = |port| {
            let frame = Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1");
            frame.udp(4000, port, &[7; 20])
        };
        let mut frames = vec![datagram(53); 9];
        frames.push(datagram(80));
        send_frames(&pair.client, CLIENT_DEVICE, &frames);
        observer.wait_until_file_has_length("seen.pcap", capture_length(&frames[9..]));
        pair.server.run_ip(&format!("link delete dev {SERVER_DEVICE}"));
        let ran = observer.wait();
        assert_eq!(ran.status, Some(1), "{}", ran.err);
        assert!(ran.err.contains(text), "{line}: {}", ran.err);
    }
}

#[test]
fn renamed_device_continues_under_its_new_name() {
    let Some(pair) = quiet_pair() else { return };
    let mut observer =
        Observer::start(&pair.server, &format!("rx {SERVER_DEVICE} | pcap seen.pcap"));
    send_frames(&pair.client, CLIENT_DEVICE, &short_frames(0..10));
    pair.server.run_ip(&format!("link set dev {SERVER_DEVICE} name other0"));
    send_frames(&pair.client, CLIENT_DEVICE, &short_frames(10..20));
    observer.wait_until_file_has_length("seen.pcap", capture_length(&short_frames(0..20)));
    let ran = observer.stop();
    ran.assert_lossless();
    assert_eq!(frame_numbers(&ran.frames("seen.pcap")), Vec::from_iter(0..20));
    assert!(format!("{}{}", ran.err, ran.ledger).contains("other0"), "{}{}", ran.err, ran.ledger);
}

#[test]
fn device_that_goes_down_and_up_continues() {
    let Some(pair) = quiet_pair() else { return };
    let mut observer =
        Observer::start(&pair.server, &format!("rx@thread0 {SERVER_DEVICE} | pcap seen.pcap"));
    send_frames(&pair.client, CLIENT_DEVICE, &short_frames(0..10));
    pair.server.run_ip(&format!("link set dev {SERVER_DEVICE} down"));
    wait_until("it sees nothing", || packet_socket_inodes(&pair.server).is_empty());
    pair.server.run_ip(&format!("link set dev {SERVER_DEVICE} up"));
    pair.client.wait_until_up(CLIENT_DEVICE);
    pair.server.wait_until_up(SERVER_DEVICE);
    wait_until("it sees frames again", || packet_socket_inodes(&pair.server).len() == 1);
    observer.assert_running();
    send_frames(&pair.client, CLIENT_DEVICE, &short_frames(10..20));
    observer.wait_until_file_has_length("seen.pcap", capture_length(&short_frames(0..20)));
    let ran = observer.stop();
    ran.assert_lossless();
    assert_eq!(frame_numbers(&ran.frames("seen.pcap")), Vec::from_iter(0..20));
}

#[test]
fn namespace_is_found_by_name_path_and_process() {
    let Some(pair) = quiet_pair() else { return };
    let mut inside = pair.server.command("sleep").arg("1000").spawn().expect("sleep");
    let process = inside.id().to_string();
    // The namespace exists once `ip` has become `sleep`.
    wait_until("it sleeps there", || {
        std::fs::read_to_string(format!("/proc/{process}/comm")).is_ok_and(|name| name == "sleep\n")
    });
    let path = pair.server.path().display().to_string();
    for named in [pair.server.name(), &path, &process] {
        let line = format!("rx {SERVER_DEVICE} netns={named} | pcap seen.pcap");
        let mut observer =
            Observer::start_by_command(&pair.server, |program| Command::new(program), &line);
        send_frames(&pair.client, CLIENT_DEVICE, &short_frames(0..10));
        observer.wait_until_file_has_length("seen.pcap", capture_length(&short_frames(0..10)));
        let ran = observer.stop();
        ran.assert_lossless();
        assert_eq!(frame_numbers(&ran.frames("seen.pcap")), Vec::from_iter(0..10), "{named}");
    }
    inside.kill().expect("our child");
    inside.wait().expect("our child");
}

#[test]
fn loopback_packets_arrive_once() {
    let Some(space) = Namespace::new() else { return };
    // An observer is ready as soon as its first source is attached, so the source that delivers the
    // packets comes first.
    let unions = ["rx ++ tx", "rx lo ++ tx lo", "rx lo ++ rx lo", "rx ++ tx lo"];
    let alone = ["rx lo", "tx lo", "rx lo both=yes", "rx", "rx both=yes"];
    for source in alone.into_iter().chain(unions) {
        let line = format!("{source} | bpf \"udp port 9\" | pcap seen.pcap");
        let mut observer = Observer::start(&space, &line);
        let frames = short_frames(0..100);
        space.run_in_network_namespace(|| {
            let to = UdpSocket::bind("127.0.0.1:9").expect("a socket");
            let from = UdpSocket::bind("127.0.0.1:0").expect("a socket");
            for frame in &frames {
                from.send_to(&frame[42..], to.local_addr().expect("bound")).expect("it goes");
            }
        });
        observer.wait_until_file_has_length("seen.pcap", capture_length(&frames));
        let ran = observer.stop();
        ran.assert_lossless();
        assert_eq!(frame_numbers(&ran.frames("seen.pcap")), Vec::from_iter(0..100), "{source}");
    }
}

#[test]
fn a10_frame_selected_by_two_sources_arrives_once() {
    let Some(pair) = quiet_pair() else { return };
    let rx = format!("rx {SERVER_DEVICE}");
    let frames = short_frames(0..1000);
    for union in [
        format!("{rx} ++ {rx}"),
        format!("({rx} | bpf \"udp\") ++ ({rx} | udp |9 count) ++ tx {SERVER_DEVICE}"),
        format!("({rx} | !udp) ++ ({rx} | ip |udp udp)"),
    ] {
        let mut observer = Observer::start(&pair.server, &format!("{union} | pcap seen.pcap"));
        send_frames(&pair.client, CLIENT_DEVICE, &frames);
        observer.wait_until_file_has_length("seen.pcap", capture_length(&frames));
        let ran = observer.stop();
        ran.assert_lossless();
        assert_eq!(frame_numbers(&ran.frames("seen.pcap")), Vec::from_iter(0..1000), "{union}");
    }
}

/// Sends numbered datagrams: even numbers from client to server, odd numbers from server to client.
fn send_datagrams(pair: &NamespacePair, count: u64) {
    let near =
        pair.client.run_in_network_namespace(|| UdpSocket::bind((CLIENT, 9)).expect("a socket"));
    let far =
        pair.server.run_in_network_namespace(|| UdpSocket::bind((SERVER, 9)).expect("a socket"));
    for socket in [&near, &far] {
        socket.set_read_timeout(Some(WAIT_TIMEOUT)).expect("a time");
    }
    let mut bytes = [0; 64];
    for number in 0..count {
        let frame = &short_frames(number..number + 1)[0];
        let (from, to, at) =
            if number.is_multiple_of(2) { (&near, &far, SERVER) } else { (&far, &near, CLIENT) };
        from.send_to(&frame[42..], (at, 9)).expect("it goes");
        to.recv(&mut bytes).expect("it comes");
    }
}

#[test]
fn h2_sources_receive_frames_of_their_direction_only() {
    let Some(pair) = NamespacePair::new(DevicePairSettings::default()) else { return };
    // Resolves the neighbors, so that no frame waits for that.
    send_datagrams(&pair, 2);
    // Even numbers are received, odd ones sent.
    let (came, went, all) = (|n: &u64| n.is_multiple_of(2), |n: &u64| n % 2 == 1, |_: &u64| true);
    type NumberPredicate = fn(&u64) -> bool;
    let lines: [(&str, NumberPredicate); 5] = [
        ("rx server0", came),
        ("tx server0", went),
        ("rx server0 both=yes", all),
        ("rx both=yes", all),
        ("rx", came),
    ];
    let mut observers: Vec<(&str, Observer)> = Vec::new();
    for (source, _) in lines {
        let line = format!("{source} | bpf \"udp port 9\" | pcap seen.pcap");
        observers.push((source, Observer::start(&pair.server, &line)));
    }
    send_datagrams(&pair, 100);
    for ((source, mut observer), (_, wanted)) in observers.into_iter().zip(lines) {
        let expected: Vec<u64> = (0..100).filter(wanted).collect();
        observer.wait_until_file_has_length(
            "seen.pcap",
            capture_length(&short_frames(0..expected.len() as u64)),
        );
        let ran = observer.stop();
        ran.assert_lossless();
        assert_eq!(frame_numbers(&ran.frames("seen.pcap")), expected, "{source}");
    }
}

#[test]
fn h2_frames_sent_by_the_last_filter_arrive() {
    let Some(pair) = quiet_pair() else { return };
    let mut observer =
        Observer::start(&pair.server, &format!("rx {SERVER_DEVICE} | pcap seen.pcap"));
    let sender = pair.client.command(streamline_program());
    let line = format!("generate count=5000 seq=yes | tx {CLIENT_DEVICE}");
    let sent = Observer::spawn(sender, &line).wait();
    sent.assert_lossless();
    observer.wait_until_file_has_length("seen.pcap", capture_length(&short_frames(0..5000)));
    let ran = observer.stop();
    ran.assert_lossless();
    assert_eq!(frame_numbers(&ran.frames("seen.pcap")), Vec::from_iter(0..5000));
}

#[test]
fn missing_device_error_lists_existing_devices() {
    let Some(pair) = quiet_pair() else { return };
    let observer = pair.server.command(streamline_program());
    let ran = Observer::spawn(observer, "rx server1 | count").wait();
    assert!(ran.status.is_some_and(|status| status != 0), "{}", ran.err);
    assert!(ran.err.contains("server1") && ran.err.contains(SERVER_DEVICE), "{}", ran.err);
}

#[test]
fn promiscuous_mode_ends_with_the_last_observer() {
    let Some(pair) = quiet_pair() else { return };
    let promiscuous = || {
        let text = pair.server.run_ip(&format!("-d link show dev {SERVER_DEVICE}"));
        !text.contains("promiscuity 0")
    };
    let mut found = Vec::new();
    for asked in ["no", "yes"] {
        let line = format!("rx {SERVER_DEVICE} promisc={asked} | count");
        let observer = Observer::start(&pair.server, &line);
        found.push(promiscuous());
        observer.stop().assert_lossless();
        found.push(promiscuous());
    }
    assert_eq!(found, [false, false, true, false]);
}

#[test]
fn frames_have_their_receive_time() {
    let Some(pair) = quiet_pair() else { return };
    let mut observer =
        Observer::start(&pair.server, &format!("rx {SERVER_DEVICE} | pcap seen.pcap"));
    let frames = short_frames(0..1000);
    let begin = sys::clock::realtime_ns();
    send_frames(&pair.client, CLIENT_DEVICE, &frames);
    let end = sys::clock::realtime_ns();
    observer.wait_until_file_has_length("seen.pcap", capture_length(&frames));
    let ran = observer.stop();
    let capture = ran.file("seen.pcap");
    let times = wire::capture::packets(&capture).map(|packet| packet.expect("whole").0.time_ns);
    let times: Vec<u64> = times.collect();
    assert_eq!(times.len(), 1000);
    assert!(times.is_sorted(), "in the order of arrival");
    assert!(begin <= times[0] && times[999] <= end, "{begin} {times:?} {end}");
}
