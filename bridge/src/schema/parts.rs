//! What an alternative says of numbers, strings, items and properties, put together from all of its
//! schemas.

use super::document::Id;
use super::expand::{Alternative, Expander, Set};
use super::json::{member, Json};
use super::keywords::{FRACTION, INTEGER};
use super::number::Range;
use super::text::{matcher, matching, written, Text};
use crate::ffi::Result;
use std::collections::{BTreeSet, HashMap};

pub struct Items {
    pub least: u32,
    pub most: Option<u32>,
    /// Of items with schemas of their own.
    pub prefix: usize,
}

pub struct Members<'a> {
    /// Listed, in order, and whether they are required.
    pub names: Vec<(&'a str, bool)>,
    pub patterns: Vec<&'a str>,
    pub least: u32,
    pub most: Option<u32>,
    /// Of names.
    pub name_set: Set,
}

impl<'a> Expander<'a> {
    pub fn range(&self, found: &Alternative<'a>) -> Result<Range> {
        let integer = found.types & (INTEGER | FRACTION) == INTEGER;
        let mut range = Range { integer, ..Range::default() };
        for &id in &found.schemas {
            self.document.restrict_number(id, &mut range)?;
        }
        Ok(range)
    }

    pub fn text(&self, found: &Alternative<'a>) -> Result<Text> {
        let mut text = Text::default();
        for &id in &found.schemas {
            self.document.restrict_text(id, &mut text)?;
        }
        text.patterns.sort_unstable();
        text.patterns.dedup();
        Ok(text)
    }

    /// The items that have schemas of their own, and the schema of the rest.
    pub(super) fn item_schemas(&self, id: Id) -> Result<(Vec<Id>, Option<Id>)> {
        let document = &self.document;
        let own = match document.json(id).get("items") {
            Some(Json::Array(_)) => {
                return Ok((
                    document.schemas(id, "items")?,
                    document.schema(id, "additionalItems")?,
                ))
            }
            _ => document.schema(id, "items")?,
        };
        let prefix = match document.is_old {
            true => Vec::new(),
            false => document.schemas(id, "prefixItems")?,
        };
        let left = match (own, document.schema(id, "unevaluatedItems")?) {
            (None, Some(left)) if !document.is_always(document.json(left)) => {
                if self.has_applied(id) || document.json(id).get("contains").is_some() {
                    return Err(self.unsupported(id, "unevaluatedItems"));
                }
                Some(left)
            }
            (own, _) => own,
        };
        Ok((prefix, left))
    }

    pub fn items(&self, found: &Alternative<'a>) -> Result<Items> {
        let document = &self.document;
        let mut items = Items { least: 0, most: None, prefix: 0 };
        for &id in &found.schemas {
            let most = document.limit(id, "maxItems")?;
            items.least = items.least.max(document.size(id, "minItems")?.unwrap_or(0));
            items.restrict(most);
            items.prefix = items.prefix.max(self.item_schemas(id)?.0.len());
            if let Some(contained) = document.schema(id, "contains")? {
                let least = document.size(id, "minContains")?.unwrap_or(1);
                let most = document.limit(id, "maxContains")?;
                if document.is_always(document.json(contained)) {
                    items.least = items.least.max(least);
                    items.restrict(most);
                } else if least > 0 || most.is_some() {
                    return Err(self.unsupported(id, "contains"));
                }
            }
        }
        for &id in &found.schemas {
            if document.flag(id, "uniqueItems")? && items.most.is_none_or(|most| most > 1) {
                return Err(self.unsupported(id, "uniqueItems"));
            }
        }
        Ok(items)
    }

    pub fn item_set(&self, found: &Alternative<'a>, index: usize) -> Result<Set> {
        let mut all = Vec::new();
        for &id in &found.schemas {
            let (prefix, rest) = self.item_schemas(id)?;
            all.extend(prefix.get(index).copied().or(rest));
        }
        Ok(self.set(all))
    }

