//! Random schemas with every keyword, some of them wrong: each compiles or is refused in words, and
//! a small validator of its own says the same of documents as what compiled.

use crate::fuzz::{damage_text, rounds, run, Random};
use crate::grammar::DnMatcher;
use crate::grammar_tests::Language;
use crate::kind::Kind;
use serde_json::{json, Map, Value};

const NAMES: [&str; 4] = ["a", "b", "ab", "x\"\\"];
const TEXTS: [&str; 7] = ["", "a", "ab", "b1", "\"", "\\", "é\n"];
/// With what they match, told in another way.
type Matches = fn(&str) -> bool;
const PATTERNS: [(&str, Matches); 7] = [
    ("^a", |text| text.starts_with('a')),
    ("b$", |text| text.ends_with('b')),
    ("^[^\"]*$", |text| !text.contains('"')),
    (r"^[^\\]+$", |text| !text.is_empty() && !text.contains('\\')),
    (r"^[\w&&]*$", |text| text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '&')),
    ("^.{1,2}$", |text| (1..=2).contains(&text.chars().count()) && !text.contains(['\n', '\r'])),
    ("a|\\d", |text| text.contains('a') || text.contains(|c: char| c.is_ascii_digit())),
];

fn number(random: &mut Random) -> Value {
    let all = ["0", "1", "-3", "0.5", "0.25", "2.0", "7", "-0.5", "9007199254740993", "1e2"];
    let text: &'static str = *random.pick::<&str>(&all);
    serde_json::from_str(text).unwrap()
}

fn value(random: &mut Random, depth: usize) -> Value {
    match random.below(if depth == 0 { 5 } else { 7 }) {
        0 => Value::Null,
        1 => json!(random.below(2) == 0),
        2 => json!(random.below(10) as i64 - 3),
        3 => json!(random.pick(&[0.5, 0.25, -0.5, 1.75])),
        4 => json!(random.pick(&TEXTS)),
        5 => (0..random.below(3)).map(|_| value(random, depth - 1)).collect(),
        _ => {
            let size = random.below(2); // one order
            (0..size).map(|_| (random.pick(&NAMES).to_string(), value(random, depth - 1))).collect()
        }
    }
}

fn schemas(random: &mut Random, depth: usize) -> Vec<Value> {
    (0..1 + random.below(3)).map(|_| schema(random, depth)).collect()
}

fn schema(random: &mut Random, depth: usize) -> Value {
    if depth == 0 {
        return random
            .pick(&[
                json!(true),
                json!(false),
                json!({"type": "integer"}),
                json!({"$ref": "#/$defs/d"}),
            ])
            .clone();
    }
    let mut made = Map::new();
    for _ in 0..1 + random.below(4) {
        let deeper = depth - 1;
        let (key, json): (&str, Value) = match random.below(37) {
            0..=3 => {
                let types = ["null", "boolean", "integer", "number", "string", "array", "object"];
                let one = *random.pick(&types);
                (
                    "type",
                    if random.below(3) == 0 {
                        json!([one, random.pick(&types)])
                    } else {
                        json!(one)
                    },
                )
            }
            4 => ("const", value(random, 1)),
            5 => ("enum", (0..1 + random.below(4)).map(|_| value(random, 1)).collect()),
            6 => ("minimum", number(random)),
            7 => ("maximum", number(random)),
            8 => ("exclusiveMinimum", number(random)),
            9 => ("exclusiveMaximum", number(random)),
            10 => ("multipleOf", random.pick(&[json!(2), json!(0.5), json!(3)]).clone()),
            11 => ("minLength", json!(random.below(3))),
            12 => ("maxLength", json!(random.below(4))),
            13 => ("pattern", json!(random.pick(&PATTERNS).0)),
            14 => ("items", schema(random, deeper)),
            15 => ("prefixItems", schemas(random, deeper).into()),
            16 => ("minItems", json!(random.below(3))),
            17 => ("maxItems", json!(random.below(3))),
            18..=20 => {
                let all = schemas(random, deeper);
                (
                    "properties",
                    all.into_iter().map(|one| (random.pick(&NAMES).to_string(), one)).collect(),
                )
            }
            21 => ("required", json!([random.pick(&NAMES)])),
            22..=23 => ("additionalProperties", schema(random, deeper)),
            24 => {
                let all = schemas(random, deeper);
                (
                    "patternProperties",
                    all.into_iter()
                        .map(|one| (random.pick(&PATTERNS).0.to_string(), one))
                        .collect(),
                )
            }
            25 => ("minProperties", json!(random.below(2))),
            26 => ("maxProperties", json!(random.below(3))),
            27 => ("anyOf", schemas(random, deeper).into()),
            28 => ("allOf", schemas(random, deeper).into()),
            29 => ("oneOf", schemas(random, deeper).into()),
            30 => ("propertyNames", schema(random, deeper)),
            31 => ("$ref", json!(random.pick(&["#/$defs/d", "#", "#/$defs/d%20/none"]))),
            32 => {
                ("not", random.pick(&[json!(false), json!(true), json!({"type": "null"})]).clone())
            }
            33 => ("uniqueItems", json!(random.below(4) == 0)),
            34 => (
                *random.pick(&[
                    "contains",
                    "if",
                    "then",
                    "unevaluatedProperties",
                    "unevaluatedItems",
                    "dependentRequired",
                    "additionalItems",
                ]),
                schema(random, deeper),
            ),
            35 => ("format", json!(random.pick(&["path", "unheard"]))),
            _ => (*random.pick(&["title", "default", "x-any"]), value(random, 1)),
        };
        made.insert(key.into(), json);
    }
    Value::from(made)
}

