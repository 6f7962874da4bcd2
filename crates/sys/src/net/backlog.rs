//! Counters of the backlog queue between drivers and the network stack. The queue drops frames when
//! it is full.
//!
//! `/proc/net/softnet_stat` has one line of hexadecimal counters per CPU, for all interfaces and
//! namespaces together. Virtual devices and drivers without NAPI use the backlog; with receive
//! packet steering, all devices use it.

use crate::error::{Error, ErrorContext as _, Result};
use std::fs;

const SOFTNET_STAT_FILE: &str = "/proc/net/softnet_stat";

/// A snapshot of the backlog queues' counters, one set per CPU.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BacklogCounters(Vec<ProcessorCounters>);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct ProcessorCounters {
    dropped: u32,
    processor: Option<u32>,
}

impl BacklogCounters {
    /// Reads the current counters of all CPUs.
    pub fn read() -> Result<Self> {
        let text = fs::read_to_string(SOFTNET_STAT_FILE).context("read", SOFTNET_STAT_FILE)?;
        Self::parse(&text).ok_or_else(|| Error::new("read", SOFTNET_STAT_FILE, libc::EBADMSG))
    }

    /// Returns the number of frames that the full backlog has dropped between the snapshot
    /// `earlier` and this one. Correct even if a kernel counter, which has 32 bits, has wrapped
    /// once. A CPU that is not in `earlier` counts from 0.
    #[must_use]
    pub fn frames_dropped_since(&self, earlier: &Self) -> u64 {
        let before = |(place, line): (usize, &ProcessorCounters)| match line.processor {
            Some(_) => earlier.0.iter().find(|other| other.processor == line.processor),
            None => earlier.0.get(place),
        };
        let lines = self.0.iter().enumerate();
        let dropped = |each: (usize, &ProcessorCounters)| {
            each.1.dropped.wrapping_sub(before(each).map_or(0, |line| line.dropped))
        };
        lines.map(|each| u64::from(dropped(each))).sum()
    }

    fn parse(text: &str) -> Option<Self> {
        let figure = |word: Option<&str>| u32::from_str_radix(word?, 16).ok();
        let line = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            let dropped = figure(words.nth(1))?;
            // The thirteenth column (CPU number), since Linux 5.14.
            Some(ProcessorCounters { dropped, processor: figure(words.nth(10)) })
        };
        let lines: Option<Vec<ProcessorCounters>> = text.lines().map(line).collect();
        lines.filter(|lines| !lines.is_empty()).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_wrap_and_new_cpus_start_at_zero() {
        let line = |dropped: &str, processor: &str| {
            format!("000f43af {dropped} 00000010{} {processor} 0 0\n", " 00000000".repeat(9))
        };
        let earlier = BacklogCounters::parse(&line("fffffffe", "00000000")).unwrap();
        let both = line("00000003", "00000000") + &line("00000007", "00000001");
        let later = BacklogCounters::parse(&both).unwrap();
        assert_eq!(later.frames_dropped_since(&earlier), 5 + 7);
        let old = BacklogCounters::parse("1 00000009 2\n").unwrap();
        assert_eq!(BacklogCounters::parse("1 0000000b 2\n").unwrap().frames_dropped_since(&old), 2);
        assert_eq!(BacklogCounters::parse("").map(|_| ()), None);
        assert_eq!(BacklogCounters::parse("not hexadecimal").map(|_| ()), None);
    }

    #[test]
    fn backlog_counters_of_this_machine_are_read() {
        let now = BacklogCounters::read().unwrap();
        assert_eq!(now.frames_dropped_since(&now), 0);
    }
}
