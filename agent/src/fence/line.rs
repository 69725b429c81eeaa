//! Which command a host's shell line runs.
//!
//! Claude Code hands its shell prefix one argument, a whole line:
//! `source <snapshot> 2>/dev/null || true && … && eval '<command>' < /dev/null && pwd -P >| /tmp/claude-XXXX-cwd`
//! (without ` < /dev/null` where the command reads its own input). The tool call's hook saw `<command>`, so its digest
//! is what ties the launch to the decision.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sha2::{Digest, Sha256};

/// The command inside Claude Code's line; `None` for a line of another form: a hook, an MCP server.
pub fn command_of_line(line: &[u8]) -> Option<Vec<u8>> {
    parts(line).map(|(command, _)| command)
}

/// The file that Claude Code's line writes its last directory to: `/tmp/claude-XXXX-cwd`, in exactly that form.
pub fn directory_file_of_line(line: &[u8]) -> Option<&Path> {
    let (_, file) = parts(line)?;
    let number = file.strip_prefix(b"/tmp/claude-")?.strip_suffix(b"-cwd")?;
    let plain = (1..=64).contains(&number.len()) && number.iter().all(u8::is_ascii_alphanumeric);
    plain.then(|| Path::new(OsStr::from_bytes(file)))
}

/// The command of a line, and the file at its end.
fn parts(line: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let start = top_level_eval(line)?;
    let (command, rest) = word(&line[start..])?;
    let rest = rest.strip_prefix(b" < /dev/null").unwrap_or(rest);
    let file = rest.strip_prefix(b" && pwd -P >| ")?;
    let one_word = !file.is_empty() && !file.iter().any(|b| b.is_ascii_whitespace() || b";&|<>()`$".contains(b));
    one_word.then_some((command, file))
}

/// SHA-256 of a command, as decisions and plans carry it.
pub fn digest(command: &[u8]) -> [u8; 32] {
    Sha256::digest(command).into()
}

/// SHA-256 of a command given as words (`ringfence run -- CMD…`): the words, each ended by a NUL.
pub fn digest_of_words<W: AsRef<[u8]>>(words: &[W]) -> [u8; 32] {
    let mut state = Sha256::new();
    for word in words {
        state.update(word.as_ref());
        state.update([0]);
    }
    state.finalize().into()
}

/// Where the argument of the first `&& eval ` begins that no quote hides.
fn top_level_eval(line: &[u8]) -> Option<usize> {
    const INTRODUCTION: &[u8] = b"&& eval ";
    let mut at = 0;
    while at < line.len() {
        match line[at] {
            b'\\' => at += 2,
            b'\'' => at += line[at + 1..].iter().position(|b| *b == b'\'')? + 2,
            b'"' => at += double_quoted_length(&line[at..])?,
            b'&' if line[at..].starts_with(INTRODUCTION) => return Some(at + INTRODUCTION.len()),
            _ => at += 1,
        }
    }
    None
}

/// Length of a `"…"` with its quotes.
fn double_quoted_length(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 2,
            b'"' => return Some(at + 1),
            _ => at += 1,
        }
    }
    None
}

/// One shell word without expansions, and what follows it. The host quotes only where it must: `make` stands bare, a
/// quote inside is `'"'"'` or `'\''`.
fn word(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut word = Vec::with_capacity(text.len());
    let mut rest = text;
    loop {
        rest = match rest {
            [] | [b' ', ..] if rest.len() < text.len() => return Some((word, rest)),
            [b'\'', after @ ..] => {
                let end = after.iter().position(|b| *b == b'\'')?;
                word.extend_from_slice(&after[..end]);
                &after[end + 1..]
            }
            [b'"', ..] => {
                let (inside, after) = rest.split_at(double_quoted_length(rest)?);
                double_quoted(&inside[1..inside.len() - 1], &mut word)?;
                after
            }
            [b'\\', escaped, after @ ..] if *escaped != b'\n' => {
                word.push(*escaped);
                after
            }
            [plain, after @ ..]
                if plain.is_ascii_alphanumeric() || b"_./:=@%+,-^".contains(plain) || !plain.is_ascii() =>
            {
                word.push(*plain);
                after
            }
            _ => return None,
        };
    }
}

