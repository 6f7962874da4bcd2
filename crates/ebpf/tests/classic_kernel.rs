//! Tests that a socket filter makes the same decision for a frame with its tag in the skb as its
//! program makes for the frame with the tag inline.
//!
//! The programs are those of libpcap's test suite, our programs for the same expressions and for
//! this project's expressions, and random programs with loads around the tag. The frames are
//! captured, random or steered, complete or truncated, and have every kind of tag. Each frame is
//! judged unchanged, and with its bytes 12 to 15 interpreted as a tag in the skb. Every socket
//! filter must also pass the kernel's check. The inverse is tested with the same frames: a program
//! for a tag in the skb, rewritten for the frame with its tag restored. `SEED=` repeats a run, and
//! `ROUNDS=` extends it.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "the test prints its counts")]

#[path = "classic/cases.rs"]
#[expect(dead_code, reason = "other test binaries use the rest")]
mod cases;
#[path = "classic/frames.rs"]
#[expect(dead_code, reason = "other test binaries use the rest")]
mod frames;
#[path = "classic/programs.rs"]
mod programs;

use cases::{all_frames, case_folder};
use ebpf::classic::insn::code;
use ebpf::classic::kernel::{
    ACCEPT_WHOLE_FRAME, Direction, SocketFilterError, rewrite_for_restored_tags, socket_filter,
};
use ebpf::classic::{
    ClassicMetadata, ClassicProgram, INSTRUCTIONS_MAX, LinkType, Options, VlanTag, compile,
};
use frames::{Frame, Random, random_frame, steer_frame, truncate_randomly};
use programs::{EXPRESSIONS, insert_tags, random_program, read_corpus_programs};

/// Number of frames generated for each program of libpcap's test suite.
const FRAMES_PER_PROGRAM: usize = 150;
/// Number of random programs, and number of frames generated for each.
const RANDOM_PROGRAM_AND_FRAME_COUNTS: (usize, usize) = (1500, 60);
/// Maximum number of captured frames per program.
const CAPTURED_FRAMES_MAX: usize = 60;
/// Range of the bytes of an inline VLAN tag in an Ethernet frame.
const TAG_RANGE: std::ops::Range<usize> = 12..16;

fn env_number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[derive(Default, Debug)]
struct JudgeCounts {
    programs: usize,
    loops: usize,
    live: usize,
    frames: usize,
    accepted: usize,
    accepted_tagged: usize,
    longest: usize,
}

/// A classic program, and the socket filter made from it, which the tests compare.
struct FilterPair<'p> {
    program: &'p ClassicProgram,
    filter: ClassicProgram,
    restored: RestoredTagPair<'p>,
    name: &'p str,
}

/// A classic program for frames whose VLAN tag is in the skb, and the same program rewritten for
/// frames whose tag has been moved back into the frame.
struct RestoredTagPair<'p> {
    program: &'p ClassicProgram,
    rewritten: ClassicProgram,
}

impl<'p> RestoredTagPair<'p> {
    fn new(program: &'p ClassicProgram) -> Self {
        let rewritten = rewrite_for_restored_tags(program);
        Self { program, rewritten: rewritten.unwrap_or_else(|why| panic!("{why}\n{program}")) }
    }

    /// Runs the original program on a frame whose outermost tag, if any, is in the skb, and the
    /// rewritten program on the same frame with this tag inline. Asserts that both results are
    /// equal, and returns the result.
    fn judge(&self, bytes: &[u8], wire_length: u32) -> u32 {
        let Some(&[a, b]) = bytes.get(12..14) else { return 0 };
        let tpid = u16::from_be_bytes([a, b]);
        let wanted = match (bytes.get(TAG_RANGE), wire_length.checked_sub(4)) {
            (Some(&[_, _, c, d]), Some(length)) if matches!(tpid, 0x8100 | 0x88a8) => {
                let vlan = Some(VlanTag { tpid, tci: u16::from_be_bytes([c, d]) });
                let stripped = [&bytes[..TAG_RANGE.start], &bytes[TAG_RANGE.end..]].concat();
                self.program.run(
                    &stripped,
                    length,
                    &ClassicMetadata { vlan, ..ClassicMetadata::EMPTY },
                )
            }
            _ if matches!(tpid, 0x8100 | 0x88a8) => return 0,
            _ => self.program.run(bytes, wire_length, &ClassicMetadata::EMPTY),
        };
        let found = self.rewritten.run(bytes, wire_length, &ClassicMetadata::EMPTY);
        assert_eq!(
            found, wanted,
            "{bytes:02x?} of {wire_length}\n{}\n{}",
            self.program, self.rewritten
        );
        wanted
    }
}

