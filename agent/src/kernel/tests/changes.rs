//! Making, removing, renaming, metadata, and the exception of the system's git.

use ringfence_common::rules::*;

use super::tree::{BEGIN, Tree};
use super::*;

/// What a fence says of a working tree, in short.
fn usual(tree: &mut Tree) {
    tree.name(BEGIN, ".git", NAME_WAY | NAME_GIT, 2);
    tree.name(2, "hooks", NAME_PROGRAM_REFUSED | NAME_WAY | NAME_GIT, 0);
    tree.name(2, "commondir", NAME_WRITE_REFUSED | NAME_GIT, 0);
    tree.name(BEGIN, ".claude", NAME_WAY | NAME_GIT, 3);
    tree.name(3, "settings.json", NAME_WRITE_REFUSED | NAME_GIT, 0);
    tree.name(BEGIN, ".mcp.json", NAME_WRITE_REFUSED, 0);
    tree.name(BEGIN, ".vscode", NAME_RECORDED, 0);
}

#[test]
fn nothing_comes_to_be_at_a_protected_name() {
    let Some(mut tree) = Tree::new("nothing_comes_to_be_at_a_protected_name") else { return };
    usual(&mut tree);
    tree.directory("evil");
    tree.directory("d");
    tree.file("plain", 0o644);
    tree.file("script", 0o755);
    // The parents are not there: they may be made, the name may not.
    tree.refuses(&[
        "create:/.mcp.json",
        "program:/.mcp.json",
        "mkdir:/.mcp.json",
        "fifo:/.mcp.json",
        "socket:/.mcp.json",
        "symlink:/evil:/.mcp.json",
        "link:/plain:/.mcp.json",
        "rename:/plain:/.mcp.json",
    ]);
    assert!(!tree.has(".mcp.json") && tree.has("plain"));
    // A way is a directory or nothing.
    tree.refuses(&[
        "create:/.git",
        "fifo:/.git",
        "symlink:/evil:/.git",
        "symlink:/evil:/.claude",
        "link:/plain:/.git",
        "rename:/evil:/.git",
        "rename:/d:/.claude",
    ]);
    assert!(!tree.has(".git") && !tree.has(".claude"));
    tree.allows(&["mkdir:/.git", "mkdir:/.git/hooks", "mkdir:/.claude"]);
    tree.refuses(&[
        "program:/.git/hooks/post-checkout",
        "rename:/script:/.git/hooks/pre-commit",
        "link:/script:/.git/hooks/pre-commit",
        "symlink:/script:/.git/hooks/pre-commit",
        "rename:/d:/.git/hooks/d",
        "appear:/:/.git/hooks/pre-commit",
        "create:/.claude/settings.json",
        "create:/.git/commondir",
    ]);
    assert_eq!(std::fs::read_dir(tree.path(".git/hooks")).unwrap().count(), 0, "no stub is left");
    assert!(!tree.has(".claude/settings.json") && tree.has("script"));
    // Nor does a file become a program there.
    tree.allows(&["create:/.git/hooks/notes", "create:/.git/config"]);
    tree.refuses(&["chmod:755:/.git/hooks/notes"]);
    tree.allows(&["chmod:600:/.git/hooks/notes"]);
    // Ways stay what they are, also empty ones.
    tree.refuses(&[
        "rename:/.git:/git2",
        "rename:/.git/hooks:/hooks2",
        "exchange:/.git:/evil",
        "exchange:/evil:/.git",
        "exchange:/d:/.git/hooks",
        "rmdir:/.claude",
        "rename:/.claude:/claude2",
    ]);
    assert!(tree.path(".git/hooks").is_dir() && tree.path(".claude").is_dir());
    let noted = tree.allows(&["mkdir:/.vscode", "create:/.vscode/tasks.json", "rename:/plain:/renamed"]).events;
    assert!(noted.iter().all(|event| event.errno == 0 && event.gate == gate::WRITE));
    assert_eq!(noted.len(), 3, "made, made, opened");
}

