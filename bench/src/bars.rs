//! Charts of the results in the terminal: one per bench and unit, with a bar per row. A bar ends at
//! the median; a thin line continues it to the largest sample.

use crate::row::Row;
use std::fmt::Write as _;

/// Assumed width of the terminal in columns if its width is unknown.
const DEFAULT_COLUMNS: usize = 100;
/// Maximum width of a bar in columns.
const BAR_COLUMNS_MAX: usize = 60;
/// Minimum width of a bar in columns. A narrower terminal wraps the lines.
const BAR_COLUMNS_MIN: usize = 10;
/// Ratio of the largest to the smallest median above which bars are logarithmic.
const LOGARITHMIC_RATIO_MIN: f64 = 100.0;

/// Returns the charts of a bench for a terminal of this width, or of the default width if `columns`
/// is `None`.
pub(crate) fn draw_bars(bench: &str, rows: &[Row], columns: Option<usize>) -> String {
    let columns = columns.unwrap_or(DEFAULT_COLUMNS);
    let drawn = |row: &&Row| row.goal.is_none() && row.value.is_finite();
    let rows: Vec<&Row> = rows.iter().filter(drawn).collect();
    let mut units: Vec<&str> = Vec::new();
    for row in &rows {
        if !units.contains(&row.unit) {
            units.push(row.unit);
        }
    }
    let of = |unit: &str| rows.iter().copied().filter(|row| row.unit == unit).collect::<Vec<_>>();
    units.iter().map(|unit| format_unit_chart((bench, unit), &of(unit), columns)).collect()
}

fn format_unit_chart((bench, unit): (&str, &str), rows: &[&Row], columns: usize) -> String {
    let names: Vec<String> =
        rows.iter().map(|row| format!("{}: {}", row.row, row.candidate)).collect();
    let figures: Vec<String> = rows
        .iter()
        .map(|row| {
            let [low, high] = row.spread;
            format!(
                "{} ({} to {})",
                format_three_digits(row.value),
                format_three_digits(low),
                format_three_digits(high)
            )
        })
        .collect();
    let longest = |texts: &[String]| texts.iter().map(|text| text.chars().count()).max();
    let (name_width, figure_width) = (longest(&names).unwrap_or(0), longest(&figures).unwrap_or(0));
    let width = columns
        .saturating_sub(name_width + figure_width + 6)
        .clamp(BAR_COLUMNS_MIN, BAR_COLUMNS_MAX);
    let scale = BarScale::new(rows, width);
    let note = if scale.is_logarithmic { ", logarithmic" } else { "" };
    let mut out = format!("\n{bench}, {unit}{note}\n");
    for ((row, name), figure) in rows.iter().zip(&names).zip(&figures) {
        let bar = scale.format_bar(row);
        let _ = writeln!(out, "  {name:name_width$}  {bar:width$}  {figure}");
    }
    out
}

/// The scale of the bars of one chart: the width of a bar in columns, and the range of values that
/// it represents.
struct BarScale {
    width: usize,
    low: f64,
    high: f64,
    is_logarithmic: bool,
}

impl BarScale {
    fn new(rows: &[&Row], width: usize) -> Self {
        let values = || rows.iter().map(|row| row.value).filter(|value| *value > 0.0);
        let high = rows.iter().flat_map(|row| [row.value, row.spread[1]]).fold(0.0, f64::max);
        let (low, top) = (values().fold(f64::MAX, f64::min), values().fold(0.0, f64::max));
        let is_logarithmic = low > 0.0 && top / low >= LOGARITHMIC_RATIO_MIN;
        // Without the division, the smallest value of a logarithmic scale would have no bar.
        Self { width, low: if is_logarithmic { low / 2.0 } else { 0.0 }, high, is_logarithmic }
    }

    /// Returns the length of the bar for a value, in eighths of a column.
    fn length_in_eighths(&self, value: f64) -> usize {
        let share = match self.is_logarithmic {
            true => (value / self.low).max(1.0).ln() / (self.high / self.low).ln(),
            false => value / self.high,
        };
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        (share * (self.width * 8) as f64).round() as usize
    }

    fn format_bar(&self, row: &Row) -> String {
        const PARTIAL_BAR_CHARS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
        let eighths = self.length_in_eighths(row.value);
        let mut bar = "█".repeat(eighths / 8);
        bar.extend(PARTIAL_BAR_CHARS.get(eighths % 8).copied().filter(|part| *part != ' '));
        let end = self.length_in_eighths(row.spread[1]).div_ceil(8).min(self.width);
        let length = bar.chars().count();
        bar.extend(std::iter::repeat_n('─', end.saturating_sub(length)));
        bar
    }
}

/// Formats a number with three significant digits.
fn format_three_digits(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, value: f64, spread: [f64; 2], unit: &'static str) -> Row {
        Row {
            bench: "chain",
            row: name.to_owned(),
            candidate: "calls",
            reference: "calls",
            value,
            unit,
            ratio: 1.0,
            n: 9,
            spread,
            sentinel_ns: 100.0,
            goal: None,
            target: None,
            x: f64::NAN,
        }
    }

    #[test]
    fn bars_show_the_median_the_largest_sample_and_the_unit() {
        let rows = [
            row("one", 10.0, [9.0, 20.0], "ns"),
            row("eight", 5.0, [5.0, 5.0], "ns"),
            row("x", 1.0, [1.0, 1.0], "MB/s"),
        ];
        let drawn = draw_bars("chain", &rows, Some(61));
        let lines: Vec<&str> = drawn.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(lines[0], "chain, ns");
        assert_eq!(lines[1].matches('█').count(), lines[1].matches('─').count(), "{drawn}");
        assert_eq!(lines[1].matches('█').count(), 2 * lines[2].matches('█').count(), "{drawn}");
        assert!(lines[1].ends_with("10.0 (9.00 to 20.0)"), "{drawn}");
        assert!(lines[3] == "chain, MB/s" && lines.len() == 5, "{drawn}");
        assert!(lines.iter().all(|line| line.chars().count() <= 61), "{drawn}");
    }

    #[test]
    fn wide_ranges_are_logarithmic_and_every_bar_is_visible() {
        let rows = [row("a", 1e6, [1e6, 1e6], "ns"), row("b", 1.0, [1.0, 1.0], "ns")];
        let drawn = draw_bars("chain", &rows, None);
        assert!(drawn.contains("ns, logarithmic"), "{drawn}");
        let last = drawn.lines().last().unwrap();
        assert!(last.contains(['█', '▌', '▋', '▊', '▉']), "{drawn}");
    }
}
