//! Kernel observations into a tree: which process belongs where, and what it did.
#![forbid(unsafe_code)]

use sha2::{Digest, Sha256};

use super::entry::Exit;
use super::fold::{Started, Target};
use super::line;
use super::refusal::{Attribution, LaunchContext, RefusedCall, in_words};
use super::tree::{EarlyRefusal, LAUNCH_HOLD, Ns, Owner, Place, Tree};
use crate::probe::protocol::{Bytes, Mark, Observation, ObservationKind, Peer, Role};
use crate::process::ProcessId;

/// The launcher's name, as its file ends.
const LAUNCHER: &[u8] = b"ringfence-exec";
/// Refusals of one launch that wait for its notice.
const MOST_UNATTRIBUTED: usize = 64;

/// What the tree needs from outside while it observes.
pub(super) struct Surroundings<'a> {
    pub(super) attribution: &'a dyn Attribution,
    pub(super) redact: fn(&[&[u8]]) -> String,
}

struct Exec<'a> {
    parent: ProcessId,
    filename: &'a Bytes,
    path: &'a Bytes,
    argv: &'a Bytes,
    anonymous: bool,
}

/// Where launchers tell their notice.
const NOTICE_SOCKET: &[u8] = b"/hook.sock";

impl Tree {
    pub(super) fn observe(&mut self, observation: &Observation, around: &Surroundings<'_>) {
        let Observation { time_ns, mark, process, thread, kind } = observation;
        self.now = self.now.max(*time_ns);
        match kind {
            ObservationKind::Fork { child } => self.forked(*process, *child, mark, *time_ns),
            ObservationKind::Exec { parent, filename, file: _, path, argv, anonymous } => {
                let exec = Exec { parent: *parent, filename, path, argv, anonymous: *anonymous };
                self.executed(*process, mark, *time_ns, &exec, around);
            }
            ObservationKind::Exit { code, signal } => self.exited(*process, mark, *time_ns, *code, *signal),
            ObservationKind::Connect { attempt, peer, socket_type, refused, resolved } => {
                let broker = resolved.filter(|peer| !peer.inside && peer.pid != 0).map(|peer| peer.pid);
                self.connecting(observation, *attempt, Target { peer, socket_type: *socket_type, broker }, *refused);
            }
            ObservationKind::ConnectResult { attempt, errno } => {
                if let Some(launch) = self.launch_of(*process, mark, *time_ns)
                    && let Some(launch) = self.launches.get_mut(&launch)
                {
                    launch.fold.connect_result(*thread, *attempt, *errno);
                }
            }
            ObservationKind::Gate(event) => self.gated(*process, mark, *time_ns, event, around),
            ObservationKind::SyscallRefused { syscall, compat, arguments, errno, path } => {
                let call = RefusedCall { syscall: *syscall, compat: *compat, arguments, errno: *errno, path };
                self.refused(*process, mark, *time_ns, &call, around);
            }
        }
    }

    /// The place of a process, by its mark first: a launch is never lost.
    pub(super) fn place_of(&mut self, process: ProcessId, mark: &Mark, time_ns: Ns) -> Option<Place> {
        if mark.launch != 0 {
            return Some(Place::Launch(self.launch_of_number(mark.launch, process, time_ns)));
        }
        if let Some(proc) = self.procs.get(&process) {
            return Some(proc.place);
        }
        match mark.role {
            _ if self.hosts.contains(&process) => Some(Place::Host),
            Role::Host => Some(Place::Host),
            Role::Hook => Some(Place::Hook),
            Role::Internal | Role::Launched => None,
        }
    }

    fn launch_of(&mut self, process: ProcessId, mark: &Mark, time_ns: Ns) -> Option<u64> {
        match self.place_of(process, mark, time_ns) {
            Some(Place::Launch(launch)) => Some(launch),
            _ => None,
        }
    }

