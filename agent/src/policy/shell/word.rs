//! Expanding one word: quotes, escapes, tildes, parameters, substitutions; what cannot be known becomes [`UNKNOWN`].
//!
//! The parser crate's own reading of words goes through a cache, and a command may hold a secret: so this is ours.
#![forbid(unsafe_code)]

use super::scan;
use super::walk::{Reader, Scope, Value};
use super::{COMMAND_BYTES, Field, Flow, Source, Sources, UNKNOWN, decode, path};

/// Most readings of one word that are followed side by side.
const READINGS: usize = 32;

/// One reading of a word that is being expanded.
#[derive(Clone, Default)]
struct Reading {
    done: Vec<Field>,
    text: String,
    sources: Sources,
    /// The word is there even if it is empty: something of it was quoted.
    present: bool,
}

impl Reading {
    fn end_field(&mut self) {
        if self.present || !self.text.is_empty() {
            let text = std::mem::take(&mut self.text);
            self.done.push(Field { text, sources: std::mem::take(&mut self.sources) });
        }
        self.present = false;
    }
}

impl Reader<'_> {
    /// The fields that a raw word becomes: none, one or many. A variable that may hold several values gives each.
    pub(super) fn fields(&mut self, raw: &str, scope: &mut Scope) -> Vec<Field> {
        let Some(words) = scan::braces(raw) else {
            return vec![Field::literal(UNKNOWN)];
        };
        let mut fields = Vec::new();
        for word in words {
            for mut reading in self.readings(&word, scope, true, false) {
                reading.end_field();
                for field in reading.done {
                    if !fields.contains(&field) || fields.len() < 2 {
                        fields.push(field);
                    }
                }
            }
        }
        fields
    }

    /// The value of a word where it is not split: in an assignment, a redirection, a `case`.
    pub(super) fn value(&mut self, raw: &str, scope: &mut Scope) -> Value {
        let readings = self.readings(raw, scope, false, true);
        let mut value = Value::default();
        for Reading { text, sources, .. } in readings {
            if !value.texts.contains(&text) {
                value.texts.push(text);
            }
            value.sources.extend(sources);
        }
        value
    }

    /// The same, as one field.
    pub(super) fn single(&mut self, raw: &str, scope: &mut Scope) -> Field {
        let mut value = self.value(raw, scope);
        let text = if value.texts.len() == 1 { value.texts.remove(0) } else { UNKNOWN.to_string() };
        Field { text, sources: value.sources }
    }

    /// The body of a here-document whose delimiter was not quoted.
    pub(super) fn document(&mut self, body: &str, scope: &mut Scope) -> Flow {
        let mut readings = vec![Reading::default()];
        self.quoted(body, scope, &mut readings, true, 0);
        let Reading { text, sources, .. } = readings.swap_remove(0);
        Flow { text: Some(text), sources }
    }

    fn readings(&mut self, raw: &str, scope: &mut Scope, split: bool, assignment: bool) -> Vec<Reading> {
        let mut readings = vec![Reading::default()];
        if !self.spend(1 + raw.len() / 16) {
            readings[0].text.push(UNKNOWN);
            return readings;
        }
        let bytes = raw.as_bytes();
        let mut at = 0;
        if bytes.first() == Some(&b'~') {
            at = tilde(self, raw, scope, &mut readings);
        }
        while at < bytes.len() {
            let rest = &raw[at..];
            match bytes[at] {
                b'\'' => {
                    let end = scan::single_quote(raw, at + 1).unwrap_or(raw.len());
                    put(&mut readings, &raw[at + 1..end], true);
                    at = end + 1;
                }
                b'"' => {
                    let end = scan::double_quote(raw, at + 1, 0).unwrap_or(raw.len());
                    readings.iter_mut().for_each(|reading| reading.present = true);
                    self.quoted(&raw[at + 1..end], scope, &mut readings, false, 0);
                    at = end + 1;
                }
                b'\\' => {
                    let escaped = rest.chars().nth(1);
                    if escaped != Some('\n') {
                        put(&mut readings, escaped.unwrap_or('\\').encode_utf8(&mut [0; 4]), true);
                    }
                    at += 1 + escaped.map_or(0, char::len_utf8);
                }
                b'$' if rest.starts_with("$'") => {
                    let end = scan::ansi_quote(raw, at + 2).unwrap_or(raw.len());
                    put(&mut readings, &decode::escapes(&raw[at + 2..end]).0, true);
                    at = end + 1;
                }
                b'$' if rest.starts_with("$\"") => at += 1,
                b'$' | b'`' => at += self.dollar(rest, scope, &mut readings, split, false),
                b'~' if assignment && matches!(bytes[at - 1], b':' | b'=') => {
                    at += tilde(self, rest, scope, &mut readings);
                }
                _ => {
                    let end = rest.find(['\'', '"', '\\', '$', '`', '~']).unwrap_or(rest.len());
                    let length = if end == 0 { 1 } else { end };
                    put(&mut readings, &rest[..length], false);
                    at += length;
                }
            }
        }
        readings
    }

    /// The inside of double quotes, or of a here-document (where a double quote is a character).
    fn quoted(&mut self, text: &str, scope: &mut Scope, readings: &mut Vec<Reading>, document: bool, _depth: usize) {
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            let rest = &text[at..];
            match bytes[at] {
                b'\\' => match rest.chars().nth(1) {
                    Some('\n') => at += 2,
                    Some(c @ ('$' | '`' | '\\')) => {
                        put(readings, c.encode_utf8(&mut [0; 4]), true);
                        at += 2;
                    }
                    Some('"') if !document => {
                        put(readings, "\"", true);
                        at += 2;
                    }
                    _ => {
                        put(readings, "\\", true);
                        at += 1;
                    }
                },
                b'$' | b'`' => at += self.dollar(rest, scope, readings, false, true),
                _ => {
                    let end = rest.find(['\\', '$', '`']).unwrap_or(rest.len());
                    put(readings, &rest[..end], true);
                    at += end;
                }
            }
        }
    }

    /// What starts with `$` or a backquote; returns its length in bytes.
    fn dollar(
        &mut self,
        rest: &str,
        scope: &mut Scope,
        readings: &mut Vec<Reading>,
        split: bool,
        quoted: bool,
    ) -> usize {
        let bytes = rest.as_bytes();
        if bytes[0] == b'`' {
            let end = scan::backquote(rest, 1).unwrap_or(rest.len());
            let inner = rest[1..end].replace("\\`", "`").replace("\\\\", "\\").replace("\\$", "$");
            self.substitution(&inner, scope, readings, split);
            return (end + 1).min(rest.len());
        }
        match bytes.get(1) {
            Some(b'(') if rest.starts_with("$((") && arithmetic_end(rest).is_some() => {
                let end = arithmetic_end(rest).unwrap_or(rest.len());
                self.arithmetic(&rest[3..end - 2], scope);
                // Whatever it computes is a number: no other path, no other program.
                put(readings, "0", quoted);
                end
            }
            Some(b'(') => {
                let end = scan::parenthesis(rest, 2, 0).unwrap_or(rest.len());
                self.substitution(&rest[2..end], scope, readings, split);
                (end + 1).min(rest.len())
            }
            Some(b'[') => {
                let end = rest.find(']').unwrap_or(rest.len() - 1);
                put(readings, "0", quoted);
                end + 1
            }
            Some(b'{') => {
                let end = scan::brace(rest, 2, 0).unwrap_or(rest.len());
                let inner = &rest[2..end.max(2)];
                let value = self.parameter(inner, scope);
                // `"${a[@]}"` stays as many words as there are.
                let each = value.array.is_some() && (inner.contains("[@]") || inner.starts_with('@'));
                self.insert(readings, &value, split || each, scope);
                (end + 1).min(rest.len())
            }
            Some(c) if c.is_ascii_alphabetic() || *c == b'_' => {
                let end = rest[1..]
                    .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
                    .map_or(rest.len(), |end| end + 1);
                let value = self.variable(&rest[1..end], scope);
                self.insert(readings, &value, split, scope);
                end
            }
            Some(c) if matches!(c, b'0'..=b'9' | b'@' | b'*' | b'#' | b'?' | b'$' | b'!' | b'-') => {
                let value = self.variable(&rest[1..2], scope);
                // `"$@"` stays as many words as there are.
                self.insert(readings, &value, split || (*c == b'@'), scope);
                2
            }
            _ => {
                put(readings, "$", quoted);
                1
            }
        }
    }

    fn substitution(&mut self, inner: &str, scope: &mut Scope, readings: &mut Vec<Reading>, split: bool) {
        let Flow { text, sources } = self.script(inner, &mut scope.clone(), &Flow::empty());
        let text = text.map_or(UNKNOWN.to_string(), |text| text.trim_end_matches('\n').to_owned());
        self.insert(readings, &Value { texts: vec![text], sources, array: None }, split, scope);
    }

    /// Substitutions inside arithmetic run too.
    pub(super) fn arithmetic(&mut self, text: &str, scope: &mut Scope) {
        let mut at = 0;
        while let Some(found) = text[at..].find(['$', '`']) {
            at += found;
            let rest = &text[at..];
            if rest.starts_with('`') || rest.starts_with("$(") {
                at += self.dollar(rest, scope, &mut vec![Reading::default()], false, true);
            } else {
                at += 1;
            }
        }
    }

    /// The value of a variable or special parameter.
    pub(super) fn variable(&mut self, name: &str, scope: &Scope) -> Value {
        if let Some(value) = scope.vars.get(name) {
            return value.clone();
        }
        let known = |text: &str| Value::text(text);
        match name {
            "PWD" => scope.cwd.as_deref().map_or_else(Value::unknown, known),
            "HOME" => known(&self.world.home.to_string_lossy()),
            "USER" | "LOGNAME" => known(&self.world.user),
            "XDG_RUNTIME_DIR" => known(&self.world.runtime_dir.to_string_lossy()),
            "@" | "*" => Value {
                texts: vec![scope.positional.iter().map(|f| f.text.as_str()).collect::<Vec<_>>().join(" ")],
                sources: scope.positional.iter().flat_map(|f| f.sources.clone()).collect(),
                array: Some(scope.positional.clone()),
            },
            "#" => known(&scope.positional.len().to_string()),
            "?" | "$" | "!" | "RANDOM" | "SECONDS" | "LINENO" | "UID" | "EUID" | "PPID" | "BASHPID" => known("0"),
            "-" => known("hB"),
            "0" => known("bash"),
            "IFS" => known(" \t\n"),
            "OSTYPE" => known("linux-gnu"),
            _ => match name.parse::<usize>() {
                Ok(index) => match scope.positional.get(index.wrapping_sub(1)) {
                    Some(field) => {
                        Value { texts: vec![field.text.clone()], sources: field.sources.clone(), array: None }
                    }
                    None => Value::text(""),
                },
                Err(_) => Value { sources: Sources::from([Source::Variable(name.to_owned())]), ..Value::unknown() },
            },
        }
    }

    /// What is between `${` and `}`.
    fn parameter(&mut self, text: &str, scope: &mut Scope) -> Value {
        let (indirect, text) = match text.strip_prefix('!') {
            Some(rest) if !rest.is_empty() => (true, rest),
            _ => (false, text),
        };
        if let Some(name) = text.strip_prefix('#').filter(|name| !name.is_empty()) {
            let Value { sources, .. } = self.variable(name.split('[').next().unwrap_or(name), scope);
            return Value { texts: vec!["0".into()], sources, array: None };
        }
        let special = text.starts_with(['@', '*', '#', '?', '$', '!', '-']);
        let end = if special {
            1
        } else {
            text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len())
        };
        let (name, mut operation) = text.split_at(end);
        let mut value = self.variable(name, scope);
        if indirect {
            // `${!name}` is the variable that `name` names; the name is followed where it is known.
            let names = std::mem::take(&mut value.texts);
            value.texts = names.iter().flat_map(|name| self.variable(name, scope).texts).collect();
            if value.texts.is_empty() {
                value.texts.push(UNKNOWN.to_string());
            }
        }
        if let Some(index) = operation.strip_prefix('[') {
            let close = index.find(']').unwrap_or(index.len());
            let (index, rest) = (&index[..close], index.get(close + 1..).unwrap_or(""));
            operation = rest;
            value = match (&value.array, index) {
                (_, "@" | "*") => value,
                (Some(items), index) => match index.parse::<usize>().ok().and_then(|index| items.get(index)) {
                    Some(item) => Value { texts: vec![item.text.clone()], sources: item.sources.clone(), array: None },
                    None => Value { texts: vec![UNKNOWN.into()], ..value },
                },
                (None, "0") => value,
                (None, _) => Value { texts: vec![UNKNOWN.into()], ..value },
            };
        }
        self.operate(name, value, operation, scope)
    }

    fn operate(&mut self, name: &str, value: Value, operation: &str, scope: &mut Scope) -> Value {
        let colon = operation.strip_prefix(':');
        let test = colon.unwrap_or(operation);
        let unset = value.texts.iter().all(|text| text.is_empty() || text.contains(UNKNOWN));
        let Some(kind) = test.chars().next() else { return value };
        let word = &test[kind.len_utf8()..];
        match kind {
            '-' | '=' => {
                let default = self.value(word, scope);
                if !unset {
                    return value;
                }
                // Set elsewhere or not: it may be either.
                let mut both = value;
                both.texts.retain(|text| !text.is_empty());
                both.texts.extend(default.texts);
                both.sources.extend(default.sources);
                if kind == '=' {
                    scope.vars.insert(name.to_owned(), both.clone());
                }
                both
            }
            '+' => {
                let mut other = self.value(word, scope);
                other.texts.push(String::new());
                other
            }
            '?' => {
                // With `:?` an empty value ends the shell: an unknown one stays unknown.
                value
            }
            '#' | '%' if colon.is_none() => {
                let longest = word.starts_with(kind);
                let pattern = self.single(word.trim_start_matches(kind), scope);
                map(value, |text| trim(text, &pattern.text, kind == '#', longest))
            }
            '/' if colon.is_none() => {
                let all = word.starts_with('/');
                let word = word.trim_start_matches('/');
                let (pattern, replacement) = word.split_once('/').unwrap_or((word, ""));
                let (pattern, replacement) = (self.single(pattern, scope), self.single(replacement, scope));
                map(value, |text| match text {
                    _ if path::has_pattern(&pattern.text)
                        || !pattern.is_known()
                        || pattern.text.starts_with(['#', '%']) =>
                    {
                        UNKNOWN.into()
                    }
                    text if text.matches(&pattern.text).count() * replacement.text.len() > COMMAND_BYTES => {
                        UNKNOWN.into()
                    }
                    text if all => text.replace(&pattern.text, &replacement.text),
                    text => text.replacen(&pattern.text, &replacement.text, 1),
                })
            }
            '^' => map(value, |text| {
                if word.starts_with('^') { text.to_uppercase() } else { first(text, |c| c.to_uppercase().collect()) }
            }),
            ',' => map(value, |text| {
                if word.starts_with(',') { text.to_lowercase() } else { first(text, |c| c.to_lowercase().collect()) }
            }),
            _ if colon.is_some() => {
                let mut numbers = test.split(':').map(|part| part.trim().parse::<i64>());
                let (Some(Ok(offset)), length) = (numbers.next(), numbers.next()) else {
                    self.arithmetic(test, scope);
                    return Value { texts: vec![UNKNOWN.into()], ..value };
                };
                map(value, |text| substring(text, offset, length.as_ref().map(|length| length.as_ref().ok().copied())))
            }
            _ => Value { texts: vec![UNKNOWN.into()], ..value },
        }
    }

    /// Puts a value into every reading, once for each text that it may be.
    fn insert(&mut self, readings: &mut Vec<Reading>, value: &Value, split: bool, scope: &Scope) {
        let length = |text: &str| text.len() / 16 + 1;
        let items = value.array.iter().flatten().map(|item| length(&item.text)).sum::<usize>();
        // A value that doubles itself again and again is paid for like anything else.
        if !self.spend(items + value.texts.iter().map(|text| length(text) * readings.len()).sum::<usize>()) {
            return put(readings, UNKNOWN.encode_utf8(&mut [0; 4]), true);
        }
        if let Some(items) = value.array.as_ref().filter(|_| split) {
            for reading in readings {
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        reading.end_field();
                    }
                    reading.text.push_str(&item.text);
                    reading.sources.extend(item.sources.iter().cloned());
                    reading.present = true;
                }
            }
            return;
        }
        let unknown = [UNKNOWN.to_string()];
        let texts: &[String] = if value.texts.len() * readings.len() > READINGS || value.texts.is_empty() {
            &unknown
        } else {
            &value.texts
        };
        let separators = scope.vars.get("IFS").and_then(|ifs| ifs.texts.first()).map_or(" \t\n", String::as_str);
        let before = std::mem::take(readings);
        for text in texts {
            for reading in &before {
                let mut reading = reading.clone();
                reading.sources.extend(value.sources.iter().cloned());
                if split {
                    let mut parts = text.split(|c| separators.contains(c));
                    reading.text.push_str(parts.next().unwrap_or(""));
                    for part in parts {
                        reading.end_field();
                        reading.sources.extend(value.sources.iter().cloned());
                        reading.text.push_str(part);
                    }
                } else {
                    reading.text.push_str(text);
                }
                readings.push(reading);
            }
        }
    }
}

