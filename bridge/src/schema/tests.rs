//! What schemas let through, each kind beside what it must not.

use crate::grammar::DnMatcher;
use crate::grammar_tests::Language;
use crate::kind::Kind;
use serde_json::{json, Value};

fn language() -> Language {
    Language::open("gpt2", "<|endoftext|>")
}

fn accepts(language: &Language, kind: Kind, schema: &str, text: &str) -> bool {
    let mut matcher = language.matcher(kind, schema);
    let tokens = language.tokens(text);
    matcher.accept(&tokens).unwrap() == tokens.len() && matcher.is_accepting().unwrap()
}

fn check(schema: &str, good: &[&str], bad: &[&str]) {
    let language = language();
    for text in good {
        assert!(accepts(&language, Kind::JsonSchema, schema, text), "{schema} refuses {text}");
    }
    for text in bad {
        assert!(!accepts(&language, Kind::JsonSchema, schema, text), "{schema} accepts {text}");
    }
}

fn refusal(schema: &str) -> String {
    let opened = DnMatcher::open(&language().vocabulary, Kind::JsonSchema, schema);
    opened.err().map_or_else(|| "opened".to_owned(), |error| error.0)
}

#[test]
fn numbers_are_exact_at_any_size() {
    check(
        r#"{"const": -9223372036854775808}"#,
        &["-9223372036854775808"],
        &["-9223372036854775807"],
    );
    check(r#"{"const": 9007199254740993}"#, &["9007199254740993"], &["9007199254740992"]);
    check(
        r#"{"enum": [12345678901234567890123, 1e20, 2.0]}"#,
        &["12345678901234567890123", "100000000000000000000", "2"],
        &["1e20", "12345678901234567890124"],
    );
    check(
        r#"{"const": {"id": [12345678901234567890]}}"#,
        &[r#"{"id":[12345678901234567890]}"#],
        &[],
    );
    check(
        r#"{"type": "integer", "exclusiveMinimum": 9007199254740992, "maximum": 18446744073709551616}"#,
        &["9007199254740993", "18446744073709551616"],
        &["9007199254740992", "18446744073709551617"],
    );
    check(
        r#"{"type": "number", "minimum": 0, "maximum": 1.7976931348623157e308}"#,
        &["0", "1.5"],
        &["-1"],
    );
    check(
        r#"{"type": "integer", "multipleOf": 3, "minimum": 9007199254740993}"#,
        &["9007199254740993"],
        &["9007199254740994", "3"],
    );
    assert_eq!(
        refusal(r#"{"properties": {"a": {"minimum": 1e999}}}"#),
        "JSON schema: #/properties/a/minimum: got a number with an exponent of 999, expected at most 400 digits"
    );
    assert_eq!(refusal(r#"{"default": 1e999, "type": "null"}"#), "opened");
}

#[test]
fn bounds_that_are_excluded_are_not_accepted() {
    for (schema, good, bad) in [
        (
            json!({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}),
            ["0.5", "0.25"],
            ["0", "0.0"],
        ),
        (
            json!({"type": "number", "minimum": -2.5, "exclusiveMaximum": -2}),
            ["-2.5", "-2.1"],
            ["-2", "-2.0"],
        ),
        (
            json!({"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 1.5}),
            ["1.1", "1.49"],
            ["1", "1.5"],
        ),
        (
            json!({"type": "number", "minimum": 0.1, "maximum": 0.25}),
            ["0.2", "0.250"],
            ["0.3", "0.251"],
        ),
        (
            json!({"exclusiveMinimum": 0, "multipleOf": 0.5, "maximum": 0.5, "type": "number"}),
            ["0.5", "0.50"],
            ["0", "0.25"],
        ),
        (
            json!({"allOf": [{"type": "number", "minimum": 3}, {"exclusiveMinimum": 3, "maximum": 4}]}),
            ["3.5", "4"],
            ["3", "5"],
        ),
        (
            json!({"type": "integer", "minimum": 1, "exclusiveMinimum": true, "maximum": 3}),
            ["2", "3"],
            ["1", "4"],
        ),
    ] {
        check(&schema.to_string(), &good, &bad);
    }
}

fn pattern(pattern: &str, good: &[&str], bad: &[&str]) {
    let schema = json!({"type": "string", "pattern": pattern}).to_string();
    let quoted = |texts: &[&str]| -> Vec<String> {
        texts.iter().map(|text| Value::from(*text).to_string()).collect()
    };
    let (good, bad) = (quoted(good), quoted(bad));
    let as_strs = |texts: &[String]| -> Vec<&'static str> {
        texts.iter().map(|text| &*text.clone().leak()).collect()
    };
    check(&schema, &as_strs(&good), &as_strs(&bad));
    let schema = json!({"type": "object", "patternProperties": {pattern: {"const": 1}},
        "additionalProperties": false});
    let member = |texts: &[String]| -> Vec<&'static str> {
        texts.iter().map(|text| &*format!("{{{text}:1}}").leak()).collect()
    };
    if !good.is_empty() {
        check(&schema.to_string(), &member(&good), &member(&bad));
    }
}

#[test]
fn classes_hold_for_escaped_characters() {
    pattern("^[^\"]*$", &["", "a,b", "\\", "\n"], &["\"", "a\""]);
    pattern(r"^[^\\]+$", &["a\"b", "\t"], &["a\\b", "\\"]);
    pattern("^[^\"\\\\]{2,5}$", &["ab", "\n\n"], &["a\"", "a\\", "abcdef"]);
    pattern(r#"^[^\\/:*?"<>|]+$"#, &["a b.txt"], &["a\\b", "a\"", "a/b"]);
    pattern("[^\"]", &["a", "\"a"], &["\"", ""]);
    pattern("^[^\"\\r\\n]*$", &["a"], &["\"", "\n", "\r"]);
    pattern(r"^[^\s\\]*$", &["a\"", "\u{1}"], &["\\", "\n", " ", "\u{feff}"]);
    pattern(r"^(?:[^\u0022]|xy)$", &["a", "xy"], &["\""]);
    pattern("^[\\x00-\\x21]$", &["\u{0}", "\n", "!"], &["\"", "#"]);
    pattern("^[^\\x7f]$", &["a", "\u{80}"], &["\u{7f}"]);
    // By all the ways that a text may be written in.
    let schema = r#"{"type": "string", "pattern": "^[^\\n\"]$"}"#;
    check(
        schema,
        &[r#""\t""#, r#""\u0009""#, r#""\u001F""#],
        &[r#""\n""#, r#""\u000a""#, r#""\u000A""#, r#""\"""#, r#""\u0022""#],
    );
    let schema = r#"{"properties": {"a\n": {"const": 1}}, "additionalProperties": {"const": 2}, "type": "object"}"#;
    check(
        schema,
        &[r#"{"a\n":1,"b":2}"#],
        &[r#"{"a\u000a":2}"#, r#"{"\u0061\n":2}"#, r#"{"a\n":2}"#],
    );
}

#[test]
fn patterns_are_those_of_ecma_262() {
    pattern("^[a-z&&[^b]]$", &["a]", "&]"], &["a", "b"]);
    pattern("^[[:alpha:]]+$", &["a]", ":]]"], &["ab", "a"]);
    pattern(r"^[\w!@#$%^&&*()]+$", &["a*!", "&&"], &["-"]);
    pattern("^[+--~~]$", &["+", ",", "-", "~"], &["c"]);
    pattern("^[[]$", &["["], &["]"]);
    pattern("^.$", &["a", "\u{85}", "😀", "\""], &["\r", "\n", "\u{2028}", "\u{2029}", ""]);
    pattern(r"^\d\w\s$", &["1_ ", "1a\u{feff}", "1a\u{a0}"], &["١a ", "1é ", "1a\u{85}"]);
    pattern(r"^\cJ\0\/\-$", &["\n\0/-"], &["J0/-"]);
    pattern(r"^[\b]\v\f$", &["\u{8}\u{b}\u{c}"], &["b"]);
    pattern("^a|b$", &["ax", "xb"], &["xa", "bx"]);
    pattern("(^|x)a(y|$)", &["a", "ayz", "zxa"], &["za", "az"]);
    pattern("^$", &[""], &["a"]);
    pattern(r"^\p{L}\p{Script=Greek}\P{Lu}$", &["éαa"], &["1αa", "aba", "aαA"]);
    pattern("^(?<year>[0-9]{4})-(?:a|b)+?$", &["2026-ab"], &["202-a"]);
    pattern(r"^\u{1F600}\ud83d\ude00[\u{1F600}-\u{1F64F}]$", &["😀😀😀"], &["😀😀a"]);
    // Without the flag u.
    pattern("^a{,2}x{$", &["a{,2}x{"], &["ax{"]);
    pattern(r"^\a\_\@\q$", &["a_@q"], &["a_@"]);
    pattern(r"^[\d-x]\c$", &[r"-\c", r"1\c"], &["5c"]);
    pattern(r"^\101\8$", &["A8"], &["101"]);
    pattern(r"^.+\@.{2}$", &["a😀@bc"], &["a@😀", "a@b"]);
    pattern("^a]}$", &["a]}"], &["a"]);
    for (pattern, says) in [
        (r"(?=a)b", "look-ahead (?=...)"),
        (r"(?<!a)b", "look-behind (?<!...)"),
        (r"(a)\1", r"back-reference (\1)"),
        (r"(?<n>a)\k<n>", r"back-reference (\k)"),
        (r"\bword\b", r"border of words"),
        ("(?i)a", "flags have no place"),
        ("(a", "nothing closes"),
        ("a)", "closes nothing"),
        ("[b-a]", "out of order"),
        ("a{2,1}", "out of order"),
        ("*a", "repeats nothing"),
        (r"\p{Nonsense}", "expected a property"),
        ("(^a)*", "repeated"),
    ] {
        let text = refusal(&json!({"items": {"pattern": pattern}}).to_string());
        assert!(text.starts_with("JSON schema: #/items/pattern: "), "{pattern}: {text}");
        assert!(text.contains(says), "{pattern}: {text}");
        let text = refusal(&json!({"patternProperties": {pattern: {}}}).to_string());
        assert!(text.starts_with("JSON schema: #/patternProperties: "), "{pattern}: {text}");
    }
}

#[test]
fn what_says_nothing_is_ignored() {
    for schema in [
        json!({"propertyNames": {"type": "string", "title": "Key"}, "additionalProperties": {"type": "integer"}}),
        json!({"type": "array", "uniqueItems": false}),
        json!({"uniqueItems": true, "maxItems": 1}),
        json!({"type": "string", "uniqueItems": true, "contains": {"const": 1}, "dependentRequired": {"a": ["b"]}}),
        json!({"type": "string", "format": "path"}),
        json!({"type": "string", "maxLength": 4294967296u64, "minLength": 2.0}),
        json!({"$defs": {"Größe/~": {"type": "integer"}}, "$ref": "#/$defs/Gr%C3%B6%C3%9Fe~1~0"}),
        json!({"definitions": {"RowCol<LayoutAlign>": {"type": "integer"}}, "$ref": "#/definitions/RowCol<LayoutAlign>"}),
        json!({"type": "object", "dependentRequired": {}, "dependentSchemas": {"a": true}, "dependencies": {"a": []}}),
        json!({"not": false, "if": {"const": 1}, "contains": {"const": 1}, "minContains": 0}),
        json!({"if": true, "then": {"type": "integer"}, "else": {"not": {}}}),
        json!({"then": {"type": "integer"}, "else": {"type": "null"}, "maxContains": 1, "minProperties": 0}),
        json!({"unevaluatedProperties": true, "unevaluatedItems": {}, "$dynamicAnchor": "x", "$anchor": "y"}),
        json!({"deprecated": true, "examples": [{"not": 1}], "default": {"if": 2}, "x-order": [1], "nullable": true}),
    ] {
        assert_eq!(refusal(&schema.to_string()), "opened", "{schema}");
    }
    check(
        r##"{"$defs": {"N": {"type": "object", "properties": {"v": {"type": "integer"}, "n": {"$ref": "#/$defs/N", "deprecated": true}},
            "required": ["v"], "additionalProperties": false}}, "$ref": "#/$defs/N"}"##,
        &[r#"{"v":1,"n":{"v":2}}"#],
        &[r#"{"v":1,"n":{}}"#],
    );
    check(
        r#"{"type": "object", "allOf": [{"properties": {"b": {"type": "integer"}}}], "properties": {"a": {"type": "integer"}}, "unevaluatedProperties": false}"#,
        &[r#"{"b":1,"a":2}"#, "{}"],
        &[r#"{"c":1}"#],
    );
    check(
        r#"{"type": "object", "properties": {"const": {"enum": [1]}, "default": {"type": "null"}, "not": {"const": {"not": 2}}}}"#,
        &[r#"{"const":1,"default":null,"not":{"not":2}}"#],
        &[r#"{"const":2}"#],
    );
    check(
        r#"{"type": "array", "prefixItems": [{"type": "integer"}], "unevaluatedItems": false}"#,
        &["[1]", "[]"],
        &["[1,2]"],
    );
    check(
        r#"{"type": "object", "propertyNames": {"pattern": "^x"}, "properties": {"a": {}, "xb": {"const": 1}}}"#,
        &[r#"{"xb":1,"xc":2}"#],
        &[r#"{"a":1}"#, r#"{"c":1}"#],
    );
    // A name is a text: what else is listed beside it, or asked for, none can be.
    check(
        r#"{"type": "object", "propertyNames": {"enum": ["a", 2], "type": "number"}}"#,
        &["{}"],
        &[r#"{"a":1}"#, r#"{"2":1}"#],
    );
    check(
        r#"{"type": "object", "propertyNames": {"enum": ["a", "b"], "oneOf": [{"type": "integer"}, {"const": "b"}]}}"#,
        &["{}", r#"{"b":1}"#],
        &[r#"{"a":1}"#],
    );
}

#[test]
fn what_cannot_be_kept_is_refused_by_path_and_name() {
    for (schema, place) in [
        (json!({"not": {"type": "string"}}), "#/not"),
        (json!({"properties": {"a/b": {"not": {"const": 1}}}}), "#/properties/a~1b/not"),
        (
            json!({"items": {"anyOf": [{"type": "null"}, {"uniqueItems": true, "type": "array"}]}}),
            "#/items/anyOf/1/uniqueItems",
        ),
        (json!({"contains": {"const": 1}}), "#/contains"),
        (json!({"if": {"const": 1}, "else": {"type": "null"}}), "#/if"),
        (json!({"dependentRequired": {"a": ["b"]}}), "#/dependentRequired"),
        (json!({"dependentSchemas": {"a": {"required": ["b"]}}}), "#/dependentSchemas"),
        (json!({"dependencies": {"a": ["b"]}}), "#/dependencies"),
        (
            json!({"anyOf": [{"required": ["a"]}], "unevaluatedProperties": false}),
            "#/unevaluatedProperties",
        ),
        (json!({"allOf": [{}, {"items": {}}], "unevaluatedItems": false}), "#/unevaluatedItems"),
        (json!({"$ref": "https://example.com/x"}), "#/$ref"),
        (json!({"$dynamicRef": "#x"}), "#/$dynamicRef"),
        (json!({"oneOf": [{"type": "integer"}, {"minimum": 3}]}), "#/oneOf"),
        (json!({"minProperties": 3}), "#/minProperties"),
        (json!({"minLength": -1, "type": "string"}), "#/minLength"),
        (json!({"properties": {"a": {"type": "strng"}}}), "#/properties/a/type"),
        (json!({"properties": {"a": 3}}), "#/properties"),
        (json!({"required": "a"}), "#/required"),
    ] {
        let text = refusal(&schema.to_string());
        assert!(text.starts_with(&format!("JSON schema: {place}: ")), "{schema}: {text}");
        assert_eq!(text.lines().count(), 1);
    }
}

#[test]
fn ways_that_no_text_can_take_are_left_out() {
    check(
        r##"{"$defs": {"d": {"type": "string", "pattern": "^ab$", "minLength": 3}}, "anyOf": [{"$ref": "#/$defs/d"}, {"type": "integer"}]}"##,
        &["1"],
        &["\"ab\""],
    );
    let endless = r##""$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}}"##;
    check(
        &format!(r##"{{{endless}, "anyOf": [{{"$ref": "#/$defs/n"}}, {{"type": "integer"}}]}}"##),
        &["7"],
        &["{}"],
    );
    assert!(
        refusal(&format!(r##"{{{endless}, "$ref": "#/$defs/n"}}"##)).contains("no text matches")
    );
    check(
        r#"{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "minimum": 2}, "c": {"minimum": 2, "maximum": 1, "type": "integer"}},
            "patternProperties": {"^[ab]$": {"maximum": 3}, "^a": {"multipleOf": 2}}, "additionalProperties": false}"#,
        &["{}", r#"{"a":2,"b":3}"#, r#"{"ab":4}"#],
        &[r#"{"a":1}"#, r#"{"b":4}"#, r#"{"c":1}"#, r#"{"ab":3}"#],
    );
    check(
        r#"{"type": "array", "prefixItems": [{"type": "integer"}, false], "items": {"type": "null"}}"#,
        &["[]", "[1]"],
        &["[1,null]"],
    );
    check(
        r##"{"allOf": [{"$ref": "#/$defs/x"}, {"required": ["b"]}], "$defs": {"x": {"type": "object",
        "properties": {"a": {"$ref": "#"}, "b": {"type": "integer"}}, "additionalProperties": false}}}"##,
        &[r#"{"a":{"b":1},"b":2}"#],
        &[r#"{"a":{},"b":2}"#],
    );
    for circle in [
        r##"{"$ref": "#"}"##,
        r##"{"allOf": [{"type": "string"}, {"$ref": "#"}]}"##,
        r##"{"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}}"##,
    ] {
        assert!(refusal(circle).contains("no text matches"), "{circle}");
    }
    check(r##"{"anyOf": [{"$ref": "#"}, {"type": "integer"}]}"##, &["1"], &["\"a\"", "[]"]);
    check(
        r##"{"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "integer"}}}"##,
        &["1"],
        &["\"a\""],
    );
    let language = language();
    for (grammar, good) in [
        ("start: \"a\" | x\nx: \"b\" x\n", "a"),
        ("start: x* \"c\"\nx: \"b\" x\n", "c"),
        ("start: \"q\" X b | \"z\"\nX: /a+/\nb: Y \"x\"\nY: /c/ & /d/", "z"),
        ("start: \"v\" %json {\"anyOf\": [{\"type\": \"integer\", \"minimum\": 2, \"maximum\": 1}, {\"const\": 5}]} | %json false", "v5"),
        ("start: %json {\"type\": \"array\", \"items\": {\"const\": 1}} \"!\" %json {\"x-guidance\": {\"whitespace_flexible\": false}, \"const\": \"q\"}", "[1, 1]!\"q\""),
    ] {
        assert!(accepts(&language, Kind::Lark, grammar, good), "{grammar}");
    }
    let opened = DnMatcher::open(&language.vocabulary, Kind::Lark, "start: x\nx: \"b\" x\n");
    assert!(opened.err().is_some_and(|error| error.0.contains("no text matches")));
}

#[test]
fn a_byte_order_mark_is_skipped() {
    check("\u{feff}{\"type\": \"integer\"}", &["1"], &["x"]);
    language().matcher(Kind::Lark, "\u{feff}start: \"a\"");
}

#[test]
fn formats_know_the_calendar() {
    let format = |name: &str, good: &[&str], bad: &[&str]| {
        let schema = json!({"type": "string", "format": name}).to_string();
        let texts = |texts: &[&str]| -> Vec<&'static str> {
            texts.iter().map(|text| &*format!("\"{text}\"").leak()).collect()
        };
        check(&schema, &texts(good), &texts(bad));
    };
    format(
        "date",
        &["2024-02-29", "2000-02-29", "2023-02-28", "1999-12-31"],
        &["2023-02-29", "1900-02-29", "2024-04-31", "2024-13-01", "0000-01-01", "2024-1-1"],
    );
    format(
        "date-time",
        &["2024-02-29T12:00:00Z", "2016-12-31T23:59:60Z", "2017-01-01t00:59:60.5+01:00"],
        &[
            "2023-02-29T12:00:00Z",
            "2016-12-31T22:59:60Z",
            "2016-12-31T23:59:60+01:00",
            "2024-02-28 12:00:00Z",
        ],
    );
    format(
        "time",
        &["23:59:60Z", "12:00:00.25+05:30", "15:59:60-08:00"],
        &["24:00:00Z", "12:00:60Z", "12:00:00"],
    );
    format(
        "ipv6",
        &["::1", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4", "1::", "a::b:c"],
        &["1:2:3:4:5:6:7:8:9", "1::2::3", ":1", "12345::"],
    );
    format("ipv4", &["0.0.0.0", "255.10.1.99"], &["256.0.0.1", "01.2.3.4", "1.2.3"]);
    format("duration", &["P1Y2M3DT4H5M6S", "PT5M", "P4W"], &["P", "P1YT", "PT", "P1W2D"]);
    format(
        "uri",
        &["http://a.b/c?d#e", "mailto:a@b.c", "http://[::1]:80/"],
        &["a/b", "http://a b", "http://a\\\\b"],
    );
    format("email", &["a.b@c.de", "x@[1.2.3.4]"], &["a@", "a..b@c", "@c"]);
    format("time", &["01:29:60+01:30", "00:29:60-23:30"], &["01:30:60+01:30"]);
    format("uri-reference", &["../a?b#c", "http://a/b", "#", "//h/p"], &["a b", "1:b"]);
    format("json-pointer", &["", "/a~0b/c~1"], &["a", "/~2"]);
    format("relative-json-pointer", &["0#", "12/a"], &["01#", "/a"]);
    format(
        "uuid",
        &["123e4567-e89b-12d3-a456-426614174000"],
        &["123e4567e89b12d3a456426614174000"],
    );
    format("hostname", &["a-b.c"], &["-a", "a..b"]);
}

#[test]
fn counts_of_properties() {
    let listed = r#""properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}, "type": "object""#;
    check(
        &format!(r#"{{{listed}, "additionalProperties": false, "minProperties": 2}}"#),
        &[r#"{"a":1,"c":3}"#, r#"{"a":1,"b":2,"c":3}"#],
        &["{}", r#"{"b":2}"#],
    );
    check(
        &format!(r#"{{{listed}, "maxProperties": 1}}"#),
        &["{}", r#"{"c":3}"#, r#"{"x":0}"#],
        &[r#"{"a":1,"b":2}"#, r#"{"a":1,"x":2}"#],
    );
    check(
        &format!(r#"{{{listed}, "required": ["b"], "minProperties": 2}}"#),
        &[r#"{"b":2,"x":0}"#, r#"{"a":1,"b":2}"#],
        &[r#"{"b":2}"#, r#"{"a":1,"c":3}"#],
    );
    check(
        r#"{"type": "object", "minProperties": 1, "maxProperties": 2}"#,
        &[r#"{"x":0}"#, r#"{"x":0,"y":1}"#],
        &["{}", r#"{"x":0,"y":1,"z":2}"#],
    );
    check(
        r#"{"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 30}"#,
        &["[1,1]", &format!("[{}1]", "1,".repeat(29))],
        &["[]", "[1]", &format!("[{}1]", "1,".repeat(30))],
    );
}
