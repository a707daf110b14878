//! Rewrites templates where jinja2 reads them otherwise than minijinja.
//!
//! * `{% generation %}` only marks what the assistant said: a block with a scope of its own and no
//!   variables is the same text. Marks for white space (`{%-`, `-%}`) stay.
//! * After `{% raw %}` jinja2 keeps a newline.
//! * What a loop goes over is passed through `__iter`, which makes a list of a string: minijinja
//!   does not know where a string ends.
//! * A macro's default that names an argument is set where the macro begins.
//! * `a % b` becomes a call of `__mod`, which formats strings. In templates with markup (`|safe`,
//!   `|e`) `a + b` becomes one of `__add`, which escapes what is not.

const LITERALS: [&str; 6] = ["true", "false", "none", "True", "False", "None"];
/// Names that stand between expressions.
const WORDS: [&str; 17] = [
    "if",
    "else",
    "elif",
    "and",
    "or",
    "not",
    "in",
    "is",
    "for",
    "set",
    "do",
    "with",
    "recursive",
    "call",
    "filter",
    "include",
    "import",
];

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Name,
    Value, // a string or a number
    Mark,
}

#[derive(Clone, Copy)]
struct Token<'a> {
    kind: Kind,
    text: &'a str,
}

impl Token<'_> {
    fn is(&self, text: &str) -> bool {
        self.kind != Kind::Value && self.text == text
    }

    fn opens(&self) -> bool {
        self.kind == Kind::Mark && matches!(self.text, "(" | "[" | "{")
    }

    fn closes(&self) -> bool {
        self.kind == Kind::Mark && matches!(self.text, ")" | "]" | "}")
    }

    /// Ends an expression, so that what follows is no sign.
    fn ends(&self) -> bool {
        match self.kind {
            Kind::Value => true,
            Kind::Name => !WORDS.contains(&self.text),
            Kind::Mark => self.closes(),
        }
    }

    fn separates(&self) -> bool {
        match self.kind {
            Kind::Value => false,
            Kind::Name => WORDS.contains(&self.text),
            Kind::Mark => {
                matches!(self.text, "," | ":" | "=" | "==" | "!=" | "<" | "<=" | ">" | ">=")
            }
        }
    }
}

fn is_in_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// None: not what an expression has.
fn tokens(text: &str) -> Option<Vec<Token<'_>>> {
    const DOUBLE: [&str; 6] = ["==", "!=", "<=", ">=", "//", "**"];
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(c) = rest.chars().next() {
        let (kind, size) = if c == '"' || c == '\'' {
            let mut is_escaped = false;
            let end = rest.char_indices().skip(1).find(|&(_, d)| {
                let ends = d == c && !is_escaped;
                is_escaped = d == '\\' && !is_escaped;
                ends
            })?;
            (Kind::Value, end.0 + 1)
        } else if c.is_ascii_digit() {
            let bytes = rest.as_bytes();
            let goes_on = |at: usize| {
                let after_point = bytes.get(at + 1).is_some_and(u8::is_ascii_digit);
                let is_sign =
                    matches!(bytes[at], b'+' | b'-') && matches!(bytes[at - 1], b'e' | b'E');
                bytes[at].is_ascii_alphanumeric()
                    || bytes[at] == b'_'
                    || (bytes[at] == b'.' && after_point)
                    || (is_sign && after_point && !rest.starts_with("0x"))
            };
            (Kind::Value, (1..bytes.len()).find(|&at| !goes_on(at)).unwrap_or(bytes.len()))
        } else if is_in_name(c) {
            (Kind::Name, rest.find(|c| !is_in_name(c)).unwrap_or(rest.len()))
        } else if DOUBLE.iter().any(|mark| rest.starts_with(mark)) {
            (Kind::Mark, 2)
        } else if "()[]{}|.,:=<>+-*/%~".contains(c) {
            (Kind::Mark, 1)
        } else {
            return None;
        };
        tokens.push(Token { kind, text: &rest[..size] });
        rest = rest[size..].trim_start();
    }
    Some(tokens)
}

/// Calls `found` with the place of each token that is in no brackets. None: they do not match.
fn at_top<'a>(tokens: &[Token<'a>], mut found: impl FnMut(usize, Token<'a>)) -> Option<()> {
    let mut depth = 0usize;
    for (at, &token) in tokens.iter().enumerate() {
        if token.closes() {
            depth = depth.checked_sub(1)?;
        }
        if depth == 0 {
            found(at, token);
        }
        depth += usize::from(token.opens());
    }
    (depth == 0).then_some(())
}

