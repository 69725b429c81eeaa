//! The shell line that a host hands to its shell or launcher, and the command inside it.
//!
//! Claude Code runs `source SNAPSHOT … && eval COMMAND < /dev/null && pwd -P >| FILE`, where everything around COMMAND is
//! the host's own; under a shell prefix that whole line is one more word: `PREFIX 'line'`.
#![forbid(unsafe_code)]

use crate::fence::line;

/// Longest line that is read, in bytes.
const LINE_BYTES: usize = 256 << 10;

/// The arguments as the kernel copied them: NUL-separated.
pub(super) fn arguments(argv: &[u8]) -> Vec<&[u8]> {
    let argv = argv.strip_suffix(b"\0").unwrap_or(argv);
    argv.split(|b| *b == 0).collect()
}

/// The command that a host's line runs, from the arguments of the shell or launcher that got the line.
pub(super) fn command_of(arguments: &[&[u8]]) -> Option<Vec<u8>> {
    line::command_of_line(&host_line(arguments)?)
}

/// The host's whole line: the last argument, out of one `PREFIX '…'` around it.
pub(super) fn host_line(arguments: &[&[u8]]) -> Option<Vec<u8>> {
    let line = *arguments.last().filter(|_| arguments.len() >= 2)?;
    if line.len() > LINE_BYTES {
        return None;
    }
    match words(line).as_deref() {
        Some([Token::Word(_), Token::Word(inner)]) if inner.contains(&b' ') => Some(inner.clone()),
        _ => Some(line.to_vec()),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Word(Vec<u8>),
    Operator,
}

/// Splits as a shell does, as far as quoting goes: expansions stay as they are written. `None` for an open quote.
fn words(line: &[u8]) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut rest = line.iter().copied();
    while let Some(byte) = rest.next() {
        match byte {
            b'\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next()? {
                        b'\'' => break,
                        other => word.push(other),
                    }
                }
            }
            b'"' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next()? {
                        b'"' => break,
                        b'\\' => match rest.next()? {
                            plain @ (b'"' | b'\\' | b'$' | b'`') => word.push(plain),
                            b'\n' => {}
                            other => word.extend([b'\\', other]),
                        },
                        other => word.push(other),
                    }
                }
            }
            b'\\' => match rest.next()? {
                b'\n' => {}
                other => word.get_or_insert_default().push(other),
            },
            b' ' | b'\t' | b'\n' => tokens.extend(word.take().map(Token::Word)),
            b'&' | b'|' | b';' | b'<' | b'>' | b'(' | b')' => {
                tokens.extend(word.take().map(Token::Word));
                if tokens.last() != Some(&Token::Operator) {
                    tokens.push(Token::Operator);
                }
            }
            other => word.get_or_insert_default().push(other),
        }
    }
    tokens.extend(word.take().map(Token::Word));
    Some(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "source /h/.claude/shell-snapshots/snapshot-bash-1-a.sh 2>/dev/null || true && { \\builtin shopt -u \
                          extglob || \\builtin setopt NO_EXTENDED_GLOB; } >/dev/null 2>&1 || true && { \\builtin unalias -- \
                          'which'; \\builtin unset -f -- 'which'; } >/dev/null 2>&1 || true && ";

    fn command(line: &str) -> Option<String> {
        command_of(&[b"/bin/bash", b"-c", line.as_bytes()]).map(|c| String::from_utf8(c).unwrap())
    }

    #[test]
    fn the_command_is_the_word_after_the_hosts_eval() {
        for (written, meant) in [
            ("ls", "ls"),
            ("'echo hi > canary.txt; ls | wc -l'", "echo hi > canary.txt; ls | wc -l"),
            (r#"'echo "it'"'"'s" '"'"'q'"'"' | cat'"#, r#"echo "it's" 'q' | cat"#),
            ("'echo a && \\\n echo '\"'\"'b'\"'\"''", "echo a && \\\n echo 'b'"),
            ("'cat <<EOF\nhello $USER\nEOF'", "cat <<EOF\nhello $USER\nEOF"),
            ("'true && eval '\"'\"'rm -rf /'\"'\"''", "true && eval 'rm -rf /'"),
        ] {
            let line = format!("{BEFORE}eval {written} < /dev/null && pwd -P >| /tmp/claude-1-cwd");
            assert_eq!(command(&line).as_deref(), Some(meant));
            let quoted = format!("/usr/lib/ringfence/ringfence-exec '{}'", line.replace('\'', r#"'"'"'"#));
            assert_eq!(command(&quoted).as_deref(), Some(meant), "under a prefix: {quoted}");
            assert_eq!(command_of(&[b"/x/ringfence-exec", line.as_bytes()]).as_deref(), Some(meant.as_bytes()));
        }
    }

    #[test]
    fn other_lines_hold_no_command() {
        for line in ["eval 'ls'", "ls && eval 'x'", "source a && eval 'open", "env", "", "git status"] {
            assert_eq!(command(line), None, "{line}");
        }
        assert_eq!(command_of(&[b"bash"]), None);
        assert_eq!(command_of(&[]), None);
    }

    #[test]
    fn arguments_are_split_at_nul() {
        assert_eq!(arguments(b"git\0status\0"), [&b"git"[..], b"status"]);
        assert_eq!(arguments(b"a\0\0b"), [&b"a"[..], b"", b"b"]);
    }
}
