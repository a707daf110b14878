//! The kinds of grammar, and what each of them is to llguidance.

use crate::ffi::{BridgeError, Result};
use crate::limits::{check_lark, check_schema, Regexes};
use crate::schema::json::Json;
use crate::schema::{Part, Style};
use llguidance::api::TopLevelGrammar;
use std::ffi::c_int;
use std::fmt::Write;

/// `dn_grammar_kind`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    JsonSchema,
    Regex,
    Lark,
    Choice,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::JsonSchema, Kind::Regex, Kind::Lark, Kind::Choice];

    pub fn of(kind: c_int) -> Result<Self> {
        let known = usize::try_from(kind).ok().and_then(|kind| Kind::ALL.get(kind).copied());
        known.ok_or_else(|| BridgeError(format!("grammar kind: got {kind}, expected 0 to 3")))
    }

    pub fn name(self) -> &'static str {
        match self {
            Kind::JsonSchema => "JSON schema",
            Kind::Regex => "regex",
            Kind::Lark => "Lark grammar",
            Kind::Choice => "choice",
        }
    }

    pub fn parse(self, text: &str) -> Result<Source> {
        // As files from Windows have it in front.
        let unmarked = text.strip_prefix('\u{feff}').unwrap_or(text);
        Ok(match self {
            Kind::JsonSchema => schema(unmarked)?,
            Kind::Regex => Source::Grammar(regex(text)?, Vec::new()),
            Kind::Lark => {
                let (text, parts) = check_lark(unmarked)?;
                let mut grammar = TopLevelGrammar::from_lark(text);
                grammar.grammars.extend(parts.iter().map(Part::placeholder));
                Source::Grammar(grammar, parts)
            }
            Kind::Choice => {
                Source::Grammar(TopLevelGrammar::from_lark(choice(unmarked)?), Vec::new())
            }
        })
    }
}

/// What is compiled: a schema by `schema`, all else by llguidance, but for schemas in it.
pub enum Source {
    Schema(Json, Style),
    Grammar(TopLevelGrammar, Vec<Part>),
}

/// Without blanks unless the schema itself says how it is to be written: a model that may write any
/// amount of them can do so forever.
fn schema(text: &str) -> Result<Source> {
    let schema = Json::parse(text)?;
    check_schema(&schema, &mut Regexes::default())?;
    let style = Style::of(&schema, false)?;
    Ok(Source::Schema(schema, style))
}

fn regex(pattern: &str) -> Result<TopLevelGrammar> {
    Regexes::default().check(pattern)?;
    let backslashes = pattern.bytes().rev().take_while(|&byte| byte == b'\\').count();
    if backslashes % 2 == 1 {
        return Err(BridgeError("ends with a backslash that escapes nothing".into()));
    }
    Ok(match pattern {
        "" => TopLevelGrammar::from_lark("start: \"\"".into()),
        _ => TopLevelGrammar::from_regex(pattern),
    })
}

/// A Lark grammar of the strings in a JSON array.
fn choice(text: &str) -> Result<String> {
    let options: Vec<String> = serde_json::from_str(text)
        .map_err(|error| BridgeError(format!("not a JSON array of strings: {error}")))?;
    if options.is_empty() {
        return Err(BridgeError("got no options, expected at least one".into()));
    }
    if let Some(at) = options.iter().position(String::is_empty) {
        return Err(BridgeError(format!("option {at}: got \"\", expected some text")));
    }
    let mut lark = String::from("start: OPTION\nOPTION: ");
    for (at, option) in options.iter().enumerate() {
        lark.push_str(if at == 0 { "\"" } else { " | \"" });
        for c in option.chars() {
            match c {
                '"' | '\\' => lark.extend(['\\', c]),
                '\0'..=' ' | '\x7f' => write!(lark, "\\u{:04x}", u32::from(c))?,
                _ => lark.push(c),
            }
        }
        lark.push('"');
    }
    Ok(lark)
}