/// Which operators become calls.
#[derive(Clone, Copy)]
struct Calls {
    add: bool,
}

impl Calls {
    fn of(self, operator: &str) -> Option<&'static str> {
        match operator {
            "%" => Some("__mod"),
            "+" if self.add => Some("__add"),
            _ => None,
        }
    }

    fn are_in(self, tokens: &[Token]) -> bool {
        tokens.windows(2).any(|pair| {
            pair[0].ends() && pair[1].kind == Kind::Mark && self.of(pair[1].text).is_some()
        })
    }

    /// Expressions with words and commas between.
    fn all(self, tokens: &[Token]) -> Option<String> {
        let mut places = Vec::new();
        at_top(tokens, |at, token| {
            if token.separates() {
                places.push(at);
            }
        })?;
        let mut out = String::new();
        let mut from = 0;
        for at in places {
            out += &self.sum(&tokens[from..at], 0)?;
            out += tokens[at].text;
            out.push(' ');
            from = at + 1;
        }
        Some(out + &self.sum(&tokens[from..], 0)?)
    }

    /// One expression, from the operators that bind least on.
    fn sum(self, tokens: &[Token], level: usize) -> Option<String> {
        const LEVELS: [&[&str]; 3] = [&["+", "-"], &["~"], &["*", "/", "//", "%"]];
        let Some(operators) = LEVELS.get(level) else { return self.operand(tokens) };
        let mut last = None;
        at_top(tokens, |at, token| {
            let is_operator = token.kind == Kind::Mark && operators.contains(&token.text);
            if is_operator && at > 0 && tokens[at - 1].ends() {
                last = Some(at);
            }
        })?;
        let Some(at) = last else { return self.sum(tokens, level + 1) };
        let left = self.sum(&tokens[..at], level)?;
        let right = self.sum(&tokens[at + 1..], level + 1)?;
        Some(match self.of(tokens[at].text) {
            Some(name) => format!("{name}({left}, {right}) "),
            None => format!("{left}{} {right}", tokens[at].text),
        })
    }

    fn operand(self, tokens: &[Token]) -> Option<String> {
        let mut out = String::new();
        let mut open = 0;
        let mut places = Vec::new();
        at_top(tokens, |at, token| {
            if token.opens() || token.closes() {
                places.push(at);
            }
        })?;
        for pair in places.chunks(2) {
            let [begin, end] = *pair else { return None };
            for token in &tokens[open..=begin] {
                out += token.text;
                out.push(' ');
            }
            out += &self.all(&tokens[begin + 1..end])?;
            open = end;
        }
        for token in &tokens[open..] {
            out += token.text;
            out.push(' ');
        }
        Some(out)
    }
}

fn texts(tokens: &[Token]) -> String {
    tokens.iter().map(|token| token.text).collect::<Vec<_>>().join(" ")
}

/// `for x in y if z`, with y passed through `__iter`.
fn rewrite_for(tokens: &[Token], calls: Calls) -> Option<String> {
    let (mut begin, mut end, mut has_comma) = (None, tokens.len(), false);
    at_top(tokens, |at, token| {
        if token.is("in") && begin.is_none() {
            begin = Some(at + 1);
        } else if begin.is_some() && end == tokens.len() {
            if token.is("if") || (token.is("recursive") && at + 1 == tokens.len()) {
                end = at;
            }
            has_comma |= token.is(",");
        }
    })?;
    let begin = begin?;
    let over = calls.all(&tokens[begin..end])?;
    let over = if has_comma { format!("({over})") } else { over };
    let (targets, rest) = (texts(&tokens[..begin]), calls.all(&tokens[end..])?);
    Some(format!("{targets} __iter({over}) {rest}"))
}

