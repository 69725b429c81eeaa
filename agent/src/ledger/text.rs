//! Text out of untrusted bytes: bounded, and without control characters that a terminal would obey.
#![forbid(unsafe_code)]

use std::fmt::Write as _;

/// The bytes as text; control characters are escaped, invalid UTF-8 is replaced.
pub(super) fn shown(bytes: &[u8]) -> String {
    shown_text(&String::from_utf8_lossy(bytes))
}

/// The text with control and direction characters escaped.
pub(super) fn shown_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let turns_text = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if c.is_control() || turns_text {
            let _ = write!(out, "{}", c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// At most `most` bytes of it, with `…` where it was cut.
pub(super) fn cut(mut text: String, most: usize) -> String {
    if text.len() > most {
        let mut end = most.saturating_sub('…'.len_utf8());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Lowercase hex.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// Reads a SHA-256 in hex.
pub(super) fn digest_of_hex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    let mut digest = [0; 32];
    for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_goes_both_ways() {
        let digest: [u8; 32] = std::array::from_fn(|i| i as u8 * 7);
        assert_eq!(digest_of_hex(&hex(&digest)), Some(digest));
        assert_eq!(digest_of_hex("zz"), None);
        assert_eq!(digest_of_hex(&"+".repeat(64)), None);
    }

    #[test]
    fn nothing_that_moves_a_cursor_gets_through() {
        assert_eq!(shown(b"a\x1b]0;x\x07b\xe2\x80\xaec"), "a\\u{1b}]0;x\\u{7}b\\u{202e}c");
        assert_eq!(cut("ééé".into(), 5), "é…");
    }
}
