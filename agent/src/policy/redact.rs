//! The one redactor: for whatever of a call is stored, logged, shown or sent.
#![forbid(unsafe_code)]

use std::path::Path;

/// Longest summary, in bytes.
pub const SUMMARY_BYTES: usize = 200;
/// How much of a text a summary looks at: what lies behind could not be shown anyway.
const SUMMARY_INPUT_BYTES: usize = 16 << 10;

/// Passes after which nothing more is found; two do for what people write.
const PASSES: usize = 8;

const SECRET: &str = "[redacted]";
const EMAIL: &str = "[email]";

/// Takes out keys and tokens by shape and entropy, passwords by the name before them, e-mail addresses, the userinfo
/// and query values of URLs; the home becomes `~`. Doing it twice changes nothing more.
pub fn redact(text: &str, home: &Path) -> String {
    let mut text = plain(text);
    // What one pass took out may have hidden the shape of what stood beside it.
    for _ in 0..PASSES {
        let next = tokens(&emails(&assignments(&urls(&key_blocks(&homes(&text, home))))));
        if next == text {
            break;
        }
        text = next;
    }
    text
}

/// One line of at most [`SUMMARY_BYTES`], cut at a character and never inside a placeholder.
pub fn summary(text: &str, home: &Path) -> String {
    let end = floor_char(text, SUMMARY_INPUT_BYTES);
    let line = redact(&text[..end], home).split_whitespace().collect::<Vec<_>>().join(" ");
    if line.len() <= SUMMARY_BYTES && end == text.len() {
        return line;
    }
    let mut cut = floor_char(&line, SUMMARY_BYTES - "…".len());
    for placeholder in [SECRET, EMAIL] {
        let from = floor_char(&line, cut.saturating_sub(placeholder.len()));
        if let Some(start) = line[from..].find(placeholder).map(|at| from + at)
            && start < cut
            && start + placeholder.len() > cut
        {
            cut = start;
        }
    }
    // A word that was cut may be the front half of a secret too short to be known by its shape.
    let kept = line[..cut].rfind(' ').filter(|at| cut - at < 64).map_or(&line[..cut], |at| &line[..at]);
    format!("{}…", kept.trim_end_matches('…').trim_end())
}

fn floor_char(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Control, bidirectional and zero-width characters could hide or reorder what a person reads.
fn plain(text: &str) -> String {
    text.chars()
        .filter(|c| !matches!(c, '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{2069}' | '\u{FEFF}' | '\u{00AD}'))
        .map(|c| if c.is_control() && c != '\n' { ' ' } else { c })
        .collect()
}

fn key_blocks(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("-----BEGIN ") {
        let head = &rest[start..];
        let title = head[11..].find("-----").map_or("", |end| &head[11..11 + end]);
        if !title.ends_with("PRIVATE KEY") || title.len() > 60 {
            out.push_str(&rest[..start + 11]);
            rest = &rest[start + 11..];
            continue;
        }
        out.push_str(&rest[..start]);
        out.push_str(SECRET);
        rest = match head.find("-----END ") {
            Some(end) => {
                let tail = &head[end + 9..];
                tail.find("-----").map_or("", |close| &tail[close + 5..])
            }
            // Truncated: everything after it may be key.
            None => "",
        };
    }
    out + rest
}

fn urls(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let end = after
            .find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '<' | '>' | '|' | ')' | ';' | ','));
        let (url, tail) = after.split_at(end.unwrap_or(after.len()));
        let authority_end = url.find(['/', '?', '#']).unwrap_or(url.len());
        let (authority, path) = url.split_at(authority_end);
        match authority.rfind('@') {
            Some(at) if &authority[..at] != "git" => {
                out.push_str(SECRET);
                out.push_str(&authority[at..]);
            }
            _ => out.push_str(authority),
        }
        match path.find(['?', '#']) {
            None => out.push_str(path),
            Some(query) => {
                out.push_str(&path[..query]);
                let mut name = true;
                for c in path[query..].chars() {
                    match c {
                        '?' | '&' | '#' => name = true,
                        '=' if name => {
                            name = false;
                            out.push('=');
                            out.push_str(SECRET);
                            continue;
                        }
                        _ => {}
                    }
                    if name {
                        out.push(c);
                    }
                }
            }
        }
        rest = tail;
    }
    out + rest
}

