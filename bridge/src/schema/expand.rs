//! What several schemas that hold together allow: alternatives, each of which is a set of schema
//! objects whose keywords hold side by side, for some types or some values.
//!
//! A set stands for the part of a text where it holds. The parts below it (properties, items) are
//! sets again, of the parts of its schemas, found when they are asked for. So recursion through
//! $ref ends where a set comes again, whatever stands beside the $ref.

use super::document::{Document, Id};
use super::json::Json;
use super::keywords::{is_applied, is_local, type_of, Types, ALL};
use super::keywords::{ARRAY, BOOLEAN, FRACTION, INTEGER, NULL, OBJECT, STRING};
use crate::ffi::{BridgeError, Result};
use llguidance::derivre::Regex;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

/// Steps of all work on one schema; one is some 0.1 to 1 us.
const MAX_WORK: u64 = 2_000_000;
/// Of the alternatives of one set: what anyOf beside anyOf come to.
const MAX_ALTERNATIVES: usize = 5000;

/// In the order in which their keywords were found, which is that of properties.
pub type Set = Vec<Id>;

#[derive(Clone, Debug)]
pub struct Alternative<'a> {
    pub schemas: Set,
    pub types: Types,
    pub values: Option<Vec<&'a Json>>,
}

impl Alternative<'_> {
    pub fn any() -> Self {
        Alternative { schemas: Vec::new(), types: ALL, values: None }
    }
}

#[derive(Clone)]
enum Step {
    Schema(Id),
    /// Behind all steps of a schema.
    Close(Id),
    Keywords(Id),
    Options(Rc<Vec<Id>>),
}

#[derive(Clone)]
struct State<'a> {
    steps: Vec<Step>, // the next one last
    seen: BTreeSet<Id>,
    open: BTreeSet<Id>,
    found: Alternative<'a>,
}

pub struct Expander<'a> {
    pub document: Document<'a>,
    /// A oneOf is an anyOf.
    pub coerce_one_of: bool,
    /// While the options of one are compared, others inside are taken for anyOf, which allow more.
    compares: Cell<bool>,
    work: Cell<u64>,
    cache: RefCell<HashMap<(bool, Set), Rc<Vec<Alternative<'a>>>>>,
    pub(super) patterns: RefCell<HashMap<String, Regex>>,
}

impl<'a> Expander<'a> {
    pub fn new(root: &'a Json, coerce_one_of: bool) -> Self {
        Expander {
            document: Document::new(root),
            coerce_one_of,
            compares: Cell::new(false),
            work: Cell::new(0),
            cache: RefCell::default(),
            patterns: RefCell::default(),
        }
    }

    pub fn step(&self, count: u64) -> Result<()> {
        self.work.set(self.work.get() + count);
        match self.work.get() <= MAX_WORK {
            true => Ok(()),
            false => Err(BridgeError("its alternatives are too many to compare".into())),
        }
    }

    /// Without what says nothing.
    pub fn set(&self, schemas: impl IntoIterator<Item = Id>) -> Set {
        let mut set = Set::new();
        for id in schemas {
            if !set.contains(&id) && !self.document.is_always(self.document.json(id)) {
                set.push(id);
            }
        }
        set
    }

