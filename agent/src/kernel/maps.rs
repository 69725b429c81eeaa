//! The pinned maps, typed: sizes are checked against the kernel's before any element is touched.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use aya::maps::{MapData, RingBuf};
use bytemuck::Pod;
use ringfence_common::limits::{REFUSAL_RING_BYTES, RING_BYTES};
use ringfence_common::maps::{FileKey, Request, Session, State, TaskState};

use super::{KernelError, call};

/// Names of the maps in the object, which are their pins too.
pub const NAMES: [&str; 22] = [
    "STATE",
    "LAUNCHES",
    "MARKS",
    "SESSIONS",
    "IDENTITIES",
    "REFUSALS",
    "EVENTS",
    "REQUEST",
    "MIRROR",
    "ATTEMPTS",
    "EXEC_SCRATCH",
    "REFUSED_SCRATCH",
    "GATE_SCRATCH",
    "POLICIES",
    "RULES",
    "ADDRESSES4",
    "ADDRESSES6",
    "OBJECTS",
    "NAMES",
    "ABSTRACT_NAMES",
    "SOCKETS",
    "WALKS",
];

/// A map with keys `K` and values `V`.
pub struct Table<K, V> {
    fd: OwnedFd,
    name: &'static str,
    types: PhantomData<(K, V)>,
}

impl<K: Pod, V: Pod> Table<K, V> {
    /// Opens the pin of `name` in `directory`; refuses a map of other sizes.
    pub fn open(directory: &Path, name: &'static str) -> Result<Self, KernelError> {
        let path = directory.join(name);
        let fd = call::open_pin(&path).map_err(|e| KernelError::Place(path.clone(), e))?;
        let (key, value, _) = call::map_sizes(fd.as_fd()).map_err(|e| KernelError::Place(path.clone(), e))?;
        if (key, value) != (size_of::<K>() as u32, size_of::<V>() as u32) {
            return Err(KernelError::Place(path, io::Error::other("a map of another version")));
        }
        Ok(Table { fd, name, types: PhantomData })
    }

    /// The value of `key`.
    pub fn get(&self, key: &K) -> Result<Option<V>, KernelError> {
        let mut value = V::zeroed();
        // SAFETY: `open` checked the sizes.
        let found =
            unsafe { call::lookup(self.fd.as_fd(), bytemuck::bytes_of(key), bytemuck::bytes_of_mut(&mut value)) };
        found.map(|found| found.then_some(value)).map_err(|e| self.refused("reading", e))
    }

    /// Sets the value of `key`.
    pub fn set(&self, key: &K, value: &V) -> Result<(), KernelError> {
        // SAFETY: `open` checked the sizes.
        unsafe { call::update(self.fd.as_fd(), bytemuck::bytes_of(key), bytemuck::bytes_of(value)) }
            .map_err(|e| if full(&e) { KernelError::Limit(self.name) } else { self.refused("writing", e) })
    }

    /// Removes `key`; answers whether it was there.
    pub fn remove(&self, key: &K) -> Result<bool, KernelError> {
        // SAFETY: `open` checked the sizes.
        unsafe { call::delete(self.fd.as_fd(), bytemuck::bytes_of(key)) }.map_err(|e| self.refused("writing", e))
    }

    /// All keys. One that is removed meanwhile may make the walk begin again, so it is bounded by `limit`.
    pub fn keys(&self, limit: usize) -> Result<Vec<K>, KernelError> {
        let mut keys: Vec<K> = Vec::new();
        for _ in 0..limit {
            let mut next = K::zeroed();
            let last = keys.last().map(bytemuck::bytes_of);
            // SAFETY: `open` checked the sizes.
            let found = unsafe { call::next_key(self.fd.as_fd(), last, bytemuck::bytes_of_mut(&mut next)) };
            if !found.map_err(|e| self.refused("reading", e))? {
                break;
            }
            keys.push(next);
        }
        Ok(keys)
    }

    fn refused(&self, what: &str, e: io::Error) -> KernelError {
        KernelError::Refused(format!("{what} {}", self.name), e.to_string())
    }
}

fn full(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::E2BIG)
}

/// The maps that the agent reads and writes.
pub struct Maps {
    /// What outlives the probe.
    pub state: Table<u32, State>,
    /// Marks, by pidfd.
    pub marks: Table<u32, TaskState>,
    /// Open sessions.
    pub sessions: Table<u64, Session>,
    /// Files that give a role.
    pub identities: Table<FileKey, u32>,
    /// The iterators' questions and answers.
    pub request: Table<u32, Request>,
    /// Each user's rings; values are descriptors when written, map ids when read.
    refusals: Table<u32, u32>,
    events: Table<u32, u32>,
    rings: PathBuf,
}

impl Maps {
    /// Opens the maps pinned in `directory`; rings are pinned in `rings`.
    pub fn open(directory: &Path, rings: &Path) -> Result<Maps, KernelError> {
        Ok(Maps {
            state: Table::open(directory, "STATE")?,
            marks: Table::open(directory, "MARKS")?,
            sessions: Table::open(directory, "SESSIONS")?,
            identities: Table::open(directory, "IDENTITIES")?,
            request: Table::open(directory, "REQUEST")?,
            refusals: Table::open(directory, "REFUSALS")?,
            events: Table::open(directory, "EVENTS")?,
            rings: rings.to_owned(),
        })
    }

    /// What outlives the probe.
    pub fn state(&self) -> Result<State, KernelError> {
        self.state.get(&0)?.ok_or_else(|| KernelError::Refused("reading STATE".into(), "it is empty".into()))
    }

    /// Makes sure that `uid` has its two rings.
    pub fn ensure_rings(&self, uid: u32) -> Result<(), KernelError> {
        for (map, kind, bytes) in
            [(&self.refusals, "refusals", REFUSAL_RING_BYTES), (&self.events, "events", RING_BYTES)]
        {
            let path = self.ring_path(uid, kind);
            if map.get(&uid)?.is_some() && path.exists() {
                continue;
            }
            // A pin without an entry, or the reverse, is left of a probe that was killed in between.
            let _ = std::fs::remove_file(&path);
            let ring =
                call::create_ring(bytes).map_err(|e| KernelError::Refused("a ring buffer".into(), e.to_string()))?;
            call::pin(ring.as_fd(), &path).map_err(|e| KernelError::Place(path, e))?;
            map.set(&uid, &(ring.as_raw_fd() as u32))?;
        }
        Ok(())
    }

    /// Opens the rings of `uid`: refusals, and the rest.
    pub fn rings(&self, uid: u32) -> Result<[RingBuf<MapData>; 2], KernelError> {
        self.ensure_rings(uid)?;
        let open = |kind| {
            let refused = |e: aya::maps::MapError| KernelError::Refused(format!("the {kind} ring"), e.to_string());
            let map = MapData::from_pin(self.ring_path(uid, kind)).map_err(refused)?;
            RingBuf::try_from(aya::maps::Map::RingBuf(map)).map_err(refused)
        };
        Ok([open("refusals")?, open("events")?])
    }

    fn ring_path(&self, uid: u32, kind: &str) -> PathBuf {
        self.rings.join(format!("{uid}-{kind}"))
    }
}
