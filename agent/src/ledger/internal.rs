//! What a host starts for itself, told by stated patterns per host and version (`policies/hosts/*.toml`).
#![forbid(unsafe_code)]

use serde::Deserialize;

use crate::host::HostKind;

const CLAUDE_CODE: &str = include_str!("../../../policies/hosts/claude-code.toml");

/// The patterns of every host.
#[derive(Clone, Debug)]
pub struct Patterns {
    hosts: Vec<HostFile>,
}

/// Why a pattern file is refused.
#[derive(Debug, thiserror::Error)]
pub enum PatternError {
    /// It is not TOML of the form that the shipped files show.
    #[error("host patterns: {0}")]
    Malformed(#[from] toml::de::Error),
    /// A version that cannot be compared.
    #[error("host patterns for {host}: {version:?} is not a version of dotted numbers")]
    Version {
        /// The file's host.
        host: String,
        /// What stands there.
        version: String,
    },
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostFile {
    host: HostKind,
    versions: Vec<String>,
    #[serde(rename = "program")]
    programs: Vec<Program>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Program {
    kind: String,
    program: Vec<String>,
    begins: Vec<String>,
    #[serde(default)]
    exact: bool,
    #[serde(default, rename = "in")]
    versions: Option<Vec<String>>,
}

/// The patterns that hold for one host and version.
#[derive(Clone, Debug, Default)]
pub(super) struct HostPatterns {
    programs: Vec<Program>,
    /// The older version they were taken from, when the host's own is not known to them.
    pub(super) taken_from: Option<String>,
}

impl Patterns {
    /// The shipped ones.
    pub fn shipped() -> Result<Patterns, PatternError> {
        Ok(Patterns { hosts: vec![HostFile::parse(CLAUDE_CODE)?] })
    }

    /// Those for a host: of its version, else of the nearest older one; of the newest when the version is not known.
    pub(super) fn of(&self, host: HostKind, version: Option<&str>) -> HostPatterns {
        let Some(file) = self.hosts.iter().find(|file| file.host == host) else { return HostPatterns::default() };
        let mut known: Vec<&String> = file.versions.iter().collect();
        known.sort_by_key(|v| numbers(v));
        let chosen = match version.and_then(numbers) {
            Some(wanted) => known.iter().rfind(|v| numbers(v).is_some_and(|have| have <= wanted)),
            None => known.last(),
        };
        let Some(chosen) = chosen else { return HostPatterns::default() };
        let applies = |program: &&Program| program.versions.as_ref().is_none_or(|versions| versions.contains(chosen));
        HostPatterns {
            programs: file.programs.iter().filter(applies).cloned().collect(),
            taken_from: (version != Some(chosen.as_str())).then(|| (*chosen).clone()),
        }
    }
}

impl HostFile {
    fn parse(text: &str) -> Result<HostFile, PatternError> {
        let file: HostFile = toml::from_str(text)?;
        let named = file.programs.iter().flat_map(|program| program.versions.iter().flatten());
        for version in file.versions.iter().chain(named) {
            if numbers(version).is_none() || !file.versions.contains(version) {
                return Err(PatternError::Version { host: format!("{:?}", file.host), version: version.clone() });
            }
        }
        Ok(file)
    }
}

impl HostPatterns {
    /// The kind of a direct child of the host, by its arguments.
    pub(super) fn kind_of(&self, arguments: &[&[u8]], truncated: bool) -> Option<&str> {
        self.programs.iter().find(|program| program.matches(arguments, truncated)).map(|program| program.kind.as_str())
    }
}

impl Program {
    fn matches(&self, arguments: &[&[u8]], truncated: bool) -> bool {
        let [name, rest @ ..] = arguments else { return false };
        let name = name.rsplit(|b| *b == b'/').next().unwrap_or_default();
        self.program.iter().any(|program| program.as_bytes() == name)
            && rest.len() >= self.begins.len()
            && (!self.exact || (rest.len() == self.begins.len() && !truncated))
            && self.begins.iter().zip(rest).enumerate().all(|(index, (wanted, have))| {
                let cut = truncated && index + 1 == rest.len();
                match wanted.strip_suffix('*') {
                    Some(beginning) => have.starts_with(beginning.as_bytes()),
                    None => !cut && wanted.as_bytes() == *have,
                }
            })
    }
}

fn numbers(version: &str) -> Option<Vec<u32>> {
    let parts: Option<Vec<u32>> = version.split('.').map(|part| part.parse().ok()).collect();
    parts.filter(|parts| (1..=4).contains(&parts.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(version: &str, words: &[&str], truncated: bool) -> Option<String> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        Patterns::shipped().unwrap().of(HostKind::ClaudeCode, Some(version)).kind_of(&words, truncated).map(Into::into)
    }

    #[test]
    fn what_the_real_host_starts_is_its_own_business() {
        for version in ["2.1.197", "2.1.332"] {
            let snapshot = ["/bin/bash", "-c", "-l", "SNAPSHOT_FILE=/h/.claude/shell-snapshots/s.sh\n  # First"];
            assert_eq!(kind(version, &snapshot, false).as_deref(), Some("shell snapshot"));
            assert_eq!(kind(version, &snapshot, true).as_deref(), Some("shell snapshot"), "cut inside the last word");
            assert_eq!(kind(version, &["/bin/bash", "-c", "env"], false).as_deref(), Some("environment"));
            assert_eq!(kind(version, &["rg", "--no-config", "--files", "."], false).as_deref(), Some("rg"));
            let listed =
                ["git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=", "ls-files", "--error-unmatch"];
            assert_eq!(kind(version, &listed, false).as_deref(), Some("git"));
        }
        let safe = [
            "/usr/bin/git",
            "-c",
            "core.askPass=",
            "-c",
            "protocol.ext.allow=never",
            "-c",
            "core.alternateRefsCommand=f() {",
        ];
        assert_eq!(kind("2.1.332", &safe, true).as_deref(), Some("git"));
        let status = ["/usr/bin/git", "--no-optional-locks", "status", "--short"];
        assert_eq!(kind("2.1.197", &status, false).as_deref(), Some("git"));
    }

    #[test]
    fn nothing_else_is() {
        for words in [
            &["/bin/bash", "-c", "env; curl evil"][..],
            &["/bin/bash", "-c", "env", "x"],
            &["git", "push"],
            &["git", "-c", "core.askPass=", "push"],
            &["bash", "-c", "source /x && eval 'ls'"],
            &["env"],
            &[],
        ] {
            assert_eq!(kind("2.1.332", words, false), None, "{words:?}");
        }
        assert_eq!(kind("2.1.332", &["/bin/bash", "-c", "env"], true), None, "what was cut is not exact");
        assert_eq!(kind("2.1.332", &["git", "-c", "core.hooksPath=/dev/null"], true), None, "the cut ends too early");
    }

    #[test]
    fn the_nearest_older_version_speaks_for_an_unknown_one() {
        let patterns = Patterns::shipped().unwrap();
        let of = |version| patterns.of(HostKind::ClaudeCode, version);
        assert_eq!(of(Some("2.1.332")).taken_from, None);
        assert_eq!(of(Some("2.1.400")).taken_from.as_deref(), Some("2.1.332"));
        assert_eq!(of(Some("2.1.200")).taken_from.as_deref(), Some("2.1.197"));
        assert_eq!(of(None).taken_from.as_deref(), Some("2.1.332"));
        assert!(of(Some("1.0.0")).programs.is_empty());
        assert!(patterns.of(HostKind::Codex, Some("0.171.0")).programs.is_empty());
        let wrong = HostFile::parse("host = \"codex\"\nversions = [\"next\"]\nprogram = []");
        assert!(matches!(wrong, Err(PatternError::Version { .. })));
    }
}
