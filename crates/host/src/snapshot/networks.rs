//! The networks that this host is directly connected to.

use std::net::IpAddr;

use super::netlink::{self, Address, Link};

/// See [`super::connected_networks`].
///
/// They are those of the addresses that this host has, and not of its routes: a route without a gateway
/// may lead anywhere, as those into a tunnel do.
#[must_use]
pub fn connected_networks() -> Vec<(IpAddr, u8)> {
    let links = netlink::links().unwrap_or_default();
    let addresses = netlink::addresses().unwrap_or_default();
    neighbourhoods(&links, &addresses)
}

/// The networks of addresses on links that many hosts share. A tunnel has one other end, behind which may be
/// anybody; one of many other ends (6to4, DMVPN) resolves no addresses: whoever has one there is no neighbour.
fn neighbourhoods(links: &[Link], addresses: &[Address]) -> Vec<(IpAddr, u8)> {
    let is_shared = |index: u32| {
        let link = links.iter().find(|link| link.index == index);
        link.is_some_and(|link| {
            link.up && !link.loopback && !link.point_to_point && !link.unresolved
        })
    };
    let networks =
        (addresses.iter()).filter(|address| is_shared(address.link) && address.prefix > 0);
    networks
        .map(|network| (network.address, network.prefix))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_told_from_the_rest() {
        let link = |index, up, loopback, point_to_point| Link {
            index,
            up,
            loopback,
            point_to_point,
            ..Link::default()
        };
        let links = [
            link(1, true, true, false),
            link(2, true, false, false),
            link(3, false, false, false),
            // A tunnel with 0.0.0.0/1 and 128.0.0.0/1 behind it: whatever its routes are.
            link(4, true, false, true),
            Link {
                unresolved: true,
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
            // A tunnel of 6to4: a sixteenth of all there is.
            (6, "2002:c000:201::1", 16, false),
            // A link that went away meanwhile.
            (5, "10.79.0.2", 24, false),
        ] {
            let address = Address {
                link: index,
                address: address.parse().unwrap(),
                prefix,
            };
            let networks = neighbourhoods(&links, std::slice::from_ref(&address));
            let expected = is_network.then_some((address.address, prefix));
            assert_eq!(networks.first(), expected.as_ref(), "{address:?}");
        }
    }
}
