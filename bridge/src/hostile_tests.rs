//! Grammars that are made to cost much, and matchers after a panic.

use crate::ffi::install_panic_hook;
use crate::fuzz::Random;
use crate::grammar::DnMatcher;
use crate::grammar_tests::{file, Language};
use crate::kind::Kind;
use crate::watch::LONGEST;
use serde_json::{json, Value};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use toktrie::TokTrie;

/// Tries whose next use is to panic.
static PANICS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Called while the lexer of a matcher's family is locked.
pub fn panic_if_wanted(trie: &TokTrie) {
    let is_wanted = take_panic(trie);
    assert!(!is_wanted, "wanted by a test");
}

fn take_panic(trie: &TokTrie) -> bool {
    let mut wanted = PANICS.lock().unwrap();
    let found = wanted.iter().position(|&address| address == std::ptr::from_ref(trie) as usize);
    found.map(|at| wanted.remove(at)).is_some()
}

fn list(size: usize, separator: &str, one: impl Fn(usize) -> String) -> String {
    (0..size).map(one).collect::<Vec<_>>().join(separator)
}

fn object(size: usize, one: impl Fn(usize) -> (String, Value)) -> Value {
    Value::Object((0..size).map(one).collect())
}

fn nested(depth: usize, text: [&str; 3]) -> String {
    [&text[0].repeat(depth), text[1], &text[2].repeat(depth)].concat()
}

fn regexes() -> Vec<String> {
    vec![
        "x".repeat(1_000_000),
        "x?".repeat(8_000),
        r"\p{L}?".repeat(2_600),
        r"\w\d*".repeat(3_200),
        nested(100_000, ["(", "a", ")"]),
        nested(240, ["(", "a", ")*"]),
        "(a|b)*a(a|b){20}".into(),
        "(a|b)*a(a|b){200}".into(),
        "((a{1,100}){1,100}){1,100}".into(),
        r"((\w{1,50}\W{1,50}){1,50}\d{1,50}){1,50}".into(),
        "(a?){500}a{500}".into(),
        ".{0,1000000}".into(),
        "(.{0,1000000}x.{0,1000000}y){0,1000}".into(),
        format!(
            "({})*",
            list(200, "|", |i| format!(".{{{i}}}{}", char::from(b'a' + i as u8 % 26)))
        ),
        r"\xff\u{d800}".into(),
        r"\q\z\x{110000}".into(),
    ]
}

/// Definitions d0, d1, ... of which each uses the next one twice.
fn doubling(depth: usize, one: impl Fn(String) -> Value) -> Value {
    let mut definitions = object(depth, |i| (format!("d{i}"), one(format!("#/$defs/d{}", i + 1))));
    definitions[format!("d{depth}")] = json!({"type": "object", "properties": {"x": {}}});
    json!({"$ref": "#/$defs/d0", "$defs": definitions})
}

