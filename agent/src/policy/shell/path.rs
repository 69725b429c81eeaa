//! Paths as text: absolute and normalised without looking at the file system.
#![forbid(unsafe_code)]

use super::UNKNOWN;

/// `text` seen from `cwd`, without `.`, `..`, doubled slashes and other names of the root directory.
/// With an unknown directory a relative path starts with [`UNKNOWN`].
pub fn absolute(cwd: Option<&str>, text: &str) -> String {
    let joined = if text.starts_with('/') {
        text.to_owned()
    } else {
        match cwd {
            Some(cwd) => format!("{cwd}/{text}"),
            None => format!("{UNKNOWN}/{text}"),
        }
    };
    normalise(&joined)
}

fn normalise(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            // What an unknown name leads to is unknown, and so is its parent.
            ".." if parts.last().is_some_and(|last| last.contains(UNKNOWN)) => parts.push(".."),
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    // Another name of the same root: /proc/self/root, /proc/1/root, /proc/thread-self/root.
    while parts.len() >= 3 && parts[0] == "proc" && parts[2] == "root" {
        parts.drain(..3);
    }
    let rooted = !path.starts_with(UNKNOWN);
    let text = parts.join("/");
    if rooted { format!("/{text}") } else { text }
}

/// Whether `path` is `directory` or lies under it. Both are absolute and normalised.
pub fn is_within(path: &str, directory: &str) -> bool {
    if directory == "/" {
        return path.starts_with('/');
    }
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The part of a path before its first pattern or unknown component: `/e??/*` gives `/`, `a/b*` gives `a`.
pub fn known_prefix(path: &str) -> &str {
    match path.find(['*', '?', '[', UNKNOWN]) {
        None => path,
        Some(at) => match path[..at].rfind('/') {
            Some(0) => "/",
            Some(slash) => &path[..slash],
            None => "",
        },
    }
}

/// Whether the path holds a pattern.
pub fn has_pattern(path: &str) -> bool {
    path.contains(['*', '?', '['])
}

/// The last component.
pub fn name(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or("")
}

/// Whether `text` matches a shell pattern (`*`, `?`, `[…]`); `*` crosses slashes where `slashes` says so.
/// Bounded: no worse than the product of both lengths.
pub fn matches(pattern: &str, text: &str, slashes: bool) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        let step = match pattern.get(p) {
            Some('*') => {
                star = Some((p + 1, t));
                p += 1;
                continue;
            }
            Some('?') if slashes || text[t] != '/' => Some(p + 1),
            Some('[') => class(&pattern, p, text[t]),
            Some('\\') if pattern.get(p + 1) == Some(&text[t]) => Some(p + 2),
            Some(c) if *c == text[t] => Some(p + 1),
            _ => None,
        };
        match (step, star) {
            (Some(next), _) => {
                p = next;
                t += 1;
            }
            (None, Some((after, from))) if slashes || text[from] != '/' => {
                star = Some((after, from + 1));
                p = after;
                t = from + 1;
            }
            _ => return false,
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

fn class(pattern: &[char], start: usize, c: char) -> Option<usize> {
    let negated = matches!(pattern.get(start + 1), Some('!' | '^'));
    let mut at = start + 1 + usize::from(negated);
    let first = at;
    let mut hit = false;
    while let Some(&low) = pattern.get(at) {
        if low == ']' && at > first {
            return (hit != negated && c != '/').then_some(at + 1);
        }
        if pattern.get(at + 1) == Some(&'-') && pattern.get(at + 2).is_some_and(|high| *high != ']') {
            hit |= (low..=pattern[at + 2]).contains(&c);
            at += 3;
        } else {
            hit |= low == c;
            at += 1;
        }
    }
    (c == '[').then_some(start + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_names_of_a_path_are_the_path() {
        let at = |text: &str| absolute(Some("/home/dev/project"), text);
        assert_eq!(at("../x/./y//z"), "/home/dev/x/y/z");
        assert_eq!(at("/proc/self/root/etc/../usr"), "/usr");
        assert_eq!(at("/../.."), "/");
        assert_eq!(at("build/../../Documents"), "/home/dev/Documents");
        assert_eq!(absolute(None, "x"), format!("{UNKNOWN}/x"));
        assert_eq!(at(&format!("{UNKNOWN}/..")), format!("/home/dev/project/{UNKNOWN}/.."));
        assert_eq!(known_prefix("/e??/*"), "/");
        assert!(is_within("/a/b", "/a") && !is_within("/ab", "/a"));
    }

    #[test]
    fn patterns() {
        assert!(matches("/e??/*", "/etc/passwd", false) && !matches("/e??", "/etcx", false));
        assert!(matches("*.rs", "a.rs", false) && !matches("*.rs", "a/b.rs", false) && matches("*", "a/b", true));
        assert!(matches("[a-c]x", "bx", false) && matches("[!a]x", "bx", false) && !matches("[!b]x", "bx", false));
        assert!(!matches(&"*a".repeat(500), &"b".repeat(2000), true));
    }
}
