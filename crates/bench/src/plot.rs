//! Pictures, as SVG that is readable on a light and on a dark page.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A line, or the bars of one colour.
#[derive(Clone, Debug)]
pub struct Series {
    pub title: String,
    /// Of a line: x and y. Of bars: the number of the group, and its height.
    pub points: Vec<(f64, f64)>,
}

/// The text beside the picture.
#[derive(Clone, Copy, Debug)]
pub struct Labels<'a> {
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
}

const SIZE: (i32, i32) = (840, 420);
const LEFT: i32 = 70;
const RIGHT: i32 = 820;
const TOP: i32 = 96;
const BOTTOM: i32 = 362;

// Each has a contrast of 3 or more to white and to the dark of GitHub.
const INK: RGBColor = RGBColor(118, 125, 134);
const COLOURS: [RGBColor; 5] = [
    RGBColor(128, 128, 128),
    RGBColor(47, 129, 247),
    RGBColor(219, 109, 40),
    RGBColor(46, 160, 67),
    RGBColor(163, 113, 247),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Failed = Box<dyn std::error::Error>;
type Drawn = Result<(), Failed>;
/// Gives the row of a value of y.
type Row = Box<dyn Fn(f64) -> i32>;

/// A contender has the same colour in all pictures.
fn colour(title: &str, at: usize) -> RGBColor {
    let known = [
        "floor",
        "rail-cni",
        "host-device + static",
        "host-device + host-local",
    ];
    let number = known
        .iter()
        .rposition(|name| title.starts_with(name))
        .map(|number| match title {
            "host-device + host-local" => 4,
            _ => number,
        });
    COLOURS[number.unwrap_or(at + 1) % COLOURS.len()]
}

/// Lines over measured values of x, which stand on a logarithmic axis. So does y where its values
/// differ much.
pub fn lines(labels: Labels, series: &[Series]) -> Result<String, String> {
    draw(labels, series, |area| {
        let mut values: Vec<f64> = series
            .iter()
            .flat_map(|one| one.points.iter().map(|point| point.0))
            .collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let column = column_of(&values);
        let row = rows(area, series)?;
        for &value in &values {
            let x = column(value);
            area.draw(&PathElement::new(vec![(x, BOTTOM), (x, BOTTOM + 5)], INK))?;
            text(
                area,
                &grouped(value),
                (x, BOTTOM + 9),
                13,
                HPos::Center,
                VPos::Top,
            )?;
        }
        for (at, one) in series.iter().enumerate() {
            let colour = colour(&one.title, at);
            let points: Vec<_> = one
                .points
                .iter()
                .map(|&(x, y)| (column(x), row(y)))
                .collect();
            area.draw(&PathElement::new(points.clone(), colour.stroke_width(2)))?;
            for point in points {
                area.draw(&Circle::new(point, 4, colour.filled()))?;
            }
        }
        Ok(())
    })
}

/// Bars beside each other, in groups.
pub fn bars(labels: Labels, groups: &[&str], series: &[Series]) -> Result<String, String> {
    draw(labels, series, |area| {
        let row = rows(area, series)?;
        let [groups_count, series_count] =
            [groups.len(), series.len()].map(|count| i32::try_from(count.max(1)).unwrap_or(1));
        let group_width = (RIGHT - LEFT) / groups_count;
        let width = (group_width * 8 / 10 / series_count).min(60);
        for (group, name) in (0..).zip(groups) {
            let middle = LEFT + group * group_width + group_width / 2;
            text(
                area,
                name,
                (middle, BOTTOM + 9),
                13,
                HPos::Center,
                VPos::Top,
            )?;
            let there: Vec<_> = series
                .iter()
                .enumerate()
                .filter_map(|(at, one)| {
                    let point = one
                        .points
                        .iter()
                        .find(|point| point.0 == f64::from(group))?;
                    Some((colour(&one.title, at), point.1))
                })
                .collect();
            let count = i32::try_from(there.len()).unwrap_or(1);
            for (number, (colour, height)) in (0..).zip(there) {
                let left = middle - count * width / 2 + number * width;
                let top = row(height);
                area.draw(&Rectangle::new(
                    [(left + 2, top), (left + width - 2, BOTTOM)],
                    colour.filled(),
                ))?;
                text(
                    area,
                    &format!("{height:.0}"),
                    (left + width / 2, top - 4),
                    12,
                    HPos::Center,
                    VPos::Bottom,
                )?;
            }
        }
        Ok(())
    })
}

fn draw(
    labels: Labels,
    series: &[Series],
    inside: impl FnOnce(&Area) -> Drawn,
) -> Result<String, String> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (SIZE.0.unsigned_abs(), SIZE.1.unsigned_abs()))
        .into_drawing_area();
    let drawn = (|| -> Drawn {
        text(
            &area,
            labels.title,
            (LEFT - 60, 10),
            17,
            HPos::Left,
            VPos::Top,
        )?;
        legend(&area, series)?;
        text(
            &area,
            labels.y,
            (LEFT - 60, TOP - 24),
            13,
            HPos::Left,
            VPos::Top,
        )?;
        text(
            &area,
            labels.x,
            (RIGHT, SIZE.1 - 8),
            13,
            HPos::Right,
            VPos::Bottom,
        )?;
        inside(&area)?;
        area.present()?;
        Ok(())
    })();
    drawn.map_err(|error| format!("{}: {error}", labels.title))?;
    drop(area);
    Ok(svg)
}

