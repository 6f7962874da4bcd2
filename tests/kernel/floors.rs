//! Loads our programs on an older kernel. `cargo xtask kernels` runs it in a guest; it can be run
//! on any machine. Each line of its report begins with `told: `.

use super::judge::Kernel;
use super::{at_every_target, need};
use filter::testing::twins::{chains, fitting, request};
use std::collections::BTreeMap;

/// Each chain of one and two filters, and of those of three one in so many.
const STEP: usize = 199;

/// Every generated program for every target: it loads, or the reason is told. A refusal is no
/// failure by itself, since what the kernel refuses runs in user space; but what loads on a newer
/// kernel and not here should be known.
#[test]
#[ignore = "for old kernels: `cargo xtask kernels`"]
fn every_generated_program_loads() {
    let Some(()) = need::bpf() else { return };
    let tried = at_every_target(|target| {
        let all = chains(3).into_iter().enumerate();
        let all = all.filter(|(number, chain)| chain.len() < 3 || number % STEP == 0);
        let (mut loaded, mut refused) = (0, BTreeMap::<String, Vec<String>>::new());
        for (_, chain) in all {
            let Some(program) = fitting(&chain, target) else { continue };
            match Kernel::try_load(&program, "floor") {
                Ok(_) => loaded += 1,
                Err(why) => {
                    let last = why.log.lines().rev().find(|line| !line.starts_with("processed"));
                    let why = format!("{}: {}", why.error, last.unwrap_or_default());
                    refused.entry(why).or_default().push(request(&chain));
                }
            }
        }
        (target, loaded, refused)
    });
    for (target, loaded, refused) in &tried {
        let refusals: usize = refused.values().map(Vec::len).sum();
        let hardened = if target.hardened { " without CAP_PERFMON" } else { "" };
        println!("told: {:?}{hardened}: {loaded} programs load, {refusals} do not", target.hook);
        for (why, chains) in refused {
            println!(
                "told: {:?}{hardened}: {} times {why}, so `{}`",
                target.hook,
                chains.len(),
                chains[0]
            );
        }
    }
    assert!(tried.iter().all(|(_, loaded, _)| *loaded > 0));
}
