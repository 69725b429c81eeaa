//! What is kept: decisions before they are answered, everything else soon after; and what is read back for a person.
//!
//! A database that cannot be opened is no reason not to protect: decisions go on, and the status says what is wrong.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::metrics::Metrics;
use crate::clock::boottime_ns;
use crate::ledger::Clock;
use crate::ledger::entry::{Entry, Finding, Gravity, SessionReport, SessionSummary};
use crate::ledger::join::Change;
use crate::store::{Audit, Event, Reader, Record, Retention, Store, StoreError, Writer};

/// The service's records.
pub struct Records {
    kept: Result<(Writer, Reader), String>,
    /// What a person set, which outlives the service.
    setting: PathBuf,
    by_policy: Retention,
    clock: Clock,
    metrics: Metrics,
}

impl Records {
    /// Opens the database, and says in the log what a person should know of it.
    pub fn open(database: &Path, by_policy: Retention, clock: Clock, metrics: Metrics) -> Records {
        let opened = Store::open(database).and_then(|store| {
            store.notes.iter().for_each(|note| tracing::warn!("{note}"));
            let writer = Writer::start(store)?;
            Ok((writer, Reader::open(database)?))
        });
        let kept = opened.map_err(|error| {
            tracing::error!("nothing is recorded: {error}");
            error.to_string()
        });
        Records { kept, setting: database.with_file_name("retention.json"), by_policy, clock, metrics }
    }

    /// Stored when this returns.
    pub fn durably(&self, changes: Vec<Change>) -> Result<(), String> {
        self.count(&changes);
        let (writer, _) = self.kept.as_ref().map_err(Clone::clone)?;
        writer.durably(changes.into_iter().map(Record::from).collect()).map_err(|error| error.to_string())
    }

    /// Stored soon.
    pub fn eventually(&self, changes: Vec<Change>) {
        self.count(&changes);
        self.write(changes.into_iter().map(Record::from).collect());
    }

    fn write(&self, records: Vec<Record>) {
        let Ok((writer, _)) = &self.kept else { return };
        if let Err(error) = writer.eventually(records) {
            tracing::error!("not recorded: {error}");
        }
    }

    fn count(&self, changes: &[Change]) {
        for change in changes {
            if let Change::Finding(finding) = change {
                self.metrics.finding(&finding.kind);
            }
        }
        if let Ok((writer, _)) = &self.kept {
            self.metrics.queue_depth.with_label_values(&["store"]).set(writer.health().queued as i64);
        }
    }

    /// Something a person should know, that did not come out of the join.
    pub fn finding(&self, kind: &str, session: Option<&str>, text: &str) {
        let finding = Finding {
            id: uuid::Uuid::now_v7().to_string(),
            session: session.unwrap_or_default().to_owned(),
            entry: None,
            kind: kind.to_owned(),
            gravity: Gravity::Warning,
            text: text.to_owned(),
            time: self.clock.wall(boottime_ns()),
        };
        self.eventually(vec![Change::Finding(finding)]);
    }

    /// A hook event that is no decision.
    pub fn event(&self, session: &str, kind: &str, detail: String) {
        let session = session.to_owned();
        self.write(vec![Record::Event(Event { session, kind: kind.to_owned(), tool: None, call_id: None, detail })]);
    }

    /// A change that a person made, or tried to make.
    pub fn audit(&self, actor: &str, action: &str, detail: &str) {
        let audit = Audit { actor: actor.to_owned(), action: action.to_owned(), detail: detail.to_owned() };
        if let Ok((writer, _)) = &self.kept
            && let Err(error) = writer.durably(vec![Record::Audit(audit)])
        {
            tracing::error!("not recorded: {error}");
        }
    }

    /// What `status` says of the database.
    pub fn state(&self) -> String {
        let (writer, _) = match &self.kept {
            Ok(kept) => kept,
            Err(reason) => return format!("not kept: {reason}"),
        };
        let health = writer.health();
        match (&health.failing, health.dropped) {
            (Some(failing), _) => format!("failing ({failing}), {} rows wait", health.backlog),
            (None, 0) => "ok".to_owned(),
            (None, dropped) => format!("ok, but {dropped} rows were dropped earlier"),
        }
    }

