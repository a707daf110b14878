//! Damaged tokenizer.json files and chat templates: each one opens, or is refused in words that
//! help; what opens encodes, decodes and renders. `DENDRITE_TEST_SCALE` multiplies the rounds.

use crate::checks::MAX_ID;
use crate::ffi::{install_panic_hook, last_panic, BridgeError, Result};
use crate::template::DnTemplate;
use crate::tokenizer::DnTokenizer;
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};

/// SplitMix64 (Steele et al. 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// A node, by going down at random: big containers are as likely as small ones.
fn node<'a>(value: &'a mut Value, random: &mut Random) -> &'a mut Value {
    let size = match value {
        Value::Array(items) => items.len(),
        Value::Object(members) => members.len(),
        _ => 0,
    };
    if size == 0 || random.below(5) == 0 {
        return value;
    }
    let at = random.below(size);
    let child = match value {
        Value::Array(items) => &mut items[at],
        Value::Object(members) => members.values_mut().nth(at).unwrap(),
        _ => unreachable!(),
    };
    node(child, random)
}

/// What the corpus lacks: parts of other kinds, and the keys that they are for.
fn parts() -> Vec<(&'static str, Value)> {
    vec![
        ("decoder", json!({"type": "Strip", "content": " ", "start": 1, "stop": 1})),
        ("normalizer", json!({"type": "Strip", "strip_left": true, "strip_right": true})),
        (
            "decoder",
            json!({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": true}),
        ),
        ("decoder", json!({"type": "BPEDecoder", "suffix": "</w>"})),
        ("decoder", json!({"type": "Fuse"})),
        (
            "decoder",
            json!({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]}),
        ),
        (
            "normalizer",
            json!({"type": "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "Nmt"}]}),
        ),
        (
            "normalizer",
            json!({"type": "Precompiled", "precompiled_charsmap": "ALQCAACEAAAAAACAAQAAgMz8AgC4BQAAhyIAgMzkAgC4PQAA"}),
        ),
        ("normalizer", json!({"type": "Replace", "pattern": {"Regex": "(a|aa)+$"}, "content": ""})),
        ("normalizer", json!({"type": "Replace", "pattern": {"String": ""}, "content": "x"})),
        ("normalizer", json!({"type": "Prepend", "prepend": ""})),
        ("pre_tokenizer", json!({"type": "ByteLevel"})),
        ("pre_tokenizer", json!({"type": "FixedLength", "length": 2})),
        ("pre_tokenizer", json!({"type": "Digits", "individual_digits": true})),
        ("pre_tokenizer", json!({"type": "Punctuation", "behavior": "Isolated"})),
        ("pre_tokenizer", json!({"type": "CharDelimiterSplit", "delimiter": "e"})),
        ("pre_tokenizer", json!({"type": "UnicodeScripts"})),
        (
            "pre_tokenizer",
            json!({"type": "Split", "pattern": {"Regex": "(?=(.))\\1"}, "behavior": "Removed", "invert": true}),
        ),
        (
            "post_processor",
            json!({"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]}),
        ),
        (
            "post_processor",
            json!({"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1], "trim_offsets": true, "add_prefix_space": true}),
        ),
        (
            "post_processor",
            json!({"type": "TemplateProcessing", "special_tokens": {"[X]": {"id": "[X]", "ids": [1, 2], "tokens": ["a"]}},
               "single": [{"SpecialToken": {"id": "[Y]", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
               "pair": []}),
        ),
        (
            "model",
            json!({"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.5], ["ab", -2.0]], "byte_fallback": false}),
        ),
        (
            "model",
            json!({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
               "max_input_chars_per_word": 10, "vocab": {"[UNK]": 0, "a": 1, "##b": 2}}),
        ),
        ("model", json!({"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "a": 1}})),
        ("model", json!({"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]})),
        (
            "truncation",
            json!({"direction": "Left", "max_length": 0, "strategy": "OnlySecond", "stride": 9}),
        ),
        (
            "added_tokens",
            json!({"id": 4294967295u32, "content": "", "single_word": true, "lstrip": true, "rstrip": true,
               "normalized": true, "special": false}),
        ),
    ]
}

fn odd_value(random: &mut Random) -> Value {
    let mut deep = Value::Null;
    for _ in 0..[3, 90, 200][random.below(3)] {
        deep = json!([deep]);
    }
    random
        .pick(&[
            Value::Null,
            json!(true),
            json!(-1),
            json!(0),
            json!(1),
            json!(4294967295u32),
            json!(MAX_ID),
            json!(u64::MAX),
            json!(1e300),
            json!(-1e300),
            json!(0.5),
            json!(""),
            json!(" "),
            json!("no such token"),
            json!("\u{0}\u{fffd}\u{1f333}"),
            json!([]),
            json!({}),
            json!([["a", 1]]),
            deep,
        ])
        .clone()
}

pub fn damage_text(text: &str, random: &mut Random) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    let at = random.below(chars.len() + 1);
    match random.below(4) {
        0 => chars.truncate(at),
        1 => {
            chars.insert(at, *random.pick(&['\\', '(', '[', '{', '%', '}', '+', '"', 'é', '\u{0}']))
        }
        2 if at < chars.len() => drop(chars.remove(at)),
        _ => chars.extend_from_within(..at),
    }
    chars.into_iter().collect()
}

pub fn damage(value: &mut Value, donors: &[Value], random: &mut Random) {
    let kind = random.below(7);
    let at = node(value, random);
    match (kind, &mut *at) {
        (0, Value::Object(members)) if !members.is_empty() => {
            let key = members.keys().nth(random.below(members.len())).unwrap().clone();
            let gone = members.remove(&key);
            if random.below(3) == 0 {
                members.insert(damage_text(&key, random), gone.unwrap_or_default());
            }
        }
        (0, Value::Array(items)) if !items.is_empty() => {
            let one = items.remove(random.below(items.len()));
            if random.below(2) == 0 {
                items.extend([one.clone(), one]);
            }
        }
        (1, Value::String(text)) => *text = damage_text(text, random),
        (1, Value::Number(number)) => {
            let step = random.below(5) as i64 - 2;
            *at = json!(number.as_i64().unwrap_or(0).saturating_add(step));
        }
        (1, Value::Bool(flag)) => *flag = !*flag,
        (2, _) => *at = random.pick(&parts()).1.clone(),
        (3, Value::Object(members)) if members.contains_key("type") => {
            members["type"] = random.pick(&parts()).1["type"].clone();
        }
        (4, _) => {
            let mut donor = random.pick(donors).clone();
            *at = node(&mut donor, random).clone();
        }
        (5, _) => {
            let list = *random.pick(&["decoders", "normalizers", "pretokenizers", "processors"]);
            *at = json!({"type": "Sequence", list: [at.take(), random.pick(&parts()).1.clone()]});
        }
        _ => *at = odd_value(random),
    }
}

/// Refusals are for people: no text of a panic, no path of a Rust source.
pub fn check_words(what: &str, error: &BridgeError) {
    for part in ["panicked", "internal error", ".rs", "registry", "called `", "unwrap"] {
        assert!(!error.0.contains(part), "{what}: {}", error.0);
    }
    assert!(!error.0.trim().is_empty(), "{what}: an empty message");
}

fn checked<T>(what: &str, result: Result<T>) -> Option<T> {
    result.inspect_err(|error| check_words(what, error)).ok()
}

const TEXTS: [&str; 6] = [
    "",
    " ",
    "a",
    "The tree shares 24 pages.\n\n  [INST] hi </s>",
    "aaaaaaaaaaaaaa 你好 🌳é\u{0}",
    "<s>x<unk>[SEP]",
];

/// Opens and uses a tokenizer; true if it opened.
fn use_tokenizer(json: &[u8], added: &str) -> bool {
    let Some(tokenizer) = checked("open", DnTokenizer::open(json, added)) else { return false };
    for text in TEXTS {
        for add_special in [false, true] {
            let Some(ids) = checked("encode", tokenizer.encode(text.as_bytes(), add_special))
            else {
                continue;
            };
            checked("decode", tokenizer.decode(&ids, false));
            checked("decode", tokenizer.decode(&ids, true));
        }
    }
    for ids in [&[] as &[i32], &[0], &[1, 2, 3, 4, 5, 6, 7, 8], &[i32::MAX, 300, 17, 17]] {
        checked("decode", tokenizer.decode(ids, false));
    }
    true
}

/// Opens and renders a template; true if it opened.
fn use_template(source: &str, context: &str) -> bool {
    let Some(template) = checked("template", DnTemplate::open(source)) else { return false };
    checked("render", template.render(context));
    checked("render", template.render("{}"));
    true
}

pub fn test_data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data")
}

/// All files of that name below `folder`, in order.
pub fn find(folder: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(find(&path, name));
        } else if path.file_name().is_some_and(|file| file == name) {
            found.push(path);
        }
    }
    found.sort();
    found
}

pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

pub fn rounds(usual: u64) -> u64 {
    let scale = std::env::var("DENDRITE_TEST_SCALE").ok().and_then(|text| text.parse::<f64>().ok());
    (usual as f64 * scale.unwrap_or(1.0)).max(1.0) as u64
}

/// Makes an input for each seed and opens it; some must open and some must not. For each panic, the
/// shortest input that caused it is told.
pub fn run<T: Debug>(rounds: u64, make: impl Fn(&mut Random) -> T, open: impl Fn(&T) -> bool) {
    install_panic_hook();
    let mut opened = 0;
    let mut panics: BTreeMap<String, String> = BTreeMap::new();
    for seed in 0..rounds {
        let input = make(&mut Random(seed));
        match catch_unwind(AssertUnwindSafe(|| open(&input))) {
            Ok(is_open) => opened += u64::from(is_open),
            Err(_) => {
                let text = format!("{input:?}");
                let shortest = panics.entry(last_panic()).or_insert_with(|| text.clone());
                if text.len() < shortest.len() {
                    *shortest = text;
                }
            }
        }
    }
    for (panic, input) in &panics {
        eprintln!("{panic}\n  {input}");
    }
    assert!(panics.is_empty(), "{} panics", panics.len());
    assert!(opened > rounds / 20 && opened < rounds, "{opened} of {rounds} opened");
}

#[test]
fn damaged_tokenizers_are_refused_in_words_or_work() {
    let files: Vec<(Value, String)> = find(&test_data(), "tokenizer.json")
        .iter()
        .map(|path| {
            let config = read(&path.with_file_name("tokenizer_config.json"));
            let config: Value = serde_json::from_str(&config).unwrap();
            let added: Vec<Value> = config["added_tokens_decoder"]
                .as_object()
                .into_iter()
                .flat_map(|tokens| tokens.values().cloned())
                .collect();
            (serde_json::from_str(&read(path)).unwrap(), Value::from(added).to_string())
        })
        .collect();
    let donors: Vec<Value> = files.iter().map(|(json, _)| json.clone()).collect();
    let make = |random: &mut Random| {
        let (mut json, mut added) = random.pick(&files).clone();
        if random.below(2) == 0 {
            let (key, part) = random.pick(&parts()).clone();
            json[key] = part;
        }
        for _ in 0..random.below(4) {
            damage(&mut json, &donors, random);
        }
        let mut text = json.to_string();
        if random.below(16) == 0 {
            text = damage_text(&text, random);
        }
        if random.below(16) == 0 {
            added = damage_text(&added, random);
        }
        (text, added)
    };
    run(rounds(3000), make, |(json, added)| use_tokenizer(json.as_bytes(), added));
}

#[test]
fn damaged_chat_templates_are_refused_in_words_or_work() {
    let templates: Vec<String> =
        find(&test_data(), "chat_template.jinja").iter().map(|path| read(path)).collect();
    let conversations: Value =
        serde_json::from_str(&read(&test_data().join("text/conversations.json"))).unwrap();
    let conversations = conversations.as_array().unwrap();
    let make = |random: &mut Random| {
        let mut source = random.pick(&templates).clone();
        for _ in 0..random.below(4) {
            source = damage_text(&source, random);
        }
        let mut context = random.pick(conversations).clone();
        for _ in 0..random.below(3) {
            damage(&mut context, conversations, random);
        }
        (source, context.to_string())
    };
    run(rounds(1000), make, |(source, context)| use_template(source, context));
}
