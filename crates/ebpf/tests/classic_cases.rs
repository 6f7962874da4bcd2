//! Tests of the pcap-filter compiler with libpcap's test suite.
//!
//! `apply.json` contains the results of expressions for every frame of a capture. `accept.json`
//! contains libpcap's programs for expressions; our programs and libpcap's run over captures and
//! over frames generated to take every branch. `reject.json` contains invalid expressions with the
//! reasons. The suite is not part of the repository; if it is missing, the tests report that they
//! were skipped. `SEED=` repeats a run.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "the test prints its counts")]

#[path = "classic/cases.rs"]
mod cases;
#[path = "classic/frames.rs"]
mod frames;
#[path = "classic/programs.rs"]
mod programs;
#[path = "classic/tcpdump.rs"]
mod tcpdump;

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;

use cases::{InstalledNames, all_frames, case_folder, read_capture, read_table, text_value};
use ebpf::classic::{
    AddressFamilies, ClassicMetadata, ClassicProgram, ErrorKind, LinkType, NoResolver, Options,
    compile,
};
use frames::{Frame, Random, random_frame, random_metadata, steer_frame, truncate_randomly};
use serde_json::Value;

/// Number of frames generated for each expression, which are tested in addition to captured frames.
const FRAMES_PER_EXPRESSION: usize = 1000;
/// Maximum number of captured frames per expression.
const CAPTURED_FRAMES_MAX: usize = 400;

fn random_seed() -> u64 {
    std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_121)
}

fn case_netmask(case: &Value) -> Option<u32> {
    text_value(case, "netmask").map(|mask| mask.parse::<Ipv4Addr>().unwrap().to_bits())
}

#[test]
fn corpus_expressions_accept_the_expected_frames() {
    let Some(folder) = case_folder("corpus_expressions_accept_the_expected_frames") else { return };
    let table = read_table(&folder, "apply.json");
    let mut passed = 0;
    for case in &table {
        let name = text_value(case, "name").unwrap();
        let path =
            folder.join("libpcap-filter/pcap/filter").join(text_value(case, "savefile").unwrap());
        let capture =
            read_capture(&path).unwrap_or_else(|| panic!("{name}: {path:?} is no capture"));
        for optimize in [true, false] {
            let options = Options {
                snaplen: capture.snaplen,
                netmask: case_netmask(case),
                optimize,
                ..Options::default()
            };
            let program = compile(text_value(case, "expr").unwrap(), capture.link, &options);
            let program = match program {
                Err(error) if error.kind == ErrorKind::Unsupported => continue,
                program => program.unwrap_or_else(|error| panic!("{name}: {error}")),
            };
            let wanted: Vec<u32> =
                serde_json::from_value(case.get("results").unwrap().clone()).unwrap();
            let found: Vec<u32> = capture
                .frames
                .iter()
                .map(|f| program.run(&f.bytes, f.wire_length, &ClassicMetadata::default()))
                .collect();
            assert_eq!(found, wanted, "{name} (optimize {optimize}):\n{program}");
        }
        passed += 1;
    }
    println!("apply {passed}/{}", table.len());
}

/// Returns the reason for skipping a row of `accept.json` whose libpcap program is broken; `None`
/// for any other row.
fn skip_reason(name: &str) -> Option<&'static str> {
    match name {
        "geneve_and_tcp_index_IEEE802_11_RADIO" | "vxlan_and_tcp_index_IEEE802_11_RADIO" => {
            Some("the listing reads M[0] and M[1] for the outer header, and never writes them")
        }
        _ => None,
    }
}

/// Returns the address family numbers in the loopback headers of the operating system for which a
/// row of the test suite was made.
fn case_address_families(case: &Value, name: &str) -> AddressFamilies {
    if case.get("generate_offline_filter").is_some() {
        return AddressFamilies::Any;
    }
    let number = name
        .split('_')
        .find_map(|part| part.trim_end_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().ok());
    let ip6 = name.contains("ip6") || name.contains("icmp6");
    AddressFamilies::Exactly {
        inet: if ip6 { 2 } else { number.unwrap_or(2) },
        inet6: if ip6 { number.unwrap_or(10) } else { 10 },
        big_endian: name.contains("BE_"),
    }
}

