//! Axes of diagrams: where a value lies, and which numbers stand beside them.

use super::text::plain;

/// Most numbers from 0 on.
const TICKS_MAX: f64 = 6.0;

/// What an axis shows.
#[derive(Debug, Clone)]
pub(crate) enum Span {
    /// From 0 to the largest value, with round numbers.
    FromZero,
    /// The logarithms of values above 0, with round numbers.
    Logarithmic,
    /// From the smallest value to the largest, with names at some of them.
    Named(Vec<(f64, String)>),
}

impl Span {
    /// Whether a value has a place.
    pub(super) fn has(&self, value: f64) -> bool {
        value.is_finite() && (value > 0.0 || !matches!(self, Span::Logarithmic))
    }
}

/// From values to shares of its length.
#[derive(Debug, Clone)]
pub(super) struct Axis<'a> {
    span: &'a Span,
    /// In decades if it is logarithmic.
    from: f64,
    to: f64,
}

impl<'a> Axis<'a> {
    /// The axis on which all these values have a place.
    pub(super) fn new(span: &'a Span, values: impl Iterator<Item = f64>) -> Axis<'a> {
        let values = values.filter(|value| span.has(*value));
        let (from, to) = match span {
            Span::FromZero => (0.0, bounds(values).map_or(0.0, |(_, high)| high)),
            Span::Logarithmic => {
                let (low, high) = bounds(values.map(f64::log10)).unwrap_or((0.0, 0.0));
                let room = (high - low).max(0.2) * 0.08;
                (low - room, high + room)
            }
            Span::Named(names) => {
                let all = values.chain(names.iter().map(|(at, _)| *at));
                let (low, high) = bounds(all).unwrap_or((0.0, 1.0));
                if high > low { (low, high) } else { (low - 0.5, high + 0.5) }
            }
        };
        Axis { span, from, to: if to > from { to } else { from + 1.0 } }
    }

    /// Where a value lies, 0 to 1; None for one that has no place.
    pub(super) fn share(&self, value: f64) -> Option<f64> {
        let is_log = matches!(self.span, Span::Logarithmic);
        let value = if is_log { value.log10() } else { value };
        let share = (value - self.from) / (self.to - self.from);
        share.is_finite().then_some(share)
    }

    /// Values with what stands beside them.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let named = |values: Vec<f64>| values.into_iter().map(|it| (it, plain(it))).collect();
        match self.span {
            Span::FromZero => named(self.round_steps()),
            Span::Logarithmic => named(self.round_decades()),
            Span::Named(names) => names.clone(),
        }
    }

    /// Multiples of 1, 2 or 5 times a power of ten.
    fn round_steps(&self) -> Vec<f64> {
        let least = self.to / TICKS_MAX;
        let power = 10_f64.powf(least.log10().floor());
        let steps = [1.0, 2.0, 5.0].map(|factor| factor * power);
        let step = steps.into_iter().find(|step| *step >= least * (1.0 - 1e-9));
        let step = step.unwrap_or(10.0 * power);
        (0..=(self.to / step + 1e-9) as u32).map(|count| f64::from(count) * step).collect()
    }

    /// 1, 2 and 5 times powers of ten, or fewer of them over many decades.
    fn round_decades(&self) -> Vec<f64> {
        let decades = self.to - self.from;
        let factors: &[f64] = match decades {
            d if d < 0.5 => &[1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0],
            d if d < 3.0 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let powers = self.from.floor() as i32..=self.to.ceil() as i32;
        let step = (decades / 8.0).ceil().max(1.0) as i32;
        let all = powers
            .filter(|power| power % step == 0)
            .flat_map(|power| factors.iter().map(move |factor| factor * 10_f64.powi(power)));
        let is_inside =
            |value: &f64| self.share(*value).is_some_and(|it| (0.0..=1.0).contains(&it));
        all.filter(is_inside).collect()
    }
}

fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|value| value.is_finite()).fold(None, |bounds, value| {
        let (low, high) = bounds.unwrap_or((value, value));
        Some((f64::min(low, value), f64::max(high, value)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(span: &Span, values: &[f64]) -> Vec<String> {
        let axis = Axis::new(span, values.iter().copied());
        axis.ticks().into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn numbers_from_zero_are_round_and_few() {
        for (values, expected) in [
            (&[0.0, 0.9][..], &["0", "0.2", "0.4", "0.6", "0.8"][..]),
            (&[37.0], &["0", "10", "20", "30"]),
            (&[285_000.0], &["0", "50k", "100k", "150k", "200k", "250k"]),
            (&[1000.0, f64::INFINITY], &["0", "200", "400", "600", "800", "1k"]),
            (&[], &["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ] {
            assert_eq!(names(&Span::FromZero, values), expected, "{values:?}");
        }
    }

    #[test]
    fn numbers_of_decades_are_round_and_few() {
        let log = Span::Logarithmic;
        assert_eq!(names(&log, &[2e-3, 0.0, 5.0]), ["0.01", "0.1", "1"]);
        assert_eq!(names(&log, &[1e-16, 1.0]).first().map(String::as_str), Some("1e-15"));
        for range in [[5.9, 6.1], [1.0, 90.0], [1e-3, 1e9], [0.3, 0.31], [1e-16, 1.0]] {
            let count = names(&log, &range).len();
            assert!((1..=12).contains(&count), "{range:?}: {count}");
        }
    }

    #[test]
    fn names_stand_where_they_are() {
        let span = Span::Named(vec![(0.0, "8 B".to_owned()), (3.0, "64 B".to_owned())]);
        let axis = Axis::new(&span, [1.0, 6.0].into_iter());
        assert_eq!([axis.share(0.0), axis.share(3.0), axis.share(6.0)], [0.0, 0.5, 1.0].map(Some));
        assert_eq!(axis.share(f64::NAN), None);
    }
}
