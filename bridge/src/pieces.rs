//! The bytes that each token adds to decoded text, so that C++ can detokenise one token at a time.
//!
//! A decoder is a chain of steps over the list of tokens. For the families in use the chain is, up
//! to its ends, a map of each token by itself; this module recognises those chains and tabulates
//! the map. What it does not recognise is `DecoderKind::Other`, and decoding must then go through
//! `Tokenizer::decode`.

use crate::checks::MAX_ID;
use crate::ffi::Result;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::{Decoder, Tokenizer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum DecoderKind {
    Other = 0,
    Bytes = 1,
    Pieces = 2,
    Metaspace = 3,
    Spaced = 4,
}

pub const KNOWN: u8 = 1;
pub const SPECIAL: u8 = 2;
pub const BYTE: u8 = 4;

/// See `dn_token_table` in the header.
pub struct PieceTable {
    pub offsets: Vec<u32>, // [ids + 1]
    pub bytes: Vec<u8>,
    pub flags: Vec<u8>, // [ids]
    pub kind: DecoderKind,
    pub strip_char: char,
    pub strip_count: u32,
}

/// A decoder as far as it maps tokens one by one, and what it does at the start of the text.
struct Plan<'a> {
    kind: DecoderKind,
    replaces: Vec<&'a DecoderWrapper>,
    byte_fallback: bool,
    strip_char: char,
    strip_count: u32,
}

impl<'a> Plan<'a> {
    fn of_kind(kind: DecoderKind) -> Self {
        Plan { kind, replaces: Vec::new(), byte_fallback: false, strip_char: ' ', strip_count: 0 }
    }

    fn new(decoder: Option<&'a DecoderWrapper>) -> Self {
        match decoder {
            None => Plan::of_kind(DecoderKind::Spaced),
            Some(DecoderWrapper::Sequence(sequence)) => Plan::of_steps(sequence.get_decoders()),
            Some(single) => Plan::of_steps(std::slice::from_ref(single)),
        }
    }

    /// Recognises `ByteLevel`, `Metaspace` (each perhaps before a `Fuse`, which changes nothing
    /// there), and `Replace* ByteFallback? Fuse? Strip?`, where `Strip` must follow `Fuse` and
    /// cut at the left only.
    fn of_steps(steps: &'a [DecoderWrapper]) -> Self {
        use DecoderWrapper as D;
        match steps {
            [D::ByteLevel(_)] | [D::ByteLevel(_), D::Fuse(_)] => {
                return Plan::of_kind(DecoderKind::Bytes)
            }
            [D::Metaspace(_)] | [D::Metaspace(_), D::Fuse(_)] => {
                return Plan::of_kind(DecoderKind::Metaspace)
            }
            _ => {}
        }
        let mut plan = Plan::of_kind(DecoderKind::Pieces);
        let mut rest = steps;
        while let [step @ D::Replace(_), tail @ ..] = rest {
            plan.replaces.push(step);
            rest = tail;
        }
        if let [D::ByteFallback(_), tail @ ..] = rest {
            plan.byte_fallback = true;
            rest = tail;
        }
        match rest {
            [] | [D::Fuse(_)] => plan,
            [D::Fuse(_), D::Strip(strip)] if strip.stop == 0 => {
                plan.strip_char = strip.content;
                plan.strip_count = u32::try_from(strip.start).unwrap_or(u32::MAX);
                plan
            }
            _ => Plan::of_kind(DecoderKind::Other),
        }
    }

    /// The piece of one token, and `BYTE` if it is a byte of the fallback, else 0.
    fn piece(&self, token: String, decoder: Option<&DecoderWrapper>) -> Result<(Vec<u8>, u8)> {
        match self.kind {
            DecoderKind::Bytes => Ok((byte_level_bytes(&token), 0)),
            DecoderKind::Metaspace => {
                // Any token but the first of a text: put one in front and leave it out again.
                let both = match decoder {
                    Some(decoder) => decoder.decode_chain(vec!["x".into(), token])?,
                    None => vec![String::new(), token],
                };
                let text = both.concat();
                Ok((text.strip_prefix('x').unwrap_or(&text).as_bytes().to_vec(), 0))
            }
            DecoderKind::Pieces => {
                let mut tokens = vec![token];
                for step in &self.replaces {
                    tokens = step.decode_chain(tokens)?;
                }
                let token = tokens.concat();
                match fallback_byte(&token).filter(|_| self.byte_fallback) {
                    Some(byte) => Ok((vec![byte], BYTE)),
                    None => Ok((token.into_bytes(), 0)),
                }
            }
            DecoderKind::Spaced => Ok((token.into_bytes(), 0)),
            DecoderKind::Other => {
                // As it stands between two others, for who wants to know of a token alone.
                let three = vec!["x".into(), token, "x".into()];
                let parts = decoder.map_or(Ok(three.clone()), |d| d.decode_chain(three))?;
                if let [_, part, _] = &parts[..] {
                    return Ok((part.as_bytes().to_vec(), 0));
                }
                let text = parts.concat();
                let text = text.strip_prefix('x').unwrap_or(&text);
                Ok((text.strip_suffix('x').unwrap_or(text).as_bytes().to_vec(), 0))
            }
        }
    }
}

