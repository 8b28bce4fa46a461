//! Addresses of an interface, as text: `10.0.0.1/24+10.0.0.255 10.0.0.2/24 fd00::1/64`.
//!
//! In the kernel's order: of several addresses of one network, the first is the source of packets.
//! Further attributes follow an address by number and bytes (`,3=74303a6100`), then the end of its
//! lifetime (`~5400:4500`). IPv6 addresses that the kernel manages itself are left alone:
//! link-local ones, and those of a router's prefix.

mod assigned;

use std::io;

use linerate_sys::clock;

use self::assigned::AssignedAddress;
use crate::netlink::{
    IFADDRMSG_BYTES, InterfaceLink, NLM_F_ACK, NLM_F_DUMP, RTM_GETADDR, RTM_NEWADDR, find_link,
    request_rtnetlink,
};

/// `RTM_DELADDR` of linux/rtnetlink.h.
const RTM_DELADDR: u16 = 21;
/// `NLM_F_CREATE | NLM_F_EXCL`: creates a new address.
const NLM_F_CREATE_EXCL: u16 = 0x600;

/// Reads the assigned addresses of an interface of the calling thread's network namespace.
///
/// # Errors
/// `ENODEV` without such an interface.
pub fn read_addresses(interface: &str) -> io::Result<String> {
    let assigned = read_assigned(&find_link(interface)?, now_s())?;
    let texts: Vec<String> = assigned.iter().map(AssignedAddress::to_string).collect();
    Ok(texts.join(" "))
}

/// Assigns these addresses and removes all others, except those with a lifetime that were added
/// meanwhile. Skips addresses whose lifetime has ended.
///
/// # Errors
/// `ENODEV`, `EPERM`, or `InvalidInput` for a malformed text.
pub fn set_addresses(interface: &str, text: &str) -> io::Result<()> {
    let mut requested: Vec<AssignedAddress> = text
        .split_whitespace()
        .map(str::parse)
        .collect::<io::Result<_>>()?;
    let now_s = now_s();
    requested.retain(|address| !address.has_expired(now_s));
    let link = find_link(interface)?;
    let (removed, added) = plan_changes(&read_assigned(&link, now_s)?, &requested);
    for address in &removed {
        request_rtnetlink(RTM_DELADDR, NLM_F_ACK, &address.encode(link.index, now_s))?;
    }
    for address in &added {
        let message = address.encode(link.index, now_s);
        request_rtnetlink(RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE_EXCL, &message)?;
    }
    Ok(())
}

/// Seconds of the clock that the kernel uses for lifetimes.
fn now_s() -> u64 {
    clock::now() / 1_000_000_000
}

fn read_assigned(link: &InterfaceLink, now_s: u64) -> io::Result<Vec<AssignedAddress>> {
    let messages = request_rtnetlink(RTM_GETADDR, NLM_F_DUMP, &[0; IFADDRMSG_BYTES])?;
    let of = |(kind, body): &(u16, Vec<u8>)| {
        (*kind == RTM_NEWADDR).then(|| AssignedAddress::decode(link, now_s, body))?
    };
    Ok(messages.iter().filter_map(of).collect())
}

