//! A cpio archive in the format "newc", as the kernel unpacks it into its first root directory.

use std::io::{self, Write};

const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// An archive that is being written; everything in it is root's.
pub struct Archive<W> {
    out: W,
    written: usize,
    number: u32,
}

impl<W: Write> Archive<W> {
    /// An empty archive.
    pub fn new(out: W) -> Archive<W> {
        Archive { out, written: 0, number: 0 }
    }

    /// Adds a directory; its parents come before it.
    pub fn directory(&mut self, path: &str, mode: u32) -> io::Result<()> {
        self.entry(path, DIRECTORY | mode, &[])
    }

    /// Adds a file.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entry(path, FILE | mode, content)
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.entry(path, LINK | 0o777, target.as_bytes())
    }

    /// Ends the archive.
    pub fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, &[])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.number += 1;
        let size = u32::try_from(content.len()).map_err(|_| io::Error::other(format!("{path} is too large")))?;
        let name = path.trim_start_matches('/');
        let length = name.len() as u32 + 1;
        // Inode, mode, uid, gid, links, time, size, four device numbers, length of the name, and a checksum that newc has not.
        let fields = [self.number, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, length, 0];
        let mut header = String::from("070701");
        fields.iter().for_each(|field| header.push_str(&format!("{field:08x}")));
        self.put(header.as_bytes())?;
        self.put(name.as_bytes())?;
        self.put(&[0])?;
        self.pad()?;
        self.put(content)?;
        self.pad()
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len();
        self.out.write_all(bytes)
    }

    fn pad(&mut self) -> io::Result<()> {
        self.put(&[0; 3][..(4 - self.written % 4) % 4])
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn cpio_reads_it() {
        let mut archive = Archive::new(Vec::new());
        archive.directory("/a", 0o755).unwrap();
        archive.file("/a/odd", 0o644, b"12345").unwrap();
        archive.link("/a/link", "odd").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let Ok(mut cpio) =
            Command::new("cpio").args(["-t", "--quiet"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
        else {
            println!("skipped: no cpio to compare with");
            return;
        };
        cpio.stdin.take().unwrap().write_all(&bytes).unwrap();
        let output = cpio.wait_with_output().unwrap();
        assert!(output.status.success());
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "a\na/odd\na/link\n");
    }
}