#[test]
fn what_is_at_a_protected_name_stays_as_it_is() {
    let Some(mut tree) = Tree::new("what_is_at_a_protected_name_stays_as_it_is") else { return };
    usual(&mut tree);
    tree.directory(".git/hooks");
    tree.file(".git/hooks/pre-commit", 0o755);
    tree.file(".mcp.json", 0o644);
    tree.file("plain", 0o644);
    // The root is the anchor of names; the file is one of its own, by inode.
    let mcp = tree.path(".mcp.json");
    tree.known(&mcp, NAME_WRITE_REFUSED, 0);
    tree.refuses(&[
        "unlink:/.mcp.json",
        "rename:/.mcp.json:/other",
        "rename:/plain:/.mcp.json",
        "exchange:/plain:/.mcp.json",
        "exchange:/.mcp.json:/plain",
        "link:/.mcp.json:/other",
        "link:/.git/hooks/pre-commit:/other",
        "truncate:/.mcp.json",
        "chmod:600:/.mcp.json",
        "chown:/.mcp.json",
        "touch:/.mcp.json",
        "acl:/.mcp.json",
        "write:/.git/hooks/pre-commit",
    ]);
    let xattr = tree.deeds(&["tag:/plain", "tag:/.mcp.json", "untag:/plain", "untag:/.mcp.json"]).errnos;
    if xattr[0] == libc::EOPNOTSUPP {
        eprintln!("SKIPPED extended attributes: this file system has none of the user's");
    } else {
        assert_eq!(xattr, [0, libc::EACCES, 0, libc::EACCES]);
    }
    assert_eq!((tree.text(".mcp.json"), tree.text(".git/hooks/pre-commit")), ("before".into(), "before".into()));
    assert!(!tree.has("other"));
    tree.allows(&["unlink:/.git/hooks/pre-commit", "chmod:755:/plain", "touch:/plain"]);
}

#[test]
fn metadata_and_received_files_are_judged_where_the_gates_are_shut() {
    let Some(mut tree) = Tree::new("metadata_and_received_files_are_judged_where_the_gates_are_shut") else { return };
    let outside = tree.root.parent().unwrap().join("outside");
    std::fs::create_dir(&outside).unwrap();
    let victim = outside.join("victim");
    std::fs::write(&victim, "before").unwrap();
    chown(&victim, Some(ALICE), Some(ALICE)).unwrap();
    tree.file("plain", 0o644);
    let (out, inside) = (outside.join("sends"), tree.path("sends"));
    let listener = sender(&out, File::options().write(true).open(&victim).unwrap().into());
    let other = sender(&inside, File::options().write(true).open(tree.path("plain")).unwrap().into());
    let pipe = sender(&outside.join("pipe"), nix::unistd::pipe().unwrap().1);
    let [victim, out, pipes] = [&victim, &out, &outside.join("pipe")].map(|path| format!("={}", path.display()));
    let deeds = [
        format!("chmod:666:{victim}"),
        format!("chown:{victim}"),
        format!("touch:{victim}"),
        format!("acl:{victim}"),
        format!("receive:{out}"),
        format!("receive:{pipes}"),
        "receive:/sends".into(),
        "chmod:755:/plain".into(),
        "touch:/plain".into(),
        "fchmod-pipe".into(),
    ];
    let deeds: Vec<&str> = deeds.iter().map(String::as_str).collect();
    assert_eq!(tree.deeds(&deeds).errnos, [0; 10], "neither gate is shut");
    tree.rules.refuse = 1 << gate::METADATA | 1 << gate::RECEIVE;
    let outcome = tree.deeds(&deeds);
    let mut expected = [0; 10];
    expected[..5].fill(libc::EACCES);
    assert_eq!(outcome.errnos, expected);
    let gates: Vec<u32> = outcome.events.iter().map(|event| event.gate).collect();
    assert_eq!(gates, [gate::METADATA, gate::METADATA, gate::METADATA, gate::METADATA, gate::RECEIVE]);
    drop((listener, other, pipe));
}

/// Sends a descriptor to whoever connects; unmarked, as all of the test is.
fn sender(path: &Path, file: std::os::fd::OwnedFd) -> std::thread::JoinHandle<()> {
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    use std::os::fd::AsRawFd;
    let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(2) {
            let files = [file.as_raw_fd()];
            let byte = [std::io::IoSlice::new(b"x")];
            let sent = [ControlMessage::ScmRights(&files)];
            let _ = sendmsg::<()>(stream.unwrap().as_raw_fd(), &byte, &sent, MsgFlags::empty(), None);
        }
    })
}

