//! Addresses of an interface, as text: `10.0.0.1/24+10.0.0.255 10.0.0.2/24 fd00::1/64`.
//!
//! In the kernel's order: of several addresses of one network, the first is the source of packets.
//! Further attributes follow an address by number and bytes (`,3=74303a6100`), then the end of its
//! lifetime (`~5400:4500`). IPv6 addresses that the kernel manages itself are left alone:
//! link-local ones, and those of a router's prefix.

mod assigned;

use std::io;

use self::assigned::Own;
use crate::snapshot::netlink::{
    ACKNOWLEDGE, DUMP, GET_ADDRESS, IFADDRMSG_BYTES, Link, NEW_ADDRESS, ask, link,
};
use crate::sys::clock;

/// `RTM_DELADDR` of linux/rtnetlink.h.
const DELETE: u16 = 21;
/// `NLM_F_CREATE | NLM_F_EXCL`: creates a new address.
const CREATE: u16 = 0x600;

/// Reads the assigned addresses of an interface of the calling thread's network namespace.
///
/// # Errors
/// `ENODEV` without such an interface.
pub fn addresses(interface: &str) -> io::Result<String> {
    let own = own(&link(interface)?, now_s())?;
    let words: Vec<String> = own.iter().map(Own::to_string).collect();
    Ok(words.join(" "))
}

/// Assigns these addresses and removes all others, except those with a lifetime that were added
/// meanwhile. Skips addresses whose lifetime has ended.
///
/// # Errors
/// `ENODEV`, `EPERM`, or `InvalidInput` for a malformed text.
pub fn set_addresses(interface: &str, text: &str) -> io::Result<()> {
    let mut wanted: Vec<Own> = text
        .split_whitespace()
        .map(str::parse)
        .collect::<io::Result<_>>()?;
    let now_s = now_s();
    wanted.retain(|own| !own.is_over(now_s));
    let link = link(interface)?;
    let (leave, come) = changes(&own(&link, now_s)?, &wanted);
    for own in &leave {
        ask(DELETE, ACKNOWLEDGE, &own.encode(link.index, now_s))?;
    }
    for own in &come {
        let message = own.encode(link.index, now_s);
        ask(NEW_ADDRESS, ACKNOWLEDGE | CREATE, &message)?;
    }
    Ok(())
}

/// Seconds of the clock that the kernel uses for lifetimes.
fn now_s() -> u64 {
    clock::now() / 1_000_000_000
}

fn own(link: &Link, now_s: u64) -> io::Result<Vec<Own>> {
    let all = ask(GET_ADDRESS, DUMP, &[0; IFADDRMSG_BYTES])?;
    let of = |(kind, body): &(u16, Vec<u8>)| {
        (*kind == NEW_ADDRESS).then(|| Own::decode(link, now_s, body))?
    };
    Ok(all.iter().filter_map(of).collect())
}

/// Returns the addresses to remove and to add, each in order.
///
/// The order of IPv4 addresses matters, so if it differs all of them are removed and added again.
/// The last one goes first, because removing the first of a network removes the others too. A new
/// address with a lifetime was added meanwhile and stays.
fn changes(now: &[Own], wanted: &[Own]) -> (Vec<Own>, Vec<Own>) {
    let has = |all: &[Own], own: &Own| all.iter().any(|other| other.is(own));
    let of = |all: &[Own], is_ipv4: bool| -> Vec<Own> {
        let all = all.iter().filter(|own| own.address.is_ipv4() == is_ipv4);
        all.cloned().collect()
    };
    let (mut leave, mut come) = (of(now, true), of(wanted, true));
    let lent = |own: &&Own| own.is_lent() && !has(wanted, own);
    let lent: Vec<Own> = leave.iter().filter(lent).cloned().collect();
    let mut kept = leave.iter().filter(|own| !has(&lent, own));
    let is_same = come
        .iter()
        .all(|own| kept.next().is_some_and(|now| now.is(own)));
    if is_same && kept.next().is_none() {
        (leave, come) = (Vec::new(), Vec::new());
    } else {
        for own in &mut come {
            // Its lifetime may have been extended.
            let fresh = leave.iter().find(|now| now.is(own));
            fresh.into_iter().for_each(|now| own.clone_from(now));
        }
        come.extend(lent);
        leave.reverse();
    }
    let v6 = of(now, false).into_iter();
    leave.extend(v6.filter(|own| !own.is_lent() && !has(wanted, own)));
    let v6 = of(wanted, false).into_iter();
    come.extend(v6.filter(|own| !has(now, own)));
    (leave, come)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<Own> {
        text.split_whitespace()
            .map(|word| word.parse().unwrap())
            .collect()
    }

    #[test]
    fn only_what_is_another_changes() {
        for (now, wanted, leave, come) in [
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
            let found = changes(&of(now), &of(wanted));
            assert_eq!(found, (of(leave), of(come)), "{now:?} to {wanted:?}");
        }
    }

    #[test]
    fn what_was_lent_stays_for_as_long_as_it_was_lent() {
        for (now, wanted, leave, come) in [
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
            let found = changes(&of(now), &of(wanted));
            assert_eq!(found, (of(leave), of(come)), "{now:?} to {wanted:?}");
        }
    }

    #[test]
    fn loopback_has_its_own() {
        let told = addresses("lo").unwrap();
        // An interface that is down may lack its address.
        assert!(told.is_empty() || told.contains("127.0.0.1/8"), "{told}");
        // An unchanged list needs no privilege.
        set_addresses("lo", &told).unwrap();
        let error = addresses("none-such0").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }
}
