//! Tests of `bpf` on captures of every link type: counts, refusals, warnings, and name resolution.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::Folder;
use std::fs;
use testkit::Frame;

/// Writes a capture file with frames of a link type.
fn write_capture(folder: &Folder, name: &str, link: u32, frames: &[Vec<u8>]) {
    let mut bytes = Vec::new();
    let head = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 262_144, link];
    bytes.extend(head.iter().flat_map(|word| word.to_le_bytes()));
    for frame in frames {
        let length = u32::try_from(frame.len()).unwrap();
        bytes.extend([1, 0, length, length].iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend_from_slice(frame);
    }
    fs::write(folder.path().join(name), bytes).unwrap();
}

const SNAP_HEADER: &[u8] = &[0xaa, 0xaa, 3, 0, 0, 0, 8, 0];

/// Returns the tested link types, each with its name, its number, and its header for an IPv4
/// packet.
fn link_headers() -> Vec<(&'static str, u32, Vec<u8>)> {
    let wlan = [&[8][..], &[0; 23], SNAP_HEADER].concat();
    vec![
        ("BSD loopback", 0, vec![2, 0, 0, 0]),
        ("Ethernet", 1, [&[0; 12][..], &[8, 0]].concat()),
        ("Token Ring", 6, [&[0; 14][..], SNAP_HEADER].concat()),
        ("ARCNET", 7, vec![0, 0, 212, 0, 0, 0]),
        ("PPP", 9, vec![0xff, 3, 0, 0x21]),
        ("FDDI", 10, [&[0; 13][..], SNAP_HEADER].concat()),
        ("PPP over serial", 50, vec![0xff, 3, 0, 0x21]),
        ("ATM with LLC", 100, SNAP_HEADER.to_vec()),
        ("raw IP", 101, vec![]),
        ("Cisco HDLC", 104, vec![0x0f, 0, 8, 0]),
        ("802.11", 105, wlan.clone()),
        ("OpenBSD loopback", 108, vec![0, 0, 0, 2]),
        ("Linux cooked", 113, [&[0; 14][..], &[8, 0]].concat()),
        ("radiotap", 127, [&[0, 0, 8, 0, 0, 0, 0, 0][..], &wlan].concat()),
        ("PPI", 192, [&[0, 0, 8, 0, 105, 0, 0, 0][..], &wlan].concat()),
        ("IPv4", 228, vec![]),
        ("Linux cooked, second form", 276, [&[8, 0][..], &[0; 18]].concat()),
    ]
}

/// Returns, as text, the number of frames in the capture `x` that match the expression.
fn count_selected_frames(folder: &Folder, expression: &str) -> String {
    let ran = folder.run(&["run", "-q", &format!("replay x | bpf '{expression}' | count")]);
    assert_eq!(ran.status, Some(0), "{expression}: {}", ran.err);
    ran.out.split_whitespace().next().unwrap_or_default().to_owned()
}

#[test]
fn h9_expression_is_compiled_for_the_capture_link_type() {
    let folder = Folder::new();
    for (what, link, before) in link_headers() {
        let packet = |port| Frame::raw().ipv4("10.0.0.1", "10.0.0.2").udp(9, port, b"");
        let frames = [53, 54].map(|port| [&before[..], &packet(port)].concat());
        write_capture(&folder, "x", link, &frames);
        assert_eq!(
            count_selected_frames(&folder, "udp dst port 53 and src host 10.0.0.1"),
            "1",
            "{what}"
        );
        assert_eq!(count_selected_frames(&folder, "udp port 53 or udp port 54"), "2", "{what}");
    }
}

/// Compiles expressions that are valid only on one link type. Asserts that they are refused on
/// other link types.
#[test]
fn link_specific_primitive_is_refused_on_other_links() {
    let folder = Folder::new();
    write_capture(&folder, "ethernet", 1, &[vec![0; 60]]);
    let slip = |direction| [&[direction][..], &[0; 40]].concat();
    let cases = [
        ("type mgt subtype beacon", 105, vec![0x80; 30], vec![0; 30]),
        ("wlan addr1 8:8:8:8:8:8", 105, vec![8; 30], vec![9; 30]),
        ("inbound", 8, slip(0), slip(1)),
        ("link dst $05", 165, vec![0x55, 0xff, 0, 5, 6], vec![0x55, 0xff, 0, 6, 5]),
        ("ifindex 7", 276, cooked_frame(7), cooked_frame(0)),
    ];
    for (expression, link, yes, no) in cases {
        write_capture(&folder, "x", link, &[yes, no]);
        assert_eq!(count_selected_frames(&folder, expression), "1", "{expression} on {link}");
        let line = format!("replay ethernet | bpf '{expression}' | count");
        let checked = folder.run(&["check", &line]);
        assert_eq!(checked.status, Some(2), "{expression}: {}", checked.err);
        // For standard input, the link type is unknown until the run, so `check` reports no
        // mistake.
        let piped = folder.run(&["check", &line.replace("ethernet", "-")]);
        assert_eq!(piped.status, Some(0), "{expression}: {}", piped.err);
    }
}

fn cooked_frame(interface: u8) -> Vec<u8> {
    let mut header = vec![0; 28];
    header[7] = interface;
    header
}