    /// The launch of that number. The notice may have come first, without it: then its process tells.
    pub(super) fn launch_of_number(&mut self, number: u64, process: ProcessId, time_ns: Ns) -> u64 {
        if let Some(launch) = self.by_number.get(&number) {
            return *launch;
        }
        let by_root = self.by_root.get(&process).copied();
        let unnumbered = by_root.filter(|l| self.launches.get(l).is_some_and(|l| l.fenced && l.number.is_none()));
        let key = unnumbered.unwrap_or_else(|| self.new_launch(true, (time_ns, time_ns)));
        if let Some(launch) = self.launches.get_mut(&key) {
            launch.number = Some(number);
        }
        self.by_number.insert(number, key);
        key
    }

    fn forked(&mut self, process: ProcessId, child: ProcessId, mark: &Mark, time_ns: Ns) {
        let place = match self.place_of(process, mark, time_ns) {
            Some(Place::Host) => Place::Fresh,
            Some(place) => place,
            None => return,
        };
        // An exec may have overtaken the fork: then the child's place is known already.
        if !self.procs.contains_key(&child) {
            self.place(child, place);
        }
    }

    fn executed(&mut self, process: ProcessId, mark: &Mark, time_ns: Ns, exec: &Exec<'_>, around: &Surroundings<'_>) {
        let arguments = line::arguments(&exec.argv.bytes);
        if mark.launch != 0 {
            return self.executed_behind_fence(process, mark, time_ns, exec, &arguments, around);
        }
        if mark.role == Role::Hook {
            return self.became_hook(process);
        }
        if self.hosts.contains(&process) {
            return;
        }
        let known = self.procs.get(&process).map(|p| p.place);
        let inherited = || match self.procs.get(&exec.parent).map(|p| p.place) {
            Some(Place::Host | Place::Fresh) | None => Place::Fresh,
            Some(place) => place,
        };
        match known.unwrap_or_else(inherited) {
            place @ (Place::Internal | Place::Hook) => self.place(process, place),
            // A launch is never lost, so this came before it and was told late: the shell before the prefix.
            Place::Launch(launch) if self.launches.get(&launch).is_some_and(|l| l.fenced) => {}
            Place::Launch(launch) => {
                self.place(process, Place::Launch(launch));
                self.started(launch, process, time_ns, exec, &arguments, around);
            }
            Place::Fresh | Place::Host => {
                let kind = self.patterns.kind_of(&arguments, exec.argv.truncated).map(str::to_owned);
                if let Some(kind) = kind {
                    self.place(process, Place::Internal);
                    self.count_internal(&kind);
                    return;
                }
                let launch = self.new_launch(false, (time_ns, time_ns));
                self.place(process, Place::Launch(launch));
                self.set_root(launch, process);
                self.read_line(launch, exec.argv, &arguments);
                self.started(launch, process, time_ns, exec, &arguments, around);
            }
        }
    }

    fn executed_behind_fence(
        &mut self,
        process: ProcessId,
        mark: &Mark,
        time_ns: Ns,
        exec: &Exec<'_>,
        arguments: &[&[u8]],
        around: &Surroundings<'_>,
    ) {
        // What the same process was before - the shell that the host puts before its prefix - is a part of this launch,
        // and so is a shell that forked instead of becoming the launcher.
        let before = [process, exec.parent].map(|p| match self.procs.get(&p).map(|p| p.place) {
            Some(Place::Launch(launch)) => Some(launch),
            _ => None,
        });
        let key = self.launch_of_number(mark.launch, process, time_ns);
        for unfenced in before.into_iter().flatten() {
            let is_part = self.launches.get(&unfenced).is_some_and(|l| !l.fenced && l.owner == Owner::Nobody);
            if is_part && unfenced != key {
                self.drop_launch(unfenced, Place::Launch(key));
            }
        }
        self.place(process, Place::Launch(key));
        let Some(launch) = self.launches.get_mut(&key) else { return };
        launch.exec_seen = true;
        let name = if exec.path.bytes.is_empty() { &exec.filename.bytes } else { &exec.path.bytes };
        let is_launcher =
            name.rsplit(|b| *b == b'/').next() == Some(LAUNCHER) && launch.root.is_none_or(|root| root == process);
        if is_launcher {
            launch.began = (time_ns, time_ns);
            self.set_root(key, process);
            if let Some(at) = self.early_notices.iter().position(|(notice, _)| notice.process == process) {
                let (notice, _) = self.early_notices.swap_remove(at);
                self.launched(notice, Some(mark.launch), time_ns);
            }
        }
        let is_first = |l: &super::tree::Launch| l.root == Some(process) && (is_launcher || l.root_execs == 0);
        if self.launches.get(&key).is_some_and(|l| l.digest.is_none() && is_first(l)) {
            self.read_line(key, exec.argv, arguments);
        }
        if !is_launcher {
            if let Some(launch) = self.launches.get_mut(&key)
                && launch.root == Some(process)
            {
                launch.root_execs += 1;
            }
            self.started(key, process, time_ns, exec, arguments, around);
        }
        self.rebind(key);
    }

