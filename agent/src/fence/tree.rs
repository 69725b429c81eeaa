//! The working tree (W): what a session may write, found once from the directory it starts in.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Longest git file that is read, in bytes.
const GIT_FILE_BYTES: u64 = 8 << 10;

/// A working tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Its top, without links.
    pub top: PathBuf,
    /// Git directories outside of it that belong to it: a worktree's own and the common one, a submodule's.
    pub git: Vec<PathBuf>,
}

/// Why a directory gives no working tree.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TreeError {
    /// It is `/`, the home, or above it.
    #[error("{0} is no working tree: it is /, the home or above it. Start in a project's directory")]
    TooWide(PathBuf),
    /// It is not there, or is no directory.
    #[error("{0} is no directory that can be resolved")]
    Unresolved(PathBuf),
}

/// The working tree of a session that starts in `cwd`: git's toplevel, else `cwd` itself.
pub fn resolve(cwd: &Path, home: &Path) -> Result<Tree, TreeError> {
    let unresolved = || TreeError::Unresolved(cwd.to_owned());
    let cwd = fs::canonicalize(cwd).map_err(|_| unresolved())?;
    if !cwd.is_dir() {
        return Err(unresolved());
    }
    let home = fs::canonicalize(home).unwrap_or_else(|_| home.to_owned());
    let too_wide = |dir: &Path| home.starts_with(dir);
    if let Some(top) = cwd.ancestors().find(|dir| is_toplevel(dir)).filter(|top| !too_wide(top)) {
        return Ok(Tree { top: top.to_owned(), git: outside_git(top) });
    }
    if too_wide(&cwd) {
        return Err(TreeError::TooWide(cwd));
    }
    Ok(Tree { top: cwd, git: Vec::new() })
}

fn is_toplevel(dir: &Path) -> bool {
    let git = dir.join(".git");
    match fs::symlink_metadata(&git) {
        Ok(meta) if meta.is_dir() => git.join("HEAD").symlink_metadata().is_ok(),
        Ok(meta) => meta.is_file(),
        Err(_) => false,
    }
}

/// The git directories that a `.git` file leads to, if they lead back.
///
/// A `.git` file is a file of the tree, and anybody who wrote the tree could name any directory in it. So the directory
/// must say that it belongs here: a worktree's `gitdir` file, or `core.worktree` of a submodule's config.
fn outside_git(top: &Path) -> Vec<PathBuf> {
    let file = top.join(".git");
    let named = read_small(&file).and_then(|text| {
        let path = text.strip_prefix("gitdir:")?.trim().to_owned();
        fs::canonicalize(top.join(path)).ok()
    });
    let Some(directory) = named.filter(|dir| dir.join("HEAD").symlink_metadata().is_ok()) else { return Vec::new() };
    if directory.starts_with(top) {
        return Vec::new();
    }
    let same = |path: PathBuf, other: &Path| fs::canonicalize(path).is_ok_and(|path| path == other);
    if let Some(back) = read_small(&directory.join("gitdir")) {
        if !same(directory.join(back.trim()), &file) {
            return Vec::new();
        }
        // <common>/worktrees/<name>, and its commondir file says the same.
        let common = read_small(&directory.join("commondir"))
            .and_then(|text| fs::canonicalize(directory.join(text.trim())).ok())
            .filter(|common| directory.parent() == Some(common.join("worktrees").as_path()));
        return common.into_iter().collect();
    }
    let in_modules = directory.components().any(|part| part == Component::Normal("modules".as_ref()));
    let back = read_small(&directory.join("config")).and_then(|config| worktree_of(&config));
    if in_modules && back.is_some_and(|back| same(directory.join(back), top)) {
        return vec![directory];
    }
    Vec::new()
}

/// `core.worktree` of a git config.
fn worktree_of(config: &str) -> Option<String> {
    let mut in_core = false;
    for line in config.lines().map(str::trim) {
        if line.starts_with('[') {
            in_core = line.eq_ignore_ascii_case("[core]");
        } else if in_core
            && let Some((key, value)) = line.split_once('=')
            && key.trim().eq_ignore_ascii_case("worktree")
        {
            return Some(value.trim().trim_matches('"').to_owned());
        }
    }
    None
}

fn read_small(file: &Path) -> Option<String> {
    let meta = fs::symlink_metadata(file).ok()?;
    if !meta.is_file() || meta.len() > GIT_FILE_BYTES {
        return None;
    }
    fs::read_to_string(file).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(root: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let file = root.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
    }

    #[test]
    fn the_toplevel_wins_over_the_directory_inside() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        make(&root, &[("home/p/.git/HEAD", "x"), ("home/p/src/a", "")]);
        let tree = resolve(&root.join("home/p/src"), &root.join("home")).unwrap();
        assert_eq!(tree, Tree { top: root.join("home/p"), git: vec![] });
    }

    #[test]
    fn home_root_and_what_is_above_are_never_a_tree() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        make(&root, &[("up/home/.git/HEAD", "x"), ("up/home/plain/a", "")]);
        let home = root.join("up/home");
        for wide in [Path::new("/"), &root.join("up"), &home] {
            assert!(matches!(resolve(wide, &home), Err(TreeError::TooWide(_))), "{wide:?}");
        }
        // A repository of dotfiles in the home: the directory itself is the tree.
        assert_eq!(resolve(&home.join("plain"), &home).unwrap().top, home.join("plain"));
    }

    #[test]
    fn a_worktree_brings_its_common_directory_only_if_that_points_back() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let back = root.join("h/w/.git");
        let gitdir = format!("gitdir: {}\n", root.join("h/main/.git/worktrees/w").display());
        make(
            &root,
            &[
                ("h/main/.git/HEAD", "x"),
                ("h/main/.git/worktrees/w/HEAD", "x"),
                ("h/main/.git/worktrees/w/commondir", "../..\n"),
                ("h/main/.git/worktrees/w/gitdir", &format!("{}\n", back.display())),
                ("h/w/.git", &gitdir),
                ("h/forged/.git", &gitdir),
            ],
        );
        let home = root.join("h");
        assert_eq!(resolve(&root.join("h/w"), &home).unwrap().git, [root.join("h/main/.git")]);
        assert_eq!(resolve(&root.join("h/forged"), &home).unwrap().git, Vec::<PathBuf>::new());
    }

    #[test]
    fn a_submodule_brings_its_directory_only_if_its_config_points_back() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        make(
            &root,
            &[
                ("h/p/.git/HEAD", "x"),
                ("h/p/.git/modules/s/HEAD", "x"),
                ("h/p/.git/modules/s/config", "[core]\n\tworktree = ../../../s\n"),
                ("h/p/s/.git", "gitdir: ../.git/modules/s\n"),
                ("h/forged/.git", "gitdir: ../p/.git/modules/s\n"),
            ],
        );
        let home = root.join("h");
        assert_eq!(resolve(&root.join("h/p/s"), &home).unwrap().git, [root.join("h/p/.git/modules/s")]);
        assert!(resolve(&root.join("h/forged"), &home).unwrap().git.is_empty());
    }
}
