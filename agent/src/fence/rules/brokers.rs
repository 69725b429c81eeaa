//! Named brokers: who would run something in the person's name when asked over a unix socket, found as sockets.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::Deserialize;

use super::files::{Files, Ground, Index};
use super::glob;
use crate::fence::named::Named;

/// `policies/brokers.toml`.
const SHIPPED: &str = include_str!("../../../../policies/brokers.toml");

/// Most places that one pattern stands for.
const MOST_PLACES: usize = 256;
/// Most that is read of `/proc/net/unix`, in bytes.
const TABLE_BYTES: u64 = 8 << 20;
/// Longest abstract name: `sun_path` without its leading NUL.
pub const ABSTRACT_BYTES: usize = 107;

/// Why a catalogue is none.
#[derive(Debug, thiserror::Error)]
pub enum BrokersError {
    /// It does not follow the form.
    #[error("policies/brokers.toml: {0}")]
    Malformed(#[from] toml::de::Error),
    /// A path names no place.
    #[error("broker {0}: {1} is neither absolute nor starts with ~/ or a known @place")]
    Path(String, String),
}

/// The catalogue.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Brokers {
    #[serde(rename = "broker")]
    brokers: Vec<Broker>,
}

/// One broker.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Broker {
    name: String,
    #[serde(default)]
    sockets: Vec<String>,
    #[serde(default)]
    environment: Vec<Variable>,
    #[serde(default, rename = "abstract")]
    abstract_names: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Variable {
    variable: String,
    form: Form,
    #[serde(default = "everything")]
    below: Vec<String>,
}

fn everything() -> Vec<String> {
    vec!["*".to_owned()]
}

/// How a variable names a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Form {
    Path,
    Url,
    Unix,
    BeforeComma,
    Display,
    Wayland,
    Directory,
}

/// Where brokers are looked for.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// The places of paths; its `others` hold `runtime`.
    pub named: Named<'a>,
    /// The person's uid.
    pub uid: u32,
    /// The service's own environment.
    pub environment: &'a HashMap<OsString, OsString>,
    /// Abstract names that are bound now.
    pub bound: &'a [Vec<u8>],
}

/// A broker that is here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// Its name.
    pub name: String,
    /// Its sockets, by the path where each was found.
    pub sockets: Vec<(PathBuf, Index)>,
    /// Its abstract names, bound or named by a variable.
    pub abstract_names: Vec<Vec<u8>>,
}

/// A socket that a variable names.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Path(PathBuf),
    Abstract(Vec<u8>),
}

impl Brokers {
    /// The shipped catalogue.
    pub fn shipped() -> Result<&'static Brokers, BrokersError> {
        static READ: OnceLock<Brokers> = OnceLock::new();
        if let Some(read) = READ.get() {
            return Ok(read);
        }
        let read = toml::from_str(SHIPPED)?;
        Ok(READ.get_or_init(|| read))
    }

    /// Whether a broker of that name is known.
    pub fn knows(&self, name: &str) -> bool {
        self.brokers.iter().any(|broker| broker.name == name)
    }

    /// Those of which something is there now.
    pub fn present(&self, at: &Surroundings<'_>, files: &mut Files) -> Result<Vec<Present>, BrokersError> {
        let mut present = Vec::new();
        for broker in &self.brokers {
            let found = broker.find(at, files)?;
            if !found.sockets.is_empty() || !found.abstract_names.is_empty() {
                present.push(found);
            }
        }
        Ok(present)
    }
}

impl Broker {
    fn find(&self, at: &Surroundings<'_>, files: &mut Files) -> Result<Present, BrokersError> {
        let mut found = Present { name: self.name.clone(), ..Present::default() };
        for written in &self.sockets {
            let name = with_uid(written, at.uid);
            let paths = at.named.expand(&name).ok_or_else(|| BrokersError::Path(self.name.clone(), name.clone()))?;
            for path in paths {
                matching(&path, files, &mut found.sockets);
            }
        }
        for Variable { variable, form, below } in &self.environment {
            let Some(value) = at.environment.get(OsStr::new(variable)) else { continue };
            for place in form.places(value.as_bytes(), &at.named) {
                match place {
                    Place::Path(directory) if *form == Form::Directory => {
                        for name in below {
                            matching(&directory.join(with_uid(name, at.uid)), files, &mut found.sockets);
                        }
                    }
                    Place::Path(path) => literally(&path, files, &mut found.sockets),
                    Place::Abstract(name) => found.abstract_names.push(name),
                }
            }
        }
        for pattern in self.abstract_names.iter().filter_map(|pattern| names_like(pattern)) {
            found.abstract_names.extend(at.bound.iter().filter(|name| pattern(name)).cloned());
        }
        found.abstract_names.sort();
        found.abstract_names.dedup();
        found.sockets.sort();
        found.sockets.dedup_by_key(|(_, index)| *index);
        Ok(found)
    }
}

