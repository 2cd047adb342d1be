//! Plots as SVG text, one width for all: narrow enough for a telephone, several beside each other on a desk.
//!
//! Colours are those of the light page. The page's style sheet recognises each by its value and puts
//! another one in its place where the reader prefers dark.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, SegmentValue, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Width of every plot.
const WIDTH: u32 = 440;
/// Height of one bar with its distance.
const PITCH: u32 = 22;
/// Room for the names of bars.
const NAMES: u32 = 172;
/// Room for axis and legend below and above the bars.
const FRAME: u32 = 62;

/// Text and axes.
pub(crate) const INK: RGBColor = RGBColor(0x1f, 0x23, 0x28);
/// Lines that guide the eye.
pub(crate) const GRID: RGBColor = RGBColor(0xd9, 0xdd, 0xe2);
/// Data, in the order of the legend.
pub(crate) const DATA: [RGBColor; 3] = [
    RGBColor(0x2a, 0x78, 0xd6),
    RGBColor(0xe8, 0x8a, 0x1a),
    RGBColor(0x1b, 0x9e, 0x77),
];

/// A bar: its name and the length of each of its parts.
#[derive(Debug, Clone)]
pub(crate) struct Bar {
    /// What stands beside it.
    pub(crate) name: String,
    /// Lengths, in the order of the legend.
    pub(crate) parts: Vec<f64>,
}

/// A line through points.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    /// What the legend says.
    pub(crate) name: String,
    /// Its points.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A plot, with the number of marks in a data colour that it must have.
#[derive(Debug, Clone)]
pub(crate) struct Plot {
    /// The picture.
    pub(crate) svg: String,
    /// Rectangles or circles in data colours, those of the legend included.
    pub(crate) marks: usize,
}

/// Anything that went wrong while drawing into a string.
pub(crate) type Failed = Box<dyn std::error::Error + Send + Sync>;

fn text(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

/// A figure without needless digits.
pub(crate) fn digits(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn legend(area: &DrawingArea<SVGBackend<'_>, Shift>, names: &[&str]) -> Result<(), Failed> {
    let mut x = 8;
    for (name, color) in names.iter().zip(DATA) {
        area.draw(&Rectangle::new([(x, 8), (x + 10, 18)], color.filled()))?;
        area.draw(&Text::new((*name).to_owned(), (x + 15, 7), text(12)))?;
        x += 15 + 7 * i32::try_from(name.chars().count())? + 16;
    }
    Ok(())
}

/// Horizontal bars, each stacked from its parts, with their sum at the end.
pub(crate) fn bars(bars: &[Bar], parts: &[&str], axis: &str) -> Result<Plot, Failed> {
    // An axis of a single segment has no height: one bar gets an empty place below it.
    let count = u32::try_from(bars.len())?.max(2);
    let height = FRAME + PITCH * count;
    let longest = bars.iter().map(|bar| bar.parts.iter().sum()).fold(1.0, f64::max);
    let mut svg = String::new();
    let mut marks = parts.len();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        legend(&root, parts)?;
        let mut chart = ChartBuilder::on(&root)
            .margin_top(26)
            .margin_right(6)
            .set_label_area_size(LabelAreaPosition::Left, NAMES)
            .set_label_area_size(LabelAreaPosition::Bottom, 34)
            // Room for the sum behind the longest bar.
            // A range of segments includes its end.
            .build_cartesian_2d(0.0..longest * 1.18, (0..count.saturating_sub(1)).into_segmented())?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .x_labels(4)
            .y_labels(bars.len().max(2))
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .label_style(text(11))
            .x_desc(axis)
            .axis_desc_style(text(11))
            .x_label_formatter(&|value| digits(*value))
            .y_label_formatter(&|position| match position {
                // The first bar is to be on top.
                SegmentValue::CenterOf(place) => count
                    .checked_sub(place + 1)
                    .and_then(|place| bars.get(usize::try_from(place).ok()?))
                    .map_or_else(String::new, |bar| bar.name.clone()),
                _ => String::new(),
            })
            .draw()?;
        for (place, bar) in (0..count).rev().zip(bars) {
            let mut from = 0.0;
            for (&part, color) in bar.parts.iter().zip(DATA) {
                if part > 0.0 {
                    let corners = [
                        (from, SegmentValue::Exact(place)),
                        (from + part, SegmentValue::Exact(place + 1)),
                    ];
                    let mut rectangle = Rectangle::new(corners, color.filled());
                    rectangle.set_margin(4, 4, 0, 0);
                    chart.draw_series(std::iter::once(rectangle))?;
                    marks += 1;
                }
                from += part;
            }
            let style = text(11).pos(Pos::new(HPos::Left, VPos::Center));
            let sum = Text::new(
                digits(from),
                (from + longest * 0.012, SegmentValue::CenterOf(place)),
                style,
            );
            chart.draw_series(std::iter::once(sum))?;
        }
        root.present()?;
    }
    Ok(Plot { svg, marks })
}

/// From where to where the horizontal axis of lines goes, and how.
enum Axis {
    /// Powers of two.
    Logarithmic(f64, f64),
    /// From zero.
    Linear(f64),
}

/// Lines. The axis is logarithmic where a linear one would have all points but the last few in one place.
pub(crate) fn lines(series: &[Series], x_axis: &str, y_axis: &str) -> Result<Plot, Failed> {
    /// So many times as much on the right as on the left.
    const WIDE: f64 = 64.0;
    let points = || series.iter().flat_map(|series| &series.points);
    let right = points().map(|point| point.0).fold(1.0, f64::max);
    let left = points().map(|point| point.0).fold(right, f64::min);
    let axis = if left > 0.0 && right / left > WIDE {
        Axis::Logarithmic(left, right)
    } else {
        Axis::Linear(right)
    };
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, 260)).into_drawing_area();
        let names: Vec<&str> = series.iter().map(|series| series.name.as_str()).collect();
        legend(&root, &names)?;
        match axis {
            Axis::Logarithmic(left, right) => {
                lines_over(&root, series, (x_axis, y_axis), (left..right).log_scale().base(2.0))?;
            }
            Axis::Linear(right) => lines_over(&root, series, (x_axis, y_axis), 0.0..right)?,
        }
        root.present()?;
    }
    let marks = series.len() + points().count();
    Ok(Plot { svg, marks })
}

