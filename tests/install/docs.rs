//! The documentation keeps its word: links lead somewhere, tests that it names exist.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use ringfence_tests::stage::workspace;
use ringfence_tests::suite::CaseResult;

use crate::read;

pub(crate) fn links() -> CaseResult {
    let mut pages = vec![];
    files(&workspace().join("docs"), "md", &mut pages)?;
    pages.extend(
        ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/README.md"].map(|name| workspace().join(name)),
    );
    for page in pages {
        let text = read(&page)?;
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
        for target in targets.filter(|target| !target.contains("://")) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = page.parent().context("a directory")?.join(file);
            ensure!(path.exists(), "{}: {target} leads nowhere", page.display());
            let known = |line: &str| line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-") == heading;
            let found = heading.is_empty() || read(&path)?.lines().filter(|line| line.starts_with('#')).any(known);
            ensure!(found, "{}: {target} has no such heading", page.display());
        }
    }
    Ok(())
}

/// In docs/bypasses.md, what is written like a test (lower case, at least three underscores) must be one.
pub(crate) fn named_tests() -> CaseResult {
    let mut sources = vec![];
    for directory in ["agent/src", "common/src", "ebpf/src", "tests"] {
        files(&workspace().join(directory), "rs", &mut sources)?;
    }
    let sources: Vec<String> = sources.iter().map(read).collect::<Result<_, _>>()?;
    let page = read(workspace().join("docs/bypasses.md"))?;
    let words = page.split('`').skip(1).step_by(2);
    let names: Vec<&str> = words.filter(|word| word.matches('_').count() > 2 && !word.contains(['/', ' '])).collect();
    ensure!(names.len() > 10, "the page names hardly a test: {names:?}");
    for name in names {
        let defined = format!("fn {name}(");
        ensure!(sources.iter().any(|source| source.contains(&defined)), "docs/bypasses.md: there is no test {name}");
    }
    let cases = page.split("\n## The observer").nth(1).context("the tables begin with the observer")?;
    for case in cases.split('"').skip(1).step_by(2) {
        ensure!(
            sources.iter().any(|source| source.contains(&format!("\"{case}\""))),
            "docs/bypasses.md: there is no case \"{case}\""
        );
    }
    Ok(())
}

fn files(directory: &Path, extension: &str, into: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            files(&path, extension, into)?;
        } else if path.extension().is_some_and(|found| found == extension) {
            into.push(path);
        }
    }
    Ok(())
}
