//! Tests that compare our compiler with the libpcap of this machine, on every link type that has a
//! name. Either both compile an expression and the two programs agree on every frame, or both
//! refuse the expression for the same reason, apart from known differences.
//!
//! Some frames are random; others are derived from the comparisons in the programs. Setting the
//! variable `SEED` repeats a run.

#![expect(clippy::unwrap_used, reason = "a test may end by a panic")]

#[path = "../../ebpf/tests/classic/frames.rs"]
#[expect(dead_code, reason = "the cases of the compiler use the rest")]
mod frames;

use ebpf::classic::{
    AddressFamilies, ClassicMetadata, ClassicProgram, ErrorKind, Instruction, LinkType, Options,
    compile,
};
use frames::{Random, random_frame, steer_frame, truncate_randomly};
use std::collections::BTreeMap;
use sys::libpcap::Libpcap;
use testkit::need;

/// The expressions that are compiled for each link type.
const EXPRESSIONS: &[&str] = &[
    "ip",
    "ip6",
    "arp",
    "tcp port 80",
    "udp src port 53",
    "host 10.0.0.1",
    "ip6 host fe80::1",
    "net 192.168.0.0/16",
    "icmp and not host 10.0.0.1",
    "tcp[tcpflags] & tcp-syn != 0",
    "portrange 1000-2000",
    "len > 60",
    "link[0] & 1 != 0",
    "ip proto 47",
    "ip multicast",
    "ip protochain 6",
    "ether host 1:2:3:4:5:6",
    "ether src 1:2:3:4:5:6",
    "ether broadcast",
    "ether multicast",
    "ether proto 0x88cc",
    "stp",
    "ipx",
    "netbeui",
    "atalk",
    "iso",
    "esis",
    "isis",
    "decnet host 1.2",
    "decnet",
    "vlan 7",
    "vlan and tcp",
    "mpls 100",
    "mpls and ip",
    "pppoes 3 and ip",
    "pppoed",
    "geneve 5",
    "inbound",
    "outbound",
    "llc",
    "llc u",
    "type mgt",
    "type mgt subtype beacon",
    "subtype qos-data",
    "wlan addr1 1:2:3:4:5:6",
    "wlan ra 1:2:3:4:5:6",
    "dir fromds",
    "lane",
    "vpi 3",
    "vci 5",
    "oamf4",
    "metac",
    "ilmic",
    "connectmsg",
    "fisu",
    "lssu",
    "msu",
    "hfisu",
    "sio 3",
    "opc 100",
    "dpc 100",
    "sls 2",
    "hsls 2",
    "on en0",
    "rnr 5",
    "reason match",
    "action pass",
    "ip and arp",
    "tcp and udp and ip",
    "gateway 10.0.0.1",
    "less 100",
    "greater 100",
    "aarp",
    "rarp",
    "lat",
    "moprc",
    "sctp",
    "igmp",
    "link proto 17",
    "not ip",
    "",
];

/// Number of frames on which each pair of programs is compared.
const FRAME_COUNT: usize = 60;

/// Numbers of comparisons with libpcap by outcome, for one expression on one link type.
#[derive(Default)]
struct ComparisonCounts {
    both: usize,
    neither: usize,
    excused: usize,
    frames: usize,
    accepted: usize,
}

/// Returns the options under which our compiler agrees with libpcap for a capture on this machine.
fn libpcap_options() -> Options<'static> {
    let families =
        AddressFamilies::Exactly { inet: 2, inet6: 10, big_endian: cfg!(target_endian = "big") };
    Options { address_families: families, ..Options::default() }
}

/// A known difference from libpcap 1.10 that later versions do not have. It consists of a predicate
/// for the affected link types, the prefixes of the affected expressions (empty for all), and a
/// description. `classic_cases` checks the behaviour of later versions.
type KnownDifference = (fn(LinkType) -> bool, &'static [&'static str], &'static str);

const KNOWN_DIFFERENCES: &[KnownDifference] = &[
    (|_| true, &["inbound", "outbound"], "1.10 asks the kernel, and there is none behind a file"),
    (|_| true, &["ip multicast"], "1.10 takes 240.0.0.0 and above for multicast"),
    (|_| true, &["geneve"], "1.10 reads scratch words that it has not written"),
    (is_wlan, &["pppoes"], "1.10 has one scratch word for two places"),
    (
        |link| link == LinkType::PPI,
        &["type", "subtype", "dir"],
        "1.10 does not take PPI for 802.11",
    ),
    (is_arcnet, &[], "1.10 takes the numbers of RFC 1051 for IP and ARP too"),
    (is_juniper, &["esis", "isis"], "1.10 looks one byte before the payload"),
    (is_switch_tag, &[], "1.10 does not look behind tags of switches"),
    (|link| link == LinkType::BACNET_MS_TP, &["ether broadcast"], "1.10 knows no addresses there"),
];

