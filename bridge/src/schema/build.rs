//! A schema as a grammar of llguidance: one symbol for each set of schemas that hold together.

use super::expand::{Alternative, Expander, Set};
use super::json::Json;
use super::keywords::{ARRAY, BOOLEAN, FRACTION, INTEGER, NULL, OBJECT, STRING};
use super::rules::Rules;
use super::text::{is_empty, matcher, matching, spellings, written, Text};
use super::{number, Style};
use crate::ffi::{BridgeError, Result};
use llguidance::derivre::RegexAst;
use llguidance::earley::SymIdx;
use std::collections::{BTreeSet, HashMap};

/// States of an object whose properties are counted.
const MAX_COUNTS: usize = 20_000;
/// Kinds of names that patternProperties divide those that are not listed into.
const MAX_KINDS: usize = 64;

pub struct Builder<'a, 'r> {
    schemas: Expander<'a>,
    rules: &'r mut Rules,
    known: HashMap<Set, SymIdx>,
    todo: Vec<(Set, SymIdx)>,
    comma: SymIdx,
    colon: SymIdx,
}

/// Names that are not listed, and what their values must be.
struct Kind {
    names: RegexAst,
    values: Set,
}

/// Adds a schema to a grammar.
pub fn build(schema: &Json, style: &Style, rules: &mut Rules) -> Result<SymIdx> {
    let schemas = Expander::new(schema, style.coerce_one_of);
    let comma = rules.lexeme(RegexAst::Regex(style.item_separator.clone()))?;
    let colon = rules.lexeme(RegexAst::Regex(style.key_separator.clone()))?;
    let mut builder =
        Builder { schemas, rules, known: HashMap::new(), todo: Vec::new(), comma, colon };
    let root = builder.schemas.set([0]);
    let start = builder.symbol(&root);
    while let Some((set, symbol)) = builder.todo.pop() {
        builder.define(&set, symbol)?;
        builder.rules.check_size()?;
    }
    Ok(start)
}

