//! Counting what happened and putting it into the ring buffer of its owner.

use aya_ebpf::bindings::task_struct;
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, generated::bpf_ringbuf_output};
use ringfence_common::maps::Session;
use ringfence_common::mark::Mark;
use ringfence_common::record::Header;

use crate::fields;
use crate::maps::{Busy, EVENTS, REFUSALS, SESSIONS};
use crate::marks;

/// An event of an open session that was counted as attempted.
pub struct Event {
    session: *mut Session,
    kind: u32,
}

/// Counts an event; `None` when its session is closed.
#[inline(always)]
pub fn begin(mark: &Mark, kind: u32) -> Option<Event> {
    let session = SESSIONS.get_ptr_mut(&mark.session)?;
    // SAFETY: `session` is a live map value and `kind` one of the constants, below KINDS.
    count(unsafe { &raw mut (*session).counters[kind as usize].attempted });
    Some(Event { session, kind })
}

impl Event {
    /// Counts the event as reported or lost.
    #[inline(always)]
    fn end(self, reported: bool) {
        // SAFETY: as in `begin`.
        let counters = unsafe { &raw mut (*self.session).counters[self.kind as usize] };
        // SAFETY: a part of the same live map value.
        count(unsafe { if reported { &raw mut (*counters).reported } else { &raw mut (*counters).lost } });
    }

    /// Nothing could be put together to send.
    #[inline(always)]
    pub fn lost(self) {
        self.end(false);
    }

    /// Sends a record of fixed size.
    #[inline(always)]
    pub fn send<T: Copy + 'static>(self, record: T) {
        // SAFETY: `session` is a live map value; its ring is never removed while it is open.
        let entry = unsafe { EVENTS.get(&(*self.session).uid) }.and_then(|ring| ring.reserve_untyped::<T>(0));
        let reported = entry.is_some();
        if let Some(mut entry) = entry {
            entry.write(record);
            entry.submit(0);
        }
        self.end(reported);
    }

    /// Sends the first `len` bytes of `scratch` as an ordinary event.
    ///
    /// # Safety
    /// `scratch` must be a map value of at least `len` bytes.
    #[inline(always)]
    pub unsafe fn send_bytes(self, scratch: *const u8, len: usize) {
        // SAFETY: as in `send`.
        let ring = unsafe { EVENTS.get(&(*self.session).uid) };
        // SAFETY: the caller's promise.
        let reported = ring.is_some_and(|ring| unsafe { output(core::ptr::from_ref(ring).cast(), scratch, len) });
        self.end(reported);
    }

    /// Sends the first `len` bytes of `scratch` as a refusal.
    ///
    /// # Safety
    /// `scratch` must be a map value of at least `len` bytes.
    #[inline(always)]
    pub unsafe fn send_refusal(self, scratch: *const u8, len: usize) {
        // SAFETY: as in `send`.
        let ring = unsafe { REFUSALS.get(&(*self.session).uid) };
        // SAFETY: the caller's promise.
        let reported = ring.is_some_and(|ring| unsafe { output(core::ptr::from_ref(ring).cast(), scratch, len) });
        self.end(reported);
    }

    /// Counts a child that could not be marked.
    #[inline(always)]
    pub fn unmarked_child(&self) {
        // SAFETY: as in `begin`.
        count(unsafe { &raw mut (*self.session).unmarked_children });
    }
}

#[inline(always)]
unsafe fn output(ring: *const u8, data: *const u8, len: usize) -> bool {
    // SAFETY: the callers pass a ring map and their own promise for `data`.
    unsafe { bpf_ringbuf_output(ring.cast_mut().cast(), data.cast_mut().cast(), len as u64, 0) == 0 }
}

#[inline(always)]
fn count(counter: *mut u64) {
    // SAFETY: the callers pass a field of a live map value, aligned.
    unsafe { fields::add(counter, 1) };
}

/// The header of a record about the running task.
#[inline(always)]
pub fn header(kind: u32, len: usize, mark: Mark, task: *mut task_struct) -> Header {
    header_with(kind, len, mark, marks::start_ns(marks::leader(task)))
}

/// The header of a record about the running process that began at `start_ns`.
#[inline(always)]
pub fn header_with(kind: u32, len: usize, mark: Mark, start_ns: u64) -> Header {
    let ids = bpf_get_current_pid_tgid();
    Header {
        kind,
        len: len as u32,
        time_ns: fields::now(),
        mark,
        start_ns,
        pid: (ids >> 32) as u32,
        thread: ids as u32,
    }
}

/// A scratch buffer that is this program's until it is released.
pub struct Claimed<T>(*mut Busy<T>);

/// Claims a scratch buffer; `None` when another program was preempted while using it.
#[inline(always)]
pub fn claim<T>(scratch: Option<*mut Busy<T>>) -> Option<Claimed<T>> {
    let scratch = scratch?;
    // SAFETY: this processor's map value; programs do not migrate, and `busy` keeps a second one out.
    unsafe {
        if (&raw const (*scratch).busy).read_volatile() != 0 {
            return None;
        }
        (&raw mut (*scratch).busy).write_volatile(1);
    }
    Some(Claimed(scratch))
}

impl<T> Claimed<T> {
    /// The buffer.
    #[inline(always)]
    pub fn value(&self) -> *mut T {
        // SAFETY: a part of a live map value.
        unsafe { &raw mut (*self.0).value }
    }

    /// Gives it back.
    #[inline(always)]
    pub fn release(self) {
        // SAFETY: as above.
        unsafe { (&raw mut (*self.0).busy).write_volatile(0) };
    }
}
