//! Random grammars, some of them damaged: each one opens, or is refused in words; what opens takes
//! random tokens, rewinds and forks, and its masks are what it accepts.

use crate::ffi::BridgeError;
use crate::fuzz::{damage_text, rounds, run, Random};
use crate::grammar::DnMatcher;
use crate::grammar_tests::Language;
use crate::kind::Kind;
use serde_json::{json, Value};

const WORDS: [&str; 8] = ["a", "b", "ab", "the", " ", "\n", "é", "<s>"];

fn regex(random: &mut Random, depth: usize) -> String {
    let atoms =
        ["a", "b", ".", "[a-c]", "[^a]", r"\d", r"\w", r"\n", " ", "é", "", r"\.", "(?i:x)"];
    if depth == 0 {
        return random.pick(&atoms).to_string();
    }
    let one = regex(random, depth - 1);
    match random.below(8) {
        0 => format!("({one})*"),
        1 => format!("({one})+"),
        2 => format!("({one})?"),
        3 => format!("({one}){{{},{}}}", random.below(3), random.below(60)),
        4 => format!("({one}|{})", regex(random, depth - 1)),
        _ => format!("{one}{}", regex(random, depth - 1)),
    }
}

fn schemas(random: &mut Random, depth: usize) -> Vec<Value> {
    (0..random.below(4)).map(|_| schema(random, depth)).collect()
}

fn members(random: &mut Random, depth: usize) -> Value {
    let names = ["a", "b", "x y", "é\"", ""];
    let all = schemas(random, depth);
    all.into_iter().map(|one| (random.pick(&names).to_string(), one)).collect()
}

fn schema(random: &mut Random, depth: usize) -> Value {
    let deeper = depth.saturating_sub(1);
    let number = random.below(40) as i64 - 8;
    match random.below(if depth == 0 { 7 } else { 13 }) {
        0 => json!({"type": "string", "maxLength": number}),
        1 => json!({"type": "string", "pattern": regex(random, 2), "minLength": random.below(4)}),
        2 => json!({"type": "integer", "minimum": number, "maximum": number + 30}),
        3 => json!({"type": "number", "multipleOf": random.pick(&[0.01, 0.5, 3.0, 7.0])}),
        4 => json!({"enum": [random.pick(&WORDS), number, null, [true], {"a": 1}]}),
        5 => json!({"type": ["boolean", "null"]}),
        6 => json!({"$ref": random.pick(&["#", "#/$defs/a", "#/properties/a", "#/none"])}),
        7 => json!({"type": "array", "items": schema(random, deeper), "maxItems": number}),
        8 => json!({"anyOf": schemas(random, deeper)}),
        9 => json!({"allOf": schemas(random, deeper)}),
        10 => json!({"oneOf": schemas(random, deeper)}),
        11 => {
            json!({"type": "object", "patternProperties": {regex(random, 1): schema(random, deeper)}})
        }
        _ => json!({
            "type": "object", "properties": members(random, deeper), "required": ["a"],
            "additionalProperties": random.below(2) == 0, "$defs": {"a": schema(random, deeper)},
        }),
    }
}

fn body(random: &mut Random, depth: usize) -> String {
    let one = match random.below(if depth == 0 { 6 } else { 9 }) {
        0 => json!(random.pick(&WORDS)).to_string(),
        1 => random.pick(&["start", "a", "b", "X", "Y"]).to_string(),
        2 => format!("/{}/", regex(random, 2)),
        3 => "\"\"".into(),
        4 => format!("%json {}", schema(random, 1)),
        5 => random
            .pick(&[
                "<[5]>",
                "<[3-9,12]>",
                "<|endoftext|>",
                "%regex {\"substring_words\": \"a b\"}",
            ])
            .to_string(),
        6 => format!(
            "({}){}",
            body(random, depth - 1),
            random.pick(&["*", "+", "?", "{2,5}", "~1..3"])
        ),
        7 => format!("({} | {})", body(random, depth - 1), body(random, depth - 1)),
        _ => format!("{} {}", body(random, depth - 1), body(random, depth - 1)),
    };
    one.replace("//", "/a/")
}

fn lark(random: &mut Random) -> String {
    let mut text = format!("start: {}\n", body(random, 2));
    for name in ["a", "b"] {
        text += &format!("{name}: {} | {}\n", body(random, 1), body(random, 2));
    }
    let sign = *random.pick(&["&", "|", "& ~"]);
    text += &format!("X: /{}b/ {sign} /{}a/\n", regex(random, 2), regex(random, 2));
    text += &format!("Y: \"{}\" X?\n", random.pick(&["a", "é", "\\n", "\\x41"]));
    if random.below(4) == 0 {
        text += "%ignore /[ \\t]+/\n";
    }
    text
}

