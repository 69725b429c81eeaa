//! TR-DESTRUCT-OUTSIDE: deletion or destructive change of user or system data outside the project.
#![forbid(unsafe_code)]

use super::files::Verb;
use super::places::{self, Zone};
use super::{Hits, Subject, transfer};
use crate::policy::judge::Severity;
use crate::policy::shell::{Command, Field, Options, path};

/// How a command harms what it is pointed at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Harm {
    /// All below it goes.
    Recursive,
    /// One file goes, or is emptied.
    Single,
    /// All below it changes its owner or mode.
    Modes,
    /// What is there is overwritten.
    Overwrite,
}

/// What a command destroys, as written and absolute.
pub(super) fn targets(command: &Command) -> Vec<(Harm, String, String)> {
    let args = command.args();
    let all = |harm: Harm, fields: &[&Field]| -> Vec<(Harm, String, String)> {
        fields.iter().map(|field| (harm, field.text.clone(), command.path(&field.text))).collect()
    };
    match command.program.as_str() {
        "rm" | "srm" | "trash" | "gio" => {
            let options = Options::read(args, "", false);
            let recursive = options.has(&["-r", "-R", "--recursive"]) || command.program == "srm";
            all(if recursive { Harm::Recursive } else { Harm::Single }, &options.operands)
        }
        "unlink" | "shred" | "wipe" => all(Harm::Single, &Options::read(args, "n s", false).operands),
        "truncate" => all(Harm::Single, &Options::read(args, "s r size reference", false).operands),
        "find" if command.has("-delete") => {
            let roots = args
                .iter()
                .take_while(|arg| !arg.text.starts_with('-') || matches!(arg.text.as_str(), "-L" | "-H" | "-P"));
            let roots: Vec<&Field> = roots.filter(|arg| !arg.text.starts_with('-')).collect();
            if roots.is_empty() { all(Harm::Recursive, &[&Field::literal(".")]) } else { all(Harm::Recursive, &roots) }
        }
        "rsync" if command.texts().any(|text| text.starts_with("--del")) || command.has("--remove-source-files") => {
            let options = Options::read(args, "e rsh exclude include filter files-from exclude-from", false);
            options
                .operands
                .last()
                .filter(|target| !target.text.contains(':'))
                .map(|target| all(Harm::Recursive, &[target]))
                .unwrap_or_default()
        }
        "dd" => {
            let output = args.iter().filter_map(|arg| arg.text.strip_prefix("of="));
            output.map(|text| (Harm::Overwrite, text.to_owned(), command.path(text))).collect()
        }
        "chmod" | "chown" | "chgrp" | "setfacl" | "chattr" => {
            let options = Options::read(args, "reference from m x M", false);
            if options.has(&["-R", "--recursive"]) {
                all(Harm::Modes, options.operands.get(1..).unwrap_or_default())
            } else {
                Vec::new()
            }
        }
        "mv" => {
            let operands = Options::read(args, "t S target-directory suffix", false).operands;
            let moved = operands.len().saturating_sub(1);
            all(Harm::Overwrite, &operands[..moved])
        }
        "tar" | "bsdtar"
            if command.texts().next().is_some_and(|first| first.contains('x'))
                || command.has("--extract")
                || command
                    .texts()
                    .any(|text| text.starts_with('-') && !text.starts_with("--") && text.contains('x')) =>
        {
            let options = Options::read(args, "f C file directory T X exclude", false);
            let base = options.value(&["-C", "--directory"]);
            base.map(|base| all(Harm::Overwrite, &[base])).unwrap_or_default()
        }
        "unzip" => Options::read(args, "d x P", false)
            .value(&["-d"])
            .map(|base| all(Harm::Overwrite, &[base]))
            .unwrap_or_default(),
        "wipefs" | "blkdiscard" | "fdisk" | "parted" | "sgdisk" | "cryptsetup" => {
            all(Harm::Overwrite, &Options::read(args, "", false).operands)
        }
        program if program.starts_with("mkfs") || matches!(program, "mke2fs" | "mkswap") => {
            all(Harm::Overwrite, &Options::read(args, "t L", false).operands)
        }
        "git" if command.has("clean") && command.texts().any(|text| text.starts_with('-') && text.contains('f')) => {
            let options = Options::read(args, "c C git-dir work-tree", true);
            let base = options.value(&["-C"]).map_or(".", |field| field.text.as_str());
            vec![(Harm::Recursive, base.to_owned(), command.path(base))]
        }
        "git" if discards(command) => {
            let options = Options::read(args, "c C git-dir work-tree", true);
            let base = options.value(&["-C", "--work-tree"]).map_or(".", |field| field.text.as_str());
            vec![(Harm::Overwrite, base.to_owned(), command.path(base))]
        }
        _ => Vec::new(),
    }
}

/// git commands that throw away what is not committed.
fn discards(command: &Command) -> bool {
    let everything = || command.has(".") || command.has("--") || command.has(":/");
    command.has("reset") && command.has("--hard")
        || (command.has("checkout") || command.has("restore")) && everything()
        || command.has("stash") && (command.has("drop") || command.has("clear"))
}

/// A move into the project loses nothing.
fn is_brought_in(subject: &Subject<'_>, command: &Command) -> bool {
    let question = subject.question;
    let options = Options::read(command.args(), "t S target-directory suffix", false);
    let to = options.value(&["-t", "--target-directory"]).or(options.operands.last().copied());
    command.program == "mv"
        && to.is_some_and(|to| {
            places::zone(&to.text, &command.path(&to.text), question.world, question.cwd) == Zone::Tree
        })
}

