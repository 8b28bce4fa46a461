//! Current location of an interface whose setting is in a journal: it may have been renamed or
//! moved to another network namespace since; hardware interfaces return when their namespace is
//! removed.

use linerate_host::network_namespaces::{Network, network};
use linerate_host::snapshot::netlink::{Link, links};
use linerate_tune::guard::{Device, Key, Kind, Place, Seen};

use super::{Host, Hosts, cookie, words};

/// Returns the identity of a link.
pub fn device_of(link: &Link) -> Device {
    Device {
        index: link.index,
        address: link.hardware_address(),
        kind: link.kind.clone(),
    }
}

impl Hosts {
    pub(super) fn place(&self, key: &Key, device: Option<&Device>) -> Place {
        let here = || Place::At(key.clone());
        if key.kind == Kind::Command {
            return here();
        }
        let home = self.host_of(key);
        if home.is_none() && !self.is_network_gone(key) {
            // The namespace exists, or that is unknown: a process that can enter it can restore the
            // setting.
            return here();
        }
        let Some(interface) = key.interface() else {
            return home.map_or(Place::Gone, |_| here());
        };
        let near = home.map_or(Ok(Vec::new()), |host| self.seen(0, host));
        let Ok(near) = near else {
            return here();
        };
        let Some(device) = device else {
            // Journals of older versions identify interfaces by name only.
            let is_there = near.iter().any(|seen| seen.name == interface);
            return if is_there { here() } else { Place::Gone };
        };
        // Most interfaces are still in their namespace, and no search is needed.
        if let Some(seen) = near.iter().find(|seen| seen.device == *device) {
            return Place::At(key.of_interface(&seen.name));
        }
        let is_home = |host: &Host| home.is_some_and(|home| home.inode == host.inode);
        let all = self.hosts.iter().chain(self.others());
        let far = all.filter(|host| !is_home(host));
        let networks: Vec<&Host> = home.into_iter().chain(far).collect();
        let mut all = near;
        for (number, host) in networks.iter().enumerate().skip(home.iter().len()) {
            all.extend(self.seen(number, host).unwrap_or_default());
        }
        match device.find(home.map(|_| 0), &all) {
            Ok(None) => Place::Gone,
            Ok(Some(seen)) if home.is_some() && seen.network == 0 => {
                Place::At(key.of_interface(&seen.name))
            }
            Ok(Some(seen)) => {
                let host = networks[seen.network];
                Place::At(Key {
                    host: host.name.clone(),
                    namespace: host.inode,
                    cookie: host.cookie,
                    ..key.of_interface(&seen.name)
                })
            }
            Err(several) => {
                let name =
                    |seen: &&Seen| format!("{} of {}", seen.name, networks[seen.network].name);
                let names: Vec<String> = several.iter().map(name).collect();
                Place::Unknown(format!(
                    "it has left its network namespace, and could be any of these: {}",
                    names.join(", ")
                ))
            }
        }
    }

    /// Returns the interfaces of a network namespace.
    fn seen(&self, number: usize, host: &Host) -> Result<Vec<Seen>, String> {
        let links = self.inside(host, || words(links()))?;
        let seen = |link: Link| Seen {
            network: number,
            device: device_of(&link),
            name: link.name,
        };
        Ok(links.into_iter().map(seen).collect())
    }

    /// Returns whether a network namespace that cannot be entered has provably ended.
    fn is_network_gone(&self, key: &Key) -> bool {
        // Another namespace has its inode number.
        let is_other = |cookie: Option<u64>| !key.is_of(key.namespace, cookie);
        let mut all = self.hosts.iter().chain(self.others());
        if all.any(|host| host.inode == key.namespace && is_other(host.cookie)) {
            return true;
        }
        match network(key.namespace) {
            Network::Lives(file) => is_other(cookie(&file.into())),
            Network::Gone => true,
            Network::Unknown => false,
        }
    }
}
