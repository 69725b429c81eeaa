//! Patterns of names, each compiled once: rules are looked at every few seconds, and compiling one costs more than using it.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use globset::{GlobBuilder, GlobMatcher};

/// Most patterns that are kept: many more than shipped files and a person's have.
const MOST: usize = 1024;

/// What a pattern matches: `*` and `?` stand for any characters, also `/`, which no part of a path has. `None` for a
/// pattern that is none, or not UTF-8.
pub fn of(pattern: &[u8]) -> Option<GlobMatcher> {
    static COMPILED: LazyLock<Mutex<HashMap<String, GlobMatcher>>> = LazyLock::new(Mutex::default);
    let text = std::str::from_utf8(pattern).ok()?;
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(matcher) = compiled.get(text) {
        return Some(matcher.clone());
    }
    let matcher = GlobBuilder::new(text).literal_separator(false).build().ok()?.compile_matcher();
    if compiled.len() >= MOST {
        compiled.clear();
    }
    compiled.insert(text.to_owned(), matcher.clone());
    Some(matcher)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_the_same_each_time_and_the_store_stays_small() {
        for _ in 0..2 {
            let matcher = of(b"tmux-?/*").unwrap();
            assert!(matcher.is_match("tmux-1/default") && !matcher.is_match("tmux-12/default"));
        }
        assert!(of(b"[").is_none() && of(b"\xff").is_none());
        for number in 0..2 * MOST {
            assert!(of(format!("{number}*").as_bytes()).unwrap().is_match(number.to_string()));
        }
        assert!(of(b"tmux-?/*").unwrap().is_match("tmux-1/default"));
    }
}
