//! Hugging Face tokenizers: open, encode, decode, and the token table.

use crate::checks::{check_file, check_tokenizer, refusal, MAX_ID};
use crate::continuation::Inside;
use crate::ffi::{guard, slice, text, BridgeError, Buffer, Ids, Result, Status, ABSENT, OK};
use crate::pieces::PieceTable;
use serde::Deserialize;
use serde_json::Value;
use std::ffi::{c_char, c_int};
use tokenizers::models::ModelWrapper;
use tokenizers::{AddedToken, Tokenizer};

/// `dn_tokenizer`
pub struct DnTokenizer {
    inner: Tokenizer,
    table: PieceTable,
    inside: Option<Inside>,
}

/// One entry of `dn_tokenizer_open`'s `added`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AddedEntry {
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    normalized: Option<bool>,
    #[serde(default)]
    if_absent: bool,
    #[serde(default)]
    named: bool,
}

impl AddedEntry {
    /// The token to add or to change, or nothing when the tokenizer already has it like that.
    fn resolve(self, tokenizer: &Tokenizer) -> Option<AddedToken> {
        let added = tokenizer.get_added_vocabulary();
        let id = added.get_vocab().get(&self.content);
        let present = id.and_then(|id| added.get_added_tokens_decoder().get(id));
        let mut token = match present {
            Some(present) if self.if_absent => present.clone(),
            _ => AddedToken::from(self.content, self.special)
                .single_word(self.single_word)
                .lstrip(self.lstrip)
                .rstrip(self.rstrip)
                .normalized(self.normalized.unwrap_or(!self.special)),
        };
        token.special |= self.named;
        (present != Some(&token)).then_some(token)
    }
}

impl DnTokenizer {
    pub fn open(json: &[u8], added: &str) -> Result<Self> {
        let file: Value = serde_json::from_slice(json)
            .map_err(|error| BridgeError(format!("not valid JSON: {error}")))?;
        check_file(&file)?;
        let mut inner = Tokenizer::from_bytes(json).map_err(|error| refusal(&file, &error))?;
        check_tokenizer(&inner)?;
        inner.with_truncation(None)?.with_padding(None);
        if !added.is_empty() {
            let entries: Vec<AddedEntry> = serde_json::from_str(added)?;
            let tokens: Vec<AddedToken> =
                entries.into_iter().filter_map(|entry| entry.resolve(&inner)).collect();
            inner.add_tokens(tokens)?;
        }
        let table = PieceTable::new(&inner)?;
        let inside = Inside::new(&inner)?;
        Ok(DnTokenizer { inner, table, inside })
    }

    pub fn inner(&self) -> &Tokenizer {
        &self.inner
    }

    pub fn table(&self) -> &PieceTable {
        &self.table
    }

    pub fn inside(&self) -> Option<&Inside> {
        self.inside.as_ref()
    }

    pub fn encode(&self, bytes: &[u8], add_special: bool) -> Result<Vec<i32>> {
        let text = String::from_utf8_lossy(bytes);
        Self::checked(self.inner.encode_fast(text.as_ref(), add_special)?.get_ids())
    }

    pub fn checked(ids: &[u32]) -> Result<Vec<i32>> {
        let checked = |&id: &u32| match id {
            0..=MAX_ID => Ok(id as i32),
            _ => Err(BridgeError(format!("got the token id {id}; expected 0 to {MAX_ID}"))),
        };
        ids.iter().map(checked).collect()
    }

    pub fn decode(&self, ids: &[i32], skip_special: bool) -> Result<String> {
        let to_u32 =
            |&id: &i32| u32::try_from(id).map_err(|_| format!("token id {id} is negative"));
        let ids: Vec<u32> = ids.iter().map(to_u32).collect::<std::result::Result<_, _>>()?;
        Ok(self.inner.decode(&ids, skip_special)?)
    }
}

#[repr(C)]
pub struct TokenTable {
    size: i32,
    offsets: *const u32,
    bytes: *const u8,
    flags: *const u8,
    decoder: i32,
    strip_char: u32,
    strip_count: u32,
}

/// # Safety
/// Pointers as the header demands.
#[no_mangle]
pub unsafe extern "C" fn dn_tokenizer_open(
    json: *const u8,
    json_size: usize,
    added: *const c_char,
    added_size: usize,
    out: *mut *mut DnTokenizer,
) -> Status {
    guard(|| {
        let tokenizer = DnTokenizer::open(slice(json, json_size), text(added, added_size)?)?;
        *out = Box::into_raw(Box::new(tokenizer));
        Ok(OK)
    })
}

/// # Safety
/// `tokenizer` is null or open, and not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn dn_tokenizer_free(tokenizer: *mut DnTokenizer) {
    if !tokenizer.is_null() {
        guard(|| {
            drop(Box::from_raw(tokenizer));
            Ok(OK)
        });
    }
}

/// # Safety
/// Pointers as the header demands.
#[no_mangle]
pub unsafe extern "C" fn dn_tokenizer_encode(
    tokenizer: *const DnTokenizer,
    text: *const c_char,
    text_size: usize,
    add_special: c_int,
    out: *mut Ids,
) -> Status {
    guard(|| {
        *out = (*tokenizer).encode(slice(text.cast(), text_size), add_special != 0)?.into();
        Ok(OK)
    })
}

