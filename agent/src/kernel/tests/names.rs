//! The walk to a protected name: nearest anchor, steps down, and where it ends.

use ringfence_common::rules::*;

use super::tree::{BEGIN, Tree};

#[test]
fn a_name_that_is_not_there_is_protected_below_the_nearest_anchor() {
    let Some(mut tree) = Tree::new("a_name_that_is_not_there_is_protected_below_the_nearest_anchor") else { return };
    tree.name(BEGIN, ".claude", NAME_WAY, 2);
    tree.name(2, "settings.json", NAME_WRITE_REFUSED, 0);
    tree.directory("a/.claude");
    tree.file("a/.claude/settings.json", 0o644);
    tree.allows(&["mkdir:/.claude", "create:/.claude/other", "create:/settings.json"]);
    let refused = tree.refuses(&["create:/.claude/settings.json", "mkdir:/.claude/settings.json"]);
    assert!(!tree.has(".claude/settings.json"));
    let event = &refused.events[0];
    assert_eq!((event.gate, event.label), (gate::WRITE, 101));
    assert!(event.path.bytes.ends_with(b"w/.claude/settings.json"), "{:?}", event.path);
    // The names begin at the root of the tree, not anywhere in it.
    tree.allows(&["write:/a/.claude/settings.json"]);
}

#[test]
fn any_name_long_names_and_deep_ones() {
    let Some(mut tree) = Tree::new("any_name_long_names_and_deep_ones") else { return };
    let longest = "n".repeat(NAME_BYTES - 1);
    tree.name(BEGIN, &longest, NAME_WRITE_REFUSED, 0);
    tree.name(BEGIN, "projects", 0, 2);
    tree.name(2, "", 0, 3);
    tree.name(2, "free", 0, 0);
    tree.name(3, "key", NAME_READ_REFUSED, 0);
    let huge = "h".repeat(255);
    for directory in [format!("projects/{huge}"), "projects/free".into(), format!("projects/{longest}x")] {
        tree.directory(&directory);
        tree.file(&format!("{directory}/key"), 0o644);
    }
    tree.refuses(&[
        &format!("create:/{longest}"),
        &format!("read:/projects/{huge}/key"),
        &format!("read:/projects/{longest}x/key"),
    ]);
    tree.allows(&["read:/projects/free/key", &format!("create:/{longest}x"), &format!("create:/{huge}")]);

    // Deeper below the anchor than names go: what holds there is what the last step said.
    let deep = "d/".repeat(NAME_DEPTH + 4);
    tree.name(BEGIN, "d", NAME_WRITE_REFUSED, 0);
    tree.directory(&deep);
    tree.refuses(&[&format!("create:/{deep}x")]);
    tree.allows(&["create:/e"]);
}

#[test]
fn what_is_too_deep_to_be_judged_is_refused() {
    let Some(mut tree) = Tree::new("what_is_too_deep_to_be_judged_is_refused") else { return };
    tree.name(BEGIN, "secret", NAME_WRITE_REFUSED, 0);
    let deep = |levels: usize| "d/".repeat(levels);
    // Outside, where no anchor is met.
    let outside = tree.root.parent().unwrap().join("outside");
    for place in [&tree.root, &outside] {
        std::fs::create_dir_all(place.join(deep(WALK_DEPTH + 2))).unwrap();
        let file = place.join(deep(WALK_DEPTH + 2)).join("file");
        std::fs::write(&file, "before").unwrap();
        std::os::unix::fs::chown(file, Some(super::ALICE), None).unwrap();
    }
    let file = format!("={}/{}file", outside.display(), deep(WALK_DEPTH + 2));
    let refused = tree.refuses(&[&format!("write:{file}"), &format!("write:/{}file", deep(WALK_DEPTH + 2))]);
    assert!(refused.events.iter().all(|event| event.too_deep));
    // Nothing is protected from reading, so that needs no judgement.
    tree.allows(&[&format!("read:{file}")]);
    tree.allows(&[&format!("read:/{}file", deep(WALK_DEPTH + 2))]);
}

#[test]
fn reading_is_allowed_again_below() {
    let Some(mut tree) = Tree::new("reading_is_allowed_again_below") else { return };
    tree.name(BEGIN, "keys", NAME_READ_REFUSED | NAME_WAY, 2);
    tree.name(2, "public", NAME_READ_ALLOWED, 0);
    tree.directory("keys/public");
    for name in ["keys/private", "keys/public/one", "plain"] {
        tree.file(name, 0o644);
    }
    let refused = tree.refuses(&["read:/keys/private", "read:/keys", "write:/keys/private"]);
    assert!(refused.events.iter().all(|event| event.gate == gate::READ));
    assert_eq!(tree.text("keys/private"), "before");
    tree.allows(&["read:/keys/public/one", "read:/plain", "reopen:/plain"]);
    // Neither by another name.
    tree.refuses(&["link:/keys/private:/plain2", "rename:/keys/private:/plain3", "rename:/keys:/other"]);
    assert!(!tree.has("plain2") && !tree.has("plain3") && tree.has("keys/private"));
}
