//! Patterns by the grammar of ECMA-262, as JSON Schema means them: with the flag u where a pattern
//! is one so, else without it, by the rules that browsers keep for old patterns (annex B).

use super::unicode::{self, Set};
use crate::ffi::{BridgeError, Result};

/// Nested groups: what comes after works by recursion.
const MAX_DEPTH: usize = 200;

#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    Class(Set),
    Concat(Vec<Node>),
    Or(Vec<Node>),
    /// None: without an end.
    Repeat(Box<Node>, u32, Option<u32>),
    Start,
    End,
}

enum Failure {
    /// No pattern under these rules.
    Syntax(String),
    /// A pattern, and more than a regular expression.
    Unsupported(String),
}

type Parsed<T> = std::result::Result<T, Failure>;

fn syntax<T>(what: impl Into<String>) -> Parsed<T> {
    Err(Failure::Syntax(what.into()))
}

pub fn parse(pattern: &str) -> Result<Node> {
    let refused = |failure| match failure {
        Failure::Syntax(what) | Failure::Unsupported(what) => BridgeError(what),
    };
    match Parser::new(pattern, true).pattern() {
        Err(Failure::Syntax(first)) => match Parser::new(pattern, false).pattern() {
            Err(Failure::Syntax(_)) => Err(BridgeError(first)),
            other => other.map_err(refused),
        },
        other => other.map_err(refused),
    }
}

struct Parser {
    text: Vec<char>,
    at: usize,
    unicode: bool,
    groups: u32, // that capture, in the whole pattern
    has_names: bool,
    depth: usize,
}

impl Parser {
    fn new(pattern: &str, unicode: bool) -> Self {
        let text: Vec<char> = pattern.chars().collect();
        let (mut groups, mut has_names, mut in_class) = (0, false, false);
        let mut at = 0;
        while at < text.len() {
            match text[at] {
                '\\' => at += 1,
                '[' => in_class = true,
                ']' => in_class = false,
                '(' if !in_class => {
                    let is_named = text[at..].starts_with(&['(', '?', '<'])
                        && !matches!(text.get(at + 3), Some('=' | '!'));
                    has_names |= is_named;
                    groups += u32::from(is_named || text.get(at + 1) != Some(&'?'));
                }
                _ => {}
            }
            at += 1;
        }
        Parser { text, at: 0, unicode, groups, has_names, depth: 0 }
    }

    fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    fn takes(&mut self, text: &str) -> bool {
        let is_next = text.chars().enumerate().all(|(i, c)| self.text.get(self.at + i) == Some(&c));
        if is_next {
            self.at += text.chars().count();
        }
        is_next
    }

    fn pattern(mut self) -> Parsed<Node> {
        let node = self.disjunction()?;
        match self.peek() {
            None => Ok(node),
            Some(_) => syntax("got a ) that closes nothing"),
        }
    }

