//! Current location of an interface whose setting is in a journal: it may have been renamed or
//! moved to another network namespace since; hardware interfaces return when their namespace is
//! removed.

use linerate_host::netlink::{InterfaceLink, list_links};
use linerate_host::network_namespaces::{NamespaceState, find_namespace};
use linerate_tune::guard::{
    InterfaceEntry, InterfaceIdentity, SettingKey, SettingKind, SettingLocation,
};

use super::{NetworkHost, TunableHosts, describe_error, network_cookie};

/// Returns the identity of a link.
pub fn device_of(link: &InterfaceLink) -> InterfaceIdentity {
    InterfaceIdentity {
        index: link.index,
        address: link.hardware_address(),
        kind: link.kind.clone(),
    }
}

impl TunableHosts {
    pub(super) fn locate(
        &self,
        key: &SettingKey,
        device: Option<&InterfaceIdentity>,
    ) -> SettingLocation {
        let unchanged = || SettingLocation::At(key.clone());
        if key.kind == SettingKind::Command {
            return unchanged();
        }
        let home = self.host_of(key);
        if home.is_none() && !self.has_network_ended(key) {
            // The namespace exists, or that is unknown: a process that can enter it can restore the
            // setting.
            return unchanged();
        }
        let Some(interface_name) = key.interface() else {
            return home.map_or(SettingLocation::Removed, |_| unchanged());
        };
        let at_home = home.map_or(Ok(Vec::new()), |host| self.interfaces(0, host));
        let Ok(at_home) = at_home else {
            return unchanged();
        };
        let Some(device) = device else {
            // Journals of older versions identify interfaces by name only.
            let is_there = at_home
                .iter()
                .any(|interface| interface.name == interface_name);
            return if is_there {
                unchanged()
            } else {
                SettingLocation::Removed
            };
        };
        // Most interfaces are still in their namespace, and no search is needed.
        if let Some(interface) = at_home
            .iter()
            .find(|interface| interface.identity == *device)
        {
            return SettingLocation::At(key.with_interface(&interface.name));
        }
        let is_home = |host: &NetworkHost| home.is_some_and(|home| home.inode == host.inode);
        let all = self.hosts.iter().chain(self.other_hosts());
        let others = all.filter(|host| !is_home(host));
        let networks: Vec<&NetworkHost> = home.into_iter().chain(others).collect();
        let mut all = at_home;
        for (number, host) in networks.iter().enumerate().skip(home.iter().len()) {
            all.extend(self.interfaces(number, host).unwrap_or_default());
        }
        match device.find_among(home.map(|_| 0), &all) {
            Ok(None) => SettingLocation::Removed,
            Ok(Some(interface)) if home.is_some() && interface.namespace == 0 => {
                SettingLocation::At(key.with_interface(&interface.name))
            }
            Ok(Some(interface)) => {
                let host = networks[interface.namespace];
                SettingLocation::At(SettingKey {
                    host: host.name.clone(),
                    namespace_inode: host.inode,
                    namespace_cookie: host.cookie,
                    ..key.with_interface(&interface.name)
                })
            }
            Err(candidates) => {
                let name = |interface: &&InterfaceEntry| {
                    format!(
                        "{} of {}",
                        interface.name, networks[interface.namespace].name
                    )
                };
                let names: Vec<String> = candidates.iter().map(name).collect();
                SettingLocation::Unknown(format!(
                    "it has left its network namespace, and could be any of these: {}",
                    names.join(", ")
                ))
            }
        }
    }

    /// Returns the interfaces of a network namespace.
    fn interfaces(&self, number: usize, host: &NetworkHost) -> Result<Vec<InterfaceEntry>, String> {
        let links = self.run_on_host(host, || describe_error(list_links()))?;
        let describe = |link: InterfaceLink| InterfaceEntry {
            namespace: number,
            identity: device_of(&link),
            name: link.name,
        };
        Ok(links.into_iter().map(describe).collect())
    }

    /// Returns whether a network namespace that cannot be entered has provably ended.
    fn has_network_ended(&self, key: &SettingKey) -> bool {
        // Another namespace has its inode number.
        let is_other_network =
            |cookie: Option<u64>| !key.is_in_namespace(key.namespace_inode, cookie);
        let mut all = self.hosts.iter().chain(self.other_hosts());
        if all.any(|host| host.inode == key.namespace_inode && is_other_network(host.cookie)) {
            return true;
        }
        match find_namespace(key.namespace_inode) {
            NamespaceState::Exists(file) => is_other_network(network_cookie(&file.into())),
            NamespaceState::Removed => true,
            NamespaceState::Unknown => false,
        }
    }
}
