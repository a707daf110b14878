//! A text as what follows other text: without what a tokenizer does at the beginning of one.
//!
//! Tokenizers of SentencePiece's kind put a space in front of a text (`Prepend`, `Metaspace`,
//! `add_prefix_space`), others strip white space there. Where a text goes on, that would be wrong:
//! its tokens are those of the whole text less those of what stands in front.

use crate::ffi::{guard, slice, BridgeError, Ids, Result, Status, OK};
use crate::pieces::{DecoderKind, KNOWN};
use crate::tokenizer::DnTokenizer;
use serde_json::{json, Value};
use std::ffi::c_char;
use tokenizers::{
    Model, NormalizedString, Normalizer, NormalizerWrapper, OffsetType, PreTokenizedString,
    PreTokenizer, PreTokenizerWrapper, Tokenizer,
};

/// Tokens in front that are looked at: what a tokenizer makes of a text depends on the few
/// characters before it. DN_TOKENS_BEFORE.
const BEFORE: usize = 8;

/// How a text is cut that does not begin where it begins.
pub struct Inside {
    normalizer: Option<NormalizerWrapper>, // of what comes before the first added token
    steps: Vec<Step>,
}

struct Step {
    usual: PreTokenizerWrapper,
    first: Option<PreTokenizerWrapper>, // of the part that the text begins with
}

/// Takes what concerns the beginning of a text out of the JSON of a normalizer or pre-tokenizer.
pub fn without_beginning(part: &mut Value) {
    match part {
        Value::Array(items) => items.iter_mut().for_each(without_beginning),
        Value::Object(members) => {
            let is_anchored =
                |pattern: &str| pattern.starts_with('^') || pattern.starts_with("\\A");
            match members.get("type").and_then(Value::as_str) {
                Some("Replace")
                    if !members["pattern"]["Regex"].as_str().is_some_and(is_anchored) => {}
                Some("Prepend" | "Replace") => {
                    *part = json!({"type": "Sequence", "normalizers": []});
                    return;
                }
                Some("Strip") => drop(members.insert("strip_left".into(), false.into())),
                Some("Metaspace") => drop(members.insert("prepend_scheme".into(), "never".into())),
                Some("ByteLevel") if members.contains_key("add_prefix_space") => {
                    drop(members.insert("add_prefix_space".into(), false.into()));
                }
                _ => {}
            }
            members.values_mut().for_each(without_beginning);
        }
        _ => {}
    }
}

fn inside<T>(part: &T) -> Result<Option<T>>
where
    T: serde::Serialize + serde::de::DeserializeOwned,
{
    let usual = serde_json::to_value(part)?;
    let mut changed = usual.clone();
    without_beginning(&mut changed);
    Ok(if changed == usual { None } else { Some(serde_json::from_value(changed)?) })
}

impl Inside {
    /// None: the tokenizer treats the beginning of a text like all of it.
    pub fn new(tokenizer: &Tokenizer) -> Result<Option<Self>> {
        let usual = tokenizer.get_normalizer();
        let normalizer = usual.map(inside).transpose()?.flatten();
        let steps = match tokenizer.get_pre_tokenizer() {
            None => Vec::new(),
            Some(PreTokenizerWrapper::Sequence(sequence)) => sequence.as_ref().to_vec(),
            Some(single) => vec![single.clone()],
        };
        let steps = steps
            .into_iter()
            .map(|usual| Ok(Step { first: inside(&usual)?, usual }))
            .collect::<Result<Vec<_>>>()?;
        let differs = normalizer.is_some() || steps.iter().any(|step| step.first.is_some());
        let normalizer = normalizer.or_else(|| usual.cloned());
        Ok(differs.then_some(Inside { normalizer, steps }))
    }

    fn encode(&self, tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
        let normalizer = Both { first: &self.normalizer, usual: tokenizer.get_normalizer() };
        let added = tokenizer.get_added_vocabulary();
        let mut parts = added.extract_and_normalize(Some(&normalizer), text);
        for step in &self.steps {
            match &step.first {
                None => step.usual.pre_tokenize(&mut parts)?,
                Some(first) => parts.split(|_, part| match is_first(&part) {
                    true => pre_tokenized(first, part),
                    false => pre_tokenized(&step.usual, part),
                })?,
            }
        }
        tokenizer.get_model().tokenize_in_pretokenized(&mut parts, None)?;
        Ok(parts.into_encoding(None, 0, OffsetType::None)?.get_ids().to_vec())
    }
}

