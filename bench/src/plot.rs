//! A picture per bench: every candidate a line over what is varied, values on a logarithmic axis.

use crate::row::Row;
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

/// Draws the rows of a bench into `DIR/NAME.svg`.
pub(crate) fn draw(folder: &Path, bench: &str, rows: &[Row]) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|why| why.to_string())?;
    let mut lines: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.goal.is_none() && row.x.is_finite()) {
        lines.entry(row.candidate).or_default().push((row.x, row.value));
    }
    lines.retain(|_, points| points.len() > 1);
    let all = || lines.values().flatten();
    let span = |pick: fn(&(f64, f64)) -> f64| {
        let low = all().map(pick).fold(f64::INFINITY, f64::min);
        (low, all().map(pick).fold(f64::NEG_INFINITY, f64::max))
    };
    let ((x0, x1), (y0, y1)) = (span(|p| p.0), span(|p| p.1));
    if !(x0 < x1 && y0 > 0.0) {
        return Ok(());
    }
    let unit = rows.first().map_or("", |row| row.unit);
    let file = folder.join(format!("{bench}.svg"));
    let area = SVGBackend::new(&file, (800, 500)).into_drawing_area();
    drawn(&area, bench, unit, &lines, (x0..x1, y0 / 2.0..y1 * 2.0)).map_err(|why| why.to_string())
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn drawn(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    bench: &str,
    unit: &str,
    lines: &BTreeMap<&str, Vec<(f64, f64)>>,
    (x, y): (std::ops::Range<f64>, std::ops::Range<f64>),
) -> Drawn {
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{bench} ({unit})"), ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(x, y.log_scale())?;
    chart.configure_mesh().draw()?;
    for (place, (name, points)) in lines.iter().enumerate() {
        let colour = Palette99::pick(place).to_rgba();
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], colour));
        chart.draw_series(points.iter().map(|p| Circle::new(*p, 3, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    area.present()?;
    Ok(())
}