impl<'a> Builder<'a, '_> {
    fn symbol(&mut self, set: &Set) -> SymIdx {
        if let Some(&symbol) = self.known.get(set) {
            return symbol;
        }
        let name = match set.first() {
            Some(&id) => self.schemas.document.path(id),
            None => "any value".into(),
        };
        let symbol = self.rules.symbol(&name);
        self.known.insert(set.clone(), symbol);
        self.todo.push((set.clone(), symbol));
        symbol
    }

    fn define(&mut self, set: &Set, symbol: SymIdx) -> Result<()> {
        let alternatives = self.schemas.expand(set)?;
        let mut scalars = Vec::new();
        for found in alternatives.iter() {
            match &found.values {
                Some(values) => self.add_values(values, found, &mut scalars, symbol)?,
                None => self.add_types(found, &mut scalars, symbol)?,
            }
        }
        if !scalars.is_empty() {
            let lexeme = self.rules.lexeme(RegexAst::Or(scalars))?;
            self.rules.add(symbol, vec![lexeme]);
        }
        Ok(())
    }

    fn add_values(
        &mut self,
        values: &[&'a Json],
        found: &Alternative<'a>,
        scalars: &mut Vec<RegexAst>,
        symbol: SymIdx,
    ) -> Result<()> {
        for value in values {
            if !self.schemas.admits(found, value, 0)? {
                continue;
            }
            match scalar(value)? {
                Some(text) => scalars.push(RegexAst::Literal(text)),
                None => {
                    let mut parts = Vec::new();
                    self.add_value(value, &mut parts)?;
                    self.rules.add(symbol, parts);
                }
            }
            self.rules.check_size()?;
        }
        Ok(())
    }

    fn add_value(&mut self, value: &Json, parts: &mut Vec<SymIdx>) -> Result<()> {
        match value {
            Json::Array(items) => {
                parts.push(self.rules.literal("[")?);
                for (i, item) in items.iter().enumerate() {
                    parts.extend((i > 0).then_some(self.comma));
                    self.add_value(item, parts)?;
                }
                parts.push(self.rules.literal("]")?);
            }
            Json::Object(members) => {
                parts.push(self.rules.literal("{")?);
                for (i, (name, member)) in members.iter().enumerate() {
                    parts.extend((i > 0).then_some(self.comma));
                    parts.extend([self.rules.literal(&written(name))?, self.colon]);
                    self.add_value(member, parts)?;
                }
                parts.push(self.rules.literal("}")?);
            }
            value => parts.push(self.rules.literal(&scalar(value)?.unwrap_or_default())?),
        }
        Ok(())
    }

    fn add_types(
        &mut self,
        found: &Alternative<'a>,
        scalars: &mut Vec<RegexAst>,
        symbol: SymIdx,
    ) -> Result<()> {
        if found.types & NULL != 0 {
            scalars.push(RegexAst::Literal("null".into()));
        }
        if found.types & BOOLEAN != 0 {
            scalars.push(RegexAst::Regex("true|false".into()));
        }
        if found.types & INTEGER != 0 {
            scalars.extend(self.schemas.range(found)?.regex()?);
        } else if found.types & FRACTION != 0 {
            // Only after types that were taken apart, which no keyword does.
            scalars.push(RegexAst::Regex(number::ANY.into()));
        }
        if found.types & STRING != 0 {
            scalars.extend(self.schemas.text(found)?.regex()?);
        }
        if found.types & ARRAY != 0 {
            self.add_array(found, symbol)?;
        }
        if found.types & OBJECT != 0 {
            self.add_object(found, symbol)?;
        }
        Ok(())
    }

    fn add_array(&mut self, found: &Alternative<'a>, symbol: SymIdx) -> Result<()> {
        let items = self.schemas.items(found)?;
        let most = items.most.unwrap_or(u32::MAX);
        if items.least > most {
            return Ok(());
        }
        let prefix = items.prefix.min(most as usize);
        let mut rest = Vec::new();
        for index in 0..=prefix {
            let set = self.schemas.item_set(found, index)?;
            rest.push(self.symbol(&set));
        }
        let tail = rest.pop();
        let left = |count: u32| count.saturating_sub(prefix as u32);
        let bounds = (left(items.least), items.most.map(left));
        let mut body = match tail {
            Some(item) => self.tail(&[vec![item]], prefix > 0, bounds)?,
            None => self.rules.nothing(),
        };
        for (index, &item) in rest.iter().enumerate().rev() {
            let next = self.rules.symbol("items");
            let mut parts = vec![item, body];
            if index > 0 {
                parts.insert(0, self.comma);
            }
            self.rules.add(next, parts);
            if index as u32 >= items.least {
                self.rules.add(next, Vec::new());
            }
            body = next;
        }
        let (open, close) = (self.rules.literal("[")?, self.rules.literal("]")?);
        self.rules.add(symbol, vec![open, body, close]);
        Ok(())
    }

    /// Some more of a list, each one of `options`; behind others or at the start.
    fn tail(
        &mut self,
        options: &[Vec<SymIdx>],
        is_behind: bool,
        (least, most): (u32, Option<u32>),
    ) -> Result<SymIdx> {
        if most == Some(0) || options.is_empty() {
            return Ok(match least {
                0 => self.rules.nothing(),
                _ => self.rules.symbol("never"),
            });
        }
        let one = self.rules.symbol("one");
        options.iter().for_each(|option| self.rules.add(one, option.clone()));
        let another = self.rules.symbol("another");
        self.rules.add(another, vec![self.comma, one]);
        if is_behind {
            return Ok(self.rules.repeated(another, least, most));
        }
        let more = (least.saturating_sub(1), most.map(|most| most - 1));
        let more = self.rules.repeated(another, more.0, more.1);
        let tail = self.rules.symbol("all");
        self.rules.add(tail, vec![one, more]);
        if least == 0 {
            self.rules.add(tail, Vec::new());
        }
        Ok(tail)
    }

    fn add_object(&mut self, found: &Alternative<'a>, symbol: SymIdx) -> Result<()> {
        let members = self.schemas.object(found)?;
        let most = members.most.unwrap_or(u32::MAX);
        let mut name_matcher = match self.names(&members.name_set)? {
            Some(names) => Some(matcher(&names)?),
            None => None,
        };
        let mut listed = Vec::new();
        for &(name, is_required) in &members.names {
            let name_text = written(name);
            if name_matcher.as_mut().is_some_and(|names| !names.is_match(&name_text)) {
                if is_required {
                    return Ok(());
                }
                continue;
            }
            let set = self.schemas.property_set(found, name)?;
            let parts = vec![self.rules.literal(&name_text)?, self.colon, self.symbol(&set)];
            let property = self.rules.symbol("property");
            self.rules.add(property, parts);
            listed.push((property, is_required));
        }
        let mut others = Vec::new();
        let kinds = match most > 0 {
            true => self.kinds(found, &members)?,
            false => Vec::new(),
        };
        for kind in kinds {
            let name = self.rules.lexeme(kind.names)?;
            others.push(vec![name, self.colon, self.symbol(&kind.values)]);
        }
        let required = members.names.iter().filter(|(_, is_required)| *is_required).count() as u32;
        if required > most || members.least > most {
            return Ok(());
        }
        // The same name could come twice, and count once.
        if members.least > required + 1 && !others.is_empty() {
            let id = found
                .schemas
                .iter()
                .find(|&&id| self.schemas.document.json(id).get("minProperties").is_some());
            let what = "expected names for all but one of so many in properties or required";
            return Err(self.schemas.document.refused(
                id.copied().unwrap_or(0),
                "minProperties",
                what,
            ));
        }
        let is_counted = members.least > required
            || (members.most.is_some() && (!others.is_empty() || listed.len() as u32 > most));
        let body = match is_counted {
            true => self.counted(&listed, &others, members.least, members.most)?,
            false => self.in_order(&listed, &others)?,
        };
        let (open, close) = (self.rules.literal("{")?, self.rules.literal("}")?);
        self.rules.add(symbol, vec![open, body, close]);
        Ok(())
    }

    fn in_order(&mut self, listed: &[(SymIdx, bool)], others: &[Vec<SymIdx>]) -> Result<SymIdx> {
        let mut behind = self.tail(others, true, (0, None))?;
        let mut first = self.tail(others, false, (0, None))?;
        for &(property, is_required) in listed.iter().rev() {
            let (next_behind, next_first) = (self.rules.symbol("more"), self.rules.symbol("first"));
            self.rules.add(next_behind, vec![self.comma, property, behind]);
            self.rules.add(next_first, vec![property, behind]);
            if !is_required {
                self.rules.add(next_behind, vec![behind]);
                self.rules.add(next_first, vec![first]);
            }
            (behind, first) = (next_behind, next_first);
        }
        Ok(first)
    }

    /// With a state for each count of properties that were written.
    fn counted(
        &mut self,
        listed: &[(SymIdx, bool)],
        others: &[Vec<SymIdx>],
        least: u32,
        most: Option<u32>,
    ) -> Result<SymIdx> {
        let last = most.unwrap_or(least).min(listed.len() as u32);
        if listed.len() * last as usize > MAX_COUNTS {
            return Err(BridgeError("minProperties or maxProperties of too many names".into()));
        }
        let mut states = Vec::new();
        for count in 0..=last {
            let bounds = (least.saturating_sub(count), most.map(|most| most - count));
            states.push(self.tail(others, count > 0, bounds)?);
        }
        for &(property, is_required) in listed.iter().rev() {
            let mut before = Vec::new();
            for count in 0..=last {
                let state = self.rules.symbol("counted");
                let next = match count < last {
                    true => Some(count + 1),
                    false => most.is_none().then_some(last),
                };
                if let Some(next) = next {
                    let mut parts = vec![property, states[next as usize]];
                    if count > 0 {
                        parts.insert(0, self.comma);
                    }
                    self.rules.add(state, parts);
                }
                if !is_required {
                    self.rules.add(state, vec![states[count as usize]]);
                }
                before.push(state);
            }
            states = before;
            self.rules.check_size()?;
        }
        Ok(states[0])
    }

    /// What all names must match; none: anything.
    fn names(&self, set: &Set) -> Result<Option<RegexAst>> {
        if set.is_empty() {
            return Ok(None);
        }
        let mut options = Vec::new();
        let mut is_free = false;
        for found in self.schemas.expand(set)?.iter() {
            match &found.values {
                Some(values) => {
                    for value in values {
                        let Json::String(name) = value else { continue };
                        if self.schemas.admits(found, value, 0)? {
                            options.push(spellings(name));
                        }
                    }
                }
                None if found.types & STRING != 0 => {
                    let text = self.schemas.text(found)?;
                    is_free |= text == Text::default();
                    options.extend(text.regex()?);
                }
                None => {}
            }
        }
        Ok((!is_free).then_some(RegexAst::Or(options)))
    }

    /// Names that are not listed, by the patterns that they match.
    fn kinds(
        &self,
        found: &Alternative<'a>,
        members: &super::parts::Members<'a>,
    ) -> Result<Vec<Kind>> {
        let any = Text::default().regex()?.unwrap_or(RegexAst::NoMatch);
        let mut base = vec![self.names(&members.name_set)?.unwrap_or(any)];
        if !members.names.is_empty() {
            let listed = members.names.iter().map(|(name, _)| spellings(name)).collect();
            base.push(RegexAst::Not(Box::new(RegexAst::Or(listed))));
        }
        let mut kinds = vec![(base, BTreeSet::new())];
        for &pattern in &members.patterns {
            let names = matching(pattern)?;
            let mut divided = Vec::new();
            for (parts, matched) in kinds {
                self.schemas.step(100)?;
                let mut inside: Vec<RegexAst> = parts.clone();
                inside.push(names.clone());
                let mut outside = parts;
                outside.push(RegexAst::Not(Box::new(names.clone())));
                if !is_empty(&RegexAst::And(inside.clone()))? {
                    let mut all = matched.clone();
                    all.insert(pattern);
                    divided.push((inside, all));
                }
                if !is_empty(&RegexAst::And(outside.clone()))? {
                    divided.push((outside, matched));
                }
            }
            kinds = divided;
            if kinds.len() > MAX_KINDS {
                return Err("patternProperties: expected patterns that overlap less".into());
            }
        }
        let mut all: Vec<Kind> = Vec::new();
        for (mut parts, matched) in kinds {
            let values = self.schemas.member_set(found, None, &matched)?;
            let names = match parts.len() {
                1 => parts.remove(0),
                _ => RegexAst::And(parts),
            };
            let is_dead = values.len() == 1
                && self.schemas.document.is_never(self.schemas.document.json(values[0]));
            if !is_dead {
                all.push(Kind { names, values });
            }
        }
        Ok(all)
    }
}

/// The text of a value without parts.
fn scalar(value: &Json) -> Result<Option<String>> {
    Ok(Some(match value {
        Json::Null => "null".into(),
        Json::Bool(flag) => flag.to_string(),
        Json::Number(number) => number.text()?,
        Json::String(text) => written(text),
        Json::Array(_) | Json::Object(_) => return Ok(None),
    }))
}