    pub fn object(&self, found: &Alternative<'a>) -> Result<Members<'a>> {
        let document = &self.document;
        let mut names: Vec<(&'a str, bool)> = Vec::new();
        let mut known: HashMap<&'a str, usize> = HashMap::new();
        let (mut least, mut most, mut patterns) = (0, None, Vec::new());
        let mut name_schemas = Vec::new();
        for &id in &found.schemas {
            self.check_object(id)?;
            for (name, _) in document.members(id, "properties")? {
                known.entry(name).or_insert_with(|| {
                    names.push((name, false));
                    names.len() - 1
                });
            }
            for (pattern, _) in document.members(id, "patternProperties")? {
                document.check_pattern(id, "patternProperties", pattern)?;
                if !patterns.contains(&pattern.as_str()) {
                    patterns.push(pattern);
                }
            }
            least = least.max(document.size(id, "minProperties")?.unwrap_or(0));
            if let Some(bound) = document.limit(id, "maxProperties")? {
                most = Some(most.map_or(bound, |old: u32| old.min(bound)));
            }
            name_schemas.extend(document.schema(id, "propertyNames")?);
        }
        for &id in &found.schemas {
            for name in document.required(id)? {
                let at = *known.entry(name).or_insert_with(|| {
                    names.push((name, false));
                    names.len() - 1
                });
                names[at].1 = true;
            }
        }
        Ok(Members { names, patterns, least, most, name_set: self.set(name_schemas) })
    }

    /// Keywords that are kept only where they change nothing.
    fn check_object(&self, id: Id) -> Result<()> {
        let document = &self.document;
        for key in ["dependentRequired", "dependentSchemas", "dependencies"] {
            for (_, needed) in document.members(id, key)? {
                let is_nothing = match needed {
                    Json::Array(names) => names.is_empty(),
                    schema => document.is_always(schema),
                };
                if !is_nothing {
                    return Err(self.unsupported(id, key));
                }
            }
        }
        Ok(())
    }

    /// Of a property with that name, or of all that match these patterns and are not listed.
    pub fn member_set(
        &self,
        found: &Alternative<'a>,
        name: Option<&str>,
        matched: &BTreeSet<&str>,
    ) -> Result<Set> {
        let document = &self.document;
        let mut all = Vec::new();
        for &id in &found.schemas {
            let mut is_told = false;
            if let Some(json) =
                name.and_then(|name| member(document.members(id, "properties").ok()?, name))
            {
                all.push(document.part(id, "properties", json)?);
                is_told = true;
            }
            for (pattern, json) in document.members(id, "patternProperties")? {
                if matched.contains(pattern.as_str()) {
                    all.push(document.part(id, "patternProperties", json)?);
                    is_told = true;
                }
            }
            if is_told {
                continue;
            }
            match document.schema(id, "additionalProperties")? {
                Some(rest) => all.push(rest),
                None => all.extend(self.unevaluated(id, name, matched)?),
            }
        }
        Ok(self.set(all))
    }

    pub fn property_set(&self, found: &Alternative<'a>, name: &str) -> Result<Set> {
        let mut matched = BTreeSet::new();
        for &id in &found.schemas {
            for (pattern, _) in self.document.members(id, "patternProperties")? {
                if self.matches(pattern, name)? {
                    matched.insert(pattern.as_str());
                }
            }
        }
        self.member_set(found, Some(name), &matched)
    }

    /// unevaluatedProperties, if nothing that the schema applies to the same object tells of it.
    fn unevaluated(
        &self,
        id: Id,
        name: Option<&str>,
        matched: &BTreeSet<&str>,
    ) -> Result<Option<Id>> {
        let document = &self.document;
        let Some(left) = document.schema(id, "unevaluatedProperties")? else { return Ok(None) };
        if document.is_always(document.json(left)) {
            return Ok(None);
        }
        let (mut todo, mut seen) = (vec![id], BTreeSet::from([id]));
        while let Some(at) = todo.pop() {
            for key in ["anyOf", "oneOf", "if", "dependentSchemas", "dependencies"] {
                if document.json(at).get(key).is_some() {
                    return Err(self.unsupported(id, "unevaluatedProperties"));
                }
            }
            if at != id {
                let members = document.members(at, "properties")?;
                let is_listed = name.is_some_and(|name| member(members, name).is_some());
                let mut patterns = document.members(at, "patternProperties")?.iter();
                let is_matched = patterns.any(|(pattern, _)| matched.contains(pattern.as_str()));
                let takes_all = ["additionalProperties", "unevaluatedProperties"];
                let is_taken = takes_all.iter().any(|key| document.json(at).get(key).is_some());
                if is_listed || is_matched || is_taken {
                    return Ok(None);
                }
            }
            let mut next = document.schemas(at, "allOf")?;
            if let Some(reference) = document.json(at).get("$ref").and_then(Json::as_str) {
                next.push(document.target(at, reference)?);
            }
            todo.extend(next.into_iter().filter(|&next| seen.insert(next)));
        }
        Ok(Some(left))
    }

    /// Whether a part of the text matches a pattern.
    pub fn matches(&self, pattern: &str, text: &str) -> Result<bool> {
        self.step(1)?;
        let mut patterns = self.patterns.borrow_mut();
        if !patterns.contains_key(pattern) {
            patterns.insert(pattern.to_owned(), matcher(&matching(pattern)?)?);
        }
        let regex = patterns.get_mut(pattern);
        Ok(regex.is_some_and(|regex| regex.is_match(&written(text))))
    }

    // ---- single values ----

    /// Whether a value is of an alternative's types and keeps the local keywords of its schemas.
    pub fn admits(&self, found: &Alternative, value: &Json, depth: usize) -> Result<bool> {
        if !self.has_type(value, found) {
            return Ok(false);
        }
        for &id in &found.schemas {
            if !self.keeps(value, id, depth)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_valid(&self, value: &Json, id: Id, depth: usize) -> Result<bool> {
        self.step(1)?;
        if depth > 200 {
            return Err(self.document.refused(id, "$ref", "got a circle, expected an end"));
        }
        let set = self.set([id]);
        for found in self.expand(&set)?.iter() {
            let is_listed = found
                .values
                .as_ref()
                .is_none_or(|values| values.iter().any(|listed| listed.equals(value)));
            if is_listed && self.admits(found, value, depth + 1)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn keeps(&self, value: &Json, id: Id, depth: usize) -> Result<bool> {
        let alone = Alternative { schemas: vec![id], ..Alternative::any() };
        let is_within = |size: usize, least: u32, most: Option<u32>| {
            size as u64 >= u64::from(least)
                && most.is_none_or(|most| size as u64 <= u64::from(most))
        };
        match value {
            Json::Null | Json::Bool(_) => Ok(true),
            Json::Number(number) => self.range(&alone)?.contains(number),
            Json::String(string) => {
                let text = self.text(&alone)?;
                let size = string.chars().count();
                let mut keeps = is_within(size, text.least, text.most);
                for pattern in &text.patterns {
                    keeps = keeps && self.matches(pattern, string)?;
                }
                Ok(keeps)
            }
            Json::Array(values) => {
                let items = self.items(&alone)?;
                let mut keeps = is_within(values.len(), items.least, items.most);
                for (index, value) in values.iter().enumerate() {
                    for id in self.item_set(&alone, index)? {
                        keeps = keeps && self.is_valid(value, id, depth)?;
                    }
                }
                Ok(keeps)
            }
            Json::Object(values) => {
                let members = self.object(&alone)?;
                let mut keeps = is_within(values.len(), members.least, members.most)
                    && members
                        .names
                        .iter()
                        .all(|(name, is_required)| !is_required || member(values, name).is_some());
                for (name, value) in values {
                    for &id in &members.name_set {
                        let name = Json::String(name.clone());
                        keeps = keeps && self.is_valid(&name, id, depth)?;
                    }
                    for id in self.property_set(&alone, name)? {
                        keeps = keeps && self.is_valid(value, id, depth)?;
                    }
                }
                Ok(keeps)
            }
        }
    }
}

impl Items {
    fn restrict(&mut self, most: Option<u32>) {
        if let Some(most) = most {
            self.most = Some(self.most.map_or(most, |old| old.min(most)));
        }
    }
}
