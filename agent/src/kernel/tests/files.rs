//! Opening files: by whatever name, by whatever way.

use nix::mount::{MsFlags, mount};
use ringfence_common::rules::*;

use super::tree::{BEGIN, Tree};
use super::*;

#[test]
fn a_protected_file_is_not_written_by_any_way() {
    let Some(mut tree) = Tree::new("a_protected_file_is_not_written_by_any_way") else { return };
    tree.name(BEGIN, ".mcp.json", NAME_WRITE_REFUSED, 0);
    tree.file(".mcp.json", 0o644);
    tree.file("plain", 0o644);
    std::os::unix::fs::symlink(tree.path(".mcp.json"), tree.path("alias")).unwrap();
    let outcome = tree.refuses(&["write:/.mcp.json", "write:/alias", "reopen:/.mcp.json", "cut:/.mcp.json"]);
    assert!(outcome.events.iter().all(|event| event.gate == gate::WRITE && event.label == 100));
    tree.refuses(&["truncate:/.mcp.json"]);
    let root = format!("write:=/proc/self/root{}", tree.path(".mcp.json").display());
    tree.refuses(&[&root]);
    assert_eq!(tree.text(".mcp.json"), "before");
    tree.allows(&["read:/.mcp.json", "write:/plain", "cut:/plain", "truncate:/plain", "jit"]);

    let ring = tree.deeds(&["ring:/.mcp.json", "ring:/plain"]).errnos;
    if ring == [libc::EOPNOTSUPP; 2] {
        eprintln!("SKIPPED opening by io_uring: this kernel has none");
    } else {
        assert_eq!(ring, [libc::EACCES, 0]);
        assert_eq!(tree.text(".mcp.json"), "before");
    }
}

#[test]
fn a_secret_is_not_read_by_another_name() {
    let Some(mut tree) = Tree::new("a_secret_is_not_read_by_another_name") else { return };
    let outside = tree.root.parent().unwrap().join("outside");
    std::fs::create_dir(&outside).unwrap();
    let secret = outside.join("secret");
    std::fs::write(&secret, "secret").unwrap();
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o644)).unwrap();
    // Made before anything was protected.
    std::fs::hard_link(&secret, tree.path("linked")).unwrap();
    tree.directory("bound");
    mount(Some(&outside), &tree.path("bound"), None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    tree.known(&secret, NAME_READ_REFUSED, 0);
    let path = secret.display();
    tree.refuses(&[
        &format!("read:={path}"),
        "read:/linked",
        "read:/bound/secret",
        &format!("read:=/proc/self/root{path}"),
    ]);
    umount2(&tree.path("bound"), MntFlags::MNT_DETACH).unwrap();
}

#[test]
fn programs_are_not_changed_where_none_are_made() {
    let Some(mut tree) = Tree::new("programs_are_not_changed_where_none_are_made") else { return };
    tree.name(BEGIN, "hooks", NAME_PROGRAM_REFUSED, 0);
    tree.directory("hooks");
    tree.file("hooks/pre-commit", 0o755);
    tree.file("hooks/notes", 0o644);
    tree.refuses(&["write:/hooks/pre-commit", "cut:/hooks/pre-commit", "reopen:/hooks/pre-commit"]);
    tree.refuses(&["truncate:/hooks/pre-commit"]);
    assert_eq!(tree.text("hooks/pre-commit"), "before");
    tree.allows(&["write:/hooks/notes", "read:/hooks/pre-commit"]);
}

#[test]
fn who_is_not_marked_never_notices_and_changes_can_be_recorded() {
    let Some(mut tree) = Tree::new("who_is_not_marked_never_notices_and_changes_can_be_recorded") else { return };
    tree.name(BEGIN, ".envrc", NAME_RECORDED, 0);
    tree.name(BEGIN, ".mcp.json", NAME_WRITE_REFUSED | NAME_HOST, 0);
    tree.file(".envrc", 0o644);
    tree.file(".mcp.json", 0o644);
    let outcome = tree.allows(&["read:/.envrc", "write:/.envrc", "unlink:/.envrc"]);
    let noted: Vec<_> = outcome.events.iter().map(|event| (event.gate, event.errno, event.label)).collect();
    assert_eq!(noted, [(gate::WRITE, 0, 100); 2]);
    tree.refuses(&["write:/.mcp.json"]);

    let host = tree.deeds_as(Role::Host, &["write:/.mcp.json"]);
    assert_eq!(host.errnos, [0]);
    let noted: Vec<_> = host.events.iter().map(|event| (event.gate, event.errno, event.by_git)).collect();
    assert_eq!(noted, [(gate::WRITE, 0, false)]);

    let mcp = format!("write:{}", tree.path(".mcp.json").display());
    let mut stranger = Actor::start(&tree.bench.actor.clone(), ALICE, &["deeds", &mcp]);
    stranger.go();
    assert_eq!(stranger.wait_for("done"), "0");
}
