//! Tests of socket filters: direction, device types, and programs that cannot become a filter.
//! `tests/classic_kernel.rs` compares filters with their programs over many frames.

use super::super::{ClassicMetadata, Options, VlanTag, compile};
use super::*;

fn compile_ethernet(text: &str) -> ClassicProgram {
    compile(text, LinkType::EN10MB, &Options::default()).unwrap()
}

fn parse_listing(text: &str) -> ClassicProgram {
    text.parse().unwrap()
}

/// Returns the result of a socket filter for a frame whose metadata has this packet type and device
/// type.
fn run_filter(filter: &ClassicProgram, packet_type: u8, hardware_type: u16, frame: &[u8]) -> u32 {
    let metadata = ClassicMetadata { packet_type, hardware_type, ..ClassicMetadata::EMPTY };
    filter.run(frame, frame.len() as u32, &metadata)
}

#[test]
fn direction_selects_frames_and_loopback_has_no_duplicates() {
    let (host, outgoing) = (0, 4);
    for (direction, ethernet, loopback) in [
        (Direction::Received, [ACCEPT_WHOLE_FRAME, 0], [ACCEPT_WHOLE_FRAME, 0]),
        (Direction::Sent, [0, ACCEPT_WHOLE_FRAME], [0, ACCEPT_WHOLE_FRAME]),
        (Direction::SentToOthers, [0, ACCEPT_WHOLE_FRAME], [0, 0]),
        (Direction::Both, [ACCEPT_WHOLE_FRAME, ACCEPT_WHOLE_FRAME], [ACCEPT_WHOLE_FRAME, 0]),
    ] {
        for program in [None, Some(&compile_ethernet(""))] {
            let filter = socket_filter(direction, program, None).unwrap();
            for (kind, wanted) in
                [(1, ethernet), (LOOPBACK_HARDWARE_TYPE, loopback), (65534, ethernet)]
            {
                let found = [host, outgoing].map(|way| run_filter(&filter, way, kind, &[]));
                assert_eq!(found, wanted, "{direction:?} on {kind}:\n{filter}");
            }
        }
    }
}

#[test]
fn socket_filter_without_programs_tests_only_direction() {
    let received = "\
(000) ld       [type]
(001) jeq      #0x4             jt 3\tjf 2
(002) ret      #4294967295
(003) ret      #0
";
    let filter = socket_filter(Direction::Received, None, None).unwrap();
    assert_eq!(filter.to_string(), received);
    let both = "\
(000) ld       [type]
(001) jeq      #0x4             jt 2\tjf 4
(002) ld       [hatype]
(003) jeq      #0x304           jt 5\tjf 4
(004) ret      #4294967295
(005) ret      #0
";
    assert_eq!(socket_filter(Direction::Both, None, None).unwrap().to_string(), both);
}

#[test]
fn device_type_selects_the_program() {
    let no = parse_listing("(000) ret #0");
    let filter = socket_filter(Direction::Received, Some(&no), None).unwrap();
    for kind in 0..=u16::MAX {
        let ethernet = link_type(kind) == Some(LinkType::EN10MB);
        assert_eq!(run_filter(&filter, 0, kind, &[0; 60]) == 0, ethernet, "{kind}");
    }
    let first_is_4 =
        parse_listing("(000) ldb [0]\n(001) jeq #4 jt 2 jf 3\n(002) ret #9\n(003) ret #0");
    let filter = socket_filter(Direction::Received, Some(&no), Some(&first_is_4)).unwrap();
    for kind in 0..=u16::MAX {
        let found = [run_filter(&filter, 0, kind, &[4]), run_filter(&filter, 0, kind, &[5])];
        let wanted = match link_type(kind) {
            Some(LinkType::EN10MB) => [0, 0],
            Some(_) => [ACCEPT_WHOLE_FRAME, 0],
            None => [ACCEPT_WHOLE_FRAME, ACCEPT_WHOLE_FRAME],
        };
        assert_eq!(found, wanted, "{kind}");
    }
}

