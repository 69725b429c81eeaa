//! Policy files: `Raw` is what was typed, [`Policy`] is what it means. Refusals name file, line and reason.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};
use toml::Spanned;

use super::cases::{self, Case};
use super::judge::{RuleId, Severity};
use super::rules;
use super::{Mode, Policy, Retention, RuleLevel, Settings};

/// The shipped policy, as every binary carries it.
pub const BUILTIN: &str = include_str!("../../../policies/default.toml");
/// Largest policy file, in bytes.
pub const FILE_BYTES: u64 = 1 << 20;
/// Raised when a rule's meaning changes, so that equal files of two versions do not share a hash.
const RULES_VERSION: u32 = 1;

/// Where the layers are. A directory or file that does not exist is an empty layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyPaths {
    /// Directories of `*.toml`, least specific first: shipped, the machine's, the person's. They may tighten and soften.
    pub directories: Vec<PathBuf>,
    /// A project's `.ringfence.toml`, which may only tighten.
    pub project: Option<PathBuf>,
    /// Who may own policy files, besides root.
    pub owner: u32,
}

impl PolicyPaths {
    /// The installed layers of a person, by the home of the passwd entry.
    pub fn installed(home: &Path, owner: u32) -> PolicyPaths {
        PolicyPaths {
            directories: vec![
                "/usr/share/ringfence/policies".into(),
                "/etc/ringfence/policies".into(),
                home.join(".config/ringfence/policies"),
            ],
            project: None,
            owner,
        }
    }
}

