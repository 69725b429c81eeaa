//! Small decoders: what `echo -e`, `printf`, `$'…'`, `base64 -d`, `xxd -r -p` and the like make of a known text.
#![forbid(unsafe_code)]

use super::UNKNOWN;

/// Backslash escapes of `$'…'`, `printf` and `echo -e`. Returns the text and whether codes spelt characters.
pub(super) fn escapes(text: &str) -> (String, bool) {
    let mut bytes: Vec<u8> = Vec::with_capacity(text.len());
    let mut coded = false;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\\' {
            push(&mut bytes, c);
            continue;
        }
        let Some(kind) = chars.next() else {
            bytes.push(b'\\');
            break;
        };
        let (radix, longest, first) = match kind {
            'x' => (16, 2, None),
            'u' => (16, 4, None),
            'U' => (16, 8, None),
            '0'..='7' => (8, 3, Some(kind)),
            _ => {
                match kind {
                    'a' => bytes.push(7),
                    'b' => bytes.push(8),
                    'e' | 'E' => bytes.push(27),
                    'f' => bytes.push(12),
                    'n' => bytes.push(b'\n'),
                    'r' => bytes.push(b'\r'),
                    't' => bytes.push(b'\t'),
                    'v' => bytes.push(11),
                    '\\' | '\'' | '"' | '?' => push(&mut bytes, kind),
                    other => {
                        bytes.push(b'\\');
                        push(&mut bytes, other);
                    }
                }
                continue;
            }
        };
        let mut digits: String = first.into_iter().collect();
        // `\0ooo` of echo and printf %b has a digit more.
        let longest = if first == Some('0') { 4 } else { longest };
        while digits.len() < longest
            && let Some(digit) = chars.next_if(|digit| digit.is_digit(radix))
        {
            digits.push(digit);
        }
        coded = true;
        match (kind, u32::from_str_radix(&digits, radix)) {
            ('u' | 'U', Ok(code)) => push(&mut bytes, char::from_u32(code).unwrap_or(UNKNOWN)),
            (_, Ok(code)) => bytes.push(code as u8),
            (_, Err(_)) => {
                bytes.push(b'\\');
                push(&mut bytes, kind);
            }
        }
    }
    (lossy(bytes), coded)
}

fn push(bytes: &mut Vec<u8>, c: char) {
    bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

/// Bytes that are not text are not known text.
fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).replace('\u{FFFD}', &UNKNOWN.to_string()))
}

/// `printf FORMAT ARGS…`: `%s`, `%b`, `%d`, `%c`, `%q`, `%%`. Returns the text and whether codes spelt characters.
pub(super) fn printf(format: &str, args: &[&str]) -> (String, bool) {
    let (format, mut coded) = escapes(format);
    let mut out = String::new();
    let mut args = args.iter();
    loop {
        let before = args.len();
        let mut chars = format.chars().peekable();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            while chars.next_if(|c| matches!(c, '-' | '+' | ' ' | '#' | '0'..='9' | '.' | '*')).is_some() {}
            match chars.next() {
                Some('%') | None => out.push('%'),
                Some('s' | 'q' | 'd' | 'i' | 'u') => out.push_str(args.next().copied().unwrap_or("")),
                Some('b') => {
                    let (text, was) = escapes(args.next().copied().unwrap_or(""));
                    coded |= was;
                    out.push_str(&text);
                }
                Some('c') => out.extend(args.next().and_then(|arg| arg.chars().next())),
                Some(_) => {
                    args.next();
                    out.push(UNKNOWN);
                }
            }
        }
        // The format is used again while it takes arguments.
        if args.len() == 0 || args.len() == before || out.len() > super::COMMAND_BYTES {
            return (out, coded);
        }
    }
}

/// Base64, standard or URL alphabet, blanks ignored. `None` when it is not that.
pub(super) fn base64(text: &str) -> Option<String> {
    let (mut bits, mut held) = (0u32, 0u32);
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    for c in text.bytes().filter(|c| !c.is_ascii_whitespace()) {
        let value = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            b'=' => break,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    Some(lossy(bytes))
}

/// Hexadecimal digits, blanks ignored.
pub(super) fn hex(text: &str) -> Option<String> {
    let digits: Vec<u32> =
        text.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16)).collect::<Option<_>>()?;
    Some(lossy(digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit) as u8).collect()))
}

/// `rot13`-like and other single-character mappings of `tr A B` with plain or ranged sets.
pub(super) fn translate(text: &str, from: &str, to: &str) -> String {
    let (from, to) = (set(from), set(to));
    let map = |c: char| match from.iter().position(|f| *f == c) {
        Some(at) => to.get(at).or(to.last()).copied().unwrap_or(c),
        None => c,
    };
    text.chars().map(map).collect()
}

fn set(text: &str) -> Vec<char> {
    let chars: Vec<char> = escapes(text).0.chars().collect();
    let mut out = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        match (chars.get(at + 1), chars.get(at + 2)) {
            (Some('-'), Some(high)) if *high >= chars[at] && (*high as u32 - chars[at] as u32) < 256 => {
                out.extend(chars[at]..=*high);
                at += 3;
            }
            _ => {
                out.push(chars[at]);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_texts() {
        assert_eq!(escapes(r"\x72\x6d"), ("rm".into(), true));
        assert_eq!(escapes(r"a\tb\\"), ("a\tb\\".into(), false));
        assert_eq!(escapes(r"\143\165"), ("cu".into(), true));
        assert_eq!(printf("sys%s", &["temctl"]), ("systemctl".into(), false));
        assert_eq!(printf("%s\\n", &["a", "b"]), ("a\nb\n".into(), false));
        assert_eq!(base64("cm0gLXJmIH4v").as_deref(), Some("rm -rf ~/"));
        assert_eq!(base64("not base64!"), None);
        assert_eq!(hex("7375646f202d6e206964").as_deref(), Some("sudo -n id"));
        assert_eq!(translate("uryyb", "a-zA-Z", "n-za-mN-ZA-M"), "hello");
        assert_eq!(escapes("\\").0, "\\");
        assert_eq!(escapes("\\x").0, "\\x");
    }
}
