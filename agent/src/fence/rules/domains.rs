//! Domain names that fences speak of: resolved again and again, each address kept for a while after it left the answer.
//!
//! This is convenience, not a boundary: whoever answers for the name chooses the addresses, and one address serves many
//! names.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use serde::Serialize;

/// Longest time between two questions.
pub const EVERY: Duration = Duration::from_secs(60);
/// How long an address stays after an answer came without it.
pub const STAYS: Duration = Duration::from_secs(600);
/// Most names.
pub const MOST_DOMAINS: usize = 256;
/// Most addresses of one name.
pub const MOST_ADDRESSES: usize = 256;

/// All names, with what is known of each. Times are any monotonic clock's.
#[derive(Debug, Default)]
pub struct Domains {
    by_name: BTreeMap<String, Domain>,
}

#[derive(Debug, Default)]
struct Domain {
    addresses: BTreeMap<IpAddr, Address>,
    next: Duration,
    failure: Option<String>,
}

#[derive(Debug)]
struct Address {
    since: Duration,
    left: Option<Duration>,
}

/// What is known of a name, for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedDomain {
    /// The name.
    pub domain: String,
    /// Its addresses, each with the seconds since it first came, and since it left the answer.
    pub addresses: Vec<(IpAddr, u64, Option<u64>)>,
    /// Why the last question had no answer.
    pub failure: Option<String>,
}

impl Domains {
    /// From now on these names and no others are asked for; more than [`MOST_DOMAINS`] are left out.
    pub fn want<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        let names: BTreeSet<&str> = names.take(MOST_DOMAINS).collect();
        self.by_name.retain(|name, _| names.contains(name.as_str()));
        for name in names {
            self.by_name.entry(name.to_owned()).or_default();
        }
    }

    /// The names to ask for now.
    pub fn due(&self, now: Duration) -> Vec<String> {
        self.by_name.iter().filter(|(_, domain)| domain.next <= now).map(|(name, _)| name.clone()).collect()
    }

    /// An answer, with how long it holds if that is known; a question that failed takes nothing away.
    pub fn answered(&mut self, name: &str, answer: Result<(Vec<IpAddr>, Option<Duration>), String>, now: Duration) {
        let Some(domain) = self.by_name.get_mut(name) else { return };
        let (answer, holds) = match answer {
            Ok(answer) => answer,
            Err(reason) => {
                (domain.next, domain.failure) = (now + EVERY, Some(reason));
                return;
            }
        };
        domain.failure = None;
        domain.next = now + holds.unwrap_or(EVERY).clamp(Duration::from_secs(1), EVERY);
        let answer: BTreeSet<IpAddr> = answer.into_iter().take(MOST_ADDRESSES).collect();
        for (address, known) in &mut domain.addresses {
            match answer.contains(address) {
                true => known.left = None,
                false => known.left = known.left.or(Some(now)),
            }
        }
        for address in answer {
            domain.addresses.entry(address).or_insert(Address { since: now, left: None });
        }
        domain.forget(now);
    }

    /// The addresses that each name stands for now.
    pub fn addresses(&mut self, now: Duration) -> HashMap<String, Vec<IpAddr>> {
        let mut all = HashMap::new();
        for (name, domain) in &mut self.by_name {
            domain.forget(now);
            all.insert(name.clone(), domain.addresses.keys().copied().collect());
        }
        all
    }

    /// What is known, for a person.
    pub fn explain(&self, now: Duration) -> Vec<ExplainedDomain> {
        let ago = |then: Duration| now.saturating_sub(then).as_secs();
        let explain = |(name, domain): (&String, &Domain)| ExplainedDomain {
            domain: name.clone(),
            addresses: domain
                .addresses
                .iter()
                .map(|(ip, known)| (*ip, ago(known.since), known.left.map(ago)))
                .collect(),
            failure: domain.failure.clone(),
        };
        self.by_name.iter().map(explain).collect()
    }
}

impl Domain {
    fn forget(&mut self, now: Duration) {
        self.addresses.retain(|_, known| known.left.is_none_or(|left| now < left + STAYS));
        while self.addresses.len() > MOST_ADDRESSES {
            // Those that left longest ago first.
            let oldest = self.addresses.iter().min_by_key(|(_, known)| (known.left.is_none(), known.left, known.since));
            let Some(oldest) = oldest.map(|(address, _)| *address) else { return };
            self.addresses.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn an_address_stays_ten_minutes_after_it_left_the_answer() {
        let mut domains = Domains::default();
        domains.want(["a.example"].into_iter());
        assert_eq!(domains.due(at(0)), ["a.example"]);
        domains.answered("a.example", Ok((vec![ip(1), ip(2)], None)), at(0));
        assert!(domains.due(at(59)).is_empty());
        assert_eq!(domains.due(at(60)), ["a.example"]);
        domains.answered("a.example", Ok((vec![ip(2)], None)), at(60));
        assert_eq!(domains.addresses(at(659))["a.example"], [ip(1), ip(2)]);
        assert_eq!(domains.explain(at(70))[0].addresses, [(ip(1), 70, Some(10)), (ip(2), 70, None)]);
        assert_eq!(domains.addresses(at(660))["a.example"], [ip(2)]);
    }

    #[test]
    fn a_short_life_is_asked_for_sooner_and_a_failure_takes_nothing_away() {
        let mut domains = Domains::default();
        domains.want(["a.example"].into_iter());
        domains.answered("a.example", Ok((vec![ip(1)], Some(at(5)))), at(0));
        assert_eq!(domains.due(at(5)), ["a.example"]);
        domains.answered("a.example", Err("no network".into()), at(5));
        assert_eq!(domains.addresses(at(5000))["a.example"], [ip(1)]);
        assert_eq!(domains.explain(at(6))[0].failure.as_deref(), Some("no network"));
        domains.answered("a.example", Ok((vec![ip(1)], Some(at(86400)))), at(70));
        assert_eq!(domains.due(at(130)), ["a.example"]);
    }

    #[test]
    fn names_and_addresses_are_bounded_and_forgotten() {
        let mut domains = Domains::default();
        let names: Vec<String> = (0..MOST_DOMAINS + 5).map(|at| format!("{at}.example")).collect();
        domains.want(names.iter().map(String::as_str));
        assert_eq!(domains.due(at(0)).len(), MOST_DOMAINS);
        domains.want(["0.example"].into_iter());
        for round in 0..8u16 {
            let many = (0..200u16).map(|low| IpAddr::from([10, 0, round as u8, low as u8])).collect();
            domains.answered("0.example", Ok((many, None)), at(u64::from(round)));
        }
        let kept = &domains.addresses(at(8))["0.example"];
        assert_eq!(kept.len(), MOST_ADDRESSES);
        assert!(kept.contains(&IpAddr::from([10, 0, 7, 199])));
        domains.want(std::iter::empty());
        assert!(domains.addresses(at(8)).is_empty());
    }
}
