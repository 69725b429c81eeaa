//! Rules about addresses, one after the other as a person means them, to what a trie of longest prefixes can answer.
//!
//! The kernel finds only the longest prefix that covers an address. So each prefix carries what the shorter ones around
//! it say, and a refusal wins there over whatever allows, however long the prefix is that allows.
#![forbid(unsafe_code)]

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};
use ringfence_common::rules::{PORT_RANGES, gate};

use crate::probe::rules::{AddressRule, PortRule};

/// Gates that a rule about addresses can speak of.
pub const GATES: [u32; 3] = [gate::CONNECT, gate::DATAGRAM, gate::BIND];

/// One rule, as written or as a domain name was resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Linear {
    /// The addresses.
    pub network: IpNet,
    /// First and last port.
    pub ports: (u16, u16),
    /// Bits `1 << gate` of [`GATES`].
    pub gates: u16,
    /// Refused, else allowed.
    pub refused: bool,
    /// What a refusal is called, and where the address came from.
    pub name: String,
}

/// More is said of a prefix than the kernel's map holds.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the rules need {1} port ranges for {0}, and a prefix takes {PORT_RANGES}: write fewer, wider ranges")]
pub struct TooManyRanges(pub IpNet, pub usize);

/// Each family's prefixes, by address and length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tries {
    /// IPv4, and IPv6 in its mapped form.
    pub v4: Vec<AddressRule<[u8; 4]>>,
    /// IPv6.
    pub v6: Vec<AddressRule<[u8; 16]>>,
}

/// An address in IPv6 form that the kernel's programs look up as IPv4 is one.
pub fn unmapped(network: IpNet) -> IpNet {
    match network {
        IpNet::V6(six) if six.prefix_len() >= 96 => match six.network().to_ipv4_mapped() {
            Some(four) => Ipv4Net::new(four, six.prefix_len() - 96).map_or(network, IpNet::V4),
            None => network,
        },
        other => other,
    }
}

/// Compiles the rules. Their order never matters.
pub fn compile(rules: &[Linear]) -> Result<Tries, TooManyRanges> {
    let mut by_network: Vec<(IpNet, PortRule)> = rules
        .iter()
        .map(|rule| {
            let &Linear { network, ports: (first, last), gates, refused, name: _ } = rule;
            (unmapped(network).trunc(), PortRule { first, last, gates, refused })
        })
        .collect();
    // IPv4 before IPv6; then by address, shorter prefixes first: a prefix stands behind all that cover it.
    by_network.sort_by_key(|(network, _)| (network.addr(), network.prefix_len()));
    let mut tries = Tries::default();
    let mut around: Vec<(IpNet, Vec<PortRule>)> = Vec::new();
    for same in by_network.chunk_by(|(one, _), (other, _)| one == other) {
        let network = same[0].0;
        while around.last().is_some_and(|(outer, _)| !outer.contains(&network)) {
            around.pop();
        }
        let outer = around.last().map(|(_, ports)| ports.as_slice()).unwrap_or_default();
        let ports = normal(outer.iter().copied().chain(same.iter().map(|(_, rule)| *rule)));
        if ports.len() > PORT_RANGES {
            return Err(TooManyRanges(network, ports.len()));
        }
        // What says the same as the prefix around it needs no entry.
        if ports != outer {
            let bits = network.prefix_len();
            match network.addr() {
                IpAddr::V4(address) => {
                    tries.v4.push(AddressRule { address: address.octets(), bits, ports: ports.clone() });
                }
                IpAddr::V6(address) => {
                    tries.v6.push(AddressRule { address: address.octets(), bits, ports: ports.clone() });
                }
            }
        }
        around.push((network, ports));
    }
    Ok(tries)
}

