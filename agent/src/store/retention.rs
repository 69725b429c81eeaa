//! How long things are kept: by age, in small steps, so that nothing waits behind it.
#![forbid(unsafe_code)]

use super::{Store, StoreError, now_ms};

/// Days that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Sessions, events, decisions, entries and what belongs to them.
    pub event_days: u32,
    /// Findings and the audit.
    pub finding_days: u32,
}

impl Default for Retention {
    fn default() -> Self {
        Retention { event_days: 14, finding_days: 30 }
    }
}

/// Rows of one table that one step deletes at most.
const STEP: u32 = 500;
const DAY_MS: i64 = 86_400_000;

/// Table, its key, and the time that counts. A session counts from when it was last heard of.
const BY_EVENT_AGE: &[(&str, &str, &str)] = &[
    ("observations", "entry", "at_ms"),
    ("launches", "(entry, nth)", "at_ms"),
    ("decisions", "entry", "at_ms"),
    ("entries", "id", "started_ms"),
    ("events", "id", "at_ms"),
    ("sessions", "id", "seen_ms"),
];
const BY_FINDING_AGE: &[(&str, &str, &str)] = &[("findings", "id", "at_ms"), ("audit", "id", "at_ms")];

impl Store {
    /// One step of forgetting; `true` when there is more to forget.
    pub(super) fn forget_old(&mut self, retention: Retention) -> Result<bool, StoreError> {
        let now = now_ms();
        let mut more = false;
        let transaction = self.connection.transaction()?;
        for (tables, days) in [(BY_EVENT_AGE, retention.event_days), (BY_FINDING_AGE, retention.finding_days)] {
            let before = now - i64::from(days) * DAY_MS;
            for (table, key, time) in tables {
                let columns = key.trim_matches(['(', ')']);
                let statement = format!(
                    "DELETE FROM {table} WHERE {key} IN (SELECT {columns} FROM {table} WHERE {time} < ?1 ORDER BY {time} LIMIT {STEP})"
                );
                more |= transaction.prepare_cached(&statement)?.execute([before])? as u32 == STEP;
            }
        }
        transaction.commit()?;
        if !more {
            self.connection.execute_batch("PRAGMA incremental_vacuum(1024); PRAGMA optimize;")?;
        }
        Ok(more)
    }
}
