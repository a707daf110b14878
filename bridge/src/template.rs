//! Chat templates: Jinja as Hugging Face transformers runs it.
//!
//! transformers uses jinja2's sandbox with `trim_blocks`, `lstrip_blocks`, `break`/`continue`, the
//! tag `{% generation %}`, its own `tojson`, `raise_exception` and `strftime_now`. The environment
//! built here behaves the same, byte for byte, on the goldens of tests/text.

use crate::ffi::{guard, text, Buffer, Result, Status, OK};
use crate::{json, python};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error};
use std::ffi::c_char;

/// Instructions that one rendering may take: a conversation of 10,000 messages needs some 10
/// million, an endless loop is stopped within seconds.
const MAX_FUEL: u64 = 50_000_000;
const NAME: &str = "chat_template";

/// `dn_template`
pub struct DnTemplate(Environment<'static>);

/// Python's `len`, and jinja2's 0 for undefined.
fn length(value: &Value) -> std::result::Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    value
        .len()
        .ok_or_else(|| python::invalid(format!("object of type {} has no len()", value.kind())))
}

/// jinja2's test: it has a length and can be indexed.
fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map
    )
}

/// `tools is iterable` must be false for None: transformers passes `tools=None` when there are
/// none.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

fn is_callable(value: &Value) -> bool {
    value.kind() == ValueKind::Plain
}

fn trim(value: &Value, chars: Option<&str>) -> std::result::Result<String, Error> {
    Ok(python::strip(&python::to_str(value)?, chars, true, true).to_owned())
}

fn raise_exception(message: &Value) -> std::result::Result<Value, Error> {
    Err(python::invalid(message.to_string()))
}

/// Where the construct that `rest` starts with (`{{`, `{%` or `{#`) ends, if it does. Closing marks
/// inside string literals do not count.
fn construct_end(rest: &str) -> Option<usize> {
    let close = match rest.as_bytes().get(1)? {
        b'{' => "}}",
        b'%' => "%}",
        _ => return rest.find("#}").map(|at| at + 2),
    };
    let mut quote = None;
    let mut is_escaped = false;
    for (at, c) in rest.char_indices().skip(2) {
        match quote {
            _ if is_escaped => is_escaped = false,
            Some(_) if c == '\\' => is_escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None if rest[at..].starts_with(close) => return Some(at + 2),
            None => {}
        }
    }
    None
}

/// Rewrites the tags in which jinja2 and minijinja differ.
/// * `{% generation %}` only marks what the assistant said: a block with a scope of its own and no
///   variables is the same text. Marks for white space (`{%-`, `-%}`) stay.
/// * After `{% raw %}` jinja2 keeps a newline.
fn rewrite_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut in_raw = false;
    while let Some(start) = rest.find('{') {
        let (before, construct) = rest.split_at(start);
        out.push_str(before);
        let is_tag = construct.starts_with("{%");
        let is_other = construct.starts_with("{{") || construct.starts_with("{#");
        let end = match () {
            () if is_tag || (is_other && !in_raw) => construct_end(construct),
            () => Some(1), // a brace in the text
        };
        let Some(end) = end else {
            rest = construct; // never closed: minijinja will say so
            break;
        };
        let (tag, tail) = construct.split_at(end);
        rest = tail;
        let inner = tag.trim_start_matches("{%").trim_end_matches("%}");
        let marks = ['+', '-'];
        let name = inner.trim_matches(marks).trim();
        match name {
            "raw" if is_tag && !in_raw && !inner.ends_with(marks) => {
                out.push_str(tag.trim_end_matches("%}"));
                out.push_str("+%}");
            }
            "generation" if is_tag && !in_raw => out.push_str(&tag.replacen(name, "with", 1)),
            "endgeneration" if is_tag && !in_raw => out.push_str(&tag.replacen(name, "endwith", 1)),
            _ => out.push_str(tag),
        }
        if is_tag {
            in_raw = if in_raw { name != "endraw" } else { name == "raw" };
        }
    }
    out.push_str(rest);
    out
}

/// What went wrong and where, on one line.
fn describe(error: &Error) -> String {
    use std::error::Error as _;
    let mut message = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let mut source = error.source();
    while let Some(inner) = source {
        message.push_str(&format!(": {inner}"));
        source = inner.source();
    }
    match error.line() {
        Some(line) => format!("line {line} of the chat template: {message}"),
        None => format!("chat template: {message}"),
    }
}

