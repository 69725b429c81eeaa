//! Two users on one machine, one probe between them.

use anyhow::{Context as _, ensure};
use ringfence_tests::person::Person;
use ringfence_tests::running::Service;
use ringfence_tests::scene::Scene;
use ringfence_tests::suite::CaseResult;
use serde_json::Value;

use crate::stand::{SERVICE_FLAGS, SPOKEN_VERSION, Stand, scripted_host};

/// One runs a session; the other, with a service of their own at the same probe, sees nothing of it.
pub fn apart() -> CaseResult {
    let stand = Stand::observed()?;
    let other = Person::new()?;
    let service = Service::start_with(&stand.stage, &other, &SERVICE_FLAGS)?;
    let scene = Scene::set(&stand.person)?;
    scene.play_scripted(&scripted_host(&stand.person)?, &stand.person, &stand.settings(SPOKEN_VERSION)?)?;
    scene.report(&stand.service, &stand.person, true)?;

    let sessions = |text: String| -> anyhow::Result<usize> {
        let list: Value = serde_json::from_str(&text)?;
        let list = list.as_array().or_else(|| list["sessions"].as_array()).context("a list of sessions")?.len();
        Ok(list)
    };
    ensure!(
        sessions(stand.service.ask(&stand.person, &["sessions", "--json"])?)? == 1,
        "the session is the first person's"
    );
    ensure!(sessions(service.ask(&other, &["sessions", "--json"])?)? == 0, "the other person has none");

    // The other person at the first one's sockets, files and processes.
    let runtime = stand.stage.runtime_directory(&stand.person)?;
    let state = stand.stage.state_directory(&stand.person)?;
    for directory in [&runtime, &state] {
        let listing = other.command("ls").arg(directory).output()?;
        ensure!(!listing.status.success(), "{} can be listed", directory.display());
    }
    let asked =
        other.command(stand.stage.program("ringfence")).arg("status").arg("--runtime-dir").arg(&runtime).output()?;
    ensure!(!asked.status.success(), "another user's service answered: {asked:?}");
    Ok(())
}
