//! From any older schema to this one, by `user_version`.
#![forbid(unsafe_code)]

use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rusqlite::Connection;

use super::{StoreError, beside, schema};

/// Each step brings the schema from its index to the next number. Steps are never changed once released.
pub(super) const ALL: &[&str] = &[schema::FIRST];

pub(super) fn bring_up(
    connection: &mut Connection,
    path: &Path,
    steps: &[&str],
    notes: &mut Vec<String>,
) -> Result<(), StoreError> {
    let known = steps.len() as u32;
    let found: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let application: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let tables: u32 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if application != schema::APPLICATION_ID && (found, application, tables) != (0, 0, 0) {
        return Err(StoreError::NotOurs(path.to_owned()));
    }
    if found > known {
        return Err(StoreError::NewerSchema { path: path.to_owned(), found, known });
    }
    if found == known {
        return Ok(());
    }
    if found > 0 {
        let copy = copy_first(connection, path, found)?;
        notes.push(format!("the database was brought from schema {found} to {known}; the old one is kept as {copy}"));
    }
    let transaction = connection.transaction()?;
    for step in &steps[found as usize..] {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "application_id", schema::APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", known)?;
    transaction.commit()?;
    Ok(())
}

/// A whole copy, private, before anything is changed. An older copy of the same schema is replaced: it was left by a
/// migration that did not finish.
fn copy_first(connection: &Connection, path: &Path, found: u32) -> Result<String, StoreError> {
    let copy = beside(path, &format!("schema-{found}"));
    let failed = |error| StoreError::File(copy.clone(), error);
    if copy.exists() {
        std::fs::remove_file(&copy).map_err(failed)?;
    }
    // `VACUUM INTO` accepts an empty file, and keeps its mode.
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&copy).map_err(failed)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    let name = copy.to_string_lossy().into_owned();
    connection.execute("VACUUM INTO ?1", [&name])?;
    Ok(name)
}
