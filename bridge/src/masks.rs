//! Masks of the matchers of a grammar: what a state's tokens are is worked out once, and remembered.

use crate::ffi::lock;
use crate::token_tree::{Inside, TokenTree};
use crate::vocabulary::Vocabulary;
use crate::watch::{Watch, LONGEST};
use llguidance::derivre::StateID;
use llguidance::earley::regexvec::LexemeSet;
use llguidance::earley::{BiasComputer, ParserRecognizer};
use llguidance::TokenParser;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use toktrie::{SimpleVob, TokTrie};

/// By a lexer's state and what is read already.
struct States {
    tree: Arc<TokenTree>,
    known: Mutex<HashMap<(StateID, Box<[u8]>), Arc<Inside>>>,
    size: AtomicUsize, // of what is here alone
}

impl States {
    fn new(tree: &Arc<TokenTree>) -> Self {
        States { tree: tree.clone(), known: Mutex::default(), size: 0.into() }
    }

    fn get(&self, state: StateID, start: &[u8]) -> Option<Arc<Inside>> {
        lock(&self.known).get(&(state, start.into())).cloned()
    }

    /// Remembers what was worked out, where there is room.
    fn add(&self, state: StateID, start: &[u8], inside: &Arc<Inside>) {
        let size = inside.size();
        if self.tree.take(size) {
            self.size.fetch_add(size, Ordering::Relaxed);
            self.keep(state, start, inside);
        }
    }

    fn keep(&self, state: StateID, start: &[u8], inside: &Arc<Inside>) {
        lock(&self.known).insert((state, start.into()), inside.clone());
    }
}

impl Drop for States {
    fn drop(&mut self) {
        self.tree.give_back(*self.size.get_mut());
    }
}

/// What all families of a grammar have in common. Each has a lexer of its own, with numbers of its
/// own for the states; a state is the same in all by the lexemes that it may be of and what is read
/// of them, and is worked out in one more lexer.
pub struct GrammarMasks {
    states: States,
    parser: Mutex<Option<TokenParser>>, // none once its lexer came to a limit
    watch: Arc<Watch>,
}

impl GrammarMasks {
    pub fn new(vocabulary: &Vocabulary, parser: &TokenParser) -> Self {
        let parser = Mutex::new(Some(parser.deep_clone()));
        let states = States::new(&vocabulary.tree);
        GrammarMasks { states, parser, watch: vocabulary.watch.clone() }
    }

    /// None: its lexer, which has the states of all families, came to a limit.
    fn inside(&self, lexemes: &LexemeSet, way: &[u8], start: &[u8]) -> Option<Arc<Inside>> {
        let mut place = lock(&self.parser);
        let mut parser = place.take()?;
        let watched = self.watch.call(parser.enable_cancellation(), LONGEST);
        let question =
            Question { states: &self.states, lexemes, way, start, answer: Mutex::default() };
        parser.parser.compute_bias(&question, b"-"); // (its beginning is not read)
        drop(watched);
        let answer = question.answer.into_inner().unwrap_or_else(PoisonError::into_inner);
        if parser.parser.get_error().is_some() {
            return None; // what it says from here on is wrong
        }
        *place = Some(parser);
        let (state, inside, is_new) = answer?;
        if is_new {
            self.states.add(state, start, &inside);
        }
        Some(inside)
    }
}

struct Question<'a> {
    states: &'a States,
    lexemes: &'a LexemeSet,
    way: &'a [u8],
    start: &'a [u8],
    answer: Mutex<Option<(StateID, Arc<Inside>, bool)>>, // and whether it is new
}

impl BiasComputer for Question<'_> {
    fn compute_bias(&self, rec: &mut ParserRecognizer<'_>, _: &[u8]) -> SimpleVob {
        let state = walk(rec, self.lexemes, self.way);
        let known = self.states.get(state, self.start).map(|inside| (state, inside, false));
        *lock(&self.answer) = known.or_else(|| {
            let inside = self.states.tree.inside(rec, state, self.start)?;
            Some((state, Arc::new(inside), true))
        });
        SimpleVob::new()
    }

    fn trie(&self) -> &TokTrie {
        self.states.tree.trie()
    }
}

/// The state of a lexer that has read `way`, and reads one of the lexemes.
fn walk(rec: &mut ParserRecognizer<'_>, lexemes: &LexemeSet, way: &[u8]) -> StateID {
    let lexer = rec.lexer_mut();
    let first = lexer.start_state(lexemes);
    way.iter().fold(first, |state, &byte| match state.has_lowest_match() {
        true => StateID::DEAD,
        false => lexer.transition_start_state(state, Some(byte), &None),
    })
}

/// For the matchers of one family, whose states of the lexer are the same.
pub struct FamilyMasks {
    grammar: Arc<GrammarMasks>,
    states: States,
}

impl FamilyMasks {
    pub fn new(grammar: Arc<GrammarMasks>) -> Self {
        let states = States::new(&grammar.states.tree);
        FamilyMasks { grammar, states }
    }

    #[cfg(test)]
    pub fn shared_lexer_is_spent(&self) -> bool {
        lock(&self.grammar.parser).is_none()
    }

    pub fn apart(&self) -> Self {
        FamilyMasks::new(self.grammar.clone())
    }

    /// `read`: the end of the text so far.
    fn inside(
        &self,
        rec: &mut ParserRecognizer<'_>,
        read: &[u8],
        start: &[u8],
    ) -> Option<Arc<Inside>> {
        let state = rec.lexer_state();
        if let Some(known) = self.states.get(state, start) {
            return Some(known);
        }
        let lexemes = rec.lexer().possible_lexemes(state).clone();
        let mut ways = (0..=read.len()).rev().map(|begin| &read[begin..]);
        let way = ways.find(|way| walk(rec, &lexemes, way) == state);
        let shared = way.and_then(|way| self.grammar.inside(&lexemes, way, start));
        if let Some(inside) = shared {
            self.states.keep(state, start, &inside);
            return Some(inside);
        }
        let inside = Arc::new(self.grammar.states.tree.inside(rec, state, start)?);
        self.states.add(state, start, &inside);
        Some(inside)
    }
}

/// One mask of a matcher.
pub struct MaskOf {
    family: Arc<FamilyMasks>,
    read: Vec<u8>, // the end of the text so far
}

impl MaskOf {
    /// Bytes of a lexeme from its beginning on by which its state is known to others.
    const MOST_READ: usize = 40;

    pub fn new(family: Arc<FamilyMasks>, text: &[u8]) -> Self {
        let read = text[text.len().saturating_sub(Self::MOST_READ)..].to_vec();
        MaskOf { family, read }
    }
}

impl BiasComputer for MaskOf {
    fn compute_bias(&self, rec: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        let Some(inside) = self.family.inside(rec, &self.read, start) else {
            return self.trie().alloc_token_set();
        };
        let mut tokens = inside.tokens.clone();
        self.family.states.tree.ask(&inside, rec, &mut tokens);
        tokens
    }

    fn trie(&self) -> &TokTrie {
        self.family.states.tree.trie()
    }
}