fn with_uid(written: &str, uid: u32) -> String {
    written.replace("@uid", &uid.to_string())
}

/// A test for abstract names: `*` for any characters. `None` for a pattern that is none.
pub fn names_like(pattern: &str) -> Option<impl Fn(&[u8]) -> bool + use<>> {
    let glob = glob::of(pattern.as_bytes())?;
    Some(move |name: &[u8]| glob.is_match(OsStr::from_bytes(name)))
}

impl Form {
    fn places(self, value: &[u8], named: &Named<'_>) -> Vec<Place> {
        let path = |bytes: &[u8]| Path::new(OsStr::from_bytes(bytes)).to_owned();
        let absolute = |bytes: &[u8]| bytes.starts_with(b"/").then(|| Place::Path(path(bytes)));
        let in_runtime = |bytes: &[u8]| {
            let bases = named.expand("@runtime").unwrap_or_default();
            bases.into_iter().map(|base| Place::Path(base.join(path(bytes)))).collect::<Vec<_>>()
        };
        match self {
            Form::Path | Form::Directory => absolute(value).into_iter().collect(),
            Form::BeforeComma => {
                absolute(value.split(|byte| *byte == b',').next().unwrap_or_default()).into_iter().collect()
            }
            Form::Url => value.strip_prefix(b"unix://").and_then(absolute).into_iter().collect(),
            Form::Unix => unix_addresses(value),
            Form::Wayland if value.starts_with(b"/") => vec![Place::Path(path(value))],
            Form::Wayland if value.is_empty() || value.contains(&b'/') => Vec::new(),
            Form::Wayland => in_runtime(value),
            // `:0`, `:0.0`, `unix:0`; what has a host before the colon goes over TCP.
            Form::Display => {
                let number = value.strip_prefix(b"unix").unwrap_or(value).strip_prefix(b":").unwrap_or_default();
                let number = number.split(|byte| *byte == b'.').next().unwrap_or_default();
                if number.is_empty() || !number.iter().all(u8::is_ascii_digit) {
                    return Vec::new();
                }
                let socket = [b"/tmp/.X11-unix/X", number].concat();
                vec![Place::Path(path(&socket)), Place::Abstract(socket)]
            }
        }
    }
}

/// D-Bus addresses and what others make of them: `unix:path=…,guid=…;unix:abstract=…`, `unix:/path`, `unix:@name`, `/path`,
/// `local/host:/path` (X session managers), `local/host:@/path`.
fn unix_addresses(value: &[u8]) -> Vec<Place> {
    let mut places = Vec::new();
    let path = |bytes: &[u8]| Place::Path(PathBuf::from(OsString::from_vec(bytes.to_vec())));
    for address in value.split(|byte| matches!(byte, b';' | b' ')) {
        if address.starts_with(b"/") {
            places.push(path(address));
            continue;
        }
        let Some(colon) = address.iter().position(|byte| *byte == b':') else { continue };
        let (kind, rest) = (&address[..colon], &address[colon + 1..]);
        if kind != b"unix" && !kind.starts_with(b"local/") {
            continue;
        }
        // `local/a:@/x,unix/a:/y`: the second address of a session manager begins behind a comma.
        for part in rest.split(|byte| *byte == b',') {
            let part = match part.strip_prefix(b"unix/") {
                Some(second) => second.iter().position(|byte| *byte == b':').map_or(part, |at| &second[at + 1..]),
                None => part,
            };
            if let Some(name) = part.strip_prefix(b"path=") {
                places.push(path(&unescaped(name)));
            } else if let Some(name) = part.strip_prefix(b"abstract=") {
                places.push(Place::Abstract(unescaped(name)));
            } else if let Some(name) = part.strip_prefix(b"@") {
                places.push(Place::Abstract(name.to_vec()));
            } else if part.starts_with(b"/") {
                places.push(path(part));
            }
        }
    }
    places.retain(|place| match place {
        Place::Path(path) => path.is_absolute(),
        Place::Abstract(name) => !name.is_empty() && name.len() <= ABSTRACT_BYTES,
    });
    places
}