fn legend(area: &Area, series: &[Series]) -> Drawn {
    let mut x = LEFT - 60;
    for (at, one) in series.iter().enumerate() {
        area.draw(&Rectangle::new(
            [(x, 44), (x + 12, 56)],
            colour(&one.title, at).filled(),
        ))?;
        text(area, &one.title, (x + 17, 43), 13, HPos::Left, VPos::Top)?;
        // There is no font to measure with.
        x += 40 + i32::try_from(one.title.len()).unwrap_or(0) * 66 / 10;
    }
    Ok(())
}

fn text(area: &Area, text: &str, at: (i32, i32), size: i32, h: HPos, v: VPos) -> Drawn {
    // The size that is asked for is the height of a line; the letters are smaller.
    let style = ("sans-serif", f64::from(size) * 1.24)
        .into_font()
        .color(&INK)
        .pos(Pos::new(h, v));
    area.draw(&Text::new(text.to_owned(), at, style))?;
    Ok(())
}

/// Draws the axis of y, and returns where a value stands.
fn rows(area: &Area, series: &[Series]) -> Result<Row, Failed> {
    let values = || {
        series
            .iter()
            .flat_map(|one| one.points.iter().map(|point| point.1))
    };
    let largest = values().fold(0.001, f64::max);
    let smallest = values().fold(largest, f64::min).max(0.001);
    let is_logarithmic = largest / smallest > 20.0;
    let (ticks, row): (Vec<f64>, Row) = if is_logarithmic {
        let (low, high) = (smallest.log10().floor(), largest.log10().ceil());
        let row =
            move |value: f64| place((value.max(1e-9).log10() - low) / (high - low), BOTTOM, TOP);
        let mut ticks = Vec::new();
        let mut exponent = low;
        while exponent <= high {
            ticks.push(10_f64.powf(exponent));
            exponent += 1.0;
        }
        (ticks, Box::new(row))
    } else {
        let step = step_of(largest / 5.0);
        let high = (largest / step).ceil() * step;
        let row = move |value: f64| place(value / high, BOTTOM, TOP);
        let mut ticks = vec![0.0];
        while ticks.last().is_some_and(|last| last + step <= high * 1.001) {
            ticks.push(ticks.last().copied().unwrap_or_default() + step);
        }
        (ticks, Box::new(row))
    };
    for tick in ticks {
        let y = row(tick);
        area.draw(&PathElement::new(
            vec![(LEFT, y), (RIGHT, y)],
            INK.mix(if y == BOTTOM { 1.0 } else { 0.3 }),
        ))?;
        text(
            area,
            &grouped(tick),
            (LEFT - 8, y),
            13,
            HPos::Right,
            VPos::Center,
        )?;
    }
    Ok(row)
}

