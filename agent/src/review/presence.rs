//! Proof that a person is there, which every change on the control socket needs: polkit, else a passphrase.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use argon2::Argon2;
use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString, rand_core::OsRng};
use tokio::process::Command;

use crate::process::ProcessId;

/// The polkit action that `deploy/polkit/` installs.
pub const POLKIT_ACTION: &str = "org.ringfence.change";
/// How long a person has to answer polkit's dialogue.
const DIALOGUE: Duration = Duration::from_secs(60);
/// Shortest passphrase that is taken.
pub const SHORTEST_PASSPHRASE: usize = 8;
/// Longest, so that hashing stays bounded.
const LONGEST_PASSPHRASE: usize = 1024;

/// Why presence is not proven.
#[derive(Debug, thiserror::Error)]
pub enum PresenceError {
    /// Polkit asked and got no, or no answer.
    #[error("polkit did not confirm that you are there")]
    Refused,
    /// Neither polkit nor a passphrase is set up.
    #[error(
        "no way to prove that a person is there: polkit's agent is not running and no passphrase is set (`ringfence setup passphrase` sets one)"
    )]
    NothingToProveBy,
    /// A passphrase is needed and was not given.
    #[error("this change needs your passphrase")]
    PassphraseNeeded,
    /// The passphrase is wrong.
    #[error("wrong passphrase")]
    WrongPassphrase,
    /// Too many tries.
    #[error("too many wrong passphrases: try again in a minute")]
    TooManyTries,
    /// The first passphrase, while a session is open and no probe tells its processes apart.
    #[error("the first passphrase is set while no agent session is open: end it, then try again")]
    NotWhileAgentsRun,
    /// A new passphrase is too short or too long.
    #[error("a passphrase has {SHORTEST_PASSPHRASE} to {LONGEST_PASSPHRASE} bytes")]
    Length,
    /// It cannot be kept or read.
    #[error("{0}: {1}")]
    Store(PathBuf, String),
}

/// What proved it, for the audit row.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// polkit's `auth_self`.
    Polkit,
    /// The passphrase.
    Passphrase,
    /// The first passphrase of an installation that has no polkit: there is nothing yet to prove by.
    FirstPassphrase,
}

/// Proves presence for one service.
#[derive(Debug)]
pub struct Presence {
    passphrase_file: PathBuf,
    pkcheck: Option<PathBuf>,
    wrong: std::cell::RefCell<Vec<std::time::Instant>>,
}

impl Presence {
    /// `state_dir` keeps the passphrase's hash (0600).
    pub fn new(state_dir: &Path) -> Presence {
        let pkcheck = PathBuf::from("/usr/bin/pkcheck");
        let action = Path::new("/usr/share/polkit-1/actions").join(format!("{POLKIT_ACTION}.policy"));
        Presence {
            passphrase_file: state_dir.join("passphrase"),
            pkcheck: (pkcheck.exists() && action.exists()).then_some(pkcheck),
            wrong: std::cell::RefCell::default(),
        }
    }

