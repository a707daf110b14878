//! Where chat templates expect Python: how values print, string methods, filters, whitespace.
//!
//! Chat templates are written for Python's jinja2. minijinja prints None, True and containers as
//! Python does; what it (and its `pycompat`) lacks is here, each function with the Python behaviour
//! it stands for.

use minijinja::value::{from_args, Kwargs, Rest, Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use std::fmt::Write;

pub fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

// ---- printing ----

/// `repr(float)`: the shortest digits that round-trip, with an exponent below 1e-4 and from 1e16
/// on.
pub fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{value:e}"); // d.ddde±x, always with an exponent
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let digits = format!("{value}");
        return if digits.contains('.') { digits } else { digits + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// The value as a float, if it is one and not an integer.
pub fn as_float(value: &Value) -> Option<f64> {
    if value.kind() != ValueKind::Number || value.is_integer() {
        return None;
    }
    f64::try_from(value.clone()).ok()
}

/// `repr(str)`: single quotes unless the text has some and no double ones.
fn write_str_repr(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            // Python escapes whatever Unicode calls not printable; controls and odd spaces are what
            // occurs.
            c if c.is_control() || (c.is_whitespace() && c != ' ') => {
                let code = u32::from(c);
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    _ => write!(out, "\\u{code:04x}"),
                };
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// Writes the values with ", " between, each by `write_item`.
fn write_separated(
    values: impl Iterator<Item = Value>,
    out: &mut String,
    mut write_item: impl FnMut(&Value, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    for (i, value) in values.enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        write_item(&value, out)?;
    }
    Ok(())
}

/// `repr(value)`; what is neither a plain value nor a container prints in minijinja's own way.
pub fn write_repr(value: &Value, out: &mut String) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        write_str_repr(text, out);
        return Ok(());
    }
    if let Some(float) = as_float(value) {
        out.push_str(&float_repr(float));
        return Ok(());
    }
    match value.kind() {
        ValueKind::Map => {
            out.push('{');
            write_separated(value.try_iter()?, out, |key, out| {
                write_repr(key, out)?;
                out.push_str(": ");
                write_repr(&value.get_item(key)?, out)
            })?;
            out.push('}');
        }
        ValueKind::Seq if value.downcast_object_ref::<Tuple>().is_some() => {
            out.push('(');
            write_separated(value.try_iter()?, out, write_repr)?;
            out.push_str(if value.len() == Some(1) { ",)" } else { ")" });
        }
        ValueKind::Seq => {
            out.push('[');
            write_separated(value.try_iter()?, out, write_repr)?;
            out.push(']');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}

/// `str(value)`; undefined is the empty string, as jinja2 prints it.
pub fn to_str(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => {
            let mut out = String::new();
            write_repr(value, &mut out)?;
            Ok(out)
        }
    }
}

// ---- strings ----

/// `str.isspace` of one character: Unicode's white space and the four ASCII separators.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

fn is_line_end(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

/// `str.strip` and its one-sided forms; `chars` is a set of characters, white space if none.
pub fn strip<'a>(text: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let matches = |c: char| chars.map_or_else(|| is_space(c), |set| set.contains(c));
    let text = if left { text.trim_start_matches(matches) } else { text };
    if right {
        text.trim_end_matches(matches)
    } else {
        text
    }
}

/// `str.splitlines(keepends)`
pub fn splitlines(text: &str, keep_ends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(is_line_end).unwrap_or(rest.len());
        let tail = &rest[end..];
        let end_size = if tail.starts_with("\r\n") {
            2
        } else {
            tail.chars().next().map_or(0, char::len_utf8)
        };
        lines.push(&rest[..end + if keep_ends { end_size } else { 0 }]);
        rest = &rest[end + end_size..];
    }
    lines
}

/// `str.split()` without a separator: runs of white space, of which `max` at most split (the rest
/// stays whole).
fn split_whitespace(text: &str, max: Option<usize>) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        let end = match max {
            Some(max) if parts.len() >= max => rest.len(),
            _ => rest.find(is_space).unwrap_or(rest.len()),
        };
        parts.push(&rest[..end]);
        rest = rest[end..].trim_start_matches(is_space);
    }
    parts
}