fn schemas() -> Vec<String> {
    let string = json!({"type": "string"});
    let named = |size: usize| object(size, |i| (format!("p{i}"), string.clone()));
    let texts = |size: usize| (0..size).map(|i| format!("value {}", i * 7919 % size)).collect();
    let texts = |size: usize| -> Vec<String> { texts(size) };
    let options = |all: usize, each: usize, word: &str| -> Value {
        let option = |i: usize, k: usize| json!({"type": "object", "properties": {format!("p{i}_{k}"): string.clone()}});
        let one = |i: usize| json!({word: (0..each).map(|k| option(i, k)).collect::<Vec<_>>()});
        json!({"allOf": (0..all).map(one).collect::<Vec<_>>()})
    };
    let patterns: Vec<Value> = (0..50u8)
        .map(|i| json!({"pattern": format!("{}.*{}", char::from(b'a' + i % 26), char::from(b'a' + i / 26))}))
        .collect();
    let mut schemas = vec![
        nested(100_000, ["[", "", "]"]),
        nested(100_000, ["{\"a\":", "1", "}"]),
        nested(120, ["{\"items\":", "{}", "}"]),
        r#"{"const": "\ud800"}"#.into(),
        r#"{"const": "\q"}"#.into(),
    ];
    let values = [
        json!({"$ref": "#"}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}, string]}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}}),
        json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}),
        json!({"oneOf": [{"$ref": "#"}, {"type": "null"}]}),
        json!({"type": "array", "items": {"$ref": "#"}, "minItems": 3}),
        doubling(40, |next| json!({"allOf": [{"$ref": next}, {"$ref": next}]})),
        doubling(
            40,
            |next| json!({"type": "object", "properties": {"a": {"$ref": next}, "b": {"$ref": next}}, "required": ["a", "b"]}),
        ),
        doubling(9000, |next| json!({"type": "object", "properties": {"a": {"$ref": next}}})),
        json!({"type": "string", "allOf": patterns}),
        options(8, 8, "anyOf"),
        options(7, 3, "anyOf"),
        options(8, 8, "oneOf"),
        json!({"allOf": vec![json!({"type": "object", "properties": named(1000)}); 20]}),
        json!({"allOf": [{"enum": texts(5000)}, {"type": "string", "pattern": "^value 1.*$"}]}),
        json!({"type": "array", "items": string, "maxItems": 1_000_000}),
        json!({"type": "array", "items": string, "minItems": 1_000_000_000}),
        json!({"type": "string", "maxLength": 1_000_000}),
        json!({"type": "string", "minLength": 1_000_000_000}),
        json!({"type": "string", "maxLength": 1_000_000, "pattern": "^(a|b)*a(a|b){20}$"}),
        json!({"type": "object", "minProperties": 1000, "maxProperties": 1_000_000}),
        json!({"enum": texts(30_000)}),
        json!({"enum": (0..60_000).collect::<Vec<_>>()}),
        json!({"enum": (0..15_000).map(|i| json!({"a": i})).collect::<Vec<_>>()}),
        json!({"oneOf": [{"enum": texts(20_000)}, {"enum": texts(20_000)}]}),
        json!({"const": "x".repeat(1_000_000)}),
        json!({"type": "object", "properties": named(10_000)}),
        json!({"type": "object", "properties": named(1000)}),
        json!({"type": "object", "required": texts(10_000)}),
        json!({"type": "object", "patternProperties": object(200, |i| (format!("^p{i}_.*$"), json!({})))}),
        json!({"type": "integer", "multipleOf": 99991}),
        json!({"type": "integer", "multipleOf": 4_294_967_291u32}),
        json!({"type": "number", "multipleOf": 1e-12}),
        json!({"type": "integer", "allOf": [{"multipleOf": 97}, {"multipleOf": 89}, {"multipleOf": 83}, {"multipleOf": 79}]}),
        json!({"type": "array", "items": {}, "x-guidance": {"whitespace_pattern": "((a{1,100}){1,100}){1,100}"}}),
    ];
    schemas.extend(values.iter().map(Value::to_string));
    schemas
}

