//! What masks are made from: a trie of the bytes of all tokens, and how text is tokenized where a
//! grammar leaves no choice.

use crate::checks::MAX_ID;
use crate::continuation::without_beginning;
use crate::ffi::{guard, lock, slice, Result, Status, OK};
use crate::forced::Unforced;
use crate::limits::parser_limits;
use crate::pieces::{DecoderKind, PieceTable, BYTE};
use crate::token_tree::TokenTree;
use crate::tokenizer::DnTokenizer;
use crate::watch::Watch;
use llguidance::earley::SlicedBiasComputer;
use llguidance::ParserFactory;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tokenizers::{AddedToken, NormalizerWrapper, PreTokenizerWrapper, Tokenizer};
use toktrie::INVALID_TOKEN;
use toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

/// `dn_vocabulary`
pub struct DnVocabulary(pub Arc<Vocabulary>);

pub struct Vocabulary {
    pub factory: ParserFactory,
    pub unforced: TokEnv, // the factory's, for a mask that forces no token
    pub tree: Arc<TokenTree>,
    pub size: usize, // width of the logits
    pub eos: Vec<TokenId>,
    pub watch: Arc<Watch>,
}

/// The trie counts a node's ancestors in 10 bits and the nodes below it in 22.
const MAX_TOKEN_BYTES: usize = 1 << 10;
const MAX_NODES: usize = (1 << 22) - 1;

impl Vocabulary {
    pub fn new(tokenizer: &DnTokenizer, size: i32, eos: &[i32]) -> Result<Self> {
        let size = match usize::try_from(size) {
            Ok(size @ 1..) if size <= MAX_ID as usize => size,
            _ => return Err(format!("size: got {size}, expected 1 to {MAX_ID}").into()),
        };
        let in_range = |&id: &i32| {
            TokenId::try_from(id).ok().filter(|&id| (id as usize) < size).ok_or_else(|| {
                format!(
                    "end token: got the id {id}, expected 0 to {}, as there are logits",
                    size - 1
                )
            })
        };
        let eos = eos.iter().map(in_range).collect::<std::result::Result<Vec<_>, _>>()?;
        let env: TokEnv = Arc::new(Environment::new(tokenizer, size, &eos)?);
        let forced = InferenceCapabilities {
            ff_tokens: env.tokenize_is_canonical(),
            ..InferenceCapabilities::default()
        };
        let mut factory = ParserFactory::new(&env, forced, &slices())?;
        factory.quiet();
        *factory.limits_mut() = parser_limits();
        let tree = Arc::new(TokenTree::new(&env, &factory.extra_lexemes())?);
        let unforced = Unforced::of(&env);
        Ok(Vocabulary { factory, unforced, tree, size, eos, watch: Arc::default() })
    }
}

/// Sets of tokens that a mask takes as a whole where what may follow has all of them: the library's,
/// and shorter runs and words, for what counts its letters or has few of them.
fn slices() -> Vec<String> {
    const MORE: [&str; 9] = [
        r#"[^"\\\x00-\x1F\x7F]{1,16}"#,
        r#"[^"\\\x00-\x1F\x7F]{1,8}"#,
        r#"[^"\\\x00-\x1F\x7F]{1,6}"#,
        r#"[^"\\\x00-\x1F\x7F]{1,4}"#,
        r#"[^"\\\x00-\x1F\x7F]{1,2}"#,
        r#"[^"'\\\x00-\x1F\x7F]{1,10}"#,
        r#"[^"'\\\x00-\x1F\x7F]{1,30}"#,
        r#"[a-z ]{1,24}"#,
        r#"[a-z0-9_]{1,24}"#,
    ];
    let more = MORE.iter().map(|&slice| slice.to_string());
    SlicedBiasComputer::general_slices().into_iter().chain(more).collect()
}

struct Environment {
    trie: TokTrie,
    tokenizer: Tokenizer,
    writes_all: bool, // a token for each byte that UTF-8 has
    known: Mutex<HashMap<Box<[u8]>, Box<[TokenId]>>>,
}

/// Texts whose tokens are remembered; then it begins again. A grammar leaves no choice about the
/// same ones time and again.
const MOST_KNOWN: usize = 1 << 13;

impl Environment {
    fn new(tokenizer: &DnTokenizer, size: usize, eos: &[TokenId]) -> Result<Self> {
        let words = words(tokenizer, size, eos)?;
        let mut bytes = [false; 256];
        words.iter().filter(|word| word.len() == 1).for_each(|word| bytes[word[0] as usize] = true);
        let in_utf8 = |byte: &usize| !matches!(byte, 0xc0 | 0xc1 | 0xf5..);
        let mut trie = TokTrie::from(&TokRxInfo::new(size as u32, INVALID_TOKEN), &words);
        if !eos.is_empty() {
            trie = trie.with_eos_tokens(eos);
        }
        Ok(Environment {
            trie,
            tokenizer: inside_text(tokenizer.inner())?,
            writes_all: (0..256).filter(in_utf8).all(|byte| bytes[byte]),
            known: Mutex::default(),
        })
    }

