//! The JSON of a schema, with its numbers as they are written: serde_json's are 64 bits wide.

use super::decimal::Decimal;
use crate::ffi::{BridgeError, Result};

/// As deep as serde_json goes.
const MAX_DEPTH: usize = 128;

#[derive(Debug, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Number(Decimal),
    String(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    pub fn parse(text: &str) -> Result<Self> {
        // Says what is wrong, but for the sizes of numbers.
        if let Err(error) = serde_json::from_str::<serde_json::Value>(text) {
            if !error.to_string().starts_with("number out of range") {
                return Err(BridgeError(format!("not valid JSON: {error}")));
            }
        }
        let mut reader = Reader { text, at: 0 };
        let value = reader.value(0)?;
        reader.skip();
        match reader.at == text.len() {
            true => Ok(value),
            false => Err(reader.wrong()),
        }
    }

    pub fn get(&self, key: &str) -> Option<&Json> {
        match self {
            Json::Object(members) => member(members, key),
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Json::String(text) => Some(text),
            _ => None,
        }
    }

    /// As JSON Schema compares: objects by their members in any order.
    pub fn equals(&self, other: &Json) -> bool {
        match (self, other) {
            (Json::Array(a), Json::Array(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.equals(b))
            }
            (Json::Object(a), Json::Object(b)) => {
                let is_in = |(key, value): &(String, Json)| {
                    member(b, key).is_some_and(|other| value.equals(other))
                };
                a.len() == b.len() && a.iter().all(is_in)
            }
            (a, b) => a == b,
        }
    }

    /// The start of its text, for a message.
    pub fn brief(&self) -> String {
        match self {
            Json::Null => "null".into(),
            Json::Bool(flag) => flag.to_string(),
            Json::Number(number) => number.text().unwrap_or_else(|_| "a large number".into()),
            Json::String(text) => {
                let mut start: String = text.chars().take(60).collect();
                if start.len() < text.len() {
                    start.push_str("...");
                }
                serde_json::Value::from(start).to_string()
            }
            Json::Array(items) => format!("a list of {}", items.len()),
            Json::Object(_) => "an object".into(),
        }
    }
}

pub fn member<'a>(members: &'a [(String, Json)], key: &str) -> Option<&'a Json> {
    members.iter().find(|(name, _)| name == key).map(|(_, value)| value)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn wrong(&self) -> BridgeError {
        BridgeError(format!("not valid JSON at byte {}", self.at))
    }

    fn skip(&mut self) {
        while self.peek().is_some_and(|byte| b" \t\r\n".contains(&byte)) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Whether that sign comes next; it is taken.
    fn takes(&mut self, sign: u8) -> bool {
        self.skip();
        let comes = self.peek() == Some(sign);
        self.at += usize::from(comes);
        comes
    }

    fn value(&mut self, depth: usize) -> Result<Json> {
        if depth > MAX_DEPTH {
            return Err(BridgeError(format!("got more than {MAX_DEPTH} nested values")));
        }
        self.skip();
        match self.peek() {
            Some(b'{') => {
                self.at += 1;
                let mut members: Vec<(String, Json)> = Vec::new();
                let mut seen = std::collections::HashMap::new();
                while !self.takes(b'}') {
                    if !members.is_empty() && !self.takes(b',') {
                        return Err(self.wrong());
                    }
                    self.skip();
                    let key = self.string()?;
                    if !self.takes(b':') {
                        return Err(self.wrong());
                    }
                    let value = self.value(depth + 1)?;
                    match seen.get(&key) {
                        Some(&at) => {
                            let last: &mut (String, Json) = &mut members[at];
                            last.1 = value;
                        }
                        None => {
                            seen.insert(key.clone(), members.len());
                            members.push((key, value));
                        }
                    }
                }
                Ok(Json::Object(members))
            }
            Some(b'[') => {
                self.at += 1;
                let mut items = Vec::new();
                while !self.takes(b']') {
                    if !items.is_empty() && !self.takes(b',') {
                        return Err(self.wrong());
                    }
                    items.push(self.value(depth + 1)?);
                }
                Ok(Json::Array(items))
            }
            Some(b'"') => Ok(Json::String(self.string()?)),
            Some(b'-' | b'0'..=b'9') => {
                let rest = &self.text[self.at..];
                let is_part = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
                let size = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
                self.at += size;
                Ok(Json::Number(Decimal::of(&rest[..size])))
            }
            _ => {
                let words = [
                    ("null", Json::Null),
                    ("true", Json::Bool(true)),
                    ("false", Json::Bool(false)),
                ];
                let rest = &self.text[self.at..];
                match words.into_iter().find(|(word, _)| rest.starts_with(word)) {
                    Some((word, value)) => {
                        self.at += word.len();
                        Ok(value)
                    }
                    None => Err(self.wrong()),
                }
            }
        }
    }

    fn string(&mut self) -> Result<String> {
        let bytes = self.text.as_bytes();
        let start = self.at;
        if self.peek() != Some(b'"') {
            return Err(self.wrong());
        }
        let mut end = start + 1;
        while end < bytes.len() && bytes[end] != b'"' {
            end += if bytes[end] == b'\\' { 2 } else { 1 };
        }
        let quoted = self.text.get(start..=end).ok_or_else(|| self.wrong())?;
        self.at = end + 1;
        Ok(serde_json::from_str(quoted)?)
    }
}
