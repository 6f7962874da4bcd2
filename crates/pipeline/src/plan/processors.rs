//! Placement of a path's threads on processors that share a cache. [Th §5.2, §5.5], FEATURES K9
//!
//! Ring entries are transferred fastest through a cache that both processors share (BASELINES, two
//! cores), and the kernel's scheduler does not know which threads share rings. The first threads of
//! a path are therefore confined to the processors that share the last-level cache with the
//! processor on which the path starts, if there are enough for all threads. The nearest shared
//! cache would be the wrong choice: processors that share the first or second level are siblings of
//! one core, which also share its execution units. Threads added later, for changes or replicas,
//! may run anywhere.

use super::Plan;
use super::model::SpaceKind;

/// The processors of a machine when a path starts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Processors {
    /// The processors on which the process may run.
    pub allowed: Vec<usize>,
    /// The processor on which the path starts.
    pub start: usize,
    /// The processors that share the last-level cache with `start`, including `start` itself; empty
    /// if they are unknown or no cache is shared.
    pub sharers: Vec<usize>,
}

/// The processors on which the threads that start together run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ThreadPlacement {
    /// The threads run on the processors in this list, which share a cache.
    SharedCache(Vec<usize>),
    /// The threads run on any allowed processor. The text contains the reason.
    Anywhere(String),
}

impl Processors {
    /// Creates a set of `count` processors that share one last-level cache, for tests and examples.
    #[must_use]
    pub fn with_shared_cache(count: usize) -> Self {
        Self { allowed: (0..count).collect(), start: 0, sharers: (0..count).collect() }
    }

    /// Chooses the processors for `threads` threads that start together.
    #[must_use]
    pub fn place_threads(&self, threads: usize) -> ThreadPlacement {
        let anywhere = |why: &str| ThreadPlacement::Anywhere(why.to_owned());
        if threads < 2 {
            return anywhere("one thread shares nothing");
        }
        if self.allowed.len() < 2 {
            return anywhere("the process may use one processor only");
        }
        let Self { allowed, sharers, .. } = self;
        let sharing: Vec<usize> =
            allowed.iter().copied().filter(|at| sharers.contains(at)).collect();
        match sharing.len() {
            0 => anywhere("the kernel reports no cache that processors share"),
            some if some == allowed.len() => anywhere("all share the last cache"),
            some if some < threads => ThreadPlacement::Anywhere(format!(
                "only {some} share the last cache with processor {}, too few for {threads} threads",
                self.start
            )),
            _ => ThreadPlacement::SharedCache(sharing),
        }
    }
}

impl Plan {
    /// Returns the number of threads that start together: the largest number of threads in a
    /// connected component.
    #[must_use]
    pub fn thread_count(&self) -> usize {
        let threads = self.spaces.iter().filter(|space| space.kind == SpaceKind::Thread);
        let mut counts = vec![0; self.spaces.len()];
        threads.for_each(|space| counts[space.component] += 1);
        counts.into_iter().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k9_threads_of_a_path_share_last_level_cache_if_they_fit() {
        let place = |allowed: &[usize], sharers: &[usize], threads| {
            let (allowed, sharers) = (allowed.to_vec(), sharers.to_vec());
            Processors { allowed, start: 2, sharers }.place_threads(threads)
        };
        let why = |placed| match placed {
            ThreadPlacement::Anywhere(why) => why,
            ThreadPlacement::SharedCache(near) => panic!("{near:?}"),
        };
        let (all, half) = ([0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3]);
        assert_eq!(place(&all, &half, 2), ThreadPlacement::SharedCache(half.to_vec()));
        let allowed = place(&all[2..], &half, 2);
        assert_eq!(
            allowed,
            ThreadPlacement::SharedCache(vec![2, 3]),
            "only where the process may run"
        );
        assert!(why(place(&all, &half, 5)).starts_with("only 4 share the last cache with"));
        assert_eq!(why(place(&half, &half, 2)), "all share the last cache");
        assert!(why(place(&all, &[], 2)).contains("no cache"), "nothing is known");
        assert_eq!(why(place(&[2], &half, 2)), "the process may use one processor only");
        assert_eq!(why(place(&all, &half, 1)), "one thread shares nothing");
    }
}
