//! The files that rules speak of, held open until the probe has said how the kernel keys them.
//!
//! Each is opened `O_PATH`: nothing is read, no device or FIFO is disturbed, and what was looked at is what gets a rule.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

/// Most files that one session's rules can speak of.
pub const MOST_FILES: usize = 768;
/// Most entries that are read of one directory.
pub const MOST_ENTRIES: usize = 1024;

/// One of [`Files`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Index(pub usize);

/// What is at a path now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing, or nothing that can be looked at.
    Absent,
    /// A directory.
    Directory(Index),
    /// A socket.
    Socket(Index),
    /// Any other file.
    File(Index),
    /// A link, and the path without links that it leads to, there or not.
    Link(PathBuf),
}

/// What the compiler of names asks of the file system.
pub trait Ground {
    /// What is at `path`, whose parents are no links.
    fn look(&mut self, path: &Path) -> Found;
    /// The names in a directory, at most [`MOST_ENTRIES`].
    fn entries(&mut self, directory: &Path) -> Vec<Vec<u8>>;
}

/// Files by the order in which they were opened, each once.
#[derive(Debug, Default)]
pub struct Files {
    opened: Vec<File>,
    by_inode: HashMap<(u64, u64), Index>,
    by_path: HashMap<PathBuf, Found>,
    left_out: usize,
}

impl Files {
    /// Their descriptors, in order.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.opened.iter().map(AsFd::as_fd).collect()
    }

    /// What tells each from any other that has been at its path: device, inode, and when it was made.
    pub fn identities(&self) -> Vec<(u64, u64, Option<std::time::SystemTime>)> {
        let meta = self.opened.iter().filter_map(|file| file.metadata().ok());
        meta.map(|meta| (meta.dev(), meta.ino(), meta.created().ok())).collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.opened.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.opened.is_empty()
    }

    /// How many were left out because there are over [`MOST_FILES`], or none could be opened any more.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// The socket at `path`, through links; nothing else is opened.
    pub fn socket(&mut self, path: &Path) -> Option<Index> {
        std::fs::metadata(path).ok().filter(|meta| meta.file_type().is_socket())?;
        match self.open(path, 0) {
            Found::Socket(index) => Some(index),
            Found::Absent | Found::Directory(_) | Found::File(_) | Found::Link(_) => None,
        }
    }

    /// The regular file at `path`, through links; nothing else is opened.
    pub fn regular(&mut self, path: &Path) -> Option<Index> {
        std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
        match self.open(path, 0) {
            Found::File(index) => Some(index),
            Found::Absent | Found::Directory(_) | Found::Socket(_) | Found::Link(_) => None,
        }
    }

    fn open(&mut self, path: &Path, flags: i32) -> Found {
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_PATH | flags).open(path);
        let file = match opened {
            Ok(file) => file,
            Err(error) => {
                if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
                    self.left_out += 1;
                }
                return Found::Absent;
            }
        };
        let Ok(meta) = file.metadata() else { return Found::Absent };
        let kind = meta.file_type();
        if kind.is_symlink() {
            return Found::Link(target(path));
        }
        let known = self.by_inode.get(&(meta.dev(), meta.ino())).copied();
        let index = match known {
            Some(index) => index,
            None if self.opened.len() == MOST_FILES => {
                self.left_out += 1;
                return Found::Absent;
            }
            None => {
                let index = Index(self.opened.len());
                self.opened.push(file);
                self.by_inode.insert((meta.dev(), meta.ino()), index);
                index
            }
        };
        match () {
            () if kind.is_dir() => Found::Directory(index),
            () if kind.is_socket() => Found::Socket(index),
            () => Found::File(index),
        }
    }
}

impl Ground for Files {
    fn look(&mut self, path: &Path) -> Found {
        if let Some(found) = self.by_path.get(path) {
            return found.clone();
        }
        let found = self.open(path, libc::O_NOFOLLOW);
        self.by_path.insert(path.to_owned(), found.clone());
        found
    }

    fn entries(&mut self, directory: &Path) -> Vec<Vec<u8>> {
        use std::os::unix::ffi::OsStringExt;
        let read = std::fs::read_dir(directory).into_iter().flatten().flatten().take(MOST_ENTRIES);
        read.map(|entry| entry.file_name().into_vec()).collect()
    }
}

/// Where a link leads, without links as far as it is there.
fn target(link: &Path) -> PathBuf {
    if let Ok(real) = std::fs::canonicalize(link) {
        return real;
    }
    let to = std::fs::read_link(link).unwrap_or_default();
    let whole = link.parent().unwrap_or(Path::new("/")).join(to);
    // What is there is resolved; what is not is taken as it is written.
    let mut real = PathBuf::from("/");
    for part in whole.components() {
        match part {
            Component::Normal(name) => {
                real.push(name);
                real = std::fs::canonicalize(&real).unwrap_or(real);
            }
            Component::ParentDir => {
                real.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    real
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_told_apart_and_opened_once() {
        let root = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(root.path()).unwrap();
        std::fs::create_dir(root.join("d")).unwrap();
        std::fs::write(root.join("f"), "").unwrap();
        std::fs::hard_link(root.join("f"), root.join("g")).unwrap();
        std::os::unix::fs::symlink("d/later", root.join("dangling")).unwrap();
        std::os::unix::fs::symlink("f", root.join("link")).unwrap();
        let _listening = std::os::unix::net::UnixListener::bind(root.join("s")).unwrap();
        let mut files = Files::default();
        assert!(matches!(files.look(&root.join("d")), Found::Directory(_)));
        assert_eq!(files.look(&root.join("f")), files.look(&root.join("g")));
        assert!(matches!(files.look(&root.join("s")), Found::Socket(_)));
        assert_eq!(files.look(&root.join("dangling")), Found::Link(root.join("d/later")));
        assert_eq!(files.look(&root.join("none")), Found::Absent);
        assert_eq!(files.regular(&root.join("link")).map(Found::File), Some(files.look(&root.join("f"))));
        assert_eq!(files.socket(&root.join("link")), None);
        assert_eq!((files.len(), files.descriptors().len(), files.left_out()), (3, 3, 0));
    }
}
