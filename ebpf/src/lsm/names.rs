//! Protected names: what the rules say of a dentry, by the directories above it and the names below those.

use core::ffi::c_void;

use aya_ebpf::bindings::task_struct;
use aya_ebpf::helpers::generated::{bpf_map_lookup_elem, bpf_probe_read_kernel};
use ringfence_common::mark::Mark;
use ringfence_common::rules::{
    NAME_BITS, NAME_BYTES, NAME_DEPTH, NAME_READ_ALLOWED, NAME_READ_REFUSED, NameKey, Object, ObjectKey, WALK_DEPTH,
};

use crate::fields::*;
use crate::file;
use crate::maps::{NAMES, OBJECTS, RULES, WALKS};

const _: () = assert!(NAME_DEPTH.is_power_of_two() && NAME_BYTES.is_multiple_of(8));

/// A walk, in the storage of its task, which is in one hook at a time. On the stack it would be too large; and of what
/// is in a map the verifier knows nothing, so that one round of a loop looks to it like the next.
#[repr(C)]
pub struct Walk {
    /// Where the walk is on its way up.
    dentry: usize,
    /// How many dentries it has left behind.
    passed: usize,
    /// The last of them: those next to the anchor. The one that was passed as number `n` is at `n % NAME_DEPTH`.
    below: [usize; NAME_DEPTH],
    /// 1 when the walk ended at the root of the file system.
    at_root: usize,
    /// What the rules say of the inode, or of the step.
    said: Object,
    /// All bits that hold.
    bits: u32,
    /// Those of the dentry's own name alone.
    own: u32,
    /// The label of the last that had one.
    label: u32,
    /// Where the names go on.
    state: u32,
    /// The step to look up.
    key: NameKey,
    /// Takes the byte by which a name is too long.
    over: u64,
}

/// What the rules say of a dentry.
pub struct Said {
    /// `NAME_*` that hold for it, its own and those of what it lies in.
    pub bits: u32,
    /// Those of its own name alone.
    pub own: u32,
    /// The label of the nearest rule that has one.
    pub label: u32,
    /// It is deeper than the walk goes, so that nothing is known.
    pub too_deep: bool,
    /// No name leads to it: it is its own root.
    pub unnamed: bool,
}

/// Every `NAME_*` that the rules of a process have.
#[inline(always)]
pub fn spoken_of(mark: &Mark) -> u32 {
    if mark.generation == 0 {
        return 0;
    }
    // SAFETY: rule sets are never changed.
    unsafe { RULES.get(&mark.generation) }.map_or(0, |rules| rules.names)
}

/// What the rules of `mark` say of a dentry. `task` is the running one.
#[inline(always)]
pub fn said_of(task: *mut task_struct, mark: &Mark, dentry: *const c_void) -> Said {
    let walk = WALKS.get_or_zeroed(task);
    if walk.is_null() {
        return Said { bits: 0, own: 0, label: 0, too_deep: true, unnamed: false };
    }
    // SAFETY: a map value of this task, which is in no other hook; it lives as long as the program runs.
    unsafe {
        up(walk, mark, dentry);
        down(walk, mark);
        let passed = (&raw const (*walk).passed).read_volatile();
        let at_root = (&raw const (*walk).at_root).read_volatile();
        Said {
            bits: (&raw const (*walk).bits).read_volatile(),
            own: (&raw const (*walk).own).read_volatile(),
            label: (&raw const (*walk).label).read_volatile(),
            too_deep: passed >= WALK_DEPTH && at_root == 0,
            unnamed: passed == 1 && at_root != 0,
        }
    }
}

/// Goes up to the nearest dentry of whose inode the rules speak.
#[inline(always)]
unsafe fn up(walk: *mut Walk, mark: &Mark, dentry: *const c_void) {
    // SAFETY: the caller's walk; the index is below NAME_DEPTH.
    unsafe {
        (&raw mut (*walk).dentry).write_volatile(dentry as usize);
        (&raw mut (*walk).passed).write_volatile(0);
        (&raw mut (*walk).at_root).write_volatile(0);
        for _ in 0..WALK_DEPTH {
            let dentry = (&raw const (*walk).dentry).read_volatile() as *const c_void;
            let file = file::key_of_inode(pointer(dentry, &OFF_DENTRY_INODE));
            let key = ObjectKey { generation: mark.generation, reserved: 0, file };
            look_up(walk, (&raw const OBJECTS).cast(), (&raw const key).cast());
            let bits = (&raw const (*walk).said.bits).read_volatile() & NAME_BITS;
            let state = (&raw const (*walk).said.state).read_volatile();
            if bits | state != 0 {
                return;
            }
            let passed = (&raw const (*walk).passed).read_volatile();
            (&raw mut (*walk).below).cast::<usize>().add(passed & (NAME_DEPTH - 1)).write_volatile(dentry as usize);
            (&raw mut (*walk).passed).write_volatile(passed + 1);
            read_into(&mut (*walk).dentry, dentry, &OFF_DENTRY_PARENT);
            let parent = (&raw const (*walk).dentry).read_volatile() as *const c_void;
            if parent == dentry {
                (&raw mut (*walk).at_root).write_volatile(1);
                return;
            }
        }
    }
}

