//! The maps. All are pinned by name; their layouts are [`ringfence_common::limits::MAP_ABI`].

use core::ffi::c_void;

use aya_ebpf::bindings::bpf_map_type::{BPF_MAP_TYPE_LPM_TRIE, BPF_MAP_TYPE_SK_STORAGE, BPF_MAP_TYPE_TASK_STORAGE};
use aya_ebpf::bindings::{BPF_F_NO_PREALLOC, task_struct};
use aya_ebpf::btf_maps::{Array, HashMap, HashOfMaps, PerCpuArray, RingBuf};
use aya_ebpf::helpers::generated::{bpf_map_lookup_elem, bpf_sk_storage_get, bpf_task_storage_get};
use aya_ebpf::macros::btf_map;
use ringfence_common::limits::{
    ABSTRACT_NAMES as ABSTRACT_NAME_COUNT, ADDRESSES as ADDRESS_COUNT, IDENTITIES as IDENTITY_COUNT,
    NAMES as NAME_COUNT, OBJECTS as OBJECT_COUNT, REFUSAL_RING_BYTES, RING_BYTES, RULE_SETS, SESSIONS as SESSION_COUNT,
    USERS,
};
use ringfence_common::maps::{Attempt, FileKey, Mirrored, Request, Session, State, TaskState};
use ringfence_common::record::{ExecScratch, GateScratch, RefusedScratch};
use ringfence_common::rules::{
    AbstractKey, MadeBy, NameKey, Object, ObjectKey, Policy, Ports, Prefix4, Prefix6, Rules,
};

use crate::lsm::names::Walk;

/// What outlives the probe.
#[btf_map]
pub static STATE: Array<State, 1> = Array::new();

/// How many launches there have been. Only the kernel writes it.
#[btf_map]
pub static LAUNCHES: Array<u64, 1> = Array::new();

/// The marks.
#[btf_map]
pub static MARKS: TaskStorage<TaskState> = TaskStorage::new();

/// Open sessions.
#[btf_map]
pub static SESSIONS: HashMap<u64, Session, SESSION_COUNT> = HashMap::new();

/// Files whose exec gives a role.
#[btf_map]
pub static IDENTITIES: HashMap<FileKey, u32, IDENTITY_COUNT> = HashMap::new();

/// By uid: refusals.
#[btf_map]
pub static REFUSALS: HashOfMaps<u32, RefusalRing, USERS> = HashOfMaps::new();

/// By uid: everything else.
#[btf_map]
pub static EVENTS: HashOfMaps<u32, EventRing, USERS> = HashOfMaps::new();

/// What the iterators are asked.
#[btf_map]
pub static REQUEST: Array<Request, 1> = Array::new();

/// Thread-group id to mark, where cgroup programs have no task storage. As large as pid_max, so it cannot fill.
#[btf_map]
pub static MIRROR: HashMap<u32, Mirrored, 1, NO_PREALLOC> = HashMap::new();

/// Thread id to its running connect, in the same case.
#[btf_map]
pub static ATTEMPTS: HashMap<u32, Attempt, 1, NO_PREALLOC> = HashMap::new();

/// Where exec records are put together.
#[btf_map]
pub static EXEC_SCRATCH: PerCpuArray<Busy<ExecScratch>, 1> = PerCpuArray::new();

/// Where refusal records are put together.
#[btf_map]
pub static REFUSED_SCRATCH: PerCpuArray<Busy<RefusedScratch>, 1> = PerCpuArray::new();

/// By session: which rules are current. Also of sessions that are closed and of which something lives.
#[btf_map]
pub static POLICIES: HashMap<u64, Policy, { 2 * SESSION_COUNT }> = HashMap::new();

/// By generation: what happens where no rule speaks.
#[btf_map]
pub static RULES: HashMap<u32, Rules, RULE_SETS> = HashMap::new();

/// By prefix: which ports are allowed and refused.
#[btf_map]
pub static ADDRESSES4: Trie<Prefix4, Ports> = Trie::new();

/// The same for IPv6.
#[btf_map]
pub static ADDRESSES6: Trie<Prefix6, Ports> = Trie::new();

/// Executables, sockets and directories of which rules speak.
#[btf_map]
pub static OBJECTS: HashMap<ObjectKey, Object, OBJECT_COUNT, NO_PREALLOC> = HashMap::new();

/// Names below those directories.
#[btf_map]
pub static NAMES: HashMap<NameKey, Object, NAME_COUNT, NO_PREALLOC> = HashMap::new();

/// Abstract unix names of which rules speak.
#[btf_map]
pub static ABSTRACT_NAMES: HashMap<AbstractKey, Object, ABSTRACT_NAME_COUNT, NO_PREALLOC> = HashMap::new();

/// Which tree made a socket.
#[btf_map]
pub static SOCKETS: SocketStorage<MadeBy> = SocketStorage::new();

/// Where the records of gates are put together.
#[btf_map]
pub static GATE_SCRATCH: PerCpuArray<Busy<GateScratch>, 1> = PerCpuArray::new();

/// By task: the walk to a protected name that it is on.
#[btf_map]
pub static WALKS: TaskStorage<Walk> = TaskStorage::new();

