//! Charts of the results: one per bench, with a panel for each unit. If a bench has a variable,
//! each candidate is a curve over that variable, with the spread of its samples; otherwise, each
//! row is a bar.

use crate::row::Row;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;

/// The benches with a variable, each with the name of the variable on the x axis.
const VARIABLE_NAMES: &[(&str, &str)] = &[
    ("batching", "requests for a burst, or \u{b5}s of delay"),
    ("capture", "readers of the stream, frames of 64 B"),
    ("chain", "filters in a row"),
    ("edits", "bytes of a frame"),
    ("lazy", "bytes of a block"),
    ("moderation", "blocks for an event (T_b)"),
    ("mpipe", "bytes of a block"),
    ("peek", "bytes of a block"),
    ("pipe", "bytes of a block"),
    ("rounds", "round"),
    ("scale", "bytes of the ring"),
    ("share", "users, a line each"),
    ("splice", "bytes of a block"),
];

/// Width of a chart in pixels.
const CHART_WIDTH: u32 = 960;
/// Height of a curve panel in pixels.
const PANEL_HEIGHT: u32 = 420;
/// Height of a bar in pixels.
const BAR_HEIGHT: u32 = 22;
/// Height in pixels of the margin around bars.
const BARS_MARGIN: u32 = 56;
/// Width of curve labels in pixels.
const CURVE_LABEL_WIDTH: u32 = 230;
/// Width of bar labels in pixels.
const BAR_LABEL_WIDTH: u32 = 400;
/// Ratio of the largest to the smallest value above which an axis is logarithmic.
const LOGARITHMIC_RATIO_MIN: f64 = 12.0;

type DrawResult = Result<(), Box<dyn std::error::Error>>;
type DrawingSurface<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Draws the rows of a bench into `DIR/NAME.svg`.
pub(crate) fn draw_chart(folder: &Path, bench: &str, rows: &[Row]) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|why| why.to_string())?;
    let panels = panels(rows);
    let height: u32 = panels.iter().map(Panel::panel_height).sum();
    if height == 0 {
        return Ok(());
    }
    let file = folder.join(format!("{bench}.svg"));
    let area = SVGBackend::new(&file, (CHART_WIDTH, height)).into_drawing_area();
    let drawn = || -> DrawResult {
        area.fill(&WHITE)?;
        let mut rest = area.clone();
        for panel in &panels {
            let (this, below) = rest.split_vertically(panel.panel_height());
            match panel {
                Panel::Lines { unit, lines } => draw_curves(&this, bench, unit, lines)?,
                Panel::Bars { unit, bars } => draw_bars(&this, bench, unit, bars)?,
            }
            rest = below;
        }
        area.present()?;
        Ok(())
    };
    drawn().map_err(|why| why.to_string())
}

/// A curve: its name, and its points (x, median, minimum, maximum).
struct Curve {
    name: String,
    points: Vec<[f64; 4]>,
}

/// A bar of a chart: its name, and the median, minimum and maximum of its values.
struct Bar {
    name: String,
    value: f64,
    spread: [f64; 2],
}

/// Colors that can be distinguished on white.
const COLORS: [(u8, u8, u8); 14] = [
    (0xd6, 0x27, 0x28),
    (0x1f, 0x77, 0xb4),
    (0x2c, 0xa0, 0x2c),
    (0xff, 0x7f, 0x0e),
    (0x94, 0x67, 0xbd),
    (0x8c, 0x56, 0x4b),
    (0x17, 0xbe, 0xcf),
    (0xe3, 0x77, 0xc2),
    (0x7f, 0x7f, 0x7f),
    (0xbc, 0xbd, 0x22),
    (0x00, 0x00, 0x00),
    (0x00, 0x64, 0x50),
    (0x1a, 0x1a, 0x8c),
    (0xb0, 0x8a, 0x00),
];

fn curve_color(place: usize) -> RGBColor {
    let (red, green, blue) = COLORS[place % COLORS.len()];
    RGBColor(red, green, blue)
}

/// A panel of a chart: the curves or the bars of all rows with one unit.
enum Panel<'r> {
    Lines { unit: &'r str, lines: Vec<Curve> },
    Bars { unit: &'r str, bars: Vec<Bar> },
}

impl Panel<'_> {
    fn panel_height(&self) -> u32 {
        match self {
            Self::Lines { .. } => PANEL_HEIGHT,
            Self::Bars { bars, .. } => {
                BARS_MARGIN + BAR_HEIGHT * u32::try_from(bars.len()).unwrap_or(0)
            }
        }
    }
}

