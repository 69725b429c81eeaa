//! Walking the syntax tree: scopes, redirections, and what flows through pipelines.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::rc::Rc;

use brush_parser::ast::{
    AndOr, AssignmentName, AssignmentValue, Command as Node, CommandPrefixOrSuffixItem as Item, CompoundCommand,
    CompoundList, ExtendedTestExpr, FunctionBody, IoFileRedirectKind as Kind, IoFileRedirectTarget as Target,
    IoRedirect, Pipeline, ProcessSubstitutionKind, Program, SeparatorOperator, SimpleCommand, Word,
};
use brush_parser::{ParserOptions, Token, TokenizerOptions};

use super::{
    Action, COMMAND_BYTES, Command, Field, Flow, NESTING, Problem, Source, Sources, UNKNOWN, Write, path, scan,
};
use crate::policy::judge::World;

/// How often program text is followed into program text.
const DEPTH: usize = 40;
/// How many `((` the grammar may be asked to read in one text.
const DOUBLED: usize = 8;
/// Units of work that one command line may cost: about one per word, and one for each 16 bytes parsed.
const FUEL: usize = 60_000;
/// How many rounds of a loop over known words are walked.
const ROUNDS: usize = 64;

/// What a variable may hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Value {
    /// Any of these.
    pub(super) texts: Vec<String>,
    pub(super) sources: Sources,
    pub(super) array: Option<Vec<Field>>,
}

impl Value {
    pub(super) fn text(text: &str) -> Value {
        Value { texts: vec![text.to_owned()], ..Value::default() }
    }

    pub(super) fn unknown() -> Value {
        Value::text(&UNKNOWN.to_string())
    }
}

/// What a subshell copies.
#[derive(Clone, Default)]
pub(super) struct Scope {
    pub(super) cwd: Option<String>,
    pub(super) stack: Vec<Option<String>>,
    pub(super) vars: HashMap<String, Value>,
    pub(super) functions: HashMap<String, Rc<FunctionBody>>,
    pub(super) aliases: HashMap<String, String>,
    pub(super) positional: Vec<Field>,
    pub(super) fds: HashMap<i32, String>,
    pub(super) via: Vec<String>,
    pub(super) remote: bool,
}

/// The reader of one command line.
pub(super) struct Reader<'w> {
    pub(super) world: &'w World,
    pub(super) action: Action,
    /// What files written by the action hold.
    pub(super) files: HashMap<String, Flow>,
    /// What was put into the repository's index.
    pub(super) staged: Sources,
    fuel: usize,
    depth: usize,
}

/// Where a command's input and output go.
#[derive(Default)]
struct Redirections {
    stdin: Option<Flow>,
    reads: Sources,
    /// Path and append of standard output; other descriptors only make or truncate the file.
    out: Option<(String, bool)>,
    others: Vec<(i32, String, bool)>,
    processes: Vec<(String, CompoundList)>,
    /// Output goes to standard error, a closed descriptor: not down the pipe.
    diverted: bool,
}

pub(super) fn read(command: &str, cwd: &str, world: &World) -> Action {
    let mut reader = Reader {
        world,
        action: Action::default(),
        files: HashMap::new(),
        staged: Sources::new(),
        fuel: FUEL,
        depth: 0,
    };
    let mut scope = Scope { cwd: Some(path::absolute(Some("/"), cwd)), ..Scope::default() };
    reader.script(command, &mut scope, &Flow { text: None, sources: Sources::new() });
    reader.action
}

fn parse(text: &str) -> Result<Program, Problem> {
    let tokens = brush_parser::uncached_tokenize_str(text, &TokenizerOptions::default());
    let tokens = tokens.map_err(|error| Problem::Unparsed(error.to_string()))?;
    // The grammar tries `((` as arithmetic first and as two subshells after: each one doubles the work.
    let opens = |token: &Token| matches!(token, Token::Operator(operator, _) if operator == "(");
    if tokens.windows(2).filter(|pair| opens(&pair[0]) && opens(&pair[1])).count() > DOUBLED {
        return Err(Problem::TooDeep);
    }
    brush_parser::parse_tokens(&tokens, &ParserOptions::default()).map_err(|error| Problem::Unparsed(error.to_string()))
}

