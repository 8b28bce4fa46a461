//! Identity of an interface, which may have been renamed or moved to another network namespace.

use serde::{Deserialize, Serialize};

use super::SettingKey;

/// Properties that identify an interface independently of its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceIdentity {
    /// Interface index; it is kept across namespaces unless it is already used there.
    pub index: u32,
    /// Link-layer address; the permanent one if the hardware has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Kind of the virtual interface; `None` for hardware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// Interface that exists now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceEntry {
    /// Number of its network namespace, assigned by the caller.
    pub namespace: usize,
    pub name: String,
    pub identity: InterfaceIdentity,
}

/// Current location of a saved setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingLocation {
    /// Exists under this key, as far as can be determined.
    At(SettingKey),
    /// Removed with its interface or its network namespace.
    Removed,
    /// Cannot be determined; the text is the reason.
    Unknown(String),
}

impl InterfaceIdentity {
    /// Finds this interface among `all`; `home` is the namespace in which it was.
    ///
    /// # Errors
    /// The candidates, if there are several.
    pub fn find_among<'a>(
        &self,
        home: Option<usize>,
        all: &'a [InterfaceEntry],
    ) -> Result<Option<&'a InterfaceEntry>, Vec<&'a InterfaceEntry>> {
        let (home_entries, other_entries): (Vec<&InterfaceEntry>, Vec<&InterfaceEntry>) =
            all.iter().partition(|entry| Some(entry.namespace) == home);
        if let Some(exact_match) = home_entries.iter().find(|entry| entry.identity == *self) {
            return Ok(Some(*exact_match));
        }
        let has_index = |entry: &InterfaceEntry| entry.identity.index == self.index;
        let index_is_taken = |namespace: usize| {
            let mut entries_there = other_entries
                .iter()
                .filter(|entry| entry.namespace == namespace);
            entries_there.any(|entry| has_index(entry))
        };
        // Several virtual interfaces may share one address, for example VLANs of one device.
        let is_match = |entry: &InterfaceEntry| {
            let InterfaceIdentity { address, kind, .. } = &entry.identity;
            let address_matches =
                address.is_some() && *address == self.address && *kind == self.kind;
            address_matches
                && (kind.is_none() || has_index(entry) || index_is_taken(entry.namespace))
        };
        let select = |is_match: &dyn Fn(&InterfaceEntry) -> bool,
                      among: &[&'a InterfaceEntry]|
         -> Vec<&'a InterfaceEntry> {
            among
                .iter()
                .copied()
                .filter(|entry| is_match(entry))
                .collect()
        };
        let candidates = select(&is_match, &other_entries);
        match (&candidates[..], &select(&has_index, &candidates)[..]) {
            (&[one], _) | (_, &[one]) => return Ok(Some(one)),
            ([], _) => {}
            _ => return Err(candidates),
        }
        // In its own namespace its address may have been changed.
        let is_match =
            |entry: &&&InterfaceEntry| has_index(entry) && entry.identity.kind == self.kind;
        Ok(home_entries.iter().find(is_match).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface_entry(
        (network, name, index, address, kind): (usize, &str, u32, &str, &str),
    ) -> InterfaceEntry {
        let non_empty = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        InterfaceEntry {
            namespace: network,
            name: name.to_owned(),
            identity: InterfaceIdentity {
                index,
                address: non_empty(address),
                kind: non_empty(kind),
            },
        }
    }

    #[test]
    fn an_interface_is_found_after_a_rename_or_a_move() {
        let (tap, nic) = ((0, "t0", 5, "02:07", "tun"), (0, "eth1", 2, "00:1b", ""));
        for (original, all, expected) in [
            (tap, &[tap][..], Some((0, "t0"))),
            (tap, &[(0, "t1", 5, "02:07", "tun")], Some((0, "t1"))),
            // Its name is used by another interface.
            (
                tap,
                &[(0, "t0", 6, "02:09", "tun"), (0, "t1", 5, "02:07", "tun")],
                Some((0, "t1")),
            ),
            (tap, &[(0, "t0", 6, "02:09", "tun")], None),
            // One created again with the same address is another interface.
            (tap, &[(0, "t0", 6, "02:07", "tun")], None),
            (tap, &[(0, "t0", 5, "02:09", "tun")], Some((0, "t0"))),
            (tap, &[(1, "t0", 5, "02:07", "tun")], Some((1, "t0"))),
            // Its index is used by another interface there.
            (
                tap,
                &[(1, "t0", 7, "02:07", "tun"), (1, "x", 5, "02:08", "veth")],
                Some((1, "t0")),
            ),
            (tap, &[(1, "t0", 7, "02:07", "tun")], None),
            (tap, &[(1, "t0", 5, "02:07", "veth")], None),
            (tap, &[(1, "t0", 5, "02:08", "tun")], None),
            // Of two namespaces, the one in which its index was free.
            (
                tap,
                &[
                    (1, "t0", 7, "02:07", "tun"),
                    (1, "x", 5, "02:08", "veth"),
                    (2, "t0", 5, "02:07", "tun"),
                ],
                Some((2, "t0")),
            ),
            // A hardware address is unique.
            (nic, &[(1, "lan", 9, "00:1b", "")], Some((1, "lan"))),
            (nic, &[(0, "eth1", 2, "00:1c", "")], Some((0, "eth1"))),
            (
                (0, "lo", 1, "", ""),
                &[(0, "lo", 1, "", "")],
                Some((0, "lo")),
            ),
            ((0, "lo", 1, "", ""), &[(1, "lo", 1, "", "")], None),
            (nic, &[], None),
        ] {
            let all: Vec<InterfaceEntry> = all.iter().map(|it| interface_entry(*it)).collect();
            let identity = interface_entry(original).identity;
            let result = identity.find_among(Some(0), &all).unwrap();
            let result = result.map(|entry| (entry.namespace, entry.name.as_str()));
            assert_eq!(result, expected, "{original:?} among {all:?}");
        }
    }

    #[test]
    fn one_of_several_is_not_guessed() {
        let tap = interface_entry((0, "t0", 5, "02:07", "tun"));
        let copies = [1, 2].map(|network| interface_entry((network, "t0", 5, "02:07", "tun")));
        assert_eq!(tap.identity.find_among(None, &copies).unwrap_err().len(), 2);
        // Its own namespace is gone, and the interface with its index is unrelated.
        let unrelated = [interface_entry((1, "x", 5, "02:08", "veth"))];
        assert_eq!(tap.identity.find_among(None, &unrelated), Ok(None));
    }
}
