//! What is stored, row by row. Every text is cut to its column's bound before it gets there.
#![forbid(unsafe_code)]

use rusqlite::{Connection, params};
use serde::Serialize;

use super::{StoreError, now_ms, schema};
use crate::ledger::entry::{Entry, Finding, LaunchRecord, SessionSummary};
use crate::ledger::join::Change;

/// Something to store.
#[derive(Clone, Debug)]
pub enum Record {
    /// What the ledger said.
    Change(Change),
    /// A hook event that is no decision.
    Event(Event),
    /// A change that a person made, or tried to make.
    Audit(Audit),
}

impl From<Change> for Record {
    fn from(change: Change) -> Record {
        Record::Change(change)
    }
}

/// A hook event, without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The session.
    pub session: String,
    /// `session_start`, `prompt`, `config_change`, ….
    pub kind: String,
    /// The tool, if it is about one.
    pub tool: Option<String>,
    /// The call, if it is about one.
    pub call_id: Option<String>,
    /// One redacted line.
    pub detail: String,
}

/// Who changed what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// `uid 1000, polkit`, `service`, ….
    pub actor: String,
    /// A fixed word: `mode`, `clear_history`, ….
    pub action: String,
    /// One redacted line.
    pub detail: String,
}

impl Record {
    pub(super) fn write(&self, to: &Connection) -> Result<(), StoreError> {
        match self {
            Record::Change(Change::Session(summary)) => session(to, summary),
            Record::Change(Change::Entry { session, entry, opened: _, settled }) => {
                self::entry(to, session, entry, *settled)
            }
            Record::Change(Change::Retracted { session: _, entry }) => retracted(to, entry),
            Record::Change(Change::Finding(found)) => finding(to, found),
            Record::Event(event) => self::event(to, event),
            Record::Audit(audit) => self::audit(to, audit),
        }
    }
}

fn session(to: &Connection, summary: &SessionSummary) -> Result<(), StoreError> {
    let ended = summary.ended.as_deref().map(milliseconds);
    to.prepare_cached(
        "INSERT INTO sessions (id, host, mark, started_ms, seen_ms, ended_ms, summary) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT (id) DO UPDATE SET mark = ?3, seen_ms = ?5, ended_ms = ?6, summary = ?7",
    )?
    .execute(params![
        cut(&summary.id, 256),
        cut(&summary.host, 64),
        summary.mark.map(|mark| mark as i64),
        milliseconds(&summary.started),
        now_ms(),
        ended,
        json("session", summary)?,
    ])?;
    Ok(())
}

fn entry(to: &Connection, session: &str, entry: &Entry, settled: bool) -> Result<(), StoreError> {
    let at = milliseconds(&entry.started);
    let session = cut(session, 256);
    // The lists are a row of their own, so that what changes often does not rewrite what does not.
    let mut slim = entry.clone();
    let executions = json("execution", &std::mem::take(&mut slim.executions))?;
    let connections = json("connection", &std::mem::take(&mut slim.connections))?;
    let refusals = json("refusal", &std::mem::take(&mut slim.refusals))?;
    to.prepare_cached(
        "INSERT INTO entries (id, session, call_id, started_ms, verdict, evidence, settled, json)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
         ON CONFLICT (id) DO UPDATE SET verdict = ?5, evidence = ?6, settled = ?7, json = ?8",
    )?
    .execute(params![
        entry.id,
        session,
        entry.call_id.as_deref().map(|id| cut(id, 256)),
        at,
        word(&entry.verdict)?,
        word(&entry.evidence)?,
        settled,
        json("entry", &slim)?,
    ])?;
    if let (Some(decision), Some(call)) = (&entry.decision, &entry.call_id) {
        to.prepare_cached(
            "INSERT INTO decisions (entry, session, call_id, at_ms, tool, outcome, reason, rules, source, policy, fence, summary, command_digest, cwd)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
             ON CONFLICT (entry) DO UPDATE SET outcome = ?6, reason = ?7, rules = ?8, source = ?9",
        )?
        .execute(params![
            entry.id,
            session,
            cut(call, 256),
            at,
            cut(&entry.tool, 256),
            word(&decision.outcome)?,
            cut(&decision.reason, schema::TEXT),
            cut(&decision.rules.join(" "), schema::TEXT),
            word(&decision.source)?,
            cut(&decision.policy, 256),
            cut(&decision.fence, 256),
            cut(&entry.summary, schema::TEXT),
            entry.command_digest,
            entry.cwd.as_deref().map(|cwd| cut(cwd, schema::TEXT)),
        ])?;
    }
    for (nth, record) in entry.launch.iter().chain(&entry.other_launches).enumerate() {
        launch(to, &entry.id, nth, session, at, record)?;
    }
    if !(entry.executions.is_empty() && entry.connections.is_empty() && entry.refusals.is_empty()) {
        to.prepare_cached(
            "INSERT INTO observations (entry, at_ms, executions, connections, refusals) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (entry) DO UPDATE SET executions = ?3, connections = ?4, refusals = ?5",
        )?
        .execute(params![entry.id, at, executions, connections, refusals])?;
    }
    Ok(())
}