/// Why a policy is refused. The policy that was in force before stays in force.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The text is not what a policy file may say.
    #[error("{file}:{line}: {reason}")]
    Text {
        /// The file.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// The file itself cannot be trusted or read.
    #[error("{file}: {reason}")]
    File {
        /// The file or directory.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    version: Option<Spanned<u32>>,
    mode: Option<Spanned<Mode>>,
    fence: Option<Spanned<String>>,
    strict_offline: Option<Spanned<bool>>,
    required: Option<Spanned<Vec<String>>>,
    retention: Option<RawRetention>,
    #[serde(default)]
    rules: BTreeMap<Spanned<String>, Spanned<RawRule>>,
    #[serde(default)]
    test: Vec<Spanned<cases::RawCase>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRetention {
    events_days: Option<Spanned<u32>>,
    findings_days: Option<Spanned<u32>>,
    reviews_days: Option<Spanned<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    at_least: Option<Severity>,
    at_most: Option<Severity>,
}

/// Whether a layer may soften.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layer {
    /// The shipped text, the machine's, the person's.
    Trusted,
    /// A project's file: the agent can write it.
    Project,
}

impl Policy {
    /// The embedded policy alone: what the hook judges with when the service cannot answer. Never fails; that the
    /// embedded text is read as it stands is a test.
    pub fn builtin() -> Policy {
        let mut building = Building::new();
        // A text that cannot be read leaves the strictest reading in place: the rules are code, not text.
        let _ = building.add(Path::new("policies/default.toml"), BUILTIN, Layer::Trusted);
        building.finish()
    }

    /// Reads every layer over the embedded one.
    pub fn load(paths: &PolicyPaths) -> Result<Policy, PolicyError> {
        let mut building = Building::new();
        building.add(Path::new("policies/default.toml"), BUILTIN, Layer::Trusted)?;
        for directory in &paths.directories {
            for file in policy_files(directory, paths.owner)? {
                let text = read_checked(&file, paths.owner)?;
                // The installed copy of the shipped text says nothing new, and its tests need not run twice.
                if text != BUILTIN {
                    building.add(&file, &text, Layer::Trusted)?;
                }
            }
        }
        if let Some(project) = &paths.project
            && project.symlink_metadata().is_ok()
        {
            building.add(project, &read_checked(project, paths.owner)?, Layer::Project)?;
        }
        Ok(building.finish())
    }

    /// Reads one text over the embedded policy: for `policy check` and for tests.
    pub fn with_text(file: &Path, text: &str, project: bool) -> Result<Policy, PolicyError> {
        let mut building = Building::new();
        building.add(Path::new("policies/default.toml"), BUILTIN, Layer::Trusted)?;
        building.add(file, text, if project { Layer::Project } else { Layer::Trusted })?;
        Ok(building.finish())
    }
}

struct Building {
    settings: Settings,
    /// `at_most` of the layers: the least of them.
    tests: Vec<Case>,
}

impl Building {
    fn new() -> Building {
        Building {
            settings: Settings {
                mode: Mode::Enforce,
                fence: "default".into(),
                strict_offline: false,
                required: BTreeSet::new(),
                retention: Retention { events_days: 14, findings_days: 30, reviews_days: 30 },
                rules: BTreeMap::new(),
            },
            tests: Vec::new(),
        }
    }

    fn add(&mut self, file: &Path, text: &str, layer: Layer) -> Result<(), PolicyError> {
        let at = |span: std::ops::Range<usize>, reason: String| PolicyError::Text {
            file: file.to_owned(),
            line: text[..span.start.min(text.len())].matches('\n').count() + 1,
            reason,
        };
        let raw: Raw =
            toml::from_str(text).map_err(|error| at(error.span().unwrap_or(0..0), error.message().to_owned()))?;
        let Raw { version, mode, fence, strict_offline, required, retention, rules, test } = raw;
        if let Some(version) = version
            && *version.get_ref() != 1
        {
            return Err(at(version.span(), format!("version {} is not known; this build reads 1", version.get_ref())));
        }
        let settings = &mut self.settings;
        if let Some(mode) = mode {
            if layer == Layer::Project && *mode.get_ref() < settings.mode {
                return Err(at(mode.span(), "a project's file may only tighten the mode".into()));
            }
            settings.mode = *mode.get_ref();
        }
        if let Some(fence) = fence {
            let name = fence.get_ref();
            if name.is_empty() || !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
                return Err(at(fence.span(), "a fence's name is lower-case letters, digits and hyphens".into()));
            }
            if layer == Layer::Project && name != "strict" && *name != settings.fence {
                return Err(at(fence.span(), "a project's file may only choose the fence \"strict\"".into()));
            }
            settings.fence = name.clone();
        }
        if let Some(offline) = strict_offline {
            if layer == Layer::Project && settings.strict_offline && !offline.get_ref() {
                return Err(at(offline.span(), "a project's file may only tighten".into()));
            }
            settings.strict_offline = *offline.get_ref();
        }
        if let Some(required) = required {
            const LAYERS: [&str; 7] = ["landlock", "seccomp", "bpf_lsm", "cgroup", "tracepoints", "unix", "kernel"];
            if let Some(unknown) = required.get_ref().iter().find(|name| !LAYERS.contains(&name.as_str())) {
                let reason = format!("no layer is called {unknown:?}; there are {}", LAYERS.join(", "));
                return Err(at(required.span(), reason));
            }
            settings.required.extend(required.into_inner());
        }
        if let Some(RawRetention { events_days, findings_days, reviews_days }) = retention {
            let retention = &mut settings.retention;
            for (given, days) in [
                (events_days, &mut retention.events_days),
                (findings_days, &mut retention.findings_days),
                (reviews_days, &mut retention.reviews_days),
            ] {
                let Some(given) = given else { continue };
                if !(1..=3650).contains(given.get_ref()) {
                    return Err(at(given.span(), "days are between 1 and 3650".into()));
                }
                if layer == Layer::Project {
                    return Err(at(given.span(), "retention is not a project's to set".into()));
                }
                *days = *given.get_ref();
            }
        }
        for (name, rule) in rules {
            let Some(id) = rules::known(name.get_ref()) else {
                return Err(at(name.span(), format!("no rule is called {:?}", name.get_ref())));
            };
            let span = rule.span();
            let RawRule { at_least, at_most } = rule.into_inner();
            if at_most.is_some() && layer == Layer::Project {
                return Err(at(span, "a project's file may only tighten: at_most is not its to say".into()));
            }
            if at_most.is_some() && rules::is_catastrophic(id) {
                return Err(at(span, format!("{} is catastrophic: nothing lowers it", id.0)));
            }
            if let (Some(least), Some(most)) = (at_least, at_most)
                && least > most
            {
                return Err(at(span, "at_least is above at_most".into()));
            }
            // The least `at_most` and the greatest `at_least`, whatever the order; where they cross, the stricter wins.
            let level: &mut RuleLevel = settings.rules.entry(id).or_default();
            level.at_least = level.at_least.max(at_least.unwrap_or(Severity::None));
            level.at_most = level.at_most.min(at_most.unwrap_or(Severity::Deny));
        }
        for case in test {
            let span = case.span();
            self.tests.push(case.into_inner().check().map_err(|reason| at(span, reason))?);
        }
        Ok(())
    }

    fn finish(self) -> Policy {
        let Building { settings, tests } = self;
        let mut hash = Sha256::new();
        hash.update(RULES_VERSION.to_be_bytes());
        hash.update(env!("CARGO_PKG_VERSION").as_bytes());
        // Plain data with string keys: it always has a JSON form.
        hash.update(serde_json::to_vec(&settings).unwrap_or_default());
        Policy { settings, hash: format!("sha256:{}", hex(&hash.finalize())), tests }
    }
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The `*.toml` of one directory, by name. None when it does not exist.
fn policy_files(directory: &Path, owner: u32) -> Result<Vec<PathBuf>, PolicyError> {
    let refuse = |reason: String| PolicyError::File { file: directory.to_owned(), reason };
    let meta = match std::fs::symlink_metadata(directory) {
        Ok(meta) => meta,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(refuse(error.to_string())),
    };
    if !meta.is_dir() {
        return Err(refuse("a policy directory must be a directory, not a link".into()));
    }
    check_owner(&meta, owner).map_err(refuse)?;
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(|e| refuse(e.to_string()))? {
        let path = entry.map_err(|e| refuse(e.to_string()))?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Reads a file that only root or its person can have written.
fn read_checked(path: &Path, owner: u32) -> Result<String, PolicyError> {
    let refuse = |reason: String| PolicyError::File { file: path.to_owned(), reason };
    let file =
        File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC).open(path);
    let file = file.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => refuse("a policy file must not be a symbolic link".into()),
        _ => refuse(error.to_string()),
    })?;
    let meta = file.metadata().map_err(|e| refuse(e.to_string()))?;
    if !meta.is_file() {
        return Err(refuse("a policy must be a regular file".into()));
    }
    check_owner(&meta, owner).map_err(refuse)?;
    let mut text = String::new();
    let read = file.take(FILE_BYTES + 1).read_to_string(&mut text).map_err(|e| refuse(e.to_string()))?;
    if read as u64 > FILE_BYTES {
        return Err(refuse(format!("larger than {FILE_BYTES} bytes")));
    }
    Ok(text)
}