#[test]
fn git_alone_writes_what_is_excepted() {
    let Some(mut tree) = Tree::new("git_alone_writes_what_is_excepted") else { return };
    let Some(git) = ["/usr/bin/git", "/usr/lib/git-core/git"].iter().map(Path::new).find(|git| git.is_file()) else {
        eprintln!("SKIPPED git_alone_writes_what_is_excepted: there is no git");
        return;
    };
    // Not the whole of what git is made of: its commands are builtins of the one program.
    let real = std::fs::canonicalize(git).unwrap();
    tree.bench.kernel.set_identities(&[(&vec![real], ringfence_common::mark::IDENTITY_GIT, "git")]).unwrap();
    usual(&mut tree);
    tree.root_bits |= NAME_GIT;
    let root = tree.root.display().to_string();
    let script = tree.root.parent().unwrap().join("work.sh");
    let git = git.display();
    std::fs::write(
        &script,
        format!(
            "set -e\nexport HOME={root}/.. GIT_CONFIG_NOSYSTEM=1\ncd {root}\n\
             g='{git} -c user.name=a -c user.email=a@b'\n\
             $g init -q . && $g config core.pager cat\n\
             echo 1 > file && $g add file && $g commit -q -m 1\n\
             blob=$(echo '{{}}' | $g hash-object -w --stdin)\n\
             $g update-index --add --cacheinfo 100644,$blob,.claude/settings.json\n\
             $g commit -q -m 2 && $g checkout -q -f HEAD -- .claude/settings.json\n\
             $g checkout -q -f HEAD~1 && test ! -e .claude/settings.json && $g checkout -q -f -\n\
             test -e .claude/settings.json\n\
             ! echo x > .claude/settings.json\n"
        ),
    )
    .unwrap();
    let (_, mut actor) = tree.actor(Role::Launched, &["exec", "/bin/sh", &script.display().to_string()]);
    let id = actor.id();
    actor.go();
    let status = actor.end();
    let events = tree.gates_until_exit(id);
    assert!(status.success(), "{events:#?}");
    assert_eq!(tree.text(".claude/settings.json"), "{}\n");
    assert!(events.iter().any(|event| event.by_git && event.errno == 0));
    assert!(events.iter().any(|event| !event.by_git && event.errno == libc::EACCES as u16));

    // What git starts is not git: a hook of this repository, put there by its owner.
    tree.file(".git/hooks/post-commit", 0o755);
    std::fs::write(tree.path(".git/hooks/post-commit"), "#!/bin/sh\necho bad > .claude/settings.json\n").unwrap();
    let commit = format!("-c user.name=a -c user.email=a@b -C {root} commit -q --allow-empty -m 3");
    let mut act = vec!["exec".to_owned(), git.to_string()];
    act.extend(commit.split(' ').map(str::to_owned));
    let act: Vec<&str> = act.iter().map(String::as_str).collect();
    let (_, mut actor) = tree.actor(Role::Launched, &act);
    actor.go();
    actor.end();
    assert_eq!(tree.text(".claude/settings.json"), "{}\n");

    // Nor is git with code that is not root's: a library that its user could have written.
    let library = tree.path("libm.so");
    std::fs::copy(loaded_library(), &library).unwrap();
    chown(&library, Some(ALICE), Some(ALICE)).unwrap();
    let preload = format!("LD_PRELOAD={}", library.display());
    let preloaded = vec!["exec", "/usr/bin/env", &preload, act[1], "-C", &root, "checkout", "-q", "-f", "HEAD~2"];
    // Nor git in which its parent could write: it goes back to where the file is.
    let traced = vec!["traced", act[1], "-C", &root, "checkout", "-q", "-f", "-"];
    for act in [preloaded, traced] {
        let (_, mut actor) = tree.actor(Role::Launched, &act);
        let id = actor.id();
        actor.go();
        actor.end();
        let events = tree.gates_until_exit(id);
        assert!(events.iter().any(|event| event.errno == libc::EACCES as u16), "{act:?}: {events:#?}");
        assert!(events.iter().all(|event| !event.by_git), "{act:?}: {events:#?}");
        assert_eq!(tree.text(".claude/settings.json"), "{}\n");
    }
}

/// A library that every program can be given once more.
fn loaded_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    PathBuf::from(paths.into_iter().find(|path| path.contains("libgcc_s") || path.contains("libm.so")).unwrap())
}
