//! Programs that run another program: what they run, by a table of how each is called.
#![forbid(unsafe_code)]

use super::{COMMAND_BYTES, Command, Field, Flow, Options, UNKNOWN};

/// What a command starts.
pub(super) enum Inner {
    /// Another command by its words.
    Argv {
        words: Vec<Field>,
        env: Vec<(String, Field)>,
        cwd: Option<String>,
        via: &'static str,
        remote: bool,
        stdin: Option<Flow>,
    },
    /// Program text.
    Script { flow: Flow, positional: Vec<Field>, via: &'static str, remote: bool, in_place: bool },
    /// What comes on standard input is the program.
    Stdin { via: &'static str, positional: Vec<Field> },
    /// A file is the program.
    File { path: String, via: &'static str, positional: Vec<Field>, in_place: bool },
    /// Program text that runs beside what the command itself does.
    Beside(Flow),
}

/// A program whose operands are the command that it runs.
struct Prefix {
    name: &'static str,
    /// Options that take a value.
    valued: &'static str,
    /// Operands before the command.
    skip: usize,
}

const PREFIXES: [Prefix; 46] = [
    prefix("command", "", 0),
    prefix("builtin", "", 0),
    prefix("exec", "a", 0),
    prefix("nohup", "", 0),
    prefix("setsid", "", 0),
    prefix("nice", "n adjustment", 0),
    prefix("ionice", "c n class classdata p P u", 0),
    prefix("timeout", "k s kill-after signal", 1),
    prefix("gtimeout", "k s kill-after signal", 1),
    prefix("stdbuf", "i o e input output error", 0),
    prefix("time", "f o format output", 0),
    prefix("chrt", "T P D", 1),
    prefix("taskset", "", 1),
    prefix("unbuffer", "", 0),
    prefix("strace", "o e p s u E P S a b I O X", 0),
    prefix("ltrace", "o e p s u n l x a A D F", 0),
    prefix("catchsegv", "", 0),
    prefix("numactl", "N m p C l i membind cpunodebind preferred interleave", 0),
    prefix("prlimit", "p", 0),
    prefix("proxychains", "f", 0),
    prefix("proxychains4", "f", 0),
    prefix("torsocks", "", 0),
    prefix("fakeroot", "l s i b", 0),
    prefix("dbus-run-session", "config-file", 0),
    prefix("systemd-inhibit", "what who why mode", 0),
    prefix("chronic", "", 0),
    prefix("ts", "", 0),
    prefix("sudo", "u g p C h D R T r t U user group prompt host chdir chroot", 0),
    prefix("doas", "u C a", 0),
    prefix("pkexec", "user", 0),
    prefix("run0", "u user unit property", 0),
    prefix("runuser", "u g G", 0),
    prefix("setpriv", "reuid regid groups inh-caps bounding-set securebits", 0),
    prefix("chroot", "userspec groups", 1),
    prefix("nsenter", "t S G r w target setuid setgid root wd", 0),
    prefix("unshare", "S G R w setuid setgid root wd", 0),
    prefix("bwrap", "", 0),
    prefix(
        "systemd-run",
        "u p E M H unit property setenv machine host slice description on-active on-calendar working-directory uid gid nice",
        0,
    ),
    prefix("busybox", "", 0),
    prefix("toybox", "", 0),
    prefix("xvfb-run", "n s e f p server-num server-args", 0),
    prefix("caffeinate", "t w", 0),
    prefix("cgexec", "g", 0),
    prefix("firejail", "", 0),
    prefix("then", "", 0),
    prefix("uv-run", "", 0),
];

const fn prefix(name: &'static str, valued: &'static str, skip: usize) -> Prefix {
    Prefix { name, valued, skip }
}

/// Shells, whose `-c` text, standard input or first operand is a program.
pub(crate) fn is_shell(program: &str) -> bool {
    matches!(program, "sh" | "bash" | "dash" | "zsh" | "ksh" | "mksh" | "ash" | "fish" | "rbash" | "-bash" | "-sh")
}

/// What the command starts; empty for a program that is only itself.
pub(super) fn unwrap(command: &Command) -> Vec<Inner> {
    let args = command.args();
    let program = command.program.as_str();
    if is_shell(program) {
        return shell(args);
    }
    if let Some(prefix) = PREFIXES.iter().find(|prefix| prefix.name == program) {
        return prefixed(prefix, args);
    }
    match program {
        "env" => env(args),
        "xargs" => xargs(command),
        "parallel" => parallel(command),
        "find" => find(args),
        "fd" | "fdfind" => after_option(args, &["-x", "-X", "--exec", "--exec-batch"], "fd"),
        "watch" | "entr" => {
            let options = Options::read(args, "n d interval", true);
            script_of(options.operands.iter().copied(), "watch", false)
        }
        "script" => match Options::read(args, "c command E I O B T m", false).value(&["-c", "--command"]) {
            Some(text) => vec![script(text, Vec::new(), "script")],
            None => Vec::new(),
        },
        "su" => match Options::read(args, "c command g G s w", false).value(&["-c", "--command"]) {
            Some(text) => vec![script(text, Vec::new(), "su")],
            None => Vec::new(),
        },
        "flock" => {
            let options = Options::read(args, "w E timeout c command", true);
            match options.value(&["-c", "--command"]) {
                Some(text) => vec![script(text, Vec::new(), "flock")],
                None => argv(options.operands.iter().skip(1).copied().cloned().collect(), "flock"),
            }
        }
        "ssh" | "mosh" | "autossh" => ssh(args),
        "docker" | "podman" | "nerdctl" => container(args),
        "kubectl" | "oc" => match args.iter().position(|arg| arg.text == "--") {
            Some(at) if args.first().is_some_and(|arg| matches!(arg.text.as_str(), "exec" | "run" | "debug")) => {
                remote(args[at + 1..].to_vec(), "kubectl")
            }
            _ => Vec::new(),
        },
        "git" => git(args),
        "npx" | "bunx" | "pnpx" => {
            let options = Options::read(args, "c call p package", false);
            options.value(&["-c", "--call"]).map(|text| script(text, Vec::new(), "npx")).into_iter().collect()
        }
        // The dynamic loader runs the program that is its first operand.
        _ if program.starts_with("ld-linux") || program.starts_with("ld-musl") || program == "ld.so" => {
            argv(operands(args, "library-path preload argv0 audit inhibit-rpath"), "ld.so")
        }
        _ => Vec::new(),
    }
}

fn operands(args: &[Field], valued: &str) -> Vec<Field> {
    Options::read(args, valued, true).operands.into_iter().cloned().collect()
}

fn argv(words: Vec<Field>, via: &'static str) -> Vec<Inner> {
    if words.is_empty() {
        return Vec::new();
    }
    vec![Inner::Argv { words, env: Vec::new(), cwd: None, via, remote: false, stdin: None }]
}

fn remote(words: Vec<Field>, via: &'static str) -> Vec<Inner> {
    if words.is_empty() {
        return Vec::new();
    }
    vec![Inner::Argv { words, env: Vec::new(), cwd: None, via, remote: true, stdin: None }]
}

fn script(text: &Field, positional: Vec<Field>, via: &'static str) -> Inner {
    let flow = Flow { text: Some(text.text.clone()), sources: text.sources.clone() };
    Inner::Script { flow, positional, via, remote: false, in_place: false }
}

/// Words that are joined by blanks into one program text.
fn script_of<'a>(words: impl Iterator<Item = &'a Field>, via: &'static str, remote: bool) -> Vec<Inner> {
    let mut flow = Flow::empty();
    for word in words {
        let text = flow.text.get_or_insert_default();
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(&word.text);
        flow.sources.extend(word.sources.iter().cloned());
    }
    if flow.text.as_deref().is_none_or(str::is_empty) {
        return Vec::new();
    }
    vec![Inner::Script { flow, positional: Vec::new(), via, remote, in_place: false }]
}

fn prefixed(prefix: &Prefix, args: &[Field]) -> Vec<Inner> {
    if prefix.name == "command" && args.first().is_some_and(|arg| matches!(arg.text.as_str(), "-v" | "-V")) {
        return Vec::new();
    }
    let options = Options::read(args, prefix.valued, true);
    if prefix.name == "sudo" && options.has(&["-e", "-l", "-v", "-k", "-K", "--edit", "--list"]) {
        return Vec::new();
    }
    let words: Vec<Field> = options.operands.into_iter().skip(prefix.skip).cloned().collect();
    // `sudo VAR=x cmd`, `nice -n 5 VAR=…` is no assignment for the others, and no program either.
    let start = words.iter().position(|word| !is_assignment(&word.text)).unwrap_or(words.len());
    let env = words[..start].iter().filter_map(split_assignment).collect();
    let words = words[start..].to_vec();
    if words.is_empty() {
        let shell = matches!(prefix.name, "sudo" | "chroot" | "nsenter" | "unshare")
            .then_some(Inner::Stdin { via: prefix.name, positional: Vec::new() });
        return shell.into_iter().collect();
    }
    vec![Inner::Argv { words, env, cwd: None, via: prefix.name, remote: false, stdin: None }]
}

fn is_assignment(text: &str) -> bool {
    let name = text.split_once('=').map_or("", |(name, _)| name);
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn split_assignment(field: &Field) -> Option<(String, Field)> {
    let (name, value) = field.text.split_once('=')?;
    Some((name.to_owned(), Field { text: value.to_owned(), sources: field.sources.clone() }))
}

fn env(args: &[Field]) -> Vec<Inner> {
    let mut args = args.to_vec();
    let mut cwd = None;
    let mut set = Vec::new();
    while let Some(first) = args.first().cloned() {
        let text = first.text.as_str();
        let (name, attached) = match text.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
            _ if text.starts_with('-') && !text.starts_with("--") && text.len() > 2 && text.is_char_boundary(2) => {
                (&text[..2], Some(text[2..].to_owned()))
            }
            _ => (text, None),
        };
        let valued = matches!(name, "-u" | "--unset" | "-C" | "--chdir" | "-S" | "--split-string" | "-P");
        if valued {
            let skip = if attached.is_some() { 1 } else { 2 };
            let value = attached.or_else(|| args.get(1).map(|field| field.text.clone())).unwrap_or_default();
            args.drain(..skip.min(args.len()));
            match name {
                "-C" | "--chdir" => cwd = Some(value),
                "-S" | "--split-string" => {
                    let words =
                        split_string(&value).into_iter().map(|text| Field { text, sources: first.sources.clone() });
                    args.splice(..0, words);
                }
                _ => {}
            }
        } else if text.starts_with('-') {
            args.remove(0);
            if text == "--" {
                break;
            }
        } else if is_assignment(text) {
            set.extend(split_assignment(&first));
            args.remove(0);
        } else {
            break;
        }
    }
    while args.first().is_some_and(|arg| is_assignment(&arg.text)) {
        set.extend(split_assignment(&args.remove(0)));
    }
    if args.is_empty() {
        return Vec::new();
    }
    vec![Inner::Argv { words: args, env: set, cwd, via: "env", remote: false, stdin: None }]
}

/// `env -S`: blanks, quotes and backslashes; a `${VAR}` is not known.
fn split_string(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut present = false;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (None, ' ' | '\t' | '\n') => {
                if present {
                    words.push(std::mem::take(&mut word));
                }
                present = false;
                continue;
            }
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            (None | Some('"'), '\\') => match chars.next() {
                Some('_') if quote.is_none() => {
                    if present {
                        words.push(std::mem::take(&mut word));
                    }
                    present = false;
                    continue;
                }
                Some(c) => word.push(c),
                None => {}
            },
            (None | Some('"'), '$') => {
                word.push(UNKNOWN);
                for c in chars.by_ref() {
                    if c == '}' {
                        break;
                    }
                }
            }
            (_, c) => word.push(c),
        }
        present = true;
    }
    if present {
        words.push(word);
    }
    words
}

