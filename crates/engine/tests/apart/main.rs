//! Tests of changes to filters that run in processes of their own while blocks flow: the output
//! equals the output of the same request in one process, byte for byte.
//!
//! The process of a filter runs this test program again. The test therefore has its own `main`,
//! which runs a filter if the program was started for one, and otherwise runs the tests one after
//! the other.

#[path = "../change/common.rs"]
#[allow(dead_code, reason = "others use the rest of it")]
mod common;
mod hostile;
mod moves;
#[path = "../record/common.rs"]
#[allow(dead_code, reason = "others use the rest of it")]
#[allow(clippy::unwrap_used, reason = "a test may end by a panic")]
mod record;
#[path = "../change/script.rs"]
mod script;

#[allow(clippy::print_stdout, reason = "as the harness says it that it stands for")]
fn main() -> std::process::ExitCode {
    if let Some(status) = engine::sandbox::serve_untrusted_filter_if_asked() {
        return status.into();
    }
    let tests = || moves::TESTS.iter().chain(hostile::TESTS);
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--list") {
        tests().for_each(|(name, _)| println!("{name}: test"));
        return std::process::ExitCode::SUCCESS;
    }
    let wanted: Vec<&String> = words.iter().filter(|word| !word.starts_with('-')).collect();
    let is = |name: &str| wanted.is_empty() || wanted.iter().any(|word| name.contains(*word));
    let chosen: Vec<_> = tests().filter(|(name, _)| is(name)).collect();
    let mut failed = 0;
    for (name, test) in &chosen {
        let well = std::panic::catch_unwind(test).is_ok();
        println!("test {name} ... {}", if well { "ok" } else { "FAILED" });
        failed += usize::from(!well);
    }
    let (passed, out) = (chosen.len() - failed, tests().count() - chosen.len());
    let word = if failed == 0 { "ok" } else { "FAILED" };
    let rest = format!("0 ignored; 0 measured; {out} filtered out");
    println!("test result: {word}. {passed} passed; {failed} failed; {rest}");
    u8::from(failed > 0).into()
}