fn larks() -> Vec<String> {
    let rules = |size: usize, one: fn(usize) -> String| {
        format!("start: r0\n{}\nr{size}: \"y\"", list(size, "\n", one))
    };
    let intersected = |size: u8, not: &str| {
        let letter = |i: u8| char::from(b'a' + i % 26);
        let one = |i: usize| {
            format!("{not}/(?s:.*){}(?s:.{{{i}}}){}(?s:.*)/", letter(i as u8), letter(i as u8 + 1))
        };
        format!("start: X\nX: {}", list(size as usize, " & ", one))
    };
    vec![
        format!("start: {}", nested(100_000, ["(", "\"a\"", ")"])),
        format!("start: {}", nested(25, ["(", "\"a\"", ")*"])),
        format!("start: {}", nested(28, ["%lark { start: ", "\"a\"", " }"])),
        "start: start start | \"a\" | \"\"".into(),
        "start: start start start start | /[ab]/ | \"a\" | \"b\" | \"\"".into(),
        "start: start".into(),
        "start: start start".into(),
        "start: a\na: b\nb: a | \"\"".into(),
        "start: (a | b)*\na: \"x\"* b?\nb: \"x\"* a?".into(),
        "start: \"a\"{1,1000000}".into(),
        "start: x{1,10000}\nx: y{1,10000}\ny: \"a\"{1,10000}".into(),
        "start: a~1..500\na: b~0..500\nb: \"x\"?".into(),
        "start: X\nX: \"a\" X | \"b\"".into(),
        "start: x::0x0\nx::_: x::incr(_) | \"a\" %if ge(_, 1000000)".into(),
        "start: x::0x0\nx::_: \"a\" x::incr(_) | \"\" %if ge(_, 1000000)".into(),
        rules(60, |i| format!("r{i}: r{} r{}", i + 1, i + 1)),
        rules(9000, |i| format!("r{i}: r{} r{} | \"\"", i + 1, i + 1)),
        rules(20_000, |i| format!("r{i}: \"x{i}\" r{}?", i + 1)),
        rules(60, |i| format!("r{i}: r{} r{}", i + 1, i + 1))
            .to_uppercase()
            .replace("START: ", "start: "),
        intersected(26, ""),
        intersected(26, "~"),
        format!("start: {}", "\"a\" ".repeat(200_000)),
        format!("start: {}", "\"a\"? ".repeat(20_000)),
        format!("start: {}\nr: \"a\" | \"\"", "r ".repeat(40_000)),
        format!("start: {}", "|".repeat(300_000)),
        format!("start: {}", list(25_000, " | ", |i| format!("\"a{i}\""))),
        format!(
            "start: {}\n{}",
            list(1000, " | ", |i| format!("T{i}")),
            list(1000, "\n", |i| format!("T{i}: /[a-z]*{i}[a-z]*/"))
        ),
        format!("start: X\nX: %regex {{\"substring_chars\": \"{}\"}}", "ab".repeat(50_000)),
        format!("start: \"{}\"", "x".repeat(1_000_000)),
        "start: \"a\"*\n%ignore /(a|b)*a(a|b){20}/".into(),
        "start: X X\nX: /a+/".into(),
        "start: \"q\" X X | \"z\"\nX: /a+/".into(),
        "start: X b\nX: /a+/\nb: b b".into(),
        "start: \"q\" X b | \"z\"\nX: /a+/\nb: Y \"x\"\nY: /c/ & /d/".into(),
        "start: <[0-4000000000]>*".into(),
        "start: \"\\ud800\"".into(),
        "start: \"\\q\"".into(),
        ":".repeat(1_000_000),
    ]
}

fn choices() -> Vec<String> {
    vec![
        json!((0..30_000).map(|i| format!("value {}", i * 7919 % 30_000)).collect::<Vec<_>>())
            .to_string(),
        json!((0..100_000).map(|i| i.to_string()).collect::<Vec<_>>()).to_string(),
        json!(["x".repeat(1_000_000)]).to_string(),
        json!((0..100).map(|i| "ab".repeat(5000 - i)).collect::<Vec<_>>()).to_string(),
    ]
}

/// Against endless work. What is refused and accepted takes a tenth of that in a release build.
const LONG: Duration = Duration::from_secs(20);
const LONG_MASK: Duration = Duration::from_secs(1);

fn limit(usual: Duration) -> Duration {
    usual * if cfg!(debug_assertions) { 20 } else { 1 }
}

/// Of this thread: a busy machine is no fault of a grammar.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Takes random tokens that the mask allows.
fn drive(language: &Language, matcher: &mut DnMatcher, random: &mut Random) {
    let size = language.vocabulary.size;
    let mut words = vec![0; size.div_ceil(32)];
    for _ in 0..64 {
        let start = cpu_time();
        let masked = matcher.mask(&mut words);
        let time = cpu_time() - start;
        let most = if masked.is_ok() { LONG_MASK } else { LONG_MASK + LONGEST };
        assert!(time < limit(most), "a mask took {time:?}");
        if let Err(error) = masked {
            assert!(error.0.starts_with("gave up at a limit: "), "{}", error.0);
            assert!(!error.0.contains('\n'), "{}", error.0);
            return;
        }
        let is_allowed = |token: &i32| words[*token as usize / 32] >> (token % 32) & 1 == 1;
        let tokens: Vec<i32> = (0..size as i32).filter(is_allowed).collect();
        let token = if tokens.is_empty() { language.end } else { *random.pick(&tokens) };
        match matcher.accept(&[token]) {
            Ok(accepted) => assert_eq!(accepted, usize::from(is_allowed(&token))),
            Err(error) => assert!(error.0.starts_with("gave up at a limit: "), "{}", error.0),
        }
        if token == language.end {
            return;
        }
    }
}

