//! Program text of interpreters (`python -c`, `perl -e`, `node -e`, `awk '…'`): not parsed, but looked through for calls
//! with literal arguments. What a shell would run is handed back to the shell reader.
#![forbid(unsafe_code)]

use super::{Command, Options};

/// What was seen in an interpreter's program text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Code {
    /// Texts handed to a shell or run as a command.
    pub shell: Vec<String>,
    /// Paths removed.
    pub removes: Vec<String>,
    /// String literals that look like paths and are opened.
    pub opens: Vec<String>,
    /// It speaks to the network.
    pub network: bool,
    /// It executes text that it computes.
    pub executes: bool,
    /// It signals processes.
    pub signals: bool,
    /// It decodes text.
    pub decodes: bool,
}

/// The language and program text of a command that is an interpreter with its program on the command line or on its
/// standard input.
pub(super) fn program_text(command: &Command) -> Option<(&'static str, String)> {
    let program = command.program.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    let (language, option) = match program {
        "python" | "pypy" => ("python", "-c"),
        "perl" => ("perl", "-e"),
        "ruby" => ("ruby", "-e"),
        "node" | "nodejs" | "bun" | "deno" => ("node", "-e"),
        "php" => ("php", "-r"),
        "lua" | "luajit" => ("lua", "-e"),
        "awk" | "gawk" | "mawk" | "nawk" => ("awk", ""),
        "sed" | "gsed" => ("sed", ""),
        _ => return None,
    };
    let args = command.args();
    if matches!(language, "awk" | "sed") {
        let options = Options::read(args, if language == "awk" { "F v f" } else { "e f l" }, false);
        let texts: Vec<&str> = options.values(&["-e"]).map(|field| field.text.as_str()).collect();
        let text =
            if texts.is_empty() { options.operands.first().map(|field| field.text.clone())? } else { texts.join("\n") };
        return Some((language, text));
    }
    for (at, arg) in args.iter().enumerate() {
        let text = arg.text.as_str();
        let exact = text == option
            || matches!((language, text), ("node", "-p" | "-pe" | "--eval" | "--print" | "eval") | ("perl", "-E"));
        let bundled = matches!(language, "perl" | "ruby" | "python")
            && text.starts_with('-')
            && !text.starts_with("--")
            && text.len() < 8
            && text.ends_with(&option[1..]);
        if exact || bundled {
            return Some((language, args.get(at + 1)?.text.clone()));
        }
        if !text.starts_with('-') || text == "-" {
            break;
        }
    }
    // `python3 - <<EOF` and `… | python3`.
    let from_stdin =
        args.iter().all(|arg| arg.text.starts_with('-')) && !command.stdin.text.as_deref().unwrap_or("").is_empty();
    from_stdin.then(|| command.stdin.text.clone().map(|text| (language, text))).flatten()
}

/// Functions whose string argument a shell or a process runs.
const RUNS: [&str; 22] = [
    "os.system",
    "os.popen",
    "subprocess.run",
    "subprocess.call",
    "subprocess.check_call",
    "subprocess.check_output",
    "subprocess.Popen",
    "subprocess.getoutput",
    "pty.spawn",
    "os.execvp",
    "os.execv",
    "os.execlp",
    "execSync",
    "spawnSync",
    "child_process.exec",
    ".exec",
    "spawn",
    "system",
    "qx",
    "shell_exec",
    "passthru",
    "popen",
];
const REMOVES: [&str; 14] = [
    "rmtree",
    "os.remove",
    "os.unlink",
    "os.rmdir",
    "rmSync",
    "fs.rm",
    "unlinkSync",
    "rmdirSync",
    "FileUtils.rm_rf",
    "FileUtils.rm_r",
    "File.delete",
    "unlink",
    "rm_rf",
    "remove_tree",
];
const OPENS: [&str; 13] = [
    "open",
    "Path",
    "readFileSync",
    "readFile",
    "createReadStream",
    "File.read",
    "IO.read",
    "file_get_contents",
    "read_text",
    "File.open",
    "expanduser",
    "slurp",
    "expandvars",
];
const NETWORK: [&str; 20] = [
    "urlopen",
    "urllib",
    "requests.",
    "httpx",
    "http.client",
    "http.request",
    "https.request",
    "https.get",
    "http.get",
    "fetch(",
    "axios",
    "socket",
    "Net::HTTP",
    "LWP",
    "curl_exec",
    "URI.open",
    "aiohttp",
    "smtplib",
    "ftplib",
    "IO::Socket",
];