impl DnTemplate {
    pub fn open(source: &str) -> Result<Self> {
        let mut env = Environment::new();
        env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_fuel(Some(MAX_FUEL));
        env.set_unknown_method_callback(python::method);
        env.set_formatter(|out, _, value| Ok(out.write_str(&python::to_str(value)?)?));
        env.add_filter("string", |value: &Value| python::to_str(value));
        env.add_filter("tojson", json::tojson);
        env.add_filter("trim", trim);
        env.add_filter("replace", python::replace);
        env.add_filter("default", python::default);
        env.add_filter("d", python::default);
        env.add_filter("int", python::int);
        env.add_filter("float", python::float);
        env.add_filter("escape", python::escape);
        env.add_filter("e", python::escape);
        env.add_filter("length", length);
        env.add_filter("count", length);
        env.add_test("sequence", is_sequence);
        env.add_test("iterable", is_iterable);
        env.add_test("callable", is_callable);
        env.add_function("raise_exception", raise_exception);
        env.add_function("strftime_now", python::strftime_now);
        let source = source.replace("\r\n", "\n").replace('\r', "\n"); // as jinja2's lexer does
        env.add_template_owned(NAME, rewrite_tags(&source)).map_err(|error| describe(&error))?;
        Ok(DnTemplate(env))
    }

    pub fn render(&self, context_json: &str) -> Result<String> {
        let context: serde_json::Value = serde_json::from_str(context_json)?;
        let rendered = self.0.get_template(NAME)?.render(Value::from(Serde(&context)));
        Ok(rendered.map_err(|error| describe(&error))?)
    }
}

/// # Safety
/// Pointers as the header demands.
#[no_mangle]
pub unsafe extern "C" fn dn_template_open(
    source: *const c_char,
    size: usize,
    out: *mut *mut DnTemplate,
) -> Status {
    guard(|| {
        *out = Box::into_raw(Box::new(DnTemplate::open(text(source, size)?)?));
        Ok(OK)
    })
}

/// # Safety
/// `chat_template` is null or open, and not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn dn_template_free(chat_template: *mut DnTemplate) {
    if !chat_template.is_null() {
        guard(|| {
            drop(Box::from_raw(chat_template));
            Ok(OK)
        });
    }
}

/// # Safety
/// Pointers as the header demands.
#[no_mangle]
pub unsafe extern "C" fn dn_template_render(
    chat_template: *const DnTemplate,
    context_json: *const c_char,
    size: usize,
    out: *mut Buffer,
) -> Status {
    guard(|| {
        *out = (*chat_template).render(text(context_json, size)?)?.into();
        Ok(OK)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, context: &str) -> String {
        DnTemplate::open(source).unwrap().render(context).unwrap()
    }

    #[test]
    fn none_is_not_iterable_and_undefined_has_length_zero() {
        assert_eq!(
            render("{{ tools is iterable }} {{ nothing|length }}", r#"{"tools": null}"#),
            "False 0"
        );
    }

    #[test]
    fn generation_tags_keep_their_whitespace_marks() {
        let source = "a\n{%- generation -%}\n b {%- endgeneration %}\nc\
                      {% generation %}\nd{% endgeneration %}";
        assert_eq!(render(source, "{}"), "abcd");
        assert_eq!(rewrite_tags("{% generation"), "{% generation");
    }

    #[test]
    fn tojson_takes_pythons_options() {
        let context = r#"{"x": {"b": [1, 2.0, "é\u0007"], "a": {}}}"#;
        assert_eq!(render("{{ x|tojson }}", context), "{\"b\": [1, 2.0, \"é\\u0007\"], \"a\": {}}");
        assert_eq!(
            render("{{ x|tojson(True) }}", context),
            "{\"b\": [1, 2.0, \"\\u00e9\\u0007\"], \"a\": {}}"
        );
        let indented = "{\n \"a\": {},\n \"b\": [\n  1,\n  2.0,\n  \"é\\u0007\"\n ]\n}";
        assert_eq!(render("{{ x|tojson(indent=1, sort_keys=true) }}", context), indented);
        assert_eq!(
            render("{{ x.b|tojson(separators=(',', ':')) }}", context),
            "[1,2.0,\"é\\u0007\"]"
        );
    }

    #[test]
    fn errors_say_what_and_where() {
        let error = DnTemplate::open("{% if %}").err().unwrap().0;
        assert!(error.contains("line 1"), "{error}");
        let template =
            DnTemplate::open("x\n{{ raise_exception('roles must alternate') }}").unwrap();
        assert_eq!(
            template.render("{}").unwrap_err().0,
            "line 2 of the chat template: roles must alternate"
        );
    }

    #[test]
    fn endless_templates_are_stopped() {
        let source =
            "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}\
                      {% endfor %}{% endfor %}{% endfor %}";
        assert!(DnTemplate::open(source).unwrap().render("{}").is_err());
    }
}