fn lines_over<X>(
    root: &DrawingArea<SVGBackend<'_>, Shift>,
    series: &[Series],
    (x_axis, y_axis): (&str, &str),
    range: X,
) -> Result<(), Failed>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
{
    let points = series.iter().flat_map(|series| &series.points);
    let top = points.map(|point| point.1).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(root)
        .margin_top(28)
        .margin_right(22)
        .set_label_area_size(LabelAreaPosition::Left, 52)
        .set_label_area_size(LabelAreaPosition::Bottom, 36)
        .build_cartesian_2d(range, 0.0..top * 1.15)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(8)
        .y_labels(5)
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(GRID)
        .label_style(text(11))
        .axis_desc_style(text(11))
        .x_desc(x_axis)
        .y_desc(y_axis)
        .x_label_formatter(&|value| digits(*value))
        .y_label_formatter(&|value| digits(*value))
        .draw()?;
    for (series, color) in series.iter().zip(DATA) {
        chart.draw_series(LineSeries::new(series.points.iter().copied(), color.stroke_width(2)))?;
        let circle = |point: &(f64, f64)| Circle::new(*point, 4, color.filled());
        chart.draw_series(series.points.iter().map(circle))?;
    }
    Ok(())
}

/// How many rectangles and circles in a data colour a picture has.
pub(crate) fn marks_in(svg: &str) -> usize {
    svg.split('<')
        .filter(|element| element.starts_with("rect ") || element.starts_with("circle "))
        .filter(|element| {
            DATA.iter()
                .any(|color| element.contains(&format!("fill=\"{}\"", hexadecimal(*color))))
        })
        .count()
}

/// A colour as plots and style sheets write it.
pub(crate) fn hexadecimal(color: RGBColor) -> String {
    format!("#{:02X}{:02X}{:02X}", color.0, color.1, color.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_a_mark_for_each_part_that_has_a_length() {
        let bar = |name: &str, parts: &[f64]| Bar {
            name: name.to_owned(),
            parts: parts.to_vec(),
        };
        let plot = bars(
            &[bar("a<b", &[1.0, 2.0, 3.0]), bar("c", &[4.0, 0.0, 2.5])],
            &["x", "y", "z"],
            "n",
        )
        .unwrap();
        assert_eq!(plot.marks, 8);
        assert_eq!(marks_in(&plot.svg), plot.marks);
        assert!(plot.svg.contains("a&lt;b"), "{}", plot.svg);
        assert!(plot.svg.contains("6.5"));
    }

    #[test]
    fn a_single_bar_has_a_height() {
        let bar = Bar {
            name: "a".to_owned(),
            parts: vec![1.0],
        };
        let plot = bars(&[bar], &["x"], "n").unwrap();
        assert!(!plot.svg.contains("height=\"-"), "{}", plot.svg);
        assert_eq!(marks_in(&plot.svg), 2);
    }

    #[test]
    fn lines_have_a_mark_for_each_point() {
        let series = Series {
            name: "a".to_owned(),
            points: vec![(16.0, 170.0), (64.0, 171.0), (256.0, 172.0)],
        };
        let plot = lines(&[series], "pages", "instructions").unwrap();
        assert_eq!(plot.marks, 4);
        assert_eq!(marks_in(&plot.svg), plot.marks);
    }

    #[test]
    fn figures_have_no_needless_digits() {
        assert_eq!(digits(64.0), "64");
        assert_eq!(digits(1.5), "1.5");
        assert_eq!(digits(171.007_8), "171.01");
    }
}
