//! Which version of a host a process runs, read from its files.
#![forbid(unsafe_code)]

use std::path::Path;

/// The version of the Claude Code whose executable this is: from the package beside it, else from a versioned file name.
pub fn claude_code(executable: &Path) -> Option<String> {
    for package in executable.ancestors().skip(1).take(3).map(|dir| dir.join("package.json")) {
        let Ok(text) = read_bounded(&package) else { continue };
        let Ok(json) = serde_json::from_slice::<serde_json::Value>(&text) else { continue };
        let name = json.get("name").and_then(|v| v.as_str()).unwrap_or_default();
        if name.starts_with("@anthropic-ai/claude-code") {
            return json.get("version").and_then(|v| v.as_str()).and_then(plain_version);
        }
    }
    // The native installer keeps each version as a file of that name.
    executable.file_name().and_then(|name| name.to_str()).and_then(plain_version)
}

/// A version of dotted numbers, at most 32 bytes: it becomes a label in reports.
fn plain_version(text: &str) -> Option<String> {
    let plain = text.len() <= 32
        && text.split('.').count() == 3
        && text.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
    plain.then(|| text.to_owned())
}

fn read_bounded(file: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    // A host can be installed in a project: O_NONBLOCK so that a FIFO there cannot hold the service.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let package = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(file)?;
    let mut text = Vec::new();
    package.take(64 << 10).read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_beside_the_executable_names_the_version() {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        let write = |json: &str| std::fs::write(dir.path().join("package.json"), json).unwrap();
        write(r#"{"name": "@anthropic-ai/claude-code", "version": "2.1.332"}"#);
        assert_eq!(claude_code(&bin.join("claude.exe")).as_deref(), Some("2.1.332"));
        write(r#"{"name": "somebody-else", "version": "1.0.0"}"#);
        assert_eq!(claude_code(&bin.join("claude.exe")), None);
        write(r#"{"name": "@anthropic-ai/claude-code", "version": "2.1.332\nrm"}"#);
        assert_eq!(claude_code(&bin.join("claude.exe")), None);
        assert_eq!(claude_code(Path::new("/opt/versions/2.1.197")).as_deref(), Some("2.1.197"));
    }
}
