//! A readable listing of the instructions of a filter that runs in the kernel.

use ebpf::disasm::list_program;
use filter::{Arguments, Description, FilterKind};
use pipeline::graph::{Graph, NodeId};

/// Returns the instructions of a filter, taken from a program of all filters from the source to
/// this one. The loaded program also contains the filters of other paths at the interface, counters
/// and the delivery of frames.
///
/// # Errors
///
/// Fails with the reason if the filter has no kernel implementation or no live source upstream.
pub fn list_filter_instructions(graph: &Graph, at: NodeId) -> Result<String, String> {
    let (mut chain, mut first) = (Vec::new(), at);
    let attach = loop {
        let node = graph.node(first);
        let used = node.filter().ok_or_else(|| format!("`{}` is not a filter", node.name()))?;
        if used.description.kind == FilterKind::Source {
            let live = used.attachment().ok_or_else(|| format!("`{}` is not live", node.name()));
            break live??;
        }
        chain.push((used.description, &used.arguments));
        let before = graph.inputs(first).find(|edge| !edge.back && edge.from != first);
        first = before.ok_or_else(|| format!("`{}` has no input", node.name()))?.from;
    };
    chain.reverse();
    let chain: Vec<(&Description, &Arguments)> = chain;
    let program = filter::emit_chain_program(&chain, filter::program_target(&attach, false));
    let program = program.map_err(|(place, why)| {
        let name = chain.get(place).map_or("", |(description, _)| description.name);
        format!("`{name}` cannot be listed: {why}")
    })?;
    let ours = chain.len().saturating_sub(1);
    let label = chain.last().map_or("", |(description, _)| description.name);
    let heading = format!("; {label} @{ours}..{}", chain.len());
    let (mut listed, mut is_ours) = (String::new(), false);
    for line in list_program(&program).lines() {
        if line.starts_with(';') {
            is_ours = line == heading;
        } else if is_ours {
            listed.push_str(line);
            listed.push('\n');
        }
    }
    Ok(listed)
}
