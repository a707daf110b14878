//! Regular expressions of the numbers in a range: exact, of any size, and in every spelling without
//! an exponent.

use super::decimal::Decimal;
use crate::ffi::Result;
use llguidance::derivre::RegexAst;

/// Any number; the only one that is also written with an exponent.
pub const ANY: &str = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?";
const INTEGER: &str = r"-?(0|[1-9][0-9]*)";
const FRACTION: &str = r"(\.[0-9]+)?";
/// Multiples that are listed one by one.
const MAX_LISTED: u64 = 2000;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Range {
    pub least: Option<(Decimal, bool)>, // and whether it is excluded itself
    pub most: Option<(Decimal, bool)>,
    pub integer: bool,
    pub multiples: Vec<Decimal>,
}

impl Range {
    pub fn at_least(&mut self, bound: &Decimal, excluded: bool) {
        let new = (bound.clone(), excluded);
        if self.least.as_ref().is_none_or(|old| *old < new) {
            self.least = Some(new);
        }
    }

    pub fn at_most(&mut self, bound: &Decimal, excluded: bool) {
        let is_less = |old: &(Decimal, bool)| (bound, !excluded) < (&old.0, !old.1);
        if self.most.as_ref().is_none_or(is_less) {
            self.most = Some((bound.clone(), excluded));
        }
    }

    /// Bounds of integers, themselves in it.
    fn whole(&self) -> Result<Self> {
        let mut range = self.clone();
        if let Some((bound, excluded)) = &self.least {
            let near = bound.ceil()?;
            let is_out = *excluded && near == *bound;
            range.least = Some((if is_out { near.next()? } else { near }, false));
        }
        if let Some((bound, excluded)) = &self.most {
            let near = bound.floor()?;
            let is_out = *excluded && near == *bound;
            range.most = Some((if is_out { near.previous()? } else { near }, false));
        }
        Ok(range)
    }

    fn is_crossed(&self) -> bool {
        match (&self.least, &self.most) {
            (Some((least, out)), Some((most, out_too))) => {
                least > most || (least == most && (*out || *out_too))
            }
            _ => false,
        }
    }

