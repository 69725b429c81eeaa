//! Finding the ends of things in shell text: quotes, substitutions, braces.
#![forbid(unsafe_code)]

/// An upper bound of the nesting in a text. Brackets in quotes count too: better one text too many refused.
pub(super) fn nesting(text: &str) -> usize {
    let (mut depth, mut deepest, mut ticks) = (0usize, 0usize, 0usize);
    for byte in text.bytes() {
        match byte {
            b'(' | b'{' | b'[' => depth += 1,
            b')' | b'}' | b']' => depth = depth.saturating_sub(1),
            // Backquotes nest by doubled backslashes, so their number bounds their depth only loosely.
            b'`' => ticks += 1,
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    let mut blocks = 0usize;
    for word in text.split(|c: char| c.is_whitespace() || matches!(c, ';' | '&' | '|' | '(' | ')')) {
        match word {
            "if" | "case" | "for" | "while" | "until" | "select" | "!" | "time" => blocks += 1,
            "fi" | "esac" | "done" => blocks = blocks.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth + blocks);
    }
    // Each level of nested backquotes doubles the backslashes in front of them, so six levels need 64 in a row.
    deepest + if ticks > 0 { longest_backslashes(text).ilog2() as usize } else { 0 }
}

fn longest_backslashes(text: &str) -> usize {
    text.split(|c| c != '\\').map(str::len).max().unwrap_or(0).max(1)
}

/// Where a `'…'` that starts before `from` ends: the index of the closing quote.
pub(super) fn single_quote(text: &str, from: usize) -> Option<usize> {
    text[from..].find('\'').map(|at| from + at)
}

/// The index of the quote that closes a `$'…'`.
pub(super) fn ansi_quote(text: &str, from: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = from;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'\'' => return Some(at),
            _ => at += 1,
        }
    }
    None
}

/// The index of the quote that closes a `"…"`.
pub(super) fn double_quote(text: &str, from: usize, depth: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = from;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return Some(at),
            b'`' => at = backquote(text, at + 1)? + 1,
            b'$' if bytes.get(at + 1) == Some(&b'(') => at = parenthesis(text, at + 2, depth + 1)? + 1,
            b'$' if bytes.get(at + 1) == Some(&b'{') => at = brace(text, at + 2, depth + 1)? + 1,
            _ => at += 1,
        }
    }
    None
}

/// The index of the backquote that closes one.
pub(super) fn backquote(text: &str, from: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = from;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'`' => return Some(at),
            _ => at += 1,
        }
    }
    None
}

/// The index of the brace that closes a `${`.
pub(super) fn brace(text: &str, from: usize, depth: usize) -> Option<usize> {
    if depth > super::NESTING {
        return None;
    }
    let bytes = text.as_bytes();
    let mut at = from;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'}' => return Some(at),
            b'\'' => at = single_quote(text, at + 1)? + 1,
            b'"' => at = double_quote(text, at + 1, depth + 1)? + 1,
            b'`' => at = backquote(text, at + 1)? + 1,
            b'$' if bytes.get(at + 1) == Some(&b'(') => at = parenthesis(text, at + 2, depth + 1)? + 1,
            b'$' if bytes.get(at + 1) == Some(&b'{') => at = brace(text, at + 2, depth + 1)? + 1,
            _ => at += 1,
        }
    }
    None
}