    fn disjunction(&mut self) -> Parsed<Node> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Failure::Unsupported(format!("got more than {MAX_DEPTH} nested groups")));
        }
        let mut options = vec![self.alternative()?];
        while self.takes("|") {
            options.push(self.alternative()?);
        }
        self.depth -= 1;
        Ok(if options.len() == 1 { options.swap_remove(0) } else { Node::Or(options) })
    }

    fn alternative(&mut self) -> Parsed<Node> {
        let mut terms = Vec::new();
        while let Some(c) = self.peek() {
            if c == '|' || c == ')' {
                break;
            }
            terms.push(self.term()?);
        }
        Ok(if terms.len() == 1 { terms.swap_remove(0) } else { Node::Concat(terms) })
    }

    fn term(&mut self) -> Parsed<Node> {
        if self.takes("^") {
            return Ok(Node::Start);
        }
        if self.takes("$") {
            return Ok(Node::End);
        }
        for (text, what) in [
            ("(?=", "look-ahead"),
            ("(?!", "look-ahead"),
            ("(?<=", "look-behind"),
            ("(?<!", "look-behind"),
        ] {
            if self.takes(text) {
                return Err(Failure::Unsupported(format!("got {what} {text}...), expected none")));
            }
        }
        if self.takes("\\b") || self.takes("\\B") {
            let got = "got a border of words (\\b or \\B), expected none";
            return Err(Failure::Unsupported(got.into()));
        }
        let atom = self.atom()?;
        self.quantified(atom)
    }

    fn quantified(&mut self, atom: Node) -> Parsed<Node> {
        let bounds = match self.peek() {
            Some('*') => Some((0, None)),
            Some('+') => Some((1, None)),
            Some('?') => Some((0, Some(1))),
            _ => None,
        };
        let (least, most) = match bounds {
            Some(bounds) => {
                self.at += 1;
                bounds
            }
            None => match self.braces()? {
                Some(bounds) => bounds,
                None => return Ok(self.in_units(atom)),
            },
        };
        self.takes("?"); // as few as can be: the same texts
        if most.is_some_and(|most| most < least) {
            return syntax("got numbers out of order in {}");
        }
        // Without the flag u a character above U+FFFF counts as two: any number of those is the same.
        let atom = if least <= 1 && most.is_none() { atom } else { self.in_units(atom) };
        Ok(Node::Repeat(Box::new(atom), least, most))
    }

    /// Without the flag u, what matches one unit of UTF-16 does not match a character of two.
    fn in_units(&self, atom: Node) -> Node {
        match atom {
            Node::Class(set) if !self.unicode && set.has_all_above_ffff() => {
                Node::Class(set.up_to_ffff())
            }
            other => other,
        }
    }

    /// {1}, {1,} or {1,2}; none where there is none.
    fn braces(&mut self) -> Parsed<Option<(u32, Option<u32>)>> {
        let start = self.at;
        if !self.takes("{") {
            return Ok(None);
        }
        let least = self.number();
        let most = match (least, self.takes(",")) {
            (Some(least), false) => Some(Some(least)),
            (Some(_), true) => Some(self.number()),
            (None, _) => None,
        };
        if let (Some(least), Some(most), true) = (least, most, self.takes("}")) {
            return Ok(Some((least, most)));
        }
        if self.unicode {
            return syntax("got a { that repeats nothing, expected \\{");
        }
        self.at = start;
        Ok(None)
    }

    fn number(&mut self) -> Option<u32> {
        let start = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        let digits: String = self.text[start..self.at].iter().collect();
        // More than any text has.
        (!digits.is_empty()).then(|| digits.parse().unwrap_or(u32::MAX - 1).min(u32::MAX - 1))
    }

    fn atom(&mut self) -> Parsed<Node> {
        let start = self.at;
        let Some(c) = self.peek() else { return syntax("got an end, expected something") };
        self.at += 1;
        match c {
            '.' => Ok(Node::Class(unicode::dot())),
            '(' => {
                if self.takes("?<") {
                    self.name()?;
                } else if self.takes("?") && !self.takes(":") {
                    return syntax(
                        "got (? and no :, < or look-around, expected one: flags have no place",
                    );
                }
                let inner = self.disjunction()?;
                match self.takes(")") {
                    true => Ok(inner),
                    false => syntax("got a ( that nothing closes"),
                }
            }
            '[' => Ok(Node::Class(self.class()?)),
            '\\' => self.escape(),
            '*' | '+' | '?' => syntax(format!("got a {c} that repeats nothing")),
            '{' | '}' | ']' if self.unicode => syntax(format!("got a {c}, expected \\{c}")),
            '{' => {
                self.at = start;
                match self.braces()? {
                    Some(_) => syntax("got a { that repeats nothing"),
                    None => {
                        self.at += 1;
                        Ok(Node::Class(Set::of(c)))
                    }
                }
            }
            c => Ok(Node::Class(Set::of(c))),
        }
    }

    fn name(&mut self) -> Parsed<()> {
        let start = self.at;
        while self.peek().is_some_and(|c| c == '_' || c == '$' || c.is_alphanumeric()) {
            self.at += 1;
        }
        let starts = self.text.get(start).is_some_and(|c| !c.is_ascii_digit());
        match starts && self.at > start && self.takes(">") {
            true => Ok(()),
            false => syntax("got (?< and no name with a >, expected one"),
        }
    }

    /// After a backslash, outside of a class.
    fn escape(&mut self) -> Parsed<Node> {
        let Some(c) = self.peek() else { return syntax("got a backslash at the end") };
        if c == 'k' && (self.unicode || self.has_names) {
            return Err(Failure::Unsupported("got a back-reference (\\k), expected none".into()));
        }
        if matches!(c, '1'..='9') {
            let start = self.at;
            let number = self.number().unwrap_or(0);
            self.at = start;
            if number <= self.groups {
                let got = format!("got a back-reference (\\{number}), expected none");
                return Err(Failure::Unsupported(got));
            }
            if self.unicode {
                return syntax(format!("got \\{number} and {} groups", self.groups));
            }
        }
        Ok(Node::Class(self.escaped(false)?))
    }

    /// A class or a character after a backslash.
    fn escaped(&mut self, in_class: bool) -> Parsed<Set> {
        let Some(c) = self.peek() else { return syntax("got a backslash at the end") };
        self.at += 1;
        let class = match c {
            'd' | 'D' => Some(unicode::digits()),
            'w' | 'W' => Some(unicode::words()),
            's' | 'S' => Some(unicode::spaces()),
            'p' | 'P' if self.unicode => Some(self.property()?),
            _ => None,
        };
        if let Some(class) = class {
            return Ok(if c.is_ascii_uppercase() { class.inverted() } else { class });
        }
        let next = self.peek();
        Ok(Set::of(match c {
            't' => '\t',
            'n' => '\n',
            'v' => '\u{b}',
            'f' => '\u{c}',
            'r' => '\r',
            'b' if in_class => '\u{8}',
            '-' if in_class && self.unicode => '-',
            'c' => match next {
                Some(letter) if letter.is_ascii_alphabetic() => self.control(letter),
                Some(letter @ ('0'..='9' | '_')) if in_class && !self.unicode => {
                    self.control(letter)
                }
                _ if self.unicode => return syntax("got \\c without a letter"),
                _ => {
                    self.at -= 1; // the c stands for itself
                    '\\'
                }
            },
            '0' if !next.is_some_and(|c| c.is_ascii_digit()) => '\0',
            '0'..='7' if !self.unicode => self.octal(c),
            'x' => match self.hex(2) {
                Some(code) => char::from(code as u8),
                None if self.unicode => return syntax("got \\x without two hexadecimal digits"),
                None => 'x',
            },
            'u' => return self.code(),
            c if "^$\\.*+?()[]{}|/".contains(c) => c,
            c if self.unicode => return syntax(format!("got \\{c}, which means nothing")),
            c => c,
        }))
    }

    fn control(&mut self, letter: char) -> char {
        self.at += 1;
        char::from(letter as u8 % 32)
    }

    fn octal(&mut self, first: char) -> char {
        let mut code = first as u32 - '0' as u32;
        for _ in 0..2 {
            match self.peek().and_then(|c| c.to_digit(8)) {
                Some(digit) if code * 8 + digit <= 0o377 => {
                    code = code * 8 + digit;
                    self.at += 1;
                }
                _ => break,
            }
        }
        char::from(code as u8)
    }

    fn hex(&mut self, size: usize) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + size)?;
        let code = digits.iter().try_fold(0, |code, c| Some(code * 16 + c.to_digit(16)?))?;
        self.at += size;
        Some(code)
    }

    /// After \u.
    fn code(&mut self) -> Parsed<Set> {
        if self.unicode && self.takes("{") {
            let start = self.at;
            while self.peek().is_some_and(|c| c.is_ascii_hexdigit()) {
                self.at += 1;
            }
            let digits: String = self.text[start..self.at].iter().collect();
            let code = u32::from_str_radix(digits.trim_start_matches('0'), 16).unwrap_or(0);
            let is_whole = !digits.is_empty() && digits.trim_start_matches('0').len() <= 6;
            return match is_whole && code <= 0x10ffff && self.takes("}") {
                true => Ok(Set::range(code, code)),
                false => syntax("got \\u{ and no code point with a }"),
            };
        }
        let Some(code) = self.hex(4) else {
            return match self.unicode {
                true => syntax("got \\u without four hexadecimal digits"),
                false => Ok(Set::of('u')),
            };
        };
        if (0xd800..0xdc00).contains(&code) {
            let start = self.at;
            if self.takes("\\u") {
                if let Some(low @ 0xdc00..=0xdfff) = self.hex(4) {
                    let pair = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                    return Ok(Set::range(pair, pair));
                }
            }
            self.at = start;
        }
        Ok(Set::range(code, code)) // no text has half a pair: a set of nothing
    }

    /// After \p.
    fn property(&mut self) -> Parsed<Set> {
        if !self.takes("{") {
            return syntax("got \\p without {");
        }
        let start = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_' || c == '=') {
            self.at += 1;
        }
        let name: String = self.text[start..self.at].iter().collect();
        let found = if self.takes("}") { unicode::property(&name) } else { None };
        // Without the flag u this would be "p{...}", which nobody means.
        found.ok_or_else(|| Failure::Unsupported(format!("got \\p{{{name}}}, expected a property")))
    }

    /// After [.
    fn class(&mut self) -> Parsed<Set> {
        let is_inverted = self.takes("^");
        let mut set = Set::default();
        loop {
            let Some(c) = self.peek() else { return syntax("got a [ that nothing closes") };
            if c == ']' {
                self.at += 1;
                return Ok(if is_inverted { set.inverted() } else { set });
            }
            let first = self.class_atom()?;
            let is_range =
                self.peek() == Some('-') && self.text.get(self.at + 1).is_some_and(|&c| c != ']');
            if !is_range {
                set = set.with(&first);
                continue;
            }
            self.at += 1;
            let last = self.class_atom()?;
            match (first.single(), last.single()) {
                (Some(first), Some(last)) if first <= last => {
                    set = set.with(&Set::range(first, last));
                }
                (Some(_), Some(_)) => return syntax("got a range out of order in a class"),
                _ if self.unicode => return syntax("got a range to or from a class"),
                _ => set = set.with(&first).with(&last).with(&Set::of('-')),
            }
        }
    }

    fn class_atom(&mut self) -> Parsed<Set> {
        let Some(c) = self.peek() else { return syntax("got a [ that nothing closes") };
        self.at += 1;
        match c {
            '\\' if self.peek() == Some('B') && self.unicode => syntax("got \\B in a class"),
            '\\' => self.escaped(true),
            c => Ok(Set::of(c)),
        }
    }
}