const SECRET_NAMES: [&str; 14] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "apikey",
    "api_key",
    "api-key",
    "access_key",
    "access-key",
    "private_key",
    "credential",
    "authorization",
    "bearer",
];

/// `NAME=value`, `NAME: value`, `--name value` and `Bearer value`, where the name speaks of a secret.
fn assignments(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    let mut at = 0;
    while at < text.len() {
        let Some((start, name)) = next_name(&lower, at) else { break };
        // The name may go on: SECRET_ACCESS_KEY, token_file is another thing and only costs a redaction.
        let mut end = start + name.len();
        end += lower[end..]
            .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-'))
            .unwrap_or(lower.len() - end);
        at = end;
        let after = &text[end..];
        let mut value = after.trim_start_matches(['"', '\'', '\\']);
        let separated = value.starts_with('=') || value.starts_with(':');
        let flag = !separated && is_flag(text, start) && after.starts_with(' ');
        if !(separated || flag || (name == "bearer" && after.starts_with(' '))) {
            continue;
        }
        value = value.trim_start_matches(['=', ':', ' ', '"', '\'', '\\']);
        for scheme in ["Bearer ", "Basic ", "bearer ", "basic ", "token "] {
            value = value.strip_prefix(scheme).unwrap_or(value);
        }
        let from = text.len() - value.len();
        let length = value
            .find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ';' | '&' | '|' | ')' | ',' | '}'))
            .unwrap_or(value.len());
        let word = &value[..length];
        // A variable's name, nothing, or what this redactor wrote says nothing.
        if word.is_empty() || word == SECRET || word.starts_with('$') && !word[1..].contains('$') || from < done {
            continue;
        }
        out.push_str(&text[done..from]);
        out.push_str(SECRET);
        done = from + length;
        at = done;
    }
    out + &text[done..]
}

fn next_name(lower: &str, from: usize) -> Option<(usize, &'static str)> {
    SECRET_NAMES
        .iter()
        .filter_map(|name| lower[from..].find(name).map(|at| (from + at, *name)))
        .min_by_key(|found| found.0)
}

fn is_flag(text: &str, start: usize) -> bool {
    let word = text[..start].rfind(char::is_whitespace).map_or(0, |at| at + 1);
    text[word..].starts_with("--")
}

fn emails(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    let local = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '%' | '+' | '-');
    for (at, _) in text.match_indices('@') {
        if at < done {
            continue;
        }
        let start = done
            + text[done..at]
                .rfind(|c| !local(c))
                .map_or(0, |b| b + text[done + b..].chars().next().map_or(1, char::len_utf8));
        let domain = &text[at + 1..];
        let end = domain.find(|c: char| !(c.is_ascii_alphanumeric() || c == '.' || c == '-')).unwrap_or(domain.len());
        let name = domain[..end].trim_end_matches(['.', '-']);
        let is_host = name
            .rsplit_once('.')
            .is_some_and(|(_, top)| top.len() >= 2 && top.bytes().all(|b| b.is_ascii_alphabetic()));
        if start == at || !is_host || &text[start..at] == "git" {
            continue;
        }
        out.push_str(&text[done..start]);
        out.push_str(EMAIL);
        done = at + 1 + name.len();
    }
    out + &text[done..]
}

const PREFIXES: [&str; 34] = [
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "ghr_",
    "github_pat_",
    "sk-",
    "sk_live_",
    "sk_test_",
    "pk_live_",
    "rk_live_",
    "xoxb-",
    "xoxp-",
    "xoxa-",
    "xoxs-",
    "xapp-",
    "AKIA",
    "ASIA",
    "AIza",
    "ya29.",
    "glpat-",
    "npm_",
    "pypi-",
    "hf_",
    "dop_v1_",
    "SG.",
    "eyJ",
    "AGE-SECRET-KEY-",
    "shpat_",
    "lin_api_",
    "sq0",
    "whsec_",
    "hvs.",
    "vault:v1:",
];