fn check_owner(meta: &std::fs::Metadata, owner: u32) -> Result<(), String> {
    if meta.uid() != 0 && meta.uid() != owner {
        return Err(format!("owned by uid {}, and only root or uid {owner} may own it", meta.uid()));
    }
    if meta.mode() & 0o002 != 0 {
        return Err("everybody may write it: take that away with chmod o-w".into());
    }
    Ok(())
}

impl Policy {
    /// One hit's severity after the layers had their say.
    pub(super) fn levelled(&self, rule: RuleId, severity: Severity) -> Severity {
        let RuleLevel { at_least, at_most } = self.level(rule);
        if rules::is_catastrophic(rule) { severity.max(at_least) } else { severity.min(at_most).max(at_least) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn refused(text: &str, project: bool) -> String {
        Policy::with_text(Path::new("own.toml"), text, project).expect_err("it must be refused").to_string()
    }

    #[test]
    fn the_embedded_text_is_read_as_it_stands() {
        let mut building = Building::new();
        building.add(Path::new("policies/default.toml"), BUILTIN, Layer::Trusted).expect("the shipped policy is valid");
        let policy = building.finish();
        assert_eq!(policy.hash(), Policy::builtin().hash());
        assert!(policy.hash().starts_with("sha256:") && policy.hash().len() == 71);
        assert_eq!(policy.retention(), Retention { events_days: 14, findings_days: 30, reviews_days: 30 });
        assert!(policy.tests().len() >= 5);
    }

    #[test]
    fn errors_name_file_line_and_reason() {
        assert_eq!(refused("mode = \"enforce\"\nmoode = 1\n", false).split(':').nth(1), Some("2"));
        assert!(refused("mode = \"enforce\"\nmode = \"strict\"\n", false).starts_with("own.toml:2:"));
        assert!(refused("\n[rules]\nTR-NOPE = { at_least = \"deny\" }\n", false).starts_with("own.toml:3: no rule"));
        assert!(refused("[rules]\nTR-CRED-EXFIL = { at_most = \"warn\" }\n", false).contains("catastrophic"));
        assert!(refused("version = 2\n", false).contains("own.toml:1:"));
        assert!(refused("[retention]\nevents_days = 0\n", false).contains("own.toml:2:"));
        assert!(refused("required = [\"luck\"]", false).contains("luck"));
        assert!(refused("[[test]]\nid = \"a\"\ntool = \"Bash\"\nexpect = \"deny\"\n", false).contains("own.toml:1:"));
    }

    #[test]
    fn a_project_only_tightens() {
        assert!(refused("mode = \"observe\"", true).contains("tighten"));
        assert!(refused("[rules]\nTR-PRIV-ESC = { at_most = \"warn\" }", true).contains("tighten"));
        assert!(refused("fence = \"host\"", true).contains("strict"));
        assert!(refused("[retention]\nevents_days = 1", true).contains("project"));
        let text = "mode = \"strict\"\n[rules]\nTR-PRIV-ESC = { at_least = \"deny\" }\n";
        let policy = Policy::with_text(Path::new(".ringfence.toml"), text, true).expect("tightening is fine");
        assert_eq!(policy.mode(), Mode::Strict);
        assert_eq!(policy.levelled(RuleId("TR-PRIV-ESC"), Severity::Review), Severity::Deny);
        assert_ne!(policy.hash(), Policy::builtin().hash());
    }

    #[test]
    fn order_of_layers_never_matters() {
        let [a, b] =
            ["[rules]\nTR-PRIV-ESC = { at_most = \"warn\" }\n", "[rules]\nTR-PRIV-ESC = { at_least = \"deny\" }\n"];
        let both = |first: &str, second: &str| {
            let mut building = Building::new();
            building.add(Path::new("1.toml"), first, Layer::Trusted).expect("valid");
            building.add(Path::new("2.toml"), second, Layer::Trusted).expect("valid");
            building.finish()
        };
        assert_eq!(both(a, b).hash(), both(b, a).hash());
        assert_eq!(both(a, b).levelled(RuleId("TR-PRIV-ESC"), Severity::Review), Severity::Deny);
    }

    #[test]
    fn files_that_others_could_have_written_are_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let uid = nix::unistd::Uid::current().as_raw();
        let policies = dir.path().join("policies");
        std::fs::create_dir(&policies).expect("made");
        let paths = PolicyPaths { directories: vec![policies.clone()], project: None, owner: uid };
        let file = policies.join("own.toml");
        std::fs::write(&file, "mode = \"strict\"\n").expect("written");
        assert_eq!(Policy::load(&paths).expect("fine").mode(), Mode::Strict);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).expect("chmod");
        assert!(Policy::load(&paths).expect_err("world-writable").to_string().contains("own.toml: everybody"));
        std::fs::rename(&file, dir.path().join("elsewhere.toml")).expect("moved");
        std::os::unix::fs::symlink(dir.path().join("elsewhere.toml"), &file).expect("linked");
        assert!(Policy::load(&paths).expect_err("a link").to_string().contains("symbolic link"));
        if uid == 0 {
            std::fs::remove_file(&file).expect("removed");
            std::fs::write(&file, "mode = \"strict\"\n").expect("written");
            std::os::unix::fs::chown(&file, Some(12345), None).expect("chown");
            assert!(Policy::load(&paths).expect_err("foreign").to_string().contains("uid 12345"));
        } else {
            println!("skipped: a file of another owner can only be made by root");
        }
    }

    #[test]
    fn missing_layers_are_empty() {
        let paths = PolicyPaths {
            directories: vec!["/nonexistent/policies".into()],
            project: Some("/nonexistent/.ringfence.toml".into()),
            owner: 0,
        };
        assert_eq!(Policy::load(&paths).expect("fine").hash(), Policy::builtin().hash());
    }
}