/// None: of a keyword that is not told here.
fn is_valid(root: &Value, schema: &Value, value: &Value, depth: usize) -> Option<bool> {
    let members = match schema {
        Value::Bool(flag) => return Some(*flag),
        schema => schema.as_object()?,
    };
    if depth > 40 {
        return None;
    }
    let all = |list: &Value, value: &Value| -> Option<Vec<bool>> {
        list.as_array()?.iter().map(|one| is_valid(root, one, value, depth + 1)).collect()
    };
    let mut valid = true;
    for (key, json) in members {
        let size = json.as_u64().unwrap_or_default() as usize;
        let bound = json.as_f64().unwrap_or_default();
        if is_local_number(key) && value.as_f64().is_some_and(|number| number.abs() > 9e15) {
            return None; // not exact here
        }
        let chars = value.as_str().map(|text| text.chars().count());
        let keeps = match key.as_str() {
            "type" => {
                let is = |name: &Value| match name.as_str().unwrap_or_default() {
                    "null" => value.is_null(),
                    "boolean" => value.is_boolean(),
                    "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
                    "number" => value.is_number(),
                    "string" => value.is_string(),
                    "array" => value.is_array(),
                    _ => value.is_object(),
                };
                json.as_array().map_or_else(|| is(json), |names| names.iter().any(is))
            }
            "const" => same(json, value),
            "enum" => json.as_array()?.iter().any(|one| same(one, value)),
            "minimum" => value.as_f64().is_none_or(|number| number >= bound),
            "maximum" => value.as_f64().is_none_or(|number| number <= bound),
            "exclusiveMinimum" => value.as_f64().is_none_or(|number| number > bound),
            "exclusiveMaximum" => value.as_f64().is_none_or(|number| number < bound),
            "multipleOf" => value.as_f64().is_none_or(|number| number % bound == 0.0),
            "minLength" => chars.is_none_or(|chars| chars >= size),
            "maxLength" => chars.is_none_or(|chars| chars <= size),
            "pattern" => match value.as_str() {
                Some(text) => pattern(json.as_str().unwrap_or_default(), text)?,
                None => true,
            },
            "minItems" => value.as_array().is_none_or(|items| items.len() >= size),
            "maxItems" => value.as_array().is_none_or(|items| items.len() <= size),
            "minProperties" => value.as_object().is_none_or(|all| all.len() >= size),
            "maxProperties" => value.as_object().is_none_or(|all| all.len() <= size),
            "required" => {
                let has = |name: &Value| value.get(name.as_str().unwrap_or_default()).is_some();
                !value.is_object() || json.as_array()?.iter().all(has)
            }
            "items" | "prefixItems" => {
                let prefix = members.get("prefixItems").and_then(Value::as_array);
                let mut keeps = true;
                for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                    let own = prefix.and_then(|prefix| prefix.get(i)).or(members.get("items"));
                    keeps &= own.is_none_or_valid(|own| is_valid(root, own, item, depth + 1))?;
                }
                keeps
            }
            "properties" | "patternProperties" | "additionalProperties" => {
                let mut keeps = true;
                for (name, member) in value.as_object().into_iter().flatten() {
                    let mut told = Vec::new();
                    told.extend(members.get("properties").and_then(|all| all.get(name)));
                    for (key, one) in members
                        .get("patternProperties")
                        .and_then(Value::as_object)
                        .into_iter()
                        .flatten()
                    {
                        if pattern(key, name)? {
                            told.push(one);
                        }
                    }
                    if told.is_empty() {
                        told.extend(members.get("additionalProperties"));
                    }
                    for one in told {
                        keeps &= is_valid(root, one, member, depth + 1)?;
                    }
                }
                keeps
            }
            "propertyNames" => {
                let mut keeps = true;
                for (name, _) in value.as_object().into_iter().flatten() {
                    keeps &= is_valid(root, json, &json!(name), depth + 1)?;
                }
                keeps
            }
            "anyOf" => all(json, value)?.contains(&true),
            "allOf" => !all(json, value)?.contains(&false),
            "oneOf" => all(json, value)?.into_iter().filter(|one| *one).count() == 1,
            "$ref" => match json.as_str()? {
                "#" | "" => is_valid(root, root, value, depth + 1)?,
                "#/$defs/d" => is_valid(root, &root["$defs"]["d"], value, depth + 1)?,
                _ => return None,
            },
            "not" => !is_valid(root, json, value, depth + 1)?,
            "uniqueItems" => {
                let items = value.as_array().filter(|_| *json == json!(true));
                items.is_none_or(|items| {
                    items.iter().enumerate().all(|(i, a)| items[..i].iter().all(|b| !same(a, b)))
                })
            }
            "contains"
            | "if"
            | "then"
            | "unevaluatedProperties"
            | "unevaluatedItems"
            | "dependentRequired" => return None,
            _ => true,
        };
        valid &= keeps;
    }
    Some(valid)
}