fn is_first(part: &NormalizedString) -> bool {
    part.offsets_original().0 == 0
}

fn pre_tokenized(
    step: &PreTokenizerWrapper,
    part: NormalizedString,
) -> tokenizers::Result<Vec<NormalizedString>> {
    let mut alone = PreTokenizedString::from(part);
    step.pre_tokenize(&mut alone)?;
    let mut parts = Vec::new();
    alone.split(|_, part| {
        parts.push(part);
        Ok(Vec::<NormalizedString>::new())
    })?;
    Ok(parts)
}

/// The normalizer of what a text begins with, and that of what follows an added token.
struct Both<'a> {
    first: &'a Option<NormalizerWrapper>,
    usual: Option<&'a NormalizerWrapper>,
}

impl Normalizer for Both<'_> {
    fn normalize(&self, part: &mut NormalizedString) -> tokenizers::Result<()> {
        let which = if is_first(part) { self.first.as_ref() } else { self.usual };
        which.map_or(Ok(()), |normalizer| normalizer.normalize(part))
    }
}

impl DnTokenizer {
    /// The ids of a text behind `before`: all ids in front, or the last of them, more than BEFORE.
    ///
    /// The last BEFORE of them, as text, are encoded together with the new text. Where the first
    /// ids are those of the text in front alone, the others are the answer. Else the two would
    /// grow together, which ids that are there cannot: the new text is encoded alone, as what
    /// stands inside a text. Behind nothing, or what the tokenizer puts before each text, it is a
    /// beginning.
    pub fn encode_after(&self, before: &[i32], bytes: &[u8]) -> Result<Vec<i32>> {
        let text = String::from_utf8_lossy(bytes);
        if let Some(id) = before.iter().find(|&&id| id < 0) {
            return Err(BridgeError(format!("token id {id} is negative")));
        }
        if before.is_empty() || before == self.encode(b"", true)? {
            return self.encode(bytes, false);
        }
        let front = self.text_before(&before[before.len().saturating_sub(BEFORE)..])?;
        if !front.is_empty() && !text.is_empty() {
            let alone = self.encode_inside(&front)?;
            let both = self.encode_inside(&(front + &text))?;
            if let Some(after) = both.strip_prefix(alone.as_slice()) {
                return Ok(after.to_vec());
            }
        }
        self.encode_inside(&text)
    }

    /// The ids of a text in the middle of another that is not known.
    fn encode_inside(&self, text: &str) -> Result<Vec<i32>> {
        match self.inside() {
            None => self.encode(text.as_bytes(), false),
            Some(inside) => Self::checked(&inside.encode(self.inner(), text)?),
        }
    }

    /// The text of ids, as far back from its end as it is UTF-8; empty where it ends inside a
    /// character.
    fn text_before(&self, ids: &[i32]) -> Result<String> {
        let table = self.table();
        if matches!(table.kind, DecoderKind::Other | DecoderKind::Spaced) {
            return self.decode(ids, false);
        }
        let mut bytes = Vec::new();
        for id in ids.iter().map(|&id| id as usize) {
            if table.flags.get(id).is_some_and(|flags| flags & KNOWN != 0) {
                let (from, to) = (table.offsets[id] as usize, table.offsets[id + 1] as usize);
                bytes.extend_from_slice(&table.bytes[from..to]);
            }
        }
        let last = bytes.utf8_chunks().last();
        Ok(last.filter(|last| last.invalid().is_empty()).map_or("", |last| last.valid()).into())
    }
}

/// # Safety
/// Pointers as the header demands.
#[no_mangle]
pub unsafe extern "C" fn dn_tokenizer_encode_after(
    tokenizer: *const DnTokenizer,
    before: *const i32,
    before_size: usize,
    text: *const c_char,
    text_size: usize,
    out: *mut Ids,
) -> Status {
    guard(|| {
        let before = slice(before, before_size);
        *out = (*tokenizer).encode_after(before, slice(text.cast(), text_size))?.into();
        Ok(OK)
    })
}
