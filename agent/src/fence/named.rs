//! The places that fence and policy files name: `~/…`, `@name/…`, and what they are for one session.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use super::compile::ToolPlaces;
use super::tree::Tree;

/// What the names stand for.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    /// `~`.
    pub home: &'a Path,
    /// `@tree`, `@gitdir`.
    pub tree: &'a Tree,
    /// `@temporary`.
    pub temporary: &'a Path,
    /// `@host`.
    pub host_directories: &'a [PathBuf],
    /// `@cargo` and the like.
    pub tools: &'a ToolPlaces,
    /// Any other `@name`: several lines of one name are several places.
    pub others: &'a [(&'static str, PathBuf)],
}

impl Named<'_> {
    /// The paths that a name stands for: none for a place that this session does not have; `None` for what is no name.
    pub fn expand(&self, name: &str) -> Option<Vec<PathBuf>> {
        if name.starts_with('/') {
            return Some(vec![PathBuf::from(name)]);
        }
        if let Some(rest) = name.strip_prefix("~/") {
            return Some(vec![self.home.join(rest)]);
        }
        let (place, rest) = name.strip_prefix('@')?.split_once('/').unwrap_or((&name[1..], ""));
        let bases: Vec<PathBuf> = match place {
            "tree" => vec![self.tree.top.clone()],
            "gitdir" => self.tree.git.clone(),
            "temporary" => vec![self.temporary.to_owned()],
            "host" => self.host_directories.to_vec(),
            other => match self.others.iter().any(|(name, _)| *name == other) {
                true => self.others.iter().filter(|(name, _)| *name == other).map(|(_, path)| path.clone()).collect(),
                false => vec![self.tools.get(other)?.to_owned()],
            },
        };
        Some(bases.into_iter().map(|base| if rest.is_empty() { base } else { base.join(rest) }).collect())
    }
}
