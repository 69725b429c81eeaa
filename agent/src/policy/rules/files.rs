//! Files that a tool reads or changes by its structured input: the hosts' own tools, `apply_patch`, MCP servers.
#![forbid(unsafe_code)]

use serde_json::Value;

use crate::host::ToolClass;
use crate::policy::judge::Question;
use crate::policy::shell::path;

/// What happens to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Read,
    /// The whole file is replaced.
    Write,
    /// A part of it is.
    Edit,
    Delete,
}

/// One file that a call reads or changes.
#[derive(Clone, Debug)]
pub(super) struct FileUse {
    pub(super) verb: Verb,
    /// Absolute, normalised.
    pub(super) path: String,
    /// Text that goes.
    pub(super) removed: String,
    /// Text that comes.
    pub(super) added: String,
    /// A directory with all that is in it.
    pub(super) recursive: bool,
}

/// Most files that one call is looked at for.
const FILES: usize = 512;

/// The files that a call is about.
pub(super) fn uses(question: &Question<'_>, class: ToolClass) -> Vec<FileUse> {
    let input = &question.call.input;
    let text = |key: &str| input.get(key).and_then(Value::as_str).unwrap_or("");
    let at = |file: &str| path::absolute(Some(question.cwd), &home_relative(question, file));
    let one = |verb, file: &str, removed: &str, added: &str| FileUse {
        verb,
        path: at(file),
        removed: removed.to_owned(),
        added: added.to_owned(),
        recursive: input.get("recursive").and_then(Value::as_bool).unwrap_or(false),
    };
    match (class, question.call.tool.as_str()) {
        (ToolClass::FileEdit, "Write") => vec![one(Verb::Write, text("file_path"), "", text("content"))],
        (ToolClass::FileEdit, "Edit") => {
            vec![one(Verb::Edit, text("file_path"), text("old_string"), text("new_string"))]
        }
        (ToolClass::FileEdit, "MultiEdit") => {
            let edits = input.get("edits").and_then(Value::as_array).into_iter().flatten();
            let part = |edit: &Value, key: &str| edit.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
            let (removed, added): (Vec<String>, Vec<String>) =
                edits.map(|edit| (part(edit, "old_string"), part(edit, "new_string"))).unzip();
            vec![one(Verb::Edit, text("file_path"), &removed.join("\n"), &added.join("\n"))]
        }
        (ToolClass::FileEdit, "NotebookEdit") => vec![one(Verb::Edit, text("notebook_path"), "", text("new_source"))],
        (ToolClass::FileEdit, "apply_patch") => {
            let patch =
                ["command", "input", "patch"].iter().map(|key| text(key)).find(|text| !text.is_empty()).unwrap_or("");
            patched(patch, at)
        }
        (ToolClass::FileRead, _) => {
            let file = ["file_path", "notebook_path", "path"].iter().map(|key| text(key)).find(|text| !text.is_empty());
            // Glob and LS show names, not what is in the files.
            let reads = !matches!(question.call.tool.as_str(), "Glob" | "LS");
            file.filter(|_| reads).map(|file| one(Verb::Read, file, "", "")).into_iter().collect()
        }
        (ToolClass::Mcp | ToolClass::Unknown, tool) => {
            let name = tool.rsplit("__").next().unwrap_or(tool).to_ascii_lowercase();
            let is = |words: &[&str]| words.iter().any(|word| name.contains(word));
            let verb = if is(&["delete", "remove", "unlink", "rmdir", "trash"]) {
                Verb::Delete
            } else if is(&["write", "create", "save", "append", "put", "upload"]) {
                Verb::Write
            } else if is(&["edit", "replace", "patch", "update", "insert", "move", "rename", "copy"]) {
                Verb::Edit
            } else {
                Verb::Read
            };
            let content = ["content", "contents", "text", "new_string", "new_str", "data"]
                .iter()
                .map(|key| text(key))
                .find(|text| !text.is_empty())
                .unwrap_or("");
            let keys = [
                "path",
                "file_path",
                "filepath",
                "file",
                "filename",
                "directory",
                "dir",
                "source",
                "destination",
                "target",
                "paths",
            ];
            let named = keys.iter().filter_map(|key| input.get(key));
            let paths = named.flat_map(|value| match value {
                Value::String(file) => vec![file.as_str()],
                Value::Array(files) => files.iter().take(FILES).filter_map(Value::as_str).collect(),
                _ => Vec::new(),
            });
            // A name without a slash is as likely a thing on a server.
            paths
                .filter(|file| file.starts_with(['/', '~', '.']) || file.contains('/'))
                .filter(|file| !file.contains("://"))
                .map(|file| one(verb, file, text("old_string"), content))
                .collect()
        }
        _ => Vec::new(),
    }
}

fn home_relative(question: &Question<'_>, file: &str) -> String {
    match file.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            format!("{}{rest}", question.world.home.to_string_lossy())
        }
        _ => file.to_owned(),
    }
}

fn patched(patch: &str, at: impl Fn(&str) -> String) -> Vec<FileUse> {
    let mut uses: Vec<FileUse> = Vec::new();
    for line in patch.lines() {
        let heads = [
            ("*** Delete File: ", Verb::Delete),
            ("*** Update File: ", Verb::Edit),
            ("*** Add File: ", Verb::Write),
            ("*** Move to: ", Verb::Write),
        ];
        if let Some((verb, file)) =
            heads.iter().find_map(|(head, verb)| line.strip_prefix(head).map(|file| (*verb, file)))
        {
            if uses.len() == FILES {
                break;
            }
            uses.push(FileUse {
                verb,
                path: at(file.trim()),
                removed: String::new(),
                added: String::new(),
                recursive: false,
            });
        } else if let Some(current) = uses.last_mut() {
            let (side, text) = match (line.strip_prefix('-'), line.strip_prefix('+')) {
                (Some(text), _) => (&mut current.removed, text),
                (_, Some(text)) => (&mut current.added, text),
                _ => continue,
            };
            side.push_str(text);
            side.push('\n');
        }
    }
    uses
}
