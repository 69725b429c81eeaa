//! What the store promises: durable when it says so, private, bounded, never raw, never deleting what it cannot read.
#![forbid(unsafe_code)]

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::*;
use crate::host::{HostKind, ToolClass};
use crate::ledger::Clock;
use crate::ledger::entry::{Entry, Verdict};
use crate::ledger::join::{Change, Fact, FileState, Joiner, JoinerConfig};
use crate::ledger::scene::{HOST_VERSION, MS, exec_of, line, notice_of, sha};
use crate::policy::judge::{Decision, DecisionSource, Outcome};
use crate::probe::protocol::{Mark, Observation, Role};
use crate::process::ProcessId;

const HOST: ProcessId = ProcessId { pid: 100, start: 1 };

struct Place {
    _dir: tempfile::TempDir,
    file: PathBuf,
}

fn place() -> Place {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state/ledger.db");
    Place { _dir: dir, file }
}

fn clock() -> Clock {
    Clock { boot_unix_ns: (now_ms() - 2_000_000) * 1_000_000 }
}

fn joiner() -> Joiner {
    Joiner::new(JoinerConfig::plain(clock()).unwrap())
}

fn opened(session: &str) -> Fact {
    Fact::SessionOpened {
        session: session.into(),
        host: HostKind::ClaudeCode,
        host_version: Some(HOST_VERSION.into()),
        host_process: Some(HOST),
        mark: Some(7),
        complete: true,
        time_ns: 2_000_000 * MS,
    }
}

fn decided(session: &str, call: &str, command: &str, outcome: Outcome, at_ms: u64) -> Fact {
    let decision = Decision {
        outcome,
        reason_code: "none".into(),
        explanation: String::new(),
        rules: Vec::new(),
        source: DecisionSource::LocalRule,
        policy: "sha256:0".into(),
        fence: "default".into(),
    };
    Fact::Decided {
        session: session.into(),
        call_id: call.into(),
        tool: "Bash".into(),
        class: ToolClass::ShellExec,
        summary: "redacted".into(),
        command_digest: Some(sha(command)),
        cwd: "/w".into(),
        decision,
        file: Some(FileState { path: "/w/x".into(), content: None }),
        time_ns: at_ms * MS,
    }
}

fn records(changes: Vec<Change>) -> Vec<Record> {
    changes.into_iter().map(Record::from).collect()
}

fn observed(process: ProcessId, launch: u64, path: &str, argv: &[&str]) -> Fact {
    let mark = Mark { session: 7, launch, generation: 1, role: Role::Launched };
    let kind = exec_of(HOST, path, argv);
    Fact::Observed(Observation { time_ns: 2_000_100 * MS, mark, process, thread: process.pid, kind })
}

/// Everything SQLite keeps of it.
fn on_disk(file: &Path) -> Vec<u8> {
    let dir = file.parent().unwrap();
    std::fs::read_dir(dir).unwrap().flat_map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect()
}

fn holds(haystack: &[u8], needle: &str) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle.as_bytes())
}

