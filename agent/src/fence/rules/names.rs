//! Protected names: patterns of paths to what the kernel looks up along a dentry chain.
//!
//! The kernel walks up from a file to the nearest directory (or file) that is an *anchor*, known by inode, and from there
//! down the names: `(state, name)`, else `(state, any name)`, else the walk stops. So a state stands for everything that
//! all patterns may still say below a directory, and a nearer anchor repeats what the farther ones said. What is not there
//! yet is thereby covered, and a directory that is moved keeps its rules.
//!
//! The bits of the anchor and of each step are put together on the way, so nothing that was said above can be taken back
//! below, [`NAME_READ_ALLOWED`] apart. Therefore an exception ([`NAME_GIT`], [`NAME_HOST`]) is given only where every
//! refusal above, here and below agrees: where they differ, the stricter reading wins.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use ringfence_common::rules::{
    NAME_BYTES, NAME_DEPTH, NAME_GIT, NAME_HOST, NAME_PROGRAM_REFUSED, NAME_READ_ALLOWED, NAME_READ_REFUSED,
    NAME_RECORDED, NAME_WAY, NAME_WRITABLE, NAME_WRITE_REFUSED,
};

use super::files::{Found, Ground, Index};
use super::glob;
use crate::probe::rules::NameRule;

/// What refuses a change.
const CHANGE: u32 = NAME_WRITE_REFUSED | NAME_PROGRAM_REFUSED;
/// What refuses anything.
const REFUSAL: u32 = CHANGE | NAME_READ_REFUSED;
/// Whom a refused change is allowed all the same.
const EXCEPTIONS: u32 = NAME_GIT | NAME_HOST;
/// What holds for everything below.
const LASTING: u32 = REFUSAL | NAME_RECORDED | NAME_WRITABLE;

/// Links that are followed on the way to one name.
const MOST_LINKS: usize = 8;
/// Most steps of one rule set.
pub const MOST_STEPS: usize = 8192;

/// A protected name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Absolute. A part `*` stands for any one name, a last part `**` for everything below; a part with `*` or `?` among
    /// other characters for what is there of that form now.
    pub path: PathBuf,
    /// `NAME_*`.
    pub bits: u32,
    /// What a refusal is called.
    pub label: u32,
}

/// Why names cannot be protected.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NameError {
    /// Not absolute, or with `..`.
    #[error("{0} is not an absolute path without `..`")]
    Path(PathBuf),
    /// `**` before the end, or a partial pattern behind a wildcard.
    #[error("{0}: `**` can only stand at the end, and a part such as `a*` only behind parts without wildcards")]
    Pattern(PathBuf),
    /// A part is too long for the kernel's map.
    #[error("{0}: a part of it has {NAME_BYTES} bytes or more")]
    Long(PathBuf),
    /// It lies too deep below what exists.
    #[error("{0} lies more than {NAME_DEPTH} names below the nearest directory that exists")]
    Deep(PathBuf),
    /// Too many links.
    #[error("{0} leads over more than {MOST_LINKS} links")]
    Links(PathBuf),
    /// More steps than [`MOST_STEPS`].
    #[error("the protected names need more than {MOST_STEPS} steps: write fewer wildcards")]
    Steps,
}

/// What is said of a file that exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Anchor {
    /// `NAME_*`: all that was said above it too.
    pub bits: u32,
    /// What a refusal is called.
    pub label: u32,
    /// Where its names go on.
    pub state: u32,
}

/// Compiled names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// What exists on the way to a name and at it.
    pub anchors: BTreeMap<Index, Anchor>,
    /// Steps between states.
    pub steps: Vec<NameRule>,
}

/// Compiles the names as the file system is now.
pub fn compile(names: &[Name], ground: &mut impl Ground) -> Result<Names, NameError> {
    let mut patterns = Vec::new();
    for name in names {
        resolve(name, ground, &mut patterns)?;
    }
    patterns.sort();
    patterns.dedup();
    let mut compiler = Compiler { patterns: &patterns, states: HashMap::new(), pending: Vec::new() };
    let live = (0..patterns.len()).map(|pattern| (pattern, 0)).collect();
    let top = Node { live, above: Above::default() };
    let mut anchors = BTreeMap::new();
    compiler.anchor(Path::new("/"), &top, Anchor::default(), ground, &mut anchors);
    let steps = compiler.steps()?;
    Ok(Names { anchors, steps })
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Any,
    Named(Vec<u8>),
}

