//! The roofline: the rate of each kernel over its arithmetic intensity, below the limits of the machine. Both
//! axes are logarithmic.

use super::{Data, Row, escape};
use crate::bench::print::time;
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 12.0;

/// A logarithmic axis.
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    /// An axis of whole decades around the values.
    fn around(values: impl Iterator<Item = f64>) -> Axis {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for v in values.filter(|v| v.is_finite() && *v > 0.0) {
            low = low.min(v.log10());
            high = high.max(v.log10());
        }
        if low > high {
            return Axis { low: 0.0, high: 1.0 };
        }
        Axis { low: low.floor(), high: (high + 0.1).ceil().max(low.floor() + 1.0) }
    }
    fn at(&self, v: f64) -> f64 {
        ((v.max(1e-30).log10() - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }
    fn decades(&self) -> impl Iterator<Item = i32> {
        self.low as i32..=self.high as i32
    }
}

/// The picture as SVG; `None` if kernels were not timed.
pub fn svg(d: &Data, rows: &[Row]) -> Option<String> {
    let bench = d.bench?;
    let total: f64 = rows.iter().filter_map(|r| r.time).sum();
    // Intensity and rate.
    let points: Vec<(&Row, f64, f64, f64)> = rows
        .iter()
        .filter_map(|r| {
            let (a, t) = (r.amounts?, r.time?);
            (a.flops > 0.0 && a.bytes > 0.0 && t > 0.0).then_some((
                r,
                a.flops / a.bytes,
                a.flops / t / 1e9,
                t,
            ))
        })
        .collect();
    if points.is_empty() {
        return None;
    }
    let (peak, near, far) = (bench.machine.flops / 1e9, bench.bandwidth / 1e9, bench.machine.memory / 1e9);
    let ridge = peak / near;
    let xs = Axis::around(points.iter().map(|p| p.1).chain([ridge, ridge / 10.0]));
    let ys = Axis::around(points.iter().map(|p| p.2).chain([peak]));
    let x = |v: f64| LEFT + WIDTH * xs.at(v);
    let y = |v: f64| TOP + HEIGHT * (1.0 - ys.at(v));
    let (w, h) = (LEFT + WIDTH + 20.0, TOP + HEIGHT + 48.0);
    let mut o = format!(
        "<svg id=\"roofline\" role=\"img\" aria-label=\"roofline\" width=\"{w:.0}\" height=\"{h:.0}\" \
            viewBox=\"0 0 {w:.0} {h:.0}\">\n"
    );
    for e in xs.decades() {
        let v = 10f64.powi(e);
        let _ = writeln!(
            o,
            "<path class=\"grid\" d=\"M{:.1} {TOP}V{:.0}\"/><text class=\"axis mid\" x=\"{:.1}\" \
                y=\"{:.0}\">{v}</text>",
            x(v),
            TOP + HEIGHT,
            x(v),
            TOP + HEIGHT + 16.0
        );
    }
    for e in ys.decades() {
        let v = 10f64.powi(e);
        let _ = writeln!(
            o,
            "<path class=\"grid\" d=\"M{LEFT} {:.1}H{:.0}\"/><text class=\"axis end\" x=\"{:.0}\" \
                y=\"{:.1}\">{v}</text>",
            y(v),
            LEFT + WIDTH,
            LEFT - 6.0,
            y(v) + 4.0
        );
    }
    let mid = LEFT + WIDTH / 2.0;
    let _ = writeln!(
        o,
        "<text class=\"axis mid\" x=\"{mid:.0}\" y=\"{:.0}\">operations per byte</text>\
         <text class=\"axis mid\" transform=\"translate(16 {:.0}) rotate(-90)\">GFLOP/s</text>",
        TOP + HEIGHT + 36.0,
        TOP + HEIGHT / 2.0
    );
    // A roof is a straight line on these axes, from the picture's edge to the peak.
    let mut roof = |class: &str, bandwidth: f64, what: &str| {
        let enter = (10f64.powf(ys.low) / bandwidth).max(10f64.powf(xs.low));
        let corner = peak / bandwidth;
        let _ = writeln!(
            o,
            "<path class=\"roof {class}\" d=\"M{:.1} {:.1}L{:.1} {:.1}H{:.0}\"><title>{what}: \
                {bandwidth:.1} GB/s; peak {peak:.1} GFLOP/s</title></path>",
            x(enter),
            y(enter * bandwidth),
            x(corner),
            y(peak),
            LEFT + WIDTH
        );
    };
    roof("far", far, "memory");
    roof("near", near, "what holds the working set");
    for (r, intensity, rate, t) in points {
        let share = t / total;
        let limit = peak.min(near * intensity);
        let _ = writeln!(
            o,
            "<circle class=\"kernel\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"{:.1}\"><title>{} ({})\n{}, {:.1} % of \
                all; {rate:.2} GFLOP/s, {:.0} % of the limit</title></circle>",
            x(intensity),
            y(rate),
            3.0 + 18.0 * share.sqrt(),
            escape(&r.kernel),
            escape(&r.origin),
            time(t),
            share * 100.0,
            rate / limit * 100.0
        );
    }
    o += "</svg>\n";
    Some(o)
}
