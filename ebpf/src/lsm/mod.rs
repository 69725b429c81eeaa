//! Where the kernel lets LSM programs load, it refuses here: one file per kind of thing.
//!
//! [`exec`] (running and mapping files), [`process`] (children, signals, tracing, namespaces, `bpf`), [`network`]
//! (internet sockets, and which families are made), [`unix`] (unix sockets by their resolved peer). Every program
//! decides on inodes, resolved peers and kernel copies, never on the caller's memory; what a rule refuses stays refused
//! whatever another one allows. The answers are Landlock's: EACCES for files, programs and addresses; EPERM for other
//! processes, namespaces and unix peers.

pub mod exec;
mod network;
mod process;
pub mod unix;
