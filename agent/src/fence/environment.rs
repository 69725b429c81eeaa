//! The environment that the fenced command gets: its own, plus what says that it is fenced.
#![forbid(unsafe_code)]

use std::ffi::{CStr, CString};

use super::plan::{EnvironmentPlan, Plan};

/// The new environment, and the names of the watched variables that were found (never their values).
#[derive(Debug)]
pub struct Environment {
    /// `NAME=value`, in the order they came.
    pub variables: Vec<CString>,
    /// Which watched ones there were, at most 32; ` (dropped)` follows those that were taken out.
    pub watched: Vec<String>,
}

/// Applies the plan to what the host passed on.
pub fn prepare<'a>(plan: &Plan, inherited: impl Iterator<Item = &'a CStr>) -> Environment {
    let EnvironmentPlan { watched, drop_watched, set } = &plan.environment;
    let mut own: Vec<(&str, String)> = set.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    if let Some(directory) = plan.temporary.as_deref().and_then(|path| std::str::from_utf8(path).ok()) {
        own.push(("TMPDIR", directory.to_owned()));
        // zsh puts its here-documents under this prefix, and takes no notice of TMPDIR for it.
        own.push(("TMPPREFIX", format!("{directory}/zsh")));
    }
    own.push(("RINGFENCE", "1".to_owned()));
    let mut environment = Environment { variables: Vec::new(), watched: Vec::new() };
    for variable in inherited {
        let bytes = variable.to_bytes();
        let name = &bytes[..bytes.iter().position(|b| *b == b'=').unwrap_or(bytes.len())];
        if own.iter().any(|(ours, _)| ours.as_bytes() == name) {
            continue;
        }
        if watched.iter().any(|pattern| matches(pattern, name)) {
            if environment.watched.len() < 32 {
                let shown: String = String::from_utf8_lossy(name).chars().take(64).collect();
                environment.watched.push(if *drop_watched { format!("{shown} (dropped)") } else { shown });
            }
            if *drop_watched {
                continue;
            }
        }
        environment.variables.push(variable.to_owned());
    }
    // A name or value with a NUL is refused when the plan is read, so none is lost here.
    environment.variables.extend(own.iter().filter_map(|(name, value)| CString::new(format!("{name}={value}")).ok()));
    environment
}

/// Whether a name is the pattern, or begins with it where it ends in `*`.
fn matches(pattern: &str, name: &[u8]) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix.as_bytes()),
        None => name == pattern.as_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::sample;
    use super::*;

    fn run(drop: bool, inherited: &[&CStr]) -> (Vec<String>, Vec<String>) {
        let mut plan = sample();
        plan.environment.drop_watched = drop;
        let made = prepare(&plan, inherited.iter().copied());
        (made.variables.iter().map(|v| v.to_string_lossy().into_owned()).collect(), made.watched)
    }

    #[test]
    fn ours_replace_what_was_there_and_the_rest_stays_in_order() {
        let (variables, watched) = run(false, &[c"B=1", c"TMPDIR=/evil", c"RINGFENCE=0", c"A=2", c"LD_PRELOAD=x"]);
        let expected =
            ["B=1", "A=2", "LD_PRELOAD=x", "EXTRA=e", "TMPDIR=/tmp/x", "TMPPREFIX=/tmp/x/zsh", "RINGFENCE=1"];
        assert_eq!(variables, expected);
        assert_eq!(watched, ["LD_PRELOAD"]);
    }

    #[test]
    fn strict_drops_what_is_watched() {
        let (variables, watched) = run(true, &[c"LD_AUDIT=x", c"LDX=1"]);
        assert!(!variables.iter().any(|v| v.starts_with("LD_AUDIT")));
        assert!(variables.contains(&"LDX=1".to_owned()));
        assert_eq!(watched, ["LD_AUDIT (dropped)"]);
    }
}