/// Compares the programs for this project's expressions with the programs of the installed libpcap.
#[test]
fn expressions_compile_like_tcpdump() {
    let test = "expressions_compile_like_tcpdump";
    let Some(tcpdump) = tcpdump::find_tcpdump(test) else { return };
    let web = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/web.pcap");
    let web = read_capture(web.as_ref()).expect("the capture of the examples");
    check_accept_table(
        &tcpdump::rows_accepted_by_tcpdump(&tcpdump, programs::EXPRESSIONS),
        &[(web.link, web.frames)].into(),
    );
}

#[test]
fn corpus_expressions_decide_like_libpcap() {
    let Some(folder) = case_folder("corpus_expressions_decide_like_libpcap") else { return };
    let mut captured: BTreeMap<LinkType, Vec<Frame>> = BTreeMap::new();
    for (link, frame) in all_frames(&folder) {
        captured.entry(link).or_default().push(frame);
    }
    check_accept_table(&read_table(&folder, "accept.json"), &captured);
}

fn check_accept_table(table: &[Value], captured: &BTreeMap<LinkType, Vec<Frame>>) {
    let seed = random_seed();
    println!("accept: SEED={seed}");
    let mut counts = CaseCounts::default();
    for (index, case) in table.iter().enumerate() {
        let mut random = Random(seed ^ (index as u64) << 32);
        check_accept_row(case, captured, &mut random, &mut counts);
    }
    let CaseCounts { rows, aliases, frames, accepted, ambiguous, excluded, .. } = counts;
    println!(
        "accept {rows}/{} (aliases {aliases}, excluded {excluded}, frames {frames}, \
         accepted {accepted}, optimized and unoptimized listing disagree on {ambiguous})",
        table.len()
    );
    println!(
        "instructions: ours {}, ours unoptimized {}, theirs {}",
        counts.our_programs, counts.ours_plain, counts.libpcap_programs
    );
    assert_eq!(rows + excluded, table.len());
}

#[derive(Default)]
struct CaseCounts {
    rows: usize,
    aliases: usize,
    frames: usize,
    accepted: usize,
    ambiguous: usize,
    excluded: usize,
    our_programs: usize,
    ours_plain: usize,
    libpcap_programs: usize,
}

/// A row of `accept.json`, with libpcap's programs and ours for its expression.
struct AcceptCase<'a> {
    name: &'a str,
    link: LinkType,
    snaplen: u32,
    /// libpcap's programs: an optimized and an unoptimized one, or one for both.
    theirs: Vec<ClassicProgram>,
    /// Our programs for the expression and for its other spellings (aliases), optimized and
    /// unoptimized, without duplicates.
    ours: Vec<ClassicProgram>,
    is_unsupported: bool,
}

fn check_accept_row(
    case: &Value,
    captured: &BTreeMap<LinkType, Vec<Frame>>,
    random: &mut Random,
    counts: &mut CaseCounts,
) {
    let name = text_value(case, "name").unwrap();
    let link = LinkType::from_name(text_value(case, "DLT").unwrap()).unwrap();
    let snaplen = case.get("snaplen").and_then(Value::as_u64).unwrap_or(262_144) as u32;
    let theirs: Vec<ClassicProgram> = ["opt", "unopt", "optunopt"]
        .iter()
        .filter_map(|key| text_value(case, key))
        .map(|listing| listing.parse().unwrap_or_else(|error| panic!("{name}: {error}")))
        .collect();
    let mut row =
        AcceptCase { name, link, snaplen, theirs, ours: Vec::new(), is_unsupported: false };
    compile_aliases(case, &mut row, counts);
    if skip_reason(name).is_some() || row.is_unsupported {
        counts.excluded += 1;
        return;
    }
    counts.libpcap_programs += row.theirs[0].instructions().len();
    counts.rows += 1;
    let none = Vec::new();
    let captured = captured.get(&link).unwrap_or(&none);
    let step = captured.len().div_ceil(CAPTURED_FRAMES_MAX).max(1);
    for frame in captured.iter().step_by(step) {
        compare_programs_on_frame(&row, frame, &ClassicMetadata::default(), counts);
    }
    for round in 0..FRAMES_PER_EXPRESSION {
        let mut frame = match captured.len() {
            0 => random_frame(random),
            _ if random.one_in(3) => random_frame(random),
            length => captured[random.number_below(length)].clone(),
        };
        let mut metadata = random_metadata(random);
        if round % 8 != 0 {
            let guide = &row.theirs[random.number_below(row.theirs.len())];
            steer_frame(guide, &mut frame, &mut metadata, random);
        }
        if random.one_in(6) {
            truncate_randomly(&mut frame, random);
        }
        compare_programs_on_frame(&row, &frame, &metadata, counts);
    }
}

