//! What may happen: policy files, reading shell, rules, and the judge.

pub mod judge;
pub mod rules;
pub mod shell;
