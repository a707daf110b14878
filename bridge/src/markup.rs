//! Markup of markupsafe, text filters of jinja2, and what `%` and `+` are to strings in Python.

use crate::python::{as_float, invalid, splitlines, to_str, write_repr};
use minijinja::value::{Kwargs, Rest, Tuple, Value, ValueKind};
use minijinja::Error;

type Result<T> = std::result::Result<T, Error>;

fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

/// `escape(s)`, as markupsafe writes it: markup stays as it is.
pub fn escape(value: &Value) -> Result<Value> {
    match value.is_safe() {
        true => Ok(value.clone()),
        false => force_escape(value),
    }
}

pub fn force_escape(value: &Value) -> Result<Value> {
    Ok(Value::from_safe_string(escaped(&to_str(value)?)))
}

pub fn safe(value: &Value) -> Result<Value> {
    Ok(Value::from_safe_string(to_str(value)?))
}

/// `str(value)` that leaves markup what it is.
pub fn string(value: &Value) -> Result<Value> {
    match value.is_safe() {
        true => Ok(value.clone()),
        false => to_str(value).map(Value::from),
    }
}

/// What a loop goes over: the characters of a string.
pub fn iter(value: &Value) -> Value {
    match value.as_str() {
        Some(text) => text.chars().map(|c| Value::from(c.to_string())).collect(),
        None => value.clone(),
    }
}

/// An integer, as Python counts True as 1.
fn integer(value: &Value) -> Option<i128> {
    match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    }
}

fn float(value: &Value) -> Option<f64> {
    as_float(value).or_else(|| integer(value).map(|integer| integer as f64))
}

fn impossible(operator: &str, a: &Value, b: &Value) -> Error {
    invalid(format!("tried to use {operator} on {} and {}", a.kind(), b.kind()))
}

/// `a + b`
pub fn add(a: &Value, b: &Value) -> Result<Value> {
    let is_seq = |value: &Value| value.kind() == ValueKind::Seq;
    let is_tuple = |value: &Value| value.downcast_object_ref::<Tuple>().is_some();
    if let (Some(left), Some(right)) = (a.as_str(), b.as_str()) {
        return Ok(match a.is_safe() || b.is_safe() {
            true => Value::from_safe_string(to_str(&escape(a)?)? + &to_str(&escape(b)?)?),
            false => Value::from([left, right].concat()),
        });
    }
    if let (Some(left), Some(right)) = (integer(a), integer(b)) {
        return left.checked_add(right).map(Value::from).ok_or_else(|| impossible("+", a, b));
    }
    if let (Some(left), Some(right)) = (float(a), float(b)) {
        return Ok(Value::from(left + right));
    }
    match is_seq(a) && is_seq(b) && !is_tuple(a) && !is_tuple(b) {
        true => Ok(a.try_iter()?.chain(b.try_iter()?).collect()),
        false => Err(impossible("+", a, b)),
    }
}

/// `a % b`
pub fn modulo(a: &Value, b: &Value) -> Result<Value> {
    if let Some(format) = a.as_str() {
        if a.is_safe() {
            return Err(invalid("markup % values, which escapes them, is not supported"));
        }
        return percent(format, b).map(Value::from);
    }
    if let (Some(left), Some(right)) = (integer(a), integer(b)) {
        let rest = left.checked_rem(right).ok_or_else(|| impossible("%", a, b))?;
        let is_other = rest != 0 && (rest < 0) != (right < 0);
        return Ok(Value::from(if is_other { rest + right } else { rest }));
    }
    match (float(a), float(b)) {
        (Some(left), Some(right)) if right != 0.0 => {
            let rest = left % right;
            let is_other = rest != 0.0 && (rest < 0.0) != (right < 0.0);
            Ok(Value::from(if is_other { rest + right } else { rest }))
        }
        _ => Err(impossible("%", a, b)),
    }
}

/// The digits in front, if there are any.
fn number(rest: &mut &str) -> Result<Option<usize>> {
    const MOST: usize = 1 << 16; // a template from the internet must not ask for gigabytes
    let text = *rest;
    let (digits, tail) =
        text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    *rest = tail;
    match digits.parse() {
        _ if digits.is_empty() => Ok(None),
        Ok(number) if number <= MOST => Ok(Some(number)),
        _ => Err(invalid(format!("got a width of {digits}, expected at most {MOST}"))),
    }
}