pub(super) fn judge(subject: &Subject<'_>, hits: &mut Hits<'_>) {
    let question = subject.question;
    for command in subject.local() {
        for (harm, text, target) in targets(command) {
            let target = through_links(subject, target);
            let made = subject.action.created.iter().any(|made| made != "/" && path::is_within(&target, made))
                && matches!(places::zone(&text, &target, question.world, question.cwd), Zone::Temporary);
            let zone = places::zone(&text, &target, question.world, question.cwd);
            let what = format!("{} would destroy {target}, outside the project", command.program);
            let severity = match (zone, harm) {
                (Zone::Tree | Zone::Harmless | Zone::Unknown, _) => continue,
                (Zone::Outside, Harm::Overwrite) if is_brought_in(subject, command) => continue,
                (Zone::Temporary, Harm::Recursive) if !made => Severity::Review,
                (Zone::Temporary, _) => continue,
                (Zone::Cache, Harm::Recursive | Harm::Modes) => Severity::Warn,
                (Zone::Cache, _) => continue,
                (Zone::Device, _) => Severity::Deny,
                (Zone::Outside, Harm::Recursive) => Severity::Deny,
                // One file at a time, and all of them.
                (Zone::Outside, Harm::Single) if path::known_prefix(&target) != target => Severity::Deny,
                (Zone::Outside, Harm::Overwrite) if target == "/" || target == places::home(question.world) => {
                    Severity::Deny
                }
                (Zone::Outside, Harm::Modes)
                    if target == "/" || places::is_system(&target) || target == places::home(question.world) =>
                {
                    Severity::Deny
                }
                (Zone::Outside, Harm::Overwrite) if command.program == "dd" && target.starts_with("/dev/") => {
                    Severity::Deny
                }
                (Zone::Outside, _) => Severity::Review,
            };
            hits.add(severity, &what);
        }
        elsewhere(command, hits);
        unknown_program(subject, command, hits);
    }
    for write in &subject.action.writes {
        let zone = places::zone(&write.path, &write.path, question.world, question.cwd);
        let emptied = write.flow.text.as_deref() == Some("") && write.flow.sources.is_empty() && !write.append;
        match zone {
            Zone::Device => hits.add(Severity::Deny, &format!("{} would be overwritten", write.path)),
            Zone::Outside if emptied => hits.add(Severity::Review, &format!("{} would be emptied", write.path)),
            Zone::Outside if places::is_system(&write.path) && !write.append => {
                hits.add(Severity::Review, &format!("{} would be overwritten", write.path))
            }
            _ => {}
        }
    }
    for file in subject.files.iter().filter(|file| file.verb == Verb::Delete) {
        if places::zone(&file.path, &file.path, question.world, question.cwd) == Zone::Outside {
            hits.add(
                if file.recursive { Severity::Deny } else { Severity::Review },
                &format!("{} would be deleted, outside the project", file.path),
            );
        }
    }
}

/// The path through links that the action made itself.
fn through_links(subject: &Subject<'_>, target: String) -> String {
    match subject.action.links.iter().find(|(link, _)| path::is_within(&target, link) && target != *link) {
        Some((link, to)) => path::absolute(Some("/"), &format!("{to}{}", &target[link.len()..])),
        None => target,
    }
}

/// Databases and disks of other machines.
fn elsewhere(command: &Command, hits: &mut Hits<'_>) {
    if matches!(
        command.program.as_str(),
        "psql" | "mysql" | "mariadb" | "mongosh" | "sqlcmd" | "redis-cli" | "clickhouse-client"
    ) {
        let options = Options::read(command.args(), "h host U d p P c e u dbname port command execute eval f", false);
        let host = options
            .value(&["-h", "--host"])
            .map(|field| field.text.as_str())
            .or_else(|| command.texts().find(|text| text.contains("://")).map(places::host_of));
        let statement = command.texts().collect::<Vec<_>>().join(" ").to_ascii_uppercase();
        let drops = ["DROP DATABASE", "DROP SCHEMA", "DROP TABLE", "TRUNCATE ", "FLUSHALL", "FLUSHDB", "DROPDATABASE"]
            .iter()
            .any(|word| statement.contains(word));
        if drops && host.is_some_and(|host| !places::is_local_host(host) && !host.starts_with('/')) {
            hits.add(
                Severity::Review,
                &format!("{} would destroy data on {}", command.program, host.unwrap_or("another machine")),
            );
        }
    }
    if command.program == "dropdb" && command.has("-h") {
        hits.add(Severity::Review, "dropdb would destroy a database on another machine");
    }
    if matches!(command.program.as_str(), "aws" | "gsutil")
        && (command.has("rb") || command.has("rm") && (command.has("--recursive") || command.has("-r")))
        && transfer::of(command).is_none()
    {
        hits.add(Severity::Review, &format!("{} would destroy a bucket's content", command.program));
    }
}

/// A program that is not known, called like a recursive deletion of something outside.
fn unknown_program(subject: &Subject<'_>, command: &Command, hits: &mut Hits<'_>) {
    if command.words.first().is_none_or(|word| word.is_known()) {
        return;
    }
    let recursive = command
        .texts()
        .any(|text| text.starts_with('-') && !text.starts_with("--") && text.contains('r') && text.contains('f'));
    let outside = command.texts().find(|text| {
        text.contains('/')
            && places::zone(text, &command.path(text), subject.question.world, subject.question.cwd) == Zone::Outside
    });
    if let Some(target) = outside.filter(|_| recursive) {
        hits.add(Severity::Review, &format!("a program that is not known is pointed at {target} like a deletion"));
    }
}
