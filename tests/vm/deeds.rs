//! What processes of a tree try, in Perl: the one language of every Debian that makes raw system calls.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, ensure};

/// Not permitted: the answer to what is aimed at other processes, namespaces and unix peers.
pub const EPERM: i32 = 1;
/// Not permitted: the answer to files, programs and addresses.
pub const EACCES: i32 = 13;

/// Each deed is told as `NAME ERRNO`, 0 for one that was done.
const PRELUDE: &str = r##"use Socket; use Fcntl; $| = 1; $SIG{PIPE} = 'IGNORE';
sub told { my ($name, $done) = @_; print "$name ", $done ? 0 : $! + 0, "\n" }
sub path { pack_sockaddr_un($_[0]) }
sub hidden { pack('Sa*', AF_UNIX, "\0$_[0]") }
sub inet { pack_sockaddr_in($_[1], inet_aton($_[0])) }
sub connects { my ($family, $to, $protocol) = @_;
    my $s; socket($s, $family, SOCK_STREAM, $protocol // 0) && connect($s, $to) && defined(syswrite($s, 'x')) }
sub sends { my ($family, $to, $flags) = @_; my $s; socket($s, $family, SOCK_DGRAM, 0) && defined(send($s, 'x', $flags // 0, $to)) }
sub makes { my ($file, $mode) = @_; my @parts = split m{/}, $file; pop @parts; my $at = '';
    for (@parts) { next unless length; $at .= "/$_"; mkdir $at or $!{EEXIST} or do { my $e = $! + 0; next if -d $at; $! = $e; return 0 } }
    my $f; sysopen($f, $file, O_WRONLY | O_CREAT | O_APPEND, $mode // 0644) && defined(syswrite($f, "#!/bin/sh\n")) }
sub reads { my ($f, $b); open($f, '<', $_[0]) && defined(sysread($f, $b, 1)) }
sub calls { syscall(shift() + 0, map { /^-?\d+$/ ? $_ + 0 : $_ } @_) != -1 }
"##;

/// A Perl program of these deeds, for `perl -e`.
pub fn program(deeds: &str) -> String {
    format!("{PRELUDE}{deeds}")
}

/// What became of each deed, by its name.
#[derive(Debug)]
pub struct Answers(BTreeMap<String, i32>);

impl Answers {
    /// From what the program printed.
    pub fn new(printed: &str) -> anyhow::Result<Answers> {
        let pair =
            |line: &str| Some((line.split_once(' ')?.0.to_owned(), line.split_once(' ')?.1.trim().parse().ok()?));
        let answers: Option<BTreeMap<_, _>> = printed.lines().map(pair).collect();
        answers.map(Answers).with_context(|| format!("not answers: {printed}"))
    }

    /// Fails unless each of these was answered with one of these errnos.
    pub fn are(&self, names: &[&str], errnos: &[i32]) -> anyhow::Result<()> {
        for name in names {
            let answer = self.0.get(*name).with_context(|| format!("no answer to {name} in {:?}", self.0))?;
            ensure!(errnos.contains(answer), "{name} gave {answer} instead of {errnos:?}: {:?}", self.0);
        }
        Ok(())
    }

    /// Fails unless everything was refused, but for `others`.
    pub fn all_refused_but(&self, others: &[&str]) -> anyhow::Result<()> {
        for (name, answer) in self.0.iter().filter(|(name, _)| !others.contains(&name.as_str())) {
            ensure!([EPERM, EACCES].contains(answer), "{name} gave {answer}: {:?}", self.0);
        }
        Ok(())
    }
}

/// Fails unless nothing is there.
pub fn absent(path: &Path) -> anyhow::Result<()> {
    ensure!(path.symlink_metadata().is_err(), "{} is there", path.display());
    Ok(())
}
