//! The rules of each tree in the kernel: set before its first process is marked, and kept to what the machine is now.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::{Mutex, Notify};

use super::options::ServicePlaces;
use super::probe_link::ProbeLink;
use crate::clock::boottime_ns;
use crate::fence::compile::ToolPlaces;
use crate::fence::file::FenceFileError;
use crate::fence::rules::compile::{self, OwnPlaces, RulesError, RulesRequest};
use crate::fence::rules::domains::{Domains, EVERY, ExplainedDomain};
use crate::fence::rules::draft;
use crate::fence::rules::explained::Explained;
use crate::fence::rules::labels::Labels;
use crate::fence::tree::Tree;
use crate::fence::{Fence, Fences};
use crate::host::HostKind;

/// The fence whose rules hold for a host and what it starts for itself.
const HOST_FENCE: &str = "host";
/// For finding what rules speak of: a directory may lie on a file system that does not answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// For the first answer about a domain name.
const RESOLVING: Duration = Duration::from_secs(2);
/// Between two looks at what rules speak of, and the least time between two.
const LOOK: Duration = Duration::from_secs(5);
const LEAST: Duration = Duration::from_secs(1);

/// Why a tree has no rules, or only its old ones.
#[derive(Debug, thiserror::Error)]
pub enum SetRulesError {
    /// The fence is not known.
    #[error(transparent)]
    Fence(#[from] FenceFileError),
    /// They could not be compiled.
    #[error(transparent)]
    Compile(#[from] RulesError),
    /// What they speak of could not be found in time.
    #[error("what the rules speak of could not be looked at within {PATIENCE:?}")]
    TimedOut,
    /// The probe did not take them.
    #[error("the probe did not take the rules: {0}")]
    Probe(String),
}

/// What a tree's rules are made for.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Our id of the session.
    pub session: String,
    /// Which host.
    pub host: HostKind,
    /// The working tree.
    pub tree: Tree,
    /// The fence of what it launches.
    pub fence: String,
}

/// The rules of one tree as they were last set.
struct Kept {
    subject: Subject,
    fingerprint: Option<u64>,
    /// For what came of a launch, and for the host.
    generations: (u32, u32),
    explained: Explained,
    failure: Option<String>,
}

/// One tree's rules for a person.
#[derive(Clone, Debug, Serialize)]
pub struct ShownRules {
    /// The session.
    pub session: String,
    /// Generations in the kernel: for what came of a launch, and for the host. 0 is none.
    pub generations: (u32, u32),
    /// Why the last attempt to set them failed.
    pub failure: Option<String>,
    /// What they say.
    pub rules: Explained,
    /// Domain names that they speak of.
    pub domains: Vec<ExplainedDomain>,
}

/// What refusals are called.
pub type SharedLabels = Arc<std::sync::Mutex<Labels>>;

/// The rules of every tree, by the tree's number.
pub struct SessionRules {
    fences: Fences,
    home: PathBuf,
    tools: ToolPlaces,
    host_directories: Vec<PathBuf>,
    own: OwnPlaces,
    environment: HashMap<OsString, OsString>,
    probe: Rc<ProbeLink>,
    kept: RefCell<BTreeMap<u64, Kept>>,
    labels: SharedLabels,
    domains: RefCell<Domains>,
    /// Held while rules are set: each tree's are compiled and sent as one.
    turn: Mutex<()>,
    look: Notify,
}

impl SessionRules {
    /// None are set yet.
    pub fn new(
        fences: Fences,
        places: &ServicePlaces,
        tools: ToolPlaces,
        host_directories: Vec<PathBuf>,
        probe: Rc<ProbeLink>,
    ) -> SessionRules {
        SessionRules {
            fences,
            home: places.home.clone(),
            tools,
            host_directories,
            own: OwnPlaces {
                runtime_dir: places.runtime_dir.clone(),
                state_dir: places.state_dir.clone(),
                policies: places.policies.clone(),
                programs: places.hook.parent().map(PathBuf::from).unwrap_or_default(),
                probe_socket: places.probe_socket.clone(),
            },
            environment: std::env::vars_os().collect(),
            probe,
            kept: RefCell::default(),
            labels: SharedLabels::default(),
            domains: RefCell::default(),
            turn: Mutex::default(),
            look: Notify::new(),
        }
    }

    /// Sets a tree's rules for the first time. When this fails the tree is not without a record: it is tried again.
    pub async fn set(&self, tree: u64, subject: Subject) -> Result<(), SetRulesError> {
        let new =
            Kept { subject, fingerprint: None, generations: (0, 0), explained: Explained::default(), failure: None };
        self.kept.borrow_mut().insert(tree, new);
        self.resolve_first().await;
        let done = self.bring_up_to_date(tree).await;
        self.note(tree, &done);
        done.map(|_| ())
    }

    /// Why a tree has no rules at all; `None` when it has some, or is not known.
    pub fn missing(&self, tree: u64) -> Option<String> {
        let kept = self.kept.borrow();
        let unset = kept.get(&tree).filter(|kept| kept.generations == (0, 0))?;
        Some(unset.failure.clone().unwrap_or_else(|| "they are being set".to_owned()))
    }

    /// The tree has ended.
    pub fn forget(&self, tree: u64) {
        self.kept.borrow_mut().remove(&tree);
    }

    /// A call is about to run something: whether what rules speak of has changed is looked at soon.
    pub fn look_soon(&self) {
        self.look.notify_one();
    }

    /// What refusals are called: shared with the ledger.
    pub fn labels(&self) -> SharedLabels {
        Arc::clone(&self.labels)
    }

