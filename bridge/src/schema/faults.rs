//! What llguidance 1.9.1 itself makes of schemas: the reasons why the bridge compiles them on its
//! own. Where one of these fails the library was mended; where none is left it can do the work.

use crate::grammar_tests::Language;
use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::TokenParser;
use serde_json::{json, Value};

fn parser(language: &Language, schema: &Value) -> Option<TokenParser> {
    let grammar = GrammarInit::Serialized(TopLevelGrammar::from_json_schema(schema.clone()));
    let mut parser = language.vocabulary.factory.create_parser_from_init_default(grammar).ok()?;
    parser.start_without_prompt();
    Some(parser)
}

fn accepts(language: &Language, schema: &Value, text: &str) -> bool {
    let Some(mut parser) = parser(language, schema) else { return false };
    let tokens: Vec<u32> = language.tokens(text).iter().map(|&token| token as u32).collect();
    parser.validate_tokens_raw(&tokens).unwrap() == tokens.len() && {
        for &token in &tokens {
            parser.consume_token(token).unwrap();
        }
        parser.is_accepting()
    }
}

#[test]
fn the_library_accepts_what_a_schema_excludes() {
    let language = Language::open("gpt2", "<|endoftext|>");
    for (what, schema, text) in [
        ("a class without a quote", json!({"type": "string", "pattern": "^[^\"]*$"}), r#""\"""#),
        (
            "a class without a backslash",
            json!({"type": "string", "pattern": "^[^\\\\]+$"}),
            r#""\\""#,
        ),
        (
            "a bound that is out",
            json!({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}),
            "0",
        ),
        ("a large constant", json!({"const": 9007199254740993i64}), "9007199254740992"),
        (
            "a large bound",
            json!({"type": "integer", "minimum": 9007199254740993i64}),
            "9007199254740992",
        ),
        ("Rust's classes", json!({"type": "string", "pattern": "^[[:alpha:]]$"}), "\"a\""),
        ("Rust's dot", json!({"type": "string", "pattern": "^.$"}), r#""\r""#),
        ("no leap year", json!({"type": "string", "format": "date"}), "\"2023-02-29\""),
        (
            "a listed name, escaped",
            json!({"type": "object", "properties": {"a": {"type": "null"}}}),
            r#"{"\u0061":1}"#,
        ),
        ("one name twice", json!({"type": "object", "minProperties": 2}), r#"{"a":1,"a":1}"#),
    ] {
        assert!(accepts(&language, &schema, text), "mended: {what}");
    }
}

#[test]
fn the_library_refuses_what_a_schema_allows() {
    let language = Language::open("gpt2", "<|endoftext|>");
    for (what, schema) in [
        ("an unknown format", json!({"type": "string", "format": "path"})),
        ("uniqueItems: false", json!({"type": "array", "uniqueItems": false})),
        ("names that are texts", json!({"propertyNames": {"type": "string"}})),
        ("2.0 for 2", json!({"type": "string", "minLength": 2.0})),
        ("patterns that overlap", json!({"patternProperties": {"^a": {}, "b$": {}}})),
        ("a reference with an umlaut", json!({"$defs": {"ü": {}}, "$ref": "#/$defs/ü"})),
    ] {
        assert!(parser(&language, &schema).is_none(), "mended: {what}");
    }
    let range = json!({"type": "number", "minimum": 0.1, "maximum": 0.25});
    assert!(!accepts(&language, &range, "0.2"), "mended: short spellings");
}
