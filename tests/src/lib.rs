//! Shared parts of the suites.
