//! TR-PRIV-ESC: sudo and its kind, set-uid, groups that are as good as root, code for the kernel.
#![forbid(unsafe_code)]

use super::{Hits, Subject};
use crate::policy::judge::Severity;

pub(super) fn judge(subject: &Subject<'_>, hits: &mut Hits<'_>) {
    for command in subject.local() {
        let program = command.program.as_str();
        let texts = || command.texts();
        let raises = match program {
            "sudo" | "doas" | "pkexec" | "su" | "run0" | "runuser" | "sudoedit" | "visudo" | "setcap" | "insmod"
            | "modprobe" | "rmmod" | "kexec" => true,
            "chmod" => texts().any(is_set_id),
            "usermod" | "gpasswd" | "adduser" | "addgroup" => texts().any(|text| {
                text.split(',').any(|group| {
                    matches!(group, "docker" | "sudo" | "wheel" | "root" | "admin" | "lxd" | "libvirt" | "disk" | "kvm")
                })
            }),
            _ => false,
        };
        if raises {
            hits.add(
                Severity::Review,
                &format!("{program} asks for more rights than the person's own; no fence can give them"),
            );
        }
    }
}

/// `u+s`, `g+s`, `4755`, `6755`, `+s`.
fn is_set_id(mode: &str) -> bool {
    let octal = mode.len() == 4 || mode.len() == 5;
    if octal && mode.bytes().all(|b| (b'0'..=b'7').contains(&b)) {
        return matches!(mode.as_bytes()[mode.len() - 4], b'2'..=b'7');
    }
    mode.split(',').any(|part| {
        part.split_once(['+', '=']).is_some_and(|(who, rights)| {
            who.bytes().all(|b| b"ugoa".contains(&b))
                && rights.contains('s')
                && rights.bytes().all(|b| b"rwxXst".contains(&b))
        })
    })
}
