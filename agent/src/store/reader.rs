//! Reading the store: sessions, reports, findings. A connection of its own that cannot write.
#![forbid(unsafe_code)]

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, params};
use serde::de::DeserializeOwned;

use super::StoreError;
use crate::ledger::entry::{Entry, Finding, SessionReport, SessionSummary};

/// Most entries of a session in one report; the newest are shown.
pub const MOST_ENTRIES: u32 = 5000;
/// Sessions among which the one of a directory is looked for.
const NEAR: u32 = 200;

/// See the module.
#[derive(Debug)]
pub struct Reader {
    connection: Connection,
}

impl Reader {
    /// Opens a database that a [`super::Store`] has made.
    pub fn open(path: &Path) -> Result<Reader, StoreError> {
        let flags =
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(Duration::from_secs(2))?;
        connection.execute_batch("PRAGMA query_only = ON; PRAGMA trusted_schema = OFF;")?;
        Ok(Reader { connection })
    }

    /// Sessions, newest first.
    pub fn sessions(&self, limit: u32) -> Result<Vec<SessionSummary>, StoreError> {
        let mut statement =
            self.connection.prepare_cached("SELECT summary FROM sessions ORDER BY started_ms DESC LIMIT ?1")?;
        let rows = statement.query_map([limit], |row| row.get::<_, String>(0))?;
        rows.map(|row| parse("session", &row?)).collect()
    }

    /// The newest session whose calls were made in `dir`, below it or above it; else the newest.
    pub fn last_session(&self, dir: Option<&Path>) -> Result<Option<String>, StoreError> {
        if let Some(dir) = dir {
            let near = self.connection.prepare_cached(
                "SELECT s.id FROM (SELECT id, started_ms FROM sessions ORDER BY started_ms DESC LIMIT ?2) s
                 WHERE EXISTS (SELECT 1 FROM decisions d WHERE d.session = s.id AND d.cwd IS NOT NULL AND length(d.cwd) > 1
                   AND (d.cwd = ?1 OR substr(?1, 1, length(d.cwd) + 1) = d.cwd || '/' OR substr(d.cwd, 1, length(?1) + 1) = ?1 || '/'))
                 ORDER BY s.started_ms DESC LIMIT 1",
            )?.query_row(params![dir.to_string_lossy(), NEAR], |row| row.get(0)).optional()?;
            if near.is_some() {
                return Ok(near);
            }
        }
        let mut newest = self.connection.prepare_cached("SELECT id FROM sessions ORDER BY started_ms DESC LIMIT 1")?;
        Ok(newest.query_row([], |row| row.get(0)).optional()?)
    }