/// Gives the column of a value of x. Zero has a place before the smallest other value.
fn column_of(values: &[f64]) -> impl Fn(f64) -> i32 {
    let positive = values.iter().copied().filter(|&value| value > 0.0);
    let smallest = positive.clone().fold(f64::INFINITY, f64::min);
    let has_zero = values.contains(&0.0);
    let low = if has_zero {
        smallest.log10() - 1.0
    } else {
        smallest.log10()
    };
    let high = positive.fold(smallest, f64::max).log10().max(low + 0.1);
    move |value| {
        let at = if value > 0.0 { value.log10() } else { low };
        place((at - low) / (high - low), LEFT + 20, RIGHT - 30)
    }
}

/// 1, 2 or 5 times a power of ten, not below `least`.
fn step_of(least: f64) -> f64 {
    let power = 10_f64.powf(least.max(1e-9).log10().floor());
    let factors = [1.0, 2.0, 5.0];
    factors
        .into_iter()
        .map(|factor| factor * power)
        .find(|&step| step >= least * 0.999)
        .unwrap_or(10.0 * power)
}

#[expect(clippy::cast_possible_truncation, reason = "a pixel of a picture")]
fn place(part: f64, from: i32, to: i32) -> i32 {
    from + (part.clamp(0.0, 1.0) * f64::from(to - from)).round() as i32
}

/// 10000 as 10,000.
pub fn grouped(value: f64) -> String {
    if value < 1000.0 {
        let text = format!("{value:.3}");
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(title: &str, points: &[(f64, f64)]) -> Series {
        Series {
            title: title.to_owned(),
            points: points.to_vec(),
        }
    }

    const LABELS: Labels = Labels {
        title: "ADD & <leases>",
        x: "leases",
        y: "ms",
    };

    /// The texts of a picture; panics unless it is well-formed.
    fn texts(svg: &str) -> Vec<String> {
        let document = roxmltree::Document::parse(svg).unwrap();
        assert_eq!(document.root_element().tag_name().name(), "svg");
        let texts = document
            .descendants()
            .filter(|node| node.has_tag_name("text"));
        texts
            .map(|node| node.text().unwrap_or_default().trim().to_owned())
            .collect()
    }

    #[test]
    fn a_picture_is_well_formed_and_has_every_point() {
        let points = [(0.0, 4.0), (100.0, 6.0), (5000.0, 102.0)];
        let svg = lines(
            LABELS,
            &[
                series("rail-ipam", &[(0.0, 1.0), (5000.0, 1.5)]),
                series("host-local", &points),
            ],
        );
        let svg = svg.unwrap();
        let texts = texts(&svg);
        for wanted in [
            "ADD & <leases>",
            "leases",
            "ms",
            "rail-ipam",
            "host-local",
            "0",
            "100",
            "5,000",
            "10",
        ] {
            assert!(
                texts.iter().any(|text| text == wanted),
                "{wanted}: {texts:?}"
            );
        }
        assert_eq!(svg.matches("<circle").count(), 5);
    }

    #[test]
    fn bars_have_their_values() {
        let two = [
            series("floor: ip -batch", &[(0.0, 97.4)]),
            series("rail-cni", &[(0.0, 120.0), (1.0, 131.0)]),
        ];
        let texts = texts(&bars(LABELS, &["direct", "cnitool"], &two).unwrap());
        for wanted in ["direct", "cnitool", "97", "120", "131"] {
            assert!(
                texts.iter().any(|text| text == wanted),
                "{wanted}: {texts:?}"
            );
        }
    }

    #[test]
    fn numbers_are_grouped() {
        let seen = [0.0, 0.5, 12.0, 999.0, 1000.0, 1_000_000.0].map(grouped);
        assert_eq!(seen, ["0", "0.5", "12", "999", "1,000", "1,000,000"]);
    }
}
