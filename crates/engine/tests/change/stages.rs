//! Tests of moves of stages to threads of their own, and back, while a path runs. A stage is a
//! filter with everything downstream of it.

use crate::common::{TIME_LIMIT, blocks_emitted, received_numbers, run_while, wait_for_blocks};
use engine::change::{NodePlacement, reshape};
use engine::live::PathHandle;
use pipeline::plan::{Costs, FilterCost, Machine};

fn four_processor_machine() -> Machine {
    let mut costs = Costs::default();
    let filter = "match".to_owned();
    costs.set_filter_cost(FilterCost { filter, kernel: false, block: 50_000.0, byte: 0.0 });
    Machine { costs, ..Machine::example() }
}

/// Moves these nodes. Asserts that no block is lost, duplicated or reordered.
fn move_nodes(live: &PathHandle, places: &[NodePlacement]) {
    let switched = reshape(live, (places, false), &four_processor_machine(), TIME_LIMIT);
    let switched = switched.unwrap_or_else(|why| panic!("{places:?}: {why}"));
    assert_eq!((switched.lost, switched.duplicated, switched.reordered), (0, 0, 0), "{switched}");
}

#[test]
fn n4_v13_stages_move_to_threads_and_back_under_load() {
    let text =
        "generate rate=20000 seq=yes | match hex=ff |all match hex=fe |all pcap@thread0 staged";
    let ((), outcome) = run_while(text, |live| {
        for _ in 0..3 {
            wait_for_blocks(live, 200);
            let plan = live.plan().expect("a plan");
            assert_eq!(plan.spaces.len(), 1);
            let node = |nth: usize| plan.graph.nodes_with_ids().nth(nth).expect("a node").0;
            // The planner would propose this stage if the request did not pin the sink.
            let stage = [(node(2), "thread1".to_owned()), (node(3), "thread1".to_owned())];
            move_nodes(live, &stage);
            let spaces = live.space_names();
            assert!(spaces.iter().any(|name| name == "thread1"), "{spaces:?}");
            wait_for_blocks(live, 200);
            move_nodes(live, &stage.map(|(node, _)| (node, "thread0".to_owned())));
        }
        wait_for_blocks(live, 200);
    });
    assert!(
        received_numbers("staged").into_iter().eq(0..blocks_emitted(&outcome)),
        "each once, in order"
    );
}
