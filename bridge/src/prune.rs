//! Grammars taken apart and put together again: without ways that no text can take, and with JSON
//! schemas where their marks stand.

use crate::ffi::Result;
use crate::limits::one_line;
use crate::schema::{Grammars, Part};
use llguidance::api::ParserLimits;
use llguidance::earley::lexerspec::{LexemeIdx, LexerSpec};
use llguidance::earley::regexvec::LexemeSet;
use llguidance::earley::{CGrammar, CSymIdx, Grammar, ParamCond, SymIdx};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What is used, from the start on.
fn reached(grammar: &CGrammar) -> Vec<CSymIdx> {
    let mut found = vec![grammar.start()];
    let mut seen = BTreeSet::from([grammar.start().as_index()]);
    let mut at = 0;
    while let Some(&symbol) = found.get(at) {
        at += 1;
        for &rule in grammar.rules_of(symbol) {
            let parts = grammar.rule_rhs(rule).0;
            found.extend(parts.iter().filter(|part| seen.insert(part.as_index())));
        }
    }
    found
}

/// Symbols that come to an end. Before one that does not, llguidance looks for forced text forever:
/// of /a+/ and such a symbol it takes one "a" after another, which no limit of its counts.
fn ends(grammar: &CGrammar, symbols: &[CSymIdx], empty: &LexemeSet) -> BTreeSet<usize> {
    let mut uses: BTreeMap<usize, Vec<usize>> = BTreeMap::new(); // of a symbol, in which rules
    let mut rules: Vec<(usize, usize)> = Vec::new(); // the symbol, and how many have no end yet
    let mut ending = Vec::new();
    for &symbol in symbols {
        let data = grammar.sym_data(symbol);
        let is_empty = data.lexeme.is_some_and(|lexeme| empty.contains(lexeme));
        if data.is_nullable || !data.cond_nullable.is_empty() || (data.is_terminal && !is_empty) {
            ending.push(symbol.as_index());
        }
        for &rule in grammar.rules_of(symbol) {
            let parts = grammar.rule_rhs(rule).0;
            for &part in parts {
                uses.entry(part.as_index()).or_default().push(rules.len());
            }
            rules.push((symbol.as_index(), parts.len()));
        }
    }
    let mut ends: BTreeSet<usize> = ending.iter().copied().collect();
    while let Some(symbol) = ending.pop() {
        for &rule in uses.get(&symbol).into_iter().flatten() {
            let (user, left) = &mut rules[rule];
            *left -= 1;
            if *left == 0 && ends.insert(*user) {
                ending.push(*user);
            }
        }
    }
    ends
}

/// The grammar without alternatives that no text can take; one must be left. The library shows the
/// rules of a compiled grammar alone, and makes parsers of one that is not: so it is compiled twice.
pub fn pruned(
    grammar: Grammar,
    lexer: &LexerSpec,
    empty: &LexemeSet,
    limits: &ParserLimits,
) -> Result<Grammar> {
    let compiled = grammar.compile(lexer.clone(), limits)?;
    let symbols = reached(&compiled);
    let ends = ends(&compiled, &symbols, empty);
    let is_live = |symbol: CSymIdx| ends.contains(&symbol.as_index());
    if let Some(&dead) = symbols.iter().rev().find(|&&symbol| !is_live(symbol)) {
        if !is_live(compiled.start()) {
            let name = one_line(compiled.sym_name(dead));
            return Err(format!(
                "unsatisfiable: no text matches {name}: got no way to its end, expected one"
            )
            .into());
        }
        let live: Vec<CSymIdx> = symbols.into_iter().filter(|&symbol| is_live(symbol)).collect();
        let mut copy = Grammar::new(None);
        copied(&compiled, &live, lexer, &mut copy, &HashMap::new())?;
        return Ok(copy);
    }
    Ok(grammar)
}

/// A Lark grammar with its schemas in their places.
pub fn filled(
    grammar: &Grammar,
    lexer: LexerSpec,
    parts: &[Part],
    limits: &ParserLimits,
) -> Result<(Grammar, LexerSpec)> {
    let compiled = grammar.compile(lexer.clone(), limits)?;
    let mut grammars = Grammars::new(lexer);
    let mut marks = HashMap::new();
    for (at, part) in parts.iter().enumerate() {
        marks.insert(grammars.mark(part)?, at);
    }
    let symbols = reached(&compiled);
    let lexer = grammars.lexer().clone();
    let places = copied(&compiled, &symbols, &lexer, grammars.grammar(), &marks)?;
    for (symbol, at) in places {
        grammars.fill(symbol, &parts[at])?;
    }
    Ok(grammars.into_parts())
}

/// Copies symbols with the rules between them; gives those that are left open for the marks.
fn copied(
    from: &CGrammar,
    symbols: &[CSymIdx],
    lexer: &LexerSpec,
    to: &mut Grammar,
    marks: &HashMap<LexemeIdx, usize>,
) -> Result<Vec<(SymIdx, usize)>> {
    let mut map: HashMap<usize, SymIdx> = HashMap::new();
    for &symbol in symbols {
        let data = from.sym_data(symbol);
        map.insert(symbol.as_index(), to.fresh_symbol_ext(&data.name, data.props.clone()));
    }
    let mut places = Vec::new();
    for &symbol in symbols {
        let data = from.sym_data(symbol);
        let copy = map[&symbol.as_index()];
        if let Some(options) = &data.gen_grammar {
            to.make_gen_grammar(copy, options.clone())?;
        }
        if let Some(lexeme) = data.lexeme {
            match marks.get(&lexeme) {
                Some(&at) => places.push((copy, at)),
                None => to.make_terminal(copy, lexeme, lexer)?,
            }
        }
        for (&rule, condition) in data.rules.iter().zip(&data.rules_cond) {
            let (parts, params, _) = from.rule_rhs(rule);
            let pair = |(part, param): (&CSymIdx, &llguidance::earley::ParamExpr)| {
                Some((*map.get(&part.as_index())?, param.clone()))
            };
            if let Some(parts) = parts.iter().zip(params).map(pair).collect() {
                to.add_rule_ext(copy, condition.clone(), parts)?;
            }
        }
        if data.is_nullable {
            to.add_rule_ext(copy, ParamCond::True, Vec::new())?;
        }
        for condition in &data.cond_nullable {
            to.add_rule_ext(copy, condition.clone(), Vec::new())?;
        }
    }
    Ok(places)
}