    /// The session of that id, or of that unique beginning of one.
    pub fn find_session(&self, beginning: &str) -> Result<String, StoreError> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT id FROM sessions WHERE substr(id, 1, length(?1)) = ?1 ORDER BY id LIMIT 100")?;
        let ids: Vec<String> = statement.query_map([beginning], |row| row.get(0))?.collect::<Result<_, _>>()?;
        match ids.as_slice() {
            [] => Err(StoreError::NoSession(beginning.to_owned())),
            [only] => Ok(only.clone()),
            several if several.iter().any(|id| id == beginning) => Ok(beginning.to_owned()),
            several => Err(StoreError::Ambiguous(beginning.to_owned(), several.len())),
        }
    }

    /// One session with its entries in the order they began; of very many the newest.
    pub fn session(&self, id: &str) -> Result<SessionReport, StoreError> {
        let summary = self.summary(id)?;
        let total: i64 =
            self.connection.query_row("SELECT count(*) FROM entries WHERE session = ?1", [id], |row| row.get(0))?;
        let mut entries = self.entries(
            "SELECT e.json, o.executions, o.connections, o.refusals FROM entries e LEFT JOIN observations o ON o.entry = e.id
             WHERE e.session = ?1 ORDER BY e.started_ms DESC, e.id DESC LIMIT ?2",
            id,
        )?;
        entries.reverse();
        let more = (total as u64).saturating_sub(entries.len() as u64);
        Ok(summary.with_entries(entries, more))
    }

    /// A session that had not ended, with the entries that may still change: what a restarted service goes on with.
    pub fn open_session(&self, id: &str) -> Result<(SessionSummary, Vec<Entry>), StoreError> {
        let summary = self.summary(id)?;
        if summary.ended.is_some() {
            return Err(StoreError::NoSession(id.to_owned()));
        }
        let mut entries = self.entries(
            "SELECT e.json, o.executions, o.connections, o.refusals FROM entries e LEFT JOIN observations o ON o.entry = e.id
             WHERE e.session = ?1 ORDER BY e.started_ms DESC LIMIT min(?2, 1000)",
            id,
        )?;
        entries.reverse();
        Ok((summary, entries))
    }

    /// Where the first decided call of a session was made.
    pub fn first_directory(&self, session: &str) -> Result<Option<String>, StoreError> {
        let mut first = self.connection.prepare_cached(
            "SELECT cwd FROM decisions WHERE session = ?1 AND cwd IS NOT NULL ORDER BY at_ms LIMIT 1",
        )?;
        Ok(first.query_row([session], |row| row.get(0)).optional()?)
    }

    /// Findings, newest first; of one session or of all.
    pub fn findings(&self, session: Option<&str>, limit: u32) -> Result<Vec<Finding>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT id, session, entry, kind, gravity, text, at_ms FROM findings WHERE ?1 IS NULL OR session = ?1
             ORDER BY at_ms DESC LIMIT ?2",
        )?;
        let read = |row: &Row<'_>| {
            let gravity: String = row.get(4)?;
            let at: i64 = row.get(6)?;
            let time = jiff::Timestamp::from_millisecond(at).unwrap_or_default().to_string();
            Ok((
                gravity,
                Finding {
                    id: row.get(0)?,
                    session: row.get(1)?,
                    entry: row.get(2)?,
                    kind: row.get(3)?,
                    gravity: crate::ledger::entry::Gravity::Note,
                    text: row.get(5)?,
                    time,
                },
            ))
        };
        let rows = statement.query_map(params![session, limit], read)?;
        rows.map(|row| {
            let (gravity, finding) = row?;
            Ok(Finding { gravity: parse("gravity", &format!("\"{gravity}\""))?, ..finding })
        })
        .collect()
    }

    /// How many rows a table has.
    pub fn count(&self, table: Table) -> Result<u64, StoreError> {
        let table = match table {
            Table::Sessions => "sessions",
            Table::Events => "events",
            Table::Decisions => "decisions",
            Table::Launches => "launches",
            Table::Observations => "observations",
            Table::Entries => "entries",
            Table::Findings => "findings",
            Table::Audit => "audit",
        };
        let rows: i64 = self.connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))?;
        Ok(rows as u64)
    }

    fn summary(&self, id: &str) -> Result<SessionSummary, StoreError> {
        let mut statement = self.connection.prepare_cached("SELECT summary FROM sessions WHERE id = ?1")?;
        let text: Option<String> = statement.query_row([id], |row| row.get(0)).optional()?;
        parse("session", &text.ok_or_else(|| StoreError::NoSession(id.to_owned()))?)
    }

    fn entries(&self, statement: &str, session: &str) -> Result<Vec<Entry>, StoreError> {
        let mut statement = self.connection.prepare_cached(statement)?;
        let mut rows = statement.query(params![session, MOST_ENTRIES])?;
        let mut entries = Vec::new();
        while let Some(row) = rows.next()? {
            let mut entry: Entry = parse("entry", &row.get::<_, String>(0)?)?;
            let list = |index: usize| row.get::<_, Option<String>>(index);
            if let (Some(executions), Some(connections), Some(refusals)) = (list(1)?, list(2)?, list(3)?) {
                entry.executions = parse("execution", &executions)?;
                entry.connections = parse("connection", &connections)?;
                entry.refusals = parse("refusal", &refusals)?;
            }
            entries.push(entry);
        }
        Ok(entries)
    }
}

/// A table, to count its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Sessions.
    Sessions,
    /// Hook events.
    Events,
    /// Decisions.
    Decisions,
    /// Launches.
    Launches,
    /// Folded observations.
    Observations,
    /// Entries.
    Entries,
    /// Findings.
    Findings,
    /// Changes by people.
    Audit,
}

fn parse<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|source| StoreError::Malformed { what, source })
}