/// Returns the panels of a chart, one for each unit, in the order of the rows. A panel contains
/// curves or, if there are no curves, bars. Omits goal rows, which repeat other rows.
fn panels(rows: &[Row]) -> Vec<Panel<'_>> {
    let of = |row: &&Row| row.goal.is_none() && row.value.is_finite();
    let rows: Vec<&Row> = rows.iter().filter(of).collect();
    let mut units: Vec<&str> = Vec::new();
    for row in &rows {
        if !units.contains(&row.unit) {
            units.push(row.unit);
        }
    }
    let mut panels = Vec::new();
    for unit in &units {
        let lines =
            curves(rows.iter().copied().filter(|row| row.unit == *unit && row.x.is_finite()));
        if !lines.is_empty() {
            panels.push(Panel::Lines { unit, lines });
        }
    }
    // A benchmark with a variable has no bars.
    if panels.is_empty() {
        for unit in &units {
            let of = rows.iter().filter(|row| row.unit == *unit);
            let bar = |row: &&Row| Bar {
                name: format!("{}: {}", row.row, row.candidate),
                value: row.value,
                spread: row.spread,
            };
            panels.push(Panel::Bars { unit, bars: of.map(bar).collect() });
        }
    }
    panels
}

/// Returns the curves of a chart, ordered by their last value, the largest first. Returns no curves
/// if the bench has no variable. If a candidate has several values at one x, each of its curves is
/// also named by the rest of the row's name.
fn curves<'r>(rows: impl Iterator<Item = &'r Row>) -> Vec<Curve> {
    let rows: Vec<&Row> = rows.filter(|row| row.value > 0.0).collect();
    let same = |one: &Row, other: &Row| one.candidate == other.candidate && one.x == other.x;
    let several = |who: &Row| {
        let mut of = rows.iter().filter(|row| row.candidate == who.candidate);
        of.any(|one| rows.iter().filter(|other| same(one, other)).count() > 1)
    };
    // Parts that all names have in common do not distinguish curves.
    let apart: Vec<&Row> = rows.iter().copied().filter(|row| several(row)).collect();
    let common = |part: &str| apart.iter().all(|row| name_without_variable(row).contains(&part));
    let mut lines: Vec<Curve> = Vec::new();
    for row in &rows {
        let mut parts = vec![row.candidate];
        if several(row) {
            parts.extend(name_without_variable(row).into_iter().filter(|part| !common(part)));
        }
        let name = parts.join(", ");
        let [low, high] = row.spread;
        let point = [row.x, row.value, low.max(row.value / 100.0), high];
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Curve { name, points: vec![point] }),
        }
    }
    for line in &mut lines {
        line.points.sort_by(|one, other| one[0].total_cmp(&other[0]));
    }
    let end = |line: &Curve| line.points.last().map_or(0.0, |point| point[1]);
    lines.sort_by(|one, other| end(other).total_cmp(&end(one)));
    let varied = lines.iter().any(|line| line.points.len() > 1);
    if varied { lines } else { Vec::new() }
}

/// Returns the parts of a row's name, except the part that contains the value of the bench's
/// variable.
fn name_without_variable(row: &Row) -> Vec<&str> {
    let is_varied = |part: &&str| {
        let words: Vec<&str> = part.split(' ').collect();
        let number = words.iter().find_map(|word| word.parse::<f64>().ok());
        let unit = if words.contains(&"KB") { 1024.0 } else { 1.0 };
        number.is_some_and(|number| number * unit == row.x)
    };
    row.row.split(", ").filter(|part| !is_varied(part)).collect()
}

/// An axis of a chart: the range of its values, and whether it is linear or logarithmic.
struct Axis {
    logarithmic: bool,
    low: f64,
    high: f64,
}

impl Axis {
    /// Creates an axis that covers `values`. The axis is logarithmic if all values are positive and
    /// their ratio exceeds [`LOGARITHMIC_RATIO_MIN`].
    fn new(values: impl Iterator<Item = f64> + Clone) -> Self {
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.fold(f64::NEG_INFINITY, f64::max);
        Self { logarithmic: low > 0.0 && high / low > LOGARITHMIC_RATIO_MIN, low, high }
    }

    fn position(&self, value: f64) -> f64 {
        if self.logarithmic { value.log2() } else { value }
    }

    /// Returns the range of positions on the axis, with a margin at both ends.
    fn range(&self) -> std::ops::Range<f64> {
        let (low, high) = (self.position(self.low), self.position(self.high));
        let margin = ((high - low) * 0.04).max(1e-9);
        low - margin..high + margin
    }

    /// Returns the axis, extended to 0 if it is linear.
    fn extended_to_zero(self) -> Self {
        if self.logarithmic { self } else { Self { low: 0.0, ..self } }
    }

