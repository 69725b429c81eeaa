//! Fences as a person writes them: `policies/fences/*.toml`.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
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
    /// Which programs run.
    #[serde(default)]
    pub exec: Exec,
    /// Other processes and the kernel.
    #[serde(default)]
    pub process: Process,
    /// Files outside of what can be written.
    #[serde(default)]
    pub outside: Outside,
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
    /// Protected names, beside those of `policies/protected.toml`.
    #[serde(default)]
    pub protected: Vec<Protected>,
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
    /// Addresses that are refused, which wins.
    #[serde(default)]
    pub refuse: Vec<Addresses>,
    /// Addresses that are allowed where the mode would refuse them.
    #[serde(default)]
    pub allow: Vec<Addresses>,
}

/// `[[network.refuse]]`, `[[network.allow]]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Addresses {
    /// What it is called.
    #[serde(default)]
    pub name: Option<String>,
    /// Which.
    pub to: Target,
    /// Which ports; empty means all.
    #[serde(default)]
    pub ports: Vec<PortSpan>,
    /// How they are reached.
    #[serde(default = "both_protocols")]
    pub protocols: Vec<Protocol>,
    /// Also for binding them.
    #[serde(default)]
    pub bind: bool,
}

fn both_protocols() -> Vec<Protocol> {
    vec![Protocol::Tcp, Protocol::Udp]
}

/// Streams or datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// Streams.
    Tcp,
    /// Datagrams.
    Udp,
}

/// Whom a rule about addresses is about.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Target {
    /// `@own`: loopback and this machine's own addresses.
    Own,
    /// An address, or a prefix.
    Network(IpNet),
    /// A domain name, which the service resolves.
    Domain(String),
}

impl TryFrom<String> for Target {
    type Error = String;

    fn try_from(text: String) -> Result<Target, String> {
        if text == "@own" {
            return Ok(Target::Own);
        }
        if let Ok(network) = text.parse::<IpNet>() {
            return Ok(Target::Network(network));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Target::Network(address.into()));
        }
        let domain = text.trim_end_matches('.').to_ascii_lowercase();
        let label = |label: &str| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        };
        let named = domain.bytes().any(|byte| byte.is_ascii_alphabetic());
        match named && domain.len() <= 253 && domain.split('.').all(label) {
            true => Ok(Target::Domain(domain)),
            false => Err(format!("{text:?} is no address, prefix, domain name or @own (a domain name has no `*`)")),
        }
    }
}

/// A port, or `"first-last"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "PortText")]
pub struct PortSpan {
    /// First.
    pub first: u16,
    /// Last.
    pub last: u16,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum PortText {
    One(u16),
    Span(String),
}

impl TryFrom<PortText> for PortSpan {
    type Error = String;

    fn try_from(text: PortText) -> Result<PortSpan, String> {
        let span = match &text {
            PortText::One(port) => Some((*port, *port)),
            PortText::Span(text) => {
                let (first, last) = text.split_once('-').unwrap_or((text, text));
                first.trim().parse().ok().zip(last.trim().parse().ok())
            }
        };
        match span {
            Some((first, last)) if first <= last => Ok(PortSpan { first, last }),
            _ => Err("a port is a number up to 65535, or \"first-last\"".to_owned()),
        }
    }
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
    /// Named brokers that can be asked. The others are refused in every mode.
    #[serde(default)]
    pub brokers: Vec<String>,
    /// Abstract names, `*` for any characters, that were bound outside and can be connected to.
    #[serde(default, rename = "abstract")]
    pub abstract_names: Vec<String>,
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

/// `[exec]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exec {
    /// Programs that are not run, whatever name leads to them.
    #[serde(default)]
    pub refuse: Vec<String>,
    /// Where this is not empty, nothing else is run.
    #[serde(default)]
    pub only: Vec<String>,
    /// Whether programs without a name (memfd, deleted) are run.
    #[serde(default = "yes")]
    pub anonymous: bool,
}

fn yes() -> bool {
    true
}

impl Default for Exec {
    fn default() -> Exec {
        Exec { refuse: Vec::new(), only: Vec::new(), anonymous: true }
    }
}

/// `[process]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// What is refused.
    #[serde(default)]
    pub refuse: Vec<ProcessGate>,
}

/// What a process can do to others and to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessGate {
    /// Looking into or steering processes outside of the tree.
    Trace,
    /// Making user namespaces.
    Namespaces,
    /// The system call `bpf`.
    Bpf,
    /// Socket families other than unix, IPv4, IPv6 and netlink.
    Families,
    /// A child that cannot be marked.
    UnmarkedChildren,
}

/// `[outside]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outside {
    /// What is refused for files outside of `[write]`.
    #[serde(default)]
    pub refuse: Vec<OutsideGate>,
}

/// What can be done to a file that is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutsideGate {
    /// Changing its mode, owner, times, attributes and access lists.
    Metadata,
    /// Taking it over from another process that opened it for writing.
    Receive,
}

/// `[[protected]]`: see `policies/protected.toml` for what each key means.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Protected {
    /// Which names.
    pub path: String,
    /// What is done about a change.
    pub action: Action,
    /// For the host, when that differs.
    #[serde(default)]
    pub host_action: Option<Action>,
    /// Whom a refused change is allowed.
    #[serde(default)]
    pub except: Vec<Exception>,
    /// Whose settings they are.
    #[serde(default)]
    pub settings_of: Option<SettingsOf>,
}

/// What is done about a change of a protected name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Refused.
    Refuse,
    /// Executables are refused.
    RefusePrograms,
    /// Refused, and so is reading.
    Hide,
    /// Read all the same, below something hidden.
    Show,
    /// Allowed and recorded.
    Record,
    /// Nothing.
    None,
}

/// Whom a refused change is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exception {
    /// The system's git.
    Git,
    /// The host itself.
    Host,
}

/// Whose settings a protected name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SettingsOf {
    /// Claude Code's.
    ClaudeCode,
    /// Codex's.
    Codex,
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
    fn whom_a_rule_is_about_is_read_strictly() {
        let target = |text: &str| Target::try_from(text.to_owned());
        assert_eq!(target("@own"), Ok(Target::Own));
        assert_eq!(target("10.0.0.0/8"), Ok(Target::Network("10.0.0.0/8".parse().unwrap())));
        assert_eq!(target("::1"), Ok(Target::Network("::1/128".parse().unwrap())));
        assert_eq!(target("API.Example.org."), Ok(Target::Domain("api.example.org".into())));
        for wrong in ["*.example.org", "", "10.0.0", "a..b", "http://x", "@tree", "1.2.3.4:80"] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
        let ports =
            |text: &str| toml::from_str::<BTreeMap<String, PortSpan>>(&format!("p = {text}")).map(|map| map["p"]);
        assert_eq!(ports("22").unwrap(), PortSpan { first: 22, last: 22 });
        assert_eq!(ports("\"8000-8999\"").unwrap(), PortSpan { first: 8000, last: 8999 });
        assert!(ports("\"9-8\"").is_err() && ports("65536").is_err() && ports("\"a\"").is_err());
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
