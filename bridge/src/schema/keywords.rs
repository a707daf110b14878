//! The keywords of one schema object, read with words for what is wrong in them.

use super::document::{Document, Id};
use super::json::Json;
use super::number::Range;
use super::text::Text;
use super::{ecma, format};
use crate::ffi::Result;

/// Types of values, as bits. A number is an integer or has a fraction.
pub type Types = u8;
pub const NULL: Types = 1;
pub const BOOLEAN: Types = 2;
pub const INTEGER: Types = 4;
pub const FRACTION: Types = 8;
pub const STRING: Types = 16;
pub const ARRAY: Types = 32;
pub const OBJECT: Types = 64;
pub const ALL: Types = 127;

/// What only holds for values of one type each.
const OF_NUMBERS: [&str; 5] =
    ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
const OF_STRINGS: [&str; 4] = ["minLength", "maxLength", "pattern", "format"];
const OF_ARRAYS: [&str; 11] = [
    "items",
    "prefixItems",
    "additionalItems",
    "minItems",
    "maxItems",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "unevaluatedItems",
    "$recursiveAnchor",
];
const OF_OBJECTS: [&str; 11] = [
    "properties",
    "patternProperties",
    "additionalProperties",
    "required",
    "minProperties",
    "maxProperties",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedProperties",
];

/// Whether a keyword says something of a value's size or parts.
pub fn is_local(key: &str) -> bool {
    OF_NUMBERS.contains(&key)
        || OF_STRINGS.contains(&key)
        || OF_ARRAYS.contains(&key)
        || OF_OBJECTS.contains(&key)
}

/// Whether a keyword says something of the whole value.
pub fn is_applied(key: &str) -> bool {
    let all = ["type", "const", "enum", "allOf", "anyOf", "oneOf", "not", "if", "$ref"];
    all.contains(&key) || matches!(key, "$dynamicRef" | "$recursiveRef")
}

pub fn type_of(value: &Json) -> Types {
    match value {
        Json::Null => NULL,
        Json::Bool(_) => BOOLEAN,
        Json::Number(number) if number.is_integer() => INTEGER,
        Json::Number(_) => FRACTION,
        Json::String(_) => STRING,
        Json::Array(_) => ARRAY,
        Json::Object(_) => OBJECT,
    }
}

impl<'a> Document<'a> {
    fn wrong<T>(&self, id: Id, key: &str, got: &Json, expected: &str) -> Result<T> {
        Err(self.refused(id, key, format!("got {}, expected {expected}", got.brief())))
    }

    pub fn types(&self, id: Id) -> Result<Types> {
        let of = |name: &Json| match name.as_str() {
            Some("null") => Ok(NULL),
            Some("boolean") => Ok(BOOLEAN),
            Some("integer") => Ok(INTEGER),
            Some("number") => Ok(INTEGER | FRACTION),
            Some("string") => Ok(STRING),
            Some("array") => Ok(ARRAY),
            Some("object") => Ok(OBJECT),
            _ => self.wrong(id, "type", name, "a type's name"),
        };
        match self.json(id).get("type") {
            None => Ok(ALL),
            Some(Json::Array(names)) => names.iter().try_fold(0, |all, name| Ok(all | of(name)?)),
            Some(name) => of(name),
        }
    }

    /// Not negative, whole, however it is written.
    pub fn size(&self, id: Id, key: &str) -> Result<Option<u32>> {
        match self.json(id).get(key) {
            None => Ok(None),
            Some(Json::Number(number)) if number.as_size().is_some() => Ok(number.as_size()),
            Some(got) => self.wrong(id, key, got, "a whole number from 0 on"),
        }
    }

    /// Larger than any text: no bound.
    pub fn limit(&self, id: Id, key: &str) -> Result<Option<u32>> {
        Ok(self.size(id, key)?.filter(|&size| size < u32::MAX))
    }

    pub fn flag(&self, id: Id, key: &str) -> Result<bool> {
        match self.json(id).get(key) {
            None => Ok(false),
            Some(Json::Bool(flag)) => Ok(*flag),
            Some(got) => self.wrong(id, key, got, "true or false"),
        }
    }

