//! Texts encoded as what follows others: over all tokenizers of the tests, and kinds that none of
//! them is, the ids of a whole text are those of its two halves wherever no token is of both.

use crate::fuzz::{find, read, rounds, test_data, Random};
use crate::pieces::DecoderKind;
use crate::tokenizer::DnTokenizer;
use serde_json::{json, Value};

struct Named {
    name: String,
    tokenizer: DnTokenizer,
    added: Vec<String>,
}

fn named(name: &str, file: &Value) -> Named {
    let content = |token: &Value| token["content"].as_str().unwrap_or_default().to_owned();
    Named {
        name: name.to_owned(),
        tokenizer: DnTokenizer::open(file.to_string().as_bytes(), "").unwrap(),
        added: file["added_tokens"].as_array().into_iter().flatten().map(content).collect(),
    }
}

/// Those of the tests, then others that treat the beginning of a text in their own way.
fn all() -> Vec<Named> {
    let mut all = Vec::new();
    let folder = test_data().join("text/tokenizers");
    let file = |name: &str| -> Value {
        serde_json::from_str(&read(&folder.join(name).join("tokenizer.json"))).unwrap()
    };
    for path in find(&test_data(), "tokenizer.json") {
        let folder = path.parent().unwrap().strip_prefix(test_data()).unwrap().to_owned();
        let name = folder.to_str().unwrap().trim_start_matches("text/tokenizers/").to_owned();
        all.push(named(&name, &serde_json::from_str(&read(&path)).unwrap()));
    }
    let metaspace = |scheme: &str, split: bool| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split});
    for (scheme, split) in [("always", false), ("always", true), ("first", true), ("never", false)]
    {
        let mut llama = file("llama2");
        llama["normalizer"] = Value::Null;
        llama["pre_tokenizer"] = metaspace(scheme, split);
        all.push(named(&format!("llama2, Metaspace {scheme} {split}"), &llama));
    }
    let mut words = file("unigram");
    words["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
        {"type": "WhitespaceSplit"}, metaspace("always", true)]});
    all.push(named("unigram, WhitespaceSplit", &words));
    let mut spaced = file("gpt2");
    spaced["pre_tokenizer"]["add_prefix_space"] = true.into();
    all.push(named("gpt2, add_prefix_space", &spaced));
    let mut stripped = file("llama2");
    let normalizers = stripped["normalizer"]["normalizers"].as_array_mut().unwrap();
    normalizers.insert(0, json!({"type": "Strip", "strip_left": true, "strip_right": false}));
    all.push(named("llama2, Strip", &stripped));
    let mut anchored = file("llama2");
    let normalizers = anchored["normalizer"]["normalizers"].as_array_mut().unwrap();
    normalizers[0] = json!({"type": "Replace", "pattern": {"Regex": "^(?=.)|^ +"}, "content": "▁"});
    all.push(named("llama2, ^", &anchored));
    all
}

fn texts() -> Vec<String> {
    serde_json::from_str(&read(&test_data().join("text/texts.json"))).unwrap()
}

/// Some text with what matters at borders.
fn random_text(texts: &[String], added: &[String], random: &mut Random) -> String {
    const PARTS: [&str; 18] = [
        " ", "  ", "\n", "\n\n", "▁", "a", " x", "Hello", " world", "1+1=", "23", ".", "'s", "é",
        "你好", "🌳", "\t", "<",
    ];
    let mut text = String::new();
    for _ in 0..1 + random.below(8) {
        match random.below(8) {
            0 if !added.is_empty() => text += random.pick(added).as_str(),
            1 | 2 => {
                let chars: Vec<char> = random.pick(texts).chars().collect();
                let from = random.below(chars.len());
                text.extend(chars[from..].iter().take(1 + random.below(12)));
            }
            _ => text += *random.pick::<&str>(&PARTS),
        }
    }
    text
}

#[derive(Default, Debug)]
struct Seen {
    borders: usize,
    merged: usize,
    else_wrong: usize, // where the text encoded as a beginning would have been wrong
}

/// The second half of a text, given the ids of the first.
fn check(one: &Named, before: &str, text: &str, seen: &mut Seen) {
    let Named { name, tokenizer, .. } = one;
    let ids = |text: &str, special: bool| tokenizer.encode(text.as_bytes(), special).unwrap();
    let front = ids(before, false);
    let whole = ids(&[before, text].concat(), false);
    let after = tokenizer.encode_after(&front, text.as_bytes()).unwrap();
    let what = || format!("{name}: {before:?} + {text:?}");
    // A tokenizer that drops white space, say, gives ids that do not tell what the text was.
    let told = tokenizer.decode(&front, false).unwrap();
    if !before.is_empty() && !told.ends_with(&before[before.char_indices().last().unwrap().0..]) {
        return;
    }
    if text.is_empty() {
        assert!(after.is_empty(), "{}", what());
    }
    if !front.is_empty() && front == ids("", true) {
        return; // behind what the tokenizer puts before each text there is a beginning
    }
    seen.borders += 1;
    let Some(rest) = whole.strip_prefix(front.as_slice()) else {
        seen.merged += 1;
        return;
    };
    assert_eq!(after, rest, "{}", what());
    seen.else_wrong += usize::from(ids(text, false) != rest);
    // The same behind what the tokenizer puts in front of each text, if it puts nothing behind.
    let special = ids("", true);
    if !special.is_empty()
        && ids("a", true).starts_with(&special)
        && ids("a", true).len() > special.len()
    {
        let front = [special, front].concat();
        assert_eq!(tokenizer.encode_after(&front, text.as_bytes()).unwrap(), rest, "{}", what());
    }
}

