//! A picture of a measurement over time: goodput above, the bytes posted to each rail below, with a
//! mark for each fault and rail event.

use super::exit::Failure;
use super::picture::{Drawing, DrawingResult, color, draw_legend, line_style};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use polyrail_program::perf::{Cause, Mark, Timeline};

const SIZE: (u32, u32) = (1180, 640);
/// Width of the legend, to the right of the charts.
const LEGEND: u32 = 330;
/// Height of the chart of all rails; the chart of each rail has the rest.
const UPPER: u32 = 350;
/// Top of the list of marks, below the longest list of series, and the height of its lines.
const MARKS_Y: i32 = 340;
const MARK_LINE: i32 = 18;
/// Number of marks that fit into the list.
const LISTED: usize = 15;

/// Draws a timeline. `place` names where it was measured.
pub(super) fn svg(place: &str, timeline: &Timeline) -> Result<String, Failure> {
    let mut text = String::new();
    draw(&mut text, place, timeline).map_err(Failure::drawing)?;
    Ok(text)
}

/// Points of one series: seconds, GB/s.
type Points = Vec<(f64, f64)>;

fn draw(text: &mut String, place: &str, timeline: &Timeline) -> DrawingResult {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (area, legend) = root.split_horizontally(SIZE.0 - LEGEND);
    let (upper, lower) = area.split_vertically(UPPER);
    let rates: Vec<_> = timeline.rates().collect();
    let seconds = || rates.iter().map(|(end, ..)| end.as_secs_f64());
    let all = seconds().zip(rates.iter().map(|(_, all, _)| *all)).collect();
    let of_rail = |rail| seconds().zip(rates.iter().map(move |(.., rails)| rails[rail]));
    let marks = shown(&timeline.marks);
    let caption = format!("polyrail perf: goodput on {place}");
    let end = timeline.end().as_secs_f64();
    draw_chart(&upper, end, &marks, Some(&caption), "all rails, GB/s", &[(all, BLACK)])?;
    let colored = |rail| (of_rail(rail).collect(), color(rail));
    let rails: Vec<(Points, RGBColor)> = (0..timeline.rails.len()).map(colored).collect();
    draw_chart(&lower, end, &marks, None, "each rail, GB/s", &rails)?;
    draw_legend(&legend, 0, "all rails: acknowledged", line_style(BLACK))?;
    for (index, name) in timeline.rails.iter().enumerate() {
        draw_legend(&legend, index + 1, &format!("{name}: posted"), line_style(color(index)))?;
    }
    list_marks(&legend, &marks, timeline.marks.len() - marks.len())?;
    root.present()?;
    Ok(())
}

/// Returns the marks to list. If there are more than fit: only the marks of faults, and the first
/// failure and last return of each rail, since a rail may fail repeatedly while its fault lasts.
fn shown(marks: &[Mark]) -> Vec<&Mark> {
    if marks.len() <= LISTED {
        return marks.iter().collect();
    }
    let same = |mark: &Mark, other: &Mark| mark.cause == other.cause && mark.begins == other.begins;
    let is_shown = |index: usize| {
        let mark = &marks[index];
        let (before, after) = (&marks[..index], &marks[index + 1..]);
        let others = if mark.begins { before } else { after };
        matches!(mark.cause, Cause::Fault(_)) || !others.iter().any(|other| same(mark, other))
    };
    (0..marks.len())
        .filter(|&index| is_shown(index))
        .take(LISTED)
        .map(|index| &marks[index])
        .collect()
}

/// Draws lines over the whole time, with a vertical axis from 0.
fn draw_chart(
    area: &Drawing<'_>,
    end: f64,
    marks: &[&Mark],
    caption: Option<&str>,
    y_name: &str,
    lines: &[(Points, RGBColor)],
) -> DrawingResult {
    let rates = lines.iter().flat_map(|(points, _)| points).map(|point| point.1);
    let top = 1.1 * rates.fold(1e-3, f64::max);
    let mut builder = ChartBuilder::on(area);
    if let Some(caption) = caption {
        builder.caption(caption, ("sans-serif", 22));
    }
    let mut chart = builder
        .margin(16)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..end.max(1e-9), 0.0..top)?;
    chart
        .configure_mesh()
        .x_desc("seconds")
        .y_desc(y_name)
        .x_label_formatter(&|seconds| format!("{seconds:.2}"))
        .y_label_formatter(&|rate| format!("{rate:.2}"))
        .light_line_style(WHITE)
        .draw()?;
    for (points, color) in lines {
        chart.draw_series(LineSeries::new(points.iter().copied(), line_style(*color)))?;
    }
    draw_marks(&mut chart, marks, top)
}

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Draws a vertical line for each mark: solid where a fault or failure begins, dashed where it
/// ends. The mark's number is beside the line, at another height than those of its neighbours.
fn draw_marks(chart: &mut Chart<'_, '_>, marks: &[&Mark], top: f64) -> DrawingResult {
    for (number, mark) in (1..).zip(marks) {
        let at = mark.at.as_secs_f64();
        let ends = [(at, 0.0), (at, top)];
        let style = BLACK.mix(0.6).stroke_width(1);
        if mark.begins {
            chart.draw_series(LineSeries::new(ends, style))?;
        } else {
            chart.draw_series(DashedLineSeries::new(ends, 4, 4, style))?;
        }
        let height = top * (1.0 - 0.06 * ((number - 1) % 3) as f64);
        let text = Text::new(format!(" {number}"), (at, height), ("sans-serif", 12));
        chart.draw_series(std::iter::once(text))?;
    }
    Ok(())
}

