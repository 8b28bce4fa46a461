//! Identity of an interface, which may have been renamed or moved to another network namespace.

use serde::{Deserialize, Serialize};

use super::Key;

/// Properties that identify an interface independently of its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
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
pub struct Seen {
    /// Number of its network namespace, assigned by the caller.
    pub network: usize,
    pub name: String,
    pub device: Device,
}

/// Current location of a saved setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Exists under this key, as far as can be determined.
    At(Key),
    /// Removed with its interface or its network namespace.
    Gone,
    /// Cannot be determined; the text is the reason.
    Unknown(String),
}

impl Device {
    /// Finds this interface among `all`; `home` is the namespace in which it was.
    ///
    /// # Errors
    /// The candidates, if there are several.
    pub fn find<'a>(
        &self,
        home: Option<usize>,
        all: &'a [Seen],
    ) -> Result<Option<&'a Seen>, Vec<&'a Seen>> {
        let (near, far): (Vec<&Seen>, Vec<&Seen>) =
            all.iter().partition(|seen| Some(seen.network) == home);
        if let Some(same) = near.iter().find(|seen| seen.device == *self) {
            return Ok(Some(*same));
        }
        let has_number = |seen: &Seen| seen.device.index == self.index;
        let is_taken = |network: usize| {
            let mut there = far.iter().filter(|seen| seen.network == network);
            there.any(|seen| has_number(seen))
        };
        // Several virtual interfaces may share one address, for example VLANs of one device.
        let is_it = |seen: &Seen| {
            let Device { address, kind, .. } = &seen.device;
            let is_like = address.is_some() && *address == self.address && *kind == self.kind;
            is_like && (kind.is_none() || has_number(seen) || is_taken(seen.network))
        };
        let chosen = |is_it: &dyn Fn(&Seen) -> bool, among: &[&'a Seen]| -> Vec<&'a Seen> {
            among.iter().copied().filter(|seen| is_it(seen)).collect()
        };
        let like = chosen(&is_it, &far);
        match (&like[..], &chosen(&has_number, &like)[..]) {
            (&[one], _) | (_, &[one]) => return Ok(Some(one)),
            ([], _) => {}
            _ => return Err(like),
        }
        // In its own namespace its address may have been changed.
        let is_it = |seen: &&&Seen| has_number(seen) && seen.device.kind == self.kind;
        Ok(near.iter().find(is_it).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen((network, name, index, address, kind): (usize, &str, u32, &str, &str)) -> Seen {
        let said = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Seen {
            network,
            name: name.to_owned(),
            device: Device {
                index,
                address: said(address),
                kind: said(kind),
            },
        }
    }

    #[test]
    fn an_interface_is_found_whatever_it_is_called_and_wherever_it_is() {
        let (tap, nic) = ((0, "t0", 5, "02:07", "tun"), (0, "eth1", 2, "00:1b", ""));
        for (was, all, want) in [
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
            let all: Vec<Seen> = all.iter().map(|it| seen(*it)).collect();
            let device = seen(was).device;
            let found = device.find(Some(0), &all).unwrap();
            let found = found.map(|seen| (seen.network, seen.name.as_str()));
            assert_eq!(found, want, "{was:?} among {all:?}");
        }
    }

    #[test]
    fn one_of_several_is_not_guessed() {
        let tap = seen((0, "t0", 5, "02:07", "tun"));
        let twice = [1, 2].map(|network| seen((network, "t0", 5, "02:07", "tun")));
        assert_eq!(tap.device.find(None, &twice).unwrap_err().len(), 2);
        // Its own namespace is gone, and the interface with its index is unrelated.
        let other = [seen((1, "x", 5, "02:08", "veth"))];
        assert_eq!(tap.device.find(None, &other), Ok(None));
    }
}
