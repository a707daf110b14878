//! Tokens that a grammar leaves no choice about.
//!
//! llguidance writes the forced bytes as tokens and takes back those that a token may reach over: one
//! that begins in them and goes on behind their end. It looks for such tokens in the last four only
//! (toktrie 1.9.1); a vocabulary may have one that begins before those, of which the four are a small
//! part. So here the rest is looked at too, and where not even the first token is certain the mask
//! decides, with all tokens that begin as the forced bytes do or reach over them.

use crate::vocabulary::Vocabulary;
use anyhow::Result;
use llguidance::TokenParser;
use std::mem::replace;
use std::sync::Arc;
use toktrie::{SimpleVob, TokEnv, TokTrie, TokenId, TokenizerEnv};

/// Tokens from the end on that the library looks at.
const LOOKED_AT: usize = 4;

/// Those that must come next.
pub fn forced_tokens(parser: &mut TokenParser) -> Vec<TokenId> {
    let mut tokens = parser.compute_ff_tokens();
    tokens.truncate(certain(parser, &tokens));
    tokens
}

/// The library's mask. Its tokens that are not certain are left out of it.
pub fn mask(parser: &mut TokenParser, vocabulary: &Vocabulary) -> Result<SimpleVob> {
    let tokens = parser.compute_ff_tokens(); // which the mask has then
    if tokens.is_empty() || certain(parser, &tokens) > 0 {
        return parser.compute_mask();
    }
    let env = replace(&mut parser.token_env, vocabulary.unforced.clone());
    let mask = parser.compute_mask();
    parser.token_env = env;
    mask
}

/// How many of the library's tokens no other token can take the place of.
fn certain(parser: &mut TokenParser, tokens: &[TokenId]) -> usize {
    let env = parser.token_env.clone();
    let trie = env.tok_trie();
    let forced = parser.parser.currently_forced_bytes().to_vec();
    let Some(ends) = ends(trie, &forced, tokens) else { return tokens.len() };
    let covered = ends.last().copied().unwrap_or(0);
    // Where it took tokens back it did look at all of those, and at no more than three of these.
    let is_whole = covered == forced.len();
    let unseen = tokens.len() - if is_whole { LOOKED_AT.min(tokens.len()) } else { 0 };
    let last = unseen.checked_sub(1).map_or(0, |token| ends[token]);
    let named = forced.iter().rposition(|&byte| byte == TokTrie::SPECIAL_TOKEN_MARKER);
    let behind = named.and_then(|at| ends.iter().copied().find(|&end| end > at)).unwrap_or(0);
    let first = behind.max(forced.len().saturating_sub(trie.max_token_len()));
    let reached = parser.parser.with_recognizer(|rec| {
        (first..last).find(|&begin| trie.has_valid_extensions(rec, &forced[begin..]))
    });
    reached.map_or(tokens.len(), |begin| ends.partition_point(|&end| end <= begin))
}

/// Where each token ends in the forced bytes. None: these are not its bytes.
fn ends(trie: &TokTrie, forced: &[u8], tokens: &[TokenId]) -> Option<Vec<usize>> {
    let mut at = 0;
    let end_of = |&token: &TokenId| {
        let rest = &forced[at..];
        at += match rest {
            // By its number or its name.
            [TokTrie::SPECIAL_TOKEN_MARKER, b'[', ..] => rest.iter().position(|&b| b == b']')? + 1,
            [TokTrie::SPECIAL_TOKEN_MARKER, b'<', ..] => rest.iter().position(|&b| b == b'>')? + 1,
            _ => rest.strip_prefix(trie.token(token)).map(|_| trie.token(token).len())?,
        };
        Some(at)
    };
    tokens.iter().map(end_of).collect()
}

/// A vocabulary's environment for masks that force no token.
pub struct Unforced(pub TokEnv);

impl Unforced {
    pub fn of(env: &TokEnv) -> TokEnv {
        Arc::new(Unforced(env.clone()))
    }
}

impl TokenizerEnv for Unforced {
    fn tok_trie(&self) -> &TokTrie {
        self.0.tok_trie()
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.0.tokenize_bytes(bytes)
    }

    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use crate::grammar::DnMatcher;
    use crate::grammar_tests::Language;
    use crate::kind::Kind;
    use llguidance::api::{GrammarInit, TopLevelGrammar};