impl<'p> FilterPair<'p> {
    fn new(name: &'p str, program: &'p ClassicProgram, counts: &mut JudgeCounts) -> Option<Self> {
        match socket_filter(Direction::Both, Some(program), None) {
            Ok(filter) => {
                assert_kernel_accepts_classic(&filter);
                counts.programs += 1;
                counts.longest = counts.longest.max(filter.instructions().len());
                Some(Self { program, filter, restored: RestoredTagPair::new(program), name })
            }
            Err(SocketFilterError::BackwardJump) => {
                assert!(program.has_loop());
                counts.loops += 1;
                None
            }
            Err(SocketFilterError::Ancillary { at }) => {
                assert!(program.instructions()[at].k >= 0xffff_f000);
                counts.live += 1;
                None
            }
            Err(other) => panic!("{name}: {other}\n{program}"),
        }
    }

    /// Runs the program and the socket filter on an unchanged frame, and then on the frame with a
    /// VLAN tag, and compares their results.
    fn judge(&self, frame: &Frame, counts: &mut JudgeCounts) {
        let Frame { bytes, wire_length } = frame;
        let wanted = match self.program.run(bytes, *wire_length, &ClassicMetadata::EMPTY) {
            0 => 0,
            _ => ACCEPT_WHOLE_FRAME,
        };
        let plain = ClassicMetadata { hardware_type: 1, ..ClassicMetadata::EMPTY };
        let found = self.filter.run(bytes, *wire_length, &plain);
        assert_eq!(found, wanted, "{}: {bytes:02x?}\n{}\n{}", self.name, self.program, self.filter);
        self.restored.judge(bytes, *wire_length);
        counts.frames += 1;
        counts.accepted += usize::from(wanted > 0);
        for tpid in [0x8100, 0x88a8, 0x9100] {
            self.compare_tagged_frame(frame, tpid, counts);
        }
    }

    /// Writes a tag of type `tpid` to bytes 12 to 15 of a frame. Then compares the program's result
    /// with the filter's result for the frame with the tag moved to its metadata.
    fn compare_tagged_frame(&self, frame: &Frame, tpid: u16, counts: &mut JudgeCounts) {
        let Frame { mut bytes, wire_length } = frame.clone();
        let (Some(&[_, _, c, d]), Some(length)) =
            (bytes.get(TAG_RANGE), wire_length.checked_sub(4))
        else {
            return;
        };
        let tag = VlanTag { tpid, tci: u16::from_be_bytes([c, d]) };
        bytes[TAG_RANGE][..2].copy_from_slice(&tpid.to_be_bytes());
        self.restored.judge(&bytes, wire_length);
        let wanted = match self.program.run(&bytes, wire_length, &ClassicMetadata::EMPTY) {
            // The kernel removes tags of two types. The filter accepts frames with other tags
            // untested.
            0 if matches!(tpid, 0x8100 | 0x88a8) => 0,
            _ => ACCEPT_WHOLE_FRAME,
        };
        let plain = ClassicMetadata { hardware_type: 1, ..ClassicMetadata::EMPTY };
        let stripped = [&bytes[..TAG_RANGE.start], &bytes[TAG_RANGE.end..]].concat();
        let tagged = ClassicMetadata { vlan: Some(tag), ..plain };
        let found = self.filter.run(&stripped, length, &tagged);
        assert_eq!(
            found, wanted,
            "{}: tagged {bytes:02x?} of {wire_length}\n{}\n{}",
            self.name, self.program, self.filter
        );
        counts.accepted_tagged += usize::from(tpid != 0x9100 && wanted > 0);
    }
}