    /// Returns the values at which the axis has labels. A logarithmic axis has labels at 1, 2 and 5
    /// times each power of ten or, if it is long, only at the powers. A linear axis has a few
    /// labels, at multiples of a step.
    fn axis_label_values(&self) -> Vec<f64> {
        let mut values = Vec::new();
        if self.logarithmic {
            let steps: &[f64] =
                if self.high / self.low > 3000.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let first = self.low.log10().floor() as i32;
            let last = self.high.log10().ceil() as i32;
            for power in first..=last {
                values.extend(steps.iter().map(|step| step * 10_f64.powi(power)));
            }
        } else {
            let step = ((self.high - self.low) / 4.0).max(1e-9);
            let power = 10_f64.powi(step.log10().floor() as i32);
            let steps = [1.0, 2.0, 5.0, 10.0].map(|of| of * power);
            let step = steps.into_iter().find(|of| *of >= step).unwrap_or(step);
            let first = (self.low / step).floor() as i32;
            let last = (self.high / step).ceil() as i32;
            values.extend((first..=last).map(|number| f64::from(number) * step));
        }
        let range = self.range();
        values.retain(|value| range.contains(&self.position(*value)));
        values
    }
}

/// Formats a value for a chart with few digits. Multiples of 1024 get the suffix `K` or `M`.
fn format_value(value: f64) -> String {
    let powers = [(1024.0 * 1024.0, "M"), (1024.0, "K")];
    for (power, letter) in powers {
        if value >= power && (value / power).fract() == 0.0 {
            return format!("{}{letter}", value / power);
        }
    }
    let digits = match value.abs() {
        large if large >= 10.0 => 0,
        small if small < 0.1 => 4,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    let text = if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    if text.len() < 5 || text.contains('.') {
        return text.to_owned();
    }
    // Groups thousands.
    let (head, tail) = text.split_at(text.len() - 3);
    format!("{head} {tail}")
}

fn draw_curves(area: &DrawingSurface<'_>, bench: &str, unit: &str, lines: &[Curve]) -> DrawResult {
    let points = || lines.iter().flat_map(|line| &line.points);
    let x = Axis::new(points().map(|point| point[0]));
    let y = Axis::new(points().flat_map(|point| [point[2], point[3]])).extended_to_zero();
    let (left, right, top, bottom) =
        (72.0, f64::from(CHART_WIDTH - CURVE_LABEL_WIDTH - 16), 44.0, f64::from(PANEL_HEIGHT - 56));
    let (across, up) = (x.range(), y.range());
    let part = |range: &std::ops::Range<f64>, at| (at - range.start) / (range.end - range.start);
    let column = |value| (left + part(&across, x.position(value)) * (right - left)) as i32;
    let line = |value| (bottom - part(&up, y.position(value)) * (bottom - top)) as i32;
    let text = ("sans-serif", 13).into_font().into_text_style(area);
    let grid = BLACK.mix(0.12);
    let mut places: Vec<f64> = points().map(|point| point[0]).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let mut free = i32::MIN;
    for value in places {
        let at = column(value);
        area.draw(&PathElement::new([(at, top as i32), (at, bottom as i32)], grid))?;
        // If two ticks are close together, only the first has a label.
        if at >= free {
            let style = text.pos(Pos::new(HPos::Center, VPos::Top));
            area.draw_text(&format_value(value), &style, (at, bottom as i32 + 8))?;
            free = at + 44;
        }
    }
    for value in y.axis_label_values() {
        let at = line(value);
        area.draw(&PathElement::new([(left as i32, at), (right as i32, at)], grid))?;
        let style = text.pos(Pos::new(HPos::Right, VPos::Center));
        area.draw_text(&format_value(value), &style, (left as i32 - 8, at))?;
    }
    let middle = f64::midpoint(left, right) as i32;
    let title = ("sans-serif", 18).into_font().into_text_style(area);
    let centre = Pos::new(HPos::Center, VPos::Top);
    area.draw_text(&format!("{bench}: {unit}"), &title.pos(centre), (middle, 12))?;
    let axis = VARIABLE_NAMES.iter().find(|(name, _)| *name == bench).map_or("", |(_, axis)| axis);
    area.draw_text(axis, &text.pos(centre), (middle, bottom as i32 + 30))?;
    for (place, Curve { name, points }) in lines.iter().enumerate() {
        let colour = curve_color(place);
        let at = |point: &[f64; 4]| (column(point[0]), line(point[1]));
        area.draw(&PathElement::new(
            points.iter().map(at).collect::<Vec<_>>(),
            colour.stroke_width(2),
        ))?;
        for point in points {
            let ends = [point[2], point[3]].map(|value| (column(point[0]), line(value)));
            area.draw(&PathElement::new(ends, colour.mix(0.5)))?;
            area.draw(&Circle::new(at(point), 3, colour.filled()))?;
        }
        let (begin, height) = (right as i32 + 16, 56 + 20 * i32::try_from(place)?);
        let ends = [(begin, height), (begin + 22, height)];
        area.draw(&PathElement::new(ends, colour.stroke_width(3)))?;
        let style = text.pos(Pos::new(HPos::Left, VPos::Center));
        area.draw_text(name.as_str(), &style, (begin + 30, height))?;
    }
    Ok(())
}

fn draw_bars(area: &DrawingSurface<'_>, bench: &str, unit: &str, bars: &[Bar]) -> DrawResult {
    let most = bars.iter().map(|bar| bar.spread[1].max(bar.value)).fold(0.0, f64::max).max(1e-9);
    let title = ("sans-serif", 18).into_font().into_text_style(area);
    let centre = Pos::new(HPos::Center, VPos::Top);
    area.draw_text(&format!("{bench}: {unit}"), &title.pos(centre), (CHART_WIDTH as i32 / 2, 14))?;
    let text = ("sans-serif", 13).into_font().into_text_style(area);
    let first = BAR_LABEL_WIDTH as i32;
    let width = f64::from(CHART_WIDTH - BAR_LABEL_WIDTH - 90);
    let at = |value: f64| first + (value.max(0.0) / most * width) as i32;
    let mut colours: Vec<&str> = Vec::new();
    for (number, bar) in bars.iter().enumerate() {
        let who = bar.name.rsplit(": ").next().unwrap_or("");
        let known = colours.iter().position(|known| *known == who);
        let colour = curve_color(known.unwrap_or(colours.len()));
        if known.is_none() {
            colours.push(who);
        }
        let top = 44 + BAR_HEIGHT as i32 * i32::try_from(number)?;
        let middle = top + BAR_HEIGHT as i32 / 2;
        let corners = [(first, top + 3), (at(bar.value), top + BAR_HEIGHT as i32 - 3)];
        area.draw(&Rectangle::new(corners, colour.mix(0.75).filled()))?;
        let ends = bar.spread.map(|value| (at(value), middle));
        area.draw(&PathElement::new(ends, BLACK.mix(0.6)))?;
        let right = text.pos(Pos::new(HPos::Right, VPos::Center));
        area.draw_text(&bar.name, &right, (first - 8, middle))?;
        let left = text.pos(Pos::new(HPos::Left, VPos::Center));
        let end = at(bar.spread[1].max(bar.value)) + 8;
        area.draw_text(&format_value(bar.value), &left, (end, middle))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_formatted_with_few_digits() {
        let all = [64.0, 65536.0, 4_194_304.0, 0.5, 0.25, 1000.0, 12_345.6, 0.005];
        let formatted = all.map(format_value);
        assert_eq!(formatted, ["64", "64K", "4M", "0.5", "0.25", "1000", "12 346", "0.005"]);
    }

    #[test]
    fn wide_range_is_logarithmic_with_round_values() {
        let axis = Axis::new([3.0, 40_000.0].into_iter());
        assert!(axis.logarithmic);
        assert_eq!(axis.axis_label_values(), [10.0, 100.0, 1000.0, 10_000.0]);
        let axis = Axis::new([3.0, 9.0].into_iter()).extended_to_zero();
        assert_eq!(axis.axis_label_values(), [0.0, 5.0]);
    }

    #[test]
    fn every_unit_has_a_panel() {
        let row = |candidate, unit, x, value| Row {
            unit,
            x,
            ..crate::replay::single_sample_row(String::new(), candidate, value, unit)
        };
        let rows = [
            row("a", "GB/s", 2.0, 1.0),
            row("a", "GB/s", 1.0, 2.0),
            row("a", "ns", 1.0, 9.0),
            row("a", "ns", 2.0, 8.0),
            row("b", "ns", f64::NAN, 1.0),
        ];
        let panels = panels(&rows);
        assert_eq!(panels.len(), 2);
        let Panel::Lines { lines, .. } = &panels[0] else { panic!("lines") };
        assert_eq!(lines[0].points.iter().map(|point| point[0]).collect::<Vec<_>>(), [1.0, 2.0]);
        assert!(matches!(super::panels(&rows[4..])[..], [Panel::Bars { .. }]));
    }

    #[test]
    fn settings_become_separate_curves() {
        let row = |setting: &str, x| Row {
            x,
            ..crate::replay::single_sample_row(format!("{x} B, {setting}"), "a", 1.0, "GB/s")
        };
        let rows = [
            row("1 reader, each", 4096.0),
            row("4 readers, each", 4096.0),
            row("4 readers, each", 128.0),
        ];
        let lines = curves(rows.iter());
        let names: Vec<_> = lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names, ["a, 1 reader", "a, 4 readers"]);
    }
}