fn try_all(kind: Kind, texts: &[String]) {
    install_panic_hook();
    let language = Language::open("gpt2", "<|endoftext|>");
    for (at, text) in texts.iter().enumerate() {
        let what = format!("{kind:?} {at}: {}", text.chars().take(60).collect::<String>());
        let start = Instant::now();
        match DnMatcher::open(&language.vocabulary, kind, text) {
            Ok(mut matcher) => drive(&language, &mut matcher, &mut Random(at as u64)),
            Err(error) => assert!(error.0.chars().count() < 2100, "{what}: {}", error.0),
        }
        assert!(start.elapsed() < limit(LONG), "{what}: {:?}", start.elapsed());
    }
}

#[test]
fn hostile_regexes_are_refused_soon() {
    try_all(Kind::Regex, &regexes());
}

#[test]
fn hostile_schemas_are_refused_soon() {
    try_all(Kind::JsonSchema, &schemas());
}

#[test]
fn hostile_lark_grammars_are_refused_soon() {
    try_all(Kind::Lark, &larks());
}

#[test]
fn hostile_choices_are_refused_soon() {
    try_all(Kind::Choice, &choices());
}

/// Terminals that take all of what should follow them: nothing but more of them may come, without
/// an end.
#[test]
fn greedy_terminals_are_a_dead_end_soon() {
    const SOON: Duration = Duration::from_millis(500);
    const REASON: &str = "no end of what must come next";
    let language = Language::open("gpt2", "<|endoftext|>");
    let id = |text: &str| language.vocabulary.factory.tok_env().tokenize(text)[0] as i32;
    let open = |text: &str| {
        let start = cpu_time();
        let opened = DnMatcher::open(&language.vocabulary, Kind::Lark, text);
        (opened, cpu_time() - start)
    };
    for text in [
        "start: A B\nA: /a+/\nB: \"ab\"\n",
        "start: L \"-->\"\nL: /-+/\n",
        "start: W \" x\"\nW: / +/\n",
        "start: A A\nA: /(ab)+/\n",
        "start: \"(\" A \")\"\nA: /[()]+/\n",
        "start: A B C\nA: /x/\nB: /[ab]*a/\nC: \"a\" | \"b\"\n",
    ] {
        let begin = Instant::now();
        match open(text).0 {
            Ok(mut matcher) => drive(&language, &mut matcher, &mut Random(1)),
            Err(error) => assert!(error.0.contains(REASON), "{text}: {}", error.0),
        }
        assert!(begin.elapsed() < limit(LONG_MASK), "{text}: {:?}", begin.elapsed());
    }
    assert!(open("start: A B\nA: /a+/\nB: \"b\"\n").0.is_ok());
    let (matcher, _) = open("start: \"x\" /[0-9]{1,5}/ | \"y\" A B\nA: /a+/\nB: \"ab\"\n");
    let matcher = matcher.unwrap();
    let mut words = vec![0; language.vocabulary.size.div_ceil(32)];
    for apart in [false, true] {
        let (mut dead, mut live) = (matcher.fork(apart), matcher.fork(apart));
        assert_eq!(dead.accept(&[id("y"), id("a")]).unwrap(), 2);
        let begin = cpu_time();
        let error = dead.mask(&mut words).unwrap_err();
        let time = cpu_time() - begin;
        assert!(time < limit(SOON), "{time:?}");
        assert!(error.0.contains(REASON), "{}", error.0);
        assert!(dead.forced().is_err()); // at once
        assert_eq!(live.accept(&[id("x"), id("1")]).unwrap(), 2);
        live.mask(&mut words).unwrap();
    }
}

