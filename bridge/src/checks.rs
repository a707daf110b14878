//! What a tokenizer.json must be that `tokenizers` takes for granted: where it would panic, on the
//! file or later on a text, these refuse the file and say which key is wrong.

use crate::ffi::{BridgeError, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokenizers::normalizers::Precompiled;
use tokenizers::utils::SysRegex;
use tokenizers::{
    AddedToken, DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper,
    PreTokenizerWrapper, Tokenizer,
};

/// The largest id that a token may have. The table of pieces has an entry for each id below.
pub const MAX_ID: u32 = (1 << 24) - 1;

type Members = Map<String, Value>;

fn wrong(key: &str, got: impl std::fmt::Display, expected: &str) -> BridgeError {
    BridgeError(format!("key {key}: got {got}, expected {expected}"))
}

/// Calls `check` for each object in `value`, with its key: "decoder.decoders[1]".
fn each_object(
    key: &str,
    value: &Value,
    check: &mut impl FnMut(&str, &Members) -> Result<()>,
) -> Result<()> {
    match value {
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                each_object(&format!("{key}[{i}]"), item, check)?;
            }
        }
        Value::Object(members) => {
            check(key, members)?;
            for (name, member) in members {
                each_object(&format!("{key}.{name}"), member, check)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// What must hold before `Tokenizer::from_bytes` sees the file.
pub fn check_file(file: &Value) -> Result<()> {
    if !file.is_object() {
        return Err(BridgeError("got no JSON object, expected one with the key model".into()));
    }
    each_object("normalizer", &file["normalizer"], &mut |key, members| match members
        .get("type")
        .and_then(Value::as_str)
    {
        Some("Precompiled") => check_charsmap(key, members),
        _ => Ok(()),
    })?;
    let normalizer = Option::<NormalizerWrapper>::deserialize(&file["normalizer"])
        .map_err(|error| BridgeError(format!("key normalizer: {error}")))?;
    each_object("normalizer", &serde_json::to_value(normalizer)?, &mut check_normalizer)?;
    check_merges(&file["model"])
}

fn check_charsmap(key: &str, members: &Members) -> Result<()> {
    Precompiled::deserialize(Value::from(members.clone())).map(drop).map_err(|error| {
        BridgeError(format!("key {key}.precompiled_charsmap: {error}, expected SentencePiece's"))
    })
}

/// The library's normalizers fail where they replace nothing, or put nothing before a text.
fn check_normalizer(key: &str, members: &Members) -> Result<()> {
    if members.get("prepend").is_some_and(|text| text == "") {
        return Err(wrong(&format!("{key}.prepend"), "\"\"", "a text that is not empty"));
    }
    let Some(pattern) = members.get("pattern") else {
        return Ok(());
    };
    let is_empty = match (pattern["String"].as_str(), pattern["Regex"].as_str()) {
        (Some(text), _) => text.is_empty(),
        (_, Some(source)) => SysRegex::new(source).is_ok_and(|regex| {
            let ends_empty =
                |text: &str| regex.find_iter(text).any(|at| at == (text.len(), text.len()));
            ["", "a", "a ", "1.", "é\n"].into_iter().any(ends_empty)
        }),
        _ => false,
    };
    match is_empty {
        true => Err(wrong(&format!("{key}.pattern"), pattern, "one that matches no empty text")),
        false => Ok(()),
    }
}

/// BPE joins two tokens to a third: all three must be there.
fn check_merges(model: &Value) -> Result<()> {
    let (Some(vocab), Some(merges)) = (model["vocab"].as_object(), model["merges"].as_array())
    else {
        return Ok(()); // another model, or one that the library refuses
    };
    let prefix = model["continuing_subword_prefix"].as_str().unwrap_or_default();
    let mut joined = String::new();
    for (i, merge) in merges.iter().enumerate() {
        let pair = match merge {
            Value::String(text) if text.starts_with("#version") => continue,
            Value::String(text) => text.split_once(' '),
            Value::Array(pair) if pair.len() == 2 => pair[0].as_str().zip(pair[1].as_str()),
            _ => None,
        };
        let key = || format!("model.merges[{i}]");
        let Some((left, right)) = pair else {
            return Err(wrong(&key(), merge, "two tokens"));
        };
        let Some(tail) = right.get(prefix.len()..) else {
            return Err(wrong(&key(), merge, "a second token with continuing_subword_prefix"));
        };
        joined.clear();
        joined.extend([left, tail]);
        for token in [left, right, &joined] {
            if !vocab.contains_key(token) {
                return Err(wrong(&key(), merge, &format!("{token:?} to be in model.vocab")));
            }
        }
    }
    Ok(())
}

/// The library's refusal of a file, with the key of the part that it is about.
pub fn refusal(file: &Value, error: &dyn std::fmt::Display) -> BridgeError {
    fn problem<'a, T: Deserialize<'a>>(file: &'a Value, key: &str) -> Option<BridgeError> {
        let error = Option::<T>::deserialize(&file[key]).err()?;
        Some(BridgeError(format!("key {key}: {error}")))
    }
    problem::<PreTokenizerWrapper>(file, "pre_tokenizer")
        .or_else(|| problem::<PostProcessorWrapper>(file, "post_processor"))
        .or_else(|| problem::<DecoderWrapper>(file, "decoder"))
        .or_else(|| problem::<Vec<AddedToken>>(file, "added_tokens"))
        .or_else(|| file["model"].is_null().then(|| wrong("model", "nothing", "an object")))
        .or_else(|| problem::<ModelWrapper>(file, "model"))
        .unwrap_or_else(|| BridgeError(error.to_string()))
}

/// What must hold before the tokenizer sees a text or ids. Each part is looked at as it would be
/// written, which is one form of the several that can be read.
pub fn check_tokenizer(tokenizer: &Tokenizer) -> Result<()> {
    fn part<T: Serialize>(part: Option<&T>) -> Result<Value> {
        Ok(serde_json::to_value(part)?)
    }
    let pre_tokenizer = part(tokenizer.get_pre_tokenizer())?;
    each_object("pre_tokenizer", &pre_tokenizer, &mut |key, members| match members
        .get("length")
        .and_then(Value::as_u64)
    {
        Some(0) => Err(wrong(&format!("{key}.length"), 0, "1 or more")),
        _ => Ok(()),
    })?;
    let decoder = part(tokenizer.get_decoder())?;
    each_object("decoder", &decoder, &mut |key, members| match members
        .get("stop")
        .and_then(Value::as_u64)
    {
        None | Some(0) => Ok(()),
        Some(stop) => Err(wrong(&format!("{key}.stop"), stop, "0: only starts are stripped")),
    })?;
    let post_processor = part(tokenizer.get_post_processor())?;
    each_object("post_processor", &post_processor, &mut check_template)?;
    if let ModelWrapper::Unigram(model) = tokenizer.get_model() {
        if let Some(i) = model.iter().position(|(token, _)| token.is_empty()) {
            return Err(wrong(&format!("model.vocab[{i}]"), "\"\"", "a token that is not empty"));
        }
    }
    Ok(())
}

/// A template adds special tokens to one text: each must be listed, with as many ids as tokens.
fn check_template(key: &str, members: &Members) -> Result<()> {
    let (Some(listed), Some(single)) = (
        members.get("special_tokens").and_then(Value::as_object),
        members.get("single").and_then(Value::as_array),
    ) else {
        return Ok(()); // another post-processor
    };
    for (name, token) in listed {
        let count = |list: &str| token[list].as_array().map_or(0, Vec::len);
        if count("ids") != count("tokens") {
            let key = format!("{key}.special_tokens.{name}");
            return Err(wrong(&key, format_args!("{} ids", count("ids")), "one a token"));
        }
    }
    let names: Vec<&str> = listed.keys().map(String::as_str).collect();
    let pair = members.get("pair").and_then(Value::as_array);
    for (list, pieces) in [("single", Some(single)), ("pair", pair)] {
        for (i, piece) in pieces.into_iter().flatten().enumerate() {
            let key = format!("{key}.{list}[{i}]");
            if let Some(id) = piece["SpecialToken"]["id"].as_str() {
                if !listed.contains_key(id) {
                    let expected = format!("one of special_tokens: {}", names.join(", "));
                    return Err(wrong(&key, format_args!("the special token {id:?}"), &expected));
                }
            }
            if list == "single" && piece["Sequence"]["id"] == "B" {
                return Err(wrong(&key, "sequence B", "A, the only text"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::tokenizer::DnTokenizer;
    use serde_json::{json, Value};

    fn refusal(edit: impl FnOnce(&mut Value)) -> String {
        let mut file = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
        });
        edit(&mut file);
        let opened = DnTokenizer::open(file.to_string().as_bytes(), "");
        opened.err().map_or_else(|| "opened".to_owned(), |error| error.0)
    }

    #[test]
    fn a_whole_file_opens() {
        assert_eq!(refusal(|_| {}), "opened");
    }

    #[test]
    fn a_template_names_tokens_that_it_lists() {
        let template = |single: Value, special: Value| {
            json!({"type": "Sequence", "processors": [
                {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": special}]})
        };
        let listed = json!({"[A]": {"id": "[A]", "ids": [0], "tokens": ["a"]}});
        let piece = |id: &str| json!([{"SpecialToken": {"id": id, "type_id": 0}}]);
        assert_eq!(
            refusal(|file| file["post_processor"] = template(piece("[A]"), listed.clone())),
            "opened"
        );
        assert_eq!(
            refusal(|file| file["post_processor"] = template(piece("[B]"), listed.clone())),
            "key post_processor.processors[0].single[0]: got the special token \"[B]\", \
             expected one of special_tokens: [A]"
        );
        let second = json!([{"Sequence": {"id": "B", "type_id": 0}}]);
        assert_eq!(
            refusal(|file| file["post_processor"] = template(second, listed.clone())),
            "key post_processor.processors[0].single[0]: got sequence B, expected A, the only text"
        );
        let uneven = json!({"[A]": {"id": "[A]", "ids": [0, 1], "tokens": ["a"]}});
        assert_eq!(
            refusal(|file| file["post_processor"] = template(piece("[A]"), uneven)),
            "key post_processor.processors[0].special_tokens.[A]: got 2 ids, expected one a token"
        );
    }

    #[test]
    fn merges_are_of_tokens_that_are_there() {
        for (merge, token) in [
            (json!("a c"), "c"),
            (json!(["b", "a"]), "ba"),
            (json!(["ab", "ab"]), "abab"), // longer than any token
        ] {
            let text = refusal(|file| file["model"]["merges"][0] = merge.clone());
            assert_eq!(
                text,
                format!(
                    "key model.merges[0]: got {merge}, expected {token:?} to be in model.vocab"
                )
            );
        }
        let text = refusal(|file| file["model"]["continuing_subword_prefix"] = json!("###"));
        assert!(text.starts_with("key model.merges[0]: got \"a b\", expected a second"), "{text}");
    }

    #[test]
    fn broken_parts_are_named() {
        for (key, value) in [
            ("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "AA=="})),
            ("normalizer", json!({"type": "Precompiled"})),
            ("normalizer", json!({"type": "Prepend", "prepend": ""})),
            ("normalizer", json!({"type": "Replace", "pattern": {"String": ""}, "content": "x"})),
            (
                "normalizer",
                json!({"type": "Replace", "pattern": {"Regex": "\\s*$"}, "content": ""}),
            ),
            ("normalizer", json!({"type": "Replace", "pattern": {"Regex": "("}, "content": ""})),
            ("pre_tokenizer", json!({"type": "FixedLength", "length": 0})),
            ("post_processor", json!({"type": "Unheard"})),
            ("decoder", json!({"type": "Strip", "content": " ", "start": 0, "stop": 1})),
            ("decoder", json!(3)),
            ("added_tokens", json!([{"content": 3}])),
            ("model", json!({"type": "Unigram", "unk_id": 3, "vocab": []})),
            ("model", json!({"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0], ["", 0.0]]})),
            ("model", Value::Null),
        ] {
            let text = refusal(|file| file[key] = value.clone());
            assert!(text.starts_with(&format!("key {key}")), "{value}: {text}");
        }
    }

    #[test]
    fn ids_are_bounded() {
        let text = refusal(|file| file["model"]["vocab"]["a"] = json!(u32::MAX));
        assert_eq!(text, "token \"a\" has the id 4294967295; expected 0 to 16777215");
    }
}
