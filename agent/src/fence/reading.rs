//! "Read everything but the credentials", for a mechanism that can only allow: list the way to each credential, and
//! grant what lies beside it.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use globset::Glob;

use super::plan::rights;

/// Largest file that is searched for `only_if_contains`, in bytes.
const SEARCHED_BYTES: u64 = 256 << 10;

/// A path that must not be readable.
#[derive(Clone, Debug)]
pub struct Excluded {
    /// Absolute; nothing needs to be there.
    pub path: PathBuf,
    /// Globs for what of a directory can be read all the same.
    pub readable: Vec<String>,
    /// A file counts only when it holds one of these.
    pub only_if_contains: Vec<String>,
}

/// What can be read.
#[derive(Debug, Default)]
pub struct Reading {
    /// Path and rights, for Landlock rules.
    pub grants: Vec<(PathBuf, u64)>,
    /// Entries beyond the limit: not readable.
    pub left_out: Vec<PathBuf>,
    /// The excluded paths without links, existing or not.
    pub excluded: BTreeSet<PathBuf>,
}

/// Grants for everything but `excluded`, at most `most` of them. What lies under `home` gives way first, least
/// recently used first.
pub fn everything_but(excluded: &[Excluded], home: &Path, most: usize) -> Reading {
    let mut closed: BTreeMap<PathBuf, &[String]> = BTreeMap::new();
    for one in excluded {
        // Without its directory there is nothing to protect, and one that is made later is a sibling: unreadable.
        let Some(place) = without_links(&one.path) else { continue };
        if !one.only_if_contains.is_empty() && !contains_one(&place, &one.only_if_contains) {
            continue;
        }
        if let Ok(target) = fs::canonicalize(&place)
            && target != place
        {
            closed.insert(target, &[]);
        }
        closed.insert(place, &one.readable);
    }
    if closed.is_empty() {
        return Reading { grants: vec![(PathBuf::from("/"), rights::READ)], ..Reading::default() };
    }
    let open: BTreeSet<&Path> = closed.keys().flat_map(|path| path.ancestors().skip(1)).collect();
    let mut found: Vec<(PathBuf, fs::Metadata)> = Vec::new();
    for directory in &open {
        if closed.keys().any(|path| directory.starts_with(path)) {
            continue;
        }
        for (path, meta) in entries(directory) {
            if let Some(readable) = closed.get(&path) {
                let globs: Vec<_> = readable.iter().filter_map(|glob| Glob::new(glob).ok()).collect();
                let matchers: Vec<_> = globs.iter().map(Glob::compile_matcher).collect();
                let named =
                    |path: &Path| path.file_name().is_some_and(|name| matchers.iter().any(|m| m.is_match(name)));
                if meta.is_dir() {
                    found.extend(entries(&path).into_iter().filter(|(path, _)| named(path)));
                }
            } else if !open.contains(path.as_path()) {
                found.push((path, meta));
            }
        }
    }
    // Following a link needs no right, and what it leads to has its own.
    found.retain(|(path, meta)| !meta.is_symlink() && usable(path));
    let used = |meta: &fs::Metadata| meta.atime().max(meta.mtime());
    found.sort_by_key(|(path, meta)| (path.starts_with(home), std::cmp::Reverse(used(meta)), path.clone()));
    let left_out = found.split_off(found.len().min(most.saturating_sub(1)));
    let mut grants = vec![(PathBuf::from("/"), rights::LIST)];
    grants.extend(found.into_iter().map(|(path, _)| (path, rights::READ)));
    Reading {
        grants,
        left_out: left_out.into_iter().map(|(path, _)| path).collect(),
        excluded: closed.into_keys().collect(),
    }
}

/// The path with its directory's links resolved; `None` if that is not there.
fn without_links(path: &Path) -> Option<PathBuf> {
    Some(fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?))
}

fn entries(directory: &Path) -> Vec<(PathBuf, fs::Metadata)> {
    let Ok(list) = fs::read_dir(directory) else { return Vec::new() };
    list.flatten().filter_map(|entry| Some((entry.path(), entry.metadata().ok()?))).collect()
}

/// Ordinary permissions refuse the rest anyway, and a rule costs 3 µs.
fn usable(path: &Path) -> bool {
    use nix::unistd::{AccessFlags, eaccess};
    eaccess(path, AccessFlags::R_OK).is_ok() || eaccess(path, AccessFlags::X_OK).is_ok()
}

