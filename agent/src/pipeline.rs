//! The way of one tool call, from the hook to the ledger. Read this first.
