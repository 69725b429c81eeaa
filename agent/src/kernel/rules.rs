//! Rule sets in the kernel's maps: written under a new generation, made current in one write, removed when nothing can
//! be judging by them any more.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use bytemuck::Zeroable;
use ringfence_common::limits::{
    ABSTRACT_NAMES, ADDRESSES, NAMES, OBJECTS, RULE_SETS, SESSIONS, UNIX_NAME_BYTES as ABSTRACT_BYTES,
};
use ringfence_common::maps::{FileKey, State};
use ringfence_common::rules::{
    AbstractKey, NAME_BITS, NAME_BYTES, NameKey, Object, ObjectKey, PORT_RANGES, Policy, PortRange, Ports, Prefix4,
    Prefix6, Rules,
};

use super::maps::Table;
use super::{Kernel, KernelError};
use crate::probe::protocol::{FileId, IDENTIFIED};
use crate::probe::rules::{AddressRule, RuleSet};

/// Entries of one rule set.
const MOST_ENTRIES: usize = 1 << 15;
/// Descriptors that are held for one session.
const MOST_HELD: usize = 1024;
/// Longest name in an abstract address, which begins with a NUL.
const MOST_ABSTRACT: usize = 107;
/// A program that read the old generation has long ended then.
const GRACE: Duration = Duration::from_secs(5);

/// The maps of rule sets.
pub(super) struct RuleMaps {
    policies: Table<u64, Policy>,
    rules: Table<u32, Rules>,
    addresses4: Table<Prefix4, Ports>,
    addresses6: Table<Prefix6, Ports>,
    objects: Table<ObjectKey, Object>,
    names: Table<NameKey, Object>,
    abstract_names: Table<AbstractKey, Object>,
}

/// Which keys a generation has.
#[derive(Default)]
struct Keys {
    addresses4: Vec<Prefix4>,
    addresses6: Vec<Prefix6>,
    objects: Vec<ObjectKey>,
    names: Vec<NameKey>,
    abstract_names: Vec<AbstractKey>,
}

/// Files that must keep their inode numbers.
#[derive(Default)]
struct Held {
    current: Vec<OwnedFd>,
    next: Vec<OwnedFd>,
}

/// What the probe knows of the rule sets in the maps.
#[derive(Default)]
pub(super) struct RuleSets {
    keys: HashMap<u32, Keys>,
    retired: Vec<(Instant, u32)>,
    held: HashMap<u64, Held>,
}

impl RuleMaps {
    pub(super) fn open(directory: &Path) -> Result<RuleMaps, KernelError> {
        Ok(RuleMaps {
            policies: Table::open(directory, "POLICIES")?,
            rules: Table::open(directory, "RULES")?,
            addresses4: Table::open(directory, "ADDRESSES4")?,
            addresses6: Table::open(directory, "ADDRESSES6")?,
            objects: Table::open(directory, "OBJECTS")?,
            names: Table::open(directory, "NAMES")?,
            abstract_names: Table::open(directory, "ABSTRACT_NAMES")?,
        })
    }

    fn write(&self, generation: u32, set: &RuleSet, keys: &mut Keys) -> Result<(), KernelError> {
        for rule in &set.addresses4 {
            let key = Prefix4 { bits: 32 + u32::from(rule.bits), generation, address: rule.address };
            keys.addresses4.push(key);
            self.addresses4.set(&key, &ports(rule))?;
        }
        for rule in &set.addresses6 {
            let key = Prefix6 { bits: 32 + u32::from(rule.bits), generation, address: rule.address };
            keys.addresses6.push(key);
            self.addresses6.set(&key, &ports(rule))?;
        }
        for rule in &set.objects {
            let FileId { device, inode, generation: inode_generation } = rule.file;
            let file = FileKey { device, generation: inode_generation, inode };
            let key = ObjectKey { generation, reserved: 0, file };
            keys.objects.push(key);
            self.objects.set(&key, &Object { bits: rule.bits, label: rule.label, state: rule.state, reserved: 0 })?;
        }
        for rule in &set.names {
            let key = NameKey { generation, state: rule.state, name: padded(&rule.name) };
            keys.names.push(key);
            self.names.set(&key, &Object { bits: rule.bits, label: rule.label, state: rule.next, reserved: 0 })?;
        }
        for rule in &set.abstract_names {
            let key = AbstractKey { generation, len: rule.name.len() as u32, name: padded(&rule.name) };
            keys.abstract_names.push(key);
            self.abstract_names.set(&key, &Object { bits: rule.bits, label: rule.label, state: 0, reserved: 0 })?;
        }
        let bits = set.objects.iter().map(|rule| rule.bits).chain(set.names.iter().map(|rule| rule.bits));
        let names = bits.fold(0, |all, bits| all | bits & NAME_BITS);
        self.rules.set(&generation, &Rules { refuse: set.refuse, families: set.families, names, reserved: 0 })
    }

