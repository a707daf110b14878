//! Numbers as a schema writes them, exact at any size: JSON's numbers are decimal texts.

use crate::ffi::Result;
use std::cmp::Ordering;

/// Digits in front of the point, or behind it, of a number that is written out: the largest and the
/// smallest double have 309 and 324.
const MAX_DIGITS: usize = 400;

/// `digits` * 10^`exponent`; without zeros at the ends. Zero has no digits and is not negative.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Decimal {
    pub negative: bool,
    digits: String,
    exponent: i64,
}

impl Decimal {
    /// Of a number by the rules of JSON.
    pub fn of(text: &str) -> Self {
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let sign = if exponent.starts_with('-') { -1 } else { 1 };
        // More than 18 digits: too large to write out in any case.
        let size: i64 = exponent.trim_start_matches(['-', '+']).parse().unwrap_or(1 << 60);
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = [whole.trim_start_matches('-'), fraction].concat();
        let kept = digits.trim_end_matches('0');
        let behind = digits.len() - kept.len();
        let digits = kept.trim_start_matches('0').to_owned();
        let exponent = match digits.is_empty() {
            true => 0,
            false => sign * size + behind as i64 - fraction.len() as i64,
        };
        Decimal { negative: mantissa.starts_with('-') && !digits.is_empty(), digits, exponent }
    }

    pub fn is_zero(&self) -> bool {
        self.digits.is_empty()
    }

    pub fn is_integer(&self) -> bool {
        self.exponent >= 0
    }

    pub fn negated(mut self) -> Self {
        self.negative = !self.negative && !self.is_zero();
        self
    }

    /// As a size; what is larger than all texts is the largest.
    pub fn as_size(&self) -> Option<u32> {
        if self.negative || !self.is_integer() {
            return None;
        }
        let text = match self.exponent {
            0..=10 => format!("0{}{}", self.digits, "0".repeat(self.exponent as usize)),
            _ => return Some(u32::MAX),
        };
        Some(text.parse().unwrap_or(u32::MAX))
    }

    /// The digits in front of the point ("0" of none) and behind it, without the sign.
    pub fn written(&self) -> Result<(String, String)> {
        let size = self.digits.len() as i64;
        let whole = size.saturating_add(self.exponent);
        if whole > MAX_DIGITS as i64 || -self.exponent > MAX_DIGITS as i64 {
            return Err(format!(
                "got a number with an exponent of {}, expected at most {MAX_DIGITS} digits",
                whole - 1
            )
            .into());
        }
        if self.is_zero() {
            return Ok(("0".into(), String::new()));
        }
        if whole <= 0 {
            return Ok(("0".into(), "0".repeat(-whole as usize) + &self.digits));
        }
        if self.exponent >= 0 {
            let zeros = "0".repeat(self.exponent as usize);
            return Ok((self.digits.clone() + &zeros, String::new()));
        }
        let (front, behind) = self.digits.split_at(whole as usize);
        Ok((front.into(), behind.into()))
    }

    /// As JSON, in the one way that is used here: without an exponent.
    pub fn text(&self) -> Result<String> {
        let (whole, fraction) = self.written()?;
        let sign = if self.negative { "-" } else { "" };
        let point = if fraction.is_empty() { "" } else { "." };
        Ok([sign, &whole, point, &fraction].concat())
    }

    pub fn as_f64(&self) -> f64 {
        let sign = if self.negative { "-" } else { "" };
        format!("{sign}0{}e{}", self.digits, self.exponent).parse().unwrap_or(f64::INFINITY)
    }

    /// The next integer towards zero, itself where it is one.
    fn truncated(&self) -> Result<Self> {
        let (whole, _) = self.written()?;
        let whole = Decimal::of(&whole);
        Ok(if self.negative { whole.negated() } else { whole })
    }

    pub fn floor(&self) -> Result<Self> {
        if self.is_integer() {
            return Ok(self.clone());
        }
        let near = self.truncated()?;
        if self.negative {
            near.previous()
        } else {
            Ok(near)
        }
    }

    pub fn ceil(&self) -> Result<Self> {
        Ok(self.clone().negated().floor()?.negated())
    }

    /// Of an integer, the one above.
    pub fn next(&self) -> Result<Self> {
        Ok(self.clone().negated().previous()?.negated())
    }

    /// Of an integer, the one below.
    pub fn previous(&self) -> Result<Self> {
        let mut digits = self.written()?.0.into_bytes();
        if self.is_zero() {
            return Ok(Decimal::of("-1"));
        }
        let (end, carried, step) = if self.negative { (b'9', b'0', 1) } else { (b'0', b'9', 255) };
        for digit in digits.iter_mut().rev() {
            if *digit != end {
                *digit = digit.wrapping_add(step);
                break;
            }
            *digit = carried;
        }
        if self.negative && digits.iter().all(|&digit| digit == b'0') {
            digits.insert(0, b'1');
        }
        let size = Decimal::of(std::str::from_utf8(&digits).unwrap_or("0"));
        Ok(if self.negative { size.negated() } else { size })
    }

    fn cmp_size(&self, other: &Self) -> Ordering {
        let whole = |number: &Self| number.digits.len() as i64 + number.exponent;
        match (self.is_zero(), other.is_zero()) {
            (false, false) => {}
            (a, b) => return b.cmp(&a),
        }
        whole(self).cmp(&whole(other)).then_with(|| self.digits.cmp(&other.digits))
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.negative, other.negative) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => self.cmp_size(other),
            (true, true) => other.cmp_size(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_what_they_are_however_they_are_written() {
        for (text, same) in [
            ("1.0", "1"),
            ("1e20", "100000000000000000000"),
            ("-0", "0"),
            ("-0.0e5", "0"),
            ("0.050", "5e-2"),
            ("12.5E+1", "125"),
        ] {
            assert_eq!(Decimal::of(text), Decimal::of(same), "{text}");
        }
        for text in ["0", "-9223372036854775808", "0.001", "-12.25", "18446744073709551617"] {
            assert_eq!(Decimal::of(text).text().unwrap(), text);
        }
        assert!(Decimal::of("1e999999999999999999999").text().is_err());
        assert!(Decimal::of("1e-401").text().is_err());
    }

    #[test]
    fn order_and_neighbours() {
        let sorted = ["-1e30", "-10", "-9.5", "-0.1", "0", "1e-300", "0.5", "9", "9.01", "10"];
        for pair in sorted.windows(2) {
            assert!(Decimal::of(pair[0]) < Decimal::of(pair[1]), "{pair:?}");
        }
        for (number, floor, ceil) in
            [("2.5", "2", "3"), ("-2.5", "-3", "-2"), ("-0.5", "-1", "0"), ("7", "7", "7")]
        {
            assert_eq!(Decimal::of(number).floor().unwrap(), Decimal::of(floor), "{number}");
            assert_eq!(Decimal::of(number).ceil().unwrap(), Decimal::of(ceil), "{number}");
        }
        for (below, above) in [
            ("-1", "0"),
            ("0", "1"),
            ("9", "10"),
            ("-100", "-99"),
            ("-10", "-9"),
            ("9999999999999999999999", "1e22"),
        ] {
            assert_eq!(Decimal::of(below).next().unwrap(), Decimal::of(above), "{below}");
            assert_eq!(Decimal::of(above).previous().unwrap(), Decimal::of(below), "{above}");
        }
    }
}