fn shell(args: &[Field]) -> Vec<Inner> {
    let mut command = false;
    let mut stdin = false;
    let mut at = 0;
    while let Some(arg) = args.get(at) {
        let text = arg.text.as_str();
        let Some(flags) = text.strip_prefix(['-', '+']).filter(|flags| !flags.is_empty()) else { break };
        at += 1;
        if text == "--" {
            break;
        }
        if let Some(long) = text.strip_prefix("--") {
            if matches!(long, "rcfile" | "init-file") {
                at += 1;
            }
            if matches!(long, "version" | "help") {
                return Vec::new();
            }
            continue;
        }
        if text.starts_with('-') {
            // Only checks the grammar.
            if flags.contains('n') {
                return Vec::new();
            }
            command |= flags.contains('c');
            stdin |= flags.contains('s');
        }
        if flags.ends_with(['o', 'O']) {
            at += 1;
        }
    }
    let rest = args.get(at..).unwrap_or_default();
    match rest.first() {
        Some(text) if command => {
            let positional = rest.get(2..).unwrap_or_default().to_vec();
            vec![script(text, positional, "sh -c")]
        }
        Some(_) if stdin => vec![Inner::Stdin { via: "sh", positional: rest.to_vec() }],
        None => vec![Inner::Stdin { via: "sh", positional: Vec::new() }],
        Some(file) if matches!(file.text.as_str(), "-" | "/dev/stdin") => {
            vec![Inner::Stdin { via: "sh", positional: rest[1..].to_vec() }]
        }
        Some(file) => {
            vec![Inner::File { path: file.text.clone(), via: "sh", positional: rest[1..].to_vec(), in_place: false }]
        }
    }
}