/// Returns the addresses to remove and to add, each in order.
///
/// The order of IPv4 addresses matters, so if it differs all of them are removed and added again.
/// The last one goes first, because removing the first of a network removes the others too. A new
/// address with a lifetime was added meanwhile and stays.
fn plan_changes(
    current: &[AssignedAddress],
    requested: &[AssignedAddress],
) -> (Vec<AssignedAddress>, Vec<AssignedAddress>) {
    let contains = |all: &[AssignedAddress], address: &AssignedAddress| {
        all.iter()
            .any(|candidate| candidate.equals_except_lifetime(address))
    };
    let of_family = |all: &[AssignedAddress], is_ipv4: bool| -> Vec<AssignedAddress> {
        let all = all
            .iter()
            .filter(|address| address.address.is_ipv4() == is_ipv4);
        all.cloned().collect()
    };
    let (mut removed, mut added) = (of_family(current, true), of_family(requested, true));
    let added_meanwhile =
        |address: &&AssignedAddress| address.is_temporary() && !contains(requested, address);
    let added_meanwhile: Vec<AssignedAddress> =
        removed.iter().filter(added_meanwhile).cloned().collect();
    let mut remaining = removed
        .iter()
        .filter(|address| !contains(&added_meanwhile, address));
    let is_same_order = added.iter().all(|address| {
        remaining
            .next()
            .is_some_and(|current| current.equals_except_lifetime(address))
    });
    if is_same_order && remaining.next().is_none() {
        (removed, added) = (Vec::new(), Vec::new());
    } else {
        for address in &mut added {
            // Its lifetime may have been extended.
            let current_state = removed
                .iter()
                .find(|current| current.equals_except_lifetime(address));
            current_state
                .into_iter()
                .for_each(|current| address.clone_from(current));
        }
        added.extend(added_meanwhile);
        removed.reverse();
    }
    let v6 = of_family(current, false).into_iter();
    removed.extend(v6.filter(|address| !address.is_temporary() && !contains(requested, address)));
    let v6 = of_family(requested, false).into_iter();
    added.extend(v6.filter(|address| !contains(current, address)));
    (removed, added)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_all(text: &str) -> Vec<AssignedAddress> {
        text.split_whitespace()
            .map(|part| part.parse().unwrap())
            .collect()
    }

    #[test]
    fn only_differences_change() {
        for (current, requested, removed, added) in [
            ("", "", "", ""),
            ("10.9.9.9/16 fd00::1/64", "10.9.9.9/16 fd00::1/64", "", ""),
            // State after a tap was opened with an address, and the state before.
            (
                "10.9.0.1/24+10.9.0.255",
                "10.9.9.9/16 10.9.9.8/16",
                "10.9.0.1/24+10.9.0.255",
                "10.9.9.9/16 10.9.9.8/16",
            ),
            (
                "10.9.9.8/16 10.9.9.9/16",
                "10.9.9.9/16 10.9.9.8/16",
                "10.9.9.9/16 10.9.9.8/16",
                "10.9.9.9/16 10.9.9.8/16",
            ),
            (
                "fd00::1/64 fd00::2/64",
                "fd00::2/64 fd00::3/64",
                "fd00::1/64",
                "fd00::3/64",
            ),
            ("10.9.9.9/16", "", "10.9.9.9/16", ""),
            // The same address with another metric counts as a different one.
            (
                "10.9.9.9/16,9=4d000000",
                "10.9.9.9/16",
                "10.9.9.9/16,9=4d000000",
                "10.9.9.9/16",
            ),
        ] {
            let found = plan_changes(&parse_all(current), &parse_all(requested));
            assert_eq!(
                found,
                (parse_all(removed), parse_all(added)),
                "{current:?} to {requested:?}"
            );
        }
    }

    #[test]
    fn addresses_with_a_lifetime_stay_until_it_ends() {
        for (current, requested, removed, added) in [
            // One with an extended lifetime, and two added meanwhile.
            (
                "10.9.9.9/16~90:90 10.8.0.1/24~50:50 fd00::1/64~50:50",
                "10.9.9.9/16~60:60",
                "",
                "",
            ),
            // Removed together with the first of its network, and added again with its current
            // lifetime.
            (
                "10.9.9.8/16 10.9.9.9/16~90:90 10.9.9.7/16~50:50",
                "10.9.9.6/16 10.9.9.9/16~60:60",
                "10.9.9.7/16~50:50 10.9.9.9/16~90:90 10.9.9.8/16",
                "10.9.9.6/16 10.9.9.9/16~90:90 10.9.9.7/16~50:50",
            ),
            // Removed by setting the interface down.
            ("", "fd00::1/64~60:60", "", "fd00::1/64~60:60"),
        ] {
            let found = plan_changes(&parse_all(current), &parse_all(requested));
            assert_eq!(
                found,
                (parse_all(removed), parse_all(added)),
                "{current:?} to {requested:?}"
            );
        }
    }

    #[test]
    fn loopback_has_its_address() {
        let text = read_addresses("lo").unwrap();
        // An interface that is down may lack its address.
        assert!(text.is_empty() || text.contains("127.0.0.1/8"), "{text}");
        // An unchanged list needs no privilege.
        set_addresses("lo", &text).unwrap();
        let error = read_addresses("none-such0").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }
}
