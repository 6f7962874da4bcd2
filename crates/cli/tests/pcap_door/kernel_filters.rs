//! Tests of filters in the kernel, and of captures by programs that a wrapper program starts.

use super::*;
use std::process::Output;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;
use sys::packet::{PacketSender, QdiscMode};
use testkit::net::CLIENT_DEVICE;

/// Text in the report of `STREAMLINE_PCAP=report` if the kernel has filtered the capture.
const KERNEL_FILTER_REMARK: &str = ", filtered in the kernel";

#[test]
fn tcpdump_that_drops_its_privileges_is_filtered_in_the_kernel() {
    let Some((pair, folder)) = prepare_capture_test("tcpdump") else { return };
    let words = ["tcpdump", "-n", "-t", "-c", "20", "-i", SERVER_DEVICE, "udp port 5300"];
    let start =
        |is_ours| CaptureProgram::start((&pair, &folder), is_ours, (&words, LISTENING_TEXT));
    let (real, ours) = (start(false), start(true));
    send_datagrams(&pair, PORT + 1, [64; 50]);
    send_datagrams(&pair, PORT, (0..20).map(|number| 64 + number));
    real.finish();
    let errors = ours.finish();
    assert_eq!(folder.read("ours.out"), folder.read("real.out"));
    assert_eq!(folder.read("ours.out").lines().count(), 20);
    assert_eq!(number_before(&errors, " packets received by filter"), 20, "{errors}");
    assert!(errors.contains(KERNEL_FILTER_REMARK), "{errors}");
}