fn map(value: Value, change: impl Fn(&str) -> String) -> Value {
    let keep = |text: &str| if text.contains(UNKNOWN) { UNKNOWN.to_string() } else { change(text) };
    let Value { texts, sources, array } = value;
    let array = array
        .map(|items| items.into_iter().map(|item| Field { text: keep(&item.text), sources: item.sources }).collect());
    Value { texts: texts.iter().map(|text| keep(text)).collect(), sources, array }
}

fn first(text: &str, change: impl Fn(char) -> String) -> String {
    let mut chars = text.chars();
    chars.next().map(|c| change(c) + chars.as_str()).unwrap_or_default()
}

fn trim(text: &str, pattern: &str, front: bool, longest: bool) -> String {
    let mut cuts = text.char_indices().map(|(at, _)| at).chain([text.len()]);
    let fits = |at: &usize| path::matches(pattern, if front { &text[..*at] } else { &text[*at..] }, true);
    // The work is bounded: texts longer than this are not cut but unknown.
    if text.len() > 1024 || pattern.len() > 256 || pattern.contains(UNKNOWN) {
        return UNKNOWN.into();
    }
    let cut = if front == longest { cuts.rev().find(fits) } else { cuts.find(fits) };
    match cut {
        None => text.to_owned(),
        Some(at) => if front { &text[at..] } else { &text[..at] }.to_owned(),
    }
}

