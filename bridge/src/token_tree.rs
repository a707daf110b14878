//! Masks in two parts. Whether a token stays inside what the lexer is reading depends on the lexer's
//! state alone: worked out once for each state of a grammar, and remembered. The parser is asked only
//! about tokens that leave it, which are few (the idea of XGrammar's context-independent tokens,
//! arXiv 2411.15100, on states that are found as they come).

use llguidance::derivre::{Regex, StateID};
use llguidance::earley::lexerspec::LexemeIdx;
use llguidance::earley::ParserRecognizer;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use toktrie::{Recognizer, SimpleVob, TokEnv, TokTrie, TokenId};

/// Bytes that the states of one vocabulary's lexers may remember; what is beyond is worked out each
/// time.
const MOST: usize = 256 << 20;

/// What a check of a slice may cost, in the library's fuel.
const SLICE_BUDGET: u64 = 1000;

/// Nodes between looks whether the call was ended.
const LOOK: usize = 1 << 10;

/// In the order of bytes, each before those that go on from it.
struct Node {
    token: TokenId, // or, without one, the first id that there is not
    size: u32,      // nodes from here on that begin with its bytes
    depth: u16,     // bytes up to here
    byte: u8,
}

/// Of some tokens.
#[derive(Default)]
struct Tree(Vec<Node>);

impl Tree {
    fn new(trie: &TokTrie, sorted: impl Iterator<Item = TokenId>) -> Self {
        let mut tree = Tree::default();
        let mut path: Vec<usize> = Vec::new(); // nodes of the last token
        let mut last: &[u8] = &[];
        for token in sorted {
            let word = trie.token(token);
            let shared = word.iter().zip(last).take_while(|(a, b)| a == b).count();
            // A token with the bytes of another has its last node for itself.
            tree.close(&mut path, shared.min(word.len() - 1));
            for (depth, &byte) in word.iter().enumerate().skip(path.len()) {
                path.push(tree.0.len());
                let token = trie.vocab_size() as TokenId;
                tree.0.push(Node { token, size: 1, depth: depth as u16 + 1, byte });
            }
            tree.0.last_mut().expect("a word has bytes").token = token;
            last = word;
        }
        tree.close(&mut path, 0);
        tree
    }

    /// What is below the nodes of a path beyond its first ones is complete.
    fn close(&mut self, path: &mut Vec<usize>, kept: usize) {
        for node in path.drain(kept..) {
            self.0[node].size = (self.0.len() - node) as u32;
        }
    }

    /// The nodes after those of `start`, whose tokens it allows.
    fn below(&self, start: &[u8], tokens: &mut SimpleVob) -> Range<usize> {
        let mut nodes = 0..self.0.len();
        for &byte in start {
            let mut at = nodes.start;
            let mut below = 0..0;
            while at < nodes.end {
                let node = &self.0[at];
                if node.byte == byte {
                    tokens.allow_token(node.token);
                    below = at + 1..at + node.size as usize; // the last of those with its bytes
                }
                at += node.size as usize;
            }
            nodes = below;
        }
        nodes
    }
}

struct Slice {
    tokens: SimpleVob,
    extra: usize, // number of its regex among the lexer's extra lexemes
    others: Tree, // tokens that it has not
}

/// The tokens of a vocabulary, and sets of them that the lexer can tell as a whole to stay inside.
pub struct TokenTree {
    env: TokEnv,
    all: Tree,
    slices: Vec<Slice>,      // the largest first
    remembered: AtomicUsize, // bytes
}

