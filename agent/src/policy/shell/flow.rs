//! What programs do to data: which files they read and write, and what they print, as far as that is known.
#![forbid(unsafe_code)]

use super::walk::Reader;
use super::{Command, Field, Flow, Options, Source, Sources, UNKNOWN, Write, decode, path, unwrap};

/// Programs that take paths but do not read what is in the files.
const NAMES_ONLY: [&str; 62] = [
    "ls",
    "test",
    "[",
    "stat",
    "file",
    "du",
    "df",
    "realpath",
    "readlink",
    "basename",
    "dirname",
    "echo",
    "printf",
    "cd",
    "mkdir",
    "rmdir",
    "rm",
    "touch",
    "chmod",
    "chown",
    "chgrp",
    "find",
    "fd",
    "tree",
    "export",
    "unset",
    "set",
    "declare",
    "local",
    "readonly",
    "typeset",
    "read",
    "shift",
    "ssh",
    "ssh-add",
    "ssh-keygen",
    "ssh-copy-id",
    "ssh-keyscan",
    "mosh",
    "kubectl",
    "helm",
    "kill",
    "pkill",
    "sleep",
    "which",
    "type",
    "command",
    "true",
    "false",
    ":",
    "shred",
    "truncate",
    "ln",
    "rg-names",
    "eza",
    "exa",
    "lsattr",
    "getfacl",
    "inotifywait",
    "pushd",
    "popd",
    "trap",
];

/// Programs whose first operand is a program text or a pattern, not a file.
const TEXT_FIRST: [&str; 14] =
    ["grep", "egrep", "fgrep", "zgrep", "rg", "ag", "ack", "sed", "awk", "gawk", "mawk", "jq", "yq", "perl"];