/// Python's `format % values`: conversions s r d i x X o f e %, flags, width and precision.
fn percent(format: &str, values: &Value) -> Result<String> {
    let is_tuple = values.downcast_object_ref::<Tuple>().is_some();
    let mut given = match is_tuple {
        true => values.try_iter()?.collect::<Vec<_>>(),
        false => vec![values.clone()],
    }
    .into_iter();
    let (mut out, mut is_named) = (String::new(), false);
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out += &rest[..at];
        rest = &rest[at + 1..];
        let mut named = None;
        if let Some(tail) = rest.strip_prefix('(') {
            let end = tail.find(')').ok_or_else(|| invalid("incomplete format key"))?;
            named = Some(values.get_item(&Value::from(&tail[..end]))?);
            rest = &tail[end + 1..];
            is_named = true;
        }
        let size = rest.find(|c| !"-+ 0#".contains(c)).unwrap_or(rest.len());
        let flags = &rest[..size];
        rest = &rest[size..];
        let width = number(&mut rest)?.unwrap_or(0);
        let mut precision = None;
        if let Some(tail) = rest.strip_prefix('.') {
            rest = tail;
            precision = Some(number(&mut rest)?.unwrap_or(0));
        }
        let conversion = rest.chars().next().ok_or_else(|| invalid("incomplete format"))?;
        rest = &rest[conversion.len_utf8()..];
        if conversion == '%' {
            out.push('%');
            continue;
        }
        let value = named.or_else(|| given.next());
        let value = value.ok_or_else(|| invalid("not enough arguments for format string"))?;
        let is_text = matches!(conversion, 's' | 'r');
        let (sign, body) = converted(conversion, &value, precision, flags)?;
        let missing = width.saturating_sub(sign.chars().count() + body.chars().count());
        if flags.contains('-') {
            out += &(sign + &body + &" ".repeat(missing));
        } else if flags.contains('0') && !is_text {
            out += &(sign + &"0".repeat(missing) + &body);
        } else {
            out += &(" ".repeat(missing) + &sign + &body);
        }
    }
    if given.next().is_some() && !is_named && (is_tuple || values.kind() != ValueKind::Map) {
        return Err(invalid("not all arguments converted during string formatting"));
    }
    Ok(out + rest)
}

/// The sign and what follows it.
fn converted(
    conversion: char,
    value: &Value,
    precision: Option<usize>,
    flags: &str,
) -> Result<(String, String)> {
    let unfit = || invalid(format!("%{conversion}: got {}, expected a number", value.kind()));
    let sign = |is_negative: bool| match is_negative {
        true => "-".to_owned(),
        false if flags.contains('+') => "+".to_owned(),
        false if flags.contains(' ') => " ".to_owned(),
        false => String::new(),
    };
    if matches!(conversion, 's' | 'r') {
        let text = match conversion {
            's' => to_str(value)?,
            _ => {
                let mut text = String::new();
                write_repr(value, &mut text)?;
                text
            }
        };
        let most = precision.unwrap_or(usize::MAX);
        return Ok((String::new(), text.chars().take(most).collect()));
    }
    if matches!(conversion, 'f' | 'F' | 'e' | 'E') {
        let number = float(value).filter(|number| number.is_finite()).ok_or_else(unfit)?;
        let (digits, size) = (number.abs(), precision.unwrap_or(6));
        let body = match conversion {
            'f' | 'F' => format!("{digits:.size$}"),
            _ => {
                let text = format!("{digits:.size$e}");
                let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
                let exponent: i32 = exponent.parse().unwrap_or(0);
                let mark = if exponent < 0 { '-' } else { '+' };
                format!("{mantissa}{conversion}{mark}{:02}", exponent.abs())
            }
        };
        return Ok((sign(number.is_sign_negative()), body));
    }
    let number = match (conversion, as_float(value)) {
        ('d' | 'i' | 'u', Some(number)) if number.is_finite() => number as i128,
        _ => integer(value).ok_or_else(unfit)?,
    };
    let digits = number.unsigned_abs();
    let body = match conversion {
        'd' | 'i' | 'u' => digits.to_string(),
        'x' => format!("{digits:x}"),
        'X' => format!("{digits:X}"),
        'o' => format!("{digits:o}"),
        _ => return Err(invalid(format!("format character {conversion:?} is not supported"))),
    };
    if flags.contains('#') || (precision.is_some() && !"sr".contains(conversion)) {
        return Err(invalid(format!("%{conversion} with # or a precision is not supported")));
    }
    Ok((sign(number < 0), body))
}

