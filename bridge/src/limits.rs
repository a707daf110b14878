//! Bounds on the work that a grammar may cause. What the text shows is checked before llguidance
//! sees it, the rest by llguidance itself with the limits given here, and by one check between.

use crate::ffi::{BridgeError, Result};
use crate::schema::json::Json;
use crate::schema::{Part, Style};
use llguidance::api::ParserLimits;
use llguidance::earley::lexerspec::{LexemeIdx, LexerSpec};
use llguidance::earley::regexvec::LexemeSet;
use serde_json::{Deserializer, Value};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Of a grammar's text. 1 MiB is more than any schema in use.
const MAX_TEXT: usize = 1 << 20;
/// Of one regex, and of all in one grammar: classes such as \w are some hundred ranges each.
const MAX_REGEX: usize = 16 << 10;
const MAX_REGEXES: usize = 128 << 10;
/// Objects in the JSON of a schema, whatever they stand for.
const MAX_OBJECTS: usize = 20_000;
/// llguidance's work grows with the square of the properties of one object.
const MAX_PROPERTIES: usize = 1000;
/// Each pair of them is intersected.
const MAX_PATTERN_PROPERTIES: usize = 16;
/// Each pair of the values below a oneOf is compared.
const MAX_ONE_OF: usize = 4000;
/// A lexer has a state for each remainder. Scaled by the decimals, products must fit 32 bits.
const MAX_MULTIPLE: u64 = 100_000;
const MAX_DECIMALS: u32 = 8;
/// Definitions and alternatives, and the names, strings and regexes in rules: llguidance's work for
/// a state grows with the square of the latter. A terminal is one regex.
const MAX_LARK: usize = 30_000;
const MAX_RULE_PARTS: usize = 15_000;
/// Of a grammar: llguidance asserts that there are less than 65,525.
const MAX_SYMBOLS: usize = 50_000;
/// Of the first step of all lexemes; one is 0.1 to 0.3 us.
const START_FUEL: u64 = 5_000_000;
/// Of a refusal: llguidance shows the lines around the place, and lines can be long.
const MAX_MESSAGE: usize = 2000;
/// Of a message about a matcher, which is one line.
const MAX_LINE: usize = 300;

pub fn parser_limits() -> ParserLimits {
    ParserLimits { max_grammar_size: MAX_SYMBOLS, verbose_errors: false, ..ParserLimits::default() }
}

pub fn at_most(what: &str, got: usize, limit: usize) -> Result<()> {
    match got <= limit {
        true => Ok(()),
        false => Err(BridgeError(format!("{what}: got {got}, expected at most {limit}"))),
    }
}

pub fn check_grammar_size(symbols: usize) -> Result<()> {
    let what = "grammar size (number of symbols) too big (limit for this grammar: ";
    match symbols <= MAX_SYMBOLS {
        true => Ok(()),
        false => Err(format!("{what}{MAX_SYMBOLS})").into()),
    }
}

pub fn check_text(text: &str) -> Result<()> {
    match text.len() {
        ..=MAX_TEXT => Ok(()),
        size => Err(format!("got {size} bytes, expected at most {MAX_TEXT}").into()),
    }
}

/// Adds up what the regexes of one grammar have.
#[derive(Default)]
pub struct Regexes(usize);

impl Regexes {
    pub fn check(&mut self, regex: &str) -> Result<()> {
        at_most("bytes in one regex", regex.len(), MAX_REGEX)?;
        self.0 += regex.len();
        at_most("bytes in all regexes", self.0, MAX_REGEXES)
    }
}

struct Schema<'a> {
    regexes: &'a mut Regexes,
    objects: usize,
    multiples: BTreeSet<(u64, u32)>,
    combines: bool,
}

/// Of the JSON of a schema, which nests at most 128 deep.
pub fn check_schema(schema: &Json, regexes: &mut Regexes) -> Result<()> {
    let mut found = Schema { regexes, objects: 0, multiples: BTreeSet::new(), combines: false };
    found.check(schema)?;
    found.check_multiples()
}