/// What comes down the pipe, as words.
fn items(flow: &Flow, lines: bool) -> Vec<Field> {
    let Some(text) = &flow.text else {
        return vec![Field { text: UNKNOWN.to_string(), sources: flow.sources.clone() }];
    };
    let split = |c: char| if lines { matches!(c, '\n' | '\0') } else { c.is_whitespace() || c == '\0' };
    let words = text.split(split).filter(|word| !word.is_empty()).take(64);
    words.map(|word| Field { text: word.trim_matches(['\'', '"']).to_owned(), sources: flow.sources.clone() }).collect()
}

fn xargs(command: &Command) -> Vec<Inner> {
    let options = Options::read(
        command.args(),
        "a d E I L n P s arg-file delimiter replace max-lines max-args max-procs max-chars",
        true,
    );
    let mut words: Vec<Field> = options.operands.iter().copied().cloned().collect();
    if words.is_empty() {
        words.push(Field::literal("echo"));
    }
    let lines = options.has(&["-0", "--null", "-d", "--delimiter", "-I", "--replace"]);
    let given = match options.value(&["-a", "--arg-file"]) {
        Some(file) => {
            vec![Field { text: UNKNOWN.to_string(), sources: [super::Source::File(command.path(&file.text))].into() }]
        }
        None => items(&command.stdin, lines),
    };
    match options.value(&["-I", "--replace"]).map(|token| token.text.clone()).filter(|token| !token.is_empty()) {
        Some(token) => given.iter().flat_map(|item| argv(replaced(&words, &token, item), "xargs")).collect(),
        None => {
            words.extend(given);
            argv(words, "xargs")
        }
    }
    .into_iter()
    .map(|inner| match inner {
        Inner::Argv { words, env, cwd, via, remote, .. } => {
            Inner::Argv { words, env, cwd, via, remote, stdin: Some(Flow::empty()) }
        }
        other => other,
    })
    .collect()
}