/// Asserts that a filter passes the kernel's check of classic programs (`bpf_check_classic`). The
/// filter must not be too long or jump backward, and must write scratch words before it reads them.
/// Like the kernel, treats the instruction after a return as a successor of the return.
fn assert_kernel_accepts_classic(filter: &ClassicProgram) {
    let instructions = filter.instructions();
    assert!(!filter.has_loop() && instructions.len() <= INSTRUCTIONS_MAX);
    let mut masks = vec![u16::MAX; instructions.len() + 1];
    let mut set = 0u16;
    for (at, i) in instructions.iter().enumerate() {
        set &= masks[at];
        let word = 1u16 << (i.k & 15);
        match i.class() {
            code::ST | code::STX => set |= word,
            code::LD | code::LDX if i.code & 0xe0 == code::MEM => {
                assert!(set & word != 0, "{at} reads what was not written\n{filter}");
            }
            code::JMP => {
                let jumps = match i.is_comparison() {
                    true => [at + 1 + usize::from(i.jt), at + 1 + usize::from(i.jf)],
                    false => [at + 1 + i.k as usize; 2],
                };
                jumps.into_iter().for_each(|to| masks[to] &= set);
                set = u16::MAX;
            }
            _ => {}
        }
    }
}

/// Compares a program with its socket filter on captured frames and on frames generated for the
/// program.
fn compare_with_filter(
    pair: &FilterPair<'_>,
    captured: &[Frame],
    made: usize,
    random: &mut Random,
    counts: &mut JudgeCounts,
) {
    let step = captured.len().div_ceil(CAPTURED_FRAMES_MAX).max(1);
    for frame in captured.iter().skip(random.number_below(step)).step_by(step) {
        pair.judge(frame, counts);
        let mut tagged = frame.clone();
        insert_tags(&mut tagged, random);
        pair.judge(&tagged, counts);
    }
    for round in 0..made {
        let mut frame = match captured.len() {
            0 => random_frame(random),
            _ if random.one_in(3) => random_frame(random),
            length => captured[random.number_below(length)].clone(),
        };
        if random.one_in(2) {
            insert_tags(&mut frame, random);
        }
        if random.one_in(4) {
            frame.wire_length += random.number_below(2000) as u32;
        }
        if round % 8 != 0 {
            steer_frame(pair.program, &mut frame, &mut ClassicMetadata::default(), random);
        }
        if random.one_in(6) {
            truncate_randomly(&mut frame, random);
        }
        pair.judge(&frame, counts);
        if round % 32 == 1 {
            for length in 0..frame.bytes.len().min(100) {
                let bytes = frame.bytes[..length].to_vec();
                pair.judge(&Frame { bytes, wire_length: frame.wire_length }, counts);
                let bytes = frame.bytes[..length].to_vec();
                pair.judge(&Frame { bytes, wire_length: length as u32 }, counts);
            }
        }
    }
}

#[test]
fn corpus_libpcap_programs_decide_alike_with_tag_in_skb() {
    let test = "corpus_libpcap_programs_decide_alike_with_tag_in_skb";
    let Some(folder) = case_folder(test) else { return };
    let (seed, rounds) = (env_number("SEED", 20_261_121), env_number("ROUNDS", 1) as usize);
    println!("{test}: SEED={seed}");
    let captured: Vec<Frame> = all_frames(&folder)
        .into_iter()
        .filter(|(link, _)| *link == LinkType::EN10MB)
        .map(|(_, frame)| frame)
        .collect();
    let mut counts = JudgeCounts::default();
    let programs = read_corpus_programs(&folder);
    for (index, (name, program)) in programs.iter().enumerate() {
        let mut random = Random(seed ^ (index as u64) << 32);
        let Some(pair) = FilterPair::new(name, program, &mut counts) else { continue };
        compare_with_filter(
            &pair,
            &captured,
            FRAMES_PER_PROGRAM * rounds,
            &mut random,
            &mut counts,
        );
    }
    println!("{counts:?}");
    assert_eq!(counts.programs + counts.loops + counts.live, programs.len());
    assert!(counts.programs * 10 > programs.len() * 9, "most can be rewritten");
    assert!(counts.accepted_tagged > counts.programs, "tagged frames are accepted, too");
}