    fn remove(&self, generation: u32, keys: &Keys) -> Result<(), KernelError> {
        self.rules.remove(&generation)?;
        for key in &keys.addresses4 {
            self.addresses4.remove(key)?;
        }
        for key in &keys.addresses6 {
            self.addresses6.remove(key)?;
        }
        for key in &keys.objects {
            self.objects.remove(key)?;
        }
        for key in &keys.names {
            self.names.remove(key)?;
        }
        for key in &keys.abstract_names {
            self.abstract_names.remove(key)?;
        }
        Ok(())
    }

    /// What an earlier probe left in the maps.
    fn found(&self) -> Result<HashMap<u32, Keys>, KernelError> {
        let mut found: HashMap<u32, Keys> = HashMap::new();
        for generation in self.rules.keys(RULE_SETS)? {
            found.entry(generation).or_default();
        }
        for key in self.addresses4.keys(ADDRESSES)? {
            found.entry(key.generation).or_default().addresses4.push(key);
        }
        for key in self.addresses6.keys(ADDRESSES)? {
            found.entry(key.generation).or_default().addresses6.push(key);
        }
        for key in self.objects.keys(OBJECTS)? {
            found.entry(key.generation).or_default().objects.push(key);
        }
        for key in self.names.keys(NAMES)? {
            found.entry(key.generation).or_default().names.push(key);
        }
        for key in self.abstract_names.keys(ABSTRACT_NAMES)? {
            found.entry(key.generation).or_default().abstract_names.push(key);
        }
        Ok(found)
    }
}

fn ports<A>(rule: &AddressRule<A>) -> Ports {
    let mut ranges = [PortRange::zeroed(); PORT_RANGES];
    for (range, port) in ranges.iter_mut().zip(&rule.ports) {
        let refused = u16::from(port.refused);
        *range = PortRange { first: port.first, last: port.last, gates: port.gates, refused };
    }
    Ports { ranges }
}

fn padded<const N: usize>(name: &[u8]) -> [u8; N] {
    let mut padded = [0; N];
    padded[..name.len()].copy_from_slice(name);
    padded
}

/// What the maps would not hold as it is meant.
fn check(set: &RuleSet) -> Result<(), KernelError> {
    let malformed = |what: &str| Err(KernelError::Rules(what.to_owned()));
    if set.len() > MOST_ENTRIES {
        return Err(KernelError::Limit("rules in one set"));
    }
    let ports_fit = |ports: usize| (1..=PORT_RANGES).contains(&ports);
    if !set.addresses4.iter().all(|rule| rule.bits <= 32 && ports_fit(rule.ports.len()))
        || !set.addresses6.iter().all(|rule| rule.bits <= 128 && ports_fit(rule.ports.len()))
    {
        return malformed("a prefix is longer than its address, or has no port ranges or too many");
    }
    if !set.names.iter().all(|rule| rule.name.len() < NAME_BYTES && rule.state != 0) {
        return malformed("a name is too long, or is in no directory");
    }
    if !set.abstract_names.iter().all(|rule| rule.name.len() <= MOST_ABSTRACT) {
        return malformed("an abstract name is too long");
    }
    const { assert!(MOST_ABSTRACT <= ABSTRACT_BYTES) };
    Ok(())
}

impl Kernel {
    /// How the kernel keys these files, which are held for the session from now on. See
    /// [`crate::probe::protocol::Request::Identify`].
    pub fn identify_held(&mut self, session: u64, files: Vec<OwnedFd>) -> Result<Vec<FileId>, KernelError> {
        if files.len() > IDENTIFIED {
            return Err(KernelError::Limit("files to identify at once"));
        }
        let held = self.rule_sets.held.get(&session).map_or(0, |held| held.next.len());
        if held + files.len() > MOST_HELD {
            return Err(KernelError::Limit("files of which the rules of one session speak"));
        }
        let numbers: Vec<u32> = files.iter().map(|file| file.as_raw_fd() as u32).collect();
        let keys = self.identify_all(&numbers)?;
        self.rule_sets.held.entry(session).or_default().next.extend(files);
        let id = |FileKey { device, generation, inode }| FileId { device, inode, generation };
        Ok(keys.into_iter().map(id).collect())
    }