#[test]
fn what_is_stored_is_read_back_as_the_ledger_said_it() {
    let place = place();
    let writer = Writer::start(Store::open(&place.file).unwrap()).unwrap();
    let mut joiner = joiner();
    let process = ProcessId { pid: 500, start: 200_009 };
    let mut facts = vec![opened("s1"), decided("s1", "c1", "make", Outcome::NoOverride, 2_000_050)];
    facts.push(observed(process, 1, "/opt/ringfence-exec", &["/opt/ringfence-exec", &line("make")]));
    facts.push(Fact::Launched {
        notice: notice_of(process, HOST, "make", "/w"),
        mark: Some((7, 1)),
        session: None,
        time_ns: 2_000_101 * MS,
    });
    facts.push(observed(process, 1, "/usr/bin/bash", &["bash", "-c", "make"]));
    facts.push(Fact::Tick { time_ns: 2_000_200 * MS });
    for fact in facts {
        writer.eventually(records(joiner.take(fact))).unwrap();
    }
    writer
        .durably(vec![Record::Audit(Audit {
            actor: "uid 1000".into(),
            action: "mode".into(),
            detail: "strict".into(),
        })])
        .unwrap();
    let reader = Reader::open(&place.file).unwrap();
    assert_eq!(reader.session("s1").unwrap(), joiner.report(Some("s1")).remove(0));
    for (table, rows) in [
        (Table::Sessions, 1),
        (Table::Decisions, 1),
        (Table::Launches, 1),
        (Table::Observations, 1),
        (Table::Entries, 1),
        (Table::Audit, 1),
    ] {
        assert_eq!(reader.count(table).unwrap(), rows, "{table:?}");
    }
    assert_eq!(reader.find_session("s").unwrap(), "s1");
    assert!(matches!(reader.find_session("x"), Err(StoreError::NoSession(_))));
    assert_eq!(reader.last_session(Some(Path::new("/w/sub"))).unwrap().as_deref(), Some("s1"));
    assert_eq!(reader.open_session("s1").unwrap().1.len(), 1);
    assert_eq!(reader.first_directory("s1").unwrap().as_deref(), Some("/w"));
    writer.eventually(records(joiner.take(opened("s2")))).unwrap();
    writer.flush().unwrap();
    assert!(matches!(reader.find_session("s"), Err(StoreError::Ambiguous(_, 2))));
    assert_eq!(
        reader.last_session(Some(Path::new("/w"))).unwrap().as_deref(),
        Some("s1"),
        "the directory's own comes first"
    );
    writer.clear().unwrap();
    assert_eq!(reader.count(Table::Entries).unwrap() + reader.count(Table::Sessions).unwrap(), 0);
    assert!(!holds(&on_disk(&place.file), "/usr/bin/bash"), "forgotten on the disk, too");
}

#[test]
fn nothing_raw_reaches_the_disk() {
    const SECRETS: [&str; 3] = ["sk-ant-PLANTED-0001", "ghp_PLANTED0002", "hunter2PLANTED3"];
    let place = place();
    let writer = Writer::start(Store::open(&place.file).unwrap()).unwrap();
    let mut joiner = joiner();
    writer.durably(records(joiner.take(opened("s1")))).unwrap();
    for (nth, secret) in SECRETS.iter().enumerate() {
        let command = format!("curl -H 'authorization: {secret}' https://x/{secret}");
        let process = ProcessId { pid: 600 + nth as u32, start: 200_009 };
        let launch = nth as u64 + 1;
        let facts = [
            decided("s1", &format!("c{nth}"), &command, Outcome::NoOverride, 2_000_050),
            observed(process, launch, "/opt/ringfence-exec", &["/opt/ringfence-exec", &line(&command)]),
            Fact::Launched {
                notice: notice_of(process, HOST, &command, "/w"),
                mark: Some((7, launch)),
                session: None,
                time_ns: 2_000_101 * MS,
            },
            observed(process, launch, "/usr/bin/bash", &["bash", "-c", &line(&command)]),
            observed(process, launch, "/usr/bin/curl", &["curl", "-H", &format!("authorization: {secret}")]),
            observed(ProcessId { pid: 700 + nth as u32, start: 3 }, 0, "/usr/bin/curl", &["curl", secret]),
            Fact::Tick { time_ns: 2_009_000 * MS },
        ];
        for fact in facts {
            writer.durably(records(joiner.take(fact))).unwrap();
        }
    }
    let disk = on_disk(&place.file);
    assert!(holds(&disk, "/usr/bin/curl"), "the files hold what was stored");
    for secret in SECRETS {
        assert!(!holds(&disk, secret), "{secret} is on the disk");
    }
}

#[test]
fn files_are_private_and_used_by_one_service() {
    let place = place();
    let store = Store::open(&place.file).unwrap();
    assert!(matches!(Store::open(&place.file), Err(StoreError::InUse(_))));
    let writer = Writer::start(store).unwrap();
    writer.durably(records(joiner().take(opened("s1")))).unwrap();
    let dir = place.file.parent().unwrap();
    assert_eq!(std::fs::metadata(dir).unwrap().permissions().mode() & 0o777, 0o700);
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", entry.path());
    }
    drop(writer);
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(matches!(Store::open(&place.file), Err(StoreError::NotPrivate(_))));
}