impl Schema<'_> {
    fn check(&mut self, value: &Json) -> Result<()> {
        let members = match value {
            Json::Array(items) => return items.iter().try_for_each(|item| self.check(item)),
            Json::Object(members) => members,
            _ => return Ok(()),
        };
        self.objects += 1;
        at_most("objects in the schema", self.objects, MAX_OBJECTS)?;
        for (key, value) in members {
            match (key.as_str(), value) {
                ("const" | "enum" | "default" | "examples", _) => {
                    self.objects += objects(value); // no schemas
                    at_most("objects in the schema", self.objects, MAX_OBJECTS)?;
                    continue;
                }
                ("pattern", Json::String(regex)) => self.regexes.check(regex)?,
                ("properties", Json::Object(properties)) => {
                    at_most("properties of one object", properties.len(), MAX_PROPERTIES)?;
                }
                ("required", Json::Array(names)) => {
                    at_most("names in one required", names.len(), MAX_PROPERTIES)?;
                }
                ("patternProperties", Json::Object(patterns)) => {
                    let what = "patternProperties of one object";
                    at_most(what, patterns.len(), MAX_PATTERN_PROPERTIES)?;
                    patterns.iter().try_for_each(|(regex, _)| self.regexes.check(regex))?;
                }
                ("oneOf", value) => at_most("values in one oneOf", leaves(value), MAX_ONE_OF)?,
                ("multipleOf", Json::Number(number)) => {
                    self.multiples.insert(decimal(number.as_f64())?);
                }
                ("x-guidance", Json::Object(options)) => {
                    let mut texts = options.iter().filter_map(|(_, value)| value.as_str());
                    texts.try_for_each(|regex| self.regexes.check(regex))?;
                }
                _ => {}
            }
            self.combines |= matches!(key.as_str(), "allOf" | "anyOf" | "oneOf" | "$ref");
            self.check(value)?;
        }
        Ok(())
    }

    /// llguidance computes the least common multiple of those that hold together in 32 bits.
    fn check_multiples(&self) -> Result<()> {
        let decimals = self.multiples.iter().map(|multiple| multiple.1).max().unwrap_or(0);
        let scaled = |&(digits, own): &(u64, u32)| digits * 10u64.pow(decimals - own);
        let (mut least, mut largest) = (1, 1);
        for multiple in self.multiples.iter().map(scaled).filter(|_| self.combines) {
            least = least / gcd(least, multiple) * multiple;
            largest = multiple.max(largest);
            if least.saturating_mul(largest) > u64::from(u32::MAX) {
                let expected = "expected a smaller common multiple where some may hold together";
                return Err(format!("multipleOf: got {least} and {largest}, {expected}").into());
            }
        }
        Ok(())
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 {
        a
    } else {
        gcd(b, a % b)
    }
}

fn objects(value: &Json) -> usize {
    match value {
        Json::Array(items) => items.iter().map(objects).sum(),
        Json::Object(members) => 1 + members.iter().map(|(_, value)| objects(value)).sum::<usize>(),
        _ => 0,
    }
}

/// What a oneOf may come to have to compare: strings and objects.
fn leaves(value: &Json) -> usize {
    match value {
        Json::Array(items) => items.iter().map(leaves).sum(),
        Json::Object(members) => 1 + members.iter().map(|(_, value)| leaves(value)).sum::<usize>(),
        Json::String(_) => 1,
        _ => 0,
    }
}

/// The digits of a multipleOf without its point, and how many stand behind that.
fn decimal(number: f64) -> Result<(u64, u32)> {
    let (mut digits, mut decimals) = (number, 0);
    while digits.fract() != 0.0 && decimals <= MAX_DECIMALS {
        digits *= 10.0;
        decimals += 1;
    }
    if decimals > MAX_DECIMALS || !(0.0..=MAX_MULTIPLE as f64).contains(&digits) {
        let expected = format!("0 to {MAX_MULTIPLE} with at most {MAX_DECIMALS} decimals, digits");
        return Err(format!("multipleOf: got {number}, expected {expected} in all").into());
    }
    Ok((digits as u64, decimals))
}

