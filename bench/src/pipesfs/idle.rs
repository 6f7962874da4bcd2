//! The cost of a mount that shows a path while no program reads its streams, compared with a path
//! without a mount. FEATURES B9

use super::extra_cost::ExtraCost;
use super::programs::Programs;
use crate::harness::{Candidate, is_row_selected, measure_interleaved};
use crate::row::Row;
use testkit::net::wait_until;

/// Number of blocks in a measurement.
const BLOCK_COUNT: u32 = 10_000_000;
/// Maximum cost of the mount in ns per block.
const MOUNT_COST_NS_MAX: f64 = 1.0;

/// Measures a path with and without a mount.
pub(super) fn run_bench(rounds: usize) -> Result<Vec<Row>, String> {
    const ROW_NAME: &str = "nobody reads";
    if !is_row_selected(ROW_NAME) {
        return Ok(Vec::new());
    }
    let mut alone = Programs::start()?;
    let mut mounted = Programs::start()?;
    let mount = mounted.mount("pipes", None)?;
    let candidates = vec![
        Candidate { name: "no mount", measure: Box::new(|| measure(&mut alone, None)) },
        Candidate { name: "a mount", measure: Box::new(|| measure(&mut mounted, Some(&mount))) },
    ];
    let (sentinel_ns, samples) = measure_interleaved(rounds, candidates)?;
    let cost =
        ExtraCost { name: "cost of the mount", parts: 1, limit: MOUNT_COST_NS_MAX, goal: "B9" };
    Ok(cost.rows((ROW_NAME, "ns CPU/block"), sentinel_ns, &samples))
}

/// Runs a path. Returns its processor time per block in ns. If there is a mount, waits until it
/// shows the path.
fn measure(programs: &mut Programs, mount: Option<&std::path::PathBuf>) -> Result<f64, String> {
    let mut command = programs.command("idle");
    let request = format!("generate count={BLOCK_COUNT} | udp | dport |9 count");
    command.args(["run", "-q", "--as", "idle", &request]);
    let child = command.spawn().map_err(|why| why.to_string())?;
    if let Some(mount) = mount {
        let directory = mount.join("idle/generate/udp/dport/9/count");
        wait_until("it is shown", || directory.is_dir());
    }
    let (status, usage) = sys::usage::wait(child).map_err(|why| why.to_string())?;
    if !status.success() {
        return Err(programs.messages("idle"));
    }
    Ok(usage.processor_ns as f64 / f64::from(BLOCK_COUNT))
}
