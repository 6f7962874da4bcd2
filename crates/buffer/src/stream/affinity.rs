//! The cache affinity of the two ends of a stream. [Th §5.2, §5.5], FEATURES K9
//!
//! Data written by one side is fetched fastest from a cache that both sides share (BASELINES, two
//! cores). The kernel's scheduler cannot tell which threads communicate. Each side publishes in its
//! page the processor on which it last ran, so the other side can confine its thread to the
//! processors that share the closest cache with that processor. A thread is never pinned to one
//! processor: only the scheduler can tell which processor is free, and a writer and a reader on the
//! same processor would only alternate.
//!
//! The published processor is an allegation, but a lie harms only the liar, whose peer then runs on
//! a remote processor.

use super::{Input, Output};
use crate::atomic::load_acquire;
use abi::ring::{reader, writer};

impl Input {
    /// Confines this thread, and the threads that it will start, to the processors that share a
    /// cache with the processor on which the writer last ran. Does nothing and returns false if
    /// that processor is unknown or shares no cache. Call this again after the writer has moved to
    /// another processor.
    pub fn confine_to_writer_cache(&mut self) -> sys::Result<bool> {
        let page = &self.ring.walk().side.store.writer;
        confine_to_cache_of_processor(load_acquire(page.word(writer::PROCESSOR)))
    }
}

impl Output {
    /// Confines this thread like [`Input::confine_to_writer_cache`], but to the processors that
    /// share a cache with the processor of the first present reader. Does nothing and returns false
    /// if no reader is present, or if that processor is unknown or shares no cache.
    pub fn confine_to_reader_cache(&mut self) -> sys::Result<bool> {
        let first = self.reader_records.iter().position(|end| !end.has_left);
        let page = first.and_then(|first| self.ring.cursor_mut().page(first));
        page.map_or(Ok(false), |page| {
            confine_to_cache_of_processor(load_acquire(page.word(reader::PROCESSOR)))
        })
    }
}

/// Confines this thread to the processors that share a cache with a given processor. `published` is
/// the number of that processor plus 1, or 0 if unknown. Does nothing and returns false if the
/// processor is unknown or shares no cache.
fn confine_to_cache_of_processor(published: u64) -> sys::Result<bool> {
    let number = published.checked_sub(1).and_then(|number| usize::try_from(number).ok());
    let sharers = number.map(sys::machine::processors_sharing_cache).unwrap_or_default();
    if sharers.is_empty() {
        return Ok(false);
    }
    sys::process::pin_to_processors(&sharers).map(|()| true)
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::super::{Config, stream};
    use abi::DbufId;
    use abi::ring::writer;
    use std::sync::atomic::Ordering;

    /// Returns the list of processors on which this thread may run.
    fn allowed_processors() -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.unwrap().trim().to_owned()
    }

    #[test]
    fn k9_reader_is_confined_to_its_writers_cache() {
        let config = Config::new(DbufId::new(1).unwrap()).capacity(4096);
        let (mut output, mut offers) = stream(&config).unwrap();
        let mut input = offers.remove(0).open().unwrap();
        let reading = std::thread::spawn(move || {
            let before = allowed_processors();
            assert_eq!(
                input.confine_to_writer_cache(),
                Ok(false),
                "the writer's processor is unknown"
            );
            for _ in 0..100 {
                output.write(&[1; 100]).unwrap();
                output.flush();
                assert_eq!(input.read(&mut [0; 100]), Ok(100));
            }
            let word = output.cursor_mut().store.writer.word(writer::PROCESSOR);
            let other = usize::try_from(word.load(Ordering::Relaxed) - 1).unwrap();
            let sharers = sys::machine::processors_sharing_cache(other);
            assert_eq!(input.confine_to_writer_cache(), Ok(!sharers.is_empty()));
            let here = sys::machine::current_processor();
            assert!(
                sharers.is_empty() && allowed_processors() == before || sharers.contains(&here),
                "{sharers:?}"
            );
            assert!(output.confine_to_reader_cache().is_ok(), "the other way round");
            // A processor that does not exist, and an impossible number.
            for lie in [100_000, u64::MAX] {
                let page = &output.cursor_mut().store.writer;
                page.word(writer::PROCESSOR).store(lie, Ordering::Relaxed);
                let kept = allowed_processors();
                assert_eq!(
                    (input.confine_to_writer_cache(), allowed_processors()),
                    (Ok(false), kept)
                );
            }
        });
        reading.join().unwrap();
    }
}
