//! What a file was at one moment: the evidence for tools that edit inside the host's process.
#![forbid(unsafe_code)]

use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::host::ToolUse;
use crate::ledger::join::FileState;

/// Larger files are told apart by inode, size and modification time alone.
const HASHED_BYTES: u64 = 16 << 20;

/// The file that a call is about to change inside the host's process, if its input names one absolutely.
pub fn target_of(call: &ToolUse) -> Option<PathBuf> {
    let key = match call.tool.as_str() {
        "Write" | "Edit" | "MultiEdit" => "file_path",
        "NotebookEdit" => "notebook_path",
        _ => return None,
    };
    let path = Path::new(call.input.get(key)?.as_str()?);
    path.is_absolute().then(|| path.to_owned())
}

/// How long a file may take to be read: it may lie on a file system that the agent answers for.
const PATIENCE: Duration = Duration::from_secs(1);

/// [`state`] of the file that a call is about to change, off the service's own thread; `None` for a call without one.
pub async fn state_of_target(call: &ToolUse) -> Option<FileState> {
    let path = target_of(call)?;
    let unknown = FileState { path: path.to_string_lossy().into_owned(), content: None };
    let read = tokio::task::spawn_blocking(move || state(&path));
    Some(tokio::time::timeout(PATIENCE, read).await.ok().and_then(Result::ok).unwrap_or(unknown))
}

/// Inode, size and digest of a regular file; anything else, or what cannot be read, counts as not there.
pub fn state(path: &Path) -> FileState {
    FileState { path: path.to_string_lossy().into_owned(), content: content(path) }
}

fn content(path: &Path) -> Option<(u64, u64, [u8; 32])> {
    // The path is the agent's: O_NONBLOCK so that a FIFO there cannot hold the service.
    let file =
        std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).ok()?;
    let meta = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let mut digest = Sha256::new();
    if meta.len() <= HASHED_BYTES {
        let mut chunk = [0u8; 64 << 10];
        let mut rest = file.take(HASHED_BYTES);
        loop {
            match rest.read(&mut chunk).ok()? {
                0 => break,
                n => digest.update(&chunk[..n]),
            }
        }
    } else {
        digest.update(meta.mtime().to_le_bytes());
        digest.update(meta.mtime_nsec().to_le_bytes());
    }
    Some((meta.ino(), meta.len(), digest.finalize().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_content_shows_and_a_fifo_does_not_hold_us() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        assert_eq!(state(&file).content, None);
        std::fs::write(&file, "one").unwrap();
        let before = state(&file);
        std::fs::write(&file, "two").unwrap();
        assert_ne!(before, state(&file));
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(state(&fifo).content, None);
    }
}