fn launch(
    to: &Connection,
    entry: &str,
    nth: usize,
    session: &str,
    at: i64,
    launch: &LaunchRecord,
) -> Result<(), StoreError> {
    to.prepare_cached(
        "INSERT INTO launches (entry, nth, session, at_ms, number, pid, start, fence, plan, receipt, exit_code, exit_signal)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
         ON CONFLICT (entry, nth) DO UPDATE SET number = ?5, pid = ?6, start = ?7, fence = ?8, plan = ?9, receipt = ?10, exit_code = ?11, exit_signal = ?12",
    )?
    .execute(params![
        entry,
        nth as i64,
        session,
        at,
        launch.number.map(|number| number as i64),
        launch.pid,
        launch.start as i64,
        cut(&launch.fence, 256),
        launch.plan.as_deref().map(|plan| cut(plan, schema::TEXT)),
        json("receipt", &launch.receipt)?,
        launch.exit.map(|exit| exit.code),
        launch.exit.and_then(|exit| exit.signal),
    ])?;
    Ok(())
}

fn retracted(to: &Connection, entry: &str) -> Result<(), StoreError> {
    for statement in [
        "DELETE FROM entries WHERE id = ?1",
        "DELETE FROM decisions WHERE entry = ?1",
        "DELETE FROM launches WHERE entry = ?1",
        "DELETE FROM observations WHERE entry = ?1",
        "DELETE FROM findings WHERE entry = ?1",
    ] {
        to.prepare_cached(statement)?.execute([entry])?;
    }
    Ok(())
}

fn finding(to: &Connection, finding: &Finding) -> Result<(), StoreError> {
    to.prepare_cached(
        "INSERT INTO findings (id, session, entry, kind, gravity, text, at_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT (id) DO NOTHING",
    )?
    .execute(params![
        finding.id,
        cut(&finding.session, 256),
        finding.entry,
        cut(&finding.kind, 64),
        word(&finding.gravity)?,
        cut(&finding.text, schema::TEXT),
        milliseconds(&finding.time),
    ])?;
    Ok(())
}

fn event(to: &Connection, event: &Event) -> Result<(), StoreError> {
    let Event { session, kind, tool, call_id, detail } = event;
    to.prepare_cached(
        "INSERT INTO events (session, at_ms, kind, tool, call_id, detail) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute(params![
        cut(session, 256),
        now_ms(),
        cut(kind, 64),
        tool.as_deref().map(|tool| cut(tool, 256)),
        call_id.as_deref().map(|call| cut(call, 256)),
        cut(detail, schema::TEXT),
    ])?;
    Ok(())
}

fn audit(to: &Connection, audit: &Audit) -> Result<(), StoreError> {
    let Audit { actor, action, detail } = audit;
    to.prepare_cached("INSERT INTO audit (at_ms, actor, action, detail) VALUES (?1, ?2, ?3, ?4)")?.execute(params![
        now_ms(),
        cut(actor, 256),
        cut(action, 256),
        cut(detail, schema::TEXT),
    ])?;
    Ok(())
}

/// The longest beginning of at most `most` bytes.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

fn json<T: Serialize>(what: &'static str, value: &T) -> Result<String, StoreError> {
    let text = serde_json::to_string(value).map_err(|source| StoreError::Malformed { what, source })?;
    debug_assert!(text.len() <= schema::JSON, "the ledger bounds what it lists");
    Ok(text)
}

/// The word that a plain enum is written as.
fn word<T: Serialize>(value: &T) -> Result<String, StoreError> {
    Ok(json("word", value)?.trim_matches('"').to_owned())
}

fn milliseconds(rfc3339: &str) -> i64 {
    rfc3339.parse::<jiff::Timestamp>().map_or_else(|_| now_ms(), |time| time.as_millisecond())
}