#[test]
fn project_expressions_decide_alike_with_tag_in_skb() {
    let (seed, rounds) = (env_number("SEED", 20_261_121), env_number("ROUNDS", 1) as usize);
    println!("project_expressions_decide_alike_with_tag_in_skb: SEED={seed}");
    let (mut counts, mut silent) = (JudgeCounts::default(), 0);
    for (index, expression) in EXPRESSIONS.iter().enumerate() {
        for optimize in [true, false] {
            let options = Options { optimize, ..Options::default() };
            let program = compile(expression, LinkType::EN10MB, &options);
            let program = program.unwrap_or_else(|error| panic!("{expression}: {error}"));
            let mut random = Random(seed ^ (index as u64) << 32);
            let pair =
                FilterPair::new(expression, &program, &mut counts).expect("it can be rewritten");
            let before = (counts.accepted, counts.accepted_tagged);
            compare_with_filter(&pair, &[], 3000 * rounds, &mut random, &mut counts);
            silent += usize::from(counts.accepted == before.0);
            let tags = expression.contains("vlan") && !expression.starts_with("not");
            silent += usize::from(tags && counts.accepted_tagged == before.1);
        }
    }
    println!("{counts:?}");
    assert!(silent * 10 < counts.programs, "{silent} programs accept no frame that they should");
}

/// Expressions compiled for live captures also read the tag from the skb. Their programs decide
/// alike after the rewrite for restored tags.
#[test]
fn live_expressions_decide_alike_with_restored_tag() {
    let (seed, rounds) = (env_number("SEED", 20_261_121), env_number("ROUNDS", 1) as usize);
    println!("live_expressions_decide_alike_with_restored_tag: SEED={seed}");
    for (index, expression) in EXPRESSIONS.iter().enumerate() {
        for optimize in [true, false] {
            let options = Options { optimize, live_metadata: true, ..Options::default() };
            let program = compile(expression, LinkType::EN10MB, &options).unwrap();
            let pair = RestoredTagPair::new(&program);
            let mut random = Random(seed ^ (index as u64) << 32);
            let mut accepted = 0;
            for _ in 0..1000 * rounds {
                let mut frame = random_frame(&mut random);
                insert_tags(&mut frame, &mut random);
                steer_frame(&program, &mut frame, &mut ClassicMetadata::default(), &mut random);
                accepted += usize::from(pair.judge(&frame.bytes, frame.wire_length) > 0);
            }
            assert!(accepted > 0 || !expression.contains("vlan"), "{expression}");
        }
    }
}

#[test]
fn random_programs_decide_alike_with_tag_in_skb() {
    let (seed, rounds) = (env_number("SEED", 20_261_121), env_number("ROUNDS", 1) as usize);
    println!("random_programs_decide_alike_with_tag_in_skb: SEED={seed}");
    let mut counts = JudgeCounts::default();
    let mut random = Random(seed);
    for _ in 0..RANDOM_PROGRAM_AND_FRAME_COUNTS.0 * rounds {
        let program = random_program(&mut random);
        let pair =
            FilterPair::new("random_program", &program, &mut counts).expect("it can be rewritten");
        compare_with_filter(
            &pair,
            &[],
            RANDOM_PROGRAM_AND_FRAME_COUNTS.1,
            &mut random,
            &mut counts,
        );
    }
    println!("{counts:?}");
    let some = counts.frames / 10;
    let accepted = some..counts.frames - some;
    assert!(
        accepted.contains(&counts.accepted),
        "random_program accept some frames and refuse others"
    );
}
