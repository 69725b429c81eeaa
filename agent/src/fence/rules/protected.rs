//! Which names are protected in a session: those of `policies/protected.toml`, a fence's own, and its credentials.
#![forbid(unsafe_code)]

use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::OnceLock;

use ringfence_common::rules::{
    NAME_GIT, NAME_HOST, NAME_PROGRAM_REFUSED, NAME_READ_ALLOWED, NAME_READ_REFUSED, NAME_RECORDED, NAME_WRITABLE,
    NAME_WRITE_REFUSED,
};
use serde::Deserialize;

use super::labels::Labels;
use super::names::Name;
use crate::fence::file::{Action, Credential, Exception, Fence, Protected, SettingsOf, Write};
use crate::fence::named::Named;
use crate::host::HostKind;

/// `policies/protected.toml`.
const SHIPPED: &str = include_str!("../../../../policies/protected.toml");
/// Most that is read of a file which is a credential only when it holds something, in bytes.
const LOOKED_AT_BYTES: u64 = 1 << 20;

/// Why names cannot be protected.
#[derive(Debug, thiserror::Error)]
pub enum ProtectedError {
    /// The file does not follow the form.
    #[error("policies/protected.toml: {0}")]
    Malformed(#[from] toml::de::Error),
    /// A path names no place.
    #[error("protected name {0}: it is neither absolute nor starts with ~/ or a known @place")]
    Path(String),
}

/// The shipped list.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProtectedNames {
    protected: Vec<Protected>,
}

/// For which of a session's two rule sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// What came of a launch.
    Launched,
    /// The host, its hooks, and what it starts for itself.
    Host,
}

impl ProtectedNames {
    /// The shipped list.
    pub fn shipped() -> Result<&'static ProtectedNames, ProtectedError> {
        static READ: OnceLock<ProtectedNames> = OnceLock::new();
        if let Some(read) = READ.get() {
            return Ok(read);
        }
        let read = toml::from_str(SHIPPED)?;
        Ok(READ.get_or_init(|| read))
    }

    /// All names that are protected on one side of a session behind `fence`.
    pub fn of(
        &self,
        fence: &Fence,
        side: Side,
        host: HostKind,
        named: &Named<'_>,
        labels: &mut Labels,
    ) -> Result<Vec<Name>, ProtectedError> {
        let mut names = Vec::new();
        for entry in self.protected.iter().chain(&fence.protected) {
            let bits = bits(entry, side, host);
            let label = labels.number(&entry.path);
            add(&entry.path, bits, label, named, &mut names)?;
        }
        for credential in &fence.credentials {
            let Credential { path, readable, only_if_contains } = credential;
            let label = labels.number(&format!("credential {path}"));
            let from = names.len();
            add(path, NAME_READ_REFUSED, label, named, &mut names)?;
            if !only_if_contains.is_empty() {
                let holds = |name: &Name| contains_one(&name.path, only_if_contains);
                let held: Vec<Name> = names.drain(from..).filter(holds).collect();
                names.extend(held);
            }
            let shown: Vec<Name> = names[from..]
                .iter()
                .flat_map(|name| readable.iter().map(|part| name.path.join(part)))
                .map(|path| Name { path, bits: NAME_READ_ALLOWED, label: 0 })
                .collect();
            names.extend(shown);
        }
        if !fence.outside.refuse.is_empty() {
            let Write { trees, files, devices, terminals } = &fence.write;
            for path in trees.iter().chain(files).chain(devices).chain(terminals) {
                add(path, NAME_WRITABLE, 0, named, &mut names)?;
            }
        }
        Ok(names)
    }
}

fn add(path: &str, bits: u32, label: u32, named: &Named<'_>, into: &mut Vec<Name>) -> Result<(), ProtectedError> {
    if bits != 0 {
        let paths = named.expand(path).ok_or_else(|| ProtectedError::Path(path.to_owned()))?;
        into.extend(paths.into_iter().map(|path| Name { path, bits, label }));
    }
    Ok(())
}