    pub(super) fn set_root(&mut self, key: u64, process: ProcessId) {
        if let Some(launch) = self.launches.get_mut(&key) {
            launch.root = Some(process);
            // Its end may have been told before it was known to be the first process.
            if launch.root_exit.is_none()
                && let Some(ended) = self.procs.get(&process).and_then(|p| p.ended)
            {
                launch.root_exit = launch.fold.exit_of(process).map(|exit| (exit, ended));
            }
        }
        self.by_root.insert(process, key);
    }

    /// Digests of the line that the host handed over, if it was seen whole.
    fn read_line(&mut self, key: u64, argv: &Bytes, arguments: &[&[u8]]) {
        let Some(launch) = self.launches.get_mut(&key).filter(|_| !argv.truncated) else { return };
        let whole = argv.bytes.strip_suffix(b"\0").unwrap_or(&argv.bytes);
        launch.line_digests = vec![Sha256::digest(whole).into()];
        if let Some(line) = line::host_line(arguments) {
            launch.line_digests.push(Sha256::digest(&line).into());
        }
        if let Some(command) = line::command_of(arguments) {
            launch.shell_line = true;
            launch.digest = Some(Sha256::digest(&command).into());
        }
    }

    /// Deals a launch out again, if it is known what it runs.
    pub(super) fn rebind(&mut self, key: u64) {
        let Some(launch) = self.launches.get(&key) else { return };
        let (digest, free) = (launch.digest, launch.owner == Owner::Nobody && launch.ripe);
        if self.is_run() && free {
            let now = self.now;
            if let Some(launch) = self.launches.get_mut(&key) {
                launch.deadline = now;
            }
            return self.conclude(false);
        }
        if let Some(digest) = digest
            && free
        {
            self.deal(digest);
        }
    }

    fn started(
        &mut self,
        key: u64,
        process: ProcessId,
        time_ns: Ns,
        exec: &Exec<'_>,
        arguments: &[&[u8]],
        around: &Surroundings<'_>,
    ) {
        let summary = (around.redact)(arguments);
        let Some(launch) = self.launches.get_mut(&key) else { return };
        launch.exec_seen = true;
        if launch.summary.is_empty() {
            launch.summary = super::text::cut(super::text::shown_text(&summary), 200);
        }
        launch.fold.started(Started {
            process,
            parent: exec.parent.pid,
            time_ns,
            filename: exec.filename,
            path: exec.path,
            argv: exec.argv,
            anonymous: exec.anonymous,
            summary,
        });
        self.touch_launch(key);
    }

    fn became_hook(&mut self, process: ProcessId) {
        match self.procs.get(&process).map(|p| p.place) {
            Some(Place::Hook) => return,
            // A shell that the host put around the hook.
            Some(Place::Launch(launch))
                if self.launches.get(&launch).is_some_and(|l| !l.fenced && l.owner == Owner::Nobody) =>
            {
                self.drop_launch(launch, Place::Hook);
            }
            _ => {}
        }
        self.place(process, Place::Hook);
        self.count_internal("hook");
    }

