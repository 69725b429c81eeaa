//! The tables, first version. Every text column is bounded; nothing raw is ever put into one.
#![forbid(unsafe_code)]

/// Marks the file as ours (`PRAGMA application_id`).
pub(super) const APPLICATION_ID: i32 = 0x5246_4e43;

/// Longest text of a plain column, in bytes.
pub(super) const TEXT: usize = 4096;
/// Longest JSON of a list or a receipt, in bytes.
pub(super) const JSON: usize = 1 << 20;

/// All tables, those that refer to others first.
pub(super) const TABLES: &[&str] =
    &["observations", "launches", "decisions", "findings", "entries", "events", "sessions", "audit"];

pub(super) const FIRST: &str = "
CREATE TABLE sessions (
  id TEXT PRIMARY KEY CHECK (length(id) <= 256),
  host TEXT NOT NULL CHECK (length(host) <= 64),
  mark INTEGER,
  started_ms INTEGER NOT NULL,
  seen_ms INTEGER NOT NULL,
  ended_ms INTEGER,
  summary TEXT NOT NULL CHECK (length(summary) <= 65536)
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_by_start ON sessions (started_ms);
CREATE INDEX sessions_open ON sessions (seen_ms) WHERE ended_ms IS NULL;

CREATE TABLE events (
  id INTEGER PRIMARY KEY,
  session TEXT NOT NULL CHECK (length(session) <= 256),
  at_ms INTEGER NOT NULL,
  kind TEXT NOT NULL CHECK (length(kind) <= 64),
  tool TEXT CHECK (length(tool) <= 256),
  call_id TEXT CHECK (length(call_id) <= 256),
  detail TEXT NOT NULL CHECK (length(detail) <= 4096)
) STRICT;
CREATE INDEX events_by_time ON events (at_ms);
CREATE INDEX events_by_session ON events (session, at_ms);

CREATE TABLE entries (
  id TEXT PRIMARY KEY CHECK (length(id) <= 64),
  session TEXT NOT NULL CHECK (length(session) <= 256),
  call_id TEXT CHECK (length(call_id) <= 256),
  started_ms INTEGER NOT NULL,
  verdict TEXT NOT NULL CHECK (length(verdict) <= 32),
  evidence TEXT NOT NULL CHECK (length(evidence) <= 32),
  settled INTEGER NOT NULL,
  json TEXT NOT NULL CHECK (length(json) <= 1048576)
) STRICT, WITHOUT ROWID;
CREATE INDEX entries_by_session ON entries (session, started_ms);
CREATE INDEX entries_by_time ON entries (started_ms);

CREATE TABLE decisions (
  entry TEXT PRIMARY KEY CHECK (length(entry) <= 64),
  session TEXT NOT NULL CHECK (length(session) <= 256),
  call_id TEXT NOT NULL CHECK (length(call_id) <= 256),
  at_ms INTEGER NOT NULL,
  tool TEXT NOT NULL CHECK (length(tool) <= 256),
  outcome TEXT NOT NULL CHECK (length(outcome) <= 32),
  reason TEXT NOT NULL CHECK (length(reason) <= 4096),
  rules TEXT NOT NULL CHECK (length(rules) <= 4096),
  source TEXT NOT NULL CHECK (length(source) <= 64),
  policy TEXT NOT NULL CHECK (length(policy) <= 256),
  fence TEXT NOT NULL CHECK (length(fence) <= 256),
  summary TEXT NOT NULL CHECK (length(summary) <= 4096),
  command_digest TEXT CHECK (length(command_digest) <= 64),
  cwd TEXT CHECK (length(cwd) <= 4096)
) STRICT, WITHOUT ROWID;
CREATE INDEX decisions_by_time ON decisions (at_ms);
CREATE INDEX decisions_by_session ON decisions (session, at_ms);

CREATE TABLE launches (
  entry TEXT NOT NULL CHECK (length(entry) <= 64),
  nth INTEGER NOT NULL,
  session TEXT NOT NULL CHECK (length(session) <= 256),
  at_ms INTEGER NOT NULL,
  number INTEGER,
  pid INTEGER NOT NULL,
  start INTEGER NOT NULL,
  fence TEXT NOT NULL CHECK (length(fence) <= 256),
  plan TEXT CHECK (length(plan) <= 4096),
  receipt TEXT NOT NULL CHECK (length(receipt) <= 1048576),
  exit_code INTEGER,
  exit_signal INTEGER,
  PRIMARY KEY (entry, nth)
) STRICT, WITHOUT ROWID;
CREATE INDEX launches_by_time ON launches (at_ms);

CREATE TABLE observations (
  entry TEXT PRIMARY KEY CHECK (length(entry) <= 64),
  at_ms INTEGER NOT NULL,
  executions TEXT NOT NULL CHECK (length(executions) <= 1048576),
  connections TEXT NOT NULL CHECK (length(connections) <= 1048576),
  refusals TEXT NOT NULL CHECK (length(refusals) <= 1048576)
) STRICT, WITHOUT ROWID;
CREATE INDEX observations_by_time ON observations (at_ms);

CREATE TABLE findings (
  id TEXT PRIMARY KEY CHECK (length(id) <= 64),
  session TEXT NOT NULL CHECK (length(session) <= 256),
  entry TEXT CHECK (length(entry) <= 64),
  kind TEXT NOT NULL CHECK (length(kind) <= 64),
  gravity TEXT NOT NULL CHECK (length(gravity) <= 32),
  text TEXT NOT NULL CHECK (length(text) <= 4096),
  at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX findings_by_time ON findings (at_ms);
CREATE INDEX findings_by_session ON findings (session, at_ms);

CREATE TABLE audit (
  id INTEGER PRIMARY KEY,
  at_ms INTEGER NOT NULL,
  actor TEXT NOT NULL CHECK (length(actor) <= 256),
  action TEXT NOT NULL CHECK (length(action) <= 256),
  detail TEXT NOT NULL CHECK (length(detail) <= 4096)
) STRICT;
CREATE INDEX audit_by_time ON audit (at_ms);
";
