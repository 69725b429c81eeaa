//! Reading the kernel's structs: the only place with pointer arithmetic.
//!
//! Each field's offset is a read-only global that the loader fills for the running kernel. `.rodata` is frozen, so
//! the verifier takes an offset for a constant.

use core::ffi::c_void;

use aya_ebpf::bindings::task_struct;
use aya_ebpf::helpers::generated;

macro_rules! globals {
    ($($name:ident: $struct:literal, $member:literal;)*) => {
        $(
            #[unsafe(no_mangle)]
            pub static $name: u64 = 0;
        )*
    };
}

ringfence_common::kernel_fields!(globals);
ringfence_common::optional_kernel_fields!(globals);
ringfence_common::syscall_fields!(globals);
ringfence_common::hook_arguments!(globals);

/// Whether cgroup programs must use the mirror, since this kernel gives them no task storage. Set by the loader.
#[unsafe(no_mangle)]
pub static USE_MIRROR: u64 = 0;

/// A value that the loader may have set.
#[inline(always)]
pub fn global(value: &'static u64) -> u64 {
    // SAFETY: a reference is valid to read. Volatile, since the compiler would otherwise take the 0 of this source.
    unsafe { core::ptr::read_volatile(value) }
}

/// The address of a field.
#[inline(always)]
pub fn at(base: *const c_void, field: &'static u64) -> *const c_void {
    base.wrapping_byte_add(global(field) as usize)
}

/// The address of the struct that has `inner` as this field.
#[inline(always)]
pub fn around(inner: *const c_void, field: &'static u64) -> *const c_void {
    inner.wrapping_byte_sub(global(field) as usize)
}

/// A copy of a field; zero when the address cannot be read.
///
/// No branch on the helper's answer, here and below: it zeroes what it could not read, and each branch would double
/// the ways that the verifier walks.
#[inline(always)]
pub fn read<T: Copy + Default>(base: *const c_void, field: &'static u64) -> T {
    let mut value = T::default();
    // SAFETY: T is an integer: any bytes are a value; the helper checks the address.
    unsafe {
        let to = core::ptr::from_mut(&mut value).cast();
        generated::bpf_probe_read_kernel(to, size_of::<T>() as u32, at(base, field));
        core::ptr::read_volatile(&value)
    }
}

/// A pointer field; null when the address cannot be read.
#[inline(always)]
pub fn pointer(base: *const c_void, field: &'static u64) -> *const c_void {
    read::<usize>(base, field) as *const c_void
}

/// Copies a pointer field to a variable; null when the address cannot be read.
#[inline(always)]
pub fn read_into(to: &mut usize, base: *const c_void, field: &'static u64) {
    // SAFETY: `to` has the size of a pointer; the helper checks the address, and zeroes `to` when it is bad.
    unsafe { generated::bpf_probe_read_kernel(core::ptr::from_mut(to).cast(), 8, at(base, field)) };
}

/// The first eight bytes of something; zero when they cannot be read.
#[inline(always)]
pub fn word(from: *const c_void) -> u64 {
    let mut value = 0usize;
    // SAFETY: `value` has eight bytes; the helper checks the address.
    unsafe { generated::bpf_probe_read_kernel(core::ptr::from_mut(&mut value).cast(), 8, from) };
    slot(&value) as u64
}

/// The pointer at this offset of a context. Assembly, since the compiler would make one load at a computed offset of
/// two in the branches of a condition, and the verifier refuses that.
#[inline(always)]
pub fn argument_at<const OFFSET: usize>(context: *mut c_void) -> *const c_void {
    let value: *const c_void;
    // SAFETY: the verifier checks that the hook has this argument.
    unsafe {
        core::arch::asm!(
            "{value} = *(u64 *)({context} + {offset})",
            value = out(reg) value,
            context = in(reg) context,
            offset = const OFFSET,
        );
    }
    value
}

/// A pointer that a helper wrote.
#[inline(always)]
pub fn slot(from: &usize) -> *const c_void {
    // SAFETY: a reference is valid to read. Volatile: the value is to come from memory, not from what is known of it.
    unsafe { core::ptr::read_volatile(from) as *const c_void }
}

/// Sets such a pointer to a computed address, by way of a helper.
#[inline(always)]
pub fn set_slot(to: &mut usize, value: *const c_void) {
    let value = value as usize;
    // SAFETY: both are variables of a pointer's size.
    unsafe { generated::bpf_probe_read_kernel(core::ptr::from_mut(to).cast(), 8, (&raw const value).cast()) };
}

/// The same value, of which the verifier knows nothing any more.
#[inline(always)]
pub fn forget(value: usize) -> usize {
    let mut copy = 0;
    set_slot(&mut copy, value as *const c_void);
    slot(&copy) as usize
}