fn replaced(words: &[Field], token: &str, item: &Field) -> Vec<Field> {
    let replace = |word: &Field| {
        let places = word.text.matches(token).count();
        if places == 0 {
            return word.clone();
        }
        if places * item.text.len() > COMMAND_BYTES {
            return Field { text: UNKNOWN.to_string(), sources: item.sources.clone() };
        }
        Field {
            text: word.text.replace(token, &item.text),
            sources: word.sources.union(&item.sources).cloned().collect(),
        }
    };
    words.iter().map(replace).collect()
}

fn parallel(command: &Command) -> Vec<Inner> {
    let args = command.args();
    let at = args.iter().position(|arg| matches!(arg.text.as_str(), ":::" | "::::" | ":::+")).unwrap_or(args.len());
    let valued = "j a I S d n N L jobs arg-file delay joblog results tmpdir timeout retries colsep C sshlogin max-args";
    let words: Vec<Field> = Options::read(&args[..at], valued, true).operands.into_iter().cloned().collect();
    let given: Vec<Field> = match args.get(at).map(|arg| arg.text.as_str()) {
        Some(":::" | ":::+") => args[at + 1..].iter().filter(|arg| !arg.text.starts_with(":::")).cloned().collect(),
        Some(_) => vec![Field::literal(UNKNOWN)],
        None => items(&command.stdin, true),
    };
    if words.is_empty() {
        // Each argument is a command line of its own.
        return given.iter().map(|item| script(item, Vec::new(), "parallel")).collect();
    }
    let has_place = words.iter().any(|word| word.text.contains("{}") || word.text.contains("{."));
    let runs = given.iter().take(64).flat_map(|item| {
        let mut words = replaced(&words, "{}", item);
        if !has_place {
            words.push(item.clone());
        }
        // The words are put into a shell's line: one word may hold several.
        script_of(words.iter(), "parallel", false)
    });
    runs.collect()
}

