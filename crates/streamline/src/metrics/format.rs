//! The two text formats of metrics: OpenMetrics and the Prometheus text format.

use super::families::metric_families;
use super::series::{MetricFamily, SeriesKind, SeriesValue, Unit};
use crate::figures::PathFigures;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::{Registry, Unit as EncodedUnit};
use std::fmt;
use std::fmt::Write as _;

/// Formats the metrics of these paths in OpenMetrics 1.0.
#[must_use]
pub fn to_open_metrics(paths: &[PathFigures]) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(ScrapeFamilies(metric_families(paths))));
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

/// Formats the metrics of these paths in version 0.0.4 of the Prometheus text format.
#[must_use]
pub fn to_text(paths: &[PathFigures]) -> String {
    let open = to_open_metrics(paths);
    let counters: Vec<&str> = open
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut text = String::with_capacity(open.len());
    for line in open.lines() {
        // In this format, the name of a counter includes the suffix of its samples.
        let described = ["# HELP ", "# TYPE "].into_iter().find_map(|kind| {
            let (name, rest) = line.strip_prefix(kind)?.split_once(' ')?;
            let total = if counters.contains(&name) { "_total" } else { "" };
            Some(format!("{kind}{name}{total} {rest}\n"))
        });
        match described {
            Some(described) => text.push_str(&described),
            None if line.starts_with('#') => {}
            None => {
                let _ = writeln!(text, "{line}");
            }
        }
    }
    text
}

/// The families of metrics for one reply to Prometheus.
#[derive(Debug)]
struct ScrapeFamilies(Vec<MetricFamily>);

impl Collector for ScrapeFamilies {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in &self.0 {
            let unit = match family.unit {
                Unit::None => None,
                Unit::Blocks => Some(EncodedUnit::Other("blocks".to_owned())),
                Unit::Bytes => Some(EncodedUnit::Bytes),
                Unit::Seconds => Some(EncodedUnit::Seconds),
                Unit::Ratio => Some(EncodedUnit::Other("ratio".to_owned())),
            };
            let kind = match family.kind {
                SeriesKind::Counter => MetricType::Counter,
                SeriesKind::Gauge | SeriesKind::Maximum => MetricType::Gauge,
            };
            let mut metric =
                encoder.encode_descriptor(family.name, family.help, unit.as_ref(), kind)?;
            for (labels, value) in &family.series {
                let mut series = metric.encode_family(labels)?;
                let none: Option<&Exemplar<NoLabelSet, f64>> = None;
                match (family.kind, value) {
                    (SeriesKind::Counter, SeriesValue::Count(n)) => {
                        series.encode_counter(n, none)?
                    }
                    (SeriesKind::Counter, SeriesValue::Measure(x)) => {
                        series.encode_counter(x, none)?
                    }
                    (_, SeriesValue::Count(n)) => series.encode_gauge(n)?,
                    (_, SeriesValue::Measure(x)) => series.encode_gauge(x)?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::PathState;
    use member::protocol::{Counters, Loss, Node, Source};
    use runtime::ledger::Amount;

    fn example_figures() -> PathFigures {
        let lost = vec![
            Loss { why: "ring \"0\"\n".to_owned(), blocks: Some(7) },
            Loss { why: "driver".to_owned(), blocks: None },
        ];
        let given = Amount { blocks: 12, bytes: 3400 };
        let source = Source { name: "rx".to_owned(), observed: None, given, lost };
        let counters =
            Counters { elapsed_ns: 1_500_000_000, sources: vec![source], ..Counters::default() };
        let node = |name: &str| Node {
            name: name.to_owned(),
            space: "kernel".to_owned(),
            copies: Vec::new(),
        };
        let (nodes, links) = (vec![node("rx")], Vec::new());
        let (name, uid, state) = ("web".to_owned(), 0, PathState::Running);
        PathFigures { name, uid, state, is_timed: false, nodes, links, counters }
    }

    #[test]
    fn open_metrics_have_help_type_unit_and_an_end() {
        let text = to_open_metrics(&[example_figures()]);
        for line in [
            "# TYPE streamline_source_given_bytes counter",
            "# UNIT streamline_source_given_bytes bytes",
            "streamline_source_given_bytes_total{path=\"web\",source=\"rx\"} 3400",
            "streamline_source_dropped_total\
             {path=\"web\",source=\"rx\",reason=\"ring \\\"0\\\"\\n\"} 7",
            "streamline_path_lost_blocks_total{path=\"web\"} 7",
            "streamline_path_elapsed_seconds{path=\"web\"} 1.5",
            "streamline_path_up{path=\"web\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n") && !text.contains("driver"), "{text}");
    }

    #[test]
    fn text_format_declares_counters_by_sample_name() {
        let text = to_text(&[example_figures()]);
        assert!(text.contains("# TYPE streamline_source_given_bytes_total counter\n"), "{text}");
        assert!(text.contains("# TYPE streamline_path_up gauge\n"), "{text}");
        assert!(!text.contains("# EOF") && !text.contains("# UNIT"), "{text}");
    }
}
