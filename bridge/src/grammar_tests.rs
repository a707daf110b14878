//! Matchers against what their grammars say, over real tokenizers of several families.

use crate::grammar::DnMatcher;
use crate::kind::Kind;
use crate::tokenizer::DnTokenizer;
use crate::vocabulary::Vocabulary;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub fn file(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let path: PathBuf = root.join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A tokenizer with the vocabulary of a model that has more logits than it has tokens.
pub struct Language {
    pub name: &'static str,
    pub vocabulary: Arc<Vocabulary>,
    pub end: i32,
}

const PADDING: i32 = 7;

impl Language {
    pub fn open(name: &'static str, end: &str) -> Self {
        let path = match name {
            "dendrite-tools" => format!("models/{name}/tokenizer.json"),
            _ => format!("tests/data/text/tokenizers/{name}/tokenizer.json"),
        };
        Language::of(name, end, &file(&path))
    }

    pub fn of(name: &'static str, end: &str, tokenizer: &str) -> Self {
        let tokenizer = DnTokenizer::open(tokenizer.as_bytes(), "").unwrap();
        let end = tokenizer.inner().token_to_id(end).unwrap() as i32;
        let size = tokenizer.table().flags.len() as i32 + PADDING;
        let vocabulary = Arc::new(Vocabulary::new(&tokenizer, size, &[end]).unwrap());
        Language { name, vocabulary, end }
    }

    /// Byte-level, byte fallback with and without Metaspace, and pieces without bytes.
    pub fn all() -> Vec<Language> {
        [
            ("dendrite-tools", "<|end|>"),
            ("llama3", "<|eot_id|>"),
            ("qwen2", "<|im_end|>"),
            ("gpt2", "<|endoftext|>"),
            ("cross_border", "<|endoftext|>"),
            ("llama2", "</s>"),
            ("gemma", "<end_of_turn>"),
            ("mistral", "</s>"),
            ("unigram", "</s>"),
        ]
        .map(|(name, end)| Language::open(name, end))
        .into()
    }

    pub fn matcher(&self, kind: Kind, text: &str) -> DnMatcher {
        DnMatcher::open(&self.vocabulary, kind, text)
            .unwrap_or_else(|error| panic!("{}: {text}: {}", self.name, error.0))
    }

    pub fn tokens(&self, text: &str) -> Vec<i32> {
        let ids = self.vocabulary.factory.tok_env().tokenize_bytes(text.as_bytes());
        ids.into_iter().map(|id| id as i32).collect()
    }

    pub fn text(&self, tokens: &[i32]) -> String {
        let ids: Vec<u32> = tokens.iter().map(|&token| token as u32).collect();
        String::from_utf8_lossy(&self.vocabulary.factory.tok_env().tok_trie().decode(&ids)).into()
    }

    pub fn mask(&self, matcher: &mut DnMatcher) -> Vec<i32> {
        let mut words = vec![u32::MAX; self.vocabulary.size.div_ceil(32)];
        matcher.mask(&mut words).unwrap();
        let bit = |token: &i32| words[*token as usize / 32] >> (token % 32) & 1 == 1;
        let all = words.len() as i32 * 32;
        let tokens: Vec<i32> = (0..all).filter(bit).collect();
        assert!(tokens.iter().all(|&token| (token as usize) < self.vocabulary.size));
        tokens
    }

    /// Against the library's own.
    fn check_mask(&self, matcher: &mut DnMatcher) {
        let mut expected = vec![0; self.vocabulary.size.div_ceil(32)];
        let library = self.vocabulary.factory.slicer();
        matcher.fork(true).mask_by(library, &mut expected).unwrap();
        let mut mask = vec![u32::MAX; expected.len()];
        matcher.mask(&mut mask).unwrap();
        assert_eq!(mask, expected, "{}", self.name);
    }

    fn matches(&self, kind: Kind, grammar: &str, text: &str) -> bool {
        let mut matcher = self.matcher(kind, grammar);
        let tokens = self.tokens(text);
        assert_eq!(self.text(&tokens), text, "{}", self.name);
        let is_whole = matcher.accept(&tokens).unwrap() == tokens.len();
        is_whole && matcher.is_accepting().unwrap()
    }

    /// What must hold in each state, whatever the grammar.
    pub fn check_state(&self, matcher: &mut DnMatcher) {
        let mask = self.mask(matcher);
        let forced = matcher.forced().unwrap();
        let is_accepting = matcher.is_accepting().unwrap();
        assert_eq!(mask.contains(&self.end), is_accepting);
        assert_eq!(self.mask(matcher), mask, "the same mask when asked again");
        if matcher.is_complete().unwrap() {
            assert_eq!((mask.as_slice(), forced.len()), (&[self.end] as &[i32], 0));
        }
        for token in 0..self.vocabulary.size as i32 {
            let is_admitted = matcher.validate(&[token]).unwrap() == 1;
            let is_masked = mask.contains(&token);
            let agree = is_masked == is_admitted || (is_admitted && !forced.is_empty());
            assert!(
                agree,
                "{}: {token} {:?}: mask {is_masked}, validate {is_admitted}, forced {forced:?}",
                self.name,
                self.text(&[token])
            );
        }
        assert_eq!(matcher.validate(&forced).unwrap(), forced.len());
        for (i, token) in forced.iter().enumerate() {
            assert_eq!(self.mask(matcher), [*token], "{} {i} of {forced:?}", self.name);
            assert_eq!(matcher.accept(&[*token]).unwrap(), 1);
        }
        matcher.rewind(forced.len()).unwrap();
        assert_eq!(self.mask(matcher), mask, "the same mask after a rewind");
    }
}

const PERSON: &str = r##"{"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "tags": {"type": "array", "items": {"enum": ["red", "green", "<s>"]}, "maxItems": 3},
    "more": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
    "required": ["name", "age"], "additionalProperties": false}"##;

