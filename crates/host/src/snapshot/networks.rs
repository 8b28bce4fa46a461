//! The networks that this host is directly connected to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Files;

/// See [`super::connected_networks`].
#[must_use]
pub fn connected_networks(files: &Files) -> Vec<(IpAddr, u8)> {
    // Of the calling thread: its namespace may be another than the process's.
    let text = |name: &str| files.text(&format!("/proc/thread-self/net/{name}"));
    let v4 = text("route").unwrap_or_default();
    let v6 = text("ipv6_route").unwrap_or_default();
    let v4 = v4.lines().skip(1).filter_map(v4_route);
    v4.chain(v6.lines().filter_map(v6_route)).collect()
}

/// `eth0 0000000A 00000000 0001 0 0 0 00FFFFFF …`: interface, destination, gateway, flags, three
/// counts, mask; addresses in the byte order of the machine.
fn v4_route(line: &str) -> Option<(IpAddr, u8)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let number = |at: usize| u32::from_str_radix(fields.get(at)?, 16).ok();
    let address = |at: usize| Some(Ipv4Addr::from(number(at)?.to_ne_bytes()));
    let prefix = number(7)?.count_ones() as u8;
    let direct = address(2)?.is_unspecified() && is_up(number(3)?);
    // A default route over a device without a gateway makes nobody a neighbour.
    (direct && prefix > 0).then_some((address(1)?.into(), prefix))
}

/// RTF_UP, and not RTF_GATEWAY, RTF_REJECT (linux/route.h).
fn is_up(flags: u32) -> bool {
    flags & (0x1 | 0x2 | 0x200) == 0x1
}

/// `DESTINATION LENGTH SOURCE LENGTH GATEWAY METRIC USED USED FLAGS INTERFACE`, all of it hexadecimal.
fn v6_route(line: &str) -> Option<(IpAddr, u8)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let address = |at: usize| {
        let bits = u128::from_str_radix(fields.get(at)?, 16).ok()?;
        Some(Ipv6Addr::from_bits(bits))
    };
    let prefix = u8::from_str_radix(fields.get(1)?, 16).ok()?;
    let flags = u32::from_str_radix(fields.get(8)?, 16).ok()?;
    let to = address(0)?;
    let direct = address(4)?.is_unspecified() && is_up(flags);
    let ordinary = prefix > 0 && !to.is_multicast() && fields.get(9) != Some(&"lo");
    (direct && ordinary).then_some((to.into(), prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_told_from_the_rest() {
        // As a little-endian machine writes it.
        if cfg!(target_endian = "little") {
            let lab = "lab0\t00004D0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0";
            let network = (IpAddr::from([10, 77, 0, 0]), 24);
            assert_eq!(v4_route(lab), Some(network));
        }
        for no in [
            "",
            "eth0 00000000 0100000A 0003 0 0 0 00000000 0 0 0",
            "tun0 00000000 00000000 0001 0 0 0 00000000 0 0 0",
            "eth0 0000A8C0 0100000A 0003 0 0 0 0000FFFF 0 0 0",
        ] {
            assert_eq!(v4_route(no), None, "{no}");
        }
        let zeros = "0".repeat(32);
        let route = |to: &str, prefix: &str, via: &str, flags: &str, name: &str| {
            format!("{to} {prefix} {zeros} 00 {via} 00000100 00000001 00000000 {flags} {name}")
        };
        let local = "fd000000000000000000000000000000";
        let via = "fe800000000000000000000000000001";
        let yes = route(local, "40", &zeros, "00000001", "eth0");
        assert_eq!(v6_route(&yes), Some(("fd00::".parse().unwrap(), 64)));
        for no in [
            route(local, "40", via, "00000003", "eth0"),
            route(&zeros, "00", &zeros, "00200200", "lo"),
            route(
                "ff000000000000000000000000000000",
                "08",
                &zeros,
                "00000001",
                "eth0",
            ),
        ] {
            assert_eq!(v6_route(&no), None, "{no}");
        }
    }
}
