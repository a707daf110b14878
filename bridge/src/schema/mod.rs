//! JSON schemas as grammars of llguidance. Its own compiler reads numbers as 64-bit floats, patterns
//! by Rust's rules and escapes by ones that let excluded characters through (`faults` pins what it
//! does); so the bridge reads schemas itself, and hands over symbols, rules and lexemes.
//!
//! From a text to a grammar:
//! * `json` and `decimal`: the document, its numbers exact;
//! * `document` and `keywords`: where parts stand, what $ref refers to, what each keyword says;
//! * `expand` and `parts`: what schemas that hold together allow, and of which parts;
//! * `number`, `text`, `ecma`, `unicode` and `format`: lexemes;
//! * `build` and `rules`: the grammar.

mod build;
mod decimal;
mod document;
mod ecma;
mod expand;
#[cfg(test)]
mod faults;
mod format;
#[cfg(test)]
mod fuzz;
pub mod json;
mod keywords;
mod number;
mod parts;
mod rules;
#[cfg(test)]
mod tests;
mod text;
mod unicode;

use crate::ffi::{BridgeError, Result};
use json::Json;
use llguidance::api::GrammarWithLexer;
use llguidance::derivre::RegexAst;
use llguidance::earley::lexerspec::{LexemeIdx, LexerSpec};
use llguidance::earley::{Grammar, SymIdx};
use llguidance::regex_to_lark;
use rules::Rules;
use std::rc::Rc;

/// How JSON is written: a schema's "x-guidance".
#[derive(Clone)]
pub struct Style {
    item_separator: String,
    key_separator: String,
    blanks: Option<String>,
    coerce_one_of: bool,
}

impl Style {
    /// With blanks unless the schema says otherwise, as inside of a Lark grammar, or without.
    pub fn of(schema: &Json, is_flexible: bool) -> Result<Self> {
        let mut style = Style {
            item_separator: ",".into(),
            key_separator: ":".into(),
            blanks: is_flexible.then(|| r"[\x20\x0A\x0D\x09]+".into()),
            coerce_one_of: false,
        };
        let options = match schema.get("x-guidance") {
            None => return Ok(style),
            Some(Json::Object(options)) => options,
            Some(got) => {
                let got = got.brief();
                return Err(format!("#/x-guidance: got {got}, expected an object").into());
            }
        };
        style.blanks = Some(r"[\x20\x0A\x0D\x09]+".into());
        let mut pattern = None; // which counts more than whitespace_flexible
        for (key, value) in options {
            match (key.as_str(), value) {
                ("item_separator", Json::String(regex)) => style.item_separator = regex.clone(),
                ("key_separator", Json::String(regex)) => style.key_separator = regex.clone(),
                ("whitespace_flexible", Json::Bool(false)) => style.blanks = None,
                ("whitespace_flexible", Json::Bool(true)) => {}
                ("coerce_one_of", Json::Bool(flag)) => style.coerce_one_of = *flag,
                ("whitespace_pattern", Json::String(regex)) => pattern = Some(regex.clone()),
                ("whitespace_pattern", Json::Null) => {}
                _ => {
                    return Err(BridgeError(format!(
                        "#/x-guidance/{key}: got {}, expected whitespace_flexible, \
                         whitespace_pattern, item_separator, key_separator or coerce_one_of",
                        value.brief()
                    )))
                }
            }
        }
        style.blanks = pattern.or(style.blanks);
        Ok(style)
    }

    fn skipped(&self) -> RegexAst {
        match &self.blanks {
            Some(pattern) => RegexAst::Regex(regex_to_lark(pattern, "")),
            None => RegexAst::NoMatch,
        }
    }
}

/// A schema inside of a Lark grammar: until the library has compiled that, a grammar of one text
/// stands in its place.
#[derive(Clone)]
pub struct Part {
    pub schema: Rc<Json>,
    pub style: Style,
    pub number: usize,
}

impl Part {
    pub fn name(&self) -> String {
        format!("json_schema_{}", self.number)
    }

    fn mark(&self) -> String {
        format!("\u{1}{}\u{1}", self.name())
    }

    pub fn placeholder(&self) -> GrammarWithLexer {
        let mark = serde_json::Value::from(self.mark());
        let blanks = match &self.style.blanks {
            Some(pattern) => format!("%ignore /{}/\n", regex_to_lark(pattern, "")),
            None => String::new(),
        };
        let once = "%llguidance {\"ignore_once\": true}\n";
        GrammarWithLexer {
            name: Some(self.name()),
            lark_grammar: Some(format!("{once}{blanks}start: {mark}\n")),
            json_schema: None,
        }
    }
}

/// A grammar under way.
pub struct Grammars(Rules);

impl Grammars {
    pub fn new(lexer: LexerSpec) -> Self {
        Grammars(Rules::new(Grammar::new(None), lexer))
    }

    /// The lexeme that stands for a schema in a Lark grammar.
    pub fn mark(&mut self, part: &Part) -> Result<LexemeIdx> {
        self.0.begin(part.style.skipped())?;
        self.0.lexeme_of(RegexAst::Literal(part.mark()))
    }

    pub fn grammar(&mut self) -> &mut Grammar {
        &mut self.0.grammar
    }

    pub fn lexer(&self) -> &LexerSpec {
        &self.0.lexer
    }

    /// The rule of a symbol: the schema.
    pub fn fill(&mut self, symbol: SymIdx, part: &Part) -> Result<()> {
        self.0.begin(part.style.skipped())?;
        let root = build::build(&part.schema, &part.style, &mut self.0)?;
        self.0.add(symbol, vec![root]);
        self.0.check_size()
    }

    pub fn into_parts(self) -> (Grammar, LexerSpec) {
        (self.0.grammar, self.0.lexer)
    }
}

/// A schema alone.
pub fn grammar_of(schema: &Json, style: &Style) -> Result<(Grammar, LexerSpec)> {
    let mut rules = Rules::new(Grammar::new(None), LexerSpec::new()?);
    rules.begin(style.skipped())?;
    let start = rules.start();
    let root = build::build(schema, style, &mut rules)?;
    rules.add(start, vec![root]);
    Ok((rules.grammar, rules.lexer))
}