/// Compiles every spelling (alias) of an expression. If libpcap's optimizer finds that the
/// expression rejects every frame, our compiler must find the same.
fn compile_aliases(case: &Value, row: &mut AcceptCase<'_>, counts: &mut CaseCounts) {
    let AcceptCase { name, link, snaplen, .. } = *row;
    let rejects = ["opt", "optunopt"].iter().any(|key| case.get(key).is_some_and(Value::is_null));
    let aliases = case.get("aliases").unwrap().as_array().unwrap();
    for (index, alias) in aliases.iter().enumerate() {
        let alias = alias.as_str().unwrap();
        for optimize in [true, false] {
            let options = Options {
                snaplen,
                optimize,
                resolver: &InstalledNames,
                live_metadata: case.get("linuxext").is_some(),
                netmask: case_netmask(case),
                address_families: case_address_families(case, name),
            };
            let program = match compile(alias, link, &options) {
                Ok(program) => program,
                Err(error) if error.kind == ErrorKind::Unsupported => {
                    row.is_unsupported = true;
                    continue;
                }
                Err(error) => {
                    let right = rejects && error.kind == ErrorKind::RejectsAll;
                    assert!(right, "{name}: `{alias}` on {link}: {error}");
                    continue;
                }
            };
            assert!(!(rejects && optimize), "{name}: `{alias}` rejects every frame:\n{program}");
            if index == 0 {
                let count =
                    if optimize { &mut counts.our_programs } else { &mut counts.ours_plain };
                *count += program.instructions().len();
            }
            if !row.ours.contains(&program) {
                row.ours.push(program);
            }
        }
    }
    counts.aliases += aliases.len();
}

/// Runs every program for an expression over one frame, and compares the results. If the results of
/// libpcap's own programs differ, the frame is only counted.
fn compare_programs_on_frame(
    row: &AcceptCase<'_>,
    frame: &Frame,
    metadata: &ClassicMetadata,
    counts: &mut CaseCounts,
) {
    let AcceptCase { name, snaplen, theirs, ours, .. } = row;
    let run = |program: &ClassicProgram| program.run(&frame.bytes, frame.wire_length, metadata);
    let wanted = run(&theirs[0]);
    counts.frames += 1;
    if theirs.iter().any(|program| run(program) != wanted) {
        counts.ambiguous += 1;
        return;
    }
    counts.accepted += usize::from(wanted != 0);
    for program in ours {
        let found = run(program);
        let bytes = &frame.bytes;
        assert!(
            found == wanted && (found == 0 || found == *snaplen),
            "{name}: {found}, not {wanted}, on {bytes:02x?}\n{metadata:?}\n{program}\n{}",
            theirs[0]
        );
    }
    if ours.is_empty() {
        assert_eq!(wanted, 0, "{name} rejects every frame, but theirs takes {:02x?}", frame.bytes);
    }
}

