//! The processors of replicas: one each, as far as there are enough.

use crate::line::Line;
use engine::build::Settings;
use filter::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

const WHERE: Description = Description {
    name: "where",
    summary: "tell where each copy may run",
    user: Some(|arguments| Ok(Filter::lanes(Where(arguments.copy().0)))),
    ..Description::EMPTY
};

/// The processors on which each copy may run.
static SEEN: Mutex<BTreeMap<u32, Vec<usize>>> = Mutex::new(BTreeMap::new());

fn seen() -> BTreeMap<u32, Vec<usize>> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

struct Where(u32);

impl Lanes for Where {
    fn process<'a>(&mut self, _: &mut Batch<'a>, _: &mut LaneContext<'_, 'a>) {
        let here = sys::process::allowed_processors().expect("this thread runs somewhere");
        SEEN.lock().unwrap_or_else(PoisonError::into_inner).insert(self.0, here);
        // Others get something meanwhile.
        std::thread::yield_now();
    }
}

#[test]
fn j4_each_copy_keeps_to_a_processor_of_its_own() {
    let all = sys::process::allowed_processors().expect("this process runs somewhere");
    for copies in [2, 3, 4] {
        SEEN.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let text = format!("--parallel={copies} generate count=20000 seq=yes | where | discard");
        // Who is quick may leave nothing to another one.
        testkit::until("every copy has got blocks", || {
            let outcome = Line::with(text.as_str(), &[&WHERE]).threads(Settings::default());
            assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
            seen().len() == copies
        });
        let places: Vec<_> = seen().into_values().collect();
        let alone: Vec<_> = all.iter().take(copies).map(|processor| vec![*processor]).collect();
        assert_eq!(places[..alone.len()], alone, "of {all:?}");
        assert!(places[alone.len()..].iter().all(|place| *place == all), "the others anywhere");
    }
}
