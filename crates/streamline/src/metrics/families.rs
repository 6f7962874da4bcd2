//! The families of metrics and their series, computed from the figures of paths.

use super::series::{MetricFamily, SeriesKind, SeriesValue, Unit};
use crate::figures::{PathFigures, PathState};
use member::protocol::{Amount, Edge, Filter, Loss};
use runtime::ledger::NodeName;

/// Returns all metric families, with the series of the given paths.
#[must_use]
pub fn metric_families(paths: &[PathFigures]) -> Vec<MetricFamily> {
    let mut all = path_families(paths);
    all.extend(source_families(paths));
    all.extend(filter_families(paths));
    all.extend(edge_families(paths));
    all.extend(latency_families(paths));
    all.retain(|family| !family.series.is_empty());
    all
}

fn path_families(paths: &[PathFigures]) -> Vec<MetricFamily> {
    let mut build = MetricFamily::new(
        "streamline_build_info",
        Unit::None,
        SeriesKind::Gauge,
        "Version of the program that reports these metrics; always 1",
    );
    build.add_count(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    let mut up = MetricFamily::new(
        "streamline_path_up",
        Unit::None,
        SeriesKind::Gauge,
        "1 while the path runs and replies; 0 if it has ended or does not reply",
    );
    let mut elapsed = MetricFamily::new(
        "streamline_path_elapsed",
        Unit::Seconds,
        SeriesKind::Maximum,
        "Running time of the path",
    );
    let mut lost = MetricFamily::new(
        "streamline_path_lost",
        Unit::Blocks,
        SeriesKind::Counter,
        "Blocks lost at all places, as the report of the path counts them",
    );
    let mut adapted = MetricFamily::new(
        "streamline_path_adaptations",
        Unit::None,
        SeriesKind::Counter,
        "Changes that the path made by itself",
    );
    for path in paths {
        let labels = &[("path", path.name.as_str())];
        up.add_count(labels, u64::from(path.state == PathState::Running));
        if path.state != PathState::Silent {
            elapsed.add(labels, SeriesValue::Measure(ns_to_seconds(path.counters.elapsed_ns)));
            lost.add_count(labels, path.lost_blocks());
            adapted.add_count(labels, path.counters.adapted.len() as u64);
        }
    }
    vec![build, up, elapsed, lost, adapted]
}

fn source_families(paths: &[PathFigures]) -> Vec<MetricFamily> {
    let counter = |name, unit, help| MetricFamily::new(name, unit, SeriesKind::Counter, help);
    let mut observed = counter(
        "streamline_source_seen",
        Unit::Blocks,
        "Blocks that the device or file of a source provided, where known",
    );
    let mut blocks = counter(
        "streamline_source_given",
        Unit::Blocks,
        "Blocks that a source emitted into the path",
    );
    let mut bytes = counter(
        "streamline_source_given",
        Unit::Bytes,
        "Bytes that a source emitted into the path",
    );
    let mut dropped = counter(
        "streamline_source_dropped",
        Unit::None,
        "Blocks dropped before a source, by place; places without a counter are missing",
    );
    for path in paths {
        for source in &path.counters.sources {
            let labels = &[("path", path.name.as_str()), ("source", source.name.as_str())];
            if let Some(amount) = source.observed {
                observed.add_count(labels, amount.blocks);
            }
            blocks.add_count(labels, source.given.blocks);
            bytes.add_count(labels, source.given.bytes);
            add_losses(&mut dropped, labels, &source.lost);
        }
    }
    vec![observed, blocks, bytes, dropped]
}

/// A family of filter metrics: name, unit, kind, help text, and the function that computes a
/// filter's value.
type FilterFamily = (&'static str, Unit, SeriesKind, &'static str, fn(&Filter) -> u64);

/// Families of filter counters.
const FILTER_FAMILIES: [FilterFamily; 7] = [
    (
        "streamline_filter",
        Unit::Blocks,
        SeriesKind::Counter,
        "Blocks that a filter, source or sink received or made",
        |filter| sum_amounts(filter.taken, filter.made).blocks,
    ),
    (
        "streamline_filter",
        Unit::Bytes,
        SeriesKind::Counter,
        "Bytes that a filter, source or sink received or made",
        |filter| sum_amounts(filter.taken, filter.made).bytes,
    ),
    (
        "streamline_filter_passed",
        Unit::Blocks,
        SeriesKind::Counter,
        "Blocks that a filter passed on, or that a sink delivered",
        |filter| filter.passed.blocks,
    ),
    (
        "streamline_filter_unselected",
        Unit::Blocks,
        SeriesKind::Counter,
        "Blocks that no arc behind a filter selected",
        |filter| filter.unselected.blocks,
    ),
    (
        "streamline_filter_consumed",
        Unit::Blocks,
        SeriesKind::Counter,
        "Blocks that a filter used up, for example joined to others",
        |filter| filter.consumed.blocks,
    ),
    (
        "streamline_filter_held",
        Unit::Blocks,
        SeriesKind::Gauge,
        "Blocks that a filter holds now",
        |filter| filter.held.blocks,
    ),
    (
        "streamline_filter_calls",
        Unit::None,
        SeriesKind::Counter,
        "Calls of a filter, one per batch",
        |filter| filter.calls,
    ),
];

fn filter_families(paths: &[PathFigures]) -> Vec<MetricFamily> {
    let mut counts = FILTER_FAMILIES
        .map(|(name, unit, kind, help, of)| (MetricFamily::new(name, unit, kind, help), of));
    let mut busy = MetricFamily::new(
        "streamline_filter_busy",
        Unit::Seconds,
        SeriesKind::Counter,
        "Time spent in a filter, where it is measured",
    );
    let mut dropped = MetricFamily::new(
        "streamline_filter_dropped",
        Unit::None,
        SeriesKind::Counter,
        "Blocks that a filter dropped, by reason",
    );
    for path in paths {
        for filter in &path.counters.filters {
            // The families of rings count the ends of a ring.
            if NodeName::from(filter.name.as_str()).is_ring() {
                continue;
            }
            let space = path.nodes.get(filter.node).map_or("", |node| node.space.as_str());
            let labels =
                &[("path", path.name.as_str()), ("filter", filter.name.as_str()), ("space", space)];
            counts.iter_mut().for_each(|(family, of)| family.add_count(labels, of(filter)));
            if path.is_timed {
                busy.add(labels, SeriesValue::Measure(ns_to_seconds(filter.busy_ns)));
            }
            add_losses(&mut dropped, labels, &filter.lost);
        }
    }
    counts.into_iter().map(|(family, _)| family).chain([busy, dropped]).collect()
}

/// A family of metrics about rings: its name, kind and help text, and the function that computes
/// the value for a ring.
type RingFamily = (&'static str, SeriesKind, &'static str, fn(&Edge) -> u64);

/// Families of ring counters.
const RING_FAMILIES: [RingFamily; 3] = [
    ("streamline_ring_put", SeriesKind::Counter, "Blocks put into a ring", |edge| edge.put.blocks),
    ("streamline_ring_taken", SeriesKind::Counter, "Blocks taken out of a ring", |edge| {
        edge.taken.blocks
    }),
    ("streamline_ring_resident", SeriesKind::Gauge, "Blocks in a ring now", |edge| {
        edge.resident.blocks
    }),
];

fn edge_families(paths: &[PathFigures]) -> Vec<MetricFamily> {
    let mut counts = RING_FAMILIES
        .map(|(name, kind, help, of)| (MetricFamily::new(name, Unit::Blocks, kind, help), of));
    let mut dropped = MetricFamily::new(
        "streamline_edge_dropped",
        Unit::None,
        SeriesKind::Counter,
        "Blocks dropped between two nodes, by reason",
    );
    let mut capacity = MetricFamily::new(
        "streamline_ring_capacity",
        Unit::Blocks,
        SeriesKind::Gauge,
        "Capacity of a ring between two spaces now",
    );
    let mut fill = MetricFamily::new(
        "streamline_ring_fill",
        Unit::Ratio,
        SeriesKind::Maximum,
        "Fill of a ring between two spaces, from 0 to 1",
    );
    for path in paths {
        for edge in &path.counters.edges {
            let (from, to) = path.end_names(edge);
            let labels = &[("path", path.name.as_str()), ("from", from), ("to", to)];
            if !["call", "back edge"].contains(&edge.kind.as_str()) {
                counts.iter_mut().for_each(|(family, of)| family.add_count(labels, of(edge)));
            }
            add_losses(&mut dropped, labels, &edge.lost);
        }
        for ring in path.ring_fills() {
            let labels = &[("path", path.name.as_str()), ("from", ring.from), ("to", ring.to)];
            capacity.add_count(labels, ring.room);
            fill.add(labels, SeriesValue::Measure(ring.fill_ratio()));
        }
    }
    counts.into_iter().map(|(family, _)| family).chain([dropped, capacity, fill]).collect()
}

fn latency_families(paths: &[PathFigures]) -> Vec<MetricFamily> {
    let mut late = MetricFamily::new(
        "streamline_latency_late",
        Unit::Blocks,
        SeriesKind::Counter,
        "Blocks that took longer to a sink than the request allows",
    );
    let mut worst = MetricFamily::new(
        "streamline_latency_worst",
        Unit::Seconds,
        SeriesKind::Maximum,
        "Longest time of a block from its source to a sink",
    );
    for path in paths {
        for sink in path.counters.latency.iter().flat_map(|latency| &latency.sinks) {
            let labels = &[("path", path.name.as_str()), ("sink", sink.name.as_str())];
            late.add_count(labels, sink.exceeded);
            worst.add(labels, SeriesValue::Measure(ns_to_seconds(sink.worst_ns)));
        }
    }
    vec![late, worst]
}

/// Adds losses by reason. A reason without a counter is omitted.
fn add_losses(family: &mut MetricFamily, labels: &[(&'static str, &str)], lost: &[Loss]) {
    for loss in lost {
        let Some(blocks) = loss.blocks else { continue };
        let mut labels = labels.to_vec();
        labels.push(("reason", &loss.why));
        family.add_count(&labels, blocks);
    }
}

const fn sum_amounts(taken: Amount, made: Amount) -> Amount {
    Amount {
        blocks: taken.blocks.saturating_add(made.blocks),
        bytes: taken.bytes.saturating_add(made.bytes),
    }
}

fn ns_to_seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