#[test]
fn a_refusal_says_what_was_got_and_expected() {
    let language = Language::open("gpt2", "<|endoftext|>");
    let names = |size: usize| object(size, |i| (format!("p{i}"), json!({})));
    let nested = |size: usize| json!(vec![json!({"items": {}}); size]);
    let multiples =
        json!({"allOf": [{"multipleOf": 97}, {"multipleOf": 89}, {"multipleOf": 7919}]});
    let cases = [
        (Kind::Choice, "x".repeat((1 << 20) + 1), "got 1048577 bytes, expected at most 1048576"),
        (Kind::Regex, "x".repeat(16385), "bytes in one regex: got 16385, expected at most 16384"),
        (Kind::Lark, format!("start: /{}/", "x".repeat(16385)), "bytes in one regex: got 16385"),
        (
            Kind::Lark,
            format!("start: X\nX: %regex {{\"substring_chars\": \"{}\"}}", "x".repeat(16384)),
            "bytes in one regex: got ",
        ),
        (
            Kind::Lark,
            format!("start: {}\"a\"", "|".repeat(30_000)),
            "definitions and alternatives: got 30001, expected at most 30000",
        ),
        (
            Kind::Lark,
            format!("start: %json {{\"properties\": {}}}", names(1001)),
            "properties of one object: got 1001, expected at most 1000",
        ),
        (
            Kind::JsonSchema,
            json!({"properties": names(1001)}).to_string(),
            "properties of one object: got 1001, expected at most 1000",
        ),
        (
            Kind::JsonSchema,
            json!({"required": vec!["a"; 1001]}).to_string(),
            "names in one required: got 1001, expected at most 1000",
        ),
        (
            Kind::JsonSchema,
            json!({"patternProperties": names(17)}).to_string(),
            "patternProperties of one object: got 17, expected at most 16",
        ),
        (
            Kind::JsonSchema,
            json!({"items": {"pattern": "x".repeat(16385)}}).to_string(),
            "bytes in one regex: got 16385",
        ),
        (
            Kind::JsonSchema,
            json!({"x-guidance": {"whitespace_pattern": "x".repeat(16385)}}).to_string(),
            "bytes in one regex: got 16385",
        ),
        (
            Kind::JsonSchema,
            json!({"anyOf": vec![json!({"pattern": "x".repeat(16384)}); 9]}).to_string(),
            "bytes in all regexes: got 147456, expected at most 131072",
        ),
        (
            Kind::JsonSchema,
            json!({"anyOf": nested(10_000)}).to_string(),
            "objects in the schema: got 20001, expected at most 20000",
        ),
        (
            Kind::JsonSchema,
            json!({"oneOf": vec!["a"; 4001]}).to_string(),
            "values in one oneOf: got 4001, expected at most 4000",
        ),
        (
            Kind::JsonSchema,
            json!({"multipleOf": 100_001}).to_string(),
            "multipleOf: got 100001, expected 0 to 100000",
        ),
        (
            Kind::JsonSchema,
            json!({"multipleOf": 1e-9}).to_string(),
            "multipleOf: got 0.000000001, expected",
        ),
        (Kind::JsonSchema, multiples.to_string(), "multipleOf: got 68364727 and 7919, expected"),
        (
            Kind::Lark,
            format!("start: {}", "\"a\" ".repeat(15_000)),
            "names, strings and regexes in rules: got 15001, expected at most 15000",
        ),
        (
            Kind::JsonSchema,
            json!({"enum": (0..19_000).map(|i| json!({"a": i})).collect::<Vec<_>>()}).to_string(),
            "gave up at a limit: ",
        ),
        (Kind::Lark, "start: (\"a\" | \"b\"){3}\nX: /x/".into(), ""),
    ];
    for (kind, text, expected) in cases {
        let opened = DnMatcher::open(&language.vocabulary, kind, &text);
        match opened {
            Ok(_) => assert_eq!(expected, "", "{}", &text[..text.len().min(100)]),
            Err(error) => {
                assert!(!expected.is_empty() && error.0.contains(expected), "{}", error.0)
            }
        }
    }
}

