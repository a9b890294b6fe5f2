//! A picture of throughput over message size, with memcpy where the data stays in memory.

use super::exit::Failure;
use super::line::Line;
use super::picture::{DrawingResult, color, digits, draw_legend, line_style};
use plotters::prelude::*;
use polyrail_program::size::human_size;
use std::collections::BTreeMap;

const SIZE: (u32, u32) = (960, 560);
/// Width of the legend, to the right of the chart.
const LEGEND: u32 = 170;

/// Draws throughput, on an axis from 0, over message size, on a logarithmic axis. `place` names
/// where it was measured. Without `with_memcpy` that line is left out: it is far above the lines of
/// a network, which it would flatten.
pub(super) fn svg(place: &str, lines: &[Line], with_memcpy: bool) -> Result<String, Failure> {
    let mut text = String::new();
    draw(&mut text, place, lines, with_memcpy).map_err(Failure::drawing)?;
    Ok(text)
}

/// Points of one series: size in bytes, GB/s.
type Points = Vec<(f64, f64)>;

fn draw(text: &mut String, place: &str, lines: &[Line], with_memcpy: bool) -> DrawingResult {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let series = series(lines, with_memcpy);
    let points = || series.iter().flat_map(|(_, points)| points);
    let smallest = points().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let largest = points().map(|point| point.0).fold(0.0, f64::max);
    let fastest = points().map(|point| point.1).fold(0.0, f64::max);
    let sizes = (smallest / 1.2..largest * 1.2).log_scale().base(2.0);
    let top = fastest * 1.1;
    let digits = digits(top);
    let (area, legend) = root.split_horizontally(SIZE.0 - LEGEND);
    let mut chart = ChartBuilder::on(&area)
        .caption(format!("polyrail perf: throughput on {place}"), ("sans-serif", 22))
        .margin(16)
        .x_label_area_size(48)
        .y_label_area_size(56)
        .build_cartesian_2d(sizes, 0.0..top)?;
    chart
        .configure_mesh()
        .x_desc("bytes of a request")
        .y_desc("GB/s")
        .x_labels(24)
        .x_label_formatter(&|bytes| human_size(bytes.round() as u64))
        .y_label_formatter(&|rate| format!("{rate:.digits$}"))
        .light_line_style(WHITE)
        .draw()?;
    for (index, (name, points)) in series.iter().enumerate() {
        let style = line_style(if name == MEMCPY { BLACK } else { color(index) });
        chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
        chart.draw_series(points.iter().map(|&point| Circle::new(point, 3, style)))?;
        draw_legend(&legend, index, name, style)?;
    }
    root.present()?;
    Ok(())
}

const MEMCPY: &str = "memcpy";

/// Returns the series in the order of `lines`; `with_memcpy`, memcpy is last, for each size the
/// median of all its measurements.
fn series(lines: &[Line], with_memcpy: bool) -> Vec<(String, Points)> {
    let mut series: Vec<(String, Points)> = Vec::new();
    let mut memcpy = BTreeMap::<u64, Vec<f64>>::new();
    for line in lines {
        let point = (line.shape.message_size as f64, line.measured.all.gigabytes_per_second);
        let name = line.series();
        match series.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push(point),
            None => series.push((name, vec![point])),
        }
        let copied = line.measured.memcpy_gigabytes_per_second;
        memcpy.entry(line.shape.message_size).or_default().push(copied);
    }
    let median = |(size, mut rates): (u64, Vec<f64>)| {
        rates.sort_by(f64::total_cmp);
        (size as f64, rates[rates.len() / 2])
    };
    if with_memcpy {
        series.push((MEMCPY.to_owned(), memcpy.into_iter().map(median).collect()));
    }
    for (_, points) in &mut series {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    series
}
