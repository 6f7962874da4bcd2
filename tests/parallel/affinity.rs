//! Tests of the processor affinity of replicas. Each replica runs on its own processor if there are
//! enough.

use crate::request::PlannedRequest;
use engine::build::RunSettings;
use filter::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// A filter that stores the processors on which its replica may run.
const REPORT_AFFINITY: Description = Description {
    name: "where",
    summary: "tell where each copy may run",
    constructor: Some(|arguments| {
        Ok(Filter::lanes(ReportAffinityFilter(arguments.replica_index_and_count().0)))
    }),
    ..Description::FILTER_DEFAULTS
};

/// The processors on which each replica may run, by number of the replica.
static PROCESSORS_BY_REPLICA: Mutex<BTreeMap<u32, Vec<usize>>> = Mutex::new(BTreeMap::new());

fn processors_by_replica() -> BTreeMap<u32, Vec<usize>> {
    PROCESSORS_BY_REPLICA.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

struct ReportAffinityFilter(u32);

impl LaneFilter for ReportAffinityFilter {
    fn process<'a>(&mut self, _: &mut Batch<'a>, _: &mut LaneContext<'_, 'a>) {
        let here = sys::process::allowed_processors().expect("this thread runs somewhere");
        PROCESSORS_BY_REPLICA.lock().unwrap_or_else(PoisonError::into_inner).insert(self.0, here);
        // Lets other replicas run.
        std::thread::yield_now();
    }
}

#[test]
fn j4_each_replica_is_pinned_to_its_own_processor() {
    let all = sys::process::allowed_processors().expect("this process runs somewhere");
    for replicas in [2, 3, 4] {
        PROCESSORS_BY_REPLICA.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let text = format!("--parallel={replicas} generate count=20000 seq=yes | where | discard");
        // A fast replica may leave no blocks to others.
        testkit::wait_until("every copy has got blocks", || {
            let outcome = PlannedRequest::with_filters(text.as_str(), &[&REPORT_AFFINITY])
                .run_threaded(RunSettings::default());
            assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
            processors_by_replica().len() == replicas
        });
        let places: Vec<_> = processors_by_replica().into_values().collect();
        let alone: Vec<_> = all.iter().take(replicas).map(|processor| vec![*processor]).collect();
        assert_eq!(places[..alone.len()], alone, "of {all:?}");
        assert!(places[alone.len()..].iter().all(|place| *place == all), "the others anywhere");
    }
}
