//! A picture of a measurement over time: goodput above, the bytes posted to each rail below, in a
//! chart for each, with a mark for each fault and rail event.

use super::exit::Failure;
use super::picture::{Drawing, DrawingResult, color, digits, draw_legend, line_style};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use polyrail_program::perf::{Cause, Mark, Timeline};

const WIDTH: u32 = 1180;
/// Width of the legend, to the right of the charts.
const LEGEND: u32 = 330;
/// Height of the chart of all rails.
const UPPER: u32 = 350;
/// Height of the charts of each rail together, unless a single one would have less than the
/// minimum.
const LOWER: u32 = 250;
const MIN_STRIP: u32 = 56;
/// Height of the labels of time, below a chart.
const TIME_LABELS: u32 = 40;
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
    let count = timeline.rails.len();
    let strip = (LOWER / count.max(1) as u32).max(MIN_STRIP);
    let size = (WIDTH, UPPER + strip * count.max(1) as u32 + TIME_LABELS);
    let root = SVGBackend::with_string(text, size).into_drawing_area();
    root.fill(&WHITE)?;
    let (area, legend) = root.split_horizontally(WIDTH - LEGEND);
    let (upper, mut lower) = area.split_vertically(UPPER);
    let rates: Vec<_> = timeline.rates().collect();
    let seconds = || rates.iter().map(|(end, ..)| end.as_secs_f64());
    let all: Points = seconds().zip(rates.iter().map(|(_, all, _)| *all)).collect();
    let of_rail = |rail| seconds().zip(rates.iter().map(move |(.., rails)| rails[rail]));
    let marks = shown(&timeline.marks);
    let caption = format!("polyrail perf: goodput on {place}");
    let end = timeline.end().as_secs_f64();
    let top = top_of(all.iter().map(|point| point.1));
    let axes = Axes { end, top, has_time: true };
    let mut builder = ChartBuilder::on(&upper);
    builder.caption(caption, ("sans-serif", 22));
    draw_chart(&mut builder, &axes, &marks, "all rails, GB/s", &all, BLACK)?;
    // Rails that share the work evenly have the same rate, so lines in one chart would cover each
    // other.
    let top = top_of(rates.iter().flat_map(|(.., rails)| rails.iter().copied()));
    for rail in 0..count {
        let is_last = rail + 1 == count;
        let axes = Axes { end, top, has_time: is_last };
        let (this, rest) =
            lower.split_vertically(if is_last { strip + TIME_LABELS } else { strip });
        let points: Points = of_rail(rail).collect();
        let name = format!("rail {rail}");
        draw_chart(&mut ChartBuilder::on(&this), &axes, &marks, &name, &points, color(rail))?;
        lower = rest;
    }
    draw_legend(&legend, 0, "all rails: acknowledged", line_style(BLACK))?;
    for (index, name) in timeline.rails.iter().enumerate() {
        draw_legend(&legend, index + 1, &format!("{name}: posted"), line_style(color(index)))?;
    }
    list_marks(&legend, &marks, timeline.marks.len() - marks.len())?;
    root.present()?;
    Ok(())
}

/// The axes of a chart: time from 0 to `end` in seconds, and rates from 0 to `top` in GB/s.
struct Axes {
    end: f64,
    top: f64,
    /// Whether the axis of time has labels. The chart then also has the space for them.
    has_time: bool,
}

/// Returns the top of an axis for these rates.
fn top_of(rates: impl Iterator<Item = f64>) -> f64 {
    1.1 * rates.fold(1e-3, f64::max)
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

/// Draws a line over the whole time. Black is the line of all rails, whose chart is the
/// large one: it has the numbers of the marks.
fn draw_chart(
    builder: &mut ChartBuilder<'_, '_, SVGBackend<'_>>,
    &Axes { end, top, has_time }: &Axes,
    marks: &[&Mark],
    name: &str,
    points: &Points,
    color: RGBColor,
) -> DrawingResult {
    let mut chart = builder
        .margin_left(16)
        .margin_right(16)
        .margin_top(6)
        .x_label_area_size(if has_time { TIME_LABELS } else { 0 })
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..end.max(1e-9), 0.0..top)?;
    let digits = digits(top).max(2);
    let mut mesh = chart.configure_mesh();
    if has_time {
        mesh.x_desc("seconds");
    }
    mesh.y_desc(name)
        .y_labels(if color == BLACK { 10 } else { 3 })
        .x_label_formatter(&|seconds| format!("{seconds:.2}"))
        .y_label_formatter(&|rate| format!("{rate:.digits$}"))
        // By default the size of letters depends on the height of a chart.
        .label_style(("sans-serif", 12))
        .axis_desc_style(("sans-serif", 13))
        .light_line_style(WHITE)
        .draw()?;
    chart.draw_series(LineSeries::new(points.iter().copied(), line_style(color)))?;
    draw_marks(&mut chart, marks, top, color == BLACK)
}

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Draws a vertical line for each mark: solid where a fault or failure begins, dashed where it
/// ends. The mark's number, if it is shown, is beside the line, at another height than those of its
/// neighbours.
fn draw_marks(
    chart: &mut Chart<'_, '_>,
    marks: &[&Mark],
    top: f64,
    are_numbered: bool,
) -> DrawingResult {
    for (number, mark) in (1..).zip(marks) {
        let at = mark.at.as_secs_f64();
        let ends = [(at, 0.0), (at, top)];
        let style = BLACK.mix(0.6).stroke_width(1);
        if mark.begins {
            chart.draw_series(LineSeries::new(ends, style))?;
        } else {
            chart.draw_series(DashedLineSeries::new(ends, 4, 4, style))?;
        }
        if !are_numbered {
            continue;
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
            ..Timeline::default()
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
        // Each rail has a chart: their rates are the same for most of the time.
        for name in ["rail 0\n", "rail 1\n"] {
            assert!(picture.contains(name), "{name:?} is not in {picture}");
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
