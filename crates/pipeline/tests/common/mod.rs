//! Fixtures of this crate's tests.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod fixture;
pub(crate) mod trees;
pub(crate) mod world;
pub(crate) mod writer;

/// A small generator of numbers (xorshift*), so that a seed replays a run.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// The generator of this run: `SEED=` replays one, and the seed is printed.
    #[expect(clippy::print_stdout, reason = "a property test prints its seed")]
    pub(crate) fn from_environment() -> Self {
        let seed = match std::env::var("SEED") {
            Ok(text) => text.parse().expect("SEED is a number"),
            Err(_) => std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(1, |since| since.as_nanos() as u64),
        };
        println!("SEED={seed}");
        Self(seed | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// True once in `times`.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }
}

/// The lines of a case file that hold cases: a request, then the indented lines that tell what
/// becomes of it.
pub(crate) fn read_cases(text: &str) -> Vec<(String, Vec<String>)> {
    let mut cases: Vec<(String, Vec<String>)> = Vec::new();
    for line in text.lines() {
        if line.starts_with('#') || line.trim().is_empty() {
            continue;
        }
        match line.strip_prefix("  ") {
            Some(told) => cases.last_mut().expect("a request stands first").1.push(told.to_owned()),
            None => cases.push((line.to_owned(), Vec::new())),
        }
    }
    cases
}

/// The case file again, with what is told now behind each request.
pub(crate) fn update_cases(text: &str, tell: impl Fn(&str) -> Vec<String>) -> String {
    let mut out = String::new();
    for line in text.lines().filter(|line| !line.starts_with("  ")) {
        out.push_str(line);
        out.push('\n');
        if !(line.starts_with('#') || line.trim().is_empty()) {
            for told in tell(line) {
                out.push_str(&format!("  {told}\n"));
            }
        }
    }
    out
}

/// The text of a request in a case file.
pub(crate) fn request_text(line: &str) -> String {
    if line == "<empty>" { String::new() } else { line.replace('⏎', "\n") }
}