#[test]
fn tag_without_ethernet_header_shifts_no_offsets() {
    let byte_13 =
        parse_listing("(000) ldb [13]\n(001) jeq #7 jt 2 jf 3\n(002) ret #9\n(003) ret #0");
    let filter = socket_filter(Direction::Received, None, Some(&byte_13)).unwrap();
    let vlan = Some(VlanTag { tci: 1, tpid: 0x8100 });
    let metadata = ClassicMetadata { hardware_type: 65534, vlan, ..ClassicMetadata::EMPTY };
    let mut frame = [0; 20];
    assert_eq!(filter.run(&frame, 20, &metadata), 0);
    frame[13] = 7;
    assert_eq!(filter.run(&frame, 20, &metadata), ACCEPT_WHOLE_FRAME);
}

#[test]
fn filter_returns_whole_frame_or_zero() {
    let length = parse_listing("(000) ld #pktlen\n(001) ret");
    let filter = socket_filter(Direction::Received, Some(&length), None).unwrap();
    assert_eq!(run_filter(&filter, 0, 1, &[0; 60]), ACCEPT_WHOLE_FRAME);
    assert_eq!(run_filter(&filter, 0, 1, &[]), 0);
    let some = parse_listing("(000) ret #96");
    let filter = socket_filter(Direction::Received, Some(&some), None).unwrap();
    assert_eq!(run_filter(&filter, 0, 1, &[0; 60]), ACCEPT_WHOLE_FRAME);
}

#[test]
fn unwritten_registers_and_words_read_as_zero() {
    // A, X and a scratch word, in this order.
    let text = "(000) jeq #0 jt 1 jf 6\n(001) jeq x jt 2 jf 6\n(002) txa\n(003) add #1\n\
                (004) ld M[3]\n(005) jeq #0 jt 7 jf 6\n(006) ret #0\n(007) ret #1";
    let filter =
        socket_filter(Direction::Both, Some(&parse_listing(text)), Some(&parse_listing(text)))
            .unwrap();
    for (kind, vlan) in [(1, None), (1, Some(VlanTag { tci: 0, tpid: 0x8100 })), (65534, None)] {
        let metadata = ClassicMetadata { hardware_type: kind, vlan, ..ClassicMetadata::EMPTY };
        assert_eq!(
            filter.run(&[0; 60], 60, &metadata),
            ACCEPT_WHOLE_FRAME,
            "{kind} {vlan:?}\n{filter}"
        );
    }
}

#[test]
fn unsuitable_program_makes_no_socket_filter() {
    let refused = |program: &ClassicProgram| socket_filter(Direction::Both, Some(program), None);
    let walk = compile_ethernet("ip protochain 51");
    assert_eq!(refused(&walk).unwrap_err(), SocketFilterError::BackwardJump);
    let live = Options { live_metadata: true, ..Options::default() };
    let inbound = compile("inbound", LinkType::EN10MB, &live).unwrap();
    assert_eq!(refused(&inbound).unwrap_err(), SocketFilterError::Ancillary { at: 0 });
    assert_eq!(
        socket_filter(Direction::Both, None, Some(&walk)).unwrap_err(),
        SocketFilterError::BackwardJump
    );

    let mut full: String = (0..16).map(|at| format!("({at:03}) st M[{at}]\n")).collect();
    let small = format!("{full}(016) ldh [12]\n(017) ret");
    assert!(refused(&parse_listing(&small)).is_ok(), "a load of half the tag needs no word");
    full.push_str("(016) ld [13]\n(017) ret");
    assert_eq!(refused(&parse_listing(&full)).unwrap_err(), SocketFilterError::NoScratchWord);
    assert!(socket_filter(Direction::Both, None, Some(&parse_listing(&full))).is_ok());

    let long = |n: usize| {
        let tests = (0..n).map(|at| format!("({at:03}) ld [{at}]\n"));
        parse_listing(&(tests.collect::<String>() + &format!("({n:03}) ret")))
    };
    assert!(refused(&long(1900)).is_ok());
    let Err(SocketFilterError::TooLong { length }) = refused(&long(2100)) else {
        panic!("it is too long")
    };
    assert!((4201..4300).contains(&length), "{length}");
    for refusal in [
        SocketFilterError::BackwardJump,
        SocketFilterError::NoScratchWord,
        SocketFilterError::Ancillary { at: 3 },
    ] {
        let text = refusal.to_string();
        assert!(text.starts_with(char::is_lowercase) || text.starts_with("instruction"), "{text}");
        assert!(!text.ends_with('.'), "{text}");
    }
}