/// Returns an Ethernet frame with a UDP datagram to [`PORT`] with `length` bytes of payload. `tags`
/// contains the type and the control information of each VLAN tag.
fn tagged_frame(tags: &[(u16, u16)], length: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8];
    for (tpid, tci) in tags {
        frame.extend([tpid.to_be_bytes(), tci.to_be_bytes()].concat());
    }
    frame.extend([8, 0, 0x45, 0, 0, 28 + length, 0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend([198, 18, 0, 1, 198, 19, 0, 1, 0x27, 0x10]);
    frame.extend([PORT.to_be_bytes(), [0, 8 + length], [0, 0]].concat());
    frame.resize(frame.len() + usize::from(length), 7);
    frame
}

/// Captures frames with zero, one and more VLAN tags, through libpcap and from the rings. The
/// kernel removes the outermost tag from a frame before libpcap's filter runs.
#[test]
fn filters_under_exec_select_tagged_frames_like_libpcap() {
    let tags: [&[(u16, u16)]; 6] = [
        &[],
        &[(0x8100, 100)],
        &[(0x8100, 7)],
        &[(0x88a8, 100), (0x8100, 7)],
        &[(0x8100, 0xe000)],
        &[(0x9100, 100)],
    ];
    let mut frames: Vec<Vec<u8>> = tags.iter().map(|tags| tagged_frame(tags, 22)).collect();
    // The last frame matches every filter, so each capture receives the end of the traffic.
    frames.push(tagged_frame(&[(0x8100, 100)], 200));
    let filters = [
        ("udp port 5300", 5),
        ("vlan", 6),
        ("vlan 100 and udp", 3),
        ("vlan and vlan 7 or greater 240", 2),
        ("udp or vlan 100", 7),
        ("ether proto 0x8100 or greater 240", 2),
        ("len > 64 and not ip6", 3),
        ("vlan and port domain or greater 240", 1),
    ];
    for (filter, expected) in filters {
        let captured =
            capture_with_libpcap_and_rings(&["--immediate-mode", filter], expected, |pair| {
                pair.client.run_in_network_namespace(|| {
                    let index = sys::net::interface(CLIENT_DEVICE).unwrap().index;
                    let mut sender = PacketSender::open(index, QdiscMode::Through).unwrap();
                    let parts: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
                    assert_eq!(sender.send(&parts).frames, frames.len());
                });
            });
        let Some((packets, errors)) = captured else { return };
        assert_eq!([packets[0].len(), packets[1].len()], [expected; 2], "{filter}: {packets:?}");
        assert_same_packets(&packets);
        assert!(errors.contains(KERNEL_FILTER_REMARK), "{filter}: {errors}");
    }
}

#[test]
fn c6_captures_of_one_interface_keep_their_own_filters() {
    let Some((pair, folder)) = prepare_capture_test("tcpdump") else { return };
    let _daemon = start_daemon(&pair, &folder);
    let filters = ["udp port 5300", "udp port 5301", "udp[4:2] > 100", "less 60 and udp", "udp"];
    let expected = [40, 40, 60, 20, 80];
    let folders: Vec<(Folder, &str)> = filters.map(|filter| (Folder::new(), filter)).into();
    let observers = folders.iter().map(|(own, filter)| {
        let file = own.path().join("ours.pcap").display().to_string();
        let words = ["tcpdump", "-U", "-Z", "root", "-w", &file, "-i", SERVER_DEVICE, filter];
        CaptureProgram::start_in_folder((&pair, own, &folder), true, (&words, LISTENING_TEXT))
    });
    let observers: Vec<CaptureProgram> = observers.collect();
    // Each frame is 42 bytes longer than its datagram.
    send_datagrams(&pair, PORT, (0..40).map(|number| if number < 20 { 10 } else { 100 }));
    send_datagrams(&pair, PORT + 1, [200; 40]);
    let listing = folder.run(&["ps"]).out;
    for (((own, filter), observer), expected) in folders.iter().zip(observers).zip(expected) {
        let file = own.path().join("ours.pcap");
        wait_until(&format!("{expected} packets match {filter:?}"), || {
            read_packets(&file).len() >= expected
        });
        let errors = observer.interrupt();
        assert_eq!(read_packets(&file).len(), expected, "{filter}");
        assert_eq!(number_before(&errors, " packets received by filter"), expected as u64);
        assert_eq!(number_before(&errors, " packets dropped by kernel"), 0, "{errors}");
        assert!(errors.contains(KERNEL_FILTER_REMARK), "{errors}");
    }
    let received = format!("{SERVER_DEVICE} received");
    let rows: Vec<&str> = listing.lines().filter(|row| row.contains("tcpdump[")).collect();
    let received_count = |row: &&str| {
        let count = row.split(&received).nth(1)?.split_whitespace().nth(1)?;
        count.parse::<usize>().ok()
    };
    let mut counts: Vec<usize> = rows.iter().filter_map(received_count).collect();
    counts.sort_unstable();
    assert_eq!(counts, [20, 40, 40, 60, 80], "{listing}");
}

#[test]
fn filters_are_replaced_while_frames_pass_without_loss() {
    let Some((pair, folder)) = prepare_capture_test("tcpdump") else { return };
    let Some(program) = compile_with_libpcap(&folder, "refilters") else { return };
    let program = program.display().to_string();
    let words = [program.as_str(), SERVER_DEVICE];
    let (end, is_over) = mpsc::channel::<()>();
    let client = &pair.client;
    let errors = thread::scope(|scope| {
        scope.spawn(move || {
            client.run_in_network_namespace(move || {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                let mut numbers = 0u32..;
                // At this rate, rings with thousands of frames do not overflow.
                while is_over.recv_timeout(Duration::from_millis(1))
                    == Err(RecvTimeoutError::Timeout)
                {
                    for number in numbers.by_ref().take(16) {
                        for port in [PORT, PORT + 1] {
                            socket.send_to(&number.to_be_bytes(), (SERVER, port)).unwrap();
                        }
                    }
                }
            });
        });
        let observer = CaptureProgram::start((&pair, &folder), true, (&words, "ready"));
        let errors = observer.finish();
        drop(end);
        errors
    });
    let out = folder.read("ours.out");
    assert!(out.contains("6 filters, 0 missing, 0 twice, 0 wrong"), "{out}{errors}");
    assert!(errors.contains(KERNEL_FILTER_REMARK), "{errors}");
}

#[test]
fn capture_by_child_of_a_wrapper_reads_the_ring() {
    let Some((pair, folder)) = prepare_capture_test("tcpdump") else { return };
    let text = format!("tcpdump -n -c 5 -i {SERVER_DEVICE} udp port 5300");
    for words in [vec!["sh", "-c", &text], vec!["env", "A=b", "sh", "-c", &text]] {
        let observer = CaptureProgram::start((&pair, &folder), true, (&words, LISTENING_TEXT));
        send_datagrams(&pair, PORT, [64; 5]);
        let errors = observer.finish();
        assert!(errors.contains("5 of 5 packets came from the ring"), "{errors}");
    }
}

#[test]
fn loopback_packets_are_captured_once() {
    let Some((pair, folder)) = prepare_capture_test("tcpdump") else { return };
    let words = ["tcpdump", "-n", "-t", "-c", "12", "-i", "lo", "udp port 5300"];
    let start =
        |is_ours| CaptureProgram::start((&pair, &folder), is_ours, (&words, LISTENING_TEXT));
    let (real, ours) = (start(false), start(true));
    pair.server.run_in_network_namespace(|| {
        let receiver = UdpSocket::bind(("127.0.0.1", PORT)).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for size in 1..=12 {
            socket.send_to(&vec![1; size], ("127.0.0.1", PORT)).unwrap();
        }
        drop(receiver);
    });
    real.finish();
    let errors = ours.finish();
    assert_eq!(folder.read("ours.out"), folder.read("real.out"));
    assert!(errors.contains("12 of 12 packets came from the ring"), "{errors}");
}

#[test]
fn programs_that_cannot_be_preloaded_are_reported() {
    if need::require_command("tcpdump").is_none() {
        return;
    }
    common::build_pipes_library();
    common::build_pcap_library();
    let folder = Folder::new();
    let privileged = folder.path().join("become");
    testkit::copy_program(Path::new("/bin/true"), &privileged);
    let mode = std::os::unix::fs::PermissionsExt::from_mode;
    std::fs::set_permissions(&privileged, mode(0o4755)).unwrap();
    let name = privileged.display().to_string();
    let run = |words: &[&str]| -> Output {
        let mut command = Command::new(STREAMLINE);
        folder.set_environment(&mut command);
        command.arg("exec").args(words).output().unwrap()
    };
    let stderr = |output: &Output| String::from_utf8(output.stderr.clone()).unwrap();
    let behind = run(&["env", &name, "tcpdump", "-i", "lo"]);
    let note = format!(
        "note: {name} changes its user: libpcap reads its captures, without the shared rings"
    );
    assert!(stderr(&behind).contains(&note), "{}", stderr(&behind));
    assert_eq!(behind.status.code(), Some(0));
    let itself = run(&[&name, "tcpdump"]);
    let error = format!("error: the library cannot be preloaded: {name} changes its user");
    assert!(stderr(&itself).contains(&error), "{}", stderr(&itself));
    assert_eq!(itself.status.code(), Some(126));
    let unconcerned = run(&["env", &name, "something"]);
    assert_eq!(stderr(&unconcerned), "");
}
