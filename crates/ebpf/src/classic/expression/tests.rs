//! Tests of the compiler that libpcap's test suite lacks: error spans, limits, far jumps, and
//! tunnels in 802.11.

use super::super::{
    ClassicMetadata, ClassicProgram, ErrorKind, LinkType, Options, VlanTag, compile,
};
use crate::classic::insn::code;

fn compile_ethernet(text: &str) -> ClassicProgram {
    compile(text, LinkType::EN10MB, &Options::default()).unwrap()
}

fn compile_listing(text: &str) -> String {
    compile_ethernet(text).to_string()
}

fn accepts_frame(program: &ClassicProgram, frame: &[u8]) -> bool {
    program.run(frame, frame.len() as u32, &ClassicMetadata::default()) != 0
}

/// Returns an Ethernet frame with `payload` after a 20-byte IPv4 header of this protocol.
fn ethernet_ip4_frame(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 34];
    frame[12] = 0x08;
    frame[14] = 0x45;
    frame[23] = protocol;
    frame.extend_from_slice(payload);
    frame
}

#[test]
fn short_expressions_compile_to_minimal_programs() {
    assert_eq!(compile_listing(""), "(000) ret      #262144\n");
    assert_eq!(
        compile_listing("tcp src port 80"),
        "\
(000) ldh      [12]
(001) jeq      #0x86dd          jt 2\tjf 6
(002) ldb      [20]
(003) jeq      #0x6             jt 4\tjf 15
(004) ldh      [54]
(005) jeq      #0x50            jt 14\tjf 15
(006) jeq      #0x800           jt 7\tjf 15
(007) ldb      [23]
(008) jeq      #0x6             jt 9\tjf 15
(009) ldh      [20]
(010) jset     #0x1fff          jt 15\tjf 11
(011) ldxb     4*([14]&0xf)
(012) ldh      [x + 14]
(013) jeq      #0x50            jt 14\tjf 15
(014) ret      #262144
(015) ret      #0
"
    );
}

#[test]
fn compile_errors_have_span_reason_and_hint() {
    let error = |text: &str| {
        let error = compile(text, LinkType::EN10MB, &Options::default()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid, "{text}");
        (text[error.span.clone()].to_owned(), error.message, error.hint)
    };
    let (place, what, hint) = error("tcp prot 80");
    assert_eq!(place, "prot");
    assert_eq!(what, "syntax error: `and`, `or` or the end is expected, not `prot`");
    assert_eq!(hint.as_deref(), Some("did you mean `port`?"));
    assert_eq!(error("ip or udp port 70000 or ip6").0, "70000");
    assert_eq!(error("ip and 1.2.3.4").0, "1.2.3.4");
    assert_eq!(error("host www.example.org").0, "www.example.org");
    assert_eq!(error("ip[1] = 1 / (3 - 3)").0, "1 / (3 - 3)");
    assert_eq!(error("ip[2:3] = 1").0, "ip[2:3]");
    assert_eq!(error("type mgt subtype beaco").2.as_deref(), Some("did you mean `beacon`?"));
    assert_eq!(error("(ip").1, "syntax error: `)` is expected, not the end");
    assert_eq!(error("ip ähm").0, "ä");
}

#[test]
fn exceeded_limits_are_errors_with_messages() {
    let error = |text: String| {
        compile(&text, LinkType::EN10MB, &Options::default()).unwrap_err().to_string()
    };
    let deep = |n: usize| format!("{}ip{}", "(".repeat(n), ")".repeat(n));
    assert!(compile(&deep(200), LinkType::EN10MB, &Options::default()).is_ok());
    assert!(error(deep(201)).contains("nested more than 200 deep"));
    assert!(error(format!("{}ip", "not ".repeat(201))).contains("nested more than 200 deep"));
    assert!(error(format!("1{} = len", "+len".repeat(201))).contains("more than 200 operators"));
    assert!(error(format!("ip{}", " or ip and tcp".repeat(300))).contains("more than 500 times"));
    let hosts: Vec<String> =
        (0..3000).map(|n| format!("host 10.0.{}.{}", n / 256, n % 256)).collect();
    assert!(
        error(hosts.join(" or ")).contains("instructions")
            || error(hosts.join(" or ")).contains("too long")
    );
    let tunnels = "vxlan and ".repeat(5) + "ip";
    assert!(error(tunnels).contains("no scratch word is left"));
}

