//! The Rust libraries that Dendrite uses, behind a C ABI. `dendrite_bridge.h` is the contract.
//!
//! One module a concern:
//! * `ffi`: what every entry point shares: status codes, the last error, buffers, the panic guard;
//! * `tokenizer`, `continuation` and `pieces`: Hugging Face `tokenizers`;
//! * `vocabulary`, `kind`, `grammar`, `prune`, `forced`, `masks`, `token_tree`, `limits` and `watch`:
//!   what text must match, with `llguidance`; `schema`: JSON schemas as its grammars;
//! * `template`: chat templates with `minijinja`;
//! * `python`, `markup`, `json` and `rewrite`: where templates expect Python's behaviour and jinja2's
//!   reading rather than Rust's and minijinja's.

mod checks;
mod continuation;
#[cfg(test)]
mod continuation_tests;
mod ffi;
mod forced;
#[cfg(test)]
mod fuzz;
mod grammar;
#[cfg(test)]
mod grammar_fuzz;
#[cfg(test)]
mod grammar_tests;
#[cfg(test)]
mod hostile_tests;
mod json;
mod kind;
mod limits;
mod markup;
mod masks;
mod pieces;
mod prune;
mod python;
mod rewrite;
mod schema;
mod template;
mod token_tree;
mod tokenizer;
mod vocabulary;
mod watch;
