//! Loads the seccomp program that the plan carries: bytes that libseccomp made once, in the service.

use std::io;

use super::receipt::{Grade, LayerReceipt};

/// Why the filter could not be put on.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// Not whole instructions, or none.
    #[error("the plan's seccomp program has {0} bytes, which are no instructions")]
    NotAProgram(usize),
    /// The kernel does not take it.
    #[error("the kernel refuses the filter: {0} (it needs CONFIG_SECCOMP_FILTER, and no_new_privs set before)")]
    Refused(#[source] io::Error),
}

/// Sets no_new_privs for this process and all that comes of it (Linux 3.5). There is no way back.
pub fn no_new_privs() -> io::Result<()> {
    // SAFETY: PR_SET_NO_NEW_PRIVS takes integers only.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Puts the program in force for this thread and all that comes of it (Linux 3.17). An empty one is no filter.
pub fn enforce(program: &[u8], strict: bool) -> Result<LayerReceipt, SeccompError> {
    let mut receipt =
        LayerReceipt { layer: "seccomp".into(), grade: Grade::None, abi: None, missing: vec![], grants: vec![] };
    if program.is_empty() {
        if strict {
            return Err(SeccompError::NotAProgram(0));
        }
        receipt.missing.push("this fence has no filter".into());
        return Ok(receipt);
    }
    if !program.len().is_multiple_of(size_of::<libc::sock_filter>()) {
        return Err(SeccompError::NotAProgram(program.len()));
    }
    let instructions: Vec<libc::sock_filter> = program
        .chunks_exact(size_of::<libc::sock_filter>())
        .map(|b| libc::sock_filter {
            code: u16::from_ne_bytes([b[0], b[1]]),
            jt: b[2],
            jf: b[3],
            k: u32::from_ne_bytes([b[4], b[5], b[6], b[7]]),
        })
        .collect();
    let Ok(len) = u16::try_from(instructions.len()) else {
        return Err(SeccompError::NotAProgram(program.len()));
    };
    let mut filter = instructions;
    let program = libc::sock_fprog { len, filter: filter.as_mut_ptr() };
    // SAFETY: `program` points at `len` instructions that live over the call; the kernel copies and checks them.
    let answer = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0u32, &raw const program) };
    if answer != 0 {
        return Err(SeccompError::Refused(io::Error::last_os_error()));
    }
    receipt.grade = Grade::Full;
    Ok(receipt)
}
