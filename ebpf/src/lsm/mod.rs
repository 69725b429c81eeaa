//! Where the kernel lets LSM programs load, it refuses here: one file per kind of thing.
//!
//! [`exec`] (running and mapping files), [`process`] (children, signals, tracing, namespaces, `bpf`), [`network`]
//! (internet sockets, and which families are made), [`unix`] (unix sockets by their resolved peer), [`files`] (opening
//! and taking over files), [`changes`] (making, removing, renaming, metadata); for the last two, [`names`]. Every program
//! decides on inodes, resolved peers and kernel copies, never on the caller's memory; what a rule refuses stays refused
//! whatever another one allows. The answers are Landlock's: EACCES for files, programs and addresses; EPERM for other
//! processes, namespaces and unix peers.

mod changes;
pub mod exec;
mod files;
pub mod names;
mod network;
mod process;
pub mod unix;