/// Changes one constant of each program. Generated frames must reveal nearly every change;
/// otherwise the comparisons of [`check_accept_table`] would prove nothing.
#[test]
fn generated_frames_reveal_planted_faults() {
    let Some(tcpdump) = tcpdump::find_tcpdump("generated_frames_reveal_planted_faults") else {
        return;
    };
    // The table has few rows, so each row is used several times. The required percentage is lower,
    // because each missed fault then counts several times.
    let table = tcpdump::rows_accepted_by_tcpdump(&tcpdump, programs::EXPRESSIONS);
    check_planted_faults(&[table.as_slice(); 6].concat(), 85);
}

#[test]
fn corpus_frames_reveal_planted_faults() {
    let Some(folder) = case_folder("corpus_frames_reveal_planted_faults") else { return };
    check_planted_faults(&read_table(&folder, "accept.json"), 95);
}

/// Changes one constant in each program of `table`, as a fault. Runs the right and the changed
/// program over frames, and asserts that at least `percent` percent of the faults change a result.
fn check_planted_faults(table: &[Value], percent: usize) {
    let seed = random_seed();
    println!("generated_frames_reveal_planted_faults: SEED={seed}");
    let (mut planted, mut found) = (0, 0);
    for (index, case) in table.iter().enumerate() {
        let mut random = Random(seed ^ (index as u64) << 32);
        let listing = text_value(case, "optunopt").or_else(|| text_value(case, "opt"));
        let Some(right) = listing.and_then(|listing| listing.parse::<ClassicProgram>().ok()) else {
            continue;
        };
        let mut instructions = right.instructions().to_vec();
        let compares: Vec<usize> = (0..instructions.len())
            .filter(|at| instructions[*at].is_comparison() && instructions[*at].code & 0x08 == 0)
            .collect();
        if compares.is_empty() {
            continue;
        }
        instructions[compares[random.number_below(compares.len())]].k ^= 1;
        let wrong = ClassicProgram::new(instructions).unwrap();
        planted += 1;
        let differs = (0..FRAMES_PER_EXPRESSION).any(|_| {
            let mut frame = random_frame(&mut random);
            let mut metadata = random_metadata(&mut random);
            let guide = if random.one_in(2) { &right } else { &wrong };
            steer_frame(guide, &mut frame, &mut metadata, &mut random);
            let run = |p: &ClassicProgram| p.run(&frame.bytes, frame.wire_length, &metadata);
            run(&right) != run(&wrong)
        });
        found += usize::from(differs);
    }
    println!("planted {planted} faults, found {found}");
    assert!(found * 100 >= planted * percent, "{found} of {planted} faults were found");
}

