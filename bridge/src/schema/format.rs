//! The formats that hold, as patterns; other names are notes.

/// A leap year is divisible by 4, and if by 100 then by 400. Year 0 is none.
const DATE: &str = concat!(
    r"(?:(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)-",
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|",
    r"(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|",
    r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
);
const LABEL: &str = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
const BYTE: &str = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
const HEX: &str = "[0-9a-fA-F]{1,4}";
/// Characters of a path in a URI.
const PATH: &str = r"(?:[a-zA-Z0-9\-._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})";
const NAME: &str = r"(?:[a-zA-Z0-9\-._~!$&'()*+,;=]|%[0-9a-fA-F]{2})";
const ATOM: &str = r"[a-zA-Z0-9!#$%&'*+\-\/=?^_`{|}~]+";

const POINTER: &str = r"(?:\/(?:[^~\/]|~[01])*)*";

/// A leap second is the last of a day in UTC: here where offsets are of quarters of an hour.
fn time() -> String {
    let usual = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?";
    let offset = r"(?:[zZ]|[+\-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
    let mut leaps = vec![r"23:59:60(?:\.[0-9]+)?[zZ]".to_owned()];
    for hours in 0..24 {
        let (east, west) = ((23 + hours) % 24, 23 - hours);
        leaps.push(format!(r"{east:02}:59:60(?:\.[0-9]+)?\+{hours:02}:00"));
        leaps.push(format!(r"{west:02}:59:60(?:\.[0-9]+)?\-{hours:02}:00"));
        for minutes in [15, 30, 45] {
            let (east, west) = (minutes - 1, 59 - minutes);
            leaps.push(format!(r"{hours:02}:{east}:60(?:\.[0-9]+)?\+{hours:02}:{minutes}"));
            let hour = 23 - hours;
            leaps.push(format!(r"{hour:02}:{west}:60(?:\.[0-9]+)?\-{hours:02}:{minutes}"));
        }
    }
    format!("(?:{usual}{offset}|{})", leaps.join("|"))
}

fn duration() -> String {
    let chain = |units: [&str; 3]| {
        let [a, b, c] = units.map(|unit| format!("[0-9]+{unit}"));
        format!("(?:{a}(?:{b}(?:{c})?)?|{b}(?:{c})?|{c})")
    };
    let (day, time) = (chain(["Y", "M", "D"]), chain(["H", "M", "S"]));
    format!("P(?:{day}(?:T{time})?|T{time}|[0-9]+W)")
}

/// Eight groups, a run of them as ::, the last two perhaps as an IPv4 address.
fn ipv6() -> String {
    let four = format!("(?:{BYTE}\\.){{3}}{BYTE}");
    let last = format!("(?:{HEX}:{HEX}|{four})");
    let mut forms = vec![format!("(?:{HEX}:){{6}}{last}")];
    forms.push(format!("::(?:{HEX}:){{0,5}}{last}"));
    for before in 1..=5 {
        let front = format!("(?:{HEX}:){{{}}}{HEX}::", before - 1);
        forms.push(format!("{front}(?:{HEX}:){{0,{}}}{last}", 5 - before));
    }
    forms.push(format!("(?:(?:{HEX}:){{0,5}}{HEX})?::{HEX}"));
    forms.push(format!("(?:(?:{HEX}:){{0,6}}{HEX})?::"));
    format!("(?:{})", forms.join("|"))
}

fn authority() -> String {
    let user = r"(?:[a-zA-Z0-9\-._~!$&'()*+,;=:]|%[0-9a-fA-F]{2})*";
    let future = r"v[0-9a-fA-F]+\.[a-zA-Z0-9\-._~!$&'()*+,;=:]+";
    format!(r"(?:{user}@)?(?:\[(?:{}|{future})\]|{NAME}*)(?::[0-9]*)?", ipv6())
}

fn tail_of_uri() -> String {
    format!(r"(?:\?(?:{PATH}|[\/?])*)?(?:#(?:{PATH}|[\/?])*)?")
}

fn uri() -> String {
    let (host, tail) = (authority(), tail_of_uri());
    let rooted = format!(r"\/\/{host}(?:\/{PATH}*)*|\/(?:{PATH}+(?:\/{PATH}*)*)?");
    format!(r"[a-zA-Z][a-zA-Z0-9+\-.]*:(?:{rooted}|{PATH}+(?:\/{PATH}*)*|){tail}")
}

fn relative() -> String {
    let (host, tail) = (authority(), tail_of_uri());
    let rooted = format!(r"\/\/{host}(?:\/{PATH}*)*|\/(?:{PATH}+(?:\/{PATH}*)*)?");
    format!(r"(?:{rooted}|(?:{NAME}|@)+(?:\/{PATH}*)*|){tail}")
}

/// The whole text of a format; none of a name that only says something.
pub fn pattern_of(name: &str) -> Option<String> {
    let whole = match name {
        "date" => DATE.into(),
        "time" => time(),
        "date-time" => format!("{DATE}[tT]{}", time()),
        "duration" => duration(),
        "email" => {
            format!(r"{ATOM}(?:\.{ATOM})*@(?:{LABEL}(?:\.{LABEL})*|\[(?:{BYTE}\.){{3}}{BYTE}\])")
        }
        "hostname" => format!(r"{LABEL}(?:\.{LABEL})*"),
        "ipv4" => format!(r"(?:{BYTE}\.){{3}}{BYTE}"),
        "ipv6" => ipv6(),
        "uuid" => "[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}".into(),
        "uri" => uri(),
        "uri-reference" => format!("(?:{}|{})", uri(), relative()),
        "json-pointer" => POINTER.into(),
        "relative-json-pointer" => format!("(?:0|[1-9][0-9]*)(?:#|{POINTER})"),
        _ => return None,
    };
    Some(format!("^(?:{whole})$"))
}
