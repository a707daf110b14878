//! Python's `json.dumps`, as the filter `tojson` of chat templates uses it, and JSON with integers of
//! any size, as Python reads it.

use crate::ffi::{guard, slice, Buffer, Status, OK};
use crate::python::{as_float, float_repr, invalid};
use minijinja::value::{Kwargs, Object, ObjectRepr, Rest, Serde, Value, ValueKind};
use minijinja::Error;
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::ffi::c_char;
use std::fmt::{Formatter, Write};
use std::sync::Arc;

/// An integer that minijinja has no number for: it prints, and no more.
#[derive(Debug)]
struct BigInt(String);

impl Object for BigInt {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, out: &mut Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

pub fn is_integer(value: &Value) -> bool {
    value.is_integer() || value.downcast_object_ref::<BigInt>().is_some()
}

pub fn is_number(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Number | ValueKind::Bool) || is_integer(value)
}

/// In a string, before the digits of an integer that a JSON library would round.
const MARK: &str = "\u{0}integer ";

/// Whether it is an integer, as JSON writes it, that needs more than 64 bits.
fn is_large(number: &str) -> bool {
    const FEWEST: usize = 19; // digits
    let digits = number.strip_prefix('-').unwrap_or(number);
    digits.len() >= FEWEST
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && !digits.starts_with('0')
        && number.parse::<i64>().is_err()
        && number.parse::<u64>().is_err()
}

/// The JSON text with such integers as marked strings. What is no JSON stays so.
pub fn marked(json: &[u8]) -> Cow<'_, [u8]> {
    let mut out = Vec::new();
    let mut done = 0;
    let mut at = 0;
    while at < json.len() {
        let begin = at;
        match json[at] {
            b'"' => {
                at += 1;
                while at < json.len() && json[at] != b'"' {
                    at += if json[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'-' | b'0'..=b'9' => {
                let is_number =
                    |byte: &u8| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-');
                while json.get(at).is_some_and(is_number) {
                    at += 1;
                }
                let number = str::from_utf8(&json[begin..at]).unwrap_or_default();
                if is_large(number) {
                    out.extend_from_slice(&json[done..begin]);
                    out.extend_from_slice(format!("\"\\u0000integer {number}\"").as_bytes());
                    done = at;
                }
            }
            _ => at += 1,
        }
    }
    match done {
        0 => Cow::Borrowed(json),
        _ => {
            out.extend_from_slice(&json[done..]);
            Cow::Owned(out)
        }
    }
}

/// # Safety
/// Pointers as the header demands.
#[no_mangle]
pub unsafe extern "C" fn dn_json_mark_integers(
    json: *const c_char,
    size: usize,
    out: *mut Buffer,
) -> Status {
    guard(|| {
        *out = marked(slice(json.cast::<u8>(), size)).into_owned().into();
        Ok(OK)
    })
}

/// JSON in which such strings are integers again.
struct Exact<'a>(&'a serde_json::Value);

impl Serialize for Exact<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            serde_json::Value::Array(items) => serializer.collect_seq(items.iter().map(Exact)),
            serde_json::Value::Object(members) => {
                serializer.collect_map(members.iter().map(|(key, value)| (key, Exact(value))))
            }
            serde_json::Value::String(text) => {
                match text.strip_prefix(MARK).filter(|number| is_large(number)) {
                    None => serializer.serialize_str(text),
                    Some(number) => match number.parse::<i128>() {
                        Ok(number) => Value::from(number).serialize(serializer),
                        Err(_) => {
                            Value::from_object(BigInt(number.to_owned())).serialize(serializer)
                        }
                    },
                }
            }
            plain => plain.serialize(serializer),
        }
    }
}

/// The values of a JSON text, in which integers may be marked.
pub fn parse(text: &str) -> serde_json::Result<Value> {
    Ok(Value::from(Serde(&Exact(&serde_json::from_str(text)?))))
}

struct JsonStyle {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

impl JsonStyle {
    fn write_string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }

    fn write_newline(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    /// The items of a container, each written by `write_item`.
    fn write_items<T>(
        &self,
        brackets: (char, char),
        items: &[T],
        depth: usize,
        out: &mut String,
        mut write_item: impl FnMut(&T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(brackets.0);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_str(&self.item_separator);
            }
            self.write_newline(depth + 1, out);
            write_item(item, out)?;
        }
        if !items.is_empty() {
            self.write_newline(depth, out);
        }
        out.push(brackets.1);
        Ok(())
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => match as_float(value) {
                None => out.push_str(&value.to_string()),
                Some(float) if float.is_nan() => out.push_str("NaN"),
                Some(float) if float.is_infinite() => {
                    out.push_str(if float > 0.0 { "Infinity" } else { "-Infinity" });
                }
                Some(float) => out.push_str(&float_repr(float)),
            },
            ValueKind::String => self.write_string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_items(('[', ']'), &items, depth, out, |item, out| {
                    self.write(item, depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.write_items(('{', '}'), &keys, depth, out, |key, out| {
                    match key.as_str() {
                        Some(text) => self.write_string(text, out),
                        None => {
                            let mut text = String::new();
                            self.write(key, 0, &mut text)?; // 1 -> "1", None -> "null"
                            self.write_string(&text, out);
                        }
                    }
                    out.push_str(&self.key_separator);
                    self.write(&value.get_item(key)?, depth + 1, out)
                })?;
            }
            _ if value.downcast_object_ref::<BigInt>().is_some() => {
                out.push_str(&value.to_string())
            }
            kind => {
                return Err(invalid(format!(
                    "tojson: a value of type {kind} is not JSON serializable"
                )))
            }
        }
        Ok(())
    }
}

/// transformers' filter `tojson(x, ensure_ascii=False, indent=None, separators=None,
/// sort_keys=False)`: `json.dumps`, without jinja2's escaping of HTML.
pub fn tojson(value: &Value, positional: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    const MAX_INDENT: usize = 64; // a template from the internet must not ask for gigabytes
    let argument = |index: usize, name: &str| -> Result<Option<Value>, Error> {
        let value = match positional.get(index) {
            Some(value) => Some(value.clone()),
            None => named.get::<Option<Value>>(name)?,
        };
        Ok(value.filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let is_set = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let ensure_ascii = is_set(argument(0, "ensure_ascii")?);
    let indent = match argument(1, "indent")? {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.chars().take(MAX_INDENT).collect(),
            None => " ".repeat(i64::try_from(indent)?.clamp(0, MAX_INDENT as i64) as usize),
        }),
    };
    let (item_separator, key_separator) = match argument(2, "separators")? {
        Some(pair) => {
            (pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string())
        }
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let sort_keys = is_set(argument(3, "sort_keys")?);
    named.assert_all_used()?;
    let style = JsonStyle { ensure_ascii, indent, item_separator, key_separator, sort_keys };
    let mut out = String::new();
    style.write(value, 0, &mut out)?;
    Ok(Value::from(out))
}