/// A name whose existing part has no links.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pattern {
    parts: Vec<Part>,
    bits: u32,
    label: u32,
}

impl Pattern {
    fn refuses(&self) -> bool {
        self.bits & REFUSAL != 0
    }
}

/// Adds the patterns that a name stands for: itself, and where the links on its way lead.
fn resolve(name: &Name, ground: &mut impl Ground, into: &mut Vec<Pattern>) -> Result<(), NameError> {
    let mut waiting = vec![(name.path.clone(), 0)];
    while let Some((path, links)) = waiting.pop() {
        if links > MOST_LINKS {
            return Err(NameError::Links(name.path.clone()));
        }
        let written = parts(&path)?;
        let mut expanded = vec![(PathBuf::from("/"), Vec::<Part>::new())];
        let (mut plain, mut exists) = (true, true);
        let mut missing = 0;
        for (at, part) in written.iter().enumerate() {
            let last = at + 1 == written.len();
            if *part == b"*" {
                plain = false;
                missing += 1;
                expanded.iter_mut().for_each(|(_, done)| done.push(Part::Any));
                continue;
            }
            if part.iter().any(|byte| b"*?[".contains(byte)) {
                if !plain {
                    return Err(NameError::Pattern(path));
                }
                let matching = glob::of(part).ok_or_else(|| NameError::Pattern(path.clone()))?;
                let mut each = Vec::new();
                for (directory, done) in &expanded {
                    for entry in ground.entries(directory) {
                        if matching.is_match(std::ffi::OsStr::from_bytes(&entry)) && entry.len() < NAME_BYTES {
                            let mut parts = done.clone();
                            parts.push(Part::Named(entry.clone()));
                            each.push((directory.join(std::ffi::OsString::from_vec(entry)), parts));
                        }
                    }
                }
                expanded = each;
            } else {
                if part.len() >= NAME_BYTES {
                    return Err(NameError::Long(path));
                }
                for (directory, done) in &mut expanded {
                    done.push(Part::Named(part.clone()));
                    directory.push(std::ffi::OsStr::from_bytes(part));
                }
            }
            if !plain {
                missing += 1;
                continue;
            }
            let mut any_there = false;
            for (here, _) in &expanded {
                match ground.look(here) {
                    Found::Link(to) => {
                        let rest = written[at + 1..].iter().map(|part| std::ffi::OsStr::from_bytes(part));
                        let whole: PathBuf = std::iter::once(to.as_os_str()).chain(rest).collect();
                        waiting.push((whole, links + 1));
                    }
                    Found::Directory(_) => any_there = true,
                    Found::Socket(_) | Found::File(_) => any_there |= last,
                    Found::Absent => {}
                }
            }
            exists &= any_there;
            missing += usize::from(!exists);
        }
        if missing > NAME_DEPTH {
            return Err(NameError::Deep(path));
        }
        into.extend(expanded.into_iter().map(|(_, parts)| Pattern { parts, bits: name.bits, label: name.label }));
    }
    Ok(())
}

/// What bits say, in words.
pub fn words(bits: u32) -> Vec<&'static str> {
    let all = [
        (NAME_WRITE_REFUSED, "not changed"),
        (NAME_READ_REFUSED, "not read"),
        (NAME_PROGRAM_REFUSED, "no executables"),
        (NAME_WAY, "stays where it is"),
        (NAME_GIT, "but by git"),
        (NAME_HOST, "but by the host"),
        (NAME_RECORDED, "recorded"),
        (NAME_WRITABLE, "writable"),
        (NAME_READ_ALLOWED, "read all the same"),
    ];
    all.into_iter().filter(|(bit, _)| bits & bit != 0).map(|(_, word)| word).collect()
}

/// The parts of a path, without a `**` at its end.
fn parts(path: &Path) -> Result<Vec<Vec<u8>>, NameError> {
    let text = path.as_os_str().as_bytes();
    if !text.starts_with(b"/") {
        return Err(NameError::Path(path.to_owned()));
    }
    let mut parts: Vec<Vec<u8>> =
        text.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").map(<[u8]>::to_vec).collect();
    if parts.iter().any(|part| part == b"..") {
        return Err(NameError::Path(path.to_owned()));
    }
    if parts.last().is_some_and(|part| part == b"**") {
        parts.pop();
    }
    match parts.iter().any(|part| part == b"**") {
        true => Err(NameError::Pattern(path.to_owned())),
        false => Ok(parts),
    }
}