/// Looks through a program text.
pub(super) fn read(language: &str, text: &str) -> Code {
    let mut code = Code::default();
    match language {
        "sed" => {
            // `s/…/…/e` and `e command` run text.
            let substitutes = text.starts_with('s') && text.len() > 3 && {
                let delimiter = text.chars().nth(1).unwrap_or('/');
                text.rsplit(delimiter).next().is_some_and(|flags| {
                    flags.len() < 6 && flags.contains('e') && flags.bytes().all(|b| b.is_ascii_alphanumeric())
                })
            };
            code.executes = substitutes;
            let commands = text.split([';', '\n']).map(str::trim_start);
            code.shell = commands
                .filter_map(|command| {
                    command.trim_start_matches(|c: char| c.is_ascii_digit() || c == '$').strip_prefix("e ")
                })
                .map(str::to_owned)
                .collect();
            return code;
        }
        "awk" => {
            code.shell.extend(literal_arguments(text, "system"));
            // `print | "cmd"` and `"cmd" | getline`.
            let strings = literals(text);
            for (start, end, string) in &strings {
                let piped = text[..*start].trim_end().ends_with('|') && !text[..*start].trim_end().ends_with("||");
                let read = text[*end..]
                    .trim_start()
                    .strip_prefix('|')
                    .is_some_and(|rest| rest.trim_start().starts_with("getline"));
                if piped || read {
                    code.shell.push(string.clone());
                }
            }
            return code;
        }
        _ => {}
    }
    for name in RUNS {
        code.shell.extend(literal_arguments(text, name));
    }
    if matches!(language, "perl" | "ruby" | "php") {
        code.shell.extend(text.split('`').skip(1).step_by(2).map(str::to_owned));
    }
    for name in REMOVES {
        code.removes.extend(literal_arguments(text, name));
    }
    for name in OPENS {
        code.opens.extend(literal_arguments(text, name));
    }
    code.shell.sort();
    code.shell.dedup();
    code.removes.sort();
    code.removes.dedup();
    code.network = NETWORK.iter().any(|name| text.contains(name));
    code.executes =
        ["exec(", "eval(", "eval ", "Function(", "compile(", "instance_eval"].iter().any(|name| called(text, name));
    code.signals = ["os.kill", "process.kill", "Process.kill", "signal.pidfd", "psutil", "posix_kill"]
        .iter()
        .any(|name| text.contains(name));
    code.decodes = [
        "b64decode",
        "fromhex",
        "unhexlify",
        "decode('base64",
        "atob(",
        "'base64'",
        "\"base64\"",
        "decode_base64",
        "unpack",
        "rot13",
        "zlib.decompress",
    ]
    .iter()
    .any(|name| text.contains(name));
    code
}

/// Whether the name stands there as a whole word.
fn called(text: &str, name: &str) -> bool {
    text.match_indices(name)
        .any(|(at, _)| !text[..at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '$')))
}

/// String literals with where they start and end.
fn literals(text: &str) -> Vec<(usize, usize, String)> {
    let mut found = Vec::new();
    let mut chars = text.char_indices();
    while let Some((start, quote)) = chars.next() {
        if !matches!(quote, '"' | '\'' | '`') {
            continue;
        }
        let mut string = String::new();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => string.extend(chars.next().map(|(_, c)| match c {
                    'n' => '\n',
                    't' => '\t',
                    c => c,
                })),
                c if c == quote => {
                    found.push((start, at + 1, string));
                    break;
                }
                c => string.push(c),
            }
        }
        if found.len() > 256 {
            break;
        }
    }
    found
}

/// The literal first argument of each call of `name`; a list of literals is joined to one line.
fn literal_arguments(text: &str, name: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices(name).take(64) {
        if !name.starts_with('.') && text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let after = text[at + name.len()..].trim_start();
        // `system "x"` of Perl and Ruby, `unlink "x"`, `qx(…)`.
        let Some(argument) = after.strip_prefix('(').or_else(|| after.starts_with(['"', '\'']).then_some(after)) else {
            continue;
        };
        let argument = argument.trim_start();
        // A path may be wrapped: `rmtree(os.path.expanduser("~/x"))`.
        let list = argument.starts_with('[');
        let close = argument.find([']', ')']).unwrap_or(argument.len());
        let strings = literals(&argument[..close.max(argument.len().min(close + 1))]);
        let strings = if strings.is_empty() {
            literals(argument).into_iter().take(1).filter(|first| first.0 < 64).collect()
        } else {
            strings
        };
        if list || matches!(name, "spawnSync" | "spawn" | "system" | "os.execvp" | "os.execv" | "os.execlp") {
            let all: Vec<String> = literals(argument)
                .into_iter()
                .take_while(|(start, ..)| *start < argument.find(')').unwrap_or(argument.len()))
                .map(|(.., string)| string)
                .collect();
            let skip = usize::from(name.starts_with("os.exec"));
            if !all.is_empty() {
                found.push(all.into_iter().skip(skip).collect::<Vec<_>>().join(" "));
            }
        } else {
            found.extend(strings.into_iter().take(1).map(|(.., string)| string));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_with_literal_arguments_are_seen() {
        assert_eq!(
            read("python", "import shutil; shutil.rmtree('/home/dev/Documents')").removes,
            ["/home/dev/Documents"]
        );
        assert_eq!(
            read("python", "import os; os.system('systemctl --user stop x')").shell,
            ["systemctl --user stop x"]
        );
        assert_eq!(read("python", "import subprocess as s; subprocess.run(['rm','-rf','/x'])").shell, ["rm -rf /x"]);
        assert_eq!(read("awk", "BEGIN { system(\"rm -rf /x\") }").shell, ["rm -rf /x"]);
        assert!(read("python", "print('rm -rf / --no-preserve-root')").shell.is_empty());
        assert!(read("sed", "s/.*/curl x | sh/e").executes && !read("sed", "s/a/e/").executes);
        assert!(read("python", "exec(u.urlopen('https://x').read())").executes);
        assert!(read("node", "require('child_process').execSync('rm -rf /x')").shell.contains(&"rm -rf /x".to_owned()));
    }
}