fn bits(entry: &Protected, side: Side, host: HostKind) -> u32 {
    let Protected { path: _, action, host_action, except, settings_of } = entry;
    let action = match side {
        Side::Launched => *action,
        Side::Host => host_action.unwrap_or(*action),
    };
    let live = matches!(
        (settings_of, host),
        (Some(SettingsOf::ClaudeCode), HostKind::ClaudeCode) | (Some(SettingsOf::Codex), HostKind::Codex)
    );
    let exceptions = except.iter().fold(0, |bits, exception| match exception {
        Exception::Git if live => bits,
        Exception::Git => bits | NAME_GIT | NAME_RECORDED,
        Exception::Host => bits | NAME_HOST | NAME_RECORDED,
    });
    match action {
        Action::Refuse => NAME_WRITE_REFUSED | exceptions,
        Action::RefusePrograms => NAME_PROGRAM_REFUSED | exceptions,
        Action::Hide => NAME_WRITE_REFUSED | NAME_READ_REFUSED | exceptions,
        Action::Show => NAME_READ_ALLOWED,
        Action::Record => NAME_RECORDED,
        Action::None => 0,
    }
}

/// Whether a file holds one of these texts. What cannot be read counts as holding it.
fn contains_one(path: &Path, texts: &[String]) -> bool {
    let opened = std::fs::File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    let mut held = Vec::new();
    match opened.and_then(|file| file.take(LOOKED_AT_BYTES).read_to_end(&mut held)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return false,
        Err(_) => return true,
        Ok(_) => {}
    }
    texts.iter().any(|text| held.windows(text.len().max(1)).any(|part| part == text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::fence::Fences;
    use crate::fence::compile::ToolPlaces;
    use crate::fence::tree::Tree;

    fn names(fence: &str, side: Side, host: HostKind) -> Vec<Name> {
        let home = Path::new("/h");
        let tools = ToolPlaces::from_environment(home, |_| None);
        let tree = Tree { top: "/h/p".into(), git: vec!["/h/q/.git".into()] };
        let hosts = [PathBuf::from("/h/.claude")];
        let others = ["programs", "state", "runtime-ringfence", "policies", "path"]
            .map(|name| (name, format!("/rf/{name}").into()));
        let named =
            Named { home, tree: &tree, temporary: home, host_directories: &hosts, tools: &tools, others: &others };
        let fences = Fences::load().unwrap();
        let fence = fences.get(fence).unwrap();
        ProtectedNames::shipped().unwrap().of(fence, side, host, &named, &mut Labels::default()).unwrap()
    }

    fn of(names: &[Name], path: &str) -> u32 {
        names.iter().filter(|name| name.path == Path::new(path)).fold(0, |bits, name| bits | name.bits)
    }

    #[test]
    fn a_live_hosts_settings_are_not_excepted_for_git() {
        let settings = "/h/p/.claude/settings.json";
        let refused = NAME_WRITE_REFUSED | NAME_HOST | NAME_RECORDED;
        assert_eq!(of(&names("default", Side::Launched, HostKind::ClaudeCode), settings), refused);
        assert_eq!(of(&names("default", Side::Launched, HostKind::Run), settings), refused | NAME_GIT);
        assert_eq!(of(&names("default", Side::Launched, HostKind::ClaudeCode), "/h/q/.git/hooks") & NAME_GIT, NAME_GIT);
    }

    #[test]
    fn what_runs_later_is_refused_to_commands_and_recorded_for_the_host() {
        assert_eq!(of(&names("default", Side::Launched, HostKind::Run), "/h/.bashrc"), NAME_WRITE_REFUSED);
        assert_eq!(of(&names("host", Side::Host, HostKind::Run), "/h/.bashrc"), NAME_RECORDED);
        assert_eq!(of(&names("default", Side::Launched, HostKind::Run), "/h/p/.envrc"), NAME_RECORDED);
        assert_ne!(of(&names("strict", Side::Launched, HostKind::Run), "/h/p/.envrc") & NAME_WRITE_REFUSED, 0);
    }

    #[test]
    fn credentials_are_hidden_behind_fences_that_read_nothing_else() {
        let default = names("default", Side::Launched, HostKind::Run);
        assert_eq!(of(&default, "/h/.aws") & NAME_READ_REFUSED, NAME_READ_REFUSED);
        assert_eq!(of(&default, "/h/.aws/config"), NAME_READ_ALLOWED);
        assert_eq!(of(&names("host", Side::Host, HostKind::Run), "/h/.aws"), 0);
        for side in [Side::Launched, Side::Host] {
            assert_eq!(of(&names("host", side, HostKind::Run), "/rf/state"), NAME_WRITE_REFUSED | NAME_READ_REFUSED);
        }
        let strict = names("strict", Side::Launched, HostKind::Run);
        assert_eq!((of(&default, "/h/p"), of(&strict, "/h/p")), (0, NAME_WRITABLE));
    }
}