/// What stands in strings, comments and regexes of a Lark grammar defines nothing.
#[test]
fn ordinary_grammars_keep_within_the_limits() {
    let language = Language::open("gpt2", "<|endoftext|>");
    let signs = format!(
        "start: \"{0}\\\"{0}\" /[{1}\\/]+/ // {0}\n# {0}\n",
        "|".repeat(30_000),
        "|:".repeat(5000)
    );
    language.matcher(Kind::Lark, &signs);
    let known: Value = serde_json::from_str(&file("tests/data/schemas/schemas.json")).unwrap();
    for schema in known.as_array().unwrap() {
        let opened =
            DnMatcher::open(&language.vocabulary, Kind::JsonSchema, &schema["schema"].to_string());
        if let Err(error) = opened {
            panic!("{}: {}", schema["name"], error.0);
        }
    }
}

#[test]
fn nothing_is_accepted_after_an_end_token() {
    let language = Language::open("gpt2", "<|endoftext|>");
    let mut matcher = language.matcher(Kind::Regex, "a*");
    assert_eq!(matcher.accept(&[language.end]).unwrap(), 1);
    assert_eq!(matcher.accept(&[]).unwrap(), 0);
    assert!(matcher.is_complete().unwrap());
    assert_eq!(matcher.accept(&language.tokens("a")).unwrap(), 0);
    matcher.rewind(1).unwrap();
    assert_eq!(matcher.accept(&language.tokens("a")).unwrap(), 1);
}

fn is_caught<T>(language: &Language, body: impl FnOnce() -> crate::ffi::Result<T>) -> bool {
    install_panic_hook();
    let trie = language.vocabulary.factory.tok_env().tok_trie();
    PANICS.lock().unwrap().push(std::ptr::from_ref(trie) as usize);
    let error = body().err();
    assert!(!take_panic(trie), "nothing used the trie");
    error.is_some_and(|error| error.0.contains("wanted by a test"))
}

#[test]
fn a_panic_ends_a_matcher() {
    let language = Language::open("gpt2", "<|endoftext|>");
    let size = language.vocabulary.size.div_ceil(32);
    let tokens = language.tokens("a");
    type Call = fn(&mut DnMatcher, &[i32], &mut [u32]) -> crate::ffi::Result<usize>;
    let calls: [Call; 7] = [
        |matcher, _, words| matcher.mask(words).map(|()| 0),
        |matcher, tokens, _| matcher.accept(tokens),
        |matcher, tokens, _| matcher.validate(tokens),
        |matcher, _, _| matcher.rewind(0).map(|()| 0),
        |matcher, _, _| matcher.forced().map(|tokens| tokens.len()),
        |matcher, _, _| matcher.is_accepting().map(usize::from),
        |matcher, _, _| matcher.is_complete().map(usize::from),
    ];
    for first in calls {
        let mut words = vec![0; size];
        let mut matcher = language.matcher(Kind::Regex, "[ab]*");
        let mut apart = matcher.fork(true);
        assert!(is_caught(&language, || first(&mut matcher, &tokens, &mut words)));
        for call in calls.iter().chain(&calls) {
            let error = call(&mut matcher, &tokens, &mut words).unwrap_err();
            assert_eq!(error.0, "an earlier call of this matcher panicked");
        }
        let mut fork = matcher.fork(false);
        assert!(fork.mask(&mut words).is_err());
        assert_eq!(apart.accept(&tokens).unwrap(), 1);
    }
}

#[test]
fn a_panic_while_opening_is_caught() {
    let language = Language::open("gpt2", "<|endoftext|>");
    let open = || DnMatcher::open(&language.vocabulary, Kind::Regex, "a*");
    assert!(is_caught(&language, open));
    language.matcher(Kind::Regex, "a*");
}
