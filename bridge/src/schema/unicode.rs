//! Sets of characters, and those that ECMA-262 names.

use regex_syntax::hir::{Class, HirKind};

const LAST: u32 = 0x10ffff;

/// Ranges of code points, in order and apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Set(Vec<(u32, u32)>);

impl Set {
    pub fn of(c: char) -> Self {
        Set::range(c.into(), c.into())
    }

    pub fn range(first: u32, last: u32) -> Self {
        Set(vec![(first, last)])
    }

    fn ranges(ranges: &[(u32, u32)]) -> Self {
        Set(ranges.to_vec()).in_order()
    }

    fn in_order(mut self) -> Self {
        self.0.sort_unstable();
        let mut kept: Vec<(u32, u32)> = Vec::with_capacity(self.0.len());
        for (first, last) in self.0 {
            match kept.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => {
                    before.1 = before.1.max(last);
                }
                _ => kept.push((first, last)),
            }
        }
        Set(kept)
    }

    pub fn with(mut self, other: &Set) -> Self {
        self.0.extend(&other.0);
        self.in_order()
    }

    pub fn inverted(&self) -> Self {
        let mut kept = Vec::new();
        let mut next = 0;
        for &(first, last) in &self.0 {
            if first > next {
                kept.push((next, first - 1));
            }
            next = last + 1;
        }
        if next <= LAST {
            kept.push((next, LAST));
        }
        Set(kept)
    }

    pub fn contains(&self, code: u32) -> bool {
        self.0.iter().any(|&(first, last)| (first..=last).contains(&code))
    }

    /// Its only member.
    pub fn single(&self) -> Option<u32> {
        match self.0.as_slice() {
            [(first, last)] if first == last => Some(*first),
            _ => None,
        }
    }

    pub fn has_all_above_ffff(&self) -> bool {
        self.0.last().is_some_and(|&(first, last)| first <= 0x10000 && last == LAST)
    }

    pub fn up_to_ffff(&self) -> Self {
        let below =
            |&(first, last): &(u32, u32)| (first <= 0xffff).then(|| (first, last.min(0xffff)));
        Set(self.0.iter().filter_map(below).collect())
    }

    /// Those from `first` on, as a class of Rust's regular expressions: without surrogates.
    pub fn class_from(&self, first: u32, without: &[u32]) -> Option<String> {
        let mut text = String::new();
        let mut add = |first: u32, last: u32| {
            if first <= last {
                text.push_str(&format!("\\x{{{first:x}}}-\\x{{{last:x}}}"));
            }
        };
        for &(from, to) in &self.0 {
            let mut from = from.max(first);
            for &out in without {
                if (from..=to).contains(&out) {
                    if out > from {
                        add(from, out - 1);
                    }
                    from = out + 1;
                }
            }
            if from > to {
                continue;
            }
            add(from, to.min(0xd7ff));
            add(from.max(0xe000), to);
        }
        (!text.is_empty()).then(|| format!("[{text}]"))
    }
}

/// All but the ends of lines.
pub fn dot() -> Set {
    Set::ranges(&[(10, 10), (13, 13), (0x2028, 0x2029)]).inverted()
}

pub fn digits() -> Set {
    Set::range('0'.into(), '9'.into())
}

pub fn words() -> Set {
    Set::ranges(&[(0x30, 0x39), (0x41, 0x5a), (0x5f, 0x5f), (0x61, 0x7a)])
}

/// WhiteSpace and LineTerminator.
pub fn spaces() -> Set {
    Set::ranges(&[
        (9, 13),
        (0x20, 0x20),
        (0xa0, 0xa0),
        (0x1680, 0x1680),
        (0x2000, 0x200a),
        (0x2028, 0x2029),
        (0x202f, 0x202f),
        (0x205f, 0x205f),
        (0x3000, 0x3000),
        (0xfeff, 0xfeff),
    ])
}

/// Properties with two values that both ECMA-262 and the tables here have, with their short names.
const BINARY: &str = "Any ASCII Assigned Alphabetic Alpha ASCII_Hex_Digit AHex Case_Ignorable CI \
    Cased Dash Default_Ignorable_Code_Point DI Deprecated Dep Diacritic Dia Emoji Emoji_Component \
    EComp Emoji_Modifier EMod Emoji_Modifier_Base EBase Emoji_Presentation EPres \
    Extended_Pictographic ExtPict Extender Ext Grapheme_Base Gr_Base Grapheme_Extend Gr_Ext \
    Hex_Digit Hex ID_Continue IDC ID_Start IDS Ideographic Ideo Join_Control Join_C \
    Logical_Order_Exception LOE Lowercase Lower Math Noncharacter_Code_Point NChar \
    Pattern_Syntax Pat_Syn Pattern_White_Space Pat_WS Quotation_Mark QMark Radical \
    Regional_Indicator RI Sentence_Terminal STerm Soft_Dotted SD Terminal_Punctuation Term \
    Unified_Ideograph UIdeo Uppercase Upper Variation_Selector VS White_Space space XID_Continue \
    XIDC XID_Start XIDS";

/// By the names that ECMA-262 knows, of which it takes none that is written otherwise.
pub fn property(name: &str) -> Option<Set> {
    let is_proper = |value: &str| {
        value
            .split('_')
            .all(|word| word.starts_with(|c: char| c.is_ascii_uppercase() || c.is_ascii_digit()))
            || matches!(value, "punct" | "digit" | "cntrl" | "space" | "Other_Number")
    };
    let source = match name.split_once('=') {
        Some(("General_Category" | "gc", value)) if is_proper(value) => {
            format!(r"\p{{gc={value}}}")
        }
        Some(("Script" | "sc", value)) if is_proper(value) => format!(r"\p{{sc={value}}}"),
        Some(("Script_Extensions" | "scx", value)) if is_proper(value) => {
            format!(r"\p{{scx={value}}}")
        }
        Some(_) => return None,
        None if BINARY.split_whitespace().any(|known| known == name) => format!(r"\p{{{name}}}"),
        None if is_proper(name) => format!(r"\p{{gc={name}}}"),
        None => return None,
    };
    let hir = regex_syntax::Parser::new().parse(&source).ok()?;
    match hir.kind() {
        HirKind::Class(Class::Unicode(class)) => {
            let range = |range: &regex_syntax::hir::ClassUnicodeRange| {
                (range.start().into(), range.end().into())
            };
            Some(Set(class.ranges().iter().map(range).collect()))
        }
        _ => None,
    }
}