/// # Safety
/// Pointers as the header demands.
#[no_mangle]
pub unsafe extern "C" fn dn_tokenizer_decode(
    tokenizer: *const DnTokenizer,
    ids: *const i32,
    size: usize,
    skip_special: c_int,
    out: *mut Buffer,
) -> Status {
    guard(|| {
        *out = (*tokenizer).decode(slice(ids, size), skip_special != 0)?.into();
        Ok(OK)
    })
}

/// # Safety
/// Pointers as the header demands.
#[no_mangle]
pub unsafe extern "C" fn dn_tokenizer_token_to_id(
    tokenizer: *const DnTokenizer,
    token: *const c_char,
    size: usize,
    out: *mut i32,
) -> Status {
    guard(|| {
        let Ok(token) = text(token, size) else {
            return Ok(ABSENT); // no token is invalid UTF-8
        };
        match (*tokenizer).inner.token_to_id(token) {
            None => Ok(ABSENT),
            Some(id) => {
                *out = i32::try_from(id)?;
                Ok(OK)
            }
        }
    })
}

/// # Safety
/// Pointers as the header demands.
#[no_mangle]
pub unsafe extern "C" fn dn_tokenizer_id_to_token(
    tokenizer: *const DnTokenizer,
    id: i32,
    out: *mut Buffer,
) -> Status {
    guard(|| {
        let token = u32::try_from(id).ok().and_then(|id| (*tokenizer).inner.id_to_token(id));
        match token {
            None => Ok(ABSENT),
            Some(token) => {
                *out = token.into();
                Ok(OK)
            }
        }
    })
}

/// # Safety
/// Pointers as the header demands.
#[no_mangle]
pub unsafe extern "C" fn dn_tokenizer_is_bpe(tokenizer: *const DnTokenizer) -> c_int {
    c_int::from(matches!((*tokenizer).inner.get_model(), ModelWrapper::BPE(_)))
}

/// # Safety
/// Pointers as the header demands.
#[no_mangle]
pub unsafe extern "C" fn dn_tokenizer_table(tokenizer: *const DnTokenizer) -> TokenTable {
    let table = &(*tokenizer).table;
    TokenTable {
        size: table.flags.len() as i32, /* ids fit: encode and the table are built from u32 ids
                                         * below 2^31 */
        offsets: table.offsets.as_ptr(),
        bytes: table.bytes.as_ptr(),
        flags: table.flags.as_ptr(),
        decoder: table.kind as i32,
        strip_char: u32::from(table.strip_char),
        strip_count: table.strip_count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pieces::{KNOWN, SPECIAL};

    const JSON: &str = r#"{
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [{"id": 2, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                          "normalized": false, "special": true}],
        "normalizer": null,
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "<s>": 2, "c": 5}, "merges": []}
    }"#;

    #[test]
    fn truncation_of_the_file_is_dropped() {
        let tokenizer = DnTokenizer::open(JSON.as_bytes(), "").unwrap();
        assert_eq!(tokenizer.encode(b"ab<s>a", true).unwrap(), [0, 1, 2, 0]);
    }

    #[test]
    fn the_table_has_gaps_where_the_vocabulary_has() {
        let tokenizer = DnTokenizer::open(JSON.as_bytes(), "").unwrap();
        assert_eq!(tokenizer.table.flags, [KNOWN, KNOWN, KNOWN | SPECIAL, 0, 0, KNOWN]);
        assert_eq!(tokenizer.table.offsets, [0, 1, 2, 5, 5, 5, 6]);
    }

    #[test]
    fn tokens_are_added_unless_present() {
        let added = r#"[{"content": "<s>", "if_absent": true, "lstrip": true},
                        {"content": "<pad>", "special": true}]"#;
        let tokenizer = DnTokenizer::open(JSON.as_bytes(), added).unwrap();
        // Ids go on after the size of the model's vocabulary (4), not after its largest id.
        assert_eq!(tokenizer.encode(b"<pad><s>", false).unwrap(), [4, 2]);
        assert_eq!(tokenizer.decode(&[0, 4], true).unwrap(), "a");
    }

    #[test]
    fn a_named_token_becomes_special_and_keeps_its_other_flags() {
        let json = JSON.replace("\"special\": true", "\"special\": false");
        let open = |added: &str| DnTokenizer::open(json.as_bytes(), added).unwrap();
        assert_eq!(open("[]").table.flags[2], KNOWN);
        let named = open(r#"[{"content": "<s>", "if_absent": true, "named": true}]"#);
        assert_eq!(named.table.flags[2], KNOWN | SPECIAL);
        assert_eq!(named.encode(b"a <s>", false).unwrap(), [0, 2]);
    }

    #[test]
    fn ids_without_a_token_are_skipped_and_negative_ones_refused() {
        let tokenizer = DnTokenizer::open(JSON.as_bytes(), "").unwrap();
        assert_eq!(tokenizer.decode(&[0, 3, 999, 1], false).unwrap(), "ab");
        assert!(tokenizer.decode(&[-1], false).unwrap_err().0.contains("-1"));
    }

    #[test]
    fn broken_files_are_errors() {
        for json in ["", "{}", "[]", "{\"model\": 3}", &JSON[..JSON.len() / 2]] {
            assert!(DnTokenizer::open(json.as_bytes(), "").is_err(), "{json}");
        }
    }
}
