//! Answers in the form that every measured version of Claude Code obeys: exit 2 and one line, or nothing at all.
#![forbid(unsafe_code)]

use super::EventName;
use crate::policy::judge::Outcome;

/// Longest line that a denial shows, in bytes.
const LINE_BYTES: usize = 600;
/// Names a document and no command: the line is read by the agent.
const READ_MORE: &str = "What this means, for the person: docs/denials.md";

/// What the hook writes and how it exits.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Always empty for this host: text there would become context of the model, or be taken for half an answer.
    pub stdout: Vec<u8>,
    /// One line for a denial.
    pub stderr: Vec<u8>,
    /// 0 or 2.
    pub exit: u8,
}

impl Answer {
    /// Ringfence imposes no denial: the host's own permissions decide.
    pub fn no_override() -> Answer {
        Answer { stdout: Vec::new(), stderr: Vec::new(), exit: 0 }
    }

    /// The call must not run.
    pub fn deny(reason_code: &str, explanation: &str) -> Answer {
        let explanation = one_line(explanation);
        let reason_code = one_line(reason_code);
        let said = if explanation.is_empty() { "no explanation was given" } else { &explanation };
        let line = format!("Ringfence denied this [{reason_code}]: {said}. {READ_MORE}\n");
        Answer { stdout: Vec::new(), stderr: line.into_bytes(), exit: 2 }
    }

    /// A decision, for the event it was made for. Only a tool call and a change of settings can be denied; for every
    /// other event exit 2 would stop the person or the host.
    pub fn of(event: EventName, outcome: Outcome, reason_code: &str, explanation: &str) -> Answer {
        match outcome {
            Outcome::Deny if event.fails_closed() => Answer::deny(reason_code, explanation),
            Outcome::Deny | Outcome::NoOverride => Answer::no_override(),
        }
    }
}

/// Printable, on one line, bounded, without the full stop that is added.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()) {
        let gap = usize::from(!line.is_empty());
        if line.len() + gap + word.len() > LINE_BYTES {
            let room = (LINE_BYTES.saturating_sub(line.len() + gap)).min(word.len());
            let cut = (0..=room).rev().find(|at| word.is_char_boundary(*at)).unwrap_or(0);
            line.push_str(&" "[..gap]);
            line.push_str(&word[..cut]);
            line.push('…');
            return line;
        }
        line.push_str(&" "[..gap]);
        line.push_str(word);
    }
    line.truncate(line.trim_end_matches('.').len());
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_is_exit_2_one_line_and_nothing_on_stdout() {
        let answer = Answer::deny("TR-CRED-EXFIL", "a private key reaches\nan upload\u{1b}[31m.");
        assert_eq!(answer.exit, 2);
        assert!(answer.stdout.is_empty());
        let line = String::from_utf8(answer.stderr).unwrap();
        assert_eq!(line.matches('\n').count(), 1);
        assert!(line.ends_with('\n') && !line.contains('\u{1b}'), "{line:?}");
        assert!(line.starts_with("Ringfence denied this [TR-CRED-EXFIL]: a private key reaches an upload [31m. What"));
    }

    #[test]
    fn a_denial_without_words_still_has_a_line() {
        for words in ["", " \n ", "\0"] {
            let answer = Answer::deny("", words);
            assert!(String::from_utf8(answer.stderr).unwrap().contains("no explanation was given"));
        }
    }

    #[test]
    fn a_line_is_bounded_at_a_character() {
        let answer = Answer::deny("x", &"ä".repeat(5000));
        assert!(answer.stderr.len() < LINE_BYTES + 200, "{}", answer.stderr.len());
        assert!(String::from_utf8(answer.stderr).is_ok());
        let answer = Answer::deny("x", &"word ".repeat(5000));
        assert!(answer.stderr.len() < LINE_BYTES + 200, "{}", answer.stderr.len());
    }

    #[test]
    fn no_override_says_nothing() {
        assert_eq!(Answer::no_override(), Answer { stdout: vec![], stderr: vec![], exit: 0 });
    }

    #[test]
    fn only_calls_and_settings_can_be_denied() {
        for event in EventName::ALL {
            let answer = Answer::of(event, Outcome::Deny, "x", "y");
            assert_eq!(answer.exit == 2, matches!(event, EventName::PreToolUse | EventName::ConfigChange), "{event:?}");
            assert_eq!(Answer::of(event, Outcome::NoOverride, "x", "y"), Answer::no_override());
        }
    }
}