/// Lists the marks by the numbers at their lines, and how many marks are left out.
fn list_marks(legend: &Drawing<'_>, marks: &[&Mark], more: usize) -> DrawingResult {
    let line = |(number, mark): (usize, &&Mark)| {
        format!("{number}  {:.3} s  {}", mark.at.as_secs_f64(), mark.text)
    };
    let mut lines: Vec<String> = (1..).zip(marks).map(line).collect();
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    for (line, text) in (0..).zip(lines) {
        legend.draw(&Text::new(text, (0, MARKS_Y + MARK_LINE * line), ("sans-serif", 12)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail::virtual_qp::RailId;
    use polyrail_program::perf::Sample;
    use std::time::Duration;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Two rails at 1 GB/s each; the second one stops in the middle.
    fn timeline(marks: usize) -> Timeline {
        let sample = |at: u64| {
            let second = 1_000_000 * (at - (at.clamp(300, 700) - 300));
            let first = 1_000_000 * at;
            Sample { at: ms(at), completed: first + second, rails: vec![first, second] }
        };
        let mark = |index: usize| Mark {
            at: ms(300 + 10 * index as u64),
            cause: Cause::Fault(index / 2),
            begins: index.is_multiple_of(2),
            text: format!("mark <{index}>"),
        };
        Timeline {
            rails: vec!["rail 0 (tx0)".into(), "rail 1 (tx1)".into()],
            samples: (0..=100).map(|i| sample(10 * i)).collect(),
            marks: (0..marks).map(mark).collect(),
            requests: 1,
        }
    }

    #[test]
    fn a_picture_has_a_line_for_each_rail_and_all_its_marks() {
        let picture = svg("the software NIC", &timeline(2)).unwrap();
        for words in [
            "goodput on the software NIC",
            "all rails: acknowledged",
            "rail 0 (tx0): posted",
            "rail 1 (tx1): posted",
            "1  0.300 s  mark &lt;0&gt;",
            "2  0.310 s  mark &lt;1&gt;",
            "seconds",
        ] {
            assert!(picture.contains(words), "{words:?} is not in {picture}");
        }
        // The three lines have a hundred points each; marks are shorter.
        let points = |line: &str| line.contains("<polyline") && line.matches(',').count() > 90;
        assert_eq!(picture.lines().filter(|line| points(line)).count(), 3);
    }

    #[test]
    fn marks_beyond_the_lists_room_are_counted() {
        let picture = svg("x", &timeline(LISTED + 3)).unwrap();
        assert!(picture.contains("and 3 more"));
    }

    #[test]
    fn a_rail_that_fails_repeatedly_shows_its_first_failure_and_last_return() {
        let mark = |at, cause, begins| Mark { at: ms(at), cause, begins, text: String::new() };
        let rail = |at, begins| mark(at, Cause::Rail(RailId::Data(2)), begins);
        let mut marks = vec![mark(0, Cause::Fault(0), true)];
        marks.extend((1..=20).map(|at| rail(at, at % 2 == 1)));
        marks.push(mark(30, Cause::Fault(0), false));
        marks.push(rail(31, true));
        marks.push(rail(32, false));
        let times = |marks: &[Mark]| shown(marks).iter().map(|mark| mark.at).collect::<Vec<_>>();
        assert_eq!(times(&marks), [0, 1, 30, 32].map(ms));
        assert_eq!(times(&marks[..LISTED]).len(), LISTED);
    }

    #[test]
    fn an_empty_timeline_is_an_empty_picture() {
        assert!(svg("x", &Timeline::default()).unwrap().starts_with("<svg"));
    }
}