    pub fn expand(&self, set: &Set) -> Result<Rc<Vec<Alternative<'a>>>> {
        let key = (self.compares.get(), set.clone());
        if let Some(known) = self.cache.borrow().get(&key) {
            return Ok(known.clone());
        }
        let found = Rc::new(self.alternatives(set)?);
        self.cache.borrow_mut().insert(key, found.clone());
        Ok(found)
    }

    fn alternatives(&self, set: &Set) -> Result<Vec<Alternative<'a>>> {
        let steps = set.iter().rev().map(|&id| Step::Schema(id)).collect();
        let mut states = vec![State {
            steps,
            seen: BTreeSet::new(),
            open: BTreeSet::new(),
            found: Alternative::any(),
        }];
        let mut done = Vec::new();
        while let Some(mut state) = states.pop() {
            self.step(1 + state.seen.len() as u64 / 8)?;
            let is_live = state.found.types != 0
                && state.found.values.as_ref().is_none_or(|values| !values.is_empty());
            if !is_live {
                continue;
            }
            match state.steps.pop() {
                None => {
                    done.push(state.found);
                    if done.len() > MAX_ALTERNATIVES {
                        let id = set.first().copied().unwrap_or(0);
                        let what = format!("got more than {MAX_ALTERNATIVES} alternatives");
                        return Err(self.document.refused(id, "anyOf", what));
                    }
                }
                // Through $ref to where it came from, for the same value: nothing ever matches.
                Some(Step::Schema(id)) if state.open.contains(&id) => {}
                Some(Step::Schema(id)) => {
                    let is_new = state.seen.insert(id);
                    if is_new {
                        state.open.insert(id);
                        state.steps.push(Step::Close(id));
                    }
                    if !is_new || self.take(id, &mut state)? {
                        states.push(state);
                    }
                }
                Some(Step::Close(id)) => {
                    state.open.remove(&id);
                    states.push(state);
                }
                Some(Step::Keywords(id)) => {
                    state.found.schemas.push(id);
                    states.push(state);
                }
                Some(Step::Options(options)) => {
                    for &option in options.iter().rev() {
                        let mut state = state.clone();
                        state.steps.push(Step::Schema(option));
                        states.push(state);
                    }
                }
            }
        }
        Ok(done)
    }

    /// The steps of one schema; false: nothing matches it.
    fn take(&self, id: Id, state: &mut State<'a>) -> Result<bool> {
        let document = &self.document;
        let members = match document.json(id) {
            Json::Bool(flag) => return Ok(*flag),
            Json::Object(members) => members,
            got => {
                let what = format!("got {}, expected a schema", got.brief());
                return Err(document.refused(id, "", what));
            }
        };
        state.found.types &= document.types(id)?;
        let mut steps = Vec::new();
        let mut has_keywords = false;
        for (key, json) in members {
            match key.as_str() {
                "const" => self.keep_values(std::slice::from_ref(json), state)?,
                "enum" => self.keep_values(document.list(id, key)?.unwrap_or_default(), state)?,
                "allOf" => steps.extend(document.schemas(id, key)?.into_iter().map(Step::Schema)),
                "anyOf" => steps.push(Step::Options(Rc::new(document.schemas(id, key)?))),
                "oneOf" => {
                    let options = document.schemas(id, key)?;
                    self.check_one_of(id, &options, state)?;
                    steps.push(Step::Options(Rc::new(options)));
                }
                "$ref" => {
                    let Some(reference) = json.as_str() else {
                        let what = format!("got {}, expected a text", json.brief());
                        return Err(document.refused(id, key, what));
                    };
                    steps.push(Step::Schema(document.target(id, reference)?));
                }
                "not" if document.is_never(json) => {}
                "not" if document.is_always(json) => return Ok(false),
                "if" => {
                    let (yes, no) = (document.schema(id, "then")?, document.schema(id, "else")?);
                    let says = |branch: Option<Id>| {
                        branch.filter(|&id| !document.is_always(document.json(id)))
                    };
                    match (document.is_always(json), document.is_never(json)) {
                        (true, _) => steps.extend(yes.map(Step::Schema)),
                        (_, true) => steps.extend(no.map(Step::Schema)),
                        _ if says(yes).is_none() && says(no).is_none() => {}
                        _ => return Err(self.unsupported(id, key)),
                    }
                }
                "not" | "$dynamicRef" | "$recursiveRef" => return Err(self.unsupported(id, key)),
                key if is_local(key) && !has_keywords => {
                    has_keywords = true;
                    steps.push(Step::Keywords(id));
                }
                _ => {}
            }
        }
        state.steps.extend(steps.into_iter().rev());
        Ok(true)
    }

    pub fn unsupported(&self, id: Id, key: &str) -> BridgeError {
        self.document.refused(id, key, "a constraint cannot keep this keyword")
    }

    fn keep_values(&self, values: &'a [Json], state: &mut State<'a>) -> Result<()> {
        let found = &mut state.found.values;
        *found = Some(match found {
            None => values.iter().collect(),
            Some(old) => {
                self.step(old.len() as u64 * values.len() as u64)?;
                let is_in = |value: &&&Json| values.iter().any(|other| value.equals(other));
                old.iter().filter(is_in).copied().collect()
            }
        });
        Ok(())
    }

    /// No value may match two of them, beside what is known of the value already.
    fn check_one_of(&self, id: Id, options: &[Id], state: &State<'a>) -> Result<()> {
        if self.coerce_one_of || self.compares.get() {
            return Ok(());
        }
        let mut beside = state.found.clone();
        beside.schemas.push(id);
        self.compares.set(true);
        let compared = self.overlap(options, &beside);
        self.compares.set(false);
        match compared? {
            None => Ok(()),
            Some((i, j)) => {
                let what = format!("options {i} and {j} may both match, expected that none do");
                Err(self.document.refused(id, "oneOf", what))
            }
        }
    }

    fn overlap(&self, options: &[Id], beside: &Alternative<'a>) -> Result<Option<(usize, usize)>> {
        for (i, &a) in options.iter().enumerate() {
            for (j, &b) in options.iter().enumerate().skip(i + 1) {
                let both = self.set([a, b]);
                let mut is_apart = false;
                for depth in [0, 1, 3] {
                    is_apart = is_apart || self.is_surely_empty(&both, beside, depth)?;
                }
                if !is_apart {
                    return Ok(Some((i, j)));
                }
            }
        }
        Ok(None)
    }

    /// Whether it is certain that no value matches, from what is seen so many levels down.
    fn is_surely_empty(&self, set: &Set, beside: &Alternative<'a>, depth: usize) -> Result<bool> {
        for found in self.expand(set)?.iter() {
            let mut found = found.clone();
            found.schemas.extend(&beside.schemas);
            found.types &= beside.types;
            if found.values.is_none() {
                found.values = beside.values.clone();
            }
            if !self.is_alternative_empty(&found, depth)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_alternative_empty(&self, found: &Alternative<'a>, depth: usize) -> Result<bool> {
        self.step(1)?;
        if let Some(values) = &found.values {
            for value in values {
                if self.admits(found, value, 0)? {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        if found.types & (NULL | BOOLEAN) != 0 {
            return Ok(false);
        }
        if found.types & (INTEGER | FRACTION) != 0 && !self.range(found)?.is_empty()? {
            return Ok(false);
        }
        if found.types & STRING != 0 && self.text(found)?.regex()?.is_some() {
            return Ok(false);
        }
        if found.types & ARRAY != 0 && !self.is_array_empty(found, depth)? {
            return Ok(false);
        }
        Ok(found.types & OBJECT == 0 || self.is_object_empty(found, depth)?)
    }

    fn is_array_empty(&self, found: &Alternative<'a>, depth: usize) -> Result<bool> {
        let items = self.items(found)?;
        if items.most.is_some_and(|most| most < items.least) {
            return Ok(true);
        }
        if depth > 0 {
            for index in 0..(items.least as usize).min(items.prefix + 1) {
                let set = self.item_set(found, index)?;
                if self.is_surely_empty(&set, &Alternative::any(), depth - 1)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn is_object_empty(&self, found: &Alternative<'a>, depth: usize) -> Result<bool> {
        let members = self.object(found)?;
        let required = members.names.iter().filter(|(_, is_required)| *is_required);
        if members.most.is_some_and(|most| most < members.least) {
            return Ok(true);
        }
        if depth > 0 {
            for (name, _) in required {
                let set = self.property_set(found, name)?;
                if self.is_surely_empty(&set, &Alternative::any(), depth - 1)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The types of an alternative's values that are listed, or of all that it may have.
    pub fn has_type(&self, value: &Json, alternative: &Alternative) -> bool {
        type_of(value) & alternative.types != 0
    }

    /// Whether something in a schema applies others to the same value.
    pub fn has_applied(&self, id: Id) -> bool {
        match self.document.json(id) {
            Json::Object(members) => members.iter().any(|(key, _)| {
                is_applied(key) && !matches!(key.as_str(), "type" | "const" | "enum" | "not")
            }),
            _ => false,
        }
    }
}