    /// Nothing is in it, as far as its bounds tell.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(if self.integer { self.whole()?.is_crossed() } else { self.is_crossed() })
    }

    pub fn contains(&self, number: &Decimal) -> Result<bool> {
        let above = |(bound, out): &(Decimal, bool)| number > bound || (number == bound && !out);
        let below = |(bound, out): &(Decimal, bool)| number < bound || (number == bound && !out);
        Ok(self.least.as_ref().is_none_or(above)
            && self.most.as_ref().is_none_or(below)
            && (!self.integer || number.is_integer())
            && self.multiples.iter().try_fold(true, |all, step| -> Result<bool> {
                Ok(all && is_multiple(number, step)?)
            })?)
    }

    /// What matches the numbers in it; none: there are none.
    pub fn regex(&self) -> Result<Option<RegexAst>> {
        let range = if self.integer { self.whole()? } else { self.clone() };
        if range.is_crossed() {
            return Ok(None);
        }
        if !range.multiples.is_empty() {
            return range.regex_of_multiples();
        }
        Ok(Some(range.regex_of_bounds()?))
    }

    fn regex_of_bounds(&self) -> Result<RegexAst> {
        let (least, most) = (&self.least, &self.most);
        if least.is_none() && most.is_none() {
            return Ok(RegexAst::Regex(if self.integer { INTEGER } else { ANY }.into()));
        }
        let mut signs = Vec::new();
        let zero = Decimal::of("0");
        // From 0 on, and below it; -0 is not written.
        if most.as_ref().is_none_or(|(bound, out)| *bound > zero || (*bound == zero && !out)) {
            let least = least.as_ref().filter(|(bound, _)| !bound.negative);
            signs.push(self.sizes(least, most.as_ref())?);
        }
        if least.as_ref().is_none_or(|(bound, _)| bound.negative) {
            let turned = |bound: &(Decimal, bool)| (bound.0.clone().negated(), bound.1);
            let from = match most.as_ref().filter(|(bound, _)| bound.negative) {
                Some(bound) => turned(bound),
                None => (zero, true),
            };
            let to = least.as_ref().map(turned);
            let minus = RegexAst::Literal("-".into());
            signs.push(RegexAst::Concat(vec![minus, self.sizes(Some(&from), to.as_ref())?]));
        }
        Ok(RegexAst::Or(signs))
    }

    /// Without signs.
    fn sizes(
        &self,
        from: Option<&(Decimal, bool)>,
        to: Option<&(Decimal, bool)>,
    ) -> Result<RegexAst> {
        let any = format!("(0|[1-9][0-9]*){}", if self.integer { "" } else { FRACTION });
        let mut all = vec![RegexAst::Regex(any)];
        if let Some((bound, out)) = from {
            let (whole, fraction) = bound.written()?;
            all.push(any_of(sizes_from(&whole, &fraction, *out)));
        }
        if let Some((bound, out)) = to {
            let (whole, fraction) = bound.written()?;
            all.push(any_of(sizes_to(&whole, &fraction, *out)));
        }
        Ok(RegexAst::And(all))
    }

    fn regex_of_multiples(&self) -> Result<Option<RegexAst>> {
        if self.multiples.iter().any(Decimal::is_zero) {
            return Err("multipleOf: got 0, expected more".into());
        }
        if let Some(listed) = self.listed()? {
            return Ok(match listed.is_empty() {
                true => None,
                false => Some(any_of(listed)),
            });
        }
        let mut all = vec![self.regex_of_bounds()?];
        for step in &self.multiples {
            let (whole, fraction) = step.written()?;
            let coefficient: u32 = [whole, fraction.clone()]
                .concat()
                .parse()
                .map_err(|_| format!("multipleOf: got {}, expected fewer digits", step.brief()))?;
            all.push(multiples(coefficient, fraction.len() as u32));
        }
        Ok(Some(RegexAst::And(all)))
    }

    /// The multiples within narrow bounds; none where they are too many.
    fn listed(&self) -> Result<Option<Vec<String>>> {
        let (Some((least, _)), Some((most, _))) = (&self.least, &self.most) else {
            return Ok(None);
        };
        let step = self.multiples.iter().max().cloned().unwrap_or_else(|| Decimal::of("1"));
        // In units of the last decimal of all three, as far as those fit.
        let mut decimals = 0;
        for number in [least, most, &step] {
            decimals = decimals.max(number.written()?.1.len());
        }
        let scaled = |number: &Decimal| -> Result<Option<i128>> {
            let (whole, fraction) = number.written()?;
            let zeros = "0".repeat(decimals - fraction.len());
            let size: Option<i128> = [whole, fraction, zeros].concat().parse().ok();
            Ok(size.map(|size| if number.negative { -size } else { size }))
        };
        let (Some(least), Some(most), Some(step)) = (scaled(least)?, scaled(most)?, scaled(&step)?)
        else {
            return Ok(None);
        };
        let first = least.div_euclid(step) + i128::from(least.rem_euclid(step) != 0);
        let last = most.div_euclid(step);
        if last - first > MAX_LISTED as i128 {
            return Ok(None);
        }
        let mut texts = Vec::new();
        for factor in first..=last {
            let number = Decimal::of(&format!("{}e-{decimals}", factor * step));
            if self.contains(&number)? {
                let text = number.text()?.replace('.', "\\.");
                let zeros = match (self.integer, text.contains('.')) {
                    (true, _) => "",
                    (false, true) => "0*",
                    (false, false) => "(\\.0+)?",
                };
                texts.push(text + zeros);
            }
        }
        Ok(Some(texts))
    }
}

impl Decimal {
    fn brief(&self) -> String {
        self.text().unwrap_or_else(|_| "a large number".into())
    }
}