fn partition<'a>(
    text: &'a str,
    separator: &'a str,
    found: Option<usize>,
    from_left: bool,
) -> [&'a str; 3] {
    match found {
        Some(at) => [&text[..at], separator, &text[at + separator.len()..]],
        None if from_left => [text, "", ""],
        None => ["", "", text],
    }
}

/// A count argument of Python, where -1 (or nothing) means no limit.
fn limit(count: Option<i64>) -> Option<usize> {
    count.and_then(|count| usize::try_from(count).ok())
}

fn not_empty(separator: &str) -> Result<&str, Error> {
    if separator.is_empty() {
        return Err(invalid("empty separator"));
    }
    Ok(separator)
}

/// Methods of `str`; `None` for those left to `pycompat`.
fn string_method(text: &str, name: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    let list =
        |parts: Vec<&str>| Value::from(parts.into_iter().map(Value::from).collect::<Vec<_>>());
    let strip_args = |left, right| {
        from_args::<(Option<&str>,)>(args)
            .map(|(chars,)| Value::from(strip(text, chars, left, right)))
    };
    let tuple = |parts: [&str; 3]| Value::from(Tuple::from(parts.map(Value::from).to_vec()));
    let index = |found: Option<usize>| match found {
        Some(at) => Ok(Value::from(text[..at].chars().count())),
        None => Err(invalid("substring not found")),
    };
    Some(match name {
        "strip" => strip_args(true, true),
        "lstrip" => strip_args(true, false),
        "rstrip" => strip_args(false, true),
        "removeprefix" => {
            from_args(args).map(|(p,): (&str,)| Value::from(text.strip_prefix(p).unwrap_or(text)))
        }
        "removesuffix" => {
            from_args(args).map(|(s,): (&str,)| Value::from(text.strip_suffix(s).unwrap_or(text)))
        }
        "partition" => from_args(args).and_then(|(separator,): (&str,)| {
            let found = text.find(not_empty(separator)?);
            Ok(tuple(partition(text, separator, found, true)))
        }),
        "rpartition" => from_args(args).and_then(|(separator,): (&str,)| {
            let found = text.rfind(not_empty(separator)?);
            Ok(tuple(partition(text, separator, found, false)))
        }),
        "split" if args.first().is_none_or(Value::is_none) => {
            let max = args.get(1).and_then(Value::as_i64);
            Ok(list(split_whitespace(text, limit(max))))
        }
        "rsplit" => from_args(args).and_then(|(separator, max): (&str, Option<i64>)| {
            not_empty(separator)?;
            let mut parts: Vec<&str> = match limit(max) {
                Some(max) => text.rsplitn(max.saturating_add(1), separator).collect(),
                None => text.rsplit(separator).collect(),
            };
            parts.reverse();
            Ok(list(parts))
        }),
        "splitlines" => from_args(args).map(|(keep_ends,): (Option<bool>,)| {
            list(splitlines(text, keep_ends.unwrap_or(false)))
        }),
        "index" => from_args(args).and_then(|(needle,): (&str,)| index(text.find(needle))),
        "rindex" => from_args(args).and_then(|(needle,): (&str,)| index(text.rfind(needle))),
        _ => return None,
    })
}