    /// The rules that hold, of one session or of all.
    pub fn shown(&self, session: Option<&str>) -> Vec<ShownRules> {
        let domains = self.domains.borrow().explain(now());
        let kept = self.kept.borrow();
        let wanted = kept.values().filter(|kept| session.is_none_or(|id| kept.subject.session.starts_with(id)));
        wanted
            .map(|kept| ShownRules {
                session: kept.subject.session.clone(),
                generations: kept.generations,
                failure: kept.failure.clone(),
                rules: kept.explained.clone(),
                domains: domains.clone(),
            })
            .collect()
    }

    /// Looks at everything again for as long as the service lives. `failed` is told, once each time it begins, that a
    /// session's rules could not be brought up to date: the old ones hold until then.
    pub async fn keep_current(&self, failed: impl Fn(&str, &str)) {
        loop {
            tokio::time::sleep(LEAST).await;
            let _ = tokio::time::timeout(LOOK - LEAST, self.look.notified()).await;
            self.resolve_due().await;
            let trees: Vec<u64> = self.kept.borrow().keys().copied().collect();
            for tree in trees {
                let before = self.kept.borrow().get(&tree).and_then(|kept| kept.failure.clone());
                let done = self.bring_up_to_date(tree).await;
                self.note(tree, &done);
                if let Err(error) = &done
                    && before.is_none()
                    && let Some(session) = self.kept.borrow().get(&tree).map(|kept| kept.subject.session.clone())
                {
                    failed(&session, &error.to_string());
                }
            }
        }
    }

    fn note(&self, tree: u64, done: &Result<bool, SetRulesError>) {
        if let Some(kept) = self.kept.borrow_mut().get_mut(&tree) {
            kept.failure = done.as_ref().err().map(ToString::to_string);
        }
    }

    /// Compiles a tree's rules, and sends them when they are not those that hold; answers whether they were sent.
    async fn bring_up_to_date(&self, tree: u64) -> Result<bool, SetRulesError> {
        let _turn = self.turn.lock().await;
        let Some((subject, held)) = self.kept.borrow().get(&tree).map(|kept| (kept.subject.clone(), kept.fingerprint))
        else {
            return Ok(false);
        };
        let request = self.request(&subject)?;
        let looked = tokio::task::spawn_blocking(move || compile::gather(&request));
        let gathered = tokio::time::timeout(PATIENCE, looked).await.map_err(|_| SetRulesError::TimedOut)?;
        let gathered = gathered.map_err(|error| SetRulesError::Probe(error.to_string()))??;
        let fingerprint = gathered.fingerprint();
        if held == Some(fingerprint) {
            return Ok(false);
        }
        let identified = self.probe.identify(tree, &gathered.descriptors()).await.map_err(SetRulesError::Probe)?;
        let compiled = gathered.finish(&identified)?;
        let compile::Compiled { launched, host, labels, explained, linear: _ } = compiled;
        self.labels.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend(&labels);
        let generations = self.probe.set_rules(tree, launched, host).await.map_err(SetRulesError::Probe)?;
        if let Some(kept) = self.kept.borrow_mut().get_mut(&tree) {
            (kept.fingerprint, kept.generations, kept.explained) = (Some(fingerprint), generations, explained);
        }
        Ok(true)
    }

    /// The probe was away: what it holds is not known, so everything is sent again.
    pub fn distrust(&self) {
        self.kept.borrow_mut().values_mut().for_each(|kept| kept.fingerprint = None);
        self.look.notify_one();
    }

    fn request(&self, subject: &Subject) -> Result<RulesRequest, FenceFileError> {
        let (launched, host) = self.fences_of(subject)?;
        Ok(RulesRequest {
            launched: launched.clone(),
            host: host.clone(),
            host_kind: subject.host,
            session: subject.session.clone(),
            tree: subject.tree.clone(),
            home: self.home.clone(),
            uid: nix::unistd::Uid::current().as_raw(),
            tools: self.tools.clone(),
            host_directories: self.host_directories.clone(),
            own: self.own.clone(),
            environment: self.environment.clone(),
            domains: self.domains.borrow_mut().addresses(now()),
        })
    }

    fn fences_of(&self, subject: &Subject) -> Result<(&Fence, &Fence), FenceFileError> {
        Ok((self.fences.get(&subject.fence)?, self.fences.get(HOST_FENCE)?))
    }

    /// Tells the resolver which names the rules of all trees speak of.
    fn want_domains(&self) {
        let kept = self.kept.borrow();
        let fences = kept.values().filter_map(|kept| self.fences_of(&kept.subject).ok());
        let names: HashSet<&str> =
            fences.flat_map(|(launched, host)| draft::domains(launched).chain(draft::domains(host))).collect();
        self.domains.borrow_mut().want(names.into_iter());
    }

    /// Names that no question was asked about yet are known when this returns, if they can be known soon.
    async fn resolve_first(&self) {
        let _ = tokio::time::timeout(RESOLVING, self.resolve_due()).await;
    }

    async fn resolve_due(&self) {
        self.want_domains();
        let due = self.domains.borrow().due(now());
        for name in due {
            // The C library says no TTL, so each is asked for again after the longest time between two questions.
            let asked = tokio::time::timeout(RESOLVING, tokio::net::lookup_host((name.as_str(), 0))).await;
            let answer = match asked {
                Ok(Ok(found)) => Ok((found.map(|address| address.ip()).collect(), Some(EVERY))),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("no answer in time".to_owned()),
            };
            self.domains.borrow_mut().answered(&name, answer, now());
        }
    }
}

fn now() -> Duration {
    Duration::from_nanos(boottime_ns())
}
