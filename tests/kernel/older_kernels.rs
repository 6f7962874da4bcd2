//! Test that loads our programs on an older kernel. `cargo xtask kernels` runs it in a virtual
//! machine, but it runs on any machine. Each line of its report begins with `row: `.

use super::judge::KernelJudge;
use super::{for_every_target, need};
use filter::testing::twins::{request_text, try_emit_program, twin_chains};
use std::collections::BTreeMap;

/// Sampling step for chains of three filters: the test loads one in this many. It loads all chains
/// of one or two filters.
const TRIPLE_SAMPLING_STEP: usize = 199;

/// Loads generated programs for every target, and prints which of them the kernel refuses. A
/// refusal does not fail the test, because the filters then run in user space; the list shows which
/// programs need a newer kernel.
#[test]
#[ignore = "for old kernels: `cargo xtask kernels`"]
fn every_generated_program_loads() {
    let Some(()) = need::require_bpf() else { return };
    let tried = for_every_target(|target| {
        let all = twin_chains(3).into_iter().enumerate();
        let all =
            all.filter(|(number, chain)| chain.len() < 3 || number % TRIPLE_SAMPLING_STEP == 0);
        let (mut loaded, mut refused) = (0, BTreeMap::<String, Vec<String>>::new());
        for (_, chain) in all {
            let Some(program) = try_emit_program(&chain, target) else { continue };
            match KernelJudge::try_load(&program, "floor") {
                Ok(_) => loaded += 1,
                Err(why) => {
                    let last = why.log.lines().rev().find(|line| !line.starts_with("processed"));
                    let why = format!("{}: {}", why.error, last.unwrap_or_default());
                    refused.entry(why).or_default().push(request_text(&chain));
                }
            }
        }
        (target, loaded, refused)
    });
    for (target, loaded, refused) in &tried {
        let refusals: usize = refused.values().map(Vec::len).sum();
        let hardened = if target.hardened { " without CAP_PERFMON" } else { "" };
        println!("row: {:?}{hardened}: {loaded} programs load, {refusals} do not", target.hook);
        for (why, chains) in refused {
            println!(
                "row: {:?}{hardened}: {} times {why}, so `{}`",
                target.hook,
                chains.len(),
                chains[0]
            );
        }
    }
    assert!(tried.iter().all(|(_, loaded, _)| *loaded > 0));
}
