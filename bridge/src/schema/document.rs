//! A schema as a document: its parts by number, where they stand, and what $ref refers to.

use super::json::Json;
use crate::ffi::{BridgeError, Result};
use std::collections::HashMap;

/// Of all objects, lists and true or false in a document.
pub type Id = u32;

struct Place<'a> {
    json: &'a Json,
    above: Id,
    key: &'a str, // in the one above; empty: an item of a list
    index: usize,
    base: usize,
}

pub struct Document<'a> {
    places: Vec<Place<'a>>,
    ids: HashMap<*const Json, Id>,
    bases: Vec<String>,
    resources: HashMap<String, Id>,
    anchors: HashMap<(usize, String), Id>,
    /// Before 2020-12: no prefixItems, and a list in items instead.
    pub is_old: bool,
}

/// What stands under a key: nothing else has $id and anchors.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    Schema,
    Schemas, // in a list, or by name
    Other,
}

fn role_under(key: &str) -> Role {
    match key {
        "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas"
        | "dependencies" | "allOf" | "anyOf" | "oneOf" | "prefixItems" => Role::Schemas,
        "items"
        | "additionalItems"
        | "unevaluatedItems"
        | "contains"
        | "additionalProperties"
        | "unevaluatedProperties"
        | "propertyNames"
        | "not"
        | "if"
        | "then"
        | "else" => Role::Schema,
        _ => Role::Other,
    }
}

const OLD: [&str; 4] = ["draft-04", "draft-06", "draft-07", "2019-09"];

impl<'a> Document<'a> {
    pub fn new(root: &'a Json) -> Self {
        let draft = root.get("$schema").and_then(Json::as_str).unwrap_or_default();
        let mut document = Document {
            places: Vec::new(),
            ids: HashMap::new(),
            bases: vec![String::new()],
            resources: HashMap::new(),
            anchors: HashMap::new(),
            is_old: OLD.iter().any(|old| draft.contains(old)),
        };
        document.resources.insert(String::new(), 0);
        let name = if draft.contains("draft-04") { "id" } else { "$id" };
        let place = Place { json: root, above: 0, key: "", index: 0, base: 0 };
        document.add(place, Role::Schema, name);
        document
    }

    fn add(&mut self, mut place: Place<'a>, role: Role, id_name: &str) {
        let json = place.json;
        let named = if role == Role::Schema { json } else { &Json::Null };
        let id = self.places.len() as Id;
        let mut base = place.base;
        if let Some(name) = named.get(id_name).and_then(Json::as_str) {
            let (uri, fragment) = name.split_once('#').unwrap_or((name, ""));
            if !uri.is_empty() {
                self.bases.push(joined(&self.bases[base], uri));
                base = self.bases.len() - 1;
                self.resources.entry(self.bases[base].clone()).or_insert(id);
            }
            if !fragment.is_empty() {
                self.anchors.entry((base, fragment.to_owned())).or_insert(id);
            }
        }
        for key in ["$anchor", "$dynamicAnchor"] {
            if let Some(name) = named.get(key).and_then(Json::as_str) {
                self.anchors.entry((base, name.to_owned())).or_insert(id);
            }
        }
        place.base = base;
        self.places.push(place);
        self.ids.insert(json, id);
        let mut add = |json: &'a Json, key: &'a str, index: usize, role: Role| {
            if matches!(json, Json::Object(_) | Json::Array(_) | Json::Bool(_)) {
                self.add(Place { json, above: id, key, index, base }, role, id_name);
            }
        };
        match json {
            Json::Object(members) => {
                for (key, value) in members {
                    let is_value = role != Role::Schemas
                        && matches!(key.as_str(), "const" | "enum" | "default" | "examples");
                    let role = match role {
                        Role::Schema => role_under(key),
                        Role::Schemas => Role::Schema,
                        Role::Other => Role::Other,
                    };
                    if !is_value {
                        add(value, key, 0, role);
                    }
                }
            }
            Json::Array(items) => {
                // Of a list in items, too.
                let role = if role == Role::Other { role } else { Role::Schema };
                items.iter().enumerate().for_each(|(index, item)| add(item, "", index, role));
            }
            _ => {}
        }
    }