/// The index of the parenthesis that closes a `$(`, with quotes, comments, here-documents and `case` patterns inside.
pub(super) fn parenthesis(text: &str, from: usize, depth: usize) -> Option<usize> {
    #[derive(PartialEq)]
    enum Open {
        Parenthesis,
        Case,
    }
    if depth > super::NESTING {
        return None;
    }
    let bytes = text.as_bytes();
    let mut open = vec![Open::Parenthesis];
    let mut documents: Vec<(String, bool)> = Vec::new();
    let mut at = from;
    // Where a word can start: after a blank or an operator.
    let mut fresh = true;
    while at < bytes.len() {
        let byte = bytes[at];
        let started_fresh = std::mem::replace(&mut fresh, false);
        match byte {
            b'\\' => at += 2,
            b'\'' => at = single_quote(text, at + 1)? + 1,
            b'"' => at = double_quote(text, at + 1, depth + 1)? + 1,
            b'`' => at = backquote(text, at + 1)? + 1,
            b'$' if bytes.get(at + 1) == Some(&b'\'') => at = ansi_quote(text, at + 2)? + 1,
            b'$' if bytes.get(at + 1) == Some(&b'{') => at = brace(text, at + 2, depth + 1)? + 1,
            b'$' if bytes.get(at + 1) == Some(&b'(') => at = parenthesis(text, at + 2, depth + 1)? + 1,
            b'#' if started_fresh => {
                at += text[at..].find('\n').unwrap_or(text.len() - at);
            }
            b'(' => {
                open.push(Open::Parenthesis);
                at += 1;
                fresh = true;
            }
            b')' => {
                if open.last() == Some(&Open::Parenthesis) {
                    open.pop();
                    if open.is_empty() {
                        return Some(at);
                    }
                }
                at += 1;
                fresh = true;
            }
            b'\n' => {
                at += 1;
                fresh = true;
                for (delimiter, tabs) in documents.drain(..) {
                    at = after_document(text, at, &delimiter, tabs);
                }
            }
            b'<' if text[at..].starts_with("<<<") => at += 3,
            b'<' if text[at..].starts_with("<<") => {
                let tabs = bytes.get(at + 2) == Some(&b'-');
                at += 2 + usize::from(tabs);
                at += text[at..].len() - text[at..].trim_start_matches([' ', '\t']).len();
                let end =
                    text[at..].find(|c: char| c.is_whitespace() || matches!(c, ';' | '&' | '|' | ')' | '<' | '>'));
                let word = &text[at..end.map_or(text.len(), |end| at + end)];
                at += word.len();
                documents.push((word.replace(['\'', '"', '\\'], ""), tabs));
            }
            b' ' | b'\t' | b';' | b'&' | b'|' | b'<' | b'>' => {
                at += 1;
                fresh = true;
            }
            _ if started_fresh && byte.is_ascii_alphabetic() => {
                let end = text[at..].find(|c: char| !c.is_ascii_alphanumeric()).map_or(text.len(), |end| at + end);
                match &text[at..end] {
                    "case" => open.push(Open::Case),
                    "esac" if open.last() == Some(&Open::Case) => {
                        open.pop();
                    }
                    _ => {}
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    None
}

fn after_document(text: &str, from: usize, delimiter: &str, tabs: bool) -> usize {
    let mut at = from;
    while at < text.len() {
        let end = text[at..].find('\n').map_or(text.len(), |end| at + end);
        let line = &text[at..end];
        let line = if tabs { line.trim_start_matches('\t') } else { line };
        // `EOF)` closes both: the parenthesis is then read on.
        if line == delimiter {
            return (end + 1).min(text.len());
        }
        if let Some(rest) = line.strip_prefix(delimiter)
            && rest.trim_start().starts_with(')')
        {
            return end - rest.len();
        }
        at = end + 1;
    }
    text.len()
}

/// Most words that brace expansion may make.
const BRACES: usize = 256;

/// Brace expansion of one raw word. `None` when it would make more than [`BRACES`] words.
pub(super) fn braces(word: &str) -> Option<Vec<String>> {
    if !word.contains('{') {
        return Some(vec![word.to_owned()]);
    }
    let mut out = Vec::new();
    expand_braces(word, 0, &mut out)?;
    Some(out)
}

fn expand_braces(word: &str, depth: usize, out: &mut Vec<String>) -> Option<()> {
    if depth > 32 || out.len() > BRACES {
        return None;
    }
    let bytes = word.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'\'' => at = single_quote(word, at + 1).map_or(bytes.len(), |end| end + 1),
            b'"' => at = double_quote(word, at + 1, 0).map_or(bytes.len(), |end| end + 1),
            b'`' => at = backquote(word, at + 1).map_or(bytes.len(), |end| end + 1),
            b'$' if bytes.get(at + 1) == Some(&b'\'') => {
                at = ansi_quote(word, at + 2).map_or(bytes.len(), |end| end + 1)
            }
            b'$' if bytes.get(at + 1) == Some(&b'{') => at = brace(word, at + 2, 0).map_or(bytes.len(), |end| end + 1),
            b'$' if bytes.get(at + 1) == Some(&b'(') => {
                at = parenthesis(word, at + 2, 0).map_or(bytes.len(), |end| end + 1)
            }
            b'{' => {
                if let Some((members, end)) = brace_members(word, at) {
                    for member in members {
                        expand_braces(&format!("{}{member}{}", &word[..at], &word[end..]), depth + 1, out)?;
                    }
                    return Some(());
                }
                at += 1;
            }
            _ => at += 1,
        }
    }
    out.push(word.to_owned());
    (out.len() <= BRACES).then_some(())
}

/// The members of the brace expression at `open`, and the index after its end.
fn brace_members(word: &str, open: usize) -> Option<(Vec<String>, usize)> {
    let bytes = word.as_bytes();
    let (mut depth, mut at, mut from) = (1usize, open + 1, open + 1);
    let mut members = Vec::new();
    loop {
        match bytes.get(at)? {
            b'\\' => at += 2,
            b'\'' => at = single_quote(word, at + 1)? + 1,
            b'"' => at = double_quote(word, at + 1, 0)? + 1,
            b'$' if bytes.get(at + 1) == Some(&b'{') => at = brace(word, at + 2, 0)? + 1,
            b'$' if bytes.get(at + 1) == Some(&b'(') => at = parenthesis(word, at + 2, 0)? + 1,
            b'{' => {
                depth += 1;
                at += 1;
            }
            b',' if depth == 1 => {
                members.push(word[from..at].to_owned());
                at += 1;
                from = at;
            }
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    break;
                }
                at += 1;
            }
            _ => at += 1,
        }
    }
    if members.is_empty() {
        return sequence(&word[from..at]).map(|members| (members, at + 1));
    }
    members.push(word[from..at].to_owned());
    Some((members, at + 1))
}