impl PieceTable {
    pub fn new(tokenizer: &Tokenizer) -> Result<Self> {
        let decoder = tokenizer.get_decoder();
        let plan = Plan::new(decoder);
        let vocab = tokenizer.get_vocab(true);
        let largest = vocab.iter().max_by_key(|(_, &id)| id);
        if let Some((token, id)) = largest.filter(|(_, &id)| id > MAX_ID) {
            return Err(format!("token {token:?} has the id {id}; expected 0 to {MAX_ID}").into());
        }
        let ids = largest.map_or(0, |(_, &id)| id as usize + 1);
        let mut table = PieceTable {
            offsets: Vec::with_capacity(ids + 1),
            bytes: Vec::new(),
            flags: Vec::with_capacity(ids),
            kind: plan.kind,
            strip_char: plan.strip_char,
            strip_count: plan.strip_count,
        };
        table.offsets.push(0);
        for id in 0..ids {
            let mut flags = 0;
            if let Some(token) = tokenizer.id_to_token(u32::try_from(id)?) {
                flags |= KNOWN;
                if tokenizer.get_added_vocabulary().is_special_token(&token) {
                    flags |= SPECIAL;
                }
                let (piece, byte) = plan.piece(token, decoder)?;
                flags |= byte;
                table.bytes.extend_from_slice(&piece);
            }
            table.flags.push(flags);
            table.offsets.push(u32::try_from(table.bytes.len())?);
        }
        Ok(table)
    }
}

/// The byte that GPT-2's alphabet writes as `c`: printable Latin-1 stands for itself, and the other
/// 68 bytes are, in order, U+0100 and up.
fn byte_level_byte(c: char) -> Option<u8> {
    fn is_printable(byte: u8) -> bool {
        matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
    }
    let code = u32::from(c);
    match u8::try_from(code) {
        Ok(byte) => is_printable(byte).then_some(byte),
        Err(_) => (0..=255).filter(|&byte| !is_printable(byte)).nth((code - 256) as usize),
    }
}

/// What `ByteLevel` makes of a token: its bytes, or the token as it is if a character is not in the
/// alphabet.
fn byte_level_bytes(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(byte_level_byte).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// `<0x0A>` gives 10. The same test as `ByteFallback`'s, which takes `<0x+5>` for 5 too.
fn fallback_byte(token: &str) -> Option<u8> {
    if token.len() != 6 {
        return None;
    }
    u8::from_str_radix(token.strip_prefix("<0x")?.strip_suffix('>')?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(json: &str) -> Vec<DecoderWrapper> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn the_byte_alphabet_is_gpt2s() {
        assert_eq!(byte_level_byte('A'), Some(b'A'));
        assert_eq!(byte_level_byte('Ġ'), Some(b' '));
        assert_eq!(byte_level_byte('Ċ'), Some(b'\n'));
        assert_eq!(byte_level_byte('\u{143}'), Some(0xad));
        assert_eq!(byte_level_byte('\u{144}'), None);
        assert_eq!(byte_level_byte(' '), None);
        let all: std::collections::HashSet<u8> =
            (0..0x144).filter_map(char::from_u32).filter_map(byte_level_byte).collect();
        assert_eq!(all.len(), 256);
    }

    #[test]
    fn fallback_bytes_are_recognised() {
        assert_eq!(fallback_byte("<0x0A>"), Some(10));
        assert_eq!(fallback_byte("<0xé>"), None);
        assert_eq!(fallback_byte("<0x0A>>"), None);
    }

    #[test]
    fn usual_decoders_are_recognised() {
        let llama = steps(
            r#"[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},
                {"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]"#,
        );
        let plan = Plan::of_steps(&llama);
        assert_eq!(
            (plan.kind, plan.byte_fallback, plan.strip_count),
            (DecoderKind::Pieces, true, 1)
        );
        let byte_level = steps(
            r#"[{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}]"#,
        );
        assert_eq!(Plan::of_steps(&byte_level).kind, DecoderKind::Bytes);
        assert_eq!(Plan::new(None).kind, DecoderKind::Spaced);
    }

    #[test]
    fn a_strip_that_cannot_be_done_token_by_token_is_refused() {
        for json in [
            r#"[{"type":"Strip","content":" ","start":1,"stop":0}]"#,
            r#"[{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":1}]"#,
            r#"[{"type":"Fuse"},{"type":"Replace","pattern":{"String":"a"},"content":"b"}]"#,
        ] {
            assert_eq!(Plan::of_steps(&steps(json)).kind, DecoderKind::Other, "{json}");
        }
    }
}