fn contains_one(file: &Path, texts: &[String]) -> bool {
    match fs::metadata(file) {
        // What cannot be read whole counts as holding a secret; a FIFO would hold the service.
        Ok(meta) if !meta.is_file() || meta.len() > SEARCHED_BYTES => true,
        Ok(_) => fs::read(file).map_or(true, |bytes| {
            let text = String::from_utf8_lossy(&bytes);
            texts.iter().any(|part| text.contains(part.as_str()))
        }),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excluded(path: PathBuf, readable: &[&str]) -> Excluded {
        Excluded { path, readable: readable.iter().map(|s| (*s).to_owned()).collect(), only_if_contains: vec![] }
    }

    fn covers(reading: &Reading, path: &Path) -> bool {
        reading.grants.iter().any(|(grant, access)| path.starts_with(grant) && *access == rights::READ)
    }

    #[test]
    fn siblings_are_readable_and_the_credential_is_not() {
        let root = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(root.path()).unwrap();
        for file in [".ssh/id_a", ".ssh/id_a.pub", ".ssh/config", ".config/git/x", ".config/gh/hosts.yml", "p/a", ".x"]
        {
            fs::create_dir_all(home.join(file).parent().unwrap()).unwrap();
            fs::write(home.join(file), "t").unwrap();
        }
        let list = [
            excluded(home.join(".ssh"), &["config", "*.pub"]),
            excluded(home.join(".config/gh/hosts.yml"), &[]),
            excluded(home.join(".none/token"), &[]),
        ];
        let reading = everything_but(&list, &home, 150);
        for yes in [".ssh/config", ".ssh/id_a.pub", ".config/git/x", "p/a", ".x"] {
            assert!(covers(&reading, &home.join(yes)), "{yes}");
        }
        for no in [".ssh/id_a", ".config/gh/hosts.yml"] {
            assert!(!covers(&reading, &home.join(no)), "{no}");
        }
        assert!(covers(&reading, Path::new("/usr/bin/env")));
        assert!(reading.left_out.is_empty());
    }

    #[test]
    fn beyond_the_limit_the_homes_oldest_entries_are_left_out_and_named() {
        let root = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(root.path()).unwrap();
        fs::create_dir(home.join(".ssh")).unwrap();
        for index in 0..200 {
            fs::write(home.join(format!("f{index}")), "").unwrap();
        }
        let reading = everything_but(&[excluded(home.join(".ssh"), &[])], &home, 100);
        assert_eq!(reading.grants.len(), 100);
        assert!(reading.left_out.len() > 100);
        assert!(reading.left_out.iter().all(|path| path.starts_with(&home)));
        assert!(covers(&reading, Path::new("/usr/bin/env")));
    }

    #[test]
    fn a_linked_credential_is_excluded_where_it_really_is() {
        let root = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(root.path()).unwrap();
        fs::create_dir(home.join("dotfiles")).unwrap();
        fs::write(home.join("dotfiles/netrc"), "secret").unwrap();
        fs::write(home.join("dotfiles/vimrc"), "").unwrap();
        std::os::unix::fs::symlink("dotfiles/netrc", home.join(".netrc")).unwrap();
        let reading = everything_but(&[excluded(home.join(".netrc"), &[])], &home, 150);
        assert!(!covers(&reading, &home.join("dotfiles/netrc")));
        assert!(covers(&reading, &home.join("dotfiles/vimrc")));
    }

    #[test]
    fn a_file_without_the_text_is_no_credential() {
        let root = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(root.path()).unwrap();
        fs::write(home.join(".npmrc"), "save-exact=true").unwrap();
        let mut one = excluded(home.join(".npmrc"), &[]);
        one.only_if_contains = vec!["_auth".into()];
        assert_eq!(everything_but(&[one.clone()], &home, 150).grants, [(PathBuf::from("/"), rights::READ)]);
        fs::write(home.join(".npmrc"), "//r/:_authToken=x").unwrap();
        assert!(!covers(&everything_but(&[one], &home, 150), &home.join(".npmrc")));
    }

    #[test]
    fn nothing_excluded_is_one_rule() {
        assert_eq!(everything_but(&[], Path::new("/h"), 150).grants, [(PathBuf::from("/"), rights::READ)]);
    }
}