fn is_local_number(key: &str) -> bool {
    key.ends_with("imum") || key == "multipleOf"
}

trait OrValid<'a> {
    fn is_none_or_valid(self, check: impl FnOnce(&'a Value) -> Option<bool>) -> Option<bool>;
}

impl<'a> OrValid<'a> for Option<&'a Value> {
    fn is_none_or_valid(self, check: impl FnOnce(&'a Value) -> Option<bool>) -> Option<bool> {
        self.map_or(Some(true), check)
    }
}

/// None: of a pattern that a damaged text has.
fn pattern(source: &str, text: &str) -> Option<bool> {
    PATTERNS.iter().find(|(known, _)| *known == source).map(|(_, matches)| matches(text))
}

fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        (a, b) => a == b,
    }
}

/// A text by random tokens; none where it does not end soon.
fn written(language: &Language, first: &DnMatcher, random: &mut Random) -> Option<String> {
    let mut matcher = first.fork(false);
    let mut tokens = Vec::new();
    let mut words = vec![0u32; language.vocabulary.size.div_ceil(32)];
    for _ in 0..40 {
        matcher.mask(&mut words).ok()?;
        let is_allowed = |token: &i32| words[*token as usize / 32] >> (token % 32) & 1 == 1;
        if is_allowed(&language.end) && random.below(2) == 0 {
            return Some(language.text(&tokens));
        }
        let allowed: Vec<i32> = (0..language.vocabulary.size as i32)
            .filter(|token| *token != language.end && is_allowed(token))
            .collect();
        // Ends sooner by what closes something.
        let closing: Vec<i32> =
            language.tokens("]}\",0").into_iter().filter(|token| allowed.contains(token)).collect();
        let from = if random.below(2) == 0 && !closing.is_empty() { &closing } else { &allowed };
        if from.is_empty() {
            return is_allowed(&language.end).then(|| language.text(&tokens));
        }
        let token = *random.pick(from);
        matcher.accept(&[token]).ok()?;
        tokens.push(token);
    }
    None
}

fn accepts(language: &Language, first: &DnMatcher, text: &str) -> bool {
    let mut matcher = first.fork(false);
    let tokens = language.tokens(text);
    matcher.accept(&tokens).is_ok_and(|taken| taken == tokens.len())
        && matcher.is_accepting().unwrap_or(false)
}

fn use_schema(language: &Language, text: &str) -> bool {
    let opened = DnMatcher::open(&language.vocabulary, Kind::JsonSchema, text);
    let first = match opened {
        Ok(first) => first,
        Err(error) => {
            crate::fuzz::check_words(text, &error);
            assert!(error.0.starts_with("JSON schema: ") && error.0.lines().count() <= 4);
            return false;
        }
    };
    let Ok(schema) = serde_json::from_str::<Value>(text.trim_start_matches('\u{feff}')) else {
        return true;
    };
    let mut random = Random(text.len() as u64);
    for _ in 0..2 {
        let Some(text) = written(language, &first, &mut random) else { continue };
        let value: Value = match serde_json::from_str(&text) {
            Ok(value) => value,
            Err(error) if error.to_string().contains("out of range") => continue, // 1e999
            Err(error) => panic!("{schema}: {text}: {error}"),
        };
        assert!(is_valid(&schema, &schema, &value, 0) != Some(false), "{schema} wrote {text}");
    }
    for _ in 0..12 {
        let value = value(&mut random, 2);
        if let Some(valid) = is_valid(&schema, &schema, &value, 0) {
            assert_eq!(accepts(language, &first, &value.to_string()), valid, "{schema}: {value}");
        }
    }
    true
}

#[test]
fn fuzz_random_schemas_say_what_a_validator_says() {
    let language = Language::open("gpt2", "<|endoftext|>");
    let make = |random: &mut Random| {
        let mut made = schema(random, 3);
        made["$defs"] = json!({"d": schema(random, 1)});
        let mut text = made.to_string();
        if random.below(8) == 0 {
            text = damage_text(&text, random);
        }
        text
    };
    run(rounds(600), make, |text| use_schema(&language, text));
}