/// `find … -exec CMD ; … -delete`: the place holder is something below each root.
fn find(args: &[Field]) -> Vec<Inner> {
    let roots = find_roots(args);
    let mut inners = Vec::new();
    let mut at = 0;
    while let Some(arg) = args.get(at) {
        at += 1;
        if !matches!(arg.text.as_str(), "-exec" | "-execdir" | "-ok" | "-okdir") {
            continue;
        }
        let end =
            args[at..].iter().position(|arg| matches!(arg.text.as_str(), ";" | "+")).map_or(args.len(), |end| at + end);
        for root in &roots {
            let item =
                Field { text: format!("{}/{UNKNOWN}", root.text.trim_end_matches('/')), sources: root.sources.clone() };
            inners.extend(argv(replaced(&args[at..end], "{}", &item), "find"));
        }
        at = end;
    }
    inners
}

/// Where `find` starts: its operands before the first expression.
pub(super) fn find_roots(args: &[Field]) -> Vec<Field> {
    let mut roots: Vec<Field> = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.text.as_str() {
            "-H" | "-L" | "-P" => {}
            "-D" => drop(args.next()),
            text if text.starts_with("-O") => {}
            text if text.starts_with('-') || matches!(text, "(" | "!" | ")") => break,
            _ => roots.push(arg.clone()),
        }
    }
    if roots.is_empty() {
        roots.push(Field::literal("."));
    }
    roots
}

fn after_option(args: &[Field], names: &[&str], via: &'static str) -> Vec<Inner> {
    let Some(at) = args.iter().position(|arg| names.contains(&arg.text.as_str())) else { return Vec::new() };
    let words = args[at + 1..].iter().take_while(|arg| arg.text != ";").cloned().collect::<Vec<_>>();
    let item = Field::literal(format!("./{UNKNOWN}"));
    let mut words = replaced(&words, "{}", &item);
    if !args[at + 1..].iter().any(|arg| arg.text.contains('{')) {
        words.push(item);
    }
    argv(words, via)
}

pub(crate) const SSH_VALUED: &str = "B b c D E e F I i J L l m O o P p Q R S W w";

fn ssh(args: &[Field]) -> Vec<Inner> {
    let options = Options::read(args, SSH_VALUED, true);
    let mut inners: Vec<Inner> = Vec::new();
    for option in options.values(&["-o"]) {
        let text = option.text.trim_start();
        let name = text.split(['=', ' ']).next().unwrap_or("").to_ascii_lowercase();
        if matches!(name.as_str(), "proxycommand" | "localcommand" | "knownhostscommand" | "remotecommand") {
            let program = text[name.len()..].trim_start_matches(['=', ' ']);
            inners.push(Inner::Beside(Flow { text: Some(program.to_owned()), sources: option.sources.clone() }));
        }
    }
    let mut words = options.operands.into_iter().skip(1).peekable();
    if words.peek().is_some() {
        inners.extend(script_of(words, "ssh", true));
    }
    inners
}

