//! Entries, and the JSON that scripts rely on (schema 1: fields are added, never renamed).