/// The same said with few ranges: those of one gate joined, equal ranges of several gates put together, and nothing
/// allowed that is refused anyway.
fn normal(rules: impl Iterator<Item = PortRule> + Clone) -> Vec<PortRule> {
    let mut found: Vec<PortRule> = Vec::new();
    for gate in GATES {
        let bit = 1u16 << gate;
        let of = |refused: bool| {
            let mut ranges: Vec<(u16, u16)> = rules
                .clone()
                .filter(|rule| rule.gates & bit != 0 && rule.refused == refused && rule.first <= rule.last)
                .map(|rule| (rule.first, rule.last))
                .collect();
            ranges.sort_unstable();
            let mut joined: Vec<(u16, u16)> = Vec::new();
            for (first, last) in ranges {
                match joined.last_mut() {
                    Some((_, end)) if u32::from(first) <= u32::from(*end) + 1 => *end = last.max(*end),
                    _ => joined.push((first, last)),
                }
            }
            joined
        };
        let refused = of(true);
        let hidden = |(first, last): &(u16, u16)| refused.iter().any(|(from, to)| from <= first && last <= to);
        let allowed = of(false).into_iter().filter(|range| !hidden(range)).map(|range| (range, false));
        for ((first, last), refused) in refused.iter().map(|range| (*range, true)).chain(allowed) {
            let same = |rule: &&mut PortRule| (rule.first, rule.last, rule.refused) == (first, last, refused);
            match found.iter_mut().find(same) {
                Some(rule) => rule.gates |= bit,
                None => found.push(PortRule { first, last, gates: bit, refused }),
            }
        }
    }
    found.sort_unstable();
    found
}

/// The rules that speak of an address and port: refusals first, longest prefix first.
pub fn speaking_of<'a>(rules: &'a [Linear], address: IpAddr, port: u16, gate: u32) -> Vec<&'a Linear> {
    let address = match address {
        IpAddr::V6(six) => six.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    };
    let speaks = |rule: &&'a Linear| {
        rule.gates & (1 << gate) != 0
            && (rule.ports.0..=rule.ports.1).contains(&port)
            && unmapped(rule.network).contains(&address)
    };
    let mut found: Vec<&Linear> = rules.iter().filter(speaks).collect();
    found.sort_by_key(|rule| (!rule.refused, u8::MAX - unmapped(rule.network).prefix_len()));
    found
}

