//! Plans on disk: compiled once per session, published before a hook is answered, kept to tell who refused a call.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use super::options::ServicePlaces;
use super::probe_link::{ProbeLink, ProbeState};
use super::rules::SessionRules;
use super::sessions::Session;
use crate::fence::Fences;
use crate::fence::compile::{self, CompileError, FenceRequest, ToolPlaces};
use crate::fence::file::FenceFileError;
use crate::fence::landlock::{self, Support};
use crate::fence::plan::{Plan, PlanError as FormError, SESSION_PLAN, session_directory};
use crate::fence::tree::{self, Tree};

/// Most plans that are remembered to attribute refusals; the oldest is forgotten first.
const MOST_REMEMBERED: usize = 512;

/// The session of canaries, which is in no ledger.
pub const CANARY: &str = "canary";

/// Why a session has no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The host's process is not known, so no launcher could find its plan.
    #[error("the host's process could not be found, so a command of it could not be fenced")]
    NoHost,
    /// The fence is not known.
    #[error(transparent)]
    Fence(#[from] FenceFileError),
    /// The fence could not be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The plan has no encoding.
    #[error(transparent)]
    Form(#[from] FormError),
    /// The probe is there and did not take it.
    #[error("the probe did not publish the plan: `ringfence status` says how it is")]
    NotPublished,
    /// It could not be written.
    #[error("the plan could not be written to {0}: {1}")]
    Write(PathBuf, std::io::Error),
}

/// The plans that launches may have used, by their id: shared with the ledger, which asks who refused a call.
pub type Known = Arc<Mutex<Remembered>>;

/// See [`Known`].
#[derive(Debug, Default)]
pub struct Remembered {
    by_id: HashMap<String, Arc<Plan>>,
    order: BTreeMap<u64, String>,
    next: u64,
}

impl Remembered {
    /// The plan of that id.
    pub fn get(&self, id: &str) -> Option<Arc<Plan>> {
        self.by_id.get(id).cloned()
    }

    /// The plan of a session, where a launch could not say which it used (inside a host's own sandbox).
    pub fn of_session(&self, session: &str) -> Option<Arc<Plan>> {
        let mut newest_first = self.order.values().rev().filter_map(|id| self.by_id.get(id));
        newest_first.find(|plan| plan.session == session && plan.call.is_none()).cloned()
    }

    fn add(&mut self, plan: Plan) {
        self.order.insert(self.next, plan.id.clone());
        self.next += 1;
        self.by_id.insert(plan.id.clone(), Arc::new(plan));
        while self.order.len() > MOST_REMEMBERED
            && let Some((_, oldest)) = self.order.pop_first()
        {
            if !self.order.values().any(|id| *id == oldest) {
                self.by_id.remove(&oldest);
            }
        }
    }
}

/// Compiles and publishes.
pub struct Plans {
    fences: Fences,
    own_directory: PathBuf,
    home: PathBuf,
    hook_socket: PathBuf,
    tools: ToolPlaces,
    host_directories: Vec<PathBuf>,
    probe: Rc<ProbeLink>,
    known: Known,
    /// Layers without which the policy lets nothing be launched. A filter that cannot be put on is a failed step anyway.
    required: Vec<String>,
}

impl Plans {
    /// For a service at these places.
    pub fn new(fences: Fences, required: Vec<String>, places: &ServicePlaces, probe: Rc<ProbeLink>) -> Plans {
        let variable = |name: &str| std::env::var_os(name);
        let config = variable("CLAUDE_CONFIG_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
        Plans {
            fences,
            own_directory: places.plans(),
            tools: ToolPlaces::from_environment(&places.home, variable),
            host_directories: vec![config.unwrap_or_else(|| places.home.join(".claude"))],
            home: places.home.clone(),
            hook_socket: places.runtime_dir.join("hook.sock"),
            probe,
            known: Known::default(),
            required,
        }
    }

    /// The plans that launches may have used.
    pub fn known(&self) -> Known {
        Arc::clone(&self.known)
    }

    /// The working tree of a session that starts there; `None` for a directory that may not be one.
    pub fn tree_of(&self, cwd: &Path) -> Option<Tree> {
        tree::resolve(cwd, &self.home).ok()
    }

    /// The rules of trees, for the same places.
    pub fn rules(&self, places: &ServicePlaces) -> SessionRules {
        let (tools, hosts) = (self.tools.clone(), self.host_directories.clone());
        SessionRules::new(self.fences.clone(), places, tools, hosts, Rc::clone(&self.probe))
    }

    /// Compiles the session's plan and puts it where its launcher looks; answers with the path.
    pub async fn publish(&self, session: &Session, fence: &str, policy: &str) -> Result<PathBuf, PlanError> {
        let host = session.host_process.ok_or(PlanError::NoHost)?;
        let tree = session.place();
        let mut plan = compile::compile(&FenceRequest {
            host: Some(host),
            tree_writable: session.tree.is_some(),
            ..self.request(fence, &tree, &session.id, policy)?
        })?;
        plan.require_landlock |= self.required.iter().any(|layer| layer == "landlock");
        let bytes = plan.encode()?;
        let name = format!("{}/{SESSION_PLAN}", session_directory(host));
        let path = match (self.probe.publish(name.clone(), bytes.clone()).await, self.probe.state()) {
            (Some(path), _) => path,
            (None, ProbeState::Absent) => write_private(&self.own_directory.join(name), &bytes)?,
            // The launcher trusts only the probe's plans where it has published any: ours would not be looked at.
            (None, _) => return Err(PlanError::NotPublished),
        };
        self.remember(plan);
        Ok(path)
    }

    /// Whether the filter of a session's plan lets no unix socket be made.
    pub fn refuses_unix(&self, session: &str) -> bool {
        let known = self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let arguments = [libc::AF_UNIX as u64, libc::SOCK_STREAM as u64, 0, 0, 0, 0];
        known
            .of_session(session)
            .is_some_and(|plan| crate::fence::attribution::refuses(&plan, libc::SYS_socket as i32, &arguments))
    }

    /// A plan for the canary, and Landlock's ABI.
    pub fn canary(&self, tree: &Path, policy: &str) -> Result<(PathBuf, u32), PlanError> {
        let wrote = |error| PlanError::Write(tree.to_owned(), error);
        std::fs::create_dir_all(tree).map_err(wrote)?;
        let tree = Tree { top: tree.canonicalize().map_err(wrote)?, git: Vec::new() };
        let request = FenceRequest { notice_socket: None, ..self.request("default", &tree, CANARY, policy)? };
        let bytes = compile::compile(&request)?.encode()?;
        let path = write_private(&self.own_directory.join("canary.plan"), &bytes)?;
        let abi = match landlock::support() {
            Support::Abi(abi) => abi,
            _ => 0,
        };
        Ok((path, abi))
    }

    /// The host has ended: no launcher will look for its plans again.
    pub async fn withdraw(&self, session: &Session) {
        let Some(host) = session.host_process else { return };
        let directory = session_directory(host);
        self.probe.remove_plan(format!("{directory}/{SESSION_PLAN}")).await;
        remove_directory(&self.own_directory.join(directory));
        self.sweep(&session.id);
    }

    /// Removes the private TMPDIR of a session's launches.
    pub fn sweep(&self, session: &str) {
        let temporary = compile::temporary_directory(nix::unistd::Uid::current().as_raw(), session);
        remove_directory(&temporary);
        if let Some(of_user) = temporary.parent() {
            // Only the last session's end leaves it empty.
            let _ = std::fs::remove_dir(of_user);
        }
    }

    fn request<'a>(
        &'a self,
        fence: &str,
        tree: &'a Tree,
        session: &'a str,
        policy: &'a str,
    ) -> Result<FenceRequest<'a>, PlanError> {
        Ok(FenceRequest {
            fence: self.fences.get(fence)?,
            tree,
            tree_writable: true,
            home: &self.home,
            uid: nix::unistd::Uid::current().as_raw(),
            session,
            host: None,
            call: None,
            policy,
            places: &self.tools,
            host_directories: &self.host_directories,
            credentials_by_lsm: false,
            notice_socket: Some(&self.hook_socket),
            lines: &[],
        })
    }

    fn remember(&self, plan: Plan) {
        self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner).add(plan);
    }
}

fn remove_directory(directory: &Path) {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!("{} could not be removed: {error}", directory.display());
        }
        _ => {}
    }
}

/// Writes a plan 0600 in a 0700 directory, in one step.
fn write_private(file: &Path, bytes: &[u8]) -> Result<PathBuf, PlanError> {
    use std::io::Write;
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    let write = || {
        if let Some(directory) = file.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let new = file.with_extension("new");
        let mut out = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        out.write_all(bytes)?;
        std::fs::rename(&new, file)
    };
    write().map(|()| file.to_owned()).map_err(|error| PlanError::Write(file.to_owned(), error))
}