/// What stands between double quotes; `None` where the shell would expand something.
fn double_quoted(text: &[u8], word: &mut Vec<u8>) -> Option<()> {
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => match bytes.next()? {
                escaped @ (b'"' | b'\\' | b'$' | b'`') => word.push(*escaped),
                b'\n' => {}
                other => word.extend([b'\\', *other]),
            },
            b'$' | b'`' => return None,
            other => word.push(*other),
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How the host quotes, as recorded from 2.1.197 and 2.1.332.
    fn line_332(command: &str, own_input: bool) -> Vec<u8> {
        let quoted = command.replace('\'', "'\"'\"'");
        format!(
            "source /home/user/.claude/shell-snapshots/snapshot-bash-1796062795587-5md671.sh 2>/dev/null || true && \
             {{ \\builtin shopt -u extglob || \\builtin setopt NO_EXTENDED_GLOB NO_BARE_GLOB_QUAL NO_BRACE_CCL \
             NO_MAGIC_EQUAL_SUBST NO_RC_QUOTES NO_EQUALS; }} >/dev/null 2>&1 || true && {{ \\builtin unalias -- \
             'which'; \\builtin unset -f -- 'which'; }} >/dev/null 2>&1 || true && eval '{quoted}'{} && pwd -P >| \
             /tmp/claude-55b7-cwd",
            if own_input { "" } else { " < /dev/null" }
        )
        .into_bytes()
    }

    /// The form that 2.1.332 puts in front when the command has brace or quote constructs.
    fn line_332_guarded(command: &str) -> Vec<u8> {
        let mut line = b"{ case \"${BASH_VERSINFO-}\" in '2'|'3') \\builtin printf '%s\\n' \
            '__CLAUDE_CODE_DID_NOT_RUN_BASH_TOO_OLD='\"${BASH_VERSION-}\" >&2; \\builtin exit 126; \\exit 126;; esac; } && "
            .to_vec();
        line.extend(line_332(command, false));
        line
    }

    fn line_197(command: &str) -> Vec<u8> {
        let quoted = command.replace('\'', "'\"'\"'");
        format!(
            "source /home/user/.claude/shell-snapshots/snapshot-bash-1796062802369-lukgll.sh 2>/dev/null || true && \
             {{ shopt -u extglob || setopt NO_EXTENDED_GLOB NO_BARE_GLOB_QUAL; }} >/dev/null 2>&1 || true && eval \
             '{quoted}' < /dev/null && pwd -P >| /tmp/claude-0c1f-cwd"
        )
        .into_bytes()
    }

    /// The commands that were given to both real versions.
    const COMMANDS: [&str; 15] = [
        "echo hi > canary.txt",
        "echo 'single' \"double\" $HOME `id -u`",
        "printf 'a\\nb'\necho second\n",
        "cat <<'EOF'\nit's $x\nEOF\necho done",
        "echo hi | cat",
        "git commit -m \"it's\" || true",
        "echo \"bang!\" '!'",
        "cd /tmp && echo x",
        "echo hi &",
        "echo 'eval '\\''x'\\'' < /dev/null && pwd -P >| y'",
        "echo a\\\nb",
        "cat - | wc",
        "sleep 0 < /dev/null",
        "echo é\tü",
        "wc -l <<< \"x\" ; exit 3",
    ];

    #[test]
    fn each_recorded_form_gives_the_command_back() {
        for command in COMMANDS {
            for line in
                [line_332(command, false), line_332(command, true), line_332_guarded(command), line_197(command)]
            {
                assert_eq!(
                    command_of_line(&line).as_deref(),
                    Some(command.as_bytes()),
                    "{}",
                    String::from_utf8_lossy(&line)
                );
            }
        }
    }

    #[test]
    fn a_command_that_needs_no_quotes_or_has_others_is_found_too() {
        let frame = |word: &str| {
            format!("source /s 2>/dev/null || true && eval {word} < /dev/null && pwd -P >| /tmp/claude-1-cwd")
        };
        for (quoted, command) in [
            ("make", "make"),
            ("./run.sh", "./run.sh"),
            ("ls\\;pwd", "ls;pwd"),
            (r#""it's \$HOME""#, "it's $HOME"),
            (r#"'a'\''b'"#, "a'b"),
        ] {
            assert_eq!(command_of_line(frame(quoted).as_bytes()).as_deref(), Some(command.as_bytes()), "{quoted}");
        }
        for not_plain in ["$(make)", "`make`", r#""$x""#, "a;b", ""] {
            assert_eq!(command_of_line(frame(not_plain).as_bytes()), None, "{not_plain}");
        }
    }

    #[test]
    fn a_command_that_imitates_the_frame_stays_inside_its_quotes() {
        let inner = "true' && eval 'evil' < /dev/null && pwd -P >| /tmp/claude-0000-cwd";
        assert_eq!(command_of_line(&line_332(inner, false)).as_deref(), Some(inner.as_bytes()));
    }

    #[test]
    fn other_lines_are_no_tool_command() {
        for line in [
            "",
            "/usr/bin/python3 /opt/hook.py PreToolUse",
            "eval 'x' < /dev/null && pwd -P >| /tmp/f",
            "true && eval 'x",
            "true && eval 'x' ; rm y && pwd -P >| /tmp/f",
            "true && eval 'x' < /dev/null && pwd -P >| /tmp/f; rm y",
            "echo \"&& eval 'x'\" && pwd -P >| /tmp/f",
            "true && eval 'x'$y < /dev/null && pwd -P >| /tmp/f",
        ] {
            assert_eq!(command_of_line(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn only_the_hosts_own_form_names_a_directory_file() {
        let file = |path: &str| {
            let line = format!("true && eval 'x' < /dev/null && pwd -P >| {path}");
            directory_file_of_line(line.as_bytes()).map(|path| path.to_str().unwrap().to_owned())
        };
        assert_eq!(file("/tmp/claude-55b7-cwd").as_deref(), Some("/tmp/claude-55b7-cwd"));
        for other in ["/home/u/.bashrc", "/tmp/claude-../x-cwd", "/tmp/claude--cwd", "/tmp/claude-1-cwd/x"] {
            assert_eq!(file(other), None, "{other}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_kept() {
        let mut line = b"true && eval '".to_vec();
        line.extend([0xff, 0xfe]);
        line.extend(b"' && pwd -P >| /tmp/f");
        assert_eq!(command_of_line(&line), Some(vec![0xff, 0xfe]));
    }

    #[test]
    fn words_are_not_the_same_when_split_otherwise() {
        assert_ne!(digest_of_words(&["a b"]), digest_of_words(&["a", "b"]));
    }
}
