//! What the cases stand on: a person, a stage, a service and, as root, a probe.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use ringfence::host::claude_code::settings;
use ringfence_tests::person::{Person, needs_root};
use ringfence_tests::running::{Probe, Service};
use ringfence_tests::stage::Stage;
use serde_json::Value;

/// The version whose settings the scripted host is given.
pub const SPOKEN_VERSION: &str = "2.1.332";
/// No metrics: their ports are the machine's, and tests run side by side.
pub const SERVICE_FLAGS: [&str; 2] = ["--metrics-port", "0"];

/// In the order in which they must end.
pub struct Stand {
    /// The person's service.
    pub service: Service,
    /// The probe, if the case has one.
    pub probe: Option<Probe>,
    /// The programs.
    pub stage: Stage,
    /// Whose it is.
    pub person: Person,
}

impl Stand {
    /// With a probe: needs root.
    pub fn observed() -> anyhow::Result<Stand> {
        needs_root("a probe")?;
        let (person, stage) = (Person::new()?, Stage::new()?);
        let probe = Some(Probe::start(&stage)?);
        let service = Service::start_with(&stage, &person, &SERVICE_FLAGS)?;
        Ok(Stand { service, probe, stage, person })
    }

    /// Without one.
    pub fn unobserved() -> anyhow::Result<Stand> {
        let (person, stage) = (Person::new()?, Stage::new()?);
        let service = Service::start_with(&stage, &person, &SERVICE_FLAGS)?;
        Ok(Stand { service, probe: None, stage, person })
    }

    /// The settings that Ringfence writes for this version of Claude Code.
    pub fn settings(&self, version: &str) -> anyhow::Result<Value> {
        Ok(settings::settings(&self.stage.hook(), &self.stage.launcher(), version)?)
    }

    /// What service and probe logged, for failures.
    pub fn logs(&self) -> String {
        let probe = self.probe.as_ref().map(Probe::log).unwrap_or_default();
        format!("service: {}\nprobe: {probe}", self.service.log())
    }
}

/// A copy of the scripted host that this person can start.
pub fn scripted_host(person: &Person) -> anyhow::Result<PathBuf> {
    let copy = person.file("bin/scripted-host", std::fs::read(env!("CARGO_BIN_EXE_ringfence-scripted-host"))?)?;
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755))?;
    Ok(copy)
}