// ---- filters ----

/// By their places or names.
struct Arguments {
    positional: Rest<Value>,
    named: Kwargs,
}

impl Arguments {
    fn get(&self, index: usize, name: &str) -> Result<Option<Value>> {
        match self.positional.get(index) {
            Some(value) => Ok(Some(value.clone())),
            None => self.named.get::<Option<Value>>(name),
        }
    }

    fn flag(&self, index: usize, name: &str) -> Result<bool> {
        Ok(self.get(index, name)?.is_some_and(|value| value.is_true()))
    }

    fn size(&self, index: usize, name: &str, usual: usize) -> Result<usize> {
        const MOST: i64 = 1 << 16;
        match self.get(index, name)? {
            None => Ok(usual),
            Some(value) => match value.as_i64() {
                Some(size @ 0..=MOST) => Ok(size as usize),
                _ => Err(invalid(format!("{name}: got {value}, expected 0 to {MOST}"))),
            },
        }
    }
}

/// `indent(s, width=4, first=False, blank=False)`
pub fn indent(value: &Value, positional: Rest<Value>, named: Kwargs) -> Result<String> {
    let arguments = Arguments { positional, named };
    let width = arguments.get(0, "width")?;
    let by = match width.as_ref().and_then(Value::as_str) {
        Some(text) => text.to_owned(),
        None => " ".repeat(arguments.size(0, "width", 4)?),
    };
    let (first, blank) = (arguments.flag(1, "first")?, arguments.flag(2, "blank")?);
    arguments.named.assert_all_used()?;
    let text = to_str(value)? + "\n";
    let mut out = if first { by.clone() } else { String::new() };
    for (i, line) in splitlines(&text, false).iter().enumerate() {
        if i > 0 {
            out.push('\n');
            if blank || !line.is_empty() {
                out += &by;
            }
        }
        out += line;
    }
    Ok(out)
}

/// `truncate(s, length=255, killwords=False, end='...', leeway=5)`
pub fn truncate(value: &Value, positional: Rest<Value>, named: Kwargs) -> Result<String> {
    let arguments = Arguments { positional, named };
    let length = arguments.size(0, "length", 255)?;
    let killwords = arguments.flag(1, "killwords")?;
    let end = arguments.get(2, "end")?.map_or_else(|| Ok("...".to_owned()), |end| to_str(&end))?;
    let leeway = match arguments.get(3, "leeway")? {
        Some(value) if value.is_none() => 5,
        _ => arguments.size(3, "leeway", 5)?,
    };
    arguments.named.assert_all_used()?;
    let text = to_str(value)?;
    let ends = end.chars().count();
    if length < ends {
        return Err(invalid(format!("expected length >= {ends}, got {length}")));
    }
    if text.chars().count() <= length + leeway {
        return Ok(text);
    }
    let kept: String = text.chars().take(length - ends).collect();
    let kept = match kept.rfind(' ') {
        Some(at) if !killwords => &kept[..at],
        _ => &kept,
    };
    Ok(kept.to_owned() + &end)
}

/// `wordcount(s)`: runs of letters, digits and underscores.
pub fn wordcount(value: &Value) -> Result<usize> {
    let text = to_str(value)?;
    Ok(text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty()).count())
}

/// `center(s, width=80)`
pub fn center(value: &Value, positional: Rest<Value>, named: Kwargs) -> Result<String> {
    let arguments = Arguments { positional, named };
    let width = arguments.size(0, "width", 80)?;
    arguments.named.assert_all_used()?;
    let text = to_str(value)?;
    let margin = width.saturating_sub(text.chars().count());
    let left = margin / 2 + (margin & width & 1); // as CPython
    Ok(" ".repeat(left) + &text + &" ".repeat(margin - left))
}