/// Returns the facts in an error message of libpcap that our message must contain too: its quoted
/// words and its numbers.
fn quoted_words_and_numbers(message: &str) -> Vec<String> {
    let mut facts = Vec::new();
    let message = message.replace("can't", "cannot");
    for (index, part) in message.split(['\'', '"']).enumerate() {
        if index % 2 == 1 {
            facts.push(part.to_owned());
        }
        let numbers = part.split(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != ':');
        let numbers = numbers.filter(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        facts.extend(numbers.map(str::to_owned));
    }
    facts
}

/// Words in libpcap's messages, each with the words of which our message for the same error must
/// contain at least one.
const EQUIVALENT_WORDS: &[(&str, &[&str])] = &[
    ("invalid Ethernet address", &["invalid Ethernet address"]),
    ("greater than maximum", &["greater than maximum"]),
    ("syntax error", &["syntax error", "no meaning here", "must be followed"]),
    ("invalid 802.11 subtype value", &["invalid 802.11 subtype value"]),
    ("invalid IPv4 address", &["invalid IPv4 address"]),
    ("invalid IPv6 address", &["invalid IPv6 address"]),
    ("non-network bits set", &["non-network bits set"]),
    ("unknown network", &["unknown network"]),
    ("unknown host", &["unknown host"]),
    ("illegal link-layer address", &["illegal link-layer address"]),
    ("netmask not known", &["netmask is unknown"]),
    ("protochain not supported", &["protochain"]),
    ("unknown 'protochain' value", &["unknown `protochain` value"]),
    ("variable length headers", &["variable length headers"]),
    ("is not a valid qualifier", &["is not a valid qualifier"]),
    ("within MPLS", &["within MPLS"]),
    ("Ethernet address used", &["Ethernet address used"]),
    ("data size must be", &["data size must be"]),
    ("unknown PF action", &["unknown PF action"]),
    ("overflows 32 bits", &["overflows 32 bits"]),
    ("non-octal digit", &["not octal"]),
    ("rejects all packets", &["rejects every frame"]),
];

/// Expressions that both libpcap and this compiler reject.
const INVALID_EXPRESSIONS: &[&str] = &[
    "tcp port 70000",
    "ether host 1:2:3:4:5",
    "host 10.0.0.256",
    "net 10.0.0.1/8",
    "ip host 2001:db8::1",
    "port 80 and",
    "tcp[0:3] = 1",
    "vlan 4096",
    "mpls 1048576",
    "len < 0x1ffffffff",
    "tcp and udp and not ip and not ip6",
];

#[test]
fn expressions_that_tcpdump_rejects_have_an_error_span() {
    let Some(tcpdump) =
        tcpdump::find_tcpdump("expressions_that_tcpdump_rejects_have_an_error_span")
    else {
        return;
    };
    for expression in INVALID_EXPRESSIONS {
        assert!(tcpdump::tcpdump_rejects(&tcpdump, expression), "tcpdump takes `{expression}`");
        let options = Options { resolver: &NoResolver, ..Options::default() };
        let error = compile(expression, LinkType::EN10MB, &options).expect_err(expression);
        let span = error.span.clone();
        assert!(span.start <= span.end && span.end <= expression.len(), "`{expression}`: {span:?}");
        assert_ne!(error.kind, ErrorKind::Unsupported, "`{expression}`: {error}");
    }
}

#[test]
fn corpus_invalid_expressions_are_rejected() {
    let Some(folder) = case_folder("corpus_invalid_expressions_are_rejected") else { return };
    check_reject_table(&read_table(&folder, "reject.json"));
}

fn check_reject_table(table: &[Value]) {
    let mut refused = 0;
    let mut skipped: HashMap<&str, usize> = HashMap::new();
    for case in table {
        let name = text_value(case, "name").unwrap();
        let Some(expression) = text_value(case, "expr") else {
            *skipped.entry("is about a capture file, not an expression").or_default() += 1;
            continue;
        };
        if text_value(case, "skip") == Some("needs:config NO_PROTOCHAIN") {
            *skipped.entry("is about a build without protochain").or_default() += 1;
            continue;
        }
        let link = LinkType::from_name(text_value(case, "DLT").unwrap()).unwrap();
        let options = Options { resolver: &NoResolver, ..Options::default() };
        let error = match compile(expression, link, &options) {
            Ok(program) => panic!("{name}: `{expression}` became\n{program}"),
            Err(error) if error.kind == ErrorKind::Unsupported => {
                *skipped.entry("is left to libpcap").or_default() += 1;
                continue;
            }
            Err(error) => error,
        };
        let theirs = text_value(case, "errstr").unwrap();
        let ours = error.to_string();
        let context = format!("{name}: `{expression}`: ours `{ours}`, theirs `{theirs}`");
        assert!(
            error.span.end <= expression.len() && error.span.start <= error.span.end,
            "{context}"
        );
        let rejects = theirs.contains("rejects all");
        assert_eq!(error.kind == ErrorKind::RejectsAll, rejects, "{context}");
        let known = EQUIVALENT_WORDS.iter().find(|(words, _)| theirs.contains(words));
        let (_, words) = known.unwrap_or_else(|| panic!("{context}: no fact is known for this"));
        assert!(words.iter().any(|word| ours.contains(word)), "{context}");
        for fact in quoted_words_and_numbers(theirs) {
            assert!(ours.contains(&fact), "{context}: `{fact}` is missing");
        }
        refused += 1;
    }
    let skipped_count: usize = skipped.values().sum();
    for (why, count) in &skipped {
        println!("reject: {count} left out: {why}");
    }
    println!("reject {refused}/{} (left out {skipped_count})", table.len());
    assert_eq!(refused + skipped_count, table.len());
}
