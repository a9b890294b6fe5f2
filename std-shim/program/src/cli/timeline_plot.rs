//! A measurement over time as a picture: goodput above, and below it what each rail was given, with marks
//! where something happened.

use super::exit::Failure;
use super::picture::{Drawing, DrawingResult, color, draw_legend, line_style};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use polyrail_program::perf::{Mark, Timeline};

const SIZE: (u32, u32) = (1180, 640);
/// Width of the legend, to the right of the charts.
const LEGEND: u32 = 330;
/// Height of the chart of all rails; the rest is the chart of each.
const UPPER: u32 = 350;
/// Where the list of marks begins, below the longest list of series, and the height of its lines.
const MARKS_Y: i32 = 340;
const MARK_LINE: i32 = 18;
/// Marks that the list has room for.
const LISTED: usize = 15;

/// Draws a timeline that was measured at `place`.
pub(super) fn svg(place: &str, timeline: &Timeline) -> Result<String, Failure> {
    let mut text = String::new();
    draw(&mut text, place, timeline).map_err(Failure::drawing)?;
    Ok(text)
}

/// Points of one line of the picture: seconds, GB/s.
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
    let caption = format!("polyrail perf: goodput on {place}");
    draw_chart(&upper, timeline, Some(&caption), "all rails, GB/s", &[(all, BLACK)])?;
    let colored = |rail| (of_rail(rail).collect(), color(rail));
    let rails: Vec<(Points, RGBColor)> = (0..timeline.rails.len()).map(colored).collect();
    draw_chart(&lower, timeline, None, "each rail, GB/s", &rails)?;
    draw_legend(&legend, 0, "all rails: acknowledged", line_style(BLACK))?;
    for (index, name) in timeline.rails.iter().enumerate() {
        draw_legend(&legend, index + 1, &format!("{name}: posted"), line_style(color(index)))?;
    }
    list_marks(&legend, &timeline.marks)?;
    root.present()?;
    Ok(())
}

/// Draws lines from 0 on, over the whole time.
fn draw_chart(
    area: &Drawing<'_>,
    timeline: &Timeline,
    caption: Option<&str>,
    y_name: &str,
    lines: &[(Points, RGBColor)],
) -> DrawingResult {
    let end = timeline.end().as_secs_f64().max(1e-9);
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
        .build_cartesian_2d(0.0..end, 0.0..top)?;
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
    draw_marks(&mut chart, &timeline.marks, top)
}

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Draws a vertical line where something happened: solid where it went wrong, dashed where it went right again.
fn draw_marks(chart: &mut Chart<'_, '_>, marks: &[Mark], top: f64) -> DrawingResult {
    for (number, mark) in (1..).zip(marks) {
        let at = mark.at.as_secs_f64();
        let ends = [(at, 0.0), (at, top)];
        let style = BLACK.mix(0.6).stroke_width(1);
        if mark.begins {
            chart.draw_series(LineSeries::new(ends, style))?;
        } else {
            chart.draw_series(DashedLineSeries::new(ends, 4, 4, style))?;
        }
        let text = Text::new(number_text(number), (at, top), ("sans-serif", 12));
        chart.draw_series(std::iter::once(text))?;
    }
    Ok(())
}

fn number_text(number: usize) -> String {
    format!(" {number}")
}

/// Lists the marks by the numbers that stand at their lines.
fn list_marks(legend: &Drawing<'_>, marks: &[Mark]) -> DrawingResult {
    let mut lines: Vec<String> = (1..)
        .zip(marks)
        .take(LISTED)
        .map(|(number, Mark { at, text, .. })| {
            format!("{number}  {:.3} s  {text}", at.as_secs_f64())
        })
        .collect();
    let left = marks.len().saturating_sub(LISTED);
    if left > 0 {
        lines.push(format!("and {left} more"));
    }
    for (line, text) in (0..).zip(lines) {
        legend.draw(&Text::new(text, (0, MARKS_Y + MARK_LINE * line), ("sans-serif", 12)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_program::perf::{Cause, Sample};
    use std::time::Duration;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Two rails at 1 GB/s each, of which the second one is out in the middle.
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
    fn nothing_measured_is_an_empty_picture() {
        assert!(svg("x", &Timeline::default()).unwrap().starts_with("<svg"));
    }
}