#[test]
fn a_damaged_file_is_set_aside_and_kept() {
    let place = place();
    drop(Store::open(&place.file).unwrap());
    let garbage = b"this is not a database, and it is longer than a header of one hundred bytes".repeat(40);
    std::fs::write(&place.file, &garbage).unwrap();
    let store = Store::open(&place.file).unwrap();
    assert_eq!(store.notes.len(), 1);
    let kept = std::fs::read_dir(place.file.parent().unwrap()).unwrap().map(|e| e.unwrap().path());
    let kept: Vec<_> = kept.filter(|p| p.to_string_lossy().contains("damaged")).collect();
    assert_eq!(std::fs::read(&kept[0]).unwrap(), garbage);
    let writer = Writer::start(store).unwrap();
    writer.durably(records(joiner().take(opened("s1")))).unwrap();
}

#[test]
fn a_newer_schema_and_a_strange_database_are_refused_untouched() {
    let place = place();
    drop(Store::open(&place.file).unwrap());
    Connection::open(&place.file).unwrap().pragma_update(None, "user_version", 99).unwrap();
    assert!(matches!(Store::open(&place.file), Err(StoreError::NewerSchema { found: 99, .. })));
    let other = place.file.with_file_name("other.db");
    Connection::open(&other).unwrap().execute_batch("CREATE TABLE mine (x)").unwrap();
    assert!(matches!(Store::open(&other), Err(StoreError::NotOurs(_))));
    let tables: i64 =
        Connection::open(&other).unwrap().query_row("SELECT count(*) FROM mine", [], |r| r.get(0)).unwrap();
    assert_eq!(tables, 0);
}