fn grammar(random: &mut Random) -> (Kind, String) {
    let kind = *random.pick(&Kind::ALL);
    let mut text = match kind {
        Kind::JsonSchema => schema(random, 3).to_string(),
        Kind::Regex => regex(random, 4),
        Kind::Lark => lark(random),
        Kind::Choice => {
            let word = |random: &mut Random| [*random.pick(&WORDS), *random.pick(&WORDS)].concat();
            json!((0..random.below(9)).map(|_| word(random)).collect::<Vec<_>>()).to_string()
        }
    };
    while random.below(3) == 0 {
        text = damage_text(&text, random);
    }
    (kind, text)
}

fn check_refusal(kind: Kind, error: &BridgeError) {
    let name = ["JSON schema: ", "regex: ", "Lark grammar: ", "choice: "][kind as usize];
    let rest = error.0.strip_prefix(name).unwrap_or_default();
    assert!(!rest.trim().is_empty() && !rest.contains("<backtrace>"), "{}", error.0);
}

/// One state: the mask is what is accepted. None once the matcher came to a limit.
fn check_state(
    language: &Language,
    matcher: &mut DnMatcher,
    random: &mut Random,
) -> Option<Vec<i32>> {
    let gives_up = |error: &BridgeError| {
        let is_known = ["gave up at a limit: ", "llguidance has a bug ", "an earlier call "];
        assert!(is_known.iter().any(|start| error.0.starts_with(start)), "{}", error.0);
        assert!(!error.0.contains('\n'), "{}", error.0);
    };
    let size = language.vocabulary.size;
    let mut words = vec![0; size.div_ceil(32)];
    matcher.mask(&mut words).inspect_err(gives_up).ok()?;
    let is_masked = |token: i32| words[token as usize / 32] >> (token % 32) & 1 == 1;
    let forced = matcher.forced().inspect_err(gives_up).ok()?;
    let is_accepting = matcher.is_accepting().inspect_err(gives_up).ok()?;
    assert_eq!(is_masked(language.end), is_accepting);
    let allowed: Vec<i32> = (0..size as i32).filter(|&token| is_masked(token)).collect();
    let is_complete = matcher.is_complete().inspect_err(gives_up).ok()?;
    assert!(!is_complete || allowed == [language.end]);
    for i in 0..12 {
        let is_wanted = i % 3 == 0 && !allowed.is_empty();
        let token = if is_wanted { *random.pick(&allowed) } else { random.below(size) as i32 };
        let is_admitted = matcher.validate(&[token]).inspect_err(gives_up).ok()? == 1;
        let agree = is_masked(token) == is_admitted || (is_admitted && !forced.is_empty());
        assert!(agree, "{token} {:?}: mask {}", language.text(&[token]), is_masked(token));
    }
    Some(allowed)
}

/// Opens and uses a grammar; true if it opened.
fn use_grammar(language: &Language, kind: Kind, text: &str) -> bool {
    let opened = DnMatcher::open(&language.vocabulary, kind, text);
    let mut matcher = match opened.inspect_err(|error| check_refusal(kind, error)) {
        Ok(matcher) => matcher,
        Err(_) => return false,
    };
    let mut random = Random(text.len() as u64);
    let mut masks: Vec<Vec<i32>> = Vec::new(); // before each token
    for _ in 0..24 {
        let Some(allowed) = check_state(language, &mut matcher, &mut random) else { break };
        let back = if random.below(4) == 0 { random.below(masks.len() + 1) } else { 0 };
        if random.below(5) == 0 {
            matcher = matcher.fork(random.below(2) == 0);
        }
        if back > 0 {
            matcher.rewind(back).unwrap();
            let before = masks[masks.len() - back].clone();
            masks.truncate(masks.len() - back);
            match check_state(language, &mut matcher, &mut random) {
                Some(allowed) => assert_eq!(allowed, before, "after a rewind of {back}"),
                None => break,
            }
            continue;
        }
        if allowed.is_empty() {
            break; // a dead end
        }
        let token = *random.pick(&allowed);
        match matcher.accept(&[token]) {
            Ok(accepted) => assert_eq!(accepted, 1),
            Err(_) => break,
        }
        if token == language.end {
            assert!(matcher.is_complete().unwrap());
            assert_eq!(matcher.validate(&[token]).unwrap(), 0);
            matcher.rewind(1).unwrap();
            continue;
        }
        masks.push(allowed);
    }
    true
}

#[test]
fn random_grammars_are_refused_in_words_or_work() {
    let languages = [Language::open("gpt2", "<|endoftext|>"), Language::open("llama2", "</s>")];
    let make = |random: &mut Random| (random.below(2), grammar(random));
    run(rounds(1500), make, |(at, (kind, text))| use_grammar(&languages[*at], *kind, text));
}
