//! Fuzz bodies: plain functions of bytes that panic if an invariant is violated. The smoke test
//! calls each with its corpus and with random and mutated bytes; an external fuzzer may call the
//! same functions.
//!
//! For any input, only a body's own assertions may panic, and no input may take longer than 100 ms.

use fuzz_target::FuzzTarget;
use std::panic::{AssertUnwindSafe, catch_unwind};
use testkit::Random;

mod frames;
mod fuzz_target;
mod http;
mod messages;
mod programs;
mod records;

/// Limit on processor time per input in a release build, in ns.
const NS_PER_INPUT_MAX: u64 = 100_000_000;
/// Factor by which the time limit grows in a debug build.
const DEBUG_SLOWDOWN: u64 = if cfg!(debug_assertions) { 5 } else { 1 };
/// Maximum length of random inputs in bytes.
const INPUT_LENGTH_MAX: usize = 2048;

/// All fuzz bodies that the smoke test calls.
const FUZZ_TARGETS: &[FuzzTarget] = &[
    fuzz_target::PARSER_FUZZ_TARGET,
    fuzz_target::PLANNER_FUZZ_TARGET,
    programs::EXPRESSION_FUZZ_TARGET,
    programs::CLASSIC_BPF_FUZZ_TARGET,
    programs::INTERPRETER_FUZZ_TARGET,
    frames::CAPTURE_FUZZ_TARGET,
    frames::DISSECTION_FUZZ_TARGET,
    frames::FILTERS_FUZZ_TARGET,
    http::HEAD_FUZZ_TARGET,
    http::CONNECTION_FUZZ_TARGET,
    messages::DNS_FUZZ_TARGET,
    messages::HELLO_FUZZ_TARGET,
    fuzz_target::POINTER_FUZZ_TARGET,
    records::RECORD_FUZZ_TARGET,
];

/// A fuzz body that panics for one in eight random inputs: those whose first byte is 3 modulo 8. A
/// smoke run that does not find the panic is broken.
const RANDOM_INPUT_CANARY: FuzzTarget = FuzzTarget {
    name: "canary",
    corpus: Vec::new,
    rounds: 1000,
    run: |bytes| assert!(bytes.first().is_none_or(|first| first % 8 != 3), "the canary sang"),
};

/// A fuzz body that panics on an input of its corpus. A smoke run must find the panic.
const CORPUS_INPUT_CANARY: FuzzTarget = FuzzTarget {
    name: "corpus canary",
    corpus: || vec![b"harmless".to_vec(), b"not this".to_vec()],
    rounds: 0,
    run: |bytes| assert!(bytes != b"not this", "the canary sang"),
};

/// A fuzz body that exceeds the time limit. A smoke run must report it.
const SLOW_FUZZ_TARGET: FuzzTarget = FuzzTarget {
    name: "slug",
    corpus: || vec![vec![0]],
    rounds: 0,
    run: |_| {
        let begin = sys::clock::thread_cpu_ns();
        while sys::clock::thread_cpu_ns() - begin <= DEBUG_SLOWDOWN * NS_PER_INPUT_MAX {}
    },
};

#[test]
fn fuzz_targets_pass_a_smoke_run() {
    let mut random = Random::with_replayable_seed();
    for body in FUZZ_TARGETS {
        let begin = sys::clock::thread_cpu_ns();
        let inputs = run_fuzz_smoke_test(body, &mut random).unwrap_or_else(|why| panic!("{why}"));
        let spent = (sys::clock::thread_cpu_ns() - begin) / 1_000_000;
        println!("{inputs:7} inputs in {spent:6} ms: {}", body.name);
    }
}

#[test]
fn fuzz_smoke_finds_a_planted_bug() {
    let mut random = Random::with_replayable_seed();
    for (body, message) in [
        (&RANDOM_INPUT_CANARY, "the canary sang"),
        (&CORPUS_INPUT_CANARY, "6e 6f 74 20 74 68 69 73"),
        (&SLOW_FUZZ_TARGET, "ms for one input"),
    ] {
        let why = run_fuzz_smoke_test(body, &mut random).expect_err(body.name);
        assert!(why.contains(message) && why.contains(body.name), "{why}");
    }
}

/// Calls a body with its corpus, then with random and mutated bytes. The environment variable
/// `ROUNDS` multiplies the number of random inputs. Returns the number of inputs, or a description
/// of the first failure.
fn run_fuzz_smoke_test(body: &FuzzTarget, random: &mut Random) -> Result<usize, String> {
    let corpus = (body.corpus)();
    let factor = std::env::var("ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let rounds = body.rounds * factor;
    for input in &corpus {
        run_target(body, input)?;
    }
    for round in 0..rounds {
        let input = match corpus.as_slice() {
            [_, ..] if round % 4 != 0 => mutate_inputs(&corpus, random),
            _ => {
                let length = random.within(0..INPUT_LENGTH_MAX);
                random.bytes(length)
            }
        };
        run_target(body, &input)?;
    }
    Ok(corpus.len() + rounds)
}

fn run_target(body: &FuzzTarget, input: &[u8]) -> Result<(), String> {
    let hex = || input.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
    let mut spent = 0;
    // Repeats a slow run, since the machine may be busy.
    for _ in 0..2 {
        let begin = sys::clock::thread_cpu_ns();
        let called = catch_unwind(AssertUnwindSafe(|| (body.run)(input)));
        spent = sys::clock::thread_cpu_ns() - begin;
        if let Err(panic) = called {
            let message = panic.downcast_ref::<String>().map(String::as_str);
            let message = message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?");
            return Err(format!("{}: {message}, for {}", body.name, hex()));
        }
        if spent <= DEBUG_SLOWDOWN * NS_PER_INPUT_MAX {
            return Ok(());
        }
    }
    Err(format!("{}: {} ms for one input, {}", body.name, spent / 1_000_000, hex()))
}

/// Returns an input derived from two corpus inputs: mixed word by word or spliced, then truncated,
/// repeated, or with changed bytes.
fn mutate_inputs(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = random.pick(corpus).clone();
    let other = random.pick(corpus);
    match random.below(4) {
        0 => {
            bytes.truncate(random.within(0..bytes.len() + 1));
            bytes.extend_from_slice(&other[random.within(0..other.len() + 1)..]);
        }
        1 => bytes = replace_word(&bytes, other, random),
        _ => {}
    }
    for _ in 0..random.below(3) {
        let at = random.within(0..bytes.len() + 1);
        match random.below(4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.next_u64() as u8),
            2 => {
                let piece = bytes[at..].to_vec();
                bytes.extend(piece.iter().take(256));
            }
            _ => random.flip_bits(&mut bytes, 1),
        }
    }
    let longest = corpus.iter().map(Vec::len).max().unwrap_or(0);
    bytes.truncate(longest.max(INPUT_LENGTH_MAX));
    bytes
}

/// Replaces a random word of `bytes` by some consecutive words of `other`. Words are separated by
/// spaces.
fn replace_word(bytes: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut words: Vec<&[u8]> = bytes.split(|byte| *byte == b' ').collect();
    let others: Vec<&[u8]> = other.split(|byte| *byte == b' ').collect();
    let from = random.within(0..others.len());
    let to = random.within(from..others.len()) + 1;
    let at = random.within(0..words.len());
    words.splice(at..at + 1, others[from..to].iter().copied());
    words.join(&b' ')
}
