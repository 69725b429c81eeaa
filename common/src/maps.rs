//! Keys and values of the maps.

use crate::limits::IDENTIFIED;
use crate::mark::Mark;
use crate::plain;
use crate::record::KINDS;

plain! {
    /// `STATE[0]`: what outlives the probe. Only the probe writes it.
    pub struct State {
        /// [`crate::limits::MAP_ABI`] of whoever made the maps; 0 until they are ready.
        pub abi: u32,
        /// Generation of the current policy.
        pub generation: u32,
        /// Number of the next session.
        pub next_session: u64,
        /// Number of the present watch over system calls; 0 while there is none.
        pub watch: u32,
        /// How many watches there have been.
        pub watches: u32,
        /// Bits `TIER_*`: which programs decide.
        pub tier: u32,
        /// Generation that the next rule set gets.
        pub next_generation: u32,
        /// SHA-256 of the object whose programs are attached.
        pub object: [u8; 32],
    }
}

/// LSM programs decide about unix sockets, by the resolved peer: those of the cgroup stay out of it.
pub const TIER_UNIX_BY_PEER: u32 = 1;

plain! {
    /// `MARKS`: task storage.
    pub struct TaskState {
        /// The mark.
        pub mark: Mark,
        /// The connect that this thread is in, 0 for none.
        pub attempt: u64,
        /// [`State::watch`] when it began.
        pub watch: u32,
        /// 1 from a refusal by one of our programs until its system call ends: that call is not told again.
        pub denied: u32,
        /// On a group leader: how often the end of its process was about to be reported.
        pub exited: u64,
    }
}

plain! {
    /// `MIRROR`: what a cgroup program needs to know of a process where it may not use task storage.
    pub struct Mirrored {
        /// The mark.
        pub mark: Mark,
        /// The process's start, nanoseconds of CLOCK_BOOTTIME.
        pub start_ns: u64,
    }
}

plain! {
    /// `ATTEMPTS`: the connect that a thread is in, where task storage is not to be had.
    pub struct Attempt {
        /// See [`TaskState::attempt`].
        pub attempt: u64,
        /// See [`TaskState::watch`].
        pub watch: u32,
        /// See [`TaskState::denied`].
        pub denied: u32,
    }
}

plain! {
    /// Events of one kind: `attempted = reported + lost`.
    pub struct KindCounters {
        /// Happened.
        pub attempted: u64,
        /// Put into the ring buffer.
        pub reported: u64,
        /// Not put there.
        pub lost: u64,
    }
}

plain! {
    /// `SESSIONS`: by session number.
    pub struct Session {
        /// Whose it is.
        pub uid: u32,
        /// Always 0.
        pub reserved: u32,
        /// Children that could not be given the mark of their parent.
        pub unmarked_children: u64,
        /// By kind of record.
        pub counters: [KindCounters; KINDS],
    }
}

plain! {
    /// `IDENTITIES`: a file as the kernel keys it; the value is an `IDENTITY_*`.
    pub struct FileKey {
        /// `s_dev` of the super block.
        pub device: u32,
        /// Inode generation.
        pub generation: u32,
        /// Inode number.
        pub inode: u64,
    }
}

plain! {
    /// `REQUEST[0]`: what an iterator is asked, and what it answers.
    pub struct Request {
        /// Enrol into this session.
        pub session: u64,
        /// Start of the wanted process in clock ticks.
        pub start: u64,
        /// Nanoseconds per clock tick.
        pub tick_ns: u64,
        /// Launch of a process that is enrolled as launched: 0 when asked, then as given.
        pub launch: u64,
        /// Thread-group id of the wanted process.
        pub pid: u32,
        /// Uid whose processes may be enrolled.
        pub uid: u32,
        /// `ROLE_*` for the wanted process.
        pub role: u32,
        /// Generation of the current policy.
        pub generation: u32,
        /// For the identity iterator: how many of `fds` are asked about.
        pub files_wanted: u32,
        /// Answer: tasks marked in this pass.
        pub marked: u32,
        /// Answer: 1 when the wanted process was seen.
        pub seen: u32,
        /// Answer: 1 when it is another user's.
        pub foreign: u32,
        /// Answer: the other open session that the wanted process belongs to, 0 for none.
        pub other: u64,
        /// For the identity iterator: descriptors of the wanted process.
        pub fds: [u32; IDENTIFIED],
        /// Answer: the files behind `fds`.
        pub files: [FileKey; IDENTIFIED],
        /// Answer: fields as this kernel has them, for the test of the offsets: parent's tgid and own uid.
        pub parent: u32,
        /// See `parent`.
        pub owner: u32,
    }
}