fn tokens(text: &str) -> String {
    let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=' | '_' | '-' | '.');
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(part) {
        out.push_str(&rest[..start]);
        let run = &rest[start..];
        let end = run.find(|c| !part(c)).unwrap_or(run.len());
        // `name=value`, and the padding of base64 at the end of a value.
        let (whole, padding) = run[..end].split_at(run[..end].trim_end_matches('=').len());
        let values: Vec<String> = whole.split('=').map(token_run).collect();
        out.push_str(&values.join("="));
        out.push_str(padding);
        rest = &run[end..];
    }
    out + rest
}

/// One run of the characters that tokens are made of. Paths and dotted names are such runs too, so parts are looked at.
fn token_run(run: &str) -> String {
    for prefix in PREFIXES {
        for (at, _) in run.match_indices(prefix) {
            let boundary = at == 0 || !run.as_bytes()[at - 1].is_ascii_alphanumeric();
            let body = run[at + prefix.len()..]
                .bytes()
                .take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
                .count();
            if boundary && body >= 10 {
                return format!("{}{SECRET}", &run[..at]);
            }
        }
    }
    // The shape of a cloud's secret access key: 40 characters of base64 that look like nothing else.
    let plain = run.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/'));
    if run.len() == 40
        && plain
        && !run.starts_with('/')
        && looks_random(run)
        && run.bytes().any(|b| b.is_ascii_digit())
        && run.bytes().filter(u8::is_ascii_uppercase).count() > 6
    {
        return SECRET.into();
    }
    // Base64 holds slashes, and so do paths: a run without a dot or hyphen whose pieces are all random is one secret.
    if run.len() >= 40
        && !run.contains('.')
        && looks_random(run)
        && run.split('/').all(|piece| piece.len() < 3 || looks_mixed(piece))
    {
        return SECRET.into();
    }
    let mut out = String::with_capacity(run.len());
    let mut rest = run;
    loop {
        let end = rest.find(['/', '.', '=']).unwrap_or(rest.len());
        let piece = &rest[..end];
        out.push_str(if looks_secret(piece) { SECRET } else { piece });
        let Some(separator) = rest[end..].chars().next() else { return out };
        out.push(separator);
        rest = &rest[end + 1..];
    }
}

fn looks_secret(piece: &str) -> bool {
    let hex = piece.len() >= 32 && piece.bytes().all(|b| b.is_ascii_hexdigit());
    hex || (piece.len() >= 20 && looks_mixed(piece) && looks_random(piece))
}

/// Letters of both cases and digits, or letters and at least a fifth digits.
fn looks_mixed(piece: &str) -> bool {
    let digits = piece.bytes().filter(u8::is_ascii_digit).count();
    let upper = piece.bytes().any(|b| b.is_ascii_uppercase());
    let lower = piece.bytes().any(|b| b.is_ascii_lowercase());
    digits > 0 && (upper && lower || (upper || lower) && digits * 5 >= piece.len())
}

/// Shannon entropy of at least 3.5 bits a character: words lie below, random base64 of 20 characters above.
fn looks_random(piece: &str) -> bool {
    let mut counts = [0u32; 256];
    piece.bytes().for_each(|b| counts[usize::from(b)] += 1);
    let length = piece.len() as f64;
    let entropy: f64 = counts.iter().filter(|c| **c > 0).map(|c| f64::from(*c) / length).map(|p| -p * p.log2()).sum();
    entropy >= 3.5
}

fn homes(text: &str, home: &Path) -> String {
    let own = home.to_str().filter(|home| home.len() > 1);
    let text = own.map_or_else(|| text.to_owned(), |home| replace_directory(text, home));
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find("/home/") {
        let (before, after) = rest.split_at(at);
        out.push_str(before);
        let name = after[6..]
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')))
            .unwrap_or(after.len() - 6);
        // Only a path that starts here is a home: `/srv/home/x` and `~/home/x` are not.
        if name == 0 || before.ends_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '~' | '.' | '_' | '-')) {
            out.push_str("/home/");
            rest = &after[6..];
        } else {
            out.push('~');
            rest = &after[6 + name..];
        }
    }
    out + rest
}