impl Reader<'_> {
    /// What the command prints; what it reads and writes is recorded on the way.
    pub(super) fn effects(&mut self, command: &mut Command) -> Flow {
        if command.remote {
            return Flow { text: None, sources: command.stdin.sources.clone() };
        }
        command.reads.extend(self.reads(command));
        self.writes(command);
        let known = self.known_output(command);
        let mut sources: Sources = command.stdin.sources.iter().chain(&command.reads).cloned().collect();
        match known {
            Some(Flow { text, sources: own }) => Flow { text, sources: own },
            None => {
                sources.extend(command.argument_sources());
                Flow { text: None, sources }
            }
        }
    }

    fn contents(&self, command: &Command, field: &Field) -> Sources {
        let mut sources = self.file(&self.real(command.cwd.as_deref(), &field.text)).sources;
        sources.extend(field.sources.iter().cloned());
        sources
    }

    fn reads(&mut self, command: &Command) -> Sources {
        let program = command.program.as_str();
        let args = command.args();
        if NAMES_ONLY.contains(&program) {
            return Sources::new();
        }
        match program {
            "git" => return self.git_reads(command),
            "tar" | "bsdtar" => return self.tar_reads(command),
            "mv" | "cp" | "install" | "rsync" | "scp" | "sftp" | "rclone" => {}
            "docker" | "podman" | "systemctl" | "journalctl" | "npm" | "yarn" | "pnpm" | "pip" | "pip3" | "cargo"
            | "go" | "make" | "cmake" => {
                return Sources::new();
            }
            _ => {}
        }
        let valued = match program {
            "scp" | "sftp" | "rsync" => "i e P F o c J l S s rsh port exclude include filter",
            "curl" => {
                "o output H header X request A user-agent u user e referer m max-time x proxy w write-out O-dir c cookie-jar connect-timeout retry cacert capath unix-socket K-none"
            }
            "wget" => "O P o a U e t T w header output-document directory-prefix user-agent",
            "grep" | "egrep" | "fgrep" | "rg" => "e m A B C g t include exclude",
            "openssl" => "out passin passout",
            "jq" => "arg argjson indent",
            "awk" | "gawk" | "mawk" => "F v",
            "head" | "tail" => "n c",
            "dd" => "",
            _ => "",
        };
        let options = Options::read(args, valued, false);
        let skip = usize::from(TEXT_FIRST.contains(&program) && !options.has(&["-e", "-f", "--regexp", "--file"]));
        let mut sources = Sources::new();
        for field in options.operands.iter().skip(skip) {
            let text = field.text.as_str();
            // Copying writes the last operand; a URL or host:path is no local file.
            let last = options.operands.last().is_some_and(|last| std::ptr::eq(*last, *field));
            if (last
                && matches!(program, "cp" | "mv" | "install" | "rsync" | "scp")
                && !options.has(&["-t", "--target-directory"]))
                || text.contains("://")
            {
                sources.extend(field.sources.iter().cloned());
                continue;
            }
            match text.split_once('=') {
                Some(("if", file)) if program == "dd" => sources
                    .extend(self.contents(command, &Field { text: file.to_owned(), sources: field.sources.clone() })),
                Some((_, value)) => {
                    let file = value.trim_start_matches('@').split(';').next().unwrap_or("");
                    sources.extend(
                        self.contents(command, &Field { text: file.to_owned(), sources: field.sources.clone() }),
                    );
                }
                None => sources.extend(self.contents(
                    command,
                    &Field { text: text.trim_start_matches('@').to_owned(), sources: field.sources.clone() },
                )),
            }
        }
        for (name, value) in &options.options {
            let Some(value) = value else { continue };
            let ignored = valued.split(' ').any(|valued| name.trim_start_matches('-') == valued);
            if !ignored && !value.text.contains("://") {
                let file = value.text.rsplit(['@', '=']).next().unwrap_or("");
                let file = file.split(';').next().unwrap_or("");
                sources
                    .extend(self.contents(command, &Field { text: file.to_owned(), sources: value.sources.clone() }));
            }
        }
        sources
    }

    fn git_reads(&mut self, command: &Command) -> Sources {
        let options = Options::read(command.args(), "c C git-dir work-tree", true);
        let Some((verb, operands)) = options.operands.split_first() else { return Sources::new() };
        match verb.text.as_str() {
            "add" | "stage" => {
                let all = operands.iter().any(|field| matches!(field.text.as_str(), "-A" | "--all" | "." | "-u"));
                let targets = operands
                    .iter()
                    .filter(|field| !field.text.starts_with('-'))
                    .map(|field| field.text.as_str())
                    .chain(all.then_some("."));
                // Only what the action itself put there is known to be in the index.
                let staged: Vec<Source> = targets
                    .flat_map(|target| {
                        let target = self.real(command.cwd.as_deref(), target);
                        let own = self.files.iter().filter(move |(file, _)| path::is_within(file, &target));
                        own.flat_map(|(file, flow)| flow.sources.iter().cloned().chain([Source::File(file.clone())]))
                            .collect::<Vec<_>>()
                    })
                    .collect();
                let named: Vec<Source> = operands
                    .iter()
                    .filter(|field| !field.text.starts_with('-') && field.text != ".")
                    .map(|field| Source::File(self.real(command.cwd.as_deref(), &field.text)))
                    .collect();
                self.staged.extend(staged.into_iter().chain(named));
                Sources::new()
            }
            "push" => self.staged.clone(),
            "diff" | "hash-object" => operands
                .iter()
                .filter(|field| !field.text.starts_with('-'))
                .flat_map(|field| self.contents(command, field))
                .collect(),
            _ => Sources::new(),
        }
    }

    fn tar_reads(&mut self, command: &Command) -> Sources {
        let Tar { create, members, base, .. } = tar(command);
        if !create {
            return Sources::new();
        }
        let base = base.map(|base| self.real(command.cwd.as_deref(), &base)).or_else(|| command.cwd.clone());
        members.iter().flat_map(|member| self.file(&self.real(base.as_deref(), &member.text)).sources).collect()
    }

    fn record(&mut self, command: &Command, target: &str, append: bool, flow: Flow) {
        let path = self.real(command.cwd.as_deref(), target);
        self.action.created.insert(path.clone());
        self.write(Write { path, append, flow, program: command.program.clone() });
    }

    fn writes(&mut self, command: &Command) {
        let args = command.args();
        let program = command.program.as_str();
        let all =
            || Flow { text: None, sources: command.reads.iter().chain(&command.stdin.sources).cloned().collect() };
        match program {
            "tee" => {
                let options = Options::read(args, "", false);
                for field in options.operands.clone() {
                    self.record(command, &field.text, options.has(&["-a", "--append"]), command.stdin.clone());
                }
            }
            "cp" | "mv" | "install" | "rsync" | "ln" | "link" => self.copies(command),
            "dd" => {
                let append = command.texts().any(|text| text.starts_with("oflag=") && text.contains("append"));
                for target in args.iter().filter_map(|field| field.text.strip_prefix("of=")) {
                    self.record(command, target, append, all());
                }
            }
            "sed" | "perl" | "gsed" if command.texts().any(is_in_place) => {
                let options = Options::read(args, "e f", false);
                let skip = usize::from(
                    !options.has(&["-e", "-f"]) && program != "perl" || program == "perl" && !options.has(&["-e"]),
                );
                for field in options.operands.iter().skip(skip) {
                    self.record(command, &field.text, false, Flow::default());
                }
            }
            "truncate" | "shred" | "touch" | "sponge" | "ed" | "ex" | "patch" | "chattr" => {
                let options = Options::read(args, "s r n i p size reference", false);
                let append = program == "touch";
                for field in options.operands.clone() {
                    self.record(
                        command,
                        &field.text,
                        append,
                        if program == "sponge" { all() } else { Flow::default() },
                    );
                }
            }
            "mkdir" => {
                for field in Options::read(args, "m mode", false).operands {
                    let path = self.real(command.cwd.as_deref(), &field.text);
                    self.action.created.insert(path);
                }
            }
            "curl" | "wget" | "aria2c" | "http" => self.downloads(command),
            "tar" | "bsdtar" => {
                let Tar { create, archive, base, extract, .. } = tar(command);
                if let Some(archive) = archive.filter(|name| create && name != "-") {
                    self.record(command, &archive, false, all());
                }
                if extract {
                    self.record(
                        command,
                        base.as_deref().unwrap_or("."),
                        true,
                        Flow { text: None, sources: Sources::from([Source::Decoded]) },
                    );
                }
            }
            "unzip" | "7z" | "bsdunzip" => {
                let options = Options::read(args, "d P x", false);
                let target = options.value(&["-d"]).map_or(".", |field| field.text.as_str()).to_owned();
                self.record(command, &target, true, Flow::default());
            }
            "zip" => {
                if let Some(archive) = Options::read(args, "", false).operands.first() {
                    self.record(command, &archive.text.clone(), false, all());
                }
            }
            "gzip" | "bzip2" | "xz" | "zstd" | "lz4" | "gpg" | "age" => {
                let options = Options::read(args, "o r u S output recipient suffix", false);
                if options.has(&["-c", "--stdout", "-d", "--decrypt", "--decompress"]) {
                    return;
                }
                let given = options.value(&["-o", "--output"]).map(|field| field.text.clone());
                let endings: &[&str] = match program {
                    "gzip" => &["gz"],
                    "bzip2" => &["bz2"],
                    "xz" => &["xz"],
                    "zstd" => &["zst"],
                    "gpg" => &["gpg", "asc"],
                    _ => &["lz4"],
                };
                let beside =
                    options.operands.iter().flat_map(|field| endings.iter().map(|end| format!("{}.{end}", field.text)));
                let targets: Vec<String> = if given.is_some() { given.into_iter().collect() } else { beside.collect() };
                for target in targets {
                    self.record(command, &target, false, all());
                }
            }
            "git" => {
                let options = Options::read(args, "c C git-dir work-tree", true);
                let verb = options.operands.first().map_or("", |field| field.text.as_str());
                if matches!(verb, "clone" | "init" | "worktree")
                    && let Some(target) = options.operands.last()
                {
                    let target = if target.text.contains(':') {
                        path::name(&target.text).trim_end_matches(".git").to_owned()
                    } else {
                        target.text.clone()
                    };
                    let path = self.real(command.cwd.as_deref(), &target);
                    self.action.created.insert(path);
                }
            }
            _ => {
                let options = Options::read(args, "o output out O-none", false);
                let named = ["-o", "--output", "--out", "-out"];
                for field in options.values(&named).cloned().collect::<Vec<_>>() {
                    if !matches!(
                        program,
                        "ssh"
                            | "scp"
                            | "grep"
                            | "ps"
                            | "kubectl"
                            | "ls"
                            | "set"
                            | "psql"
                            | "mount"
                            | "ssh-keygen"
                            | "strace"
                            | "useradd"
                            | "gpg-agent"
                    ) {
                        self.record(command, &field.text, false, all());
                    }
                }
            }
        }
    }

    fn copies(&mut self, command: &Command) {
        let program = command.program.as_str();
        let options = Options::read(
            command.args(),
            "t S m o g e target-directory suffix mode owner group rsh exclude include filter",
            false,
        );
        let symbolic = program == "ln" && options.has(&["-s", "--symbolic"]);
        let mut operands: Vec<Field> = options.operands.iter().copied().cloned().collect();
        let given = options.value(&["-t", "--target-directory"]).map(|field| field.text.clone());
        let directory = given.is_some() || operands.len() > 2;
        let Some(target) = given.or_else(|| {
            if operands.len() > 1 || program == "ln" { operands.pop().map(|field| field.text) } else { None }
        }) else {
            return;
        };
        if target.contains(':') && !target.starts_with('/') {
            return;
        }
        let target = if program == "ln" && operands.is_empty() {
            operands.push(Field::literal(target.clone()));
            path::name(&target).to_owned()
        } else {
            target
        };
        let at = self.real(command.cwd.as_deref(), &target);
        let is_directory = directory
            || target.ends_with('/')
            || matches!(target.as_str(), "." | "..")
            || self.action.created.contains(&at)
            || (self.world.file_system && std::path::Path::new(&at).is_dir());
        for operand in &operands {
            let from = self.real(command.cwd.as_deref(), &operand.text);
            let to = if is_directory { path::absolute(Some(&at), path::name(&operand.text)) } else { at.clone() };
            if symbolic {
                let parent = to.rsplit_once('/').map_or("/", |(parent, _)| parent);
                let points = path::absolute(Some(if parent.is_empty() { "/" } else { parent }), &operand.text);
                self.write(Write {
                    path: to.clone(),
                    append: false,
                    flow: self.file(&points),
                    program: command.program.clone(),
                });
                self.action.links.push((to, points));
            } else {
                let flow = self.file(&from);
                self.action.created.insert(to.clone());
                self.write(Write { path: to, append: false, flow, program: command.program.clone() });
            }
        }
    }

    fn downloads(&mut self, command: &Command) {
        let flow = self.network(command);
        let valued = if command.program == "wget" { "O P o a U e t T w" } else { "o output H X d F A u e m x w" };
        let options = Options::read(command.args(), valued, false);
        let names: &[&str] =
            if command.program == "wget" { &["-O", "--output-document"] } else { &["-o", "--output", "--out"] };
        let urls = options.operands.iter().map(|field| field.text.as_str());
        let named =
            options.values(names).map(|field| field.text.clone()).filter(|name| name != "-" && name != "/dev/null");
        let implied = command.program == "wget" && options.value(names).is_none()
            || options.has(&["-O", "--remote-name", "-J"]) && command.program == "curl";
        let directory =
            options.value(&["-P", "--directory-prefix", "--output-dir"]).map_or(".", |field| field.text.as_str());
        let own = urls
            .filter(|_| implied)
            .map(|url| format!("{directory}/{}", path::name(url.split(['?', '#']).next().unwrap_or(url))));
        for target in named.chain(own).collect::<Vec<_>>() {
            self.record(command, &target, false, flow.clone());
        }
    }

    fn network(&self, command: &Command) -> Flow {
        let url = command
            .texts()
            .find(|text| text.contains("://") || text.contains('.') && !text.starts_with(['-', '/', '.']))
            .unwrap_or("the network");
        Flow { text: None, sources: Sources::from([Source::Network(url.to_owned())]) }
    }

    /// What a command prints where that is known, or where it is certain not to be what it read.
    fn known_output(&mut self, command: &Command) -> Option<Flow> {
        let args = command.args();
        let texts: Vec<&str> = command.texts().collect();
        let of_args = |text: String| Some(Flow { text: Some(text), sources: command.argument_sources() });
        let relative = || Some(Flow::of_text(format!("./{UNKNOWN}\n")));
        let token = || Some(Flow::of_text(UNKNOWN.to_string()));
        match command.program.as_str() {
            "echo" => {
                let flags = texts
                    .iter()
                    .take_while(|text| {
                        text.len() > 1 && text.starts_with('-') && text[1..].bytes().all(|b| b"neE".contains(&b))
                    })
                    .count();
                let text = texts[flags..].join(" ");
                let interpret = texts[..flags].iter().any(|flag| flag.contains('e'));
                let (text, coded) = if interpret { decode::escapes(&text) } else { (text, false) };
                let mut sources = command.argument_sources();
                sources.extend(coded.then_some(Source::Decoded));
                Some(Flow { text: Some(text + "\n"), sources })
            }
            "printf" => {
                let at = usize::from(texts.first() == Some(&"-v") || texts.first() == Some(&"--"));
                let (text, coded) =
                    decode::printf(texts.get(at).copied().unwrap_or(""), texts.get(at + 1..).unwrap_or_default());
                let mut sources = command.argument_sources();
                sources.extend(coded.then_some(Source::Decoded));
                Some(Flow { text: Some(text), sources })
            }
            "cat" | "tee" | "zcat-none" | "nl" | "sort" | "uniq" | "head" | "tail" | "pv" | "sponge" => {
                let operands = Options::read(args, "n c", false).operands;
                if command.program == "tee" || operands.is_empty() || operands.iter().all(|field| field.text == "-") {
                    return Some(command.stdin.clone());
                }
                let mut flow = Flow::empty();
                for field in operands {
                    let mut held = self.file(&self.real(command.cwd.as_deref(), &field.text));
                    held.sources.extend(field.sources.iter().cloned());
                    flow.append(held);
                }
                Some(flow)
            }
            "pwd" => Some(Flow {
                text: Some(command.cwd.clone().unwrap_or_else(|| UNKNOWN.to_string()) + "\n"),
                sources: Sources::new(),
            }),
            "true" | "false" | ":" | "test" | "[" | "sleep" | "wait" | "mkdir" | "rm" | "touch" | "kill" | "cd"
            | "chmod" | "exit" | "return" => Some(Flow::empty()),
            "basename" => {
                of_args(path::name(texts.first()?).trim_end_matches(texts.get(1).copied().unwrap_or("")).to_owned())
            }
            "dirname" => of_args(
                texts
                    .first()?
                    .rsplit_once('/')
                    .map_or(".", |(parent, _)| if parent.is_empty() { "/" } else { parent })
                    .to_owned(),
            ),
            "realpath" | "readlink" => {
                let target = args.iter().rfind(|field| !field.text.starts_with('-'))?;
                of_args(self.real(command.cwd.as_deref(), &target.text))
            }
            "base64" | "base32" | "basenc" => {
                if !texts.iter().any(|text| matches!(*text, "-d" | "--decode" | "-D" | "-di" | "-id")) {
                    return None;
                }
                let input = self.input(command, "w wrap");
                let text = input.text.as_deref().filter(|_| command.program == "base64").and_then(decode::base64);
                Some(Flow { text, sources: input.sources.into_iter().chain([Source::Decoded]).collect() })
            }
            "xxd" if texts.iter().any(|text| text.starts_with('-') && text.contains('r')) => {
                let input = self.input(command, "c l s");
                let text = input
                    .text
                    .as_deref()
                    .filter(|_| texts.iter().any(|text| text.starts_with('-') && text.contains('p')))
                    .and_then(decode::hex);
                Some(Flow { text, sources: input.sources.into_iter().chain([Source::Decoded]).collect() })
            }
            "rev" => {
                let input = self.input(command, "");
                let text = input.text.map(|text| {
                    text.lines().map(|line| line.chars().rev().chain(['\n']).collect::<String>()).collect()
                });
                Some(Flow { text, sources: input.sources.into_iter().chain([Source::Decoded]).collect() })
            }
            "tr" => {
                let sets: Vec<&&str> = texts.iter().filter(|text| !text.starts_with('-')).collect();
                let known = |from: &str| {
                    command
                        .stdin
                        .text
                        .as_deref()
                        .map(|text| decode::translate(text, from, sets.get(1).copied().copied().unwrap_or("")))
                };
                let deletes = texts.iter().any(|text| text.starts_with('-'));
                let text = sets.first().filter(|_| !deletes).and_then(|from| known(from));
                Some(Flow { text, sources: command.stdin.sources.iter().cloned().chain([Source::Decoded]).collect() })
            }
            "gunzip" | "zcat" | "gzip" | "bunzip2" | "bzcat" | "xz" | "unxz" | "xzcat" | "zstd" | "zstdcat"
            | "unzstd" | "brotli" | "lz4" | "uudecode" | "gpg" | "age" | "openssl" | "tac" => {
                let decodes = !matches!(
                    command.program.as_str(),
                    "gzip" | "xz" | "zstd" | "brotli" | "lz4" | "gpg" | "age" | "openssl"
                ) || texts.iter().any(|text| {
                    matches!(*text, "-d" | "-dc" | "-cd" | "--decompress" | "--decode" | "--decrypt" | "-D")
                });
                let sources = command.stdin.sources.iter().chain(&command.reads).cloned();
                decodes.then(|| Flow { text: None, sources: sources.chain([Source::Decoded]).collect() })
            }
            "mktemp" => {
                let template = args.iter().map(|field| field.text.as_str()).find(|text| text.contains("XXX"));
                let text = match template {
                    Some(template) => {
                        self.real(
                            if texts.contains(&"-t") { Some("/tmp") } else { command.cwd.as_deref() },
                            template.trim_end_matches('X'),
                        ) + &UNKNOWN.to_string()
                    }
                    None => format!("/tmp/tmp.{UNKNOWN}"),
                };
                self.action.created.insert(text.clone());
                Some(Flow::of_text(text))
            }
            "find" | "fd" | "fdfind" => {
                let roots =
                    if command.program == "find" { unwrap::find_roots(args) } else { vec![Field::literal(".")] };
                let lines: Vec<String> =
                    roots.iter().map(|root| format!("{}/{UNKNOWN}\n", root.text.trim_end_matches('/'))).collect();
                Some(Flow {
                    text: Some(lines.concat()),
                    sources: roots.into_iter().flat_map(|root| root.sources).collect(),
                })
            }
            "ls" => relative(),
            "git" => {
                let verb = texts.iter().find(|text| !text.starts_with('-')).copied().unwrap_or("");
                let tree = self.world.tree.as_ref().map(|tree| tree.to_string_lossy().into_owned());
                match verb {
                    "rev-parse" if texts.contains(&"--show-toplevel") => {
                        Some(Flow::of_text(tree.unwrap_or_else(|| UNKNOWN.to_string())))
                    }
                    "ls-files" | "ls-tree" => relative(),
                    "diff" | "show" | "log" if texts.iter().any(|text| text.starts_with("--name")) => relative(),
                    "rev-parse" | "describe" | "branch" | "rev-list" | "merge-base" | "config" | "remote"
                    | "symbolic-ref" => token(),
                    _ => None,
                }
            }
            "date" | "uname" | "id" | "whoami" | "nproc" | "wc" | "hostname" | "arch" | "getconf" | "expr"
            | "uuidgen" | "which" | "tty" | "lsb_release" => token(),
            // Pids by name: the name is what they came from.
            "pgrep" | "pidof" => {
                let sources = texts
                    .iter()
                    .filter(|text| !text.starts_with('-'))
                    .map(|name| Source::File(format!("/proc/{name}")));
                Some(Flow { text: Some(UNKNOWN.to_string()), sources: sources.collect() })
            }
            "seq" => Some(Flow::of_text("1\n2\n3\n")),
            "ssh-agent"
            | "direnv"
            | "pyenv"
            | "rbenv"
            | "nodenv"
            | "fnm"
            | "opam"
            | "conda"
            | "starship"
            | "zoxide"
            | "dircolors"
            | "mise"
            | "brew"
            | "luarocks"
            | "minikube"
            | "register-python-argcomplete" => Some(Flow::empty()),
            "env" | "printenv" | "export" | "set" | "declare" | "compgen" => {
                let named: Sources = texts
                    .iter()
                    .filter(|text| !text.starts_with('-'))
                    .map(|name| Source::Variable((*name).to_owned()))
                    .collect();
                let sources = if command.program == "printenv" && !named.is_empty() {
                    named
                } else {
                    Sources::from([Source::Environment])
                };
                Some(Flow { text: None, sources })
            }
            "curl" | "wget" | "http" | "https" | "xh" | "lynx" | "w3m" | "aria2c" | "fetch" => {
                Some(self.network(command))
            }
            _ => None,
        }
    }

    /// The file operand of a filter, else its standard input.
    fn input(&self, command: &Command, valued: &str) -> Flow {
        let operands = Options::read(command.args(), valued, false).operands;
        match operands.iter().find(|field| field.text != "-") {
            Some(field) => self.file(&self.real(command.cwd.as_deref(), &field.text)),
            None => command.stdin.clone(),
        }
    }
}

fn is_in_place(text: &str) -> bool {
    text == "--in-place"
        || text.starts_with("--in-place=")
        || text.starts_with('-') && !text.starts_with("--") && text.contains('i') && text.len() < 8
}

struct Tar {
    create: bool,
    extract: bool,
    archive: Option<String>,
    base: Option<String>,
    members: Vec<Field>,
}

/// tar's options, with or without the hyphen.
fn tar(command: &Command) -> Tar {
    let mut args = command.args().to_vec();
    if let Some(first) = args.first_mut()
        && !first.text.starts_with('-')
        && first.text.len() < 8
        && first.text.bytes().all(|b| b.is_ascii_lowercase())
        && first.text.contains(['c', 'x', 't'])
    {
        first.text.insert(0, '-');
    }
    let options =
        Options::read(&args, "f C file directory T X exclude files-from transform strip-components owner group", false);
    let text = |names: &[&str]| options.value(names).map(|field| field.text.clone());
    Tar {
        create: options.has(&["-c", "--create", "-r", "-u", "--append"]),
        extract: options.has(&["-x", "--extract", "--get"]),
        archive: text(&["-f", "--file"]),
        base: text(&["-C", "--directory"]),
        members: options.operands.iter().copied().cloned().collect(),
    }
}