/// `docker run|exec`: with a mount from outside the container's paths are the host's.
fn container(args: &[Field]) -> Vec<Inner> {
    let verb = args.iter().position(|arg| matches!(arg.text.as_str(), "run" | "exec" | "create"));
    let Some(verb) = verb.filter(|at| *at < 3) else { return Vec::new() };
    let valued = "v volume e env w workdir u user name p publish network net mount entrypoint l label m memory cpus platform add-host h hostname \
                  cap-add cap-drop security-opt device env-file ulimit tmpfs shm-size restart pid ipc uts userns group-add gpus log-driver pull";
    let options = Options::read(&args[verb + 1..], valued, true);
    let mounts: Vec<(String, String)> = options
        .values(&["-v", "--volume"])
        .filter_map(|field| {
            let mut parts = field.text.splitn(3, ':');
            Some((parts.next()?.to_owned(), parts.next()?.trim_end_matches('/').to_owned()))
        })
        .collect();
    let mut words: Vec<Field> = options.operands.iter().skip(1).copied().cloned().collect();
    if let Some(entry) = options.value(&["--entrypoint"]) {
        words.insert(0, entry.clone());
    }
    let mut mapped = false;
    for word in &mut words {
        for (host, inside) in &mounts {
            if inside.is_empty() || host.starts_with('.') || !host.starts_with('/') {
                continue;
            }
            let at = word.text.find(inside.as_str());
            if let Some(at) = at.filter(|at| {
                word.text[*at + inside.len()..].is_empty() || word.text[*at + inside.len()..].starts_with('/')
            }) {
                word.text.replace_range(at..at + inside.len(), host);
                mapped = true;
            }
        }
    }
    if words.is_empty() {
        return Vec::new();
    }
    vec![Inner::Argv { words, env: Vec::new(), cwd: None, via: "container", remote: !mapped, stdin: None }]
}

/// Programs in git's own configuration, given for one call.
fn git(args: &[Field]) -> Vec<Inner> {
    let mut inners = Vec::new();
    let options = Options::read(args, "c C git-dir work-tree exec-path namespace config-env", true);
    let verb = options.operands.first().map_or("", |field| field.text.as_str());
    for setting in options.values(&["-c", "--config-env"]) {
        let Some((key, value)) = setting.text.split_once('=') else { continue };
        let key = key.to_ascii_lowercase();
        let program = match value.strip_prefix('!') {
            Some(program) if key.strip_prefix("alias.").is_none_or(|alias| alias == verb) => program,
            None if matches!(
                key.as_str(),
                "core.sshcommand"
                    | "core.pager"
                    | "core.editor"
                    | "core.fsmonitor"
                    | "core.askpass"
                    | "sequence.editor"
                    | "diff.external"
                    | "gpg.program"
                    | "credential.helper"
            ) && !matches!(value, "true" | "false" | "" | "cat" | ":") =>
            {
                value
            }
            _ => continue,
        };
        inners.push(Inner::Beside(Flow { text: Some(program.to_owned()), sources: setting.sources.clone() }));
    }
    let rest: Vec<Field> = options.operands.iter().skip(1).copied().cloned().collect();
    match verb {
        "submodule" if rest.first().is_some_and(|arg| arg.text == "foreach") => {
            let words: Vec<&Field> = rest[1..].iter().filter(|arg| !arg.text.starts_with('-')).collect();
            inners.extend(script_of(words.into_iter(), "git submodule foreach", false));
        }
        "bisect" if rest.first().is_some_and(|arg| arg.text == "run") => {
            inners.extend(argv(rest[1..].to_vec(), "git bisect"))
        }
        "rebase" => {
            for text in Options::read(&rest, "x exec onto s X strategy", false).values(&["-x", "--exec"]) {
                inners.push(Inner::Beside(Flow { text: Some(text.text.clone()), sources: text.sources.clone() }));
            }
        }
        "filter-branch" => {
            let options = Options::read(&rest, "tree-filter index-filter env-filter msg-filter commit-filter", false);
            for (_, value) in &options.options {
                inners.extend(
                    value.iter().map(|text| {
                        Inner::Beside(Flow { text: Some(text.text.clone()), sources: text.sources.clone() })
                    }),
                );
            }
        }
        _ => {}
    }
    inners
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_split_as_env_does() {
        assert_eq!(split_string("a 'b c' \"d\\\"e\" f\\_g"), ["a", "b c", "d\"e", "f", "g"]);
    }
}
