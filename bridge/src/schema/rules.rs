//! Symbols and rules of a grammar under way.

use crate::ffi::Result;
use crate::limits::{at_most, check_grammar_size};
use llguidance::api::SkipSpec;
use llguidance::derivre::RegexAst;
use llguidance::earley::lexerspec::{LexemeClass, LexemeIdx, LexerSpec};
use llguidance::earley::{Grammar, SymIdx, SymbolProps};
use std::collections::HashMap;

/// Parts of all rules.
const MAX_PARTS: usize = 400_000;
/// Sequences up to this are rules of their own; longer ones are put together from fours.
const SHORT: u32 = 12;

pub struct Rules {
    pub grammar: Grammar,
    pub lexer: LexerSpec,
    class: LexemeClass,
    literals: HashMap<String, SymIdx>,
    lexemes: HashMap<LexemeIdx, SymIdx>,
    exactly: HashMap<(SymIdx, u32), SymIdx>,
    up_to: HashMap<(SymIdx, u32), SymIdx>,
    parts: usize,
}

impl Rules {
    pub fn new(grammar: Grammar, lexer: LexerSpec) -> Self {
        Rules {
            grammar,
            lexer,
            class: LexemeClass::ROOT,
            literals: HashMap::new(),
            lexemes: HashMap::new(),
            exactly: HashMap::new(),
            up_to: HashMap::new(),
            parts: 0,
        }
    }

    /// What follows is another grammar, with blanks of its own.
    pub fn begin(&mut self, blanks: RegexAst) -> Result<()> {
        self.lexer.regex_builder.unicode(true).utf8(true);
        self.class = self.lexer.setup_lexeme_class_with_skip(SkipSpec::once(blanks))?;
        self.literals.clear();
        self.lexemes.clear();
        self.exactly.clear();
        self.up_to.clear();
        Ok(())
    }

    pub fn symbol(&mut self, name: &str) -> SymIdx {
        let props = SymbolProps { grammar_id: self.class, ..SymbolProps::default() };
        self.grammar.fresh_symbol_ext(name, props)
    }

    /// Where the whole grammar begins; the first symbol of all.
    pub fn start(&mut self) -> SymIdx {
        let start = self.symbol("start");
        self.grammar.sym_props_mut(start).is_start = true;
        start
    }

    pub fn add(&mut self, symbol: SymIdx, parts: Vec<SymIdx>) {
        self.parts += parts.len() + 1;
        let added = self.grammar.add_rule(symbol, parts);
        debug_assert!(added.is_ok(), "a rule of a terminal");
    }

    pub fn check_size(&self) -> Result<()> {
        check_grammar_size(self.grammar.num_symbols())?;
        at_most("parts of a grammar's rules", self.parts, MAX_PARTS)
    }

    pub fn literal(&mut self, text: &str) -> Result<SymIdx> {
        if let Some(&symbol) = self.literals.get(text) {
            return Ok(symbol);
        }
        let symbol = self.lexeme(RegexAst::Literal(text.into()))?;
        self.literals.insert(text.into(), symbol);
        Ok(symbol)
    }

    pub fn lexeme_of(&mut self, regex: RegexAst) -> Result<LexemeIdx> {
        Ok(self.lexer.add_greedy_lexeme(String::new(), regex, false, None, usize::MAX)?)
    }

    pub fn lexeme(&mut self, regex: RegexAst) -> Result<SymIdx> {
        let lexeme = self.lexeme_of(regex)?;
        if let Some(&symbol) = self.lexemes.get(&lexeme) {
            return Ok(symbol);
        }
        let symbol = self.symbol("lexeme");
        self.grammar.make_terminal(symbol, lexeme, &self.lexer)?;
        self.lexemes.insert(lexeme, symbol);
        Ok(symbol)
    }

    pub fn nothing(&mut self) -> SymIdx {
        let symbol = self.symbol("nothing");
        self.add(symbol, Vec::new());
        symbol
    }

    /// As few symbols as the digits of the bounds, and one way to read a text.
    pub fn repeated(&mut self, one: SymIdx, least: u32, most: Option<u32>) -> SymIdx {
        let front = self.exactly(one, least);
        let behind = match most {
            Some(most) => self.up_to(one, most - least),
            None => {
                let star = self.symbol("star");
                self.add(star, Vec::new());
                self.add(star, vec![star, one]);
                star
            }
        };
        let both = self.symbol("repeated");
        let parts = [(front, least > 0), (behind, most != Some(least))];
        let parts = parts.into_iter().filter(|(_, is_some)| *is_some).map(|(part, _)| part);
        self.add(both, parts.collect());
        both
    }

    fn exactly(&mut self, one: SymIdx, count: u32) -> SymIdx {
        if let Some(&known) = self.exactly.get(&(one, count)) {
            return known;
        }
        let mut parts = vec![one; (if count < SHORT { count } else { count % 4 }) as usize];
        if count >= SHORT {
            let four = self.exactly(one, 4);
            parts.push(self.exactly(four, count / 4));
        }
        let symbol = self.symbol("exactly");
        self.add(symbol, parts);
        self.exactly.insert((one, count), symbol);
        symbol
    }

    fn up_to(&mut self, one: SymIdx, count: u32) -> SymIdx {
        if let Some(&known) = self.up_to.get(&(one, count)) {
            return known;
        }
        let symbol = self.symbol("up to");
        if count < SHORT {
            for size in 0..=count {
                self.add(symbol, vec![one; size as usize]);
            }
        } else {
            // Fewer fours than there can be and a rest, or all of them and some of what is left.
            let four = self.exactly(one, 4);
            let (fours, rest) = (self.up_to(four, count / 4 - 1), self.up_to(one, 3));
            self.add(symbol, vec![fours, rest]);
            let (fours, rest) = (self.exactly(four, count / 4), self.up_to(one, count % 4));
            self.add(symbol, vec![fours, rest]);
        }
        self.up_to.insert((one, count), symbol);
        symbol
    }
}
