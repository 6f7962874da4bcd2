//! Fuzz tests of the pcap-filter compiler with malformed and overlong text.
//!
//! No text may cause a panic, every error must point into the text, and every program must survive
//! a round trip through its listing and run on every frame. `SEED=` repeats a run, and `ROUNDS=`
//! extends it.

#[path = "classic/frames.rs"]
#[expect(dead_code, reason = "other test binaries use the rest")]
mod frames;

use std::time::Instant;

use ebpf::classic::{
    ClassicMetadata, ClassicProgram, ErrorKind, ExpressionError, LinkType, Options, compile,
};
use frames::{Frame, Random, random_frame};

/// pcap-filter expressions that are cut into fragments, from which the texts for fuzzing are made.
const SEED_EXPRESSIONS: &[&str] = &[
    "tcp port 80 or 443 and not (src host 10.0.0.1 or dst net 192.168/16)",
    "ip6 and host fe80::7788:99ff:feaa:bbcc or ip6 net 2001:db8::/32 and icmp6[icmp6type] = 128",
    "vlan 100 and vlan and mpls 1000 and pppoes 0x3b and tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
    "geneve 7 and vxlan 9 and (udp portrange 1000-http-alt or ether proto \\arp)",
    "ether host 00:11:22:33:44:55 or ether src aabb.ccdd.eeff and not broadcast or ip multicast",
    "wlan type mgt subtype beacon or wlan addr4 00-11-22-33-44-55 and type data and dir tods",
    "len >= 100 and ip[2:2] - ((ip[0] & 0xf) << 2) % 3 ^ 7 > -5 * 2 / 3 or link[0:4] = 0x01020304",
    "inbound or outbound or ifindex 3 or on eth0",
    "vpi 10 or vci (1 or 2) or llc rnr",
    "ip protochain 51 or ip6 protochain \\udp or iso proto \\isis or csnp",
    "gateway snup or net 10.0.0.0 mask 255.255.0.0 or link dst $7f or byte 3 & 7 or less 5",
    "0x01 == tcp-fin && 017 >= 0xf || ! ( radio[2] < 3 ) or tr multicast or ip broadcast",
];

const FUZZED_LINK_TYPES: &[LinkType] = &[
    LinkType::EN10MB,
    LinkType::RAW,
    LinkType::IEEE802_11_RADIO,
    LinkType::LINUX_SLL2,
    LinkType::PPI,
    LinkType::SUNATM,
    LinkType::MTP2,
    LinkType::PFLOG,
    LinkType::PPP,
    LinkType::PRISM_HEADER,
    LinkType(9999),
];

/// Bytes that have a meaning in pcap-filter expressions, and two that have none.
const SPECIAL_BYTES: &[u8] = b" ()[]:.-/\\$!<=0189afx\xc3\xa4";

/// Compiles `data`, interpreted as text, for several link types, and checks the compiler's
/// guarantees. Returns the number of compilations that succeeded.
fn fuzz_expression(data: &[u8], frames: &[Frame]) -> usize {
    let text = String::from_utf8_lossy(data);
    let mut programs = 0;
    for (index, link) in FUZZED_LINK_TYPES.iter().enumerate() {
        let options = Options {
            optimize: index % 2 == 0,
            live_metadata: index % 3 == 0,
            netmask: Some(0xffff_ff00),
            ..Options::default()
        };
        match compile(&text, *link, &options) {
            Ok(program) => {
                programs += 1;
                assert_listing_and_verdicts(&program, frames);
            }
            Err(error) => assert_error_is_well_formed(&text, &error),
        }
    }
    programs
}

fn assert_listing_and_verdicts(program: &ClassicProgram, frames: &[Frame]) {
    let listed: ClassicProgram = program.to_string().parse().expect("a program lists itself");
    assert_eq!(listed, *program);
    for frame in frames {
        let answer = program.run(&frame.bytes, frame.wire_length, &ClassicMetadata::default());
        assert!(answer == 0 || answer == 262_144);
    }
}