    /// How long things are kept, from now on and after a restart.
    pub fn set_retention(&self, event_days: u32, finding_days: u32) -> Result<(), String> {
        let text = serde_json::json!({ "event_days": event_days, "finding_days": finding_days }).to_string();
        let new = self.setting.with_extension("new");
        std::fs::write(&new, text)
            .and_then(|()| std::fs::rename(&new, &self.setting))
            .map_err(|error| format!("{}: {error}", self.setting.display()))?;
        self.retain()
    }

    /// Forgets what is older than a person set, else than the policy says.
    pub fn retain(&self) -> Result<(), String> {
        let (writer, _) = self.kept.as_ref().map_err(Clone::clone)?;
        writer.retain(self.retention()?).map_err(|error| error.to_string())
    }

    fn retention(&self) -> Result<Retention, String> {
        let wrong =
            |reason: String| format!("{}: {reason}: set it anew with `ringfence history keep`", self.setting.display());
        let text = match std::fs::read(&self.setting) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(self.by_policy),
            Err(error) => return Err(wrong(error.to_string())),
        };
        let json: Value = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        let days = |name: &str| json.get(name).and_then(Value::as_u64).and_then(|days| u32::try_from(days).ok());
        match (days("event_days"), days("finding_days")) {
            (Some(event_days), Some(finding_days)) => Ok(Retention { event_days, finding_days }),
            _ => Err(wrong("no days in it".to_owned())),
        }
    }

    /// Forgets everything that was recorded.
    pub fn clear(&self) -> Result<(), String> {
        let (writer, _) = self.kept.as_ref().map_err(Clone::clone)?;
        writer.clear().map_err(|error| error.to_string())
    }

    /// Stores what is queued.
    pub fn flush(&self) {
        if let Ok((writer, _)) = &self.kept
            && let Err(error) = writer.flush()
        {
            tracing::error!("not recorded: {error}");
        }
    }

    fn read<T>(&self, read: impl FnOnce(&Reader) -> Result<T, StoreError>) -> Result<T, String> {
        let (writer, reader) = self.kept.as_ref().map_err(Clone::clone)?;
        writer.flush().map_err(|error| error.to_string())?;
        read(reader).map_err(|error| error.to_string())
    }

    /// Sessions, newest first.
    pub fn sessions(&self, limit: u32) -> Result<Value, String> {
        let sessions = self.read(|reader| reader.sessions(limit.min(1000)))?;
        serde_json::to_value(sessions).map_err(|error| error.to_string())
    }

    /// Findings, newest first.
    pub fn findings(&self, limit: u32) -> Result<Value, String> {
        let findings = self.read(|reader| reader.findings(None, limit.min(1000)))?;
        serde_json::to_value(findings).map_err(|error| error.to_string())
    }

    /// The id of the newest session of a directory, else of all.
    pub fn last(&self, cwd: &Path) -> Result<String, String> {
        self.read(|reader| reader.last_session(Some(cwd)))?.ok_or_else(|| "no session was recorded yet".to_owned())
    }

    /// The id that begins so.
    pub fn named(&self, beginning: &str) -> Result<String, String> {
        self.read(|reader| reader.find_session(beginning))
    }

    /// A session that an earlier service left open, with the entries that may still change.
    pub fn unfinished(&self, id: &str) -> Option<(SessionSummary, Vec<Entry>)> {
        let (_, reader) = self.kept.as_ref().ok()?;
        match reader.open_session(id) {
            Ok(found) => Some(found),
            Err(StoreError::NoSession(_)) => None,
            Err(error) => {
                tracing::warn!("what was recorded of a session earlier cannot be read: {error}");
                None
            }
        }
    }

    /// Where a session's first call was made, as an earlier service recorded it.
    pub fn first_directory(&self, id: &str) -> Option<PathBuf> {
        let (_, reader) = self.kept.as_ref().ok()?;
        reader.first_directory(id).ok().flatten().map(PathBuf::from).filter(|directory| directory.is_absolute())
    }

    /// A session as it was recorded.
    pub fn session(&self, id: &str) -> Result<SessionReport, String> {
        self.read(|reader| reader.session(id))
    }
}
