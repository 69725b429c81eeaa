//! Which files a process opens, and which it takes over from another one that opened them.

use core::ffi::c_void;

use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::mark::{FLAG_GIT, Mark, ROLE_HOST};
use ringfence_common::record::{GATE_BY_GIT, GATE_TOO_DEEP, GateHead};
use ringfence_common::rules::{
    NAME_GIT, NAME_HOST, NAME_PROGRAM_REFUSED, NAME_READ_REFUSED, NAME_RECORDED, NAME_WRITABLE, NAME_WRITE_REFUSED,
    gate,
};

use super::names::{self, Said};
use crate::fields::*;
use crate::file;
use crate::gate::{self as gates, Actor, EACCES, Subject};
use crate::maps::MARKS;
use crate::marks;

/// `FMODE_WRITE`.
const FMODE_WRITE: u32 = 2;
/// `S_IFMT`, `S_IFREG`, `S_IFDIR`, `S_IFLNK`, and the permissions to execute.
const KIND: u16 = 0o170_000;
const REGULAR: u16 = 0o100_000;
const DIRECTORY: u16 = 0o040_000;
const LINK: u16 = 0o120_000;
const EXECUTABLE: u16 = 0o111;

/// What an inode is.
#[derive(Clone, Copy)]
pub struct Kind(u16);

impl Kind {
    /// Of this inode; nothing for none.
    #[inline(always)]
    pub fn of(inode: *const c_void) -> Kind {
        Kind(read(inode, &OFF_INODE_MODE))
    }

    /// Whether a mode permits somebody to execute.
    #[inline(always)]
    pub fn permits(mode: u16) -> bool {
        mode & EXECUTABLE != 0
    }

    /// A regular file.
    #[inline(always)]
    pub fn is_regular(self) -> bool {
        self.0 & KIND == REGULAR
    }

    /// A regular file that may be executed.
    #[inline(always)]
    pub fn is_program(self) -> bool {
        self.is_regular() && Kind::permits(self.0)
    }

    /// A regular file or a directory.
    #[inline(always)]
    pub fn is_in_tree(self) -> bool {
        self.is_regular() || self.0 & KIND == DIRECTORY
    }

    /// What would bring a program to where it comes to be: one, a link to one, or a directory of them.
    #[inline(always)]
    pub fn brings_program(self) -> bool {
        self.is_program() || self.0 & KIND == LINK || self.0 & KIND == DIRECTORY
    }
}

/// What is done to a dentry, and which rules speak of it.
#[derive(Clone, Copy)]
pub struct Deed {
    /// A name with one of these refuses it, at or above the dentry.
    pub refused: u32,
    /// A name with one of these refuses it, at the dentry.
    pub refused_here: u32,
    /// It changes something, so [`NAME_RECORDED`] speaks of it and [`NAME_GIT`] and [`NAME_HOST`] excuse it.
    pub changes: bool,
    /// A gate that refuses it where nothing is [`NAME_WRITABLE`]; 0 for none.
    pub only_writable: u32,
}

impl Deed {
    /// A change that only this refuses.
    #[inline(always)]
    pub fn change(refused: u32) -> Deed {
        Deed { refused, refused_here: 0, changes: true, only_writable: 0 }
    }

    /// Every `NAME_*` that may decide.
    #[inline(always)]
    fn asked(&self) -> u32 {
        self.refused | self.refused_here | if self.changes { NAME_RECORDED } else { 0 }
    }
}

