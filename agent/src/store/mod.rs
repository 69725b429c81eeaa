//! The database: one file, one writer. Decisions are durable before they are answered.
//!
//! WAL with `synchronous = NORMAL`: what is committed survives the end of the service, SIGKILL included. A power failure
//! or a kernel crash can lose the last commits (never the file's consistency): the price of not waiting for the disk
//! inside a hook call.
#![forbid(unsafe_code)]

mod migrations;
mod reader;
mod retention;
mod rows;
mod schema;
#[cfg(test)]
mod tests;
mod writer;

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, ErrorCode, OpenFlags};

pub use reader::{Reader, Table};
pub use retention::Retention;
pub use rows::{Audit, Event, Record};
pub use writer::{Health, Writer};

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory is not only ours.
    #[error("{0} must be a directory that only its owner can enter: chmod 700 it, or let the service make it")]
    NotPrivate(PathBuf),
    /// Another service has it.
    #[error("{0} is in use by another ringfenced: stop that one first")]
    InUse(PathBuf),
    /// A later Ringfence wrote it.
    #[error(
        "{path} has schema {found}, and this Ringfence knows {known}: update Ringfence, or move the file away to begin anew"
    )]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// Somebody else's database.
    #[error("{0} is a database of another program: give Ringfence a file of its own")]
    NotOurs(PathBuf),
    /// The file system said no.
    #[error("{0}: {1}")]
    File(PathBuf, std::io::Error),
    /// SQLite said no.
    #[error("the database failed: {0}")]
    Database(#[from] rusqlite::Error),
    /// What is stored does not read as what it is.
    #[error("a stored {what} cannot be read: {source}")]
    Malformed {
        /// What it is.
        what: &'static str,
        /// Why.
        source: serde_json::Error,
    },
    /// The queue is full, or the writer has ended.
    #[error("the store cannot keep up or has stopped: {0}")]
    Queue(&'static str),
    /// The writer did not say in time that it is stored.
    #[error("not stored within {0:?}")]
    Late(Duration),
    /// The writer's own error, told to whom waited.
    #[error("not stored: {0}")]
    NotStored(String),
    /// No session of that id.
    #[error("no session begins with {0:?}")]
    NoSession(String),
    /// Several are.
    #[error("{1} sessions begin with {0:?}: give more of the id")]
    Ambiguous(String, usize),
}

/// The database, open for writing.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: PathBuf,
    /// What a person should know of how it was opened: a file set aside, a migration with its copy.
    pub notes: Vec<String>,
    _lock: File,
}

impl Store {
    /// Opens it, making it and its directory (0700, the file 0600) where missing. A corrupt file is set aside, never
    /// deleted; a newer schema is refused; a migration copies the file first.
    pub fn open(path: &Path) -> Result<Store, StoreError> {
        Self::open_with(path, migrations::ALL)
    }

    fn open_with(path: &Path, migrations: &[&str]) -> Result<Store, StoreError> {
        let lock = prepare(path)?;
        let mut notes = Vec::new();
        let connection = match connect(path, migrations, &mut notes) {
            Err(StoreError::Database(error)) if is_corrupt(&error) => {
                let aside = set_aside(path)?;
                notes.push(format!(
                    "the database was damaged ({error}): it is kept as {}, and a new one begun",
                    aside.display()
                ));
                connect(path, migrations, &mut notes)?
            }
            other => other?,
        };
        Ok(Store { connection, path: path.to_owned(), notes, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Forgets everything, on the disk too.
    fn clear(&mut self) -> Result<(), StoreError> {
        let transaction = self.connection.transaction()?;
        for table in schema::TABLES {
            transaction.execute(&format!("DELETE FROM {table}"), [])?;
        }
        transaction.commit()?;
        self.connection.execute_batch("VACUUM; PRAGMA wal_checkpoint(TRUNCATE);")?;
        Ok(())
    }
}

/// Directory, file and lock.
fn prepare(path: &Path) -> Result<File, StoreError> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = |at: &Path| {
        let at = at.to_owned();
        move |error| StoreError::File(at, error)
    };
    DirBuilder::new().mode(0o700).recursive(true).create(dir).map_err(failed(dir))?;
    if !crate::places::is_private(dir, nix::unistd::Uid::current().as_raw()) {
        return Err(StoreError::NotPrivate(dir.to_owned()));
    }
    // SQLite gives the files beside it the mode of the file itself, so that one is made here.
    let private = |file: &Path| {
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(file)
    };
    private(path).map_err(failed(path))?;
    let lock_path = beside(path, "lock");
    let lock = private(&lock_path).map_err(failed(&lock_path))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse(path.to_owned())),
        Err(TryLockError::Error(error)) => Err(StoreError::File(lock_path, error)),
    }
}

fn connect(path: &Path, migrations: &[&str], notes: &mut Vec<String>) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::from_secs(2))?;
    connection.set_prepared_statement_cache_capacity(64);
    // New files only: it must stand before the first table.
    connection.execute_batch("PRAGMA auto_vacuum = INCREMENTAL; PRAGMA trusted_schema = OFF;")?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.execute_batch(
        "PRAGMA synchronous = NORMAL; PRAGMA secure_delete = FAST; PRAGMA journal_size_limit = 8388608;",
    )?;
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict != "ok" {
        let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
        return Err(rusqlite::Error::SqliteFailure(code, Some(verdict)).into());
    }
    migrations::bring_up(&mut connection, path, migrations, notes)?;
    Ok(connection)
}

fn is_corrupt(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

/// Moves the file and what belongs to it out of the way.
fn set_aside(path: &Path) -> Result<PathBuf, StoreError> {
    let name = format!("damaged-{}", now_ms());
    let aside = beside(path, &name);
    for (from, to) in [(path.to_owned(), aside.clone()), (beside(path, "wal"), beside(&aside, "wal"))] {
        if from.exists() {
            std::fs::rename(&from, to).map_err(|error| StoreError::File(from.clone(), error))?;
        }
    }
    // The shared-memory index is rebuilt from the log.
    let index = sqlite_side(path, "-shm");
    if index.exists() {
        std::fs::remove_file(&index).map_err(|error| StoreError::File(index.clone(), error))?;
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    file.map_err(|error| StoreError::File(path.to_owned(), error))?;
    Ok(aside)
}

/// `NAME.SUFFIX` beside the file; SQLite's own log is `NAME-wal`.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    if suffix == "wal" { sqlite_side(path, "-wal") } else { sqlite_side(path, &format!(".{suffix}")) }
}

fn sqlite_side(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Milliseconds of CLOCK_REALTIME.
fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
