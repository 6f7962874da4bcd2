//! Prints the kind of page that `pages::choose` picks for several memory sizes on this machine.
//! Then prints how much faster private small and huge pages are populated than shared small pages.
//! These ratios are the basis of the choice.
//!
//! cargo run --release -p streamline-buffer --example pages

use std::time::{Duration, Instant};
use streamline_buffer::pages::{PageChoice, page_support};
use sys::memory::{Mapping, Memfd};

const MB: usize = 1 << 20;
const MAPPING_SIZE: usize = 64 * MB;
const ROUNDS: usize = 7;

#[expect(clippy::print_stdout, reason = "prints ratios")]
fn main() -> sys::Result<()> {
    println!("{:?}", page_support());
    for size in [MB, 2 * MB, 16 * MB, 64 * MB] {
        println!("{:>3} MB: {}", size / MB, PageChoice::for_this_machine(size));
    }
    let shared = median(|| {
        let file = Memfd::create("streamline-pages", MAPPING_SIZE)?;
        let mapping = file.map()?;
        time_first_writes(&mapping)
    })?;
    let small = median(|| time_first_writes(&Mapping::anonymous(MAPPING_SIZE)?))?;
    let huge = median(|| {
        let mapping = Mapping::anonymous(MAPPING_SIZE)?;
        mapping.request_huge_pages()?;
        time_first_writes(&mapping)
    })?;
    let ratio = |time: Duration| shared.as_secs_f64() / time.as_secs_f64();
    println!(
        "to have the pages of {} MB, against shared memory of small pages:",
        MAPPING_SIZE / MB
    );
    println!("private, small {:.1}x, private, huge {:.1}x", ratio(small), ratio(huge));
    Ok(())
}

/// Returns the time that the first write to every page of a mapping takes.
fn time_first_writes(mapping: &Mapping) -> sys::Result<Duration> {
    let start = Instant::now();
    mapping.populate(0, mapping.len())?;
    Ok(start.elapsed())
}

fn median(mut round: impl FnMut() -> sys::Result<Duration>) -> sys::Result<Duration> {
    let mut times = (0..ROUNDS).map(|_| round()).collect::<sys::Result<Vec<_>>>()?;
    times.sort();
    Ok(times[ROUNDS / 2])
}
