//! Running one command as the shell would: functions, builtins that change the scope, wrappers, and the rest.
#![forbid(unsafe_code)]

use super::unwrap::{self, Inner};
use super::walk::{Reader, Scope, Value};
use super::{Command, Field, Flow, Options, Problem, Sources, UNKNOWN, code, path};

impl Reader<'_> {
    /// One command with its words expanded. `declared` are assignments among the words of `export` and its kind.
    pub(super) fn invoke(&mut self, mut command: Command, scope: &mut Scope, declared: Vec<(String, Value)>) -> Flow {
        // Copies of the words are made on the way: long ones cost more.
        let cost = command.words.iter().map(|word| 1 + word.text.len() / 64).sum();
        if !self.spend(cost) || command.words.is_empty() {
            return Flow::default();
        }
        let name = command.words[0].text.clone();
        command.program = path::name(&name).to_owned();
        if let Some(body) = scope.functions.get(&name).cloned() {
            let args = command.words.split_off(1);
            let positional = std::mem::replace(&mut scope.positional, args);
            // A body that calls itself under the same name is the builtin or program the second time around.
            let own = scope.functions.remove(&name);
            let out = self.function(&body, scope, &command.stdin);
            scope.functions.extend(own.map(|own| (name, own)));
            scope.positional = positional;
            return out;
        }
        // The host's shell may expand aliases, and a later line of the same text sees them.
        if let Some(text) = scope.aliases.remove(&name) {
            let rest = command.texts().map(|word| format!(" '{}'", word.replace('\'', "'\\''"))).collect::<String>();
            let out = self.script(&format!("{text}{rest}"), scope, &command.stdin);
            scope.aliases.insert(name, text);
            return out;
        }
        if let Some(out) = self.builtin(&mut command, scope, declared) {
            return out;
        }
        if command.words[0].text == UNKNOWN.to_string() && command.words.len() == 1 {
            self.problem(Problem::UnknownProgram("a word that is not known".into()));
        }
        let inners = unwrap::unwrap(&command);
        // A script that the action itself wrote, or a program text in a file.
        let script = (name.contains('/') && inners.is_empty()).then(|| self.real(command.cwd.as_deref(), &name));
        let written = script.and_then(|script| self.files.get(&script).cloned());
        if let Some(flow) = written {
            let positional = command.args().to_vec();
            command.runs = Some(flow.clone());
            self.programs_of_environment(&command, scope);
            let stdin = command.stdin.clone();
            self.action.commands.push(command);
            return self.run(
                Inner::Script { flow, positional, via: "script", remote: false, in_place: false },
                &stdin,
                scope,
            );
        }
        self.programs_of_environment(&command, scope);
        if inners.is_empty() {
            if let Some((language, text)) = code::program_text(&command) {
                let seen = code::read(language, &text);
                let (shells, removed) = (seen.shell.clone(), seen.removes.clone());
                command.code = Some(seen);
                let via = command.program.clone();
                let (stdin, cwd) = (command.stdin.clone(), command.cwd.clone());
                let out = self.effects(&mut command);
                self.action.commands.push(command);
                let mut inner = scope.clone();
                inner.via.push(via);
                for shell in shells {
                    self.script(&shell, &mut inner, &stdin);
                }
                for target in removed {
                    let words = ["rm", "-rf", "--", &target].map(Field::literal).into();
                    let removal = Command {
                        words,
                        cwd: cwd.clone(),
                        via: inner.via.clone(),
                        remote: inner.remote,
                        ..Command::default()
                    };
                    self.invoke(removal, &mut inner, Vec::new());
                }
                return out;
            }
            let out = self.effects(&mut command);
            self.action.commands.push(command);
            return out;
        }
        let stdin = command.stdin.clone();
        command.wrapper = !inners.iter().any(|inner| matches!(inner, Inner::Beside(_)));
        command.runs = inners.iter().find_map(|inner| self.program_of(inner, &command));
        let own = (!command.wrapper).then(|| self.effects(&mut command));
        let env = command.env.clone();
        self.action.commands.push(command);
        let mut out = own.unwrap_or_else(Flow::empty);
        for inner in inners {
            let inner = match inner {
                Inner::Argv { words, env: mut own, cwd, via, remote, stdin } => {
                    own.extend(env.iter().cloned());
                    Inner::Argv { words, env: own, cwd, via, remote, stdin }
                }
                other => other,
            };
            out.append(self.run(inner, &stdin, scope));
        }
        out
    }

    /// The program text that a wrapper executes, for the rules to look at where it came from.
    fn program_of(&self, inner: &Inner, command: &Command) -> Option<Flow> {
        match inner {
            Inner::Script { flow, .. } | Inner::Beside(flow) => Some(flow.clone()),
            Inner::Stdin { .. } => Some(command.stdin.clone()),
            Inner::File { path, .. } => Some(self.file(&self.real(command.cwd.as_deref(), path))),
            Inner::Argv { .. } => None,
        }
    }

    fn run(&mut self, inner: Inner, stdin: &Flow, scope: &mut Scope) -> Flow {
        match inner {
            Inner::Argv { words, env, cwd, via, remote, stdin: own } => {
                let mut inner = scope.clone();
                inner.via.push(via.to_owned());
                inner.remote |= remote;
                inner.functions.clear();
                if let Some(cwd) = cwd {
                    inner.cwd = Some(self.real(scope.cwd.as_deref(), &cwd));
                }
                let command = Command {
                    words,
                    env,
                    cwd: if remote { None } else { inner.cwd.clone() },
                    stdin: own.unwrap_or_else(|| stdin.clone()),
                    via: inner.via.clone(),
                    remote: inner.remote,
                    ..Command::default()
                };
                self.invoke(command, &mut inner, Vec::new())
            }
            Inner::Script { flow, positional, via, remote, in_place } => {
                let Flow { text, sources } = flow;
                let Some(text) = text.filter(|text| {
                    !text.trim_matches(|c: char| c == UNKNOWN || c.is_whitespace()).is_empty() || text.trim().is_empty()
                }) else {
                    self.unknown_program(via, &sources);
                    return Flow { text: None, sources };
                };
                if in_place {
                    return self.script(&text, scope, stdin);
                }
                let mut inner = scope.clone();
                inner.via.push(via.to_owned());
                inner.remote |= remote;
                inner.positional = positional;
                self.script(&text, &mut inner, stdin)
            }
            Inner::Beside(flow) => {
                let mut inner = scope.clone();
                match flow.text {
                    Some(text) => self.script(&text, &mut inner, &Flow::empty()),
                    None => Flow::default(),
                }
            }
            Inner::Stdin { via, positional } => match &stdin.text {
                Some(_) => self.run(
                    Inner::Script { flow: stdin.clone(), positional, via, remote: false, in_place: false },
                    &Flow::empty(),
                    scope,
                ),
                None => {
                    // A shell on the terminal has no program; one at the end of a pipe has what comes through it.
                    if !stdin.sources.is_empty() {
                        self.unknown_program(via, &stdin.sources);
                    }
                    Flow { text: None, sources: stdin.sources.clone() }
                }
            },
            Inner::File { path, via, positional, in_place } => {
                let flow = self.file(&self.real(scope.cwd.as_deref(), &path));
                if flow.text.is_some() {
                    return self.run(Inner::Script { flow, positional, via, remote: false, in_place }, stdin, scope);
                }
                // A file that was there before is a program like any other.
                Flow { text: None, sources: stdin.sources.clone() }
            }
        }
    }

    fn unknown_program(&mut self, via: &str, sources: &Sources) {
        // What was fetched or decoded has a rule of its own, which says more.
        let told = sources.iter().any(|source| matches!(source, super::Source::Network(_) | super::Source::Decoded));
        if !told {
            self.problem(Problem::UnknownProgram(via.to_owned()));
        }
    }

    /// Variables whose value another program runs: `GIT_SSH_COMMAND`, `PAGER`, ….
    fn programs_of_environment(&mut self, command: &Command, scope: &Scope) {
        for (name, value) in &command.env {
            let runs = matches!(
                name.as_str(),
                "GIT_SSH_COMMAND"
                    | "GIT_SSH"
                    | "GIT_EDITOR"
                    | "GIT_SEQUENCE_EDITOR"
                    | "GIT_PAGER"
                    | "GIT_EXTERNAL_DIFF"
                    | "GIT_ASKPASS"
                    | "SSH_ASKPASS"
                    | "PAGER"
                    | "MANPAGER"
                    | "EDITOR"
                    | "VISUAL"
                    | "BROWSER"
                    | "PROMPT_COMMAND"
                    | "RSYNC_RSH"
                    | "CARGO_BUILD_RUSTC_WRAPPER"
                    | "RUSTC_WRAPPER"
                    | "LESSOPEN"
            );
            if runs && value.is_known() {
                let mut inner = scope.clone();
                inner.via.push(name.clone());
                self.script(&value.text.clone(), &mut inner, &Flow::empty());
            }
        }
    }

    /// Builtins that change the scope or execute text; `None` for what is not one.
    fn builtin(&mut self, command: &mut Command, scope: &mut Scope, declared: Vec<(String, Value)>) -> Option<Flow> {
        let name = command.words[0].text.clone();
        match name.as_str() {
            "cd" | "pushd" => {
                let target = Options::read(command.args(), "", false).operands.first().map(|field| field.text.clone());
                if name == "pushd" {
                    scope.stack.push(scope.cwd.clone());
                }
                scope.cwd = match target.as_deref() {
                    None if name == "cd" => Some(self.world.home.to_string_lossy().into_owned()),
                    None | Some("-") => None,
                    Some(target) => Some(self.real(scope.cwd.as_deref(), target)),
                };
            }
            "popd" => scope.cwd = scope.stack.pop().flatten(),
            "export" | "declare" | "typeset" | "local" | "readonly" => {
                let plain: Vec<(String, Value)> = command
                    .args()
                    .iter()
                    .filter_map(|field| {
                        let (name, text) = field.text.split_once('=')?;
                        (!declared.iter().any(|(known, _)| known == name)).then(|| {
                            (
                                name.to_owned(),
                                Value { texts: vec![text.to_owned()], sources: field.sources.clone(), array: None },
                            )
                        })
                    })
                    .collect();
                scope.vars.extend(plain);
                scope.vars.extend(declared);
                if matches!(command.args(), [] | [Field { .. }])
                    && command.args().first().is_none_or(|arg| arg.text == "-p")
                {
                    let out = Flow { text: None, sources: Sources::from([super::Source::Environment]) };
                    self.action.commands.push(std::mem::take(command));
                    return Some(out);
                }
            }
            "alias" => {
                let named = command.args().iter().filter_map(|field| field.text.split_once('='));
                scope.aliases.extend(named.map(|(name, text)| (name.to_owned(), text.to_owned())));
            }
            "unset" => {
                for field in command.args() {
                    scope.vars.insert(field.text.clone(), Value::text(""));
                }
            }
            "set" => match command.args().iter().position(|field| field.text == "--") {
                Some(at) => scope.positional = command.args()[at + 1..].to_vec(),
                None if command.args().is_empty() => {
                    let out = Flow { text: None, sources: Sources::from([super::Source::Environment]) };
                    self.action.commands.push(std::mem::take(command));
                    return Some(out);
                }
                None => {}
            },
            "shift" => {
                let count = command.args().first().and_then(|field| field.text.parse().ok()).unwrap_or(1);
                scope.positional.drain(..count.min(scope.positional.len()));
            }
            "read" | "mapfile" | "readarray" => self.read_into(command, scope),
            "getopts" | "let" => {
                for field in command.args().to_vec() {
                    self.arithmetic(&field.text, scope);
                }
            }
            "eval" => {
                let text = command.texts().collect::<Vec<_>>().join(" ");
                let flow = Flow { text: Some(text), sources: command.argument_sources() };
                command.runs = Some(flow.clone());
                let stdin = command.stdin.clone();
                self.action.commands.push(std::mem::take(command));
                return Some(self.run(
                    Inner::Script { flow, positional: Vec::new(), via: "eval", remote: false, in_place: true },
                    &stdin,
                    scope,
                ));
            }
            "source" | "." => {
                let file = command.args().first().map(|field| field.text.clone())?;
                let flow = self.file(&self.real(scope.cwd.as_deref(), &file));
                command.runs = Some(flow.clone());
                command.reads.extend(flow.sources.iter().cloned());
                let stdin = command.stdin.clone();
                self.action.commands.push(std::mem::take(command));
                if flow.text.is_none() {
                    return Some(Flow::default());
                }
                return Some(self.run(
                    Inner::Script { flow, positional: Vec::new(), via: "source", remote: false, in_place: true },
                    &stdin,
                    scope,
                ));
            }
            "trap" => {
                if let Some(text) =
                    command.args().iter().map(|field| &field.text).find(|text| !text.starts_with('-')).cloned()
                {
                    self.script(&text, &mut scope.clone(), &Flow::empty());
                }
            }
            _ => return None,
        }
        self.action.commands.push(std::mem::take(command));
        Some(Flow::empty())
    }

    fn read_into(&mut self, command: &Command, scope: &mut Scope) {
        let options = Options::read(command.args(), "a d i n N p t u O s C c", false);
        let array = options.value(&["-a"]).map(|field| field.text.clone());
        let names: Vec<String> = options.operands.iter().map(|field| field.text.clone()).chain(array.clone()).collect();
        let names = if names.is_empty() { vec![String::from("REPLY")] } else { names };
        let line = command.stdin.text.as_deref().and_then(|text| text.lines().next()).map(str::to_owned);
        let whole = names.len() == 1 && array.is_none() && command.program == "read";
        for name in names {
            let text = line.clone().filter(|_| whole).unwrap_or_else(|| UNKNOWN.to_string());
            scope.vars.insert(name, Value { texts: vec![text], sources: command.stdin.sources.clone(), array: None });
        }
    }
}