fn is_wlan(link: LinkType) -> bool {
    [105, 119, 127, 163, 192].contains(&link.0)
}

fn is_arcnet(link: LinkType) -> bool {
    [LinkType::ARCNET, LinkType::ARCNET_LINUX].contains(&link)
}

fn is_juniper(link: LinkType) -> bool {
    link.to_string().starts_with("JUNIPER")
}

fn is_switch_tag(link: LinkType) -> bool {
    [LinkType::DSA_TAG_BRCM, LinkType::DSA_TAG_DSA].contains(&link)
}

fn is_known_difference(link: LinkType, expression: &str) -> bool {
    KNOWN_DIFFERENCES.iter().any(|(at, expressions, _)| {
        let named = expressions.iter().any(|begins| expression.starts_with(begins));
        at(link) && (expressions.is_empty() || named)
    })
}

#[test]
fn h9_own_compiler_agrees_with_libpcap_on_every_link_type() {
    let Ok(libpcap) = Libpcap::load() else {
        need::report_skip::<()>("needs libpcap");
        return;
    };
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_123);
    println!("SEED={seed}");
    let (mut by_link, mut wrong) = (BTreeMap::new(), String::new());
    for link in LinkType::all() {
        let counts: &mut ComparisonCounts = by_link.entry(link).or_default();
        for (index, expression) in EXPRESSIONS.iter().enumerate() {
            let mut random = Random(seed ^ u64::from(link.0) << 40 ^ (index as u64) << 32);
            if let Err(why) = compare_expression(&libpcap, link, expression, &mut random, counts) {
                match is_known_difference(link, expression) {
                    true => counts.excused += 1,
                    false => wrong.push_str(&format!("{link}: `{expression}`: {why}\n")),
                }
            }
        }
    }
    for (link, counts) in &by_link {
        let ComparisonCounts { both, neither, excused, frames, accepted } = counts;
        println!(
            "{link}: {both} alike, {neither} refused by both, {excused} otherwise in 1.10; \
             {accepted} of {frames} frames match"
        );
    }
    assert!(wrong.is_empty(), "{} disagreements:\n{wrong}", wrong.lines().count());
}

fn compare_expression(
    libpcap: &Libpcap,
    link: LinkType,
    expression: &str,
    random: &mut Random,
    counts: &mut ComparisonCounts,
) -> Result<(), String> {
    let ours = compile(expression, link, &libpcap_options());
    let number = i32::try_from(link.0).unwrap();
    let theirs = libpcap.compile(expression, number, 262_144, true).map(|program| {
        let all = program.into_iter().map(|(code, jt, jf, k)| Instruction { code, jt, jf, k });
        ClassicProgram::new(all.collect()).unwrap()
    });
    let (ours, theirs) = match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => (ours, theirs),
        // Expressions that our compiler does not support go to libpcap.
        (Err(ours), _) if ours.kind == ErrorKind::Unsupported => return Ok(()),
        (Err(ours), Err(theirs)) => {
            counts.neither += 1;
            let rejects = theirs.contains("rejects all packets");
            return match rejects == (ours.kind == ErrorKind::RejectsAll) {
                true => Ok(()),
                false => Err(format!("ours: {ours}; theirs: {theirs}")),
            };
        }
        // libpcap does not know the link type.
        (Ok(_), Err(theirs)) if theirs.contains("unknown data link type") => return Ok(()),
        (Ok(_), Err(theirs)) => return Err(format!("only libpcap refuses it: {theirs}")),
        // libpcap's optimizer does not detect that the expression rejects all frames; then no frame
        // may match.
        (Err(ours), Ok(theirs)) if ours.kind == ErrorKind::RejectsAll => {
            (reject_all_program(), theirs)
        }
        (Err(ours), Ok(theirs)) => return Err(format!("only ours refuses it: {ours}\n{theirs}")),
    };
    counts.both += 1;
    for round in 0..FRAME_COUNT {
        let mut frame = random_frame(random);
        if round % 8 != 0 {
            let guide = if round % 2 == 0 { &ours } else { &theirs };
            steer_frame(guide, &mut frame, &mut ClassicMetadata::default(), random);
        }
        if round % 6 == 0 {
            truncate_randomly(&mut frame, random);
        }
        let run = |program: &ClassicProgram| {
            program.run(&frame.bytes, frame.wire_length, &ClassicMetadata::default()) != 0
        };
        counts.frames += 1;
        counts.accepted += usize::from(run(&theirs));
        if run(&ours) != run(&theirs) {
            let (bytes, answer) = (&frame.bytes, run(&ours));
            return Err(format!("ours {answer} on {bytes:02x?}\nours\n{ours}theirs\n{theirs}"));
        }
    }
    Ok(())
}

/// Returns the program that accepts no frame.
fn reject_all_program() -> ClassicProgram {
    let refuse = Instruction::non_branching(ebpf::classic::insn::code::RET, 0);
    ClassicProgram::new(vec![refuse]).unwrap()
}
