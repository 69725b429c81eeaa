//! What goes on beside the calls: the stream of observations, the passing of time, and proof.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use super::canary::{self, Canary, Seen};
use super::health::Proof;
use super::person::Person;
use super::plans::CANARY;
use crate::clock::boottime_ns;
use crate::ledger::entry::GateState;
use crate::pipeline::Pipeline;

/// Between two attempts to reach a probe that is away.
const RECONNECT: Duration = Duration::from_secs(2);
/// Between two ticks of the ledger, while a session is open.
const TICK: Duration = Duration::from_millis(250);
/// Between two ticks while none is: nothing waits then.
const IDLE_TICK: Duration = Duration::from_secs(5);
/// The least time between two proofs.
const LEAST: Duration = Duration::from_secs(1);
/// A sleep of the machine that is worth a new proof.
const RESUMED_NS: u64 = 1_000_000_000;
/// Between two proofs while a session lives.
const PROVE: Duration = Duration::from_secs(60);

/// How often, and how long each time, a canary's events are waited for.
const ARRIVALS: u32 = 40;
const ARRIVAL: Duration = Duration::from_millis(25);

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Takes observations from the probe for as long as the service lives; a gap is marked in every open session.
pub async fn observations(pipeline: Rc<Pipeline>) {
    loop {
        match pipeline.probe.stream().await {
            Ok(mut stream) => {
                pipeline.observation_resumed();
                loop {
                    match stream.next().await {
                        Ok(batch) => pipeline.observed(batch),
                        Err(error) => {
                            tracing::warn!("observations stopped: {error}");
                            break;
                        }
                    }
                }
                pipeline.observation_stopped();
            }
            Err(error) => tracing::debug!("no observations: {error}"),
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

/// Lets windows close and sessions end.
pub async fn time(pipeline: Rc<Pipeline>) {
    let mut slept = slept_ns();
    loop {
        let pause = match pipeline.sessions.borrow().is_empty() {
            true => IDLE_TICK,
            false => TICK,
        };
        tokio::time::sleep(pause).await;
        let slept_now = slept_ns();
        if slept_now > slept + RESUMED_NS {
            pipeline.prove_soon.notify_one();
        }
        slept = slept_now;
        pipeline.tick().await;
        if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]) {
            tracing::debug!("systemd was not told: {error}");
        }
    }
}

/// Forgets what is too old, at start and once a day.
pub async fn age(pipeline: Rc<Pipeline>) {
    loop {
        if let Err(error) = pipeline.records.retain() {
            tracing::error!("what is too old was not forgotten: {error}");
        }
        tokio::time::sleep(DAY).await;
    }
}

/// Keeps every tree's rules to what the machine is now.
pub async fn rules(pipeline: Rc<Pipeline>) {
    pipeline.rules.keep_current(|session, reason| pipeline.rules_failed(session, reason)).await;
}

/// Proves the fence at start, every minute while a session lives, and when it is asked to.
pub async fn proof(person: Rc<Person>, ground: PathBuf) {
    loop {
        prove(&person, &ground).await;
        tokio::time::sleep(LEAST).await;
        loop {
            let asked = tokio::time::timeout(PROVE, person.pipeline.prove_soon.notified()).await;
            if asked.is_ok() || !person.pipeline.sessions.borrow().is_empty() {
                break;
            }
        }
    }
}

/// How long the machine has slept since its start: CLOCK_MONOTONIC stands still meanwhile.
fn slept_ns() -> u64 {
    let monotonic = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .map_or(0, |now| now.tv_sec().unsigned_abs() * 1_000_000_000 + now.tv_nsec().unsigned_abs());
    boottime_ns().saturating_sub(monotonic)
}

async fn prove(person: &Person, ground: &Path) {
    let canary =
        Canary { ringfence: person.ringfence.clone(), launcher: person.launcher.clone(), ground: ground.to_owned() };
    let made = person.pipeline.plans.canary(&canary.tree(), person.pipeline.policy.hash());
    let (plan, abi) = match made {
        Ok(made) => made,
        Err(error) => return unproven(person, &error.to_string()).await,
    };
    let (observed, gates) = match person.pipeline.probe.is_there().await {
        true => (seen(person, &canary, &plan).await, gates(person, ground).await),
        false => (None, Vec::new()),
    };
    match tokio::task::spawn_blocking(move || canary.run(&plan, abi)).await {
        Ok(proof) => *person.pipeline.proof.borrow_mut() = Proof { seen: observed, gates, ..proof },
        Err(error) => return unproven(person, &error.to_string()).await,
    }
    person.pipeline.plans.sweep(CANARY);
    person.status().await;
}

/// What the kernel's gates refuse to a canary.
async fn gates(person: &Person, ground: &Path) -> Vec<GateState> {
    let rounds = canary::gates::rounds(&person.pipeline, &person.ringfence, ground).await;
    let programs = person.pipeline.probe.status().await.map(|(programs, _)| programs).unwrap_or_default();
    match rounds {
        Ok(rounds) => canary::gates::judge(
            &rounds,
            &programs,
            &jiff::Timestamp::now().round(jiff::Unit::Second).unwrap_or_default().to_string(),
        ),
        Err(error) => {
            tracing::error!("the kernel's gates could not be proven: {error}");
            canary::gates::untried(&error.to_string())
        }
    }
}

/// What was proven earlier is not proven now.
async fn unproven(person: &Person, reason: &str) {
    tracing::error!("the fence could not be proven: {reason}");
    *person.pipeline.proof.borrow_mut() = Proof::default();
    person.status().await;
}

/// What the kernel shows of a canary, once its events had time to arrive.
async fn seen(person: &Person, canary: &Canary, plan: &Path) -> Option<Seen> {
    let mark = match canary.in_a_marked_tree(plan, &person.pipeline).await {
        Ok(mark) => mark,
        Err(error) => {
            tracing::error!("observation could not be proven: {error}");
            return None;
        }
    };
    for _ in 0..ARRIVALS {
        if person.pipeline.canaries.borrow().get(&mark).is_some_and(Seen::is_whole) {
            break;
        }
        tokio::time::sleep(ARRIVAL).await;
    }
    person.pipeline.probe.close_session(mark).await;
    person.pipeline.canaries.borrow_mut().remove(&mark)
}
