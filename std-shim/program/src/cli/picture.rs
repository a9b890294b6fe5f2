//! Colors, line styles and legends of pictures.

use plotters::prelude::*;

/// Colors that are distinct for all kinds of color vision (Okabe and Ito 2008), and a grey. Yellow
/// is last, since it is faint on white.
const COLORS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(153, 153, 153),
    RGBColor(240, 228, 66),
];

/// Height of a line of the legend in pixels.
const LEGEND_LINE: i32 = 26;

pub(super) type Drawing<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

pub(super) type DrawingResult = Result<(), Box<dyn std::error::Error>>;

/// Returns the style of a line.
pub(super) fn line_style(color: RGBColor) -> ShapeStyle {
    ShapeStyle { color: color.to_rgba(), filled: true, stroke_width: 2 }
}

/// Returns the color of the series at `index`.
pub(super) fn color(index: usize) -> RGBColor {
    COLORS[index % COLORS.len()]
}

/// Returns the number of digits after the point with which the labels of an axis from 0 to `top`
/// differ. An axis has at most ten labels, so their distance is at least a tenth of it.
pub(super) fn digits(top: f64) -> usize {
    (1.0 - top.log10()).ceil().clamp(1.0, 9.0) as usize
}

/// Draws the entry of the series at `index` in the legend.
pub(super) fn draw_legend(
    legend: &Drawing<'_>,
    index: usize,
    name: &str,
    style: ShapeStyle,
) -> DrawingResult {
    let y = 80 + LEGEND_LINE * index as i32;
    legend.draw(&PathElement::new([(0, y), (24, y)], style))?;
    legend.draw(&Text::new(name, (32, y - 7), ("sans-serif", 14)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_differ_on_axes_of_any_height() {
        for top in [1e-5, 1.1e-3, 0.01, 0.05, 0.22, 0.25, 0.9, 1.0, 1.1, 2.2, 99.0, 1e4] {
            let digits = digits(top);
            let label = |tenth: i32| format!("{:.digits$}", top * f64::from(tenth) / 10.0);
            for tenth in 1..=10 {
                assert_ne!(label(tenth - 1), label(tenth), "{top}");
            }
        }
        assert_eq!([1.1, 2.2, 99.0].map(digits), [1; 3]);
    }
}
