//! Real hosts, and the scripted one, against the scripted model: what is built on must hold, and what is built must work.

mod alike;
mod faults;
mod hook;
mod hook_in_host;
mod hostile;
mod people;
mod sessions;
mod sockets;
mod stand;

use std::process::ExitCode;
use std::time::Duration;

use ringfence_tests::host::pinned;
use ringfence_tests::suite::Suite;

fn main() -> ExitCode {
    let mut suite = Suite::new("hosts").limit(Duration::from_secs(240));
    for host in pinned() {
        let named = format!("{} {}", host.name, host.version);
        let version = host.version.clone();
        suite = suite.case(format!("{named} runs the scripted session offline"), move || alike::runs_offline(&version));
        let version = host.version.clone();
        suite = suite.case(format!("{named}: a session is decided, confined, observed and joined"), move || {
            sessions::real(&version)
        });
        let version = host.version.clone();
        suite = suite.case(format!("{named}: a project's environment changes neither hook nor launcher"), move || {
            hostile::environment(&version)
        });
        suite = suite.case(format!("{named}: a hook that is missing, killed or crashing"), move || {
            faults::broken_hooks(&host.version)
        });
    }
    hook_in_host::cases(hook::cases(suite))
        .case("the scripted host obeys hooks and starts commands as the real one does", alike::scripted_is_alike)
        .case("a scripted session is decided, confined, observed and joined", sessions::scripted)
        .case("a session after /clear in the same host is observed as the first was", sessions::cleared)
        .case(
            "without a probe a session is decided and confined, and says that nothing was observed",
            sessions::without_probe,
        )
        .case(
            "a service that is killed loses nothing it answered, and the hook decides by itself",
            faults::killed_service,
        )
        .case("two people do not see each other's sessions", people::apart)
        .case("the service's sockets refuse what is wrong and answer what is right", sockets::hostile_peers)
        .run()
}