#[test]
fn a_text_is_encoded_as_what_follows() {
    let texts = texts();
    for one in &all() {
        let mut seen = Seen::default();
        for (i, text) in texts.iter().enumerate() {
            let mut random = Random(i as u64);
            let borders: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
            for _ in 0..borders.len().min(8) {
                let (before, after) = text.split_at(*random.pick(&borders));
                check(one, before, after, &mut seen);
            }
            check(one, text, "", &mut seen);
        }
        for seed in 0..rounds(2000) {
            let mut random = Random(seed);
            let before = random_text(&texts, &one.added, &mut random);
            check(one, &before, &random_text(&texts, &one.added, &mut random), &mut seen);
        }
        eprintln!("{}: {seen:?}", one.name);
        assert!(seen.borders - seen.merged > 100, "{}: {seen:?}", one.name);
        let marks_beginnings = ["llama2", "mistral", "unigram", "add_prefix_space"];
        if marks_beginnings.iter().any(|part| one.name.contains(part))
            && !["never", "models/"].iter().any(|part| one.name.contains(part))
        {
            assert!(seen.else_wrong > 100, "{}: {seen:?}", one.name);
        }
    }
}

/// Where two tokens would grow together, they do not, and what is added is the text all the same.
#[test]
fn what_would_merge_keeps_its_text() {
    let texts = texts();
    let mut merged = 0;
    for one in &all() {
        let Named { name, tokenizer, added } = one;
        let table = tokenizer.table();
        if matches!(table.kind, DecoderKind::Other | DecoderKind::Spaced)
            || ["unigram", "qwen", "Strip", "^"].iter().any(|part| name.contains(part))
        {
            continue; // which do not keep each text as it is
        }
        for seed in 0..rounds(1000) {
            let mut random = Random(seed);
            let before = random_text(&texts, &[], &mut random);
            let text = random_text(&texts, &[], &mut random);
            let whole = [before.as_str(), &text].concat();
            // ▁ is a space to those that write spaces so; special texts are cut at their own rules.
            if whole.contains('▁') || added.iter().any(|token| whole.contains(token.as_str())) {
                continue;
            }
            let front = tokenizer.encode(before.as_bytes(), false).unwrap();
            let joint = tokenizer.encode(whole.as_bytes(), false).unwrap();
            merged += usize::from(!joint.starts_with(&front));
            let mut spelt = Vec::new();
            for id in tokenizer.encode_after(&front, text.as_bytes()).unwrap() {
                let (from, to) = (table.offsets[id as usize], table.offsets[id as usize + 1]);
                spelt.extend_from_slice(&table.bytes[from as usize..to as usize]);
            }
            let spelt = String::from_utf8_lossy(&spelt);
            assert!(
                spelt == text || spelt.contains("<unk>"),
                "{name}: {before:?} + {text:?}: {spelt:?}"
            );
        }
    }
    assert!(merged as u64 > rounds(150), "{merged}");
}

#[test]
fn ids_in_front_are_looked_at_as_far_as_needed() {
    let all = all();
    let llama =
        &all.iter().find(|one| one.name == "llama2, Metaspace first true").unwrap().tokenizer;
    let ids = |text: &str| llama.encode(text.as_bytes(), false).unwrap();
    let after = |before: &[i32], text: &str| llama.encode_after(before, text.as_bytes()).unwrap();
    let bos = llama.encode(b"", true).unwrap();
    assert_eq!(after(&[], "is"), ids("is"));
    assert_eq!(after(&bos, "is"), ids("is")); // a prompt without text
    assert_ne!(after(&ids("the tree"), "is"), ids("is"));
    // More ids in front than are looked at, ids without a token, half of a character.
    let long = ids(&"the tree ".repeat(50));
    assert_eq!(after(&long, "is"), after(&long[long.len() - 9..], "is"));
    assert_eq!(after(&[1 << 20], "is"), after(&ids("the"), "is"));
    let half = ids("🌳");
    assert_eq!(after(&half[..half.len() - 1], "is"), after(&ids("the"), "is"));
    assert!(llama.encode_after(&[-1], b"is").is_err());
}