/// Goes down from the anchor along the names that were passed, as far as there are rules for them.
#[inline(always)]
unsafe fn down(walk: *mut Walk, mark: &Mark) {
    // SAFETY: the caller's walk; the index is below NAME_DEPTH.
    unsafe {
        let bits = (&raw const (*walk).said.bits).read_volatile() & NAME_BITS;
        let passed = (&raw const (*walk).passed).read_volatile();
        (&raw mut (*walk).bits).write_volatile(bits);
        (&raw mut (*walk).own).write_volatile(if passed == 0 { bits } else { 0 });
        (&raw mut (*walk).label).write_volatile((&raw const (*walk).said.label).read_volatile());
        (&raw mut (*walk).state).write_volatile((&raw const (*walk).said.state).read_volatile());
        (&raw mut (*walk).key.generation).write_volatile(mark.generation);
        for round in 0..NAME_DEPTH {
            let passed = (&raw const (*walk).passed).read_volatile();
            let state = (&raw const (*walk).state).read_volatile();
            if state == 0 || passed <= round {
                return;
            }
            let left = passed - 1 - round;
            let dentry = (&raw const (*walk).below).cast::<usize>().add(left & (NAME_DEPTH - 1)).read_volatile();
            (&raw mut (*walk).key.state).write_volatile(state);
            step(walk, dentry as *const c_void);
            let said = (&raw const (*walk).said.bits).read_volatile() & NAME_BITS;
            let above = (&raw const (*walk).bits).read_volatile();
            // What may be read again is no longer refused by what is above it.
            let allowed = (said & NAME_READ_ALLOWED) >> (NAME_READ_ALLOWED / NAME_READ_REFUSED).trailing_zeros();
            (&raw mut (*walk).bits).write_volatile(above & !allowed | said);
            (&raw mut (*walk).own).write_volatile(if left == 0 { said } else { 0 });
            let label = (&raw const (*walk).said.label).read_volatile();
            if label != 0 {
                (&raw mut (*walk).label).write_volatile(label);
            }
            (&raw mut (*walk).state).write_volatile((&raw const (*walk).said.state).read_volatile());
        }
    }
}

/// Looks up the step to this dentry's name, else that to any name; zeros when there is neither.
#[inline(always)]
unsafe fn step(walk: *mut Walk, dentry: *const c_void) {
    // SAFETY: the caller's walk, which has a word behind the name's room.
    unsafe {
        no_name(walk);
        let name = (&raw mut (*walk).key.name).cast::<u8>();
        let read = kernel_string(name, NAME_BYTES as u32 + 1, pointer(dentry, &OFF_DENTRY_NAME));
        if read > NAME_BYTES {
            no_name(walk);
        }
        let found = look_up(walk, (&raw const NAMES).cast(), (&raw const (*walk).key).cast());
        if !found {
            no_name(walk);
            look_up(walk, (&raw const NAMES).cast(), (&raw const (*walk).key).cast());
        }
    }
}

/// The name of no length, which stands for any.
#[inline(always)]
unsafe fn no_name(walk: *mut Walk) {
    // SAFETY: the caller's walk; the name is a whole number of words, aligned as the map value is.
    unsafe {
        let words = (&raw mut (*walk).key.name).cast::<u64>();
        for word in 0..NAME_BYTES / 8 {
            words.add(word).write_volatile(0);
        }
    }
}

/// Copies what a map has for a key to [`Walk::said`], zeros for nothing; answers whether there was something.
#[inline(always)]
unsafe fn look_up(walk: *mut Walk, map: *const c_void, key: *const c_void) -> bool {
    // SAFETY: the verifier checks map and key; an address that is null is not read, and zeros are written.
    unsafe {
        let found = bpf_map_lookup_elem(map.cast_mut(), key);
        bpf_probe_read_kernel((&raw mut (*walk).said).cast(), size_of::<Object>() as u32, found) == 0
    }
}