    pub fn json(&self, id: Id) -> &'a Json {
        self.places[id as usize].json
    }

    /// Of a part of this document that is a schema.
    pub fn id(&self, json: &'a Json) -> Option<Id> {
        self.ids.get(&std::ptr::from_ref(json)).copied()
    }

    /// As a pointer from the root: "#/properties/a".
    pub fn path(&self, id: Id) -> String {
        let mut parts = Vec::new();
        let mut at = id;
        while at != 0 {
            let place = &self.places[at as usize];
            let is_item = matches!(self.json(place.above), Json::Array(_));
            parts.push(match is_item {
                true => place.index.to_string(),
                false => place.key.replace('~', "~0").replace('/', "~1"),
            });
            at = place.above;
        }
        let mut path = String::from("#");
        for part in parts.iter().rev() {
            path.push('/');
            path.extend(part.chars().take(100));
        }
        path
    }

    /// A refusal that says where it is about.
    pub fn refused(&self, id: Id, keyword: &str, what: impl std::fmt::Display) -> BridgeError {
        BridgeError(format!("{}/{keyword}: {what}", self.path(id)))
    }

    /// What a $ref in a schema refers to.
    pub fn target(&self, from: Id, reference: &str) -> Result<Id> {
        let (uri, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let base = &self.bases[self.places[from as usize].base];
        let full = if uri.is_empty() { base.clone() } else { joined(base, uri) };
        let nothing = |what: &str| {
            let shown: String = reference.chars().take(100).collect();
            self.refused(from, "$ref", format!("got {shown:?}, expected {what}"))
        };
        let root = self.resources.get(&full).copied();
        let root = root.ok_or_else(|| nothing("something in this schema"))?;
        let fragment = decoded(fragment).ok_or_else(|| nothing("whole %-escapes of UTF-8"))?;
        if fragment.is_empty() {
            return Ok(root);
        }
        let Some(pointer) = fragment.strip_prefix('/') else {
            let base = self.places[root as usize].base;
            let found = self.anchors.get(&(base, fragment)).copied();
            return found.ok_or_else(|| nothing("an anchor of this schema"));
        };
        let mut at = self.json(root);
        for part in pointer.split('/') {
            let key = part.replace("~1", "/").replace("~0", "~");
            let next = match at {
                Json::Array(items) => key.parse().ok().and_then(|i: usize| items.get(i)),
                _ => at.get(&key),
            };
            at = next.ok_or_else(|| nothing("a part of this schema"))?;
        }
        self.id(at).ok_or_else(|| nothing("a schema"))
    }
}

/// %-escapes taken back.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// RFC 3986: a reference without a fragment, from a base.
fn joined(base: &str, reference: &str) -> String {
    let scheme = |uri: &str| {
        let size = uri.find(':').filter(|&size| !uri[..size].contains(['/', '?']))?;
        Some(size + 1)
    };
    if scheme(reference).is_some() {
        return reference.into();
    }
    let size = scheme(base).unwrap_or(0);
    let (front, rest) = base.split_at(size);
    if reference.starts_with("//") {
        return front.to_owned() + reference;
    }
    let host = match rest.starts_with("//") {
        true => rest[2..].find('/').map_or(rest.len(), |size| size + 2),
        false => 0,
    };
    let (host, path) = rest.split_at(host);
    let path = match (reference.starts_with('/'), path.rfind('/')) {
        (true, _) => reference.to_owned(),
        (false, Some(end)) => path[..=end].to_owned() + reference,
        (false, None) if host.is_empty() => reference.to_owned(),
        (false, None) => format!("/{reference}"),
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    [front, host, &parts.join("/")].concat()
}
