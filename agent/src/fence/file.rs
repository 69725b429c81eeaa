//! Fences as a person writes them: `policies/fences/*.toml`.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

/// The shipped ones, by name.
const SHIPPED: [(&str, &str); 5] = [
    ("default", include_str!("../../../policies/fences/default.toml")),
    ("strict", include_str!("../../../policies/fences/strict.toml")),
    ("host", include_str!("../../../policies/fences/host.toml")),
    ("host-hook", include_str!("../../../policies/fences/host-hook.toml")),
    ("mcp", include_str!("../../../policies/fences/mcp.toml")),
];

/// Why a fence file is not one.
#[derive(Debug, thiserror::Error)]
pub enum FenceFileError {
    /// It does not follow the form.
    #[error("fence {0}: {1}")]
    Malformed(String, String),
    /// `based_on` names no fence, or one that is based on another.
    #[error("fence {0}: based_on = \"{1}\" names no fence that stands by itself")]
    NoBase(String, String),
    /// Its name is not its file's.
    #[error("fence {0}: its file is named {1}")]
    WrongName(String, String),
    /// There is none of that name.
    #[error("there is no fence named {0}; known: {1}")]
    Unknown(String, String),
}

/// One fence, as written. See `policies/fences/default.toml` for what each key means.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fence {
    /// Its name.
    pub name: String,
    /// Orders fences by how much they refuse.
    pub strictness: u32,
    /// Anything that is missing refuses the launch.
    #[serde(default)]
    pub strict: bool,
    /// A machine without Landlock refuses the launch.
    #[serde(default)]
    pub require_landlock: bool,
    /// The shell for a host's line.
    pub shell: PathBuf,
    /// Descriptors above 2 that stay open.
    #[serde(default)]
    pub keep: Vec<i32>,
    /// Reading.
    pub read: Read,
    /// Writing.
    #[serde(default)]
    pub write: Write,
    /// The network.
    pub network: Network,
    /// Unix sockets.
    pub unix: Unix,
    /// What stays inside.
    pub scope: Scope,
    /// The filter.
    pub seccomp: Filter,
    /// The environment.
    #[serde(default)]
    pub environment: Environment,
    /// What cannot be read.
    #[serde(default, rename = "credential")]
    pub credentials: Vec<Credential>,
}

/// `[read]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Read {
    /// Everything but the credentials; false for a fence without Landlock.
    pub everything_but_credentials: bool,
    /// Most rules of the whole plan.
    #[serde(default = "most_rules")]
    pub most_rules: usize,
    /// Directories that may be made later.
    #[serde(default)]
    pub later: Vec<String>,
}

fn most_rules() -> usize {
    150
}

/// `[write]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Write {
    /// Directories.
    #[serde(default)]
    pub trees: Vec<String>,
    /// Files that are written in place.
    #[serde(default)]
    pub files: Vec<String>,
    /// Devices that are no terminals.
    #[serde(default)]
    pub devices: Vec<String>,
    /// Terminals.
    #[serde(default)]
    pub terminals: Vec<String>,
}

/// `[network]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// How much of it.
    pub mode: NetworkMode,
    /// Ports to connect to, with `ports`.
    #[serde(default)]
    pub connect: Vec<u16>,
    /// Ports to bind, with `ports`.
    #[serde(default)]
    pub bind: Vec<u16>,
}

/// How much network there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkMode {
    /// None.
    Off,
    /// This machine's own addresses: needs the kernel layer.
    Loopback,
    /// The named TCP ports, no UDP.
    Ports,
    /// All of it.
    Open,
}

/// `[unix]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unix {
    /// Which.
    pub mode: UnixMode,
    /// Sockets, or directories of them, that were made outside and can be connected to.
    #[serde(default)]
    pub allow: Vec<String>,
}

/// Which unix sockets there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnixMode {
    /// The family is refused; socketpair stays.
    None,
    /// Those made outside are refused, but for the named ones.
    Outside,
    /// All.
    Open,
}