/// Of a Lark grammar. What is wrong in it is left to llguidance, which says where. Gives the text
/// with names of grammars where it has JSON schemas, and those.
pub fn check_lark(text: &str) -> Result<(String, Vec<Part>)> {
    let (mut kept, mut schemas) = (String::with_capacity(text.len()), Vec::new());
    let mut regexes = Regexes::default();
    let (mut definitions, mut parts) = (0, 0);
    let (mut name, mut in_terminal) = ("", false);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let mut size = c.len_utf8();
        let mut is_part = false;
        if c == '#' || rest.starts_with("//") {
            size = rest.find('\n').unwrap_or(rest.len());
        } else if c == '"' || c == '/' {
            size = quoted(rest, c as u8);
            is_part = true;
            if c == '/' {
                regexes.check(rest[1..size].trim_end_matches('/'))?;
            }
        } else if let Some((word, value)) = with_json(rest) {
            let mut values = Deserializer::from_str(value).into_iter::<Value>();
            let Some(Ok(_)) = values.next() else { break };
            let json = &value[..values.byte_offset()];
            size = word.len() + json.len();
            if word == "%json" {
                let part = lark_schema(json, schemas.len(), &mut regexes)?;
                kept += &format!(" @{} ", part.name());
                schemas.push(part);
                parts += usize::from(!in_terminal);
                rest = &rest[size..];
                continue;
            }
            regexes.check(json)?;
        } else if is_in_name(c) {
            size = rest.find(|c| !is_in_name(c)).unwrap_or(rest.len());
            name = rest[..size].trim_start_matches('_');
            is_part = true;
        } else if c == ':' || c == '|' {
            definitions += 1;
            at_most("definitions and alternatives", definitions, MAX_LARK)?;
            if c == ':' {
                in_terminal = name.starts_with(|c: char| c.is_ascii_uppercase());
            }
        }
        parts += usize::from(is_part && !in_terminal);
        at_most("names, strings and regexes in rules", parts, MAX_RULE_PARTS)?;
        kept.push_str(&rest[..size]);
        rest = &rest[size..];
    }
    kept.push_str(rest);
    Ok((kept, schemas))
}

fn lark_schema(text: &str, number: usize, regexes: &mut Regexes) -> Result<Part> {
    let schema = Json::parse(text)?;
    check_schema(&schema, regexes)?;
    let style = Style::of(&schema, true)?;
    Ok(Part { schema: Rc::new(schema), style, number })
}

fn is_in_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

/// The keyword in front, where JSON follows, and what follows.
fn with_json(text: &str) -> Option<(&str, &str)> {
    let size = ["%json", "%regex", "%llguidance"].iter().find(|word| text.starts_with(**word))?;
    Some(text.split_at(size.len()))
}

/// The size of the string or regex in front, with both its ends.
fn quoted(text: &str, end: u8) -> usize {
    let bytes = text.as_bytes();
    let mut at = 1;
    while at < bytes.len() && bytes[at] != end {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    let size = (at + 1).min(bytes.len());
    (size..=bytes.len()).find(|&size| text.is_char_boundary(size)).unwrap_or(bytes.len())
}

/// llguidance makes the first step of each lexeme without a limit, which is much work where regexes
/// are intersected. The same is done here with one. Gives the lexemes that match nothing.
pub fn check_lexer(spec: &LexerSpec, limits: &ParserLimits) -> Result<LexemeSet> {
    let mut limits = limits.clone();
    let mut lexer = spec.to_regex_vec(&mut limits)?;
    let start = lexer.initial_state(&spec.all_lexemes());
    lexer.set_fuel(START_FUEL);
    for byte in 0..=u8::MAX {
        lexer.transition(start, byte);
    }
    if let Some(error) = lexer.get_error() {
        return Err(format!("its regexes cost too much to start with: {error}").into());
    }
    let mut empty = LexemeSet::new(spec.lexemes.len());
    for lexeme in (0..spec.lexemes.len()).map(LexemeIdx::new) {
        let mut alone = LexemeSet::new(spec.lexemes.len());
        alone.add(lexeme);
        if lexer.initial_state(&alone).is_dead() {
            empty.add(lexeme);
        }
    }
    Ok(empty)
}

/// What llguidance says of a grammar that it refuses.
pub fn refusal(message: &str) -> String {
    let message = message.split("\n<").next().unwrap_or_default();
    match message.strip_prefix("panic: ") {
        Some(what) => bug(what).0,
        None => message.chars().take(MAX_MESSAGE).collect(),
    }
}

/// A panic of llguidance.
pub fn bug(what: &str) -> BridgeError {
    BridgeError(format!("llguidance has a bug that this comes to: {}", one_line(what)))
}

/// What llguidance says of a matcher that came to a limit, without the state that it shows.
pub fn gave_up(message: &str) -> String {
    format!("gave up at a limit: {}", one_line(message))
}

pub fn one_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().chars().take(MAX_LINE).collect()
}