/// Methods that templates call on plain values.
pub fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(result) = value.as_str().and_then(|text| string_method(text, name, args)) {
        return result;
    }
    match (value.kind(), name, args) {
        (ValueKind::Map | ValueKind::Seq, "copy", []) => return Ok(value.clone()),
        (ValueKind::Seq, "index", [item]) => {
            let found = value.try_iter()?.position(|other| other == *item);
            return found.map(Value::from).ok_or_else(|| invalid("value is not in list"));
        }
        _ => {}
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

// ---- filters ----

/// `replace(s, old, new, count=None)`
pub fn replace(value: &Value, old: &str, new: &str, count: Option<i64>) -> Result<String, Error> {
    let text = to_str(value)?;
    Ok(match limit(count) {
        Some(count) => text.replacen(old, new, count),
        None => text.replace(old, new),
    })
}

/// `default(value, default_value="", boolean=False)`
pub fn default(value: &Value, positional: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let replacement = match positional.first() {
        Some(value) => value.clone(),
        None => named.get::<Option<Value>>("default_value")?.unwrap_or_else(|| Value::from("")),
    };
    let or_false = match positional.get(1) {
        Some(value) => value.is_true(),
        None => named.get::<Option<Value>>("boolean")?.is_some_and(|value| value.is_true()),
    };
    named.assert_all_used()?;
    let is_kept = !value.is_undefined() && (!or_false || value.is_true());
    Ok(if is_kept { value.clone() } else { replacement })
}

/// `int(value, default=0, base=10)`: what is no number gives the default.
pub fn int(value: &Value, default: Option<Value>, base: Option<i64>) -> Result<Value, Error> {
    if base.is_some_and(|base| base != 10) {
        return Err(invalid("int: a base that is not 10 is not supported"));
    }
    let number = match value.as_str() {
        Some(text) => {
            let text = strip(text, None, true, true);
            text.parse::<i64>().ok().or_else(|| text.parse().ok().map(|float: f64| float as i64))
        }
        None if value.kind() == ValueKind::Bool => Some(i64::from(value.is_true())),
        None if value.is_integer() => return Ok(value.clone()),
        None => as_float(value).filter(|float| float.is_finite()).map(|float| float as i64),
    };
    Ok(number.map(Value::from).or(default).unwrap_or_else(|| Value::from(0)))
}

/// `float(value, default=0.0)`
pub fn float(value: &Value, default: Option<Value>) -> Value {
    let number = match value.as_str() {
        Some(text) => strip(text, None, true, true).parse().ok(),
        None if value.kind() == ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        None => f64::try_from(value.clone()).ok(),
    };
    number.map(Value::from).or(default).unwrap_or_else(|| Value::from(0.0))
}

// ---- time ----

/// `datetime.now().strftime(format)`, in local time.
pub fn strftime_now(format: &str) -> Result<String, Error> {
    if format.is_empty() {
        return Ok(String::new());
    }
    let format = std::ffi::CString::new(format)
        .map_err(|_| invalid("strftime_now: the format has a NUL"))?;
    let mut buffer = vec![0u8; 4096];
    // SAFETY: every pointer is valid for its call, and strftime is told the size of its buffer.
    let size = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut local: libc::tm = std::mem::zeroed();
        libc::localtime_r(&now, &mut local);
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), format.as_ptr(), &local)
    };
    buffer.truncate(size);
    Ok(String::from_utf8_lossy(&buffer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_python_does() {
        for (value, expected) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e300, "1.25e+300"),
            (-0.0, "-0.0"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(float_repr(value), expected);
        }
    }

    #[test]
    fn containers_print_as_python_does() {
        let value: serde_json::Value =
            serde_json::from_str(r#"{"a":[1,2.50,"it's",null,true],"b":"x\n\"'"}"#).unwrap();
        let value = Value::from(minijinja::value::Serde(&value));
        assert_eq!(
            to_str(&value).unwrap(),
            r#"{'a': [1, 2.5, "it's", None, True], 'b': 'x\n"\''}"#
        );
    }

    #[test]
    fn lines_and_words_split_as_python_does() {
        assert_eq!(splitlines("a\r\nb\rc\u{2028}\n", false), ["a", "b", "c", ""]);
        assert_eq!(splitlines("a\r\nb", true), ["a\r\n", "b"]);
        assert_eq!(split_whitespace("  a b\u{1f}c  ", None), ["a", "b", "c"]);
        assert_eq!(split_whitespace("  a b  c  ", Some(1)), ["a", "b  c  "]);
        assert_eq!(split_whitespace("   ", None), [""; 0]);
    }
}
