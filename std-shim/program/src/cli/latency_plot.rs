//! A picture of latencies: a histogram for each line of the table.

use super::exit::Failure;
use super::line::Line;
use super::picture::{DrawingResult, color, draw_legend, line_style};
use plotters::prelude::*;
use polyrail_program::perf::{Latency, LatencyCount};
use polyrail_program::size::human_size;
use std::collections::BTreeMap;

const SIZE: (u32, u32) = (960, 560);
/// Width of the legend, to the right of the chart.
const LEGEND: u32 = 220;

/// Bins for each power of ten: a bin's end is 12% longer than its begin.
const BINS: f64 = 20.0;

/// Draws histograms: the share of round trips in each bin, both on logarithmic axes, so that rare
/// long ones are visible. `place` names where they were measured.
pub(super) fn svg(place: &str, lines: &[Line<Latency>]) -> Result<String, Failure> {
    let mut text = String::new();
    draw(&mut text, place, lines).map_err(Failure::drawing)?;
    Ok(text)
}

/// Points of an outline: microseconds, percent.
type Points = Vec<(f64, f64)>;

fn draw(text: &mut String, place: &str, lines: &[Line<Latency>]) -> DrawingResult {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (area, legend) = root.split_horizontally(SIZE.0 - LEGEND);
    let most = lines.iter().map(|line| line.measured.round_trips).max().unwrap_or(1);
    // Below the share of a single round trip.
    let floor = 50.0 / most.max(1) as f64;
    let outlines: Vec<Points> =
        lines.iter().map(|line| outline(&line.measured.counts, floor)).collect();
    let times = || outlines.iter().flatten().map(|point| point.0);
    let (shortest, longest) = (times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max));
    let mut chart = ChartBuilder::on(&area)
        .caption(format!("polyrail perf: latency on {place}"), ("sans-serif", 22))
        .margin(16)
        .x_label_area_size(48)
        .y_label_area_size(64)
        .build_cartesian_2d(
            (shortest / 1.2..longest * 1.2).log_scale(),
            (floor..200.0).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc("microseconds")
        .y_desc("percent of the round trips")
        .x_label_formatter(&|time| format!("{time}"))
        .y_label_formatter(&|share| format!("{share}"))
        .light_line_style(WHITE)
        .draw()?;
    for (index, (line, points)) in lines.iter().zip(outlines).enumerate() {
        let style = line_style(color(index));
        chart.draw_series(LineSeries::new(points, style))?;
        let size = human_size(line.shape.message_size);
        draw_legend(&legend, index, &format!("{}, {size}", line.series()), style)?;
    }
    root.present()?;
    Ok(())
}

/// Returns the outline of the bars of a histogram. Bins without round trips are at `floor`.
fn outline(counts: &[LatencyCount], floor: f64) -> Points {
    let mut bins = BTreeMap::<i32, u64>::new();
    for &LatencyCount { ns, round_trips } in counts {
        // A clock may have measured nothing.
        let us = (ns / 1e3).max(1e-3);
        *bins.entry((us.log10() * BINS).floor() as i32).or_default() += round_trips;
    }
    let all = bins.values().sum::<u64>() as f64;
    let (Some((&first, _)), Some((&last, _))) = (bins.first_key_value(), bins.last_key_value())
    else {
        return Points::new();
    };
    let edge = |bin: i32| 10_f64.powf(f64::from(bin) / BINS);
    let bar = |bin: i32| {
        let share = bins.get(&bin).map_or(floor, |&count| 100.0 * count as f64 / all);
        [(edge(bin), share), (edge(bin + 1), share)]
    };
    let bars = (first..=last).flat_map(bar);
    [(edge(first), floor)].into_iter().chain(bars).chain([(edge(last + 1), floor)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outline_has_a_bar_for_each_bin_and_gaps_between_them() {
        let count = |us: f64, round_trips| LatencyCount { ns: 1e3 * us, round_trips };
        // Two in the first bin, none in the second, one in the third.
        let points = outline(&[count(1.0, 1), count(1.1, 2), count(1.3, 1)], 0.5);
        let edges = [0.0, 0.0, 0.05, 0.05, 0.1, 0.1, 0.15, 0.15].map(|power| 10_f64.powf(power));
        let shares = [0.5, 75.0, 75.0, 0.5, 0.5, 25.0, 25.0, 0.5];
        assert_eq!(points.len(), 8);
        for ((point, edge), share) in points.iter().zip(edges).zip(shares) {
            assert!((point.0 - edge).abs() < 1e-9 && point.1 == share, "{points:?}");
        }
        assert_eq!(outline(&[], 0.5), []);
    }
}