/// Addresses by which a process reaches this machine itself: loopback, the address of nobody (the kernel connects it to
/// loopback), and those of its interfaces.
pub fn own() -> Vec<IpNet> {
    let mut own: Vec<IpNet> = Vec::new();
    for text in ["127.0.0.0/8", "0.0.0.0/32", "::1/128", "::/128"] {
        own.extend(text.parse::<IpNet>());
    }
    for interface in nix::ifaddrs::getifaddrs().into_iter().flatten() {
        let Some(address) = interface.address else { continue };
        let ip: Option<IpAddr> = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
            (Some(four), _) => Some(IpAddr::V4(four.ip())),
            (_, Some(six)) => Some(IpAddr::V6(six.ip())),
            _ => None,
        };
        if let Some(ip) = ip
            && !own.iter().any(|network| network.contains(&ip))
        {
            own.push(ip.into());
        }
    }
    own
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    const CONNECT: u16 = 1 << gate::CONNECT;
    const ALL: u16 = CONNECT | 1 << gate::DATAGRAM | 1 << gate::BIND;

    fn rule(network: &str, ports: (u16, u16), gates: u16, refused: bool) -> Linear {
        Linear { network: network.parse().unwrap(), ports, gates, refused, name: String::new() }
    }

    /// What the kernel answers: the longest prefix alone, and in it refusals first.
    fn kernel(tries: &Tries, address: IpAddr, port: u16, gate: u32) -> Option<bool> {
        let ports = match address {
            IpAddr::V4(address) => {
                let covers = |rule: &&AddressRule<[u8; 4]>| {
                    IpNet::new(IpAddr::from(rule.address), rule.bits).unwrap().contains(&IpAddr::V4(address))
                };
                tries.v4.iter().filter(covers).max_by_key(|rule| rule.bits).map(|rule| &rule.ports)
            }
            IpAddr::V6(address) => {
                let covers = |rule: &&AddressRule<[u8; 16]>| {
                    IpNet::new(IpAddr::from(rule.address), rule.bits).unwrap().contains(&IpAddr::V6(address))
                };
                tries.v6.iter().filter(covers).max_by_key(|rule| rule.bits).map(|rule| &rule.ports)
            }
        }?;
        let speaks = |rule: &&PortRule| rule.gates & (1 << gate) != 0 && (rule.first..=rule.last).contains(&port);
        let refused = ports.iter().filter(speaks).any(|rule| rule.refused);
        ports.iter().any(|rule| speaks(&rule)).then_some(!refused)
    }

    /// What the rules mean, one after the other.
    fn linear(rules: &[Linear], address: IpAddr, port: u16, gate: u32) -> Option<bool> {
        speaking_of(rules, address, port, gate).first().map(|rule| !rule.refused)
    }

    prop_compose! {
        /// Few bits differ, so that prefixes lie in each other.
        fn any_rule()(six in any::<bool>(), top in 0u8..4, low in 0u8..4, bits in 0u8..=32, first in 0u16..6, more in 0u16..4,
                      gates in 1u16..8, refused in any::<bool>()) -> Linear {
            let network = match six {
                false => IpNet::new([top << 6, 0, 0, low].into(), bits).unwrap(),
                true => IpNet::new([u16::from(top) << 14, 0, 0, 0, 0, 0, 0, u16::from(low)].into(), bits * 4).unwrap(),
            };
            let gates = GATES.iter().enumerate().filter(|(at, _)| gates >> at & 1 != 0).map(|(_, gate)| 1 << gate).sum();
            Linear { network, ports: (first, first + more), gates, refused, name: String::new() }
        }
    }

    proptest! {
        #[test]
        fn the_longest_prefix_says_what_all_rules_say(rules in proptest::collection::vec(any_rule(), 0..12)) {
            let tries = compile(&rules).unwrap();
            for top in 0u8..4 {
                for low in 0u8..4 {
                    let four = IpAddr::from([top << 6, 0, 0, low]);
                    let six = IpAddr::from([u16::from(top) << 14, 0, 0, 0, 0, 0, 0, u16::from(low)]);
                    for address in [four, six] {
                        for port in 0..12 {
                            for gate in GATES {
                                prop_assert_eq!(kernel(&tries, address, port, gate), linear(&rules, address, port, gate));
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_refusal_around_wins_over_what_a_longer_prefix_allows() {
        let rules = [rule("10.0.0.0/8", (22, 22), CONNECT, true), rule("10.1.2.3/32", (0, 65535), ALL, false)];
        let tries = compile(&rules).unwrap();
        let address = IpAddr::from([10, 1, 2, 3]);
        assert_eq!(kernel(&tries, address, 22, gate::CONNECT), Some(false));
        assert_eq!(kernel(&tries, address, 80, gate::CONNECT), Some(true));
        assert_eq!(kernel(&tries, address, 22, gate::BIND), Some(true));
    }

    #[test]
    fn a_mapped_address_is_the_one_it_maps() {
        let tries = compile(&[rule("::ffff:10.0.0.0/104", (0, 65535), ALL, true)]).unwrap();
        assert!(tries.v6.is_empty());
        assert_eq!((tries.v4[0].address, tries.v4[0].bits), ([10, 0, 0, 0], 8));
    }

    #[test]
    fn a_prefix_with_too_much_said_of_it_is_named() {
        let rules: Vec<Linear> = (0..17).map(|at| rule("192.0.2.0/24", (at * 2, at * 2), CONNECT, true)).collect();
        assert_eq!(compile(&rules), Err(TooManyRanges("192.0.2.0/24".parse().unwrap(), 17)));
    }

    #[test]
    fn ten_thousand_addresses_are_quick() {
        let rules: Vec<Linear> = (0..10_000u32)
            .map(|at| {
                rule(&format!("{}/32", Ipv4Addr::from(at.wrapping_mul(2_654_435_761))), (0, 65535), ALL, at % 3 == 0)
            })
            .chain([rule("0.0.0.0/0", (22, 22), CONNECT, true)])
            .collect();
        let began = std::time::Instant::now();
        let tries = compile(&rules).unwrap();
        let took = began.elapsed();
        assert_eq!(tries.v4.len(), 10_001);
        // Not optimised, and other tests run beside it.
        assert!(took < std::time::Duration::from_secs(1), "{took:?}");
    }

    #[test]
    fn own_addresses_hold_loopback() {
        let own = own();
        assert!(own.iter().any(|network| network.contains(&IpAddr::from([127, 0, 0, 1]))), "{own:?}");
    }
}