#[test]
fn a_migration_copies_first_and_all_or_nothing_of_it_happens() {
    let place = place();
    let writer = Writer::start(Store::open(&place.file).unwrap()).unwrap();
    writer.durably(records(joiner().take(opened("s1")))).unwrap();
    drop(writer);
    let broken = [migrations::ALL[0], "CREATE TABLE extra (x TEXT) STRICT; CREATE TABLE extra (x TEXT) STRICT;"];
    assert!(Store::open_with(&place.file, &broken).is_err());
    let version = |file: &Path| -> u32 {
        Connection::open(file).unwrap().pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
    };
    assert_eq!(version(&place.file), 1, "a failed migration changes nothing");
    let steps = [migrations::ALL[0], "CREATE TABLE extra (x TEXT) STRICT;"];
    let store = Store::open_with(&place.file, &steps).unwrap();
    assert_eq!(store.notes.len(), 1);
    drop(store);
    let copy = beside(&place.file, "schema-1");
    assert_eq!((version(&place.file), version(&copy)), (2, 1));
    assert_eq!(std::fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(Reader::open(&copy).unwrap().sessions(9).unwrap().len(), 1);
}

#[test]
fn old_rows_go_and_findings_stay_longer() {
    let place = place();
    let writer = Writer::start(Store::open(&place.file).unwrap()).unwrap();
    let days_ago = |days: i64| Clock { boot_unix_ns: (now_ms() - days * 86_400_000 - 2_000_000) * 1_000_000 };
    for (session, days) in [("old", 40), ("middle", 20), ("new", 1)] {
        let mut joiner = Joiner::new(JoinerConfig::plain(days_ago(days)).unwrap());
        writer.durably(records(joiner.take(opened(session)))).unwrap();
        for call in 0..700 {
            let changes = joiner.take(decided(session, &format!("c{call}"), "x", Outcome::NoOverride, 2_000_050));
            writer.eventually(records(changes)).unwrap();
        }
        writer.flush().unwrap();
        let stranger = observed(ProcessId { pid: 9, start: 9 }, 0, "/bin/nc", &["nc"]);
        writer.durably(records(joiner.take(stranger))).unwrap();
        writer.durably(records(joiner.take(Fact::Tick { time_ns: 2_009_000 * MS }))).unwrap();
    }
    let reader = Reader::open(&place.file).unwrap();
    assert_eq!((reader.count(Table::Decisions).unwrap(), reader.count(Table::Findings).unwrap()), (2100, 3));
    writer.retain(Retention::default()).unwrap();
    assert_eq!((reader.count(Table::Decisions).unwrap(), reader.count(Table::Findings).unwrap()), (700, 2));
    assert_eq!(reader.count(Table::Entries).unwrap(), 701);
    writer.retain(Retention { event_days: 0, finding_days: 0 }).unwrap();
    assert_eq!(reader.count(Table::Entries).unwrap() + reader.count(Table::Findings).unwrap(), 0);
}

#[test]
fn one_row_that_does_not_fit_does_not_take_others_with_it() {
    let place = place();
    let writer = Writer::start(Store::open(&place.file).unwrap()).unwrap();
    let mut joiner = joiner();
    let mut batch = records(joiner.take(opened("s1")));
    let mut changes = joiner.take(decided("s1", "c1", "x", Outcome::Deny, 2_000_050));
    for change in &mut changes {
        if let Change::Entry { entry, .. } = change {
            entry.id = "i".repeat(100);
        }
    }
    batch.extend(records(changes));
    batch.extend(records(joiner.take(decided("s1", "c2", "y", Outcome::Deny, 2_000_060))));
    writer.durably(batch).unwrap();
    assert_eq!(Reader::open(&place.file).unwrap().count(Table::Decisions).unwrap(), 1);
    assert_eq!(writer.health().refused, 1);
}

#[test]
fn a_locked_database_is_waited_for_and_nothing_is_lost() {
    let place = place();
    let writer = Writer::start(Store::open(&place.file).unwrap()).unwrap();
    let intruder = Connection::open(&place.file).unwrap();
    intruder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut joiner = joiner();
    assert!(
        matches!(writer.durably(records(joiner.take(opened("s1")))), Err(StoreError::NotStored(_))),
        "it is not called stored"
    );
    assert!(writer.health().failing.is_some() && writer.health().backlog > 0);
    intruder.execute_batch("COMMIT").unwrap();
    let began = Instant::now();
    while writer.health().failing.is_some() && began.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(Reader::open(&place.file).unwrap().sessions(9).unwrap().len(), 1);
}

/// The child of the next test: decides for ever and says each decision after it was stored.
#[test]
fn decides_until_it_is_killed() {
    let Some(file) = std::env::var_os("RINGFENCE_TEST_STORE") else { return };
    let writer = Writer::start(Store::open(Path::new(&file)).unwrap()).unwrap();
    let mut joiner = joiner();
    writer.durably(records(joiner.take(opened("s1")))).unwrap();
    for call in 0.. {
        writer
            .durably(records(joiner.take(decided("s1", &format!("c{call}"), "x", Outcome::Deny, 2_000_050))))
            .unwrap();
        println!("answered c{call}");
    }
}

#[test]
fn what_was_answered_survives_a_kill_in_the_middle() {
    use std::io::{BufRead, BufReader};
    let place = place();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["store::tests::decides_until_it_is_killed", "--exact", "--nocapture", "--test-threads=1"])
        .env("RINGFENCE_TEST_STORE", &place.file)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut answered: Vec<String> = Vec::new();
    let mut note = |line: String| answered.extend(line.split("answered ").nth(1).map(str::to_owned));
    lines.by_ref().take(300).for_each(&mut note);
    child.kill().unwrap();
    lines.for_each(note);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert!(answered.len() > 250, "only {} were answered", answered.len());
    let store = Store::open(&place.file).unwrap();
    assert!(store.notes.is_empty(), "{:?}", store.notes);
    let report = Reader::open(&place.file).unwrap().session("s1").unwrap();
    let stored: std::collections::HashSet<&str> = report.entries.iter().filter_map(|e| e.call_id.as_deref()).collect();
    for call in &answered {
        assert!(stored.contains(call.as_str()), "{call} was answered and is lost");
    }
    assert!(report.entries.iter().all(|e: &Entry| e.verdict == Verdict::Running));
}

/// How long an answer waits for the disk: printed, since it is a promise of the machine and not of the code.
#[test]
fn an_answer_waits_little_for_the_store() {
    let place = place();
    let writer = Writer::start(Store::open(&place.file).unwrap()).unwrap();
    let mut joiner = joiner();
    writer.durably(records(joiner.take(opened("s1")))).unwrap();
    let mut times: Vec<Duration> = (0..1000)
        .map(|call| {
            let changes = records(joiner.take(decided("s1", &format!("c{call}"), "x", Outcome::NoOverride, 2_000_050)));
            let began = Instant::now();
            writer.durably(changes).unwrap();
            began.elapsed()
        })
        .collect();
    times.sort();
    println!("a durable decision: median {:?}, p99 {:?}, worst {:?}", times[500], times[990], times[999]);
    assert!(times[500] < Duration::from_millis(50), "a median of {:?} would be felt at every call", times[500]);
}
