//! Chat templates: Jinja as Hugging Face transformers runs it.
//!
//! transformers uses jinja2's sandbox with `trim_blocks`, `lstrip_blocks`, `break`/`continue`, the
//! tag `{% generation %}`, its own `tojson`, `raise_exception` and `strftime_now`. The environment
//! built here behaves the same, byte for byte, on the goldens of tests/text.

use crate::ffi::{guard, text, Buffer, Result, Status, OK};
use crate::rewrite::rewrite;
use crate::{json, markup, python};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
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

/// One method for many names, each with a function of its own type.
macro_rules! add {
    ($env:ident.$add:ident: { $($name:literal: $function:expr,)* }) => {
        $($env.$add($name, $function);)*
    };
}

impl DnTemplate {
    pub fn open(source: &str) -> Result<Self> {
        let mut env = Environment::new();
        env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_fuel(Some(MAX_FUEL));
        env.set_unknown_method_callback(python::method);
        env.set_formatter(|out, _, value| Ok(out.write_str(&python::to_str(value)?)?));
        add!(env.add_filter: {
            "string": markup::string,
            "tojson": json::tojson,
            "trim": trim,
            "replace": python::replace,
            "default": python::default,
            "d": python::default,
            "int": python::int,
            "float": python::float,
            "escape": markup::escape,
            "e": markup::escape,
            "forceescape": markup::force_escape,
            "safe": markup::safe,
            "indent": markup::indent,
            "truncate": markup::truncate,
            "center": markup::center,
            "wordcount": markup::wordcount,
            "length": length,
            "count": length,
        });
        add!(env.add_test: {
            "sequence": is_sequence,
            "iterable": is_iterable,
            "callable": is_callable,
            "number": |value: &Value| json::is_number(value),
            "integer": |value: &Value| json::is_integer(value),
        });
        add!(env.add_function: {
            "__iter": markup::iter,
            "__add": markup::add,
            "__mod": markup::modulo,
            "raise_exception": raise_exception,
            "strftime_now": python::strftime_now,
        });
        let source = source.replace("\r\n", "\n").replace('\r', "\n"); // as jinja2's lexer does
        env.add_template_owned(NAME, rewrite(&source)).map_err(|error| describe(&error))?;
        Ok(DnTemplate(env))
    }

    pub fn render(&self, context_json: &str) -> Result<String> {
        let context = json::parse(context_json)?;
        let rendered = self.0.get_template(NAME)?.render(context);
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
    fn small_templates_render_as_in_jinja2_or_are_refused() {
        // What minijinja has not, or not so: each fails, and none renders otherwise.
        const REFUSED: [&str; 11] = [
            "urlencode",
            "cycler",
            "lipsum",
            "varargs",
            "range(3) }}",
            "swapcase",
            "rjust",
            "0x1f",
            "{:>5}",
            "break_",
            "** -1",
        ];
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/text/jinja.json");
        let file = std::fs::read_to_string(path).unwrap();
        let data: serde_json::Value = serde_json::from_str(&file).unwrap();
        let begin = file.find("\"context\": ").unwrap() + "\"context\": ".len();
        let end = file.find("\"cases\"").unwrap();
        let context = file[begin..end].trim_end().trim_end_matches(','); // with all digits
        let context = json::marked(context.as_bytes());
        let context = std::str::from_utf8(&context).unwrap();
        let mut wrong = Vec::new();
        for case in data["cases"].as_array().unwrap() {
            let source = case["template"].as_str().unwrap();
            let rendered = DnTemplate::open(source).and_then(|template| template.render(context));
            let rendered = rendered.map_err(|error| error.0);
            let may_fail = REFUSED.iter().any(|part| source.contains(part));
            match &rendered {
                Ok(text) if Some(text.as_str()) == case["text"].as_str() => {}
                Err(_) if may_fail => {}
                _ => wrong.push(format!("{source}\n  {rendered:?}\n  {}", case["text"])),
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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
