//! What the person asked for, as far as it authorises something. English only: another language authorises nothing.
#![forbid(unsafe_code)]

/// The words of a task, without quoted and pasted blocks.
pub(super) struct Task {
    words: Vec<String>,
    text: String,
}

impl Task {
    /// Reads a prompt; `None` is unknown and authorises nothing.
    pub(super) fn read(text: Option<&str>) -> Task {
        let Some(text) = text else { return Task { words: Vec::new(), text: String::new() } };
        let mut plain = String::new();
        let mut fenced = false;
        for line in text.lines() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
            } else if !fenced && !line.trim_start().starts_with('>') {
                plain.push_str(line);
                plain.push('\n');
            }
        }
        // Text in quotes is somebody's words, not a wish.
        let outside: String = plain.split('"').step_by(2).collect::<Vec<_>>().join(" ");
        let text = outside.to_lowercase();
        let words =
            text.split(|c: char| !(c.is_alphanumeric() || matches!(c, '-' | '\''))).filter(|word| !word.is_empty());
        let words = words.flat_map(|word| {
            let parts = word.split('-').filter(|part| !part.is_empty()).map(str::to_owned);
            parts.collect::<Vec<_>>()
        });
        Task { words: words.collect(), text }
    }

    /// Whether one of the words is asked for, and not forbidden.
    pub(super) fn asks(&self, any: &[&str]) -> bool {
        self.words.iter().enumerate().any(|(at, word)| {
            let forbidden = self.words[at.saturating_sub(3)..at].iter().any(|before| {
                matches!(
                    before.as_str(),
                    "not" | "don't" | "dont" | "never" | "without" | "no" | "avoid" | "why" | "cannot" | "can't"
                )
            });
            any.contains(&word.as_str()) && !forbidden
        })
    }

    /// Whether the task names this, as a word or part of a path or address.
    pub(super) fn names(&self, thing: &str) -> bool {
        let thing = thing.to_lowercase();
        !thing.is_empty()
            && self.text.match_indices(&thing).any(|(at, _)| {
                let part = |c: char| c.is_alphanumeric() || c == '-';
                let (before, after) = (&self.text[..at], &self.text[at + thing.len()..]);
                !before.ends_with(part) && !after.starts_with(part)
            })
    }
}