/// `[scope]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scope {
    /// Signals.
    pub signals: bool,
    /// Abstract unix sockets.
    pub abstract_unix: bool,
}

/// `[seccomp]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// Groups that are refused; empty means no filter.
    pub groups: Vec<super::filter::Group>,
}

/// `[environment]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// Names, or prefixes that end in `*`.
    #[serde(default)]
    pub watched: Vec<String>,
    /// Whether they are dropped.
    #[serde(default)]
    pub drop: bool,
    /// Added.
    #[serde(default)]
    pub set: BTreeMap<String, String>,
}

/// `[[credential]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credential {
    /// A file or directory.
    pub path: String,
    /// What of a directory can be read all the same.
    #[serde(default)]
    pub readable: Vec<String>,
    /// A file counts only when it holds one of these.
    #[serde(default)]
    pub only_if_contains: Vec<String>,
}

/// The fences that can be named.
#[derive(Clone, Debug)]
pub struct Fences {
    by_name: BTreeMap<String, Fence>,
}

impl Fences {
    /// The shipped ones.
    pub fn load() -> Result<Fences, FenceFileError> {
        let mut fences = Fences { by_name: BTreeMap::new() };
        for (name, text) in SHIPPED {
            fences.add(name, text)?;
        }
        Ok(fences)
    }

    /// Adds one file's fence, `name` being the file's. `based_on = "other"` takes over every table and key that the
    /// file does not write itself.
    pub fn add(&mut self, name: &str, text: &str) -> Result<(), FenceFileError> {
        let malformed = |error: toml::de::Error| FenceFileError::Malformed(name.to_owned(), error.to_string());
        let mut table: toml::Table = text.parse().map_err(malformed)?;
        if let Some(base) = table.remove("based_on") {
            let base = base.as_str().unwrap_or_default().to_owned();
            let shipped = SHIPPED.iter().find(|(shipped, text)| *shipped == base && !text.contains("\nbased_on"));
            let Some((_, text)) = shipped else { return Err(FenceFileError::NoBase(name.to_owned(), base)) };
            let mut whole: toml::Table = text.parse().map_err(malformed)?;
            whole.extend(table);
            table = whole;
        }
        let fence: Fence = table.try_into().map_err(malformed)?;
        if fence.name != name {
            return Err(FenceFileError::WrongName(fence.name, name.to_owned()));
        }
        self.by_name.insert(name.to_owned(), fence);
        Ok(())
    }

    /// Their names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// One of them.
    pub fn get(&self, name: &str) -> Result<&Fence, FenceFileError> {
        let known = || self.names().collect::<Vec<_>>().join(", ");
        self.by_name.get(name).ok_or_else(|| FenceFileError::Unknown(name.to_owned(), known()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_fences_load_and_strict_refuses_more() {
        let fences = Fences::load().unwrap();
        assert_eq!(fences.names().collect::<Vec<_>>(), ["default", "host", "host-hook", "mcp", "strict"]);
        let strictness = |name: &str| fences.get(name).unwrap().strictness;
        assert!(strictness("strict") > strictness("default") && strictness("default") > strictness("host"));
        assert!(!fences.get("strict").unwrap().credentials.is_empty());
        assert!(matches!(fences.get("none"), Err(FenceFileError::Unknown(..))));
    }

    #[test]
    fn unknown_keys_and_bases_are_refused() {
        let mut fences = Fences::load().unwrap();
        let text = include_str!("../../../policies/fences/default.toml");
        let wrong = text.replace("[scope]", "[scope]\nsignal = true");
        assert!(matches!(fences.add("default", &wrong), Err(FenceFileError::Malformed(..))));
        assert!(matches!(fences.add("x", "name = \"x\"\nbased_on = \"y\""), Err(FenceFileError::NoBase(..))));
        assert!(matches!(fences.add("x", "name = \"y\"\nbased_on = \"default\""), Err(FenceFileError::WrongName(..))));
    }
}