/// Judges what is done to a dentry and tells it; 0, or the negative errno of the refusal. `subject` is what is told.
#[inline(always)]
pub fn judge(actor: &mut Actor, dentry: *const c_void, deed: Deed, subject: Subject) -> i32 {
    let strict = deed.only_writable != 0 && gates::refused_by_default(&actor.mark, deed.only_writable);
    let spoken_of = names::spoken_of(&actor.mark) & deed.asked();
    if spoken_of == 0 && !strict {
        return 0;
    }
    let said = names::said_of(actor.task, &actor.mark, dentry);
    let refused = said.bits & deed.refused | said.own & deed.refused_here;
    let by_name = refused != 0 || said.too_deep && spoken_of & !NAME_RECORDED != 0;
    let by_place = strict && said.bits & NAME_WRITABLE == 0 && !said.unnamed;
    let excused = deed.changes && refused & NAME_READ_REFUSED == 0 && !said.too_deep;
    let excuse = if excused { excuse(actor, &said) } else { None };
    let recorded = deed.changes && said.bits & NAME_RECORDED != 0;

    let by_rule = by_name && excuse.is_none();
    let refusal = by_rule || by_place;
    if !refusal && !by_name && !recorded {
        return 0;
    }
    let what = if refusal && !by_rule {
        deed.only_writable
    } else if refused & NAME_READ_REFUSED != 0 || !deed.changes {
        gate::READ
    } else {
        gate::WRITE
    };
    let too_deep = if said.too_deep { GATE_TOO_DEEP } else { 0 };
    let flags = too_deep | if refusal || !by_name { 0 } else { excuse.unwrap_or(0) };
    let key = file::key_of_inode(pointer(dentry, &OFF_DENTRY_INODE));
    let errno = if refusal { EACCES } else { 0 };
    let head = GateHead { flags, label: said.label, file: key, ..gates::head(what, errno) };
    if refusal {
        gates::deny(actor, head, subject);
        return -(EACCES as i32);
    }
    gates::note(actor, head, subject);
    0
}

/// Why a change that a name refuses is allowed to this process: `GATE_*`; `None` when it is not.
#[inline(always)]
fn excuse(actor: &Actor, said: &Said) -> Option<u32> {
    if said.bits & NAME_GIT != 0 && is_git(actor) {
        return Some(GATE_BY_GIT);
    }
    let host = actor.mark.role() == ROLE_HOST && actor.mark.launch == 0;
    (said.bits & NAME_HOST != 0 && host).then_some(0)
}

/// The thread and its process: what one of them lost is lost.
#[inline(always)]
fn is_git(actor: &Actor) -> bool {
    // SAFETY: a map value lives as long as the program runs.
    let leader = unsafe { MARKS.get(marks::leader(actor.task)).as_ref() };
    let git = |mark: &Mark| mark.role_and_flags & FLAG_GIT != 0;
    git(&actor.state.mark) && leader.is_some_and(|state| git(&state.mark))
}

/// What opening does.
#[inline(always)]
fn opening(file: *const c_void, inode: *const c_void) -> Deed {
    let changes = read::<u32>(file, &OFF_FILE_MODE) & FMODE_WRITE != 0;
    let write =
        if Kind::of(inode).is_program() { NAME_WRITE_REFUSED | NAME_PROGRAM_REFUSED } else { NAME_WRITE_REFUSED };
    let refused = NAME_READ_REFUSED | if changes { write } else { 0 };
    Deed { refused, refused_here: 0, changes, only_writable: 0 }
}

/// Every open but those that only name a file (`O_PATH`).
#[lsm(hook = "file_open")]
pub fn rf_file_open(ctx: LsmContext) -> i32 {
    let Some(mut actor) = gates::actor() else { return 0 };
    let file: *const c_void = ctx.arg(0);
    let deed = opening(file, pointer(file, &OFF_FILE_INODE));
    judge(&mut actor, pointer(file, &OFF_FILE_PATH_DENTRY), deed, Subject::File(file))
}

/// A file that another process opened and sent. Sockets, pipes and devices are no files of a tree.
#[lsm(hook = "file_receive")]
pub fn rf_receive(ctx: LsmContext) -> i32 {
    let Some(mut actor) = gates::actor() else { return 0 };
    let file: *const c_void = ctx.arg(0);
    let inode = pointer(file, &OFF_FILE_INODE);
    let deed = opening(file, inode);
    if !Kind::of(inode).is_in_tree() {
        return 0;
    }
    let only_writable = if deed.changes { gate::RECEIVE } else { 0 };
    judge(&mut actor, pointer(file, &OFF_FILE_PATH_DENTRY), Deed { only_writable, ..deed }, Subject::File(file))
}
