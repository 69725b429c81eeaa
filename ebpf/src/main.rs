//! The kernel programs: who belongs to a session, and what those processes do.
//!
//! One file per family of hooks: [`task`] (fork, exec, exit), [`socket`] (cgroup programs), [`syscall`] (refusals and
//! outcomes, attached on demand), [`walk`] (iterators that enrol), and [`lsm`], which refuses where the kernel lets LSM
//! programs load. They share [`marks`] (whose is this task), [`gate`] (by which rules it is judged), [`address`] (what they say of an internet
//! address), [`emit`] (counting and the ring buffers), [`maps`], and [`fields`], the only place with pointer arithmetic.
//! The first thing every program does for a task without a mark is return.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod address;
mod emit;
mod fields;
mod file;
mod gate;
mod lsm;
mod maps;
mod marks;
mod socket;
mod syscall;
mod task;
mod walk;

/// BPF has no unwinding: a panic that were left in a program would make the verifier refuse it.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// Helpers and task storage are only for programs under a licence compatible with the GPL.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