/// Ring buffer for refusals.
pub type RefusalRing = RingBuf<u64, { REFUSAL_RING_BYTES as usize }>;
/// Ring buffer for everything else.
pub type EventRing = RingBuf<u64, { RING_BYTES as usize }>;

const NO_PREALLOC: usize = BPF_F_NO_PREALLOC as usize;

/// A scratch buffer and whether somebody is using it: a kernel that lets programs be preempted could otherwise run two
/// of them on one buffer.
#[repr(C)]
pub struct Busy<T> {
    /// 1 while in use.
    pub busy: u64,
    /// The buffer.
    pub value: T,
}

/// Task storage, which the library does not know yet.
#[repr(C)]
pub struct TaskStorage<T> {
    r#type: *const [i32; BPF_MAP_TYPE_TASK_STORAGE as usize],
    key: *const i32,
    value: *const T,
    max_entries: *const [i32; 0],
    map_flags: *const [i32; NO_PREALLOC],
}

// SAFETY: the fields are placeholders for the loader and are never read.
unsafe impl<T> Sync for TaskStorage<T> {}

impl<T> TaskStorage<T> {
    const fn new() -> Self {
        use core::ptr::null;
        Self { r#type: null(), key: null(), value: null(), max_entries: null(), map_flags: null() }
    }

    #[inline(always)]
    fn map(&self) -> *mut c_void {
        core::ptr::from_ref(self).cast_mut().cast()
    }

    /// The value of a task; null when it has none.
    #[inline(always)]
    pub fn get(&self, task: *mut task_struct) -> *mut T {
        // SAFETY: the verifier checks that `task` is a task.
        unsafe { bpf_task_storage_get(self.map(), task, core::ptr::null_mut(), 0).cast() }
    }

    /// The value of a task, made from `value` when it has none; null when that is not possible.
    #[inline(always)]
    pub fn get_or_insert(&self, task: *mut task_struct, value: &mut T) -> *mut T {
        const CREATE: u64 = 1;
        // SAFETY: the verifier checks that `task` is a task, and `value` is a value of this map.
        unsafe { bpf_task_storage_get(self.map(), task, core::ptr::from_mut(value).cast(), CREATE).cast() }
    }

    /// The value of a task, made of zeros when it has none; null when that is not possible.
    #[inline(always)]
    pub fn get_or_zeroed(&self, task: *mut task_struct) -> *mut T {
        const CREATE: u64 = 1;
        // SAFETY: the verifier checks that `task` is a task.
        unsafe { bpf_task_storage_get(self.map(), task, core::ptr::null_mut(), CREATE).cast() }
    }
}

/// Storage of sockets, which the library does not know for programs that know the socket as a kernel struct.
#[repr(C)]
pub struct SocketStorage<T> {
    r#type: *const [i32; BPF_MAP_TYPE_SK_STORAGE as usize],
    key: *const i32,
    value: *const T,
    max_entries: *const [i32; 0],
    map_flags: *const [i32; NO_PREALLOC],
}

// SAFETY: the fields are placeholders for the loader and are never read.
unsafe impl<T> Sync for SocketStorage<T> {}

impl<T> SocketStorage<T> {
    const fn new() -> Self {
        use core::ptr::null;
        Self { r#type: null(), key: null(), value: null(), max_entries: null(), map_flags: null() }
    }

    #[inline(always)]
    fn map(&self) -> *mut c_void {
        core::ptr::from_ref(self).cast_mut().cast()
    }

    /// The value of a socket (`struct sock`); null when it has none.
    #[inline(always)]
    pub fn get(&self, socket: *mut c_void) -> *mut T {
        // SAFETY: the verifier checks that `socket` is a socket.
        unsafe { bpf_sk_storage_get(self.map(), socket, core::ptr::null_mut(), 0).cast() }
    }

    /// The value of a socket, made from `value` when it has none; null when that is not possible.
    #[inline(always)]
    pub fn get_or_insert(&self, socket: *mut c_void, value: &mut T) -> *mut T {
        const CREATE: u64 = 1;
        // SAFETY: the verifier checks that `socket` is a socket, and `value` is a value of this map.
        unsafe { bpf_sk_storage_get(self.map(), socket, core::ptr::from_mut(value).cast(), CREATE).cast() }
    }
}

/// A trie of longest prefixes: the library wants its keys in a type of its own.
#[repr(C)]
pub struct Trie<K, V> {
    r#type: *const [i32; BPF_MAP_TYPE_LPM_TRIE as usize],
    key: *const K,
    value: *const V,
    max_entries: *const [i32; ADDRESS_COUNT],
    map_flags: *const [i32; NO_PREALLOC],
}

// SAFETY: the fields are placeholders for the loader and are never read.
unsafe impl<K, V> Sync for Trie<K, V> {}

impl<K, V> Trie<K, V> {
    const fn new() -> Self {
        use core::ptr::null;
        Self { r#type: null(), key: null(), value: null(), max_entries: null(), map_flags: null() }
    }

    /// The value of the longest prefix of `key`.
    #[inline(always)]
    pub fn get(&self, key: &K) -> Option<&V> {
        let map = core::ptr::from_ref(self).cast_mut().cast();
        // SAFETY: the verifier checks the key; a value lives as long as the program runs.
        unsafe { bpf_map_lookup_elem(map, core::ptr::from_ref(key).cast()).cast::<V>().as_ref() }
    }
}