/// Of numbers with any count of digits: the remainder digit by digit.
fn is_multiple(number: &Decimal, step: &Decimal) -> Result<bool> {
    let ((whole, fraction), (step_whole, step_fraction)) = (number.written()?, step.written()?);
    let decimals = fraction.len().max(step_fraction.len());
    let pad = |fraction: &str| "0".repeat(decimals - fraction.len());
    let padded = [step_whole, step_fraction.clone(), pad(&step_fraction)].concat();
    let divisor: u128 = padded.parse().map_err(|_| "multipleOf: expected fewer digits")?;
    if divisor == 0 || divisor > u128::MAX / 16 {
        return Err("multipleOf: got 0 or too many digits, expected a small number".into());
    }
    let digits = [whole, fraction.clone(), pad(&fraction)].concat();
    let remainder = digits
        .bytes()
        .fold(0u128, |remainder, digit| (remainder * 10 + u128::from(digit - b'0')) % divisor);
    Ok(remainder == 0)
}

/// Of `coefficient` * 10^-`decimals`, with up to so many decimals. The library's remainders are of
/// numbers without a sign, and with all of the decimals.
fn multiples(coefficient: u32, decimals: u32) -> RegexAst {
    let options = (0..=decimals).map(|written| {
        let (mut a, mut b) = (u64::from(coefficient), 10u64.saturating_pow(decimals - written));
        while b > 0 {
            (a, b) = (b, a % b);
        }
        let least = coefficient / a as u32;
        let point = if written > 0 { format!(r"\.[0-9]{{{written}}}") } else { String::new() };
        let spelled = RegexAst::Regex(format!("{INTEGER}{point}"));
        let sign = RegexAst::Regex("-?".into());
        match least {
            1 => spelled,
            _ => RegexAst::And(vec![
                spelled,
                RegexAst::Concat(vec![sign, RegexAst::MultipleOf(least, written)]),
            ]),
        }
    });
    RegexAst::Or(options.collect())
}

fn any_of(parts: Vec<String>) -> RegexAst {
    RegexAst::Regex(if parts.is_empty() { "[^\\s\\S]".into() } else { parts.join("|") })
}

/// Digits between, as a class.
fn digits(from: u8, to: u8) -> Option<String> {
    (from <= to).then(|| format!("[{}-{}]", char::from(from), char::from(to)))
}

/// Of numbers without signs that are larger than `whole`.`fraction`, or equal if that is not out.
fn sizes_from(whole: &str, fraction: &str, out: bool) -> Vec<String> {
    let mut parts = vec![format!("[1-9][0-9]{{{},}}{FRACTION}", whole.len())];
    for (i, digit) in whole.bytes().enumerate() {
        let rest = whole.len() - i - 1;
        parts.extend(
            digits(digit + 1, b'9')
                .map(|more| format!("{}{more}[0-9]{{{rest}}}{FRACTION}", &whole[..i])),
        );
    }
    for (i, digit) in fraction.bytes().enumerate() {
        parts.extend(
            digits(digit + 1, b'9').map(|more| format!("{whole}\\.{}{more}[0-9]*", &fraction[..i])),
        );
    }
    parts.push(match (fraction, out) {
        ("", false) => format!("{whole}{FRACTION}"),
        (_, false) => format!("{whole}\\.{fraction}[0-9]*"),
        (_, true) => format!("{whole}\\.{fraction}[0-9]*[1-9][0-9]*"),
    });
    parts
}