    /// Whether the tokens are ordinary ones and their bytes are the text: not so where a normalizer
    /// changes it, or where the model has pieces that are no text.
    fn writes(&self, ids: &[TokenId], text: &str) -> bool {
        let mut rest = text.as_bytes();
        ids.iter().all(|&id| {
            let word = self.trie.token(id); // empty if there is no such token
            let tail = rest.strip_prefix(word).filter(|_| !word.is_empty());
            rest = tail.unwrap_or(rest);
            tail.is_some()
        }) && rest.is_empty()
    }
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        if let Some(ids) = lock(&self.known).get(bytes) {
            return ids.to_vec();
        }
        let ids = self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            let encoding = self.tokenizer.encode_fast(text, false);
            match encoding.map(|encoding| encoding.get_ids().to_vec()) {
                Ok(ids) if self.writes(&ids, text) => ids,
                _ => self.trie.greedy_tokenize(text.as_bytes()),
            }
        });
        if bytes.len() <= MAX_TOKEN_BYTES {
            let mut known = lock(&self.known);
            if known.len() == MOST_KNOWN {
                known.clear();
            }
            known.insert(bytes.into(), ids.as_slice().into());
        }
        ids
    }

    /// Without a token for each byte some text has no tokens, and none can be forced.
    fn tokenize_is_canonical(&self) -> bool {
        self.writes_all
    }
}

fn is_tag(name: &str) -> bool {
    name.starts_with('<') && name.ends_with('>')
}

/// The bytes of each token as the trie wants them: empty for those that no text may contain, and
/// the marker and the name for those that a grammar calls <name>. By its id, <[id]>, it can call
/// all.
fn words(tokenizer: &DnTokenizer, size: usize, eos: &[TokenId]) -> Result<Vec<Vec<u8>>> {
    let table = tokenizer.table();
    if !matches!(table.kind, DecoderKind::Bytes | DecoderKind::Pieces | DecoderKind::Metaspace) {
        let expected = "expected ByteLevel, Metaspace, or Replace, ByteFallback, Fuse and Strip";
        return Err(format!(
            "decoder: the bytes of the tokens in a row are not the text; {expected}"
        )
        .into());
    }
    let mut words: Vec<Vec<u8>> = (0..size).map(|id| text_word(table, id)).collect();
    for (id, token) in tokenizer.inner().get_added_tokens_decoder() {
        let is_byte = table.flags.get(id as usize).is_some_and(|flags| flags & BYTE != 0);
        let is_named = is_tag(&token.content) && !is_byte;
        if let Some(word) = words.get_mut(id as usize).filter(|_| token.special || is_named) {
            *word = name_word(&token.content);
        }
    }
    for &id in eos {
        let name = tokenizer.inner().id_to_token(id).unwrap_or_default();
        words[id as usize] = name_word(&name);
    }
    check_nodes(&words)?;
    Ok(words)
}

fn text_word(table: &PieceTable, id: usize) -> Vec<u8> {
    if id >= table.flags.len() {
        return Vec::new();
    }
    let bytes = &table.bytes[table.offsets[id] as usize..table.offsets[id + 1] as usize];
    let is_usable =
        bytes.len() <= MAX_TOKEN_BYTES && !bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER);
    if is_usable {
        bytes.to_vec()
    } else {
        Vec::new()
    }
}

fn name_word(name: &str) -> Vec<u8> {
    let is_usable = is_tag(name) && name.len() < MAX_TOKEN_BYTES;
    if is_usable {
        [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat()
    } else {
        Vec::new()
    }
}

fn check_nodes(words: &[Vec<u8>]) -> Result<()> {
    let mut sorted: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    sorted.sort_unstable();
    let mut nodes = 1;
    let mut previous: &[u8] = &[];
    for word in sorted {
        let shared = word.iter().zip(previous).take_while(|(a, b)| a == b).count();
        // A token with the bytes of another has its last node for itself.
        nodes += word.len() - shared + usize::from(shared == word.len() && shared > 0);
        previous = word;
    }
    match nodes {
        ..=MAX_NODES => Ok(()),
        _ => Err(format!(
            "vocabulary: the trie of all tokens has {nodes} nodes, expected at most {MAX_NODES}"
        )
        .into()),
    }
}

/// The tokenizer for text that stands in the middle of other text and in which no special token is
/// recognised.
fn inside_text(tokenizer: &Tokenizer) -> Result<Tokenizer> {
    let mut copy = tokenizer.clone();
    let mut normalizer = serde_json::to_value(copy.get_normalizer())?;
    without_beginning(&mut normalizer);
    copy.with_normalizer(serde_json::from_value::<Option<NormalizerWrapper>>(normalizer)?)?;
    let mut pre_tokenizer = serde_json::to_value(copy.get_pre_tokenizer())?;
    without_beginning(&mut pre_tokenizer);
    copy.with_pre_tokenizer(serde_json::from_value::<Option<PreTokenizerWrapper>>(pre_tokenizer)?);
    let tags: Vec<AddedToken> = copy
        .get_added_tokens_decoder()
        .into_values()
        .filter(|token| !token.special && is_tag(&token.content))
        .map(|token| AddedToken { special: true, ..token })
        .collect();
    copy.add_special_tokens(tags)?;
    copy.set_encode_special_tokens(true);
    Ok(copy)
}

/// # Safety
/// Pointers as the header demands.
#[no_mangle]
pub unsafe extern "C" fn dn_vocabulary_open(
    tokenizer: *const DnTokenizer,
    size: i32,
    eos: *const i32,
    eos_size: usize,
    out: *mut *mut DnVocabulary,
) -> Status {
    guard(|| {
        let vocabulary = Vocabulary::new(&*tokenizer, size, slice(eos, eos_size))?;
        *out = Box::into_raw(Box::new(DnVocabulary(Arc::new(vocabulary))));
        Ok(OK)
    })
}

/// # Safety
/// `vocabulary` is null or open, and not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn dn_vocabulary_free(vocabulary: *mut DnVocabulary) {
    if !vocabulary.is_null() {
        guard(|| {
            drop(Box::from_raw(vocabulary));
            Ok(OK)
        });
    }
}