    fn exited(&mut self, process: ProcessId, mark: &Mark, time_ns: Ns, code: u8, signal: u8) {
        let exit = match signal {
            0 => Exit { code: i32::from(code), signal: None },
            signal => Exit { code: 128 + i32::from(signal), signal: Some(signal) },
        };
        let place = self.place_of(process, mark, time_ns);
        if !self.procs.contains_key(&process)
            && let Some(place @ Place::Launch(_)) = place
        {
            self.place(process, place);
        }
        let newly = match self.procs.get_mut(&process) {
            Some(proc) if proc.ended.is_none() => {
                proc.ended = Some(time_ns);
                true
            }
            _ => false,
        };
        let Some(Place::Launch(key)) = place else { return };
        let Some(launch) = self.launches.get_mut(&key) else { return };
        launch.fold.exited(process, exit);
        if newly {
            launch.alive = launch.alive.saturating_sub(1);
        }
        let is_root = launch.root == Some(process);
        if is_root {
            launch.root_exit = Some((exit, time_ns));
        }
        let digest = launch.digest;
        self.touch_launch(key);
        if is_root && let Some(digest) = digest {
            self.deal(digest);
        }
    }

    fn connecting(&mut self, observation: &Observation, attempt: u64, what: Target<'_>, refused: bool) {
        let Observation { time_ns, mark, process, thread, kind: _ } = observation;
        let Some(key) = self.launch_of(*process, mark, *time_ns) else { return };
        if !self.procs.contains_key(process) {
            self.place(*process, Place::Launch(key));
        }
        if let Some(launch) = self.launches.get_mut(&key) {
            // The launcher tells its notice before it becomes the command: that connection is ours, not the command's.
            let is_notice = matches!(what.peer, Peer::UnixPath(path) if path.bytes.ends_with(NOTICE_SOCKET));
            if is_notice && launch.fenced && launch.root == Some(*process) && launch.root_execs == 0 {
                return;
            }
            launch.fold.connecting(*process, *thread, attempt, *time_ns, what, refused);
        }
        self.touch_launch(key);
    }

    fn refused(
        &mut self,
        process: ProcessId,
        mark: &Mark,
        time_ns: Ns,
        call: &RefusedCall<'_>,
        around: &Surroundings<'_>,
    ) {
        let Some(key) = self.launch_of(process, mark, time_ns) else { return };
        let Some(launch) = self.launches.get_mut(&key) else { return };
        let early = launch.fenced && launch.notice.is_none() && self.now < launch.began.1 + LAUNCH_HOLD;
        if early && launch.unattributed.len() < MOST_UNATTRIBUTED {
            let RefusedCall { syscall, compat, arguments, errno, path } = *call;
            let (arguments, path) = (*arguments, path.clone());
            launch.unattributed.push(EarlyRefusal { process, syscall, compat, arguments, errno, path });
            return;
        }
        self.attribute(key, process, call, around);
    }

    fn attribute(&mut self, key: u64, process: ProcessId, call: &RefusedCall<'_>, around: &Surroundings<'_>) {
        let session = self.current().map(|s| s.summary.id.clone()).unwrap_or_default();
        let Some(launch) = self.launches.get_mut(&key) else { return };
        let context = LaunchContext {
            number: launch.number.unwrap_or(0),
            plan: launch.notice.as_ref().map(|n| n.plan.clone()),
            fence: launch.notice.as_ref().map_or(String::new(), |n| n.fence.clone()),
        };
        let by = around.attribution.layer(&session, &context, *call);
        let mut what = in_words(call);
        if !call.compat
            && i64::from(call.syscall) == libc::SYS_connect
            && let Some(peer) = launch.fold.connect_refused_by(process.pid, by.layer)
        {
            what = format!("connect {peer}");
        }
        launch.fold.refused(process.pid, call.errno, what, by);
        self.touch_launch(key);
    }

    /// Refusals whose launch has told its plan, or will not any more.
    pub(super) fn attribute_early(&mut self, around: &Surroundings<'_>) {
        let now = self.now;
        let known = |l: &super::tree::Launch| l.notice.is_some() || l.began.1 + LAUNCH_HOLD <= now;
        let due: Vec<u64> =
            self.launches.iter().filter(|(_, l)| !l.unattributed.is_empty() && known(l)).map(|(key, _)| *key).collect();
        for key in due {
            let waiting = self.launches.get_mut(&key).map(|l| std::mem::take(&mut l.unattributed)).unwrap_or_default();
            for EarlyRefusal { process, syscall, compat, arguments, errno, path } in waiting {
                let call = RefusedCall { syscall, compat, arguments: &arguments, errno, path: &path };
                self.attribute(key, process, &call, around);
            }
        }
    }
}
