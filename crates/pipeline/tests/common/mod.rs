//! Fixtures for this crate's tests.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod check_registry;
pub(crate) mod planner_registry;
pub(crate) mod random_writer;
pub(crate) mod trees;

/// A small random number generator (xorshift*). The same seed reproduces a run.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// Returns a generator whose seed is taken from the environment variable `SEED`, or else from
    /// the clock; prints the seed.
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

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// Returns a random number below `end`.
    pub(crate) fn next_below(&mut self, end: usize) -> usize {
        (self.next_u64() % end.max(1) as u64) as usize
    }

    /// Returns true with probability 1/`times`.
    pub(crate) fn one_chance_in(&mut self, times: usize) -> bool {
        self.next_below(times) == 0
    }

    pub(crate) fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.next_below(of.len())]
    }
}

/// Parses a case file, which contains requests, each followed by its expected result in indented
/// lines.
pub(crate) fn read_cases(text: &str) -> Vec<(String, Vec<String>)> {
    let mut cases: Vec<(String, Vec<String>)> = Vec::new();
    for line in text.lines() {
        if line.starts_with('#') || line.trim().is_empty() {
            continue;
        }
        match line.strip_prefix("  ") {
            Some(result) => {
                cases.last_mut().expect("a request comes first").1.push(result.to_owned())
            }
            None => cases.push((line.to_owned(), Vec::new())),
        }
    }
    cases
}

/// Returns the case file with the expected results replaced by the results of `format_graph`.
pub(crate) fn updated_case_file(text: &str, format_graph: impl Fn(&str) -> Vec<String>) -> String {
    let mut out = String::new();
    for line in text.lines().filter(|line| !line.starts_with("  ")) {
        out.push_str(line);
        out.push('\n');
        if !(line.starts_with('#') || line.trim().is_empty()) {
            for result in format_graph(line) {
                out.push_str(&format!("  {result}\n"));
            }
        }
    }
    out
}

/// Returns the request that a line of a case file denotes; `⏎` represents a line break.
pub(crate) fn request_text(line: &str) -> String {
    if line == "<empty>" { String::new() } else { line.replace('⏎', "\n") }
}