fn replace_directory(text: &str, directory: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(directory) {
        let after = &rest[at + directory.len()..];
        let whole = !after.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
        out.push_str(&rest[..at]);
        out.push_str(if whole { "~" } else { directory });
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn clean(text: &str) -> String {
        redact(text, Path::new("/home/dev"))
    }

    #[test]
    fn known_shapes_go_and_the_rest_stays() {
        let secrets = [
            "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
            "AKIAIOSFODNN7EXAMPLE",
            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "sk-ant-api03-abcdefghijklmnopqrst",
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
            "0123456789abcdef0123456789abcdef",
        ];
        for secret in secrets {
            for around in ["x {} y", "{}", "\"{}\"", "curl -H 'X: {}'", "a={}", "[redacted]{}"] {
                let text = around.replace("{}", secret);
                assert!(!clean(&text).contains(secret), "{text} became {}", clean(&text));
            }
        }
        for kept in [
            "cargo test --workspace",
            "rm -rf node_modules/.cache",
            "src/policy/shell/words.rs:120",
            "x86_64-unknown-linux-gnu",
            "git push -u origin feature/login-form-2",
        ] {
            assert_eq!(clean(kept), kept);
        }
    }

    #[test]
    fn names_urls_mails_and_homes() {
        assert_eq!(clean("curl -H 'Authorization: Bearer abc' x"), "curl -H 'Authorization: Bearer [redacted]' x");
        assert_eq!(clean("DB_PASSWORD=hunter2 run"), "DB_PASSWORD=[redacted] run");
        assert_eq!(clean("login --password hunter2"), "login --password [redacted]");
        assert_eq!(clean("{\"api_key\": \"k1\"}"), "{\"api_key\": \"[redacted]\"}");
        assert_eq!(clean("echo $TOKEN token=$TOKEN"), "echo $TOKEN token=$TOKEN");
        assert_eq!(clean("https://u:p@h.test/a?b=c&d=e#f"), "https://[redacted]@h.test/a?b=[redacted]&d=[redacted]#f");
        assert_eq!(clean("mail a.b@example.com."), "mail [email].");
        assert_eq!(clean("git clone git@github.com:a/b"), "git clone git@github.com:a/b");
        assert_eq!(clean("ls /home/dev/x /home/dev /home/developer/x"), "ls ~/x ~ ~/x");
        assert_eq!(
            clean("-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\nrest"),
            "[redacted]\nrest"
        );
        assert_eq!(clean("a\u{202E}b\u{7}c"), "ab c");
    }

    #[test]
    fn a_summary_is_one_short_line() {
        let home = Path::new("/home/dev");
        let long = "word ".repeat(100_000);
        assert!(summary(&long, home).len() <= SUMMARY_BYTES);
        assert_eq!(summary("a\n  b", home), "a b");
        assert!(summary(&"é".repeat(300), home).len() <= SUMMARY_BYTES);
        let secret = format!("{} ghp_abcdefghijklmnopqrstuvwxyz0123456789", "x".repeat(180));
        assert!(!summary(&secret, home).contains("ghp_"));
    }

    proptest! {
        #[test]
        fn idempotent(text in "\\PC{0,300}") {
            let once = clean(&text);
            prop_assert_eq!(clean(&once), once.clone());
        }

        #[test]
        fn idempotent_on_the_awkward(text in "([a-zA-Z0-9]{0,30}|://|@|\\.|=|:| |\"|'|\\?|&|#|password|token|Bearer |/home/|/home/dev|ghp_|-----BEGIN |PRIVATE KEY|\\[redacted\\]|~|\\$|/){0,24}") {
            let once = clean(&text);
            prop_assert_eq!(clean(&once), once.clone());
        }

        #[test]
        fn planted_secrets_never_stay(before in "[a-z =:/'\"]{0,40}", body in "[A-Za-z0-9]{36}", after in "[ '\";)].{0,40}") {
            let secret = format!("ghp_{body}");
            let text = format!("{before} {secret}{after}");
            prop_assert!(!clean(&text).contains(&body), "{}", clean(&text));
            prop_assert!(!summary(&text, Path::new("/home/dev")).contains(&body));
        }

        #[test]
        fn summaries_are_bounded(text in ".{0,2000}") {
            let line = summary(&text, Path::new("/home/dev"));
            prop_assert!(line.len() <= SUMMARY_BYTES);
            prop_assert!(!line.contains('\n'));
        }
    }
}