    /// Judges a session's processes by these rule sets from now on; answers with their generations. When they do not
    /// fit, nothing changes, and the files that were identified for them are let go.
    pub fn set_rules(&mut self, session: u64, launched: &RuleSet, host: &RuleSet) -> Result<(u32, u32), KernelError> {
        let set = self.replace_rules(session, launched, host);
        if let Some(held) = self.rule_sets.held.get_mut(&session) {
            let identified = std::mem::take(&mut held.next);
            if set.is_ok() {
                held.current = identified;
            }
        }
        set
    }

    fn replace_rules(&mut self, session: u64, launched: &RuleSet, host: &RuleSet) -> Result<(u32, u32), KernelError> {
        self.owner(session).ok_or(KernelError::UnknownSession(session))?;
        check(launched)?;
        check(host)?;
        let before = self.rules.policies.get(&session)?;
        let launched = self.write_rules(launched)?;
        let done = self.write_rules(host).and_then(|host| {
            let made = self.rules.policies.set(&session, &Policy { launched, host });
            made.map(|()| host).inspect_err(|_| self.retire(host))
        });
        let host = done.inspect_err(|_| self.retire(launched))?;
        for old in before.into_iter().flat_map(|policy| [policy.launched, policy.host]) {
            self.retire(old);
        }
        Ok((launched, host))
    }

    fn write_rules(&mut self, set: &RuleSet) -> Result<u32, KernelError> {
        let state = self.maps.state()?;
        let generation = state.next_generation.max(1);
        self.maps.state.set(&0, &State { next_generation: generation.checked_add(1).unwrap_or(1), ..state })?;
        let mut keys = Keys::default();
        let written = self.rules.write(generation, set, &mut keys);
        self.rule_sets.keys.insert(generation, keys);
        written.map(|()| generation).inspect_err(|_| self.retire(generation))
    }

    fn retire(&mut self, generation: u32) {
        self.rule_sets.retired.push((Instant::now(), generation));
    }

    /// Removes what nothing is judged by any more. `lives` tells whether a process of a closed session still lives.
    pub fn sweep_rules(&mut self, lives: &dyn Fn(u64) -> bool) -> Result<(), KernelError> {
        let mut gone = Vec::new();
        for session in self.closed_with_rules()? {
            if !lives(session)
                && let Some(policy) = self.rules.policies.get(&session)?
            {
                self.rules.policies.remove(&session)?;
                self.rule_sets.held.remove(&session);
                gone.extend([policy.launched, policy.host]);
            }
        }
        for generation in gone {
            self.retire(generation);
        }
        let now = Instant::now();
        let (over, kept) = std::mem::take(&mut self.rule_sets.retired)
            .into_iter()
            .partition(|(since, _)| now.duration_since(*since) >= GRACE);
        self.rule_sets.retired = kept;
        let over: Vec<(Instant, u32)> = over;
        for (_, generation) in over {
            if let Some(keys) = self.rule_sets.keys.remove(&generation) {
                self.rules.remove(generation, &keys)?;
            }
        }
        Ok(())
    }

    /// Sessions that are closed and whose rules are still there, for what lives on of them.
    pub fn closed_with_rules(&self) -> Result<Vec<u64>, KernelError> {
        let mut sessions = self.rules.policies.keys(2 * SESSIONS)?;
        sessions.retain(|session| self.owner(*session).is_none());
        Ok(sessions)
    }

    /// Takes over the rule sets of an earlier probe: what no session is judged by is removed.
    pub(super) fn find_rules(&mut self) -> Result<(), KernelError> {
        self.rule_sets.keys = self.rules.found()?;
        let mut used = HashSet::new();
        for session in self.rules.policies.keys(2 * SESSIONS)? {
            if let Some(policy) = self.rules.policies.get(&session)? {
                used.extend([policy.launched, policy.host]);
            }
        }
        let unused: Vec<u32> = self.rule_sets.keys.keys().copied().filter(|key| !used.contains(key)).collect();
        unused.into_iter().for_each(|generation| self.retire(generation));
        Ok(())
    }

    /// How the kernel keys a file that this process has open.
    pub(super) fn key_of(&self, file: &File) -> Result<FileKey, KernelError> {
        Ok(self.identify_all(&[file.as_raw_fd() as u32])?[0])
    }
}