    /// A token a byte, and these.
    fn language(long: &[&str]) -> Language {
        use tokenizers::pre_tokenizers::byte_level::ByteLevel;
        let mut bytes: Vec<char> = ByteLevel::alphabet().into_iter().collect();
        bytes.sort();
        let vocab: serde_json::Map<_, _> =
            bytes.iter().enumerate().map(|(id, byte)| (byte.to_string(), id.into())).collect();
        let added = |(at, content): (usize, &&str)| {
            serde_json::json!({"id": 256 + at, "content": content, "special": at == 0,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
        };
        let added: Vec<_> = ["<|end|>"].iter().chain(long).enumerate().map(added).collect();
        let byte_level = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false,
            "trim_offsets": true, "use_regex": false});
        let file = serde_json::json!({"version": "1.0", "added_tokens": added,
            "pre_tokenizer": byte_level, "decoder": byte_level,
            "model": {"type": "BPE", "vocab": vocab, "merges": []}});
        Language::of("bytes and long tokens", "<|end|>", &file.to_string())
    }

    /// What the mask leaves out of what may come is spelled by what is forced.
    fn check(language: &Language, matcher: &mut DnMatcher) {
        let mask = language.mask(matcher);
        let forced = language.text(&matcher.forced().unwrap());
        for token in 0..language.vocabulary.size as i32 {
            let is_admitted = matcher.validate(&[token]).unwrap() == 1;
            let text = language.text(&[token]);
            assert!(
                mask.contains(&token) == is_admitted || forced.starts_with(&text),
                "{text:?} with {forced:?} forced: masked {}, admitted {is_admitted}",
                mask.contains(&token)
            );
        }
    }

    /// Between them is what the forced bytes are spelled by.
    const LONG: [&str; 4] = ["abcdefghij1", "defghij2x", "ij3", "abcdefghijk"];
    const SPELLED: [&str; 5] = ["abcdefghij1", "defghij2x", "ij3", "abcdefghijk", "bcdefghij"];

    #[test]
    fn tokens_that_reach_over_forced_bytes_may_come() {
        let letters = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "4", "x"];
        let ways: [&[&str]; 5] = [
            &["abcdefghij1", "x"],
            &["a", "b", "c", "defghij2x"],
            &["a", "b", "c", "d", "e", "f", "g", "h", "ij3", "x"],
            &letters,
            &["a", "bcdefghij", "3", "x"],
        ];
        for (long, ways) in [(&LONG as &[&str], &ways[..4]), (&SPELLED, &ways)] {
            let language = language(long);
            let start = language.matcher(Kind::Regex, "abcdefghij[0-9]x");
            let first = language.mask(&mut start.fork(false));
            assert_eq!(first, [language.tokens("a")[0], 257]);
            for way in ways {
                let mut matcher = start.fork(true);
                for text in *way {
                    check(&language, &mut matcher);
                    language.check_state(&mut matcher);
                    let [token] = language.tokens(text)[..] else { panic!("{text} is no token") };
                    assert!(language.mask(&mut matcher).contains(&token), "{text} of {way:?}");
                    assert_eq!(matcher.accept(&[token]).unwrap(), 1);
                }
                assert!(matcher.is_complete().unwrap());
            }
        }
    }

    #[test]
    fn what_reaches_over_bytes_behind_a_named_token_leaves_that_certain() {
        let language = language(&LONG);
        let id = |text: &str| language.tokens(text)[0];
        let cases = [("\"z\" <[5]>", ""), ("<[5]>", "gh"), ("<[5]> <[5]> \"z\" <[6]>", "g")];
        for (before, behind) in cases {
            let grammar = format!("start: {before} \"{behind}abcdefghij\" /[0-9]x/");
            let mut matcher = language.matcher(Kind::Lark, &grammar);
            let forced = matcher.forced().unwrap();
            let named = before.split(' ').map(|part| match part {
                "<[5]>" => 5,
                "<[6]>" => 6,
                _ => id("z"),
            });
            let letters = behind.chars().map(|letter| id(&letter.to_string()));
            assert_eq!(forced, named.chain(letters).collect::<Vec<_>>(), "{grammar}");
            assert_eq!(matcher.accept(&forced).unwrap(), forced.len());
            check(&language, &mut matcher);
            assert!(language.mask(&mut matcher).contains(&257), "{grammar}");
        }
    }

    /// Where this fails the library was mended, and this file can go.
    #[test]
    fn the_library_looks_at_four_tokens() {
        for (forced, is_found) in [("abcd", true), ("abcde", false)] {
            let long = format!("{forced}1");
            let language = language(&[&long]);
            let grammar = TopLevelGrammar::from_regex(&format!("{forced}[0-9]x"));
            let init = GrammarInit::Serialized(grammar);
            let mut parser =
                language.vocabulary.factory.create_parser_from_init_default(init).unwrap();
            parser.start_without_prompt();
            assert_eq!(parser.compute_mask().unwrap().is_allowed(257), is_found, "{forced}");
        }
    }
}