/// What was said on the way to a node and goes on to hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Above {
    lasting: u32,
    /// To whom a change that is refused above is allowed.
    exceptions: u32,
    label: u32,
}

/// Where patterns stand after a path: how far each has come, and what was said above.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    live: BTreeSet<(usize, usize)>,
    above: Above,
}

struct Compiler<'a> {
    patterns: &'a [Pattern],
    states: HashMap<Node, u32>,
    pending: Vec<Node>,
}

impl Compiler<'_> {
    /// The number of a node, 0 when nothing goes on from it.
    fn state(&mut self, node: &Node) -> u32 {
        if node.live.is_empty() {
            return 0;
        }
        let next = self.states.len() as u32 + 1;
        *self.states.entry(node.clone()).or_insert_with(|| {
            self.pending.push(node.clone());
            next
        })
    }

    /// One name further, `None` for one that no pattern names; answers what is said of it.
    fn step(&self, from: &Node, name: Option<&[u8]>) -> (Node, u32, u32) {
        let mut at_end: Vec<&Pattern> = Vec::new();
        let mut live = BTreeSet::new();
        for &(index, done) in &from.live {
            let pattern = &self.patterns[index];
            let taken = match &pattern.parts[done] {
                Part::Any => true,
                Part::Named(wanted) => name == Some(wanted.as_slice()),
            };
            match taken {
                true if done + 1 == pattern.parts.len() => at_end.push(pattern),
                true => {
                    live.insert((index, done + 1));
                }
                false => {}
            }
        }
        let passing = || live.iter().map(|(index, _)| &self.patterns[*index]);
        let mut bits = at_end.iter().fold(0, |bits, pattern| bits | pattern.bits & !EXCEPTIONS);
        if bits & NAME_READ_REFUSED != 0 {
            // Moved away it could be read, so it stays; refused and allowed again at one name is refused.
            bits = bits & !NAME_READ_ALLOWED | NAME_WAY;
        }
        if passing().any(Pattern::refuses) {
            bits |= NAME_WAY;
        }
        let label = at_end
            .iter()
            .copied()
            .chain(passing())
            .find(|pattern| pattern.refuses())
            .map_or(0, |pattern| pattern.label);
        let refusing = at_end.iter().copied().chain(passing()).filter(|pattern| pattern.refuses());
        let mut exceptions = refusing.fold(EXCEPTIONS, |agreed, pattern| agreed & pattern.bits);
        if from.above.lasting & CHANGE != 0 {
            exceptions &= from.above.exceptions;
        }
        if bits & (CHANGE | NAME_WAY) == 0 {
            exceptions = 0;
        }
        let mut above = from.above;
        if bits & NAME_READ_ALLOWED != 0 {
            above.lasting &= !NAME_READ_REFUSED;
        }
        above.lasting |= bits & LASTING;
        if bits & CHANGE != 0 {
            above.exceptions = exceptions;
        }
        if bits & REFUSAL != 0 && above.label == 0 {
            above.label = label;
        }
        (Node { live, above }, bits | exceptions, label)
    }

    /// Makes an anchor of an existing directory, and of what exists below it on the way to a name.
    fn anchor(
        &mut self,
        path: &Path,
        node: &Node,
        said: Anchor,
        ground: &mut impl Ground,
        into: &mut BTreeMap<Index, Anchor>,
    ) {
        let state = self.state(node);
        match ground.look(path) {
            Found::Directory(index) => {
                // Reached by two paths (a bind mount): everything said of either, and the first one's names.
                let anchor = into.entry(index).or_insert(Anchor { state, ..said });
                anchor.bits |= said.bits;
            }
            Found::File(index) | Found::Socket(index) => {
                if said.bits & REFUSAL != 0 {
                    into.entry(index).or_insert(Anchor { state: 0, ..said }).bits |= said.bits;
                }
                return;
            }
            Found::Absent | Found::Link(_) => return,
        }
        for name in self.names(node) {
            let (next, bits, label) = self.step(node, Some(&name));
            let Above { lasting, exceptions, label: label_above } = next.above;
            let inherited = if lasting & CHANGE != 0 { exceptions } else { 0 };
            // What allows reading again has been taken into account.
            let bits = bits | lasting | inherited;
            let bits = if lasting & NAME_READ_REFUSED != 0 { bits & !NAME_READ_ALLOWED } else { bits };
            let said = Anchor { bits, label: if label == 0 { label_above } else { label }, state: 0 };
            self.anchor(&path.join(std::ffi::OsStr::from_bytes(&name)), &next, said, ground, into);
        }
    }

    /// The names that patterns wait for at a node.
    fn names(&self, node: &Node) -> BTreeSet<Vec<u8>> {
        let next = node.live.iter().map(|(index, done)| &self.patterns[*index].parts[*done]);
        next.filter_map(|part| match part {
            Part::Named(name) => Some(name.clone()),
            Part::Any => None,
        })
        .collect()
    }

    /// Every step from every state that can be reached.
    fn steps(mut self) -> Result<Vec<NameRule>, NameError> {
        let mut steps = Vec::new();
        while let Some(node) = self.pending.pop() {
            let state = self.state(&node);
            let any = node.live.iter().any(|(index, done)| self.patterns[*index].parts[*done] == Part::Any);
            let names = self.names(&node).into_iter().map(Some).chain(any.then_some(None));
            for name in names {
                let (next, bits, label) = self.step(&node, name.as_deref());
                let next = self.state(&next);
                steps.push(NameRule { state, name: name.unwrap_or_default(), bits, label, next });
                if steps.len() > MOST_STEPS {
                    return Err(NameError::Steps);
                }
            }
        }
        steps.sort_by(|one, other| (one.state, &one.name).cmp(&(other.state, &other.name)));
        Ok(steps)
    }
}

