//! Description, for `explain`, of the sources and sinks that share a ring with other programs, and
//! of the sinks that retain past frames.

use pipeline::explain;
use pipeline::plan::Plan;
use streamline::named_endpoints::{ring_size_bounds, writer_ring_size_bounds};
use streamline::report::{JsonObject, to_object};

/// Returns the sinks whose output other programs read from a ring. Each entry has the name of the
/// sink, the minimum and maximum sizes of the ring in bytes, and a flag that is true if the request
/// specifies the size.
fn reader_rings(plan: &Plan) -> Vec<(String, (usize, usize), bool)> {
    let names = explain::unique_names(&plan.graph);
    let ring = |(id, node): (pipeline::graph::NodeId, &pipeline::graph::Node)| {
        let used = node.filter()?;
        let offers = ["user", "socket"].contains(&used.description.name);
        let is_given = used.arguments.number("size").is_some();
        offers.then(|| (names[id.0].clone(), ring_size_bounds(&used.arguments), is_given))
    };
    plan.graph.nodes_with_ids().filter_map(ring).collect()
}

/// Returns the unique names of the sources to which other programs write.
fn sources_with_writers(plan: &Plan) -> Vec<String> {
    let names = explain::unique_names(&plan.graph);
    let is_written = |node: &pipeline::graph::Node| {
        node.filter().is_some_and(|used| used.description.name == "buffer")
    };
    let nodes = plan.graph.nodes_with_ids().filter(|(_, node)| is_written(node));
    nodes.map(|(id, _)| names[id.0].clone()).collect()
}

/// Formats the sizes of the rings that connect the request to other programs, both readers and
/// writers.
pub(super) fn format_ring_sizes(plan: &Plan) -> String {
    let line = |(name, (least, most), is_given)| {
        let (least, most) = (least >> 10, most >> 10);
        let sizes = match (is_given, least < most) {
            (true, _) => format!("{least} KB, as requested"),
            (false, true) => format!("{least} to {most} KB, depending on the pressure"),
            (false, false) => format!("{least} KB: the size decides which blocks are lost"),
        };
        format!(" ring         {name} → its readers: {sizes}\n")
    };
    let (least, most) = writer_ring_size_bounds();
    let written = |name| {
        let (least, most) = (least >> 10, most >> 10);
        format!(
            " ring         its writers → {name}: {least} to {most} KB each, depending on the \
             pressure\n"
        )
    };
    let readers: String = reader_rings(plan).into_iter().map(line).collect();
    readers + &sources_with_writers(plan).into_iter().map(written).collect::<String>()
}

/// Returns the sinks that retain past frames. Each entry has the name of the sink, the size in
/// bytes of its memory for uncompressed frames, and a flag. The flag is true if a separate
/// low-priority thread compresses older frames, and false if the sink's own thread does.
fn retaining_sinks(plan: &Plan) -> Vec<(String, u64, bool)> {
    let names = explain::unique_names(&plan.graph);
    let used = || plan.graph.nodes_with_ids().filter_map(|(id, node)| Some((id, node.filter()?)));
    let is_live = used().any(|(_, used)| used.endpoint.attach_point.is_some());
    let freezes = used().filter(|(_, used)| used.description.name == "freeze");
    let bytes =
        |used: &pipeline::graph::FilterUse| used.arguments.number("bytes").unwrap_or_default();
    freezes.map(|(id, used)| (names[id.0].clone(), bytes(used), is_live)).collect()
}

/// Formats, for each sink that retains past frames, the size of its memory for uncompressed frames,
/// and the kind of thread that compresses older frames.
pub(super) fn format_retained_frames(plan: &Plan) -> String {
    let line = |(name, bytes, is_live): (String, u64, bool)| {
        let (size, by) = (
            bytes >> 10,
            match is_live {
                true => "a thread of low priority, and discarded while it is behind",
                false => "its own thread",
            },
        );
        format!(" keeps        {name}: frames in {size} KB; older ones are compressed by {by}\n")
    };
    retaining_sinks(plan).into_iter().map(line).collect()
}

pub(super) fn writer_rings_json(plan: &Plan) -> Vec<JsonObject> {
    let (least, most) = writer_ring_size_bounds();
    let ring = |name| to_object(&[("source", &name), ("least", &least), ("most", &most)]);
    sources_with_writers(plan).into_iter().map(ring).collect()
}

pub(super) fn retaining_sinks_json(plan: &Plan) -> Vec<JsonObject> {
    let sink = |(name, bytes, is_live)| {
        to_object(&[("sink", &name), ("bytes", &bytes), ("beside", &is_live)])
    };
    retaining_sinks(plan).into_iter().map(sink).collect()
}

pub(super) fn reader_rings_json(plan: &Plan) -> Vec<JsonObject> {
    let ring = |(name, (least, most), is_given)| {
        to_object(&[("sink", &name), ("least", &least), ("most", &most), ("given", &is_given)])
    };
    reader_rings(plan).into_iter().map(ring).collect()
}