fn assert_error_is_well_formed(text: &str, error: &ExpressionError) {
    assert!(text.get(error.span.clone()).is_some(), "{text:?}: {error:?}");
    assert!(!error.message.is_empty() && !error.message.ends_with('.'), "{text:?}: {error:?}");
    assert!(
        error.kind != ErrorKind::Unsupported || !error.message.contains("the compiler produced")
    );
}

/// Makes a text from fragments of [`SEED_EXPRESSIONS`], and changes some of its bytes.
fn mutate_expression(random: &mut Random) -> Vec<u8> {
    let mut words = Vec::new();
    for _ in 0..1 + random.number_below(3) {
        let seed: Vec<&str> =
            SEED_EXPRESSIONS[random.number_below(SEED_EXPRESSIONS.len())].split(' ').collect();
        let from = random.number_below(seed.len());
        let to = from + 1 + random.number_below(seed.len() - from);
        words.extend_from_slice(&seed[from..to]);
        if random.one_in(2) {
            words.push(["and", "or", "not", "(", ")"][random.number_below(5)]);
        }
    }
    for _ in 0..random.number_below(4) {
        let at = random.number_below(words.len());
        match random.number_below(3) {
            0 => drop(words.remove(at)),
            1 => words
                .insert(at, ["(", ")", "!", "-", "[", "1", "host", "tcp"][random.number_below(8)]),
            _ => words.swap(at, 0),
        }
        if words.is_empty() {
            break;
        }
    }
    let mut text = words.join(" ").into_bytes();
    for _ in 0..random.number_below(3) {
        if text.is_empty() {
            break;
        }
        let at = random.number_below(text.len());
        match random.number_below(3) {
            0 => text[at] = random.next() as u8,
            1 => drop(text.remove(at)),
            _ => text.insert(at, SPECIAL_BYTES[random.number_below(SPECIAL_BYTES.len())]),
        }
    }
    text
}

fn env_number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn compiler_never_panics_on_mutated_text() {
    let seed = env_number("SEED", 20_261_121);
    let rounds = env_number("ROUNDS", 4000);
    println!("fuzz_expression: SEED={seed} ROUNDS={rounds}");
    let mut random = Random(seed);
    let frames: Vec<Frame> = (0..8).map(|_| random_frame(&mut random)).collect();
    let mut programs: usize =
        SEED_EXPRESSIONS.iter().map(|s| fuzz_expression(s.as_bytes(), &frames)).sum();
    for _ in 0..rounds {
        programs += fuzz_expression(&mutate_expression(&mut random), &frames);
    }
    println!("fuzz_expression: {programs} programs");
    assert!(programs as u64 > rounds / 10, "the texts are too broken to test programs");
}

#[test]
fn compile_time_is_linear_in_the_length() {
    let repeated = |piece: &str| piece.repeat(200_000 / piece.len());
    let texts = [
        repeated("ip or "),
        repeated("ip or udp and "),
        repeated("("),
        repeated("!"),
        repeated("not ("),
        format!("port 1 or {}", repeated("(")),
        format!("port 1 or {}", repeated("!(")),
        format!("1{} = 1", repeated("+1")),
        format!("1{} = 1", repeated("%(1")),
        repeated("ip["),
        repeated("-"),
        repeated("1:"),
        repeated("1::"),
        repeated(":"),
        repeated("1."),
        repeated("a-"),
        repeated("0"),
        repeated("9 "),
        repeated("vlan and "),
        repeated("vxlan and "),
        format!("host {}", repeated("x")),
        format!("{}ip", repeated("port 1 and ")),
        repeated("tcp[tcp[1]] = 1 or "),
    ];
    for text in texts {
        let start = Instant::now();
        for (index, link) in FUZZED_LINK_TYPES.iter().take(4).enumerate() {
            let options = Options { optimize: index % 2 == 0, ..Options::default() };
            if let Err(error) = compile(&text, *link, &options) {
                assert_error_is_well_formed(&text, &error);
            }
        }
        let spent = start.elapsed();
        println!("{spent:?} for {}…", &text[..20]);
        // Superlinear growth would not finish; the longest takes under a second.
        assert!(spent.as_secs() < 300, "{}… took {spent:?}", &text[..20]);
    }
}