#[test]
fn far_jumps_reach_their_target() {
    let hosts: Vec<String> = (1..=250).map(|n| format!("src host 10.0.0.{n}")).collect();
    let text = format!("udp and ({}) and len >= 34", hosts.join(" or "));
    for optimize in [true, false] {
        let options = Options { optimize, ..Options::default() };
        let program = compile(&text, LinkType::EN10MB, &options).unwrap();
        let far = program.instructions().iter().filter(|i| i.code == code::JMP | code::JA).count();
        assert!(far > 0, "the program is long enough to need `ja`");
        for n in [0u8, 1, 2, 128, 250, 251] {
            let mut frame = ethernet_ip4_frame(17, &[0; 8]);
            frame[26..30].copy_from_slice(&[10, 0, 0, n]);
            assert_eq!(accepts_frame(&program, &frame), (1..=250).contains(&n), "10.0.0.{n}");
        }
    }
}

#[test]
fn contradictory_expression_compiles_to_rejecting_program() {
    for text in ["ip and arp", "tcp and udp and ip", "len > 5 and 1 = 2", "not (ip or not ip)"] {
        let error = compile(text, LinkType::EN10MB, &Options::default()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::RejectsAll, "{text}: {error}");
    }
}

#[test]
fn operator_precedence_matches_libpcap() {
    let frame = ethernet_ip4_frame(6, &[0; 20]);
    for (text, holds) in [
        ("2 + 3 * 4 = 14", true),
        ("10 - 2 - 3 = 5", true),
        ("1 | 2 & 3 << 1 = 3", true),
        ("7 % 2 + 1 = 1", true),
        ("-1 + 2 = 1", true),
        ("ip or udp and arp or tcp", true),
        ("tcp or ip and udp", false),
        ("not tcp or ip", true),
        ("not (tcp or ip) or arp", false),
    ] {
        let options = Options::default();
        let found =
            compile(text, LinkType::EN10MB, &options).is_ok_and(|p| accepts_frame(&p, &frame));
        assert_eq!(found, holds, "{text}");
    }
}

#[test]
fn vlan_tag_in_metadata_shifts_no_offsets() {
    let options = Options { live_metadata: true, ..Options::default() };
    let program = compile("vlan 100 and tcp", LinkType::EN10MB, &options).unwrap();
    let bare = ethernet_ip4_frame(6, &[0; 20]);
    let mut tagged = bare.clone();
    tagged.splice(12..12, [0x81, 0x00, 0x00, 100]);
    let tag = |tci| ClassicMetadata {
        vlan: Some(VlanTag { tci, tpid: 0x8100 }),
        ..ClassicMetadata::default()
    };
    let accepts = |frame: &[u8], metadata: &ClassicMetadata| program.run(frame, 60, metadata) != 0;
    assert!(accepts(&bare, &tag(100)));
    assert!(!accepts(&bare, &tag(101)));
    assert!(!accepts(&bare, &ClassicMetadata::default()));
    assert!(accepts(&tagged, &ClassicMetadata::default()));
}

/// Compiles an expression for which libpcap's own program reads uninitialized scratch words, and
/// checks that a tunneled frame matches.
#[test]
fn vxlan_tunnel_inside_802_11_is_matched() {
    let program = compile("vxlan 7 and tcp", LinkType::IEEE802_11, &Options::default()).unwrap();
    let mut frame = vec![0u8; 26];
    frame[0] = 0x88;
    frame.extend([0xaa, 0xaa, 0x03, 0, 0, 0, 0x08, 0x00]);
    frame.extend(&ethernet_ip4_frame(17, &[0, 0, 0x12, 0xb5, 0, 0, 0, 0])[14..]);
    frame.extend([0x08, 0, 0, 0, 0, 0, 7, 0]);
    frame.extend(ethernet_ip4_frame(6, &[0; 20]));
    assert!(accepts_frame(&program, &frame));
    let network = frame.len() - 54 - 2;
    frame[network] = 8;
    assert!(!accepts_frame(&program, &frame));
}

#[test]
fn compiled_programs_write_scratch_words_before_reading() {
    let program = compile_ethernet("vxlan or tcp port 80 or udp[8] = 5");
    let mut written = 0u32;
    for instruction in program.instructions() {
        match instruction.class() {
            code::ST | code::STX => written |= 1 << instruction.k,
            code::LD | code::LDX if instruction.code & 0xe0 == code::MEM => {
                assert!(written & 1 << instruction.k != 0, "{program}");
            }
            _ => {}
        }
    }
    assert!(written != 0);
}
