//! What refusals are called. A name's number follows from the name alone, so that an event still says what refused it
//! after the service was started anew.
#![forbid(unsafe_code)]

use std::collections::HashMap;

/// Most names that are remembered.
const MOST_NAMES: usize = 1 << 16;

/// Names by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    names: HashMap<u32, String>,
}

impl Labels {
    /// The number of a name, never 0 (FNV-1a).
    pub fn number(&mut self, name: &str) -> u32 {
        let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        let number = hash.max(1);
        if self.names.len() < MOST_NAMES {
            self.names.entry(number).or_insert_with(|| name.to_owned());
        }
        number
    }

    /// The name of a number.
    pub fn name(&self, number: u32) -> Option<&str> {
        self.names.get(&number).map(String::as_str)
    }

    /// Takes over the names of others.
    pub fn extend(&mut self, others: &Labels) {
        for (number, name) in &others.names {
            if self.names.len() < MOST_NAMES {
                self.names.entry(*number).or_insert_with(|| name.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_same_number_everywhere() {
        let mut one = Labels::default();
        let mut other = Labels::default();
        let docker = one.number("docker");
        other.number("session bus");
        assert_eq!(docker, other.number("docker"));
        assert_ne!(docker, other.number("tmux"));
        one.extend(&other);
        assert_eq!((one.name(docker), one.name(0)), (Some("docker"), None));
        assert!(one.name(other.number("tmux")).is_some());
    }
}