/// `%xx` of D-Bus addresses.
fn unescaped(value: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(value.len());
    let mut rest = value;
    while let [first, after @ ..] = rest {
        let hex = (*first == b'%').then(|| after.get(..2)).flatten();
        let byte = hex.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        plain.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    plain
}

/// The sockets at a path, `*` and `?` standing for characters of one part.
pub fn matching(pattern: &Path, files: &mut Files, into: &mut Vec<(PathBuf, Index)>) {
    each_place(pattern, files, |path, files| {
        if let Some(index) = files.socket(path) {
            into.push((path.to_owned(), index));
        }
    });
}

fn literally(path: &Path, files: &mut Files, into: &mut Vec<(PathBuf, Index)>) {
    if let Some(index) = files.socket(path) {
        into.push((path.to_owned(), index));
    }
}

/// Each path that a pattern may stand for, there or not.
pub fn each_place(pattern: &Path, files: &mut Files, mut each: impl FnMut(&Path, &mut Files)) {
    let mut places = vec![PathBuf::new()];
    for part in pattern.components() {
        let part = part.as_os_str();
        if !part.as_bytes().iter().any(|byte| b"*?".contains(byte)) {
            places.iter_mut().for_each(|place| place.push(part));
            continue;
        }
        let Some(form) = glob::of(part.as_bytes()) else { return };
        let mut further = Vec::new();
        for place in &places {
            let entries = files.entries(place).into_iter().map(OsString::from_vec);
            further.extend(entries.filter(|entry| form.is_match(entry)).map(|entry| place.join(entry)));
        }
        further.sort();
        further.truncate(MOST_PLACES);
        places = further;
    }
    places.iter().for_each(|place| each(place, files));
}

/// The abstract names that are bound now.
pub fn bound() -> Vec<Vec<u8>> {
    let mut table = Vec::new();
    let read = std::fs::File::open("/proc/net/unix").and_then(|file| file.take(TABLE_BYTES).read_to_end(&mut table));
    if let Err(error) = read {
        tracing::warn!("/proc/net/unix: {error}");
    }
    abstract_names(&table)
}

/// Lines are `Num RefCount Protocol Flags Type St Inode Path`, an abstract path beginning with `@`. A NUL inside a name is
/// shown as `@` too, so a name with a second `@` is not known for certain and left to the gate's default.
fn abstract_names(table: &[u8]) -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = table
        .split(|byte| *byte == b'\n')
        .filter_map(|line| {
            let at = line.windows(2).position(|two| two == b" @")?;
            Some(line[at + 2..].to_vec())
        })
        .filter(|name| !name.is_empty() && name.len() <= ABSTRACT_BYTES && !name.contains(&b'@'))
        .collect();
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::fence::compile::ToolPlaces;
    use crate::fence::tree::Tree;

    fn found(home: &Path, environment: &[(&str, &str)], bound: &[&str]) -> HashMap<String, Present> {
        let tools = ToolPlaces::from_environment(home, |_| None);
        let tree = Tree { top: home.join("p"), git: vec![] };
        let others = [("runtime", home.join("run"))];
        let named = Named { home, tree: &tree, temporary: home, host_directories: &[], tools: &tools, others: &others };
        let environment: HashMap<OsString, OsString> =
            environment.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))).collect();
        let bound: Vec<Vec<u8>> = bound.iter().map(|name| name.as_bytes().to_vec()).collect();
        let at = Surroundings { named, uid: 4_000_000_000, environment: &environment, bound: &bound };
        let present = Brokers::shipped().unwrap().present(&at, &mut Files::default()).unwrap();
        present.into_iter().map(|broker| (broker.name.clone(), broker)).collect()
    }

    #[test]
    fn brokers_are_found_as_the_sockets_they_listen_on() {
        let root = tempfile::tempdir().unwrap();
        let home = std::fs::canonicalize(root.path()).unwrap();
        for dir in ["run/pulse", "tm/tmux-4000000000", ".ssh"] {
            std::fs::create_dir_all(home.join(dir)).unwrap();
        }
        let sockets = [
            "run/bus",
            "run/docker.sock",
            "run/wayland-1",
            "run/pulse/native",
            "agent",
            "tm/tmux-4000000000/x",
            ".ssh/cm",
        ];
        let _listening: Vec<_> = sockets.iter().map(|path| UnixListener::bind(home.join(path)).unwrap()).collect();
        std::fs::write(home.join(".ssh/id"), "").unwrap();
        std::os::unix::fs::symlink("agent", home.join("link")).unwrap();
        let agent = home.join("link");
        let environment =
            [("SSH_AUTH_SOCK", agent.to_str().unwrap()), ("TMUX_TMPDIR", home.join("tm").to_str().unwrap())]
                .map(|(name, value)| (name, value.to_owned()));
        let environment = environment.each_ref().map(|(name, value)| (*name, value.as_str()));
        let found = found(&home, &environment, &["/tmp/.X11-unix/X7", "/tmp/dbus-abc", "harmless"]);
        let paths = |name: &str| {
            let found = found.get(name).unwrap_or_else(|| panic!("{name} in {found:?}"));
            found.sockets.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>()
        };
        assert_eq!(paths("docker").last(), Some(&home.join("run/docker.sock")));
        assert_eq!(paths("session bus"), [home.join("run/bus")]);
        assert_eq!(paths("Wayland"), [home.join("run/wayland-1")]);
        assert_eq!(paths("PipeWire"), [home.join("run/pulse/native")]);
        assert!(paths("ssh-agent").contains(&agent));
        assert_eq!(paths("tmux"), [home.join("tm/tmux-4000000000/x")]);
        assert_eq!(paths("ssh ControlMaster"), [home.join(".ssh/cm")]);
        assert!(found["X11"].abstract_names.contains(&b"/tmp/.X11-unix/X7".to_vec()));
        assert_eq!(found["session bus"].abstract_names, [b"/tmp/dbus-abc".to_vec()]);
        assert!(!found.values().any(|broker| broker.abstract_names.contains(&b"harmless".to_vec())));
    }

    #[test]
    fn addresses_of_buses_are_read() {
        let path = |text: &str| Place::Path(text.into());
        let name = |text: &str| Place::Abstract(text.into());
        assert_eq!(
            unix_addresses(b"unix:path=/run/a%20b,guid=1;unix:abstract=/tmp/x,guid=2"),
            [path("/run/a b"), name("/tmp/x")]
        );
        assert_eq!(unix_addresses(b"unix:@mykitty"), [name("mykitty")]);
        assert_eq!(unix_addresses(b"unix:/tmp/k"), [path("/tmp/k")]);
        assert_eq!(
            unix_addresses(b"local/m:@/tmp/.ICE-unix/1,unix/m:/tmp/.ICE-unix/1"),
            [name("/tmp/.ICE-unix/1"), path("/tmp/.ICE-unix/1")]
        );
        assert_eq!(unix_addresses(b"tcp:host=x,port=1;unix:path=relative"), []);
    }

    #[test]
    fn a_display_is_a_path_and_a_name() {
        let tools = ToolPlaces::default();
        let tree = Tree { top: "/p".into(), git: vec![] };
        let home = Path::new("/h");
        let named = Named { home, tree: &tree, temporary: home, host_directories: &[], tools: &tools, others: &[] };
        let x = "/tmp/.X11-unix/X12";
        assert_eq!(Form::Display.places(b":12.0", &named), [Place::Path(x.into()), Place::Abstract(x.into())]);
        assert_eq!(Form::Display.places(b"far:12", &named), []);
        assert_eq!(Form::Url.places(b"tcp://1.2.3.4:1", &named), []);
    }

    #[test]
    fn the_table_of_sockets_gives_abstract_names() {
        let table = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
                      0000: 00000002 00000000 00010000 0001 01 1 /run/x\n\
                      0000: 00000002 00000000 00010000 0001 01 2 @a name\n\
                      0000: 00000002 00000000 00010000 0001 01 3 @two@parts\n\
                      0000: 00000003 00000000 00000000 0001 03 4\n";
        assert_eq!(abstract_names(table), [b"a name".to_vec()]);
    }
}
