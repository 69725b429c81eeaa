//! Shared parts of the suites: the harness, people and stages to run things as and from, real hosts and their scripted model.
#![forbid(unsafe_code)]

pub mod host;
pub mod model;
pub mod person;
pub mod running;
pub mod scene;
pub mod stage;
pub mod suite;
