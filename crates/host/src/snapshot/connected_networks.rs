//! Networks that this host is directly connected to.

use std::net::IpAddr;

use crate::netlink::{self, InterfaceLink, LinkAddress};

/// See [`super::list_connected_networks`].
///
/// Derived from the addresses of this host, not from its routes: a route without a gateway may lead
/// anywhere, for example into a tunnel.
#[must_use]
pub fn list_connected_networks() -> Vec<(IpAddr, u8)> {
    let links = netlink::list_links().unwrap_or_default();
    let addresses = netlink::list_addresses().unwrap_or_default();
    shared_networks(&links, &addresses)
}

/// Returns the networks of addresses on links that many hosts share. Any host may be behind the
/// peer of a tunnel; a multipoint tunnel (6to4, DMVPN) does not resolve addresses, so its members
/// are no neighbours.
fn shared_networks(links: &[InterfaceLink], addresses: &[LinkAddress]) -> Vec<(IpAddr, u8)> {
    let is_shared = |index: u32| {
        let link = links.iter().find(|link| link.index == index);
        link.is_some_and(|link| {
            link.up && !link.loopback && !link.point_to_point && !link.no_address_resolution
        })
    };
    let networks =
        (addresses.iter()).filter(|address| is_shared(address.link_index) && address.prefix > 0);
    networks
        .map(|network| (network.address, network.prefix))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_shared_links_are_listed() {
        let link = |index, up, loopback, point_to_point| InterfaceLink {
            index,
            up,
            loopback,
            point_to_point,
            ..InterfaceLink::default()
        };
        let links = [
            link(1, true, true, false),
            link(2, true, false, false),
            link(3, false, false, false),
            // A tunnel: any network may be behind it.
            link(4, true, false, true),
            InterfaceLink {
                no_address_resolution: true,
                ..link(6, true, false, false)
            },
        ];
        for (index, address, prefix, is_network) in [
            (1, "127.0.0.1", 8, false),
            (2, "10.77.0.2", 24, true),
            (2, "fd00::2", 64, true),
            (2, "fe80::1", 64, true),
            (2, "10.77.0.2", 0, false),
            (3, "10.78.0.2", 24, false),
            (4, "10.8.0.2", 24, false),
            (4, "fd08::2", 64, false),
            // A 6to4 tunnel with a /16.
            (6, "2002:c000:201::1", 16, false),
            // A link that was removed meanwhile.
            (5, "10.79.0.2", 24, false),
        ] {
            let address = LinkAddress {
                link_index: index,
                address: address.parse().unwrap(),
                prefix,
            };
            let networks = shared_networks(&links, std::slice::from_ref(&address));
            let expected = is_network.then_some((address.address, prefix));
            assert_eq!(networks.first(), expected.as_ref(), "{address:?}");
        }
    }
}
