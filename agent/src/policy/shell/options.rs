//! Reading a program's options the way getopt does, from a short description of which take a value.
#![forbid(unsafe_code)]

use super::Field;

/// Options and operands of one command.
#[derive(Clone, Debug, Default)]
pub struct Options<'a> {
    /// Options by name (`-r`, `--recursive`), with the value of those that take one.
    pub options: Vec<(String, Option<Field>)>,
    /// The rest.
    pub operands: Vec<&'a Field>,
}

impl<'a> Options<'a> {
    /// Reads `args`; `valued` names options that take a value: `"o output T"`, single letters and long names alike.
    /// With `first` the operands end the options, as for programs that start another.
    pub fn read(args: &'a [Field], valued: &str, first: bool) -> Options<'a> {
        let takes_value = |name: &str| valued.split(' ').any(|valued| valued == name);
        let mut read = Options::default();
        let mut at = 0;
        while let Some(field) = args.get(at) {
            at += 1;
            let text = field.text.as_str();
            if text == "--" {
                read.operands.extend(&args[at..]);
                break;
            }
            if let Some(long) = text.strip_prefix("--") {
                match long.split_once('=') {
                    Some((name, value)) => {
                        let value = Field { text: value.to_owned(), sources: field.sources.clone() };
                        read.options.push((format!("--{name}"), Some(value)));
                    }
                    None if takes_value(long) => {
                        read.options.push((text.to_owned(), args.get(at).cloned()));
                        at += 1;
                    }
                    None => read.options.push((text.to_owned(), None)),
                }
            } else if text.len() > 1 && text.starts_with('-') {
                // A whole word may be an option of its own: `-name`, `-exec`, `-chdir`.
                if takes_value(&text[1..]) {
                    read.options.push((text.to_owned(), args.get(at).cloned()));
                    at += 1;
                    continue;
                }
                for (index, letter) in text.char_indices().skip(1) {
                    let name = letter.to_string();
                    let rest = &text[index + letter.len_utf8()..];
                    if !takes_value(&name) {
                        read.options.push((format!("-{name}"), None));
                        continue;
                    }
                    let value = if rest.is_empty() {
                        at += 1;
                        args.get(at - 1).cloned()
                    } else {
                        Some(Field { text: rest.trim_start_matches('=').to_owned(), sources: field.sources.clone() })
                    };
                    read.options.push((format!("-{name}"), value));
                    break;
                }
            } else {
                read.operands.push(field);
                if first {
                    read.operands.extend(&args[at..]);
                    break;
                }
            }
        }
        read
    }

    /// Whether one of the names was given.
    pub fn has(&self, names: &[&str]) -> bool {
        self.options.iter().any(|(name, _)| names.contains(&name.as_str()))
    }

    /// The values of the options with one of these names.
    pub fn values<'s>(&'s self, names: &'s [&str]) -> impl Iterator<Item = &'s Field> {
        self.options.iter().filter(|(name, _)| names.contains(&name.as_str())).filter_map(|(_, value)| value.as_ref())
    }

    /// The last value of the options with one of these names.
    pub fn value<'s>(&'s self, names: &'s [&str]) -> Option<&'s Field> {
        self.values(names).last()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_getopt_reads_them() {
        let args: Vec<Field> =
            ["-czf", "a.tgz", "-C", "/x", "--exclude=y", "--to", "z", "b", "--", "-c"].map(Field::literal).into();
        let read = Options::read(&args, "f C exclude to", false);
        assert_eq!(read.value(&["-f"]).map(|f| f.text.as_str()), Some("a.tgz"));
        assert_eq!(read.value(&["--exclude"]).map(|f| f.text.as_str()), Some("y"));
        assert_eq!(read.value(&["--to"]).map(|f| f.text.as_str()), Some("z"));
        assert_eq!(read.operands.iter().map(|f| f.text.as_str()).collect::<Vec<_>>(), ["b", "-c"]);
        assert!(read.has(&["-z"]) && !read.has(&["-x"]));
    }
}