const CALLS: &str = r#"
start: (TEXT | call)*
TEXT: /[^<]+/
call: "<call>" %json {"x-guidance": {"whitespace_flexible": false}, "type": "object",
    "properties": {"city": {"type": "string"}}, "required": ["city"]} "</call>"
"#;

fn cases() -> Vec<(Kind, &'static str, Vec<&'static str>, Vec<&'static str>)> {
    vec![
        (
            Kind::JsonSchema,
            PERSON,
            vec![
                r#"{"name":"Ada","age":36}"#,
                r#"{"name":"","age":0,"tags":["red","<s>"],"more":null}"#,
                r#"{"name":"a\"b\nc","age":150,"more":{"name":"x","age":1}}"#,
            ],
            vec![
                "{}",
                r#"{"name": "Ada", "age": 36}"#,
                r#"{"name":"Ada","age":151}"#,
                r#"{"age":36,"name":"Ada"}"#,
                r#"{"name":"Ada","age":36,"tags":["blue"]}"#,
                r#"{"name":"thirteen long","age":1}"#,
            ],
        ),
        (
            Kind::JsonSchema,
            r#"{"type": "object"}"#,
            vec!["{}", r#"{"a":[1,2.5e3,true,null,{"b":"c"}]}"#],
            vec!["[]", "1", r#"{"a"}"#, "{ }", ""],
        ),
        (Kind::JsonSchema, "true", vec!["1", "[[],{}]", "\"x\""], vec!["x", "1 ", "[1, 2]"]),
        (
            Kind::JsonSchema,
            r#"{"x-guidance": {"item_separator": ", ", "key_separator": ": "},
                "type": "array", "items": {"type": "integer"}}"#,
            vec!["[1, 2]", "[ 1, 2\n]", "[]"],
            vec!["[1 2]"],
        ),
        (
            Kind::Regex,
            r"[a-z]+@[a-z]+\.(com|org)/\d{2}",
            vec!["ada@mail.org/24"],
            vec!["ada@mail.net/24", "ada@mail.org/2", "", "ada@mail.org/243"],
        ),
        (Kind::Regex, "(yes|no)?", vec!["", "yes", "no"], vec!["yesno", "maybe"]),
        (Kind::Regex, "", vec![""], vec!["a"]),
        (Kind::Regex, r"a\\", vec!["a\\"], vec!["a"]),
        (Kind::Lark, "start: \"(\" start \")\" | \"x\"", vec!["x", "((x))"], vec!["((x)", "(x))"]),
        (
            Kind::Lark,
            CALLS,
            vec!["", "hello there", "see <call>{\"city\":\"Rome\"}</call> then"],
            vec!["see <call>{\"city\":1}</call>", "<", "<call>{\"city\":\"Rome\"}"],
        ),
        (
            Kind::Choice,
            r#"["yes", "no", "no, not now", "</s>", "a\"\\\n\u0001\u007f|/ b", "yes"]"#,
            vec!["yes", "no", "no, not now", "</s>", "a\"\\\n\u{1}\u{7f}|/ b"],
            vec!["", "maybe", "no, ", "yesyes", "YES"],
        ),
    ]
}

/// unigram has no bytes, and these texts have what its pieces lack.
fn can_write(language: &Language, text: &str) -> bool {
    language.text(&language.tokens(text)) == text
}

#[test]
fn what_matches_is_accepted_and_nothing_else() {
    for language in Language::all() {
        for (kind, grammar, good, bad) in cases() {
            for text in good.iter().filter(|text| can_write(&language, text)) {
                assert!(language.matches(kind, grammar, text), "{} {text:?}", language.name);
            }
            for text in bad.iter().filter(|text| can_write(&language, text)) {
                assert!(!language.matches(kind, grammar, text), "{} {text:?}", language.name);
            }
        }
    }
}

#[test]
fn masks_are_what_validate_says() {
    for language in Language::all() {
        for (kind, grammar, good, _) in cases() {
            for text in good.iter().filter(|text| can_write(&language, text)) {
                let mut matcher = language.matcher(kind, grammar);
                language.check_state(&mut matcher);
                for token in language.tokens(text) {
                    assert_eq!(matcher.accept(&[token]).unwrap(), 1);
                    language.check_state(&mut matcher);
                }
            }
        }
    }
}

/// Names of few letters, lists and spaces: tokens leave a name in many ways, and after one the next
/// token may have begun already.
const NAMES: &str = r#"
start: "call " NAME ("(" NAME (", " NAME)* ")")? " at " NUMBER ";"
NAME: /[a-z_]{1,9}/
NUMBER: /[0-9]{1,4}(\.[0-9]{1,2})?/
"#;

#[test]
fn masks_are_the_librarys_in_new_and_in_remembered_states() {
    for language in Language::all() {
        let names =
            (Kind::Lark, NAMES, vec!["call walk(dogs, cats) at 20.5;", "call a at 1;"], vec![]);
        for (kind, grammar, good, _) in cases().into_iter().chain([names]) {
            let first = language.matcher(kind, grammar);
            for text in good.iter().filter(|text| can_write(&language, text)) {
                let check = |mut matcher: DnMatcher| {
                    for token in language.tokens(text) {
                        language.check_mask(&mut matcher);
                        assert_eq!(matcher.accept(&[token]).unwrap(), 1);
                    }
                    language.check_mask(&mut matcher);
                };
                check(first.fork(false));
                check(first.fork(false));
                check(first.fork(true));
            }
        }
    }
}

/// Families that go different ways fill the lexer that they share, and no other.
#[test]
fn a_limit_of_the_shared_lexer_is_nobody_elses() {
    let mut language = Language::open("gpt2", "<|endoftext|>");
    let ways = ["a", "b", "c", "d", "e", "f"];
    let bodies: Vec<String> = ways.iter().map(|way| format!("/{way}[x-z]{{1,60}}/")).collect();
    let grammar = format!("start: {}", bodies.join(" | "));
    for limit in 180..220 {
        let vocabulary = Arc::get_mut(&mut language.vocabulary).unwrap();
        vocabulary.factory.limits_mut().max_lexer_states = limit;
        let first = language.matcher(Kind::Lark, &grammar);
        for way in ways {
            let mut matcher = first.fork(true);
            for token in language.tokens(&format!("{way}{}", "xyz".repeat(19))) {
                assert_eq!(matcher.accept(&[token]).unwrap(), 1);
                language.check_mask(&mut matcher);
            }
        }
        assert!(first.shared_lexer_is_spent());
    }
}

#[test]
fn states_are_worked_out_once_for_all_families() {
    let language = Language::open("gpt2", "<|endoftext|>");
    let remembered = || language.vocabulary.tree.remembered();
    let first = language.matcher(Kind::Lark, NAMES);
    let walk = |mut matcher: DnMatcher| {
        for token in language.tokens("call walk(dogs, cats) at 20.5;") {
            language.mask(&mut matcher);
            assert_eq!(matcher.accept(&[token]).unwrap(), 1);
        }
        remembered()
    };
    let once = walk(first.fork(false));
    assert!(once > 0);
    assert_eq!(walk(first.fork(true)), once);
    assert_eq!(walk(language.matcher(Kind::Lark, NAMES)), 2 * once, "another grammar has its own");
    drop(first);
    assert_eq!(remembered(), 0);
}

#[test]
fn named_tokens_are_taken_back_whole() {
    let grammars = ["start: (\"b\" <[5]>)?", "start: <[5]> <[6]> <[5]>", "start: (\"b\" <[5-9]>)*"];
    for language in Language::all().iter().filter(|language| !(5..10).contains(&language.end)) {
        for grammar in grammars {
            let mut matcher = language.matcher(Kind::Lark, grammar);
            let mut masks = vec![language.mask(&mut matcher)];
            let mut tokens = Vec::new();
            while tokens.len() < 4 {
                let mask = masks.last().unwrap();
                let Some(&token) = mask.iter().find(|&&token| token != language.end) else { break };
                assert_eq!(matcher.accept(&[token]).unwrap(), 1);
                tokens.push(token);
                masks.push(language.mask(&mut matcher));
            }
            assert!(tokens.len() > 1, "{} {grammar}", language.name);
            for back in 1..=tokens.len() {
                let left = tokens.len() - back;
                let mut fork = matcher.fork(back % 2 == 0);
                fork.rewind(back).unwrap();
                assert_eq!(language.mask(&mut fork), masks[left], "{} {grammar}", language.name);
                for (token, mask) in tokens[left..].iter().zip(&masks[left + 1..]) {
                    assert_eq!(fork.accept(&[*token]).unwrap(), 1);
                    assert_eq!(language.mask(&mut fork), *mask, "{} {grammar}", language.name);
                }
            }
        }
    }
}
