//! What the probe gives up once its programs are loaded.
#![forbid(unsafe_code)]

use rustix::thread::{self, CapabilitySet, CapabilitySets};

/// What it goes on needing: BPF, PERFMON and NET_ADMIN to attach the program that sees refusals and to make the rings of
/// a new user; SYS_PTRACE to look at other users' processes; CHOWN for the runtime directories it makes.
const KEPT: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::CHOWN);

/// Drops every other capability for good, also from the bounding set, and takes on `no_new_privs`. Call it before any
/// thread is started: capabilities belong to threads. `unmount_at_end` keeps SYS_ADMIN too, which unmounting a bpffs
/// that the probe mounted for itself takes: tests and the demo do that, an installed probe does not.
pub fn drop_the_rest(unmount_at_end: bool) -> std::io::Result<()> {
    let kept = if unmount_at_end { KEPT.union(CapabilitySet::SYS_ADMIN) } else { KEPT };
    let now = thread::capabilities(None)?;
    for capability in CapabilitySet::all().difference(kept).iter() {
        // One that this kernel does not know, or that cannot be dropped without SETPCAP, is in no set below either.
        let _ = thread::remove_capability_from_bounding_set(capability);
    }
    let sets = CapabilitySets {
        effective: now.effective.intersection(kept),
        permitted: now.permitted.intersection(kept),
        inheritable: CapabilitySet::empty(),
    };
    thread::set_capabilities(None, sets)?;
    thread::set_no_new_privs(true)?;
    Ok(())
}