impl Reader<'_> {
    /// Takes from the work allowed; `false` when there is none left, which is a problem of its own.
    pub(super) fn spend(&mut self, units: usize) -> bool {
        let enough = self.fuel >= units;
        self.fuel = self.fuel.saturating_sub(units);
        if !enough {
            self.problem(Problem::TooMuch);
        }
        enough
    }

    pub(super) fn problem(&mut self, problem: Problem) {
        if self.action.problems.len() < 16 && !self.action.problems.contains(&problem) {
            self.action.problems.push(problem);
        }
    }

    /// Walks program text in a scope.
    pub(super) fn script(&mut self, text: &str, scope: &mut Scope, stdin: &Flow) -> Flow {
        let unknown = Flow { text: None, sources: Sources::new() };
        if self.depth >= DEPTH || text.len() > COMMAND_BYTES || scan::nesting(text) > NESTING {
            self.problem(Problem::TooDeep);
            return unknown;
        }
        if !self.spend(1 + text.len() / 16) {
            return unknown;
        }
        match parse(text) {
            Ok(program) => {
                self.depth += 1;
                let mut out = Flow::empty();
                for list in &program.complete_commands {
                    out.append(self.list(list, scope, stdin));
                }
                self.depth -= 1;
                out
            }
            Err(problem) => {
                self.problem(problem);
                unknown
            }
        }
    }

    fn list(&mut self, list: &CompoundList, scope: &mut Scope, stdin: &Flow) -> Flow {
        let mut out = Flow::empty();
        for item in &list.0 {
            let asynchronous = matches!(item.1, SeparatorOperator::Async);
            let mut own = asynchronous.then(|| scope.clone());
            let scope = own.as_mut().unwrap_or(scope);
            out.append(self.pipeline(&item.0.first, scope, stdin));
            for next in &item.0.additional {
                match next {
                    AndOr::And(pipeline) => {
                        let before = scope.vars.clone();
                        out.append(self.pipeline(pipeline, scope, stdin));
                        merge(scope, before);
                    }
                    AndOr::Or(pipeline) => {
                        let (vars, cwd) = (scope.vars.clone(), scope.cwd.clone());
                        out.append(self.pipeline(pipeline, scope, stdin));
                        merge(scope, vars);
                        // `cd x || exit`: what goes on is where the left side succeeded.
                        scope.cwd = cwd;
                    }
                }
            }
        }
        out
    }

    fn pipeline(&mut self, pipeline: &Pipeline, scope: &mut Scope, stdin: &Flow) -> Flow {
        if let [command] = pipeline.seq.as_slice() {
            return self.command(command, scope, stdin);
        }
        let mut flow = stdin.clone();
        for command in &pipeline.seq {
            flow = self.command(command, &mut scope.clone(), &flow);
        }
        flow
    }

    fn command(&mut self, command: &Node, scope: &mut Scope, stdin: &Flow) -> Flow {
        if !self.spend(1) {
            return Flow::default();
        }
        match command {
            Node::Simple(simple) => self.simple(simple, scope, stdin),
            Node::Compound(compound, redirections) => {
                let redirections = redirections.iter().flat_map(|list| &list.0);
                self.redirected(redirections, scope, stdin, |reader, scope, stdin| {
                    reader.compound(compound, scope, stdin)
                })
            }
            Node::Function(definition) => {
                scope.functions.insert(definition.fname.value.clone(), Rc::new(definition.body.clone()));
                Flow::empty()
            }
            Node::ExtendedTest(test, redirections) => {
                let redirections = redirections.iter().flat_map(|list| &list.0);
                self.redirected(redirections, scope, stdin, |reader, scope, _| {
                    reader.test(&test.expr, scope);
                    Flow::empty()
                })
            }
        }
    }

    fn test(&mut self, test: &ExtendedTestExpr, scope: &mut Scope) {
        match test {
            ExtendedTestExpr::And(left, right) | ExtendedTestExpr::Or(left, right) => {
                self.test(left, scope);
                self.test(right, scope);
            }
            ExtendedTestExpr::Not(inner) | ExtendedTestExpr::Parenthesized(inner) => self.test(inner, scope),
            ExtendedTestExpr::UnaryTest(_, word) => drop(self.value(&word.value, scope)),
            ExtendedTestExpr::BinaryTest(_, left, right) => {
                self.value(&left.value, scope);
                self.value(&right.value, scope);
            }
        }
    }

    /// Runs `body` with the redirections around it.
    fn redirected<'a>(
        &mut self,
        list: impl Iterator<Item = &'a IoRedirect>,
        scope: &mut Scope,
        stdin: &Flow,
        body: impl FnOnce(&mut Self, &mut Scope, &Flow) -> Flow,
    ) -> Flow {
        let mut redirections = Redirections::default();
        for one in list {
            self.redirect(one, scope, &mut redirections);
        }
        let given = redirections.stdin.take();
        let out = body(self, scope, given.as_ref().unwrap_or(stdin));
        self.deliver(out, redirections, "", scope)
    }

    /// Follows a function's body.
    pub(super) fn function(&mut self, body: &FunctionBody, scope: &mut Scope, stdin: &Flow) -> Flow {
        if self.depth >= DEPTH {
            self.problem(Problem::TooDeep);
            return Flow::default();
        }
        self.depth += 1;
        let redirections = body.1.iter().flat_map(|list| &list.0);
        let out =
            self.redirected(redirections, scope, stdin, |reader, scope, stdin| reader.compound(&body.0, scope, stdin));
        self.depth -= 1;
        out
    }

    fn compound(&mut self, compound: &CompoundCommand, scope: &mut Scope, stdin: &Flow) -> Flow {
        match compound {
            CompoundCommand::Arithmetic(arithmetic) => {
                self.arithmetic(&arithmetic.expr.value, scope);
                Flow::empty()
            }
            CompoundCommand::ArithmeticForClause(clause) => {
                for part in [&clause.initializer, &clause.condition, &clause.updater].into_iter().flatten() {
                    self.arithmetic(&part.value, scope);
                }
                self.list(&clause.body.list, scope, stdin)
            }
            CompoundCommand::BraceGroup(group) => self.list(&group.list, scope, stdin),
            CompoundCommand::Subshell(subshell) => self.list(&subshell.list, &mut scope.clone(), stdin),
            CompoundCommand::ForClause(clause) => {
                let items: Vec<Field> = match &clause.values {
                    Some(words) => words.iter().flat_map(|word| self.fields(&word.value, scope)).collect(),
                    None => scope.positional.clone(),
                };
                let mut out = Flow::empty();
                for item in items.iter().take(ROUNDS) {
                    let Field { text, sources } = item.clone();
                    scope.vars.insert(clause.variable_name.clone(), Value { texts: vec![text], sources, array: None });
                    out.append(self.list(&clause.body.list, scope, stdin));
                }
                if items.len() > ROUNDS {
                    let sources = items.iter().flat_map(|item| item.sources.clone()).collect();
                    scope.vars.insert(clause.variable_name.clone(), Value { sources, ..Value::unknown() });
                    out.append(self.list(&clause.body.list, scope, stdin));
                }
                out
            }
            CompoundCommand::CaseClause(clause) => {
                self.value(&clause.value.value, scope);
                let before = scope.clone();
                let mut out = Flow::empty();
                for case in &clause.cases {
                    for pattern in &case.patterns {
                        self.value(&pattern.value, scope);
                    }
                    if let Some(list) = &case.cmd {
                        let mut branch = before.clone();
                        out.append(self.list(list, &mut branch, stdin));
                        let vars = std::mem::replace(&mut scope.vars, branch.vars);
                        merge(scope, vars);
                    }
                }
                out
            }
            CompoundCommand::IfClause(clause) => {
                let mut out = self.list(&clause.condition, scope, stdin);
                let before = scope.vars.clone();
                out.append(self.list(&clause.then, scope, stdin));
                for other in clause.elses.iter().flatten() {
                    if let Some(condition) = &other.condition {
                        out.append(self.list(condition, scope, stdin));
                    }
                    let mut branch = Scope { vars: before.clone(), ..scope.clone() };
                    out.append(self.list(&other.body, &mut branch, stdin));
                    merge(scope, branch.vars);
                }
                if clause.elses.iter().flatten().all(|other| other.condition.is_some()) {
                    merge(scope, before);
                }
                out
            }
            CompoundCommand::WhileClause(clause) | CompoundCommand::UntilClause(clause) => {
                let mut out = self.list(&clause.0, scope, stdin);
                out.append(self.list(&clause.1.list, scope, stdin));
                out
            }
            CompoundCommand::Coprocess(coprocess) => self.command(&coprocess.body, &mut scope.clone(), stdin),
        }
    }

    fn redirect(&mut self, redirect: &IoRedirect, scope: &mut Scope, into: &mut Redirections) {
        match redirect {
            IoRedirect::File(fd, kind, target) => self.redirect_file(*fd, kind, target, scope, into),
            IoRedirect::HereDocument(_, document) => {
                let flow = if document.requires_expansion {
                    self.document(&document.doc.value, scope)
                } else {
                    Flow::of_text(document.doc.value.clone())
                };
                into.stdin = Some(flow);
            }
            IoRedirect::HereString(_, word) => {
                let Field { text, sources } = self.single(&word.value, scope);
                into.stdin = Some(Flow { text: Some(text + "\n"), sources });
            }
            IoRedirect::OutputAndError(word, append) => {
                let path = self.target(word, scope);
                into.out = Some((path, *append));
            }
        }
    }

    fn redirect_file(
        &mut self,
        fd: Option<i32>,
        kind: &Kind,
        target: &Target,
        scope: &mut Scope,
        into: &mut Redirections,
    ) {
        let output = matches!(kind, Kind::Write | Kind::Append | Kind::Clobber | Kind::DuplicateOutput);
        let fd = fd.unwrap_or(i32::from(output));
        let path = match target {
            Target::Filename(word) | Target::Duplicate(word) => {
                let field = self.single(&word.value, scope);
                let number = field.text.trim_end_matches('-').parse::<i32>();
                match number {
                    Ok(number) if matches!(kind, Kind::DuplicateInput | Kind::DuplicateOutput) => {
                        return self.duplicate(fd, number, scope, into);
                    }
                    _ if field.text == "-" && !matches!(kind, Kind::Read | Kind::Write | Kind::Append) => return,
                    _ => self.real(scope.cwd.as_deref(), &field.text),
                }
            }
            Target::Fd(number) => return self.duplicate(fd, *number, scope, into),
            Target::ProcessSubstitution(ProcessSubstitutionKind::Read, subshell) => {
                let flow = self.list(&subshell.list, &mut scope.clone(), &Flow::default());
                into.stdin = Some(flow);
                return;
            }
            Target::ProcessSubstitution(ProcessSubstitutionKind::Write, subshell) => {
                let path = self.descriptor();
                into.processes.push((path.clone(), subshell.list.clone()));
                path
            }
        };
        if matches!(kind, Kind::Read | Kind::ReadAndWrite | Kind::DuplicateInput) {
            let flow = self.file(&path);
            if fd == 0 {
                into.stdin = Some(flow);
            } else {
                into.reads.extend(flow.sources);
            }
            if matches!(kind, Kind::ReadAndWrite) {
                into.others.push((fd, path, true));
            }
            return;
        }
        let append = matches!(kind, Kind::Append);
        // `>& file` is both outputs.
        if fd == 1 {
            into.out = Some((path, append));
            into.diverted = false;
        } else {
            into.others.push((fd, path, append));
        }
    }

    fn duplicate(&mut self, fd: i32, from: i32, scope: &Scope, into: &mut Redirections) {
        let opened = into.others.iter().rev().find(|(number, ..)| *number == from).map(|(_, path, _)| path);
        let path = opened.or_else(|| scope.fds.get(&from)).cloned();
        match (fd, path) {
            (0, Some(path)) => into.stdin = Some(self.file(&path)),
            // `0>&1` with the output on a connection: input comes from there too.
            (0, None) if from == 1 => {
                if let Some((path, _)) = into.out.clone() {
                    into.stdin = Some(self.file(&path));
                }
            }
            (1, Some(path)) => into.out = Some((path, true)),
            (1, None) if from == 2 => into.diverted = true,
            (other, Some(path)) => into.others.push((other, path, true)),
            _ => {}
        }
    }

    fn target(&mut self, word: &Word, scope: &mut Scope) -> String {
        let field = self.single(&word.value, scope);
        self.real(scope.cwd.as_deref(), &field.text)
    }

    /// A name for a process substitution, as the shell would give it.
    fn descriptor(&mut self) -> String {
        format!("/dev/fd/{}", 1000 + self.files.len() + self.action.commands.len())
    }

    /// The output goes where the redirections say; what is left goes down the pipe.
    fn deliver(&mut self, out: Flow, redirections: Redirections, program: &str, scope: &mut Scope) -> Flow {
        let Redirections { out: to, others, processes, diverted, .. } = redirections;
        for (_, path, append) in others {
            self.write(Write { path, append, flow: Flow::empty(), program: program.to_owned() });
        }
        let rest = match to {
            None if diverted => Flow::empty(),
            None => out,
            Some((path, append)) => {
                let terminal = matches!(path.as_str(), "/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1");
                if terminal {
                    out
                } else {
                    self.write(Write { path, append, flow: out, program: program.to_owned() });
                    Flow::empty()
                }
            }
        };
        for (path, list) in processes {
            let flow = self.files.get(&path).cloned().unwrap_or_default();
            self.list(&list, &mut scope.clone(), &flow);
        }
        rest
    }

    /// Records a write, and what the file then holds.
    pub(super) fn write(&mut self, write: Write) {
        if matches!(write.path.as_str(), "/dev/null" | "/dev/stderr" | "/dev/fd/2" | "/dev/tty") {
            return;
        }
        match self.files.get_mut(&write.path).filter(|_| write.append) {
            Some(held) => held.append(write.flow.clone()),
            None if write.append => {
                // Something may be there already.
                self.files.insert(write.path.clone(), Flow { text: None, sources: write.flow.sources.clone() });
            }
            None => {
                self.files.insert(write.path.clone(), write.flow.clone());
            }
        }
        self.action.writes.push(write);
    }

    /// Absolute and normalised, through the links that the action made itself and, where the world has a file system,
    /// through those that are there.
    pub(super) fn real(&self, cwd: Option<&str>, text: &str) -> String {
        let mut path = path::absolute(cwd, text);
        for _ in 0..8 {
            let found = self.action.links.iter().rev().find(|(link, _)| path::is_within(&path, link));
            let Some((link, target)) = found else { break };
            path = path::absolute(Some("/"), &format!("{target}{}", &path[link.len()..]));
        }
        if self.world.file_system { resolved(path) } else { path }
    }

    /// What reading a file gives.
    pub(super) fn file(&self, path: &str) -> Flow {
        let mut flow = match path {
            "/dev/null" => return Flow::empty(),
            _ => self.files.get(path).cloned().unwrap_or_default(),
        };
        if let Some(peer) = path.strip_prefix("/dev/tcp/").or_else(|| path.strip_prefix("/dev/udp/")) {
            flow.sources.insert(Source::Network(peer.replace('/', ":")));
        } else if !path.starts_with("/dev/fd/") {
            flow.sources.insert(Source::File(path.to_owned()));
            // A directory holds what was put into it.
            let inside = self.files.iter().filter(|(file, _)| file.as_str() != path && path::is_within(file, path));
            flow.sources.extend(inside.flat_map(|(_, held)| held.sources.iter().cloned()));
        }
        flow
    }

    fn assign(&mut self, assignment: &brush_parser::ast::Assignment, scope: &mut Scope) -> (String, Value) {
        let name = match &assignment.name {
            AssignmentName::VariableName(name) => name.clone(),
            AssignmentName::ArrayElementName(name, index) => {
                self.value(index, scope);
                name.clone()
            }
        };
        let mut value = match &assignment.value {
            AssignmentValue::Scalar(word) => self.value(&word.value, scope),
            AssignmentValue::Array(items) => {
                let items: Vec<Field> = items.iter().flat_map(|(_, word)| self.fields(&word.value, scope)).collect();
                let first = items.first().map_or(String::new(), |item| item.text.clone());
                let sources = items.iter().flat_map(|item| item.sources.clone()).collect();
                Value { texts: vec![first], sources, array: Some(items) }
            }
        };
        if matches!(assignment.name, AssignmentName::ArrayElementName(..)) || assignment.append {
            let old = self.variable(&name, scope);
            value.sources.extend(old.sources);
            value = match (old.array, value.array) {
                (Some(mut items), added) => {
                    let scalar = || value.texts.iter().map(Field::literal).collect();
                    items.extend(added.unwrap_or_else(scalar));
                    Value { texts: old.texts, sources: value.sources, array: Some(items) }
                }
                (None, None) if assignment.append => {
                    let mut texts = Vec::new();
                    for text in &value.texts {
                        texts.extend(old.texts.iter().map(|before| format!("{before}{text}")));
                    }
                    texts.retain(|text| text.len() <= COMMAND_BYTES);
                    texts.truncate(8);
                    if texts.is_empty() {
                        texts.push(UNKNOWN.to_string());
                    }
                    Value { texts, sources: value.sources, array: None }
                }
                (None, array) => Value { texts: value.texts, sources: value.sources, array },
            };
        }
        (name, value)
    }

    fn simple(&mut self, simple: &SimpleCommand, scope: &mut Scope, stdin: &Flow) -> Flow {
        let SimpleCommand { prefix, word_or_name, suffix } = simple;
        let mut redirections = Redirections::default();
        let mut assignments = Vec::new();
        let mut words: Vec<Field> = Vec::new();
        let mut declared = Vec::new();
        let mut pending: Vec<(String, CompoundList)> = Vec::new();
        for item in prefix.iter().flat_map(|prefix| &prefix.0) {
            match item {
                Item::AssignmentWord(assignment, _) => {
                    let assigned = self.assign(assignment, scope);
                    // Later assignments of the same line see the earlier ones when there is no command.
                    if word_or_name.is_none() {
                        scope.vars.insert(assigned.0.clone(), assigned.1.clone());
                    }
                    assignments.push(assigned);
                }
                Item::IoRedirect(redirect) => self.redirect(redirect, scope, &mut redirections),
                Item::Word(word) => words.extend(self.fields(&word.value, scope)),
                Item::ProcessSubstitution(..) => {}
            }
        }
        if let Some(word) = word_or_name {
            words.extend(self.fields(&word.value, scope));
        }
        for item in suffix.iter().flat_map(|suffix| &suffix.0) {
            match item {
                Item::Word(word) => words.extend(self.fields(&word.value, scope)),
                Item::IoRedirect(redirect) => self.redirect(redirect, scope, &mut redirections),
                Item::AssignmentWord(assignment, word) => {
                    let (name, value) = self.assign(assignment, scope);
                    let declares = words.first().is_some_and(|word| {
                        matches!(word.text.as_str(), "export" | "declare" | "typeset" | "local" | "readonly" | "alias")
                    });
                    if declares {
                        let text = value.texts.first().cloned().unwrap_or_default();
                        words.push(Field { text: format!("{name}={text}"), sources: value.sources.clone() });
                        declared.push((name, value));
                    } else {
                        words.extend(self.fields(&word.value, scope));
                    }
                }
                Item::ProcessSubstitution(kind, subshell) => {
                    let path = self.descriptor();
                    let sources = match kind {
                        ProcessSubstitutionKind::Read => {
                            let flow = self.list(&subshell.list, &mut scope.clone(), &Flow::default());
                            let sources = flow.sources.clone();
                            self.files.insert(path.clone(), flow);
                            sources
                        }
                        ProcessSubstitutionKind::Write => {
                            // Its number is taken by an empty file until the command has written to it.
                            self.files.insert(path.clone(), Flow::default());
                            pending.push((path.clone(), subshell.list.clone()));
                            Sources::new()
                        }
                    };
                    words.push(Field { text: path, sources });
                }
            }
        }
        if words.is_empty() {
            // Only assignments and redirections; `$(<file)` is the file.
            let stdin = redirections.stdin.take();
            for (name, value) in assignments {
                scope.vars.insert(name, value);
            }
            return self.deliver(stdin.unwrap_or_else(Flow::empty), redirections, "", scope);
        }
        let as_field = |(name, Value { texts, sources, .. }): (String, Value)| {
            let text = if texts.len() == 1 { texts[0].clone() } else { UNKNOWN.to_string() };
            (name, Field { text, sources })
        };
        let command = Command {
            words,
            env: assignments.into_iter().map(as_field).collect(),
            cwd: scope.cwd.clone(),
            stdin: redirections.stdin.take().unwrap_or_else(|| stdin.clone()),
            reads: std::mem::take(&mut redirections.reads),
            via: scope.via.clone(),
            remote: scope.remote,
            ..Command::default()
        };
        let program = command.words[0].text.clone();
        let input = command.stdin.clone();
        if program == "exec" && command.words.len() == 1 {
            for (fd, path, _) in &redirections.others {
                scope.fds.insert(*fd, path.clone());
            }
            if let Some((path, _)) = &redirections.out {
                scope.fds.insert(1, path.clone());
            }
            return self.deliver(Flow::empty(), redirections, "exec", scope);
        }
        let mut out = self.invoke(command, scope, declared);
        if let Some(path) = scope.fds.get(&1).cloned().filter(|_| redirections.out.is_none()) {
            self.write(Write { path, append: true, flow: out.clone(), program: program.clone() });
            out = Flow::empty();
        }
        for (path, list) in pending {
            let mut flow = self.files.get(&path).cloned().unwrap_or_default();
            flow.sources.extend(input.sources.iter().chain(&out.sources).cloned());
            self.list(&list, &mut scope.clone(), &flow);
        }
        self.deliver(out, redirections, path::name(&program), scope)
    }
}

/// After a branch that may or may not have run, a variable holds what it held before or what it holds now.
fn merge(scope: &mut Scope, other: HashMap<String, Value>) {
    for (name, before) in other {
        let now = scope.vars.entry(name).or_insert_with(|| before.clone());
        if *now == before {
            continue;
        }
        for text in before.texts {
            if !now.texts.contains(&text) {
                now.texts.push(text);
            }
        }
        now.sources.extend(before.sources);
        if now.texts.len() > 8 {
            now.texts = vec![UNKNOWN.to_string()];
        }
    }
}

/// Through the links of the real file system: of the longest part of the path that exists.
fn resolved(path: String) -> String {
    let known = path::known_prefix(&path);
    let mut existing = std::path::Path::new(known);
    loop {
        if let Ok(real) = existing.canonicalize() {
            let rest = &path[existing.as_os_str().len()..];
            let real = real.to_string_lossy();
            return if real == "/" { format!("/{}", rest.trim_start_matches('/')) } else { format!("{real}{rest}") };
        }
        match existing.parent() {
            Some(parent) => existing = parent,
            None => return path,
        }
    }
}