/// `1..9`, `a..e`, with an optional step.
fn sequence(text: &str) -> Option<Vec<String>> {
    let mut parts = text.split("..");
    let (first, last, step) = (parts.next()?, parts.next()?, parts.next());
    if parts.next().is_some() {
        return None;
    }
    let step = step.map_or(Some(1), |step| step.parse::<i64>().ok())?.unsigned_abs().max(1) as usize;
    if let (Ok(low), Ok(high)) = (first.parse::<i64>(), last.parse::<i64>()) {
        // A longer one is all numbers: its ends stand for the rest.
        if low.abs_diff(high) as usize / step > BRACES {
            return Some(vec![first.to_owned(), last.to_owned()]);
        }
        let all = (low.min(high)..=low.max(high)).step_by(step).map(|n| n.to_string());
        return Some(all.collect());
    }
    let mut ends = (first.chars(), last.chars());
    match (ends.0.next(), ends.0.next(), ends.1.next(), ends.1.next()) {
        (Some(low), None, Some(high), None) if low.is_ascii_alphabetic() && high.is_ascii_alphabetic() => {
            Some((low.min(high)..=low.max(high)).step_by(step).map(String::from).collect())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_found() {
        let inside = |text: &str| parenthesis(text, 0, 0).map(|end| text[..end].to_owned());
        assert_eq!(inside("a b) c").as_deref(), Some("a b"));
        assert_eq!(inside("echo ')' \")\" \\) $(x)) y").as_deref(), Some("echo ')' \")\" \\) $(x)"));
        assert_eq!(inside("case x in a) y;; esac) z").as_deref(), Some("case x in a) y;; esac"));
        assert_eq!(inside("cat <<'EOF'\nit's (\nEOF\n) z").as_deref(), Some("cat <<'EOF'\nit's (\nEOF\n"));
        assert_eq!(inside("a # it's )\n) z").as_deref(), Some("a # it's )\n"));
        assert_eq!(inside("a"), None);
        assert!(nesting(&"$(".repeat(300)) > 200);
    }

    #[test]
    fn braces_are_expanded() {
        let all = |word: &str| braces(word).map(|words| words.join(" "));
        assert_eq!(all("a{b,c}d{e,f}").as_deref(), Some("abde abdf acde acdf"));
        assert_eq!(all("{1..3}").as_deref(), Some("1 2 3"));
        assert_eq!(all("{}").as_deref(), Some("{}"));
        assert_eq!(all("'{a,b}'").as_deref(), Some("'{a,b}'"));
        assert_eq!(all("${x,,}").as_deref(), Some("${x,,}"));
        assert_eq!(all("{a,{b,c}}").as_deref(), Some("a b c"));
        assert_eq!(all(&"{a,b}".repeat(20)), None);
        assert_eq!(all("{1..99999999999}").as_deref(), Some("1 99999999999"));
        assert_eq!(all("{1..99999999999999999999999}").as_deref(), Some("{1..99999999999999999999999}"));
    }
}