/// Of numbers without signs that are smaller than `whole`.`fraction`, or equal if that is not out.
fn sizes_to(whole: &str, fraction: &str, out: bool) -> Vec<String> {
    let mut parts = Vec::new();
    if whole.len() > 1 {
        parts.push(format!("(0|[1-9][0-9]{{0,{}}}){FRACTION}", whole.len() - 2));
    }
    for (i, digit) in whole.bytes().enumerate() {
        let rest = whole.len() - i - 1;
        let least = if i == 0 && whole.len() > 1 { b'1' } else { b'0' };
        parts.extend(
            digits(least, digit - 1)
                .map(|less| format!("{}{less}[0-9]{{{rest}}}{FRACTION}", &whole[..i])),
        );
    }
    for (i, digit) in fraction.bytes().enumerate() {
        parts.push(match i {
            0 => whole.to_owned(),
            _ => format!("{whole}\\.{}", &fraction[..i]),
        });
        parts.extend(
            digits(b'0', digit - 1).map(|less| format!("{whole}\\.{}{less}[0-9]*", &fraction[..i])),
        );
    }
    match (fraction, out) {
        (_, true) => {}
        ("", false) => parts.push(format!("{whole}(\\.0+)?")),
        _ => parts.push(format!("{whole}\\.{fraction}0*")),
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use llguidance::derivre::RegexBuilder;

    fn range(least: Option<(&str, bool)>, most: Option<(&str, bool)>, integer: bool) -> Range {
        let bound = |(text, out): (&str, bool)| (Decimal::of(text), out);
        Range { least: least.map(bound), most: most.map(bound), integer, multiples: Vec::new() }
    }

    /// Every bound against every text, compared as decimals.
    #[test]
    fn ranges_hold_what_lies_within() {
        let bounds = ["-100", "-2.5", "-2", "-0.05", "0", "0.1", "0.25", "0.5", "1", "9.99", "10"];
        let large = ["-9223372036854775809", "9007199254740993", "18446744073709551616", "1e30"];
        let mut texts: Vec<String> = Vec::new();
        for text in bounds.iter().chain(&large) {
            let exact = Decimal::of(text);
            texts.push(exact.text().unwrap());
            let whole = exact.floor().unwrap();
            for near in [whole.previous().unwrap(), whole.next().unwrap(), whole] {
                let near = near.text().unwrap();
                texts.extend([near.clone(), format!("{near}.0"), format!("{near}.05")]);
                texts.extend([format!("{near}.10"), format!("{near}.2"), format!("{near}.999")]);
            }
        }
        let all: Vec<&str> = bounds.iter().chain(&large).copied().collect();
        let options = |all: &[&'static str]| -> Vec<Option<(&'static str, bool)>> {
            let both = |&text: &&'static str| [Some((text, false)), Some((text, true))];
            all.iter().flat_map(both).chain([None]).collect()
        };
        for least in options(&all) {
            for most in options(&all) {
                for integer in [false, true] {
                    let range = range(least, most, integer);
                    let Some(ast) = range.regex().unwrap() else {
                        assert!(range.is_empty().unwrap());
                        continue;
                    };
                    let mut builder = RegexBuilder::new();
                    let expr = builder.mk(&ast).unwrap();
                    let mut regex = builder.to_regex(expr);
                    for text in &texts {
                        let number = Decimal::of(text);
                        let is_plain = !(text.starts_with('-') && number.is_zero());
                        let is_written = is_plain && !(integer && text.contains('.'));
                        let expected = is_written && range.contains(&number).unwrap();
                        let free = least.is_none() && most.is_none();
                        if !free {
                            assert_eq!(regex.is_match(text), expected, "{range:?} {text}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn multiples_within_bounds() {
        let matches = |range: &Range, text: &str| {
            let mut builder = RegexBuilder::new();
            let expr = builder.mk(&range.regex().unwrap().unwrap()).unwrap();
            builder.to_regex(expr).is_match(text)
        };
        let mut half = range(Some(("0", true)), Some(("0.5", false)), false);
        half.multiples.push(Decimal::of("0.5"));
        assert!(matches(&half, "0.5") && matches(&half, "0.50") && !matches(&half, "0"));
        let mut wide = range(Some(("9007199254740993", false)), None, true);
        wide.multiples.push(Decimal::of("7"));
        assert!(matches(&wide, "9007199254740995")); // 7 * 1286742750677285
        assert!(!matches(&wide, "9007199254740994") && !matches(&wide, "7"));
        let mut free = range(None, None, false);
        free.multiples.push(Decimal::of("0.25"));
        for text in ["0.5", "-0.25", "0", "3", "0.50", "-12.75", "1.0"] {
            assert!(matches(&free, text), "{text}");
        }
        for text in ["0.2", "0.3", "0.05", "1.1", "0.55"] {
            assert!(!matches(&free, text), "{text}");
        }
        let mut none = range(Some(("1", false)), Some(("2", false)), true);
        none.multiples.push(Decimal::of("5"));
        assert!(none.regex().unwrap().is_none());
    }
}