fn substring(text: &str, offset: i64, length: Option<Option<i64>>) -> String {
    let chars: Vec<char> = text.chars().collect();
    let count = chars.len() as i64;
    let start = if offset < 0 { (count + offset).max(0) } else { offset.min(count) };
    let end = match length {
        None => count,
        Some(None) => return UNKNOWN.into(),
        Some(Some(length)) if length < 0 => (count + length).max(start),
        Some(Some(length)) => start.saturating_add(length).min(count),
    };
    chars[start as usize..end as usize].iter().collect()
}

/// The length of `$((…))`, when that is what it is and not a subshell in a substitution.
fn arithmetic_end(rest: &str) -> Option<usize> {
    let inner = scan::parenthesis(rest, 3, 0)?;
    rest[inner + 1..].starts_with(')').then_some(inner + 2)
}

fn put(readings: &mut [Reading], text: &str, quoted: bool) {
    for reading in readings {
        reading.text.push_str(text);
        reading.present |= quoted;
    }
}

/// `~`, `~user`, `~+` at the start of a word; returns its length in bytes.
fn tilde(reader: &Reader<'_>, rest: &str, scope: &Scope, readings: &mut [Reading]) -> usize {
    let end = rest.find(['/', ':']).unwrap_or(rest.len());
    let home = reader.world.home.to_string_lossy();
    let text = match &rest[1..end] {
        "" => home.into_owned(),
        "+" => scope.cwd.clone().unwrap_or_else(|| UNKNOWN.to_string()),
        "-" => UNKNOWN.to_string(),
        "root" => String::from("/root"),
        name if *name == *reader.world.user => home.into_owned(),
        name if name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.')) => {
            format!("/home/{name}")
        }
        _ => {
            put(readings, "~", false);
            return 1;
        }
    };
    put(readings, &text, true);
    end
}