    pub fn list(&self, id: Id, key: &str) -> Result<Option<&'a [Json]>> {
        match self.json(id).get(key) {
            None => Ok(None),
            Some(Json::Array(items)) => Ok(Some(items)),
            Some(got) => self.wrong(id, key, got, "a list"),
        }
    }

    pub fn members(&self, id: Id, key: &str) -> Result<&'a [(String, Json)]> {
        match self.json(id).get(key) {
            None => Ok(&[]),
            Some(Json::Object(members)) => Ok(members),
            Some(got) => self.wrong(id, key, got, "an object"),
        }
    }

    /// A part of a keyword's value, as a schema.
    pub fn part(&self, id: Id, key: &str, json: &'a Json) -> Result<Id> {
        match (json, self.id(json)) {
            (Json::Object(_) | Json::Bool(_), Some(part)) => Ok(part),
            _ => self.wrong(id, key, json, "a schema"),
        }
    }

    pub fn schema(&self, id: Id, key: &str) -> Result<Option<Id>> {
        self.json(id).get(key).map(|json| self.part(id, key, json)).transpose()
    }

    /// Schemas in a list.
    pub fn schemas(&self, id: Id, key: &str) -> Result<Vec<Id>> {
        let list = self.list(id, key)?.unwrap_or_default();
        list.iter().map(|json| self.part(id, key, json)).collect()
    }

    pub fn required(&self, id: Id) -> Result<Vec<&'a str>> {
        let names = self.list(id, "required")?.unwrap_or_default();
        let name = |json: &'a Json| match json.as_str() {
            Some(name) => Ok(name),
            None => self.wrong(id, "required", json, "a name"),
        };
        names.iter().map(name).collect()
    }

    /// Whether every value matches, as far as is plain to see.
    pub fn is_always(&self, json: &Json) -> bool {
        match json {
            Json::Bool(flag) => *flag,
            Json::Object(members) => {
                members.iter().all(|(key, _)| !is_local(key) && !is_applied(key))
            }
            _ => false,
        }
    }

    pub fn is_never(&self, json: &Json) -> bool {
        match json {
            Json::Bool(flag) => !flag,
            _ => json.get("not").is_some_and(|not| self.is_always(not)),
        }
    }

    pub fn restrict_number(&self, id: Id, range: &mut Range) -> Result<()> {
        let number = |key: &str| match self.json(id).get(key) {
            None => Ok(None),
            Some(Json::Number(number)) => {
                number.written().map_err(|error| self.refused(id, key, error.0))?;
                Ok(Some(number))
            }
            Some(got) => self.wrong(id, key, got, "a number"),
        };
        // Of draft 4: true, beside minimum.
        let is_flag = |key: &str| matches!(self.json(id).get(key), Some(Json::Bool(_)));
        let excludes = |key: &str| matches!(self.json(id).get(key), Some(Json::Bool(true)));
        if let Some(bound) = number("minimum")? {
            range.at_least(bound, excludes("exclusiveMinimum"));
        }
        if let Some(bound) = number("maximum")? {
            range.at_most(bound, excludes("exclusiveMaximum"));
        }
        if !is_flag("exclusiveMinimum") {
            if let Some(bound) = number("exclusiveMinimum")? {
                range.at_least(bound, true);
            }
        }
        if !is_flag("exclusiveMaximum") {
            if let Some(bound) = number("exclusiveMaximum")? {
                range.at_most(bound, true);
            }
        }
        if let Some(step) = number("multipleOf")? {
            if step.negative || step.is_zero() {
                let got = Json::Number(step.clone());
                return self.wrong(id, "multipleOf", &got, "more than 0");
            }
            range.multiples.push(step.clone());
        }
        Ok(())
    }

    pub fn restrict_text(&self, id: Id, text: &mut Text) -> Result<()> {
        text.least = text.least.max(self.size(id, "minLength")?.unwrap_or(0));
        if let Some(most) = self.limit(id, "maxLength")? {
            text.most = Some(text.most.map_or(most, |old| old.min(most)));
        }
        if let Some(pattern) = self.json(id).get("pattern") {
            let Some(pattern) = pattern.as_str() else {
                return self.wrong(id, "pattern", pattern, "a text");
            };
            self.check_pattern(id, "pattern", pattern)?;
            text.patterns.push(pattern.into());
        }
        match self.json(id).get("format") {
            None => {}
            Some(Json::String(name)) => text.patterns.extend(format::pattern_of(name)),
            Some(got) => return self.wrong(id, "format", got, "a text"),
        }
        Ok(())
    }

    pub fn check_pattern(&self, id: Id, key: &str, pattern: &str) -> Result<()> {
        let checked = ecma::parse(pattern).and_then(|node| super::text::check(&node));
        checked.map_err(|error| self.refused(id, key, error.0))
    }
}