/// A macro's head, and the tags that set its arguments.
fn rewrite_macro(tokens: &[Token], calls: Calls) -> Option<(String, Vec<String>)> {
    let [_, _, open, parameters @ .., close] = tokens else { return None };
    if !open.is("(") || !close.is(")") {
        return None;
    }
    let mut commas = Vec::new();
    at_top(parameters, |at, token| {
        if token.is(",") {
            commas.push(at);
        }
    })?;
    commas.push(parameters.len());
    let (mut kept, mut sets, mut from) = (Vec::new(), Vec::new(), 0);
    for at in commas {
        let parameter = &parameters[from..at];
        from = (at + 1).min(parameters.len());
        match parameter {
            [name, equals, default @ ..] if equals.is("=") => {
                let is_plain = |token: &Token| match token.kind {
                    Kind::Name => LITERALS.contains(&token.text),
                    _ => true,
                };
                let name = name.text;
                let value = calls.all(default)?;
                if default.iter().all(is_plain) {
                    kept.push(format!("{name} = {value}"));
                } else {
                    kept.push(format!("{name} = __missing"));
                    sets.push(format!("set {name} = ({value}) if {name} is undefined else {name}"));
                }
            }
            _ => kept.push(texts(parameter)),
        }
    }
    Some((format!("{} {} ({})", tokens[0].text, tokens[1].text, kept.join(", ")), sets))
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

/// Whether a filter is used that makes markup.
fn has_markup(source: &str) -> bool {
    source.split('|').skip(1).any(|rest| {
        let name = rest.trim_start().split(|c| !is_in_name(c)).next();
        matches!(name, Some("safe" | "e" | "escape" | "forceescape"))
    })
}

/// What stands between `{{` or `{%` and the end, with marks for white space. None: as it is.
fn rewrite_construct(construct: &str, calls: Calls) -> Option<String> {
    let (open, inner) = construct.split_at(2);
    let (inner, close) = inner.split_at(inner.len() - 2);
    let marks = ['+', '-'];
    let begin = inner.find(|c| !marks.contains(&c)).filter(|&at| at <= 1)?;
    let end = inner.len() - usize::from(inner.ends_with(marks));
    let (before, after) = (&inner[..begin], &inner[end.max(begin)..]);
    let tokens = tokens(&inner[begin..end.max(begin)])?;
    let is_tag = open == "{%";
    let first = tokens.first().filter(|_| is_tag).map_or("", |token| token.text);
    let rewritten = match first {
        "for" => rewrite_for(&tokens, calls)?,
        "macro" => {
            let (head, sets) = rewrite_macro(&tokens, calls)?;
            std::iter::once(head).chain(sets).collect::<Vec<_>>().join(" %}{% ")
        }
        _ if calls.are_in(&tokens) => calls.all(&tokens)?,
        _ => return None,
    };
    Some(format!("{open}{before} {rewritten} {after}{close}"))
}

pub fn rewrite(source: &str) -> String {
    let calls = Calls { add: has_markup(source) };
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut in_raw = false;
    while let Some(start) = rest.find('{') {
        let (before, construct) = rest.split_at(start);
        out.push_str(before);
        let is_tag = construct.starts_with("{%");
        let is_comment = construct.starts_with("{#");
        let is_other = construct.starts_with("{{") || is_comment;
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
            _ if in_raw || is_comment || end < 4 => out.push_str(tag),
            _ => match rewrite_construct(tag, calls) {
                Some(rewritten) => {
                    // Errors name lines: those of the tag stay as many.
                    let lines =
                        tag.matches('\n').count().saturating_sub(rewritten.matches('\n').count());
                    let close = rewritten.len() - 2;
                    out.push_str(rewritten[..close].trim_end_matches(marks));
                    out.push_str(&"\n".repeat(lines));
                    out.push_str(&rewritten[rewritten[..close].trim_end_matches(marks).len()..]);
                }
                None => out.push_str(tag),
            },
        }
        if is_tag {
            in_raw = if in_raw { name != "endraw" } else { name == "raw" };
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_no_change_stays() {
        for source in [
            "{% generation",
            "{{ a + b }}",
            "{{ 'a % b' }}",
            "{# a % b #}",
            "{% raw +%}{{ a % b }}",
            "{%- if a -%} x % y {%- endif %}",
            "{",
            "{}",
            "{{}}",
            "{%%}",
            "{{ a ? b % c }}",
            "{{ '%' ~ x }}",
            "{{ (a % b }}",
            "{% for x %}",
            "{% macro m %}",
        ] {
            assert_eq!(rewrite(source), source);
        }
    }

    #[test]
    fn operators_become_calls_as_they_bind() {
        let expression = |text: &str| {
            let out = rewrite(&format!("{{{{ {text} }}}}"));
            out[2..out.len() - 2].split_whitespace().collect::<String>()
        };
        assert_eq!(expression("1 + a.b|f(x % 2) % -3 * c"), "1+__mod(a.b|f(__mod(x,2)),-3)*c");
        assert_eq!(
            expression("a if b % 2 == 0 else {'k': [c % d]}"),
            "aif__mod(b,2)==0else{'k':[__mod(c,d)]}"
        );
        assert_eq!(expression("'x'|safe + a + b"), "__add(__add('x'|safe,a),b)");
        assert_eq!(expression("'%s' % (a, b)"), "__mod('%s',(a,b))");
    }
}