/// Runs expressions that the built-in compiler does not support and that libpcap compiles. If
/// libpcap is unavailable, checks that the refusal contains a remedy.
#[test]
fn primitives_for_atm_mtp_and_pflog_use_libpcap() {
    let folder = Folder::new();
    let cases = [
        ("fisu", 140, vec![0, 0, 0], vec![0, 0, 5]),
        ("vpi 3 and vci 7", 123, vec![0, 3, 0, 7, 0], vec![0, 3, 0, 8, 0]),
    ];
    for (expression, link, yes, no) in cases {
        write_capture(&folder, "x", link, &[yes, no]);
        let line = format!("replay x | bpf '{expression}' | count");
        let checked = folder.run(&["check", &line]);
        if checked.status == Some(0) {
            assert_eq!(count_selected_frames(&folder, expression), "1", "{expression} on {link}");
        } else {
            assert!(checked.err.contains("is supported by libpcap only"), "{}", checked.err);
            assert!(checked.err.contains("install"), "{}", checked.err);
        }
    }
}

#[test]
fn expression_that_no_frame_can_match_warns_and_runs() {
    let folder = Folder::new();
    let packet = Frame::raw().ipv4("10.0.0.1", "10.0.0.2").udp(9, 53, b"");
    write_capture(&folder, "x", 101, &[packet]);
    let line = "replay x | bpf arp | count";
    let warning = [
        "warning: `bpf`: no frame of RAW (IP without a link header) can match\n",
        "  replay x | bpf arp | count\n",
        "                 ^^^ it contradicts itself, or tests for what such frames cannot \
         contain\n",
    ];
    let warning = warning.concat();
    for command in ["check", "explain", "run"] {
        let ran = folder.run(&[command, line]);
        assert_eq!(ran.status, Some(0), "{command}: {}", ran.err);
        assert!(ran.err.starts_with(&warning), "{command}: {}", ran.err);
    }
    let explained = folder.run(&["explain", "replay x | bpf udp | count"]);
    let by = "bpf: compiled by the built-in compiler for RAW (IP without a link header), ";
    assert!(explained.out.contains(by), "{}", explained.out);
}

#[test]
fn each_link_type_has_its_own_filter_program() {
    let folder = Folder::new();
    let block = |kind: u32, body: &[u8]| {
        let length = u32::try_from(12 + body.len()).unwrap().to_le_bytes();
        [&kind.to_le_bytes()[..], &length, body, &length].concat()
    };
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let packet = |interface: u32, frame: &[u8]| {
        let head: Vec<u8> = words(&[interface, 0, 0, 44, 44]);
        block(6, &[&head[..], frame].concat())
    };
    let udp = Frame::raw().ipv4("10.0.0.1", "10.0.0.2").udp(9, 53, &[0; 2]);
    let ethernet = [&[0; 12][..], &[8, 0], &udp].concat();
    let wlan = [&[8][..], &[0; 23], SNAP_HEADER, &udp[..12]].concat();
    assert_eq!((ethernet.len(), wlan.len()), (44, 44));
    let section: Vec<u8> = words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]);
    let described = |link: u32| block(1, &words(&[link, 0]));
    let file = [
        block(0x0a0d_0d0a, &section),
        described(1),
        described(105),
        packet(0, &ethernet),
        packet(1, &wlan),
    ];
    fs::write(folder.path().join("x"), file.concat()).unwrap();
    assert_eq!(count_selected_frames(&folder, "ip"), "2");
    assert_eq!(count_selected_frames(&folder, "udp port 53"), "1");
    let warned = folder.run(&["run", "replay x | bpf 'type data' | count"]);
    assert_eq!(warned.out, "1 blocks, 44 bytes\n");
    let warning = "warning: `bpf`: no frame of EN10MB (Ethernet) passes: `type` is not supported \
                   on EN10MB (Ethernet)\n";
    assert!(warned.err.starts_with(warning), "{}", warned.err);
}

/// Asserts that a host name is resolved only once, and that the result is stored in the request and
/// in the record.
#[test]
fn resolved_names_are_recorded() {
    let folder = Folder::new();
    let packet = |to| Frame::ethernet().ipv4("10.0.0.1", to).udp(9, 53, b"");
    write_capture(&folder, "x", 1, &[packet("127.0.0.1"), packet("10.0.0.9")]);
    let line = "replay x | bpf \"dst host localhost and port domain\" | count";
    let ran = folder.run(&["run", line, "--record=r"]);
    assert_eq!((ran.status, ran.out.as_str()), (Some(0), "1 blocks, 42 bytes\n"), "{}", ran.err);
    let record = fs::read(folder.path().join("r")).unwrap();
    let record = String::from_utf8_lossy(&record);
    let written = "bpf \"dst host localhost and port domain\" names=\"host:localhost=";
    assert!(record.contains(written), "the answer stands behind the expression");
    let again = folder.run(&["run", "--replay", "r"]);
    assert_eq!((again.status, again.out.as_str()), (Some(0), "1 blocks, 42 bytes\n"));
    assert!(again.err.contains("the replay matches the recorded run"), "{}", again.err);
    let own = "replay x | bpf \"dst host lab\" names=\"host:lab=10.0.0.9\" | count";
    assert_eq!(folder.run(&["run", "-q", own]).out, "1 blocks, 42 bytes\n");
    let unknown = folder.run(&["check", "replay x | bpf \"host no.such.name.invalid\" | count"]);
    assert_eq!(unknown.status, Some(2));
    assert!(unknown.err.contains("unknown host `no.such.name.invalid`: "), "{}", unknown.err);
}
