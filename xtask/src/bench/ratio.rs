//! Exact fractions, so that figures are compared to the last digit.

use std::fmt;

/// A fraction in lowest terms with a positive denominator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ratio {
    numerator: i128,
    denominator: i128,
}

const fn gcd(mut a: i128, mut b: i128) -> i128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.abs()
}

impl Ratio {
    /// Nothing.
    pub(crate) const ZERO: Self = Self {
        numerator: 0,
        denominator: 1,
    };

    /// `numerator / denominator`; `None` when the denominator is zero.
    pub(crate) const fn new(numerator: i128, denominator: i128) -> Option<Self> {
        if denominator == 0 {
            return None;
        }
        let divisor = gcd(numerator, denominator) * denominator.signum();
        Some(Self {
            numerator: numerator / divisor,
            denominator: denominator / divisor,
        })
    }

    /// A whole number.
    pub(crate) fn whole(value: impl Into<i128>) -> Self {
        Self {
            numerator: value.into(),
            denominator: 1,
        }
    }

    /// This fraction less another one.
    pub(crate) const fn minus(self, other: Self) -> Self {
        match Self::new(
            self.numerator * other.denominator - other.numerator * self.denominator,
            self.denominator * other.denominator,
        ) {
            Some(difference) => difference,
            // Denominators are positive by construction, and so is their product.
            None => Self::ZERO,
        }
    }

    /// The nearest floating-point number, for reports.
    #[expect(
        clippy::cast_precision_loss,
        reason = "reports show at most six digits of figures far below 2^52"
    )]
    pub(crate) fn as_f64(self) -> f64 {
        self.numerator as f64 / self.denominator as f64
    }

    /// The value, when it is a whole number.
    pub(crate) const fn as_whole(self) -> Option<i128> {
        if self.denominator == 1 {
            Some(self.numerator)
        } else {
            None
        }
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ratio {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.numerator * other.denominator).cmp(&(other.numerator * self.denominator))
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_whole() {
            Some(whole) => write!(f, "{whole}"),
            None => write!(f, "{:.2}", self.as_f64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_kept_in_lowest_terms() {
        assert_eq!(Ratio::new(6, 4), Ratio::new(3, 2));
        assert_eq!(Ratio::new(-6, -4), Ratio::new(3, 2));
        assert_eq!(Ratio::new(6, -4), Ratio::new(-3, 2));
        assert_eq!(Ratio::new(1, 0), None);
        assert_eq!(Ratio::new(0, 5), Some(Ratio::ZERO));
    }

    #[test]
    fn orders_and_subtracts_exactly() {
        let third = Ratio::new(1, 3).unwrap();
        let half = Ratio::new(1, 2).unwrap();
        assert!(third < half);
        assert_eq!(half.minus(third), Ratio::new(1, 6).unwrap());
    }

    #[test]
    fn shows_whole_numbers_without_a_point() {
        assert_eq!(Ratio::new(122, 2).unwrap().to_string(), "61");
        assert_eq!(Ratio::new(1125, 8).unwrap().to_string(), "140.62");
    }
}
