//! Regular expressions of JSON's strings, as they stand in a text: a character that a pattern
//! matches is there in each of its spellings, and one that it does not match in none.

use super::ecma::{self, Node};
use super::unicode::Set;
use crate::ffi::{BridgeError, Result};
use llguidance::derivre::{Regex, RegexAst, RegexBuilder};

/// Of looking for a text that matches.
const FUEL: u64 = 20_000;

/// What one string must be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Text {
    pub least: u32,
    pub most: Option<u32>,
    pub patterns: Vec<String>,
}

impl Text {
    /// Without the quotation marks.
    fn inner(&self) -> Result<RegexAst> {
        let most = self.most.unwrap_or(u32::MAX);
        let sized = RegexAst::Repeat(Box::new(any()), self.least, most);
        if self.patterns.is_empty() {
            return Ok(sized);
        }
        let mut all = Vec::new();
        for pattern in &self.patterns {
            all.push(searched(&ecma::parse(pattern)?)?);
        }
        if self.least > 0 || self.most.is_some() {
            all.push(sized);
        }
        Ok(RegexAst::And(all))
    }

    /// What matches it; none: nothing does.
    pub fn regex(&self) -> Result<Option<RegexAst>> {
        if self.most.is_some_and(|most| most < self.least) {
            return Ok(None);
        }
        let ast = quoted(self.inner()?);
        Ok(match self.patterns.is_empty() || !is_empty(&ast)? {
            true => Some(ast),
            false => None,
        })
    }
}

/// Whether a pattern can be kept.
pub fn check(node: &Node) -> Result<()> {
    searched(node).map(drop)
}

/// Strings of which a part matches a pattern.
pub fn matching(pattern: &str) -> Result<RegexAst> {
    Ok(quoted(searched(&ecma::parse(pattern)?)?))
}

fn quoted(inner: RegexAst) -> RegexAst {
    let mark = || RegexAst::Literal("\"".into());
    RegexAst::Concat(vec![mark(), inner, mark()])
}

/// Any character.
fn any() -> RegexAst {
    unit(&Set::default().inverted())
}

fn any_number() -> RegexAst {
    RegexAst::Repeat(Box::new(any()), 0, u32::MAX)
}