/// At most `most`, in a form that the verifier understands.
#[inline(always)]
pub fn at_most(value: u32, most: u32) -> u32 {
    let value = forget(value as usize);
    if value > most as usize { most } else { value as u32 }
}

/// A pointer to an element of an array of pointers; null when it cannot be read.
#[inline(always)]
pub fn element(array: *const c_void, index: u32) -> *const c_void {
    let mut value = 0usize;
    let address = array.wrapping_byte_add(index as usize * size_of::<usize>());
    // SAFETY: `value` has the size of a pointer; the helper checks the address.
    unsafe { generated::bpf_probe_read_kernel(core::ptr::from_mut(&mut value).cast(), 8, address) };
    slot(&value)
}

/// A task that another one points to, as the verifier's own task pointer, which task storage wants.
///
/// # Safety
/// `task` must be a task pointer that the verifier knows as one: it turns the load into one with a fault handler.
#[inline(always)]
pub unsafe fn task_field(task: *mut task_struct, field: &'static u64) -> *mut task_struct {
    // SAFETY: the caller's promise; a bad pointer reads as null.
    unsafe { *(at(task.cast(), field).cast::<*mut task_struct>()) }
}

/// A socket (`struct sock`) that a `struct socket` points to, as the verifier's own pointer, which socket storage wants.
///
/// # Safety
/// `socket` must be a pointer that the verifier knows as a `struct socket`.
#[inline(always)]
pub unsafe fn socket_field(socket: *mut c_void, field: &'static u64) -> *mut c_void {
    // SAFETY: the caller's promise; a bad pointer reads as null.
    unsafe { *(at(socket, field).cast::<*mut c_void>()) }
}

/// The running task.
#[inline(always)]
pub fn current() -> *mut task_struct {
    // SAFETY: the helper has no preconditions.
    unsafe { generated::bpf_get_current_task_btf() }
}

/// Copies a kernel string with its NUL to `to`; answers how many bytes, 0 on error.
///
/// # Safety
/// `to` must have room for `room` bytes.
#[inline(always)]
pub unsafe fn kernel_string(to: *mut u8, room: u32, from: *const c_void) -> usize {
    // SAFETY: the caller's promise for `to`; the helper checks `from`.
    let read = unsafe { generated::bpf_probe_read_kernel_str(to.cast(), room, from) };
    copied(read)
}

/// What a string helper answers: a length, or a negative errno, which becomes 0.
#[inline(always)]
fn copied(answer: i64) -> usize {
    (answer & !(answer >> 63)) as usize
}

/// Copies kernel memory; answers whether it could.
///
/// # Safety
/// `to` must have room for `len` bytes.
#[inline(always)]
pub unsafe fn kernel_bytes(to: *mut u8, len: u32, from: *const c_void) -> bool {
    // SAFETY: the caller's promise for `to`; the helper checks `from`.
    unsafe { generated::bpf_probe_read_kernel(to.cast(), len, from) == 0 }
}

/// Copies memory of the current process; answers whether it could.
///
/// # Safety
/// `to` must have room for `len` bytes.
#[inline(always)]
pub unsafe fn user_bytes(to: *mut u8, len: u32, from: u64) -> bool {
    // SAFETY: the caller's promise for `to`; the helper checks `from`.
    unsafe { generated::bpf_probe_read_user(to.cast(), len, from as *const c_void) == 0 }
}

/// Copies a string of the current process with its NUL; answers how many bytes, 0 on error.
///
/// # Safety
/// `to` must have room for `room` bytes.
#[inline(always)]
pub unsafe fn user_string(to: *mut u8, room: u32, from: u64) -> usize {
    // SAFETY: the caller's promise for `to`; the helper checks `from`.
    let read = unsafe { generated::bpf_probe_read_user_str(to.cast(), room, from as *const c_void) };
    copied(read)
}

/// Nanoseconds of CLOCK_BOOTTIME.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: the helper has no preconditions.
    unsafe { generated::bpf_ktime_get_boot_ns() }
}

/// Adds atomically. (The compiler offers this target no atomics; the kernel has them, with results since 5.12.)
///
/// # Safety
/// `to` must be a valid, aligned pointer into a map value.
#[inline(always)]
pub unsafe fn add(to: *mut u64, value: u64) {
    // SAFETY: the caller's promise.
    unsafe { core::arch::asm!("lock *(u64 *)({to} + 0) += {value}", to = in(reg) to, value = in(reg) value) };
}

/// Adds atomically; answers what was there before.
///
/// # Safety
/// `to` must be a valid, aligned pointer into a map value.
#[inline(always)]
pub unsafe fn fetch_add(to: *mut u64, value: u64) -> u64 {
    let mut before = value;
    // SAFETY: the caller's promise.
    unsafe {
        core::arch::asm!(
            "{value} = atomic_fetch_add((u64 *)({to} + 0), {value})",
            to = in(reg) to,
            value = inout(reg) before,
        );
    }
    before
}