#[cfg(test)]
pub(crate) mod walk {
    //! What the kernel's programs do with compiled names.

    use super::*;

    /// The bits that hold for a path: those of its nearest anchor, then of each step. [`NAME_WAY`] is of the path's own
    /// last part alone.
    pub(crate) fn bits_of(steps: &[NameRule], anchor_at: impl Fn(&Path) -> Option<Anchor>, path: &Path) -> u32 {
        let mut names = Vec::new();
        let mut here = path;
        let anchor = loop {
            if let Some(anchor) = anchor_at(here) {
                break anchor;
            }
            let (Some(parent), Some(name)) = (here.parent(), here.file_name()) else { return 0 };
            names.push(name.as_bytes());
            here = parent;
        };
        let mut bits = anchor.bits;
        let mut state = anchor.state;
        for name in names.into_iter().rev() {
            bits &= !NAME_WAY;
            if state == 0 {
                continue;
            }
            let find = |name: &[u8]| steps.iter().find(|step| step.state == state && step.name == name);
            let Some(step) = find(name).or_else(|| find(b"")) else {
                state = 0;
                continue;
            };
            if step.bits & NAME_READ_ALLOWED != 0 {
                bits &= !NAME_READ_REFUSED;
            }
            bits |= step.bits;
            state = step.next;
        }
        bits
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A file system of directories and links alone.
    #[derive(Clone, Default)]
    struct Imagined {
        directories: Vec<PathBuf>,
        links: Vec<(PathBuf, PathBuf)>,
    }

    impl Imagined {
        fn with(paths: &[&str]) -> Imagined {
            let mut directories: Vec<PathBuf> =
                paths.iter().flat_map(|path| Path::new(path).ancestors().map(Path::to_owned)).collect();
            directories.push("/".into());
            directories.sort();
            directories.dedup();
            Imagined { directories, links: Vec::new() }
        }

        fn anchors<'a>(&'a self, names: &'a Names) -> impl Fn(&Path) -> Option<Anchor> + 'a {
            |path| {
                let at = self.directories.iter().position(|directory| directory == path)?;
                names.anchors.get(&Index(at)).copied()
            }
        }
    }

    impl Ground for Imagined {
        fn look(&mut self, path: &Path) -> Found {
            if let Some((_, to)) = self.links.iter().find(|(link, _)| link == path) {
                return Found::Link(to.clone());
            }
            let at = self.directories.iter().position(|directory| directory == path);
            at.map_or(Found::Absent, |at| Found::Directory(Index(at)))
        }

        fn entries(&mut self, directory: &Path) -> Vec<Vec<u8>> {
            let inside = self.directories.iter().filter(|path| path.parent() == Some(directory));
            inside.filter_map(|path| path.file_name()).map(|name| name.as_bytes().to_vec()).collect()
        }
    }

    fn name(path: &str, bits: u32) -> Name {
        Name { path: path.into(), bits, label: 1 }
    }

    /// What the patterns mean: refusals of every name at or above the path, allowed again where that is said.
    fn meant(names: &[Name], path: &Path) -> u32 {
        let matches = |name: &Name, path: &Path| {
            let (wanted, have) = (parts(&name.path).unwrap(), parts(path).unwrap());
            wanted.len() == have.len() && wanted.iter().zip(&have).all(|(want, have)| want == b"*" || want == have)
        };
        let leads_below = |name: &Name, path: &Path| {
            let (wanted, have) = (parts(&name.path).unwrap(), parts(path).unwrap());
            wanted.len() > have.len() && wanted.iter().zip(&have).all(|(want, have)| want == b"*" || want == have)
        };
        let mut lasting = 0;
        let mut own = 0;
        let chain: Vec<&Path> = path.ancestors().collect();
        for here in chain.into_iter().rev() {
            own = names.iter().filter(|name| matches(name, here)).fold(0, |bits, name| bits | name.bits & !EXCEPTIONS);
            if own & NAME_READ_REFUSED != 0 {
                own = own & !NAME_READ_ALLOWED | NAME_WAY;
            } else if own & NAME_READ_ALLOWED != 0 {
                lasting &= !NAME_READ_REFUSED;
            }
            lasting |= own & LASTING;
        }
        let way = names.iter().any(|name| name.bits & REFUSAL != 0 && leads_below(name, path));
        lasting | own & NAME_WAY | if way { NAME_WAY } else { 0 }
    }

    /// To whom a change of the path is allowed although a name at or above it refuses that.
    fn excepted(names: &[Name], path: &Path) -> u32 {
        let covers = |name: &&Name| {
            let wanted = parts(&name.path).unwrap();
            let have = parts(path).unwrap();
            name.bits & CHANGE != 0
                && wanted.len() <= have.len()
                && wanted.iter().zip(&have).all(|(want, have)| want == b"*" || want == have)
        };
        names.iter().filter(covers).fold(EXCEPTIONS, |agreed, name| agreed & name.bits)
    }

    fn any_path(wild: bool) -> impl Strategy<Value = String> {
        let part = prop_oneof![4 => "[abc]", 1 => Just(if wild { "*" } else { "d" }.to_owned())];
        proptest::collection::vec(part, 1..5).prop_map(|parts| format!("/{}", parts.join("/")))
    }

    fn any_name() -> impl Strategy<Value = Name> {
        let bits = prop_oneof![
            Just(NAME_WRITE_REFUSED),
            Just(NAME_WRITE_REFUSED | NAME_GIT),
            Just(NAME_WRITE_REFUSED | NAME_HOST | NAME_GIT),
            Just(NAME_PROGRAM_REFUSED | NAME_GIT),
            Just(NAME_READ_REFUSED),
            Just(NAME_READ_ALLOWED),
            Just(NAME_RECORDED),
            Just(NAME_WRITABLE),
        ];
        (any_path(true), bits).prop_map(|(path, bits)| name(&path, bits))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        #[test]
        fn the_walk_says_what_the_patterns_mean(
            names in proptest::collection::vec(any_name(), 0..8),
            there in proptest::collection::vec(any_path(false), 0..8),
            asked in proptest::collection::vec(any_path(false), 1..20),
        ) {
            let there: Vec<&str> = there.iter().map(String::as_str).collect();
            let mut ground = Imagined::with(&there);
            let compiled = compile(&names, &mut ground).unwrap();
            for path in &asked {
                let path = Path::new(path);
                let bits = walk::bits_of(&compiled.steps, ground.anchors(&compiled), path);
                let compared = LASTING | NAME_WAY;
                prop_assert_eq!(bits & compared, meant(&names, path) & compared, "{:?} {:x}", path, bits);
                // Nobody is let pass whom a refusal does not name.
                if bits & CHANGE != 0 {
                    prop_assert_eq!(bits & EXCEPTIONS & !excepted(&names, path), 0, "{:?} {:x}", path, bits);
                }
            }
        }
    }

    #[test]
    fn what_is_not_there_yet_is_protected() {
        let git = NAME_PROGRAM_REFUSED | NAME_GIT;
        let names = [name("/w/.git/hooks/**", git), name("/w/.git/modules/*/hooks", git)];
        let ground = Imagined::with(&["/w"]);
        let compiled = compile(&names, &mut ground.clone()).unwrap();
        let bits = |path: &str| walk::bits_of(&compiled.steps, ground.anchors(&compiled), Path::new(path));
        assert_eq!(bits("/w/.git/hooks/pre-commit"), git);
        assert_eq!(bits("/w/.git/modules/a/hooks/pre-commit"), git);
        assert_eq!(bits("/w/.git"), NAME_WAY | NAME_GIT);
        assert_eq!(bits("/w/.git/modules/a/config") & REFUSAL, 0);
        assert_eq!(bits("/w/src/hooks") & (REFUSAL | NAME_WAY), 0);
    }

    #[test]
    fn an_exception_holds_only_where_all_refusals_agree() {
        let names = [
            name("/h/.claude/settings.json", NAME_WRITE_REFUSED | NAME_HOST),
            name("/h/.claude/hooks", NAME_WRITE_REFUSED),
            name("/h/p/.claude/settings.json", NAME_WRITE_REFUSED | NAME_HOST | NAME_GIT),
        ];
        for there in [&["/h/p"][..], &["/h/.claude/hooks", "/h/p/.claude"]] {
            let ground = Imagined::with(there);
            let compiled = compile(&names, &mut ground.clone()).unwrap();
            let bits = |path: &str| walk::bits_of(&compiled.steps, ground.anchors(&compiled), Path::new(path));
            assert_eq!(bits("/h/.claude"), NAME_WAY);
            assert_eq!(bits("/h/.claude/settings.json"), NAME_WRITE_REFUSED | NAME_HOST);
            assert_eq!(bits("/h/.claude/hooks/x.sh"), NAME_WRITE_REFUSED);
            assert_eq!(bits("/h/p/.claude"), NAME_WAY | NAME_HOST | NAME_GIT);
            assert_eq!(bits("/h/p/.claude/settings.json"), NAME_WRITE_REFUSED | NAME_HOST | NAME_GIT);
        }
    }

    #[test]
    fn where_a_link_leads_is_protected_too() {
        let mut ground = Imagined::with(&["/h/dotfiles/claude", "/h/p"]);
        ground.links.push(("/h/.claude".into(), "/h/dotfiles/claude".into()));
        let compiled = compile(&[name("/h/.claude/settings.json", NAME_WRITE_REFUSED)], &mut ground.clone()).unwrap();
        let bits = |path: &str| walk::bits_of(&compiled.steps, ground.anchors(&compiled), Path::new(path));
        assert_eq!(bits("/h/dotfiles/claude/settings.json"), NAME_WRITE_REFUSED);
        assert_eq!(bits("/h/dotfiles"), NAME_WAY);
        assert_eq!(bits("/h/.claude"), NAME_WAY, "the link is not replaced");
    }

    #[test]
    fn a_part_of_a_name_is_what_is_there_now() {
        let ground = Imagined::with(&["/h/.ssh/id.pub", "/h/.ssh/id"]);
        let names = [name("/h/.ssh", NAME_READ_REFUSED), name("/h/.ssh/*.pub", NAME_READ_ALLOWED)];
        let compiled = compile(&names, &mut ground.clone()).unwrap();
        let bits = |path: &str| walk::bits_of(&compiled.steps, ground.anchors(&compiled), Path::new(path));
        assert_eq!(bits("/h/.ssh/id.pub") & NAME_READ_REFUSED, 0);
        assert_eq!(bits("/h/.ssh/id") & NAME_READ_REFUSED, NAME_READ_REFUSED);
        assert_eq!(bits("/h/.ssh/later.pub") & NAME_READ_REFUSED, NAME_READ_REFUSED);
    }

    #[test]
    fn what_cannot_be_said_is_named() {
        let refused = |path: &str| compile(&[name(path, NAME_WRITE_REFUSED)], &mut Imagined::with(&[])).unwrap_err();
        assert!(matches!(refused("relative"), NameError::Path(_)));
        assert!(matches!(refused("/a/../b"), NameError::Path(_)));
        assert!(matches!(refused("/a/**/b"), NameError::Pattern(_)));
        assert!(matches!(refused("/a/*/b*"), NameError::Pattern(_)));
        assert!(matches!(refused(&format!("/{}", "n".repeat(64))), NameError::Long(_)));
        assert!(matches!(refused("/1/2/3/4/5/6/7/8/9"), NameError::Deep(_)));
        let mut there = Imagined::with(&["/1/2"]);
        assert!(compile(&[name("/1/2/3/4/5/6/7/8/9", NAME_WRITE_REFUSED)], &mut there).is_ok());
    }
}