impl TokenTree {
    /// `slices`: regexes, the extra lexemes of all lexers of this vocabulary.
    pub fn new(env: &TokEnv, slices: &[String]) -> anyhow::Result<Self> {
        let trie = env.tok_trie();
        let ids = 0..trie.vocab_size() as TokenId;
        let mut sorted: Vec<TokenId> = ids.filter(|&id| !trie.token(id).is_empty()).collect();
        sorted.sort_by_key(|&id| trie.token(id));
        let slice_of = |extra: usize| -> anyhow::Result<Slice> {
            let mut regex = Regex::new(&slices[extra])?;
            let mut tokens = trie.alloc_token_set();
            let matching = sorted.iter().filter(|&&id| regex.is_match_bytes(trie.token(id)));
            matching.for_each(|&id| tokens.allow_token(id));
            let others = sorted.iter().copied().filter(|&id| !tokens.is_allowed(id));
            let others = Tree::new(trie, others);
            Ok(Slice { tokens, extra, others })
        };
        let mut slices: Vec<Slice> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..slices.len()).map(|extra| scope.spawn(move || slice_of(extra))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| match thread.join() {
                Ok(slice) => slice,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            threads.into_iter().map(join).collect::<anyhow::Result<_>>()
        })?;
        slices.sort_by_key(|slice| slice.others.0.len());
        let all = Tree::new(trie, sorted.iter().copied());
        Ok(TokenTree { env: env.clone(), all, slices, remembered: 0.into() })
    }

    pub fn trie(&self) -> &TokTrie {
        self.env.tok_trie()
    }

    /// Whether so many bytes more may be remembered.
    pub fn take(&self, size: usize) -> bool {
        let has_room = self.remembered.fetch_add(size, Ordering::Relaxed) + size <= MOST;
        if !has_room {
            self.give_back(size);
        }
        has_room
    }

    pub fn give_back(&self, size: usize) {
        self.remembered.fetch_sub(size, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub fn remembered(&self) -> usize {
        self.remembered.load(Ordering::Relaxed)
    }

    /// Of a state's exits.
    fn tree_of(&self, inside: &Inside) -> &Tree {
        inside.slice.map_or(&self.all, |slice| &self.slices[slice].others)
    }

    /// Of tokens that begin with `start`, which is read already, and of those that it begins with.
    /// None: the call was ended.
    pub fn inside(
        &self,
        rec: &mut ParserRecognizer<'_>,
        state: StateID,
        start: &[u8],
    ) -> Option<Inside> {
        let mut inside = Inside::new(self.trie().alloc_token_set());
        if start.is_empty() {
            self.apply_slice(rec, state, &mut inside);
        }
        let tree = self.tree_of(&inside);
        let range = tree.below(start, &mut inside.tokens);
        let nodes = &tree.0[..range.end];
        let none = self.trie().vocab_size() as TokenId;
        let deepest = self.trie().max_token_len();
        let mut way = vec![Step { state, byte: 0, end: None }; deepest + 1];
        let mut at = range.start;
        while at < nodes.len() {
            if rec.cancellation_requested() {
                return None;
            }
            for _ in 0..LOOK {
                let Some(node) = nodes.get(at) else { break };
                let depth = node.depth as usize - start.len();
                let before = way[depth - 1].state;
                let after = rec.lexer_mut().transition_start_state(before, Some(node.byte), &None);
                let stays = !after.is_dead() && !after.has_lowest_match();
                inside.tokens.allow_token(if stays { node.token } else { none });
                if stays {
                    way[depth] = Step { state: after, byte: node.byte, end: None };
                    at += 1;
                    continue;
                }
                let end = match after.is_dead() {
                    true => *way[depth - 1].end.get_or_insert_with(|| inside.end(rec, before)),
                    false => End::Several,
                };
                let way = &way[1..depth];
                match end {
                    End::Nothing => {}
                    End::Lexeme(lexeme) => inside.add_exit(at, way, Some((lexeme, node.byte))),
                    End::Several => inside.add_exit(at, way, None),
                }
                at += node.size as usize;
            }
        }
        inside.tokens.disallow_token(none);
        inside.exits.sort_by_key(|exit| (exit.after, exit.after.map(|_| exit.way.len())));
        Some(inside)
    }

    /// The largest one that stays inside.
    fn apply_slice(&self, rec: &mut ParserRecognizer<'_>, state: StateID, inside: &mut Inside) {
        if !rec.lexer_mut().subsume_possible(state) {
            return;
        }
        for (i, slice) in self.slices.iter().enumerate() {
            if rec.cancellation_requested() {
                return;
            }
            let lexer = rec.lexer_mut();
            if lexer.check_subsume(state, slice.extra, SLICE_BUDGET, None).unwrap_or(false) {
                inside.tokens = slice.tokens.clone();
                inside.slice = Some(i);
                return;
            }
        }
    }

    /// Adds the tokens that leave it and that the parser takes.
    pub fn ask(&self, inside: &Inside, rec: &mut ParserRecognizer<'_>, tokens: &mut SimpleVob) {
        let nodes = &self.tree_of(inside).0;
        rec.trie_started("mask");
        let mut walked = 0;
        'exits: for exits in inside.exits.chunk_by(|a, b| a.after.is_some() && a.after == b.after) {
            if rec.cancellation_requested() {
                break;
            }
            for (i, exit) in exits.iter().enumerate() {
                let node = &nodes[exit.node as usize];
                if i > 0 && node.size == 1 {
                    tokens.allow_token(node.token); // as the first was taken
                    continue;
                }
                let way = &inside.bytes[exit.way.start as usize..exit.way.end as usize];
                let pushed = way.iter().take_while(|&&byte| rec.try_push_byte(byte)).count();
                if pushed < way.len() {
                    rec.pop_bytes(pushed);
                    break 'exits; // the lexer came to a limit, as whoever asked will see
                }
                let is_taken = ask_from(&nodes[exit.node as usize..], rec, tokens, &mut walked);
                rec.pop_bytes(way.len());
                if !is_taken {
                    break;
                }
            }
        }
        rec.trie_finished();
        rec.save_stats(walked);
        tokens.disallow_token(self.trie().vocab_size() as TokenId);
    }
}

