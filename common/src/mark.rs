//! The mark that a process of a session carries, and what it may become.

use crate::plain;

plain! {
    /// Who a task belongs to. Kept in task storage, copied to every child, and part of every record.
    pub struct Mark {
        /// The session's number; never 0.
        pub session: u64,
        /// The launch's number, 0 for none; once set it never changes.
        pub launch: u64,
        /// Generation of the policy that was current.
        pub generation: u32,
        /// A `ROLE_*` in the low byte, `FLAG_*` above.
        pub role_and_flags: u32,
    }
}

/// The agent program.
pub const ROLE_HOST: u32 = 1;
/// Our hook, started by the host.
pub const ROLE_HOOK: u32 = 2;
/// What the host starts for itself.
pub const ROLE_INTERNAL: u32 = 3;
/// From the launcher on.
pub const ROLE_LAUNCHED: u32 = 4;
/// Mask of the role.
pub const ROLE_MASK: u32 = 0xff;
/// The process was forked by a marked one and has not executed anything since. Tells the host itself from the copy of
/// it that is about to become a hook or something else.
pub const FLAG_FORKED: u32 = 1 << 8;
/// The process runs the system's git, has mapped nothing executable since that is not root's, and nobody steers it.
pub const FLAG_GIT: u32 = 1 << 9;
/// Somebody of its tree asked to steer the process (`PTRACE_MODE_ATTACH`) since it last executed anything.
pub const FLAG_STEERED: u32 = 1 << 10;

impl Mark {
    /// One of `ROLE_*`.
    #[inline(always)]
    pub fn role(&self) -> u32 {
        self.role_and_flags & ROLE_MASK
    }

    /// The mark of a child process (not of a thread) that has not executed anything yet.
    #[inline(always)]
    pub fn forked(self) -> Mark {
        Mark { role_and_flags: self.role_and_flags | FLAG_FORKED, ..self }
    }

    /// The role after an exec of a file with `identity` (an `IDENTITY_*`, 0 for any other file).
    ///
    /// Launched stays launched. The host may replace its own image (wrapper scripts do); a child of it that executes
    /// anything but the hook is something the host started for itself, and can never become a hook again.
    #[inline(always)]
    pub fn role_after_exec(&self, identity: u32) -> u32 {
        let forked = self.role_and_flags & FLAG_FORKED != 0;
        match self.role() {
            ROLE_LAUNCHED => ROLE_LAUNCHED,
            _ if self.launch != 0 || identity == IDENTITY_LAUNCHER => ROLE_LAUNCHED,
            ROLE_HOST if !forked => ROLE_HOST,
            ROLE_HOST | ROLE_HOOK if identity == IDENTITY_HOOK => ROLE_HOOK,
            _ => ROLE_INTERNAL,
        }
    }
}

/// A file whose exec makes a task `launched`.
pub const IDENTITY_LAUNCHER: u32 = 1;
/// A file whose exec by a child of the host makes it `hook`.
pub const IDENTITY_HOOK: u32 = 2;
/// Another program of ours: service, probe, command line. Outside every tree it is not signalled or traced.
pub const IDENTITY_OWN: u32 = 3;
/// The system's git: root's own.
pub const IDENTITY_GIT: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(role_and_flags: u32, launch: u64) -> Mark {
        Mark { session: 1, launch, generation: 0, role_and_flags }
    }

    #[test]
    fn roles_after_exec() {
        let host = mark(ROLE_HOST, 0);
        assert_eq!(host.role_after_exec(0), ROLE_HOST);
        assert_eq!(host.forked().role_after_exec(IDENTITY_HOOK), ROLE_HOOK);
        assert_eq!(host.forked().role_after_exec(0), ROLE_INTERNAL);
        assert_eq!(host.role_after_exec(IDENTITY_LAUNCHER), ROLE_LAUNCHED);
        assert_eq!(mark(ROLE_INTERNAL, 0).forked().role_after_exec(IDENTITY_HOOK), ROLE_INTERNAL);
        assert_eq!(mark(ROLE_INTERNAL, 0).role_after_exec(IDENTITY_LAUNCHER), ROLE_LAUNCHED);
        assert_eq!(mark(ROLE_HOOK, 0).role_after_exec(0), ROLE_INTERNAL);
        for identity in [0, IDENTITY_HOOK, IDENTITY_LAUNCHER] {
            assert_eq!(mark(ROLE_LAUNCHED, 7).forked().role_after_exec(identity), ROLE_LAUNCHED);
            assert_eq!(mark(ROLE_HOST, 7).forked().role_after_exec(identity), ROLE_LAUNCHED);
        }
    }
}
