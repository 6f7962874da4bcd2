//! Both ends of a stream where they share a cache. [Th §5.2, §5.5], FEATURES K9
//!
//! What one side writes the other fetches best from a cache that both have (BASELINES, two cores).
//! The scheduler of the system does not know who talks to whom. Each side says in its page on which
//! processor it last was; so an end can keep its thread among those that share the nearest cache
//! with the other side. Nobody is kept on one processor: which of them is free the scheduler knows
//! best, and a writer and its reader on one would only take turns.
//!
//! Where the other side is, is what it alleges. One that lies gets a reader that runs far from it.

use super::{Input, Output};
use crate::atomic::acquire;
use abi::ring::{reader, writer};

impl Input {
    /// Keeps this thread, and those that it starts, on the processors that share a cache with the
    /// one on which the writer last was. `false`: that is not known, or it shares none; all stays
    /// as it is. To be called again where the writer moves, once it has written some laps.
    pub fn stay_near(&mut self) -> sys::Result<bool> {
        let page = &self.ring.walk().side.store.writer;
        stay_near(acquire(page.word(writer::PROCESSOR)))
    }
}

impl Output {
    /// As [`Input::stay_near`], for the writer and its first reader that is there.
    pub fn stay_near(&mut self) -> sys::Result<bool> {
        let first = self.ends.iter().position(|end| !end.gone);
        let page = first.and_then(|first| self.ring.side().page(first));
        page.map_or(Ok(false), |page| stay_near(acquire(page.word(reader::PROCESSOR))))
    }
}

/// Keeps this thread near a processor, given by its number plus 1: on those that share a cache with
/// it.
fn stay_near(alleged: u64) -> sys::Result<bool> {
    let number = alleged.checked_sub(1).and_then(|number| usize::try_from(number).ok());
    let near = number.map(sys::machine::cache_sharers).unwrap_or_default();
    if near.is_empty() {
        return Ok(false);
    }
    sys::process::pin_among(&near).map(|()| true)
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::super::{Config, stream};
    use abi::DbufId;
    use abi::ring::writer;
    use std::sync::atomic::Ordering;

    /// Returns the processors that this thread may run on.
    fn allowed() -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.unwrap().trim().to_owned()
    }

    #[test]
    fn k9_a_reader_stays_where_it_shares_a_cache_with_its_writer() {
        let config = Config::new(DbufId::new(1).unwrap()).capacity(4096);
        let (mut output, mut offers) = stream(&config).unwrap();
        let mut input = offers.remove(0).open().unwrap();
        let reading = std::thread::spawn(move || {
            let before = allowed();
            assert_eq!(input.stay_near(), Ok(false), "the writer has not said where it is");
            for _ in 0..100 {
                output.write(&[1; 100]).unwrap();
                output.flush();
                assert_eq!(input.read(&mut [0; 100]), Ok(100));
            }
            let word = output.side().store.writer.word(writer::PROCESSOR);
            let there = usize::try_from(word.load(Ordering::Relaxed) - 1).unwrap();
            let near = sys::machine::cache_sharers(there);
            assert_eq!(input.stay_near(), Ok(!near.is_empty()));
            let here = sys::machine::current_processor();
            assert!(near.is_empty() && allowed() == before || near.contains(&here), "{near:?}");
            assert!(output.stay_near().is_ok(), "the other way round");
            // A processor that there is not, and one that nobody could have.
            for lie in [100_000, u64::MAX] {
                let page = &output.side().store.writer;
                page.word(writer::PROCESSOR).store(lie, Ordering::Relaxed);
                let kept = allowed();
                assert_eq!((input.stay_near(), allowed()), (Ok(false), kept));
            }
        });
        reading.join().unwrap();
    }
}