/// Whether the parser takes the first node's byte; then those below it, too, that it takes.
fn ask_from(
    nodes: &[Node],
    rec: &mut ParserRecognizer<'_>,
    tokens: &mut SimpleVob,
    walked: &mut usize,
) -> bool {
    let above = nodes[0].depth - 1;
    let nodes = &nodes[..nodes[0].size as usize];
    let (mut at, mut depth) = (0, above);
    while let Some(node) = nodes.get(at) {
        rec.pop_bytes(usize::from(depth - (node.depth - 1)));
        depth = node.depth - 1;
        *walked += 1;
        if rec.try_push_byte(node.byte) {
            tokens.allow_token(node.token);
            depth = node.depth;
            at += 1;
        } else if at == 0 {
            return false;
        } else {
            at += node.size as usize;
        }
    }
    rec.pop_bytes(usize::from(depth - above));
    true
}

/// Of the way to the node that is looked at.
#[derive(Clone)]
struct Step {
    state: StateID, // after `byte`
    byte: u8,
    end: Option<End>, // once it is known, by bytes that the lexer cannot take here
}

/// What the lexer has read where it cannot go on.
#[derive(Clone, Copy)]
enum End {
    Nothing,
    Lexeme(u8), // of `Inside::lexemes`
    Several,
}

/// Where a token leaves what the lexer is reading.
struct Exit {
    /// The lexeme that it leaves and the byte after that: all the parser's answer depends on.
    /// Exits where it is the same are in a row, those with the shortest way first.
    after: Option<(u8, u8)>,
    node: u32,       // the first that is not inside
    way: Range<u32>, // to it, in `Inside::bytes`
}

/// Of one state of a lexer.
pub struct Inside {
    pub tokens: SimpleVob, // those that stay, and may come whatever the parser's state is
    exits: Vec<Exit>,
    bytes: Vec<u8>,
    lexemes: Vec<LexemeIdx>,
    slice: Option<usize>, // among whose others the exits are
}

impl Inside {
    fn new(tokens: SimpleVob) -> Self {
        let (exits, bytes, lexemes) = Default::default();
        Inside { tokens, exits, bytes, lexemes, slice: None }
    }

    fn end(&mut self, rec: &mut ParserRecognizer<'_>, state: StateID) -> End {
        if rec.lexer_mut().try_lexeme_end(state).is_error() {
            return End::Nothing;
        }
        let mut possible = rec.lexer().possible_lexemes(state).iter();
        let (Some(lexeme), None) = (possible.next(), possible.next()) else { return End::Several };
        let known = self.lexemes.iter().position(|&known| known == lexeme);
        let Ok(place) = u8::try_from(known.unwrap_or(self.lexemes.len())) else {
            return End::Several;
        };
        if known.is_none() {
            self.lexemes.push(lexeme);
        }
        End::Lexeme(place)
    }

    fn add_exit(&mut self, node: usize, way: &[Step], after: Option<(u8, u8)>) {
        let begin = self.bytes.len() as u32;
        self.bytes.extend(way.iter().map(|step| step.byte));
        self.exits.push(Exit { after, node: node as u32, way: begin..self.bytes.len() as u32 });
    }

    pub fn size(&self) -> usize {
        std::mem::size_of_val(self.tokens.as_slice())
            + std::mem::size_of_val(self.exits.as_slice())
            + self.bytes.len()
    }
}