    /// What `status` says of how changes are protected.
    pub fn describe(&self) -> &'static str {
        match (self.pkcheck.is_some(), self.passphrase_file.exists()) {
            (true, true) => "polkit, else passphrase",
            (true, false) => "polkit",
            (false, true) => "passphrase",
            (false, false) => "nothing set up (`ringfence setup passphrase`): until then changes are refused",
        }
    }

    /// Proves that the person behind `peer` is there.
    pub async fn prove(&self, peer: ProcessId, passphrase: Option<&str>) -> Result<Proof, PresenceError> {
        if let Some(given) = passphrase {
            return self.check_passphrase(given);
        }
        let Some(pkcheck) = &self.pkcheck else {
            return Err(match self.passphrase_file.exists() {
                true => PresenceError::PassphraseNeeded,
                false => PresenceError::NothingToProveBy,
            });
        };
        let mut command = Command::new(pkcheck);
        // polkit wants the start time in clock ticks, as `/proc/PID/stat` has it, so a reused pid cannot answer.
        command
            .env_clear()
            .args(["--action-id", POLKIT_ACTION, "--allow-user-interaction", "--process"])
            .arg(format!("{},{}", peer.pid, peer.start))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        match tokio::time::timeout(DIALOGUE, command.status()).await {
            Ok(Ok(status)) if status.success() => Ok(Proof::Polkit),
            _ if self.passphrase_file.exists() => Err(PresenceError::PassphraseNeeded),
            _ => Err(PresenceError::Refused),
        }
    }

    fn check_passphrase(&self, given: &str) -> Result<Proof, PresenceError> {
        let mut wrong = self.wrong.borrow_mut();
        wrong.retain(|at| at.elapsed() < Duration::from_secs(60));
        if wrong.len() >= 5 {
            return Err(PresenceError::TooManyTries);
        }
        let kept = match std::fs::read_to_string(&self.passphrase_file) {
            Ok(kept) => kept,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(PresenceError::NothingToProveBy),
            Err(error) => return Err(PresenceError::Store(self.passphrase_file.clone(), error.to_string())),
        };
        let hash = PasswordHash::new(kept.trim())
            .map_err(|error| PresenceError::Store(self.passphrase_file.clone(), error.to_string()))?;
        let right =
            given.len() <= LONGEST_PASSPHRASE && Argon2::default().verify_password(given.as_bytes(), &hash).is_ok();
        if !right {
            wrong.push(std::time::Instant::now());
            return Err(PresenceError::WrongPassphrase);
        }
        Ok(Proof::Passphrase)
    }

    /// Sets the passphrase. The first one on a machine without polkit needs no proof: there is nothing to prove by.
    pub async fn set_passphrase(
        &self,
        peer: ProcessId,
        old: Option<&str>,
        new: &str,
        may_be_first: bool,
    ) -> Result<Proof, PresenceError> {
        if !(SHORTEST_PASSPHRASE..=LONGEST_PASSPHRASE).contains(&new.len()) {
            return Err(PresenceError::Length);
        }
        let is_first = self.pkcheck.is_none() && !self.passphrase_file.exists();
        let proof = match (is_first, may_be_first) {
            (true, true) => Proof::FirstPassphrase,
            (true, false) => return Err(PresenceError::NotWhileAgentsRun),
            (false, _) => self.prove(peer, old).await?,
        };
        let failed = |error: String| PresenceError::Store(self.passphrase_file.clone(), error);
        let salt = SaltString::generate(&mut OsRng);
        let hash = Argon2::default().hash_password(new.as_bytes(), &salt).map_err(|error| failed(error.to_string()))?;
        let beside = self.passphrase_file.with_extension("new");
        write_private(&beside, hash.to_string().as_bytes()).map_err(|error| failed(error.to_string()))?;
        std::fs::rename(&beside, &self.passphrase_file).map_err(|error| failed(error.to_string()))?;
        Ok(proof)
    }
}

fn write_private(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut out = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(file)?;
    out.write_all(bytes)?;
    out.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn somebody() -> ProcessId {
        ProcessId { pid: std::process::id(), start: 1 }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_passphrase_proves_and_a_wrong_one_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let presence =
            Presence { passphrase_file: dir.path().join("passphrase"), pkcheck: None, wrong: Default::default() };
        assert!(matches!(presence.prove(somebody(), None).await, Err(PresenceError::NothingToProveBy)));
        assert!(matches!(
            presence.set_passphrase(somebody(), None, "correct horse", false).await,
            Err(PresenceError::NotWhileAgentsRun)
        ));
        assert!(matches!(presence.set_passphrase(somebody(), None, "short", true).await, Err(PresenceError::Length)));
        assert_eq!(
            presence.set_passphrase(somebody(), None, "correct horse", true).await.unwrap(),
            Proof::FirstPassphrase
        );
        assert!(matches!(presence.prove(somebody(), None).await, Err(PresenceError::PassphraseNeeded)));
        assert_eq!(presence.prove(somebody(), Some("correct horse")).await.unwrap(), Proof::Passphrase);
        assert!(matches!(
            presence.set_passphrase(somebody(), None, "another phrase", true).await,
            Err(PresenceError::PassphraseNeeded)
        ));
        for _ in 0..5 {
            assert!(matches!(presence.prove(somebody(), Some("wrong")).await, Err(PresenceError::WrongPassphrase)));
        }
        assert!(matches!(presence.prove(somebody(), Some("correct horse")).await, Err(PresenceError::TooManyTries)));
    }
}