/// One character of a set, as itself or escaped where JSON wants it so.
fn unit(set: &Set) -> RegexAst {
    let mut options = Vec::new();
    options.extend(set.class_from(0x20, &[0x22, 0x5c, 0x7f]));
    if (0..0x20).all(|code| set.contains(code)) {
        options.push(r"\\(?:[bfnrt]|u00[01][0-9a-fA-F])".into());
    } else {
        for code in (0..0x20).filter(|&code| set.contains(code)) {
            options.push(format!(r"\\u00(?:{code:02x}|{code:02X})"));
            options.extend(short_of(code).map(|letter| format!(r"\\{letter}")));
        }
    }
    for (code, text) in [(0x22, r#"\\""#), (0x5c, r"\\\\"), (0x7f, r"\\u007[fF]")] {
        if set.contains(code) {
            options.push(text.into());
        }
    }
    match options.is_empty() {
        true => RegexAst::NoMatch,
        false => RegexAst::Regex(options.join("|")),
    }
}

fn short_of(code: u32) -> Option<char> {
    let short = [(8, 'b'), (9, 't'), (10, 'n'), (12, 'f'), (13, 'r')];
    short.iter().find(|(known, _)| *known == code).map(|(_, letter)| *letter)
}

/// A string in the one way that constants and names are written in.
pub fn written(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match (c, short_of(c.into())) {
            ('"' | '\\', _) => out.extend(['\\', c]),
            (_, Some(letter)) => out.extend(['\\', letter]),
            ('\0'..='\u{1f}' | '\u{7f}', None) => out += &format!("\\u{:04x}", u32::from(c)),
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A string in all ways that it may be written in.
pub fn spellings(text: &str) -> RegexAst {
    let units = text.chars().map(|c| match c {
        '"' | '\\' | '\0'..='\u{1f}' | '\u{7f}' => unit(&Set::of(c)),
        c => RegexAst::Literal(c.into()),
    });
    quoted(RegexAst::Concat(units.collect()))
}

/// A way to match: perhaps only at the start of the string, or only up to its end.
struct Part {
    start: bool,
    end: bool,
    nullable: bool,
    ast: RegexAst,
}

impl Part {
    fn plain(ast: RegexAst, nullable: bool) -> Self {
        Part { start: false, end: false, nullable, ast }
    }

    fn nothing() -> Self {
        Part::plain(RegexAst::EmptyString, true)
    }
}

fn parts(node: &Node) -> Result<Vec<Part>> {
    Ok(match node {
        Node::Class(set) => vec![Part::plain(unit(set), false)],
        Node::Start => vec![Part { start: true, ..Part::nothing() }],
        Node::End => vec![Part { end: true, ..Part::nothing() }],
        Node::Concat(nodes) => {
            let mut all = vec![Part::nothing()];
            for node in nodes {
                let next = parts(node)?;
                let pairs = all.iter().flat_map(|a| next.iter().filter_map(|b| followed(a, b)));
                all = merged(pairs.collect());
            }
            all
        }
        Node::Or(nodes) => {
            let mut all = Vec::new();
            for node in nodes {
                all.extend(parts(node)?);
            }
            merged(all)
        }
        Node::Repeat(node, least, most) => {
            let mut inner = parts(node)?;
            let nullable = *least == 0 || inner.iter().any(|part| part.nullable);
            match (inner.as_slice(), *least, *most) {
                ([], 0, _) => vec![Part::nothing()],
                ([], _, _) => Vec::new(),
                ([Part { start: false, end: false, .. }], _, _) => {
                    let ast = Box::new(inner.remove(0).ast);
                    let most = most.unwrap_or(u32::MAX);
                    vec![Part::plain(RegexAst::Repeat(ast, *least, most), nullable)]
                }
                (_, 1, Some(1)) => inner,
                (_, 0, Some(1)) => {
                    inner.push(Part::nothing());
                    merged(inner)
                }
                _ => {
                    let message = "got ^ or $ in something that is repeated, expected neither";
                    return Err(BridgeError(message.into()));
                }
            }
        }
    })
}

/// One after the other: where the second is at the start of the string, the first is empty.
fn followed(a: &Part, b: &Part) -> Option<Part> {
    if (b.start && !a.nullable) || (a.end && !b.nullable) {
        return None;
    }
    let mut both = Vec::new();
    if !b.start {
        both.push(a.ast.clone());
    }
    if !a.end {
        both.push(b.ast.clone());
    }
    Some(Part {
        start: a.start || b.start,
        end: a.end || b.end,
        nullable: a.nullable && b.nullable,
        ast: RegexAst::Concat(both),
    })
}

fn merged(parts: Vec<Part>) -> Vec<Part> {
    let mut kept: Vec<Part> = Vec::new();
    for part in parts {
        match kept.iter_mut().find(|kept| (kept.start, kept.end) == (part.start, part.end)) {
            Some(same) => {
                same.nullable |= part.nullable;
                match &mut same.ast {
                    RegexAst::Or(options) => options.push(part.ast),
                    ast => {
                        let first = std::mem::replace(ast, RegexAst::NoMatch);
                        *ast = RegexAst::Or(vec![first, part.ast]);
                    }
                }
            }
            None => kept.push(part),
        }
    }
    kept
}

/// Texts of which a part matches.
fn searched(node: &Node) -> Result<RegexAst> {
    let whole = parts(node)?.into_iter().map(|part| {
        let mut all = Vec::new();
        if !part.start {
            all.push(any_number());
        }
        all.push(part.ast);
        if !part.end {
            all.push(any_number());
        }
        RegexAst::Concat(all)
    });
    Ok(RegexAst::Or(whole.collect()))
}

/// Whether it is certain that nothing matches.
pub fn is_empty(ast: &RegexAst) -> Result<bool> {
    let mut builder = RegexBuilder::new();
    let expr = builder.mk(ast)?;
    if builder.exprset().is_positive(expr) {
        return Ok(false);
    }
    Ok(builder.to_regex_limited(expr, FUEL).is_ok_and(|mut regex| regex.always_empty()))
}

/// To ask for many texts.
pub fn matcher(ast: &RegexAst) -> Result<Regex> {
    let mut builder = RegexBuilder::new();
    let expr = builder.mk(ast)?;
    Ok(builder.to_regex_limited(expr, FUEL)?)
}
