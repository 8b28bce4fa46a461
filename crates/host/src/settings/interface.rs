//! MTU, link state and offload switches (`ethtool -K`) of an interface, as text.

use std::io;
use std::os::fd::AsFd;

use super::socket;
use crate::snapshot::netlink::{
    ACKNOWLEDGE, IFLA_MTU, NEW_LINK, ask, link, link_header, push_attribute,
};
use crate::sys::ethtool_features::{Switch, set_switch, switch};

/// Names of `ethtool -K`, in setting order: prerequisites first.
const SWITCHES: &[(&str, Switch)] = &[
    ("rx", Switch::RxChecksum),
    ("tx", Switch::TxChecksum),
    ("sg", Switch::ScatterGather),
    ("tso", Switch::Tso),
    ("gso", Switch::Gso),
    ("gro", Switch::Gro),
];

/// Reads the MTU of an interface of the calling thread's network namespace, bytes.
///
/// # Errors
/// `ENODEV` without such an interface.
pub fn mtu(interface: &str) -> io::Result<u32> {
    let mtu = link(interface)?.mtu;
    mtu.ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// Sets the MTU.
///
/// # Errors
/// Errors of the kernel: `EINVAL` beyond the device limit, `EPERM`.
pub fn set_mtu(interface: &str, bytes: u32) -> io::Result<()> {
    let link = link(interface)?;
    if link.mtu == Some(bytes) {
        // An unchanged value needs no privilege.
        return Ok(());
    }
    let mut request = link_header(link.index);
    push_attribute(&mut request, IFLA_MTU, &bytes.to_ne_bytes());
    ask(NEW_LINK, ACKNOWLEDGE, &request).map(drop)
}

/// Reads the administrative state: `up` or `down`.
///
/// # Errors
/// `ENODEV` without such an interface.
pub fn state(interface: &str) -> io::Result<String> {
    Ok(if link(interface)?.up { UP } else { DOWN }.to_owned())
}

const UP: &str = "up";
const DOWN: &str = "down";

/// Sets the administrative state.
///
/// # Errors
/// `ENODEV`, `EPERM`; `InvalidInput` for any other text.
pub fn set_state(interface: &str, text: &str) -> io::Result<()> {
    let up = match text {
        UP => true,
        DOWN => false,
        _ => {
            let why = format!("`{text}` is neither up nor down");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
    };
    let link = link(interface)?;
    if link.up == up {
        return Ok(());
    }
    // struct ifinfomsg: the index is followed by the flags and the mask of flags to change.
    let mut request = link_header(link.index);
    let flag = libc::IFF_UP as u32;
    let wanted = if up { flag } else { 0 };
    request[8..12].copy_from_slice(&wanted.to_ne_bytes());
    request[12..16].copy_from_slice(&flag.to_ne_bytes());
    ask(NEW_LINK, ACKNOWLEDGE, &request).map(drop)
}

/// Reads the switches that the driver reports: `rx=on tx=on sg=on tso=on gso=on gro=off`.
///
/// # Errors
/// `ENODEV`, or `EOPNOTSUPP` where it reports none.
pub fn offloads(interface: &str) -> io::Result<String> {
    let socket = socket()?;
    let mut last = None;
    let mut told = Vec::new();
    for (name, which) in SWITCHES {
        match switch(socket.as_fd(), interface, *which) {
            Ok(on) => told.push(format!("{name}={}", if on { "on" } else { "off" })),
            Err(error) => last = Some(error),
        }
    }
    match (told.is_empty(), last) {
        (true, Some(error)) => Err(error),
        _ => Ok(told.join(" ")),
    }
}

/// Sets the named switches; fails when the driver leaves one unchanged.
///
/// # Errors
/// Errors of the kernel; `InvalidInput` for a malformed text.
pub fn set_offloads(interface: &str, text: &str) -> io::Result<()> {
    let wanted = parse(text)?;
    let socket = socket()?;
    for (name, which, on) in wanted {
        // A switch that already has its value may be fixed.
        if switch(socket.as_fd(), interface, which).is_ok_and(|now| now == on) {
            continue;
        }
        set_switch(socket.as_fd(), interface, which, on)?;
        if switch(socket.as_fd(), interface, which)? != on {
            let word = if on { "on" } else { "off" };
            return Err(io::Error::other(format!("{name} cannot be turned {word}")));
        }
    }
    Ok(())
}

/// Parses the requested switches, in the order of [`SWITCHES`].
fn parse(text: &str) -> io::Result<Vec<(&'static str, Switch, bool)>> {
    let wrong = || {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("`{text}` is not a list of switches such as `tso=on`"),
        )
    };
    let mut wanted = Vec::new();
    for word in text.split_whitespace() {
        let (name, value) = word.split_once('=').ok_or_else(wrong)?;
        let place = SWITCHES.iter().position(|(known, _)| *known == name);
        let on = match value {
            "on" => true,
            "off" => false,
            _ => return Err(wrong()),
        };
        wanted.push((place.ok_or_else(wrong)?, on));
    }
    if wanted.is_empty() {
        return Err(wrong());
    }
    wanted.sort_unstable();
    let named = |(place, on): (usize, bool)| (SWITCHES[place].0, SWITCHES[place].1, on);
    Ok(wanted.into_iter().map(named).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_need_is_set_first() {
        let names: Vec<_> = parse("gro=off tso=on sg=on").unwrap();
        let names: Vec<_> = names.iter().map(|(name, _, on)| (*name, *on)).collect();
        assert_eq!(names, [("sg", true), ("tso", true), ("gro", false)]);
        for text in ["", "tso", "tso=1", "speed=on"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn loopback_tells_what_it_has() {
        assert!(mtu("lo").unwrap() >= 1280);
        match offloads("lo") {
            Ok(text) => assert!(text.contains("gso="), "{text}"),
            Err(error) => println!("skipped: no ethtool calls here: {error}"),
        }
        assert!(mtu("none-such0").is_err() && offloads("none-such0").is_err());
        // An unchanged value needs no privilege.
        set_mtu("lo", mtu("lo").unwrap()).unwrap();
        set_state("lo", &state("lo").unwrap()).unwrap();
        assert!(set_state("lo", "sideways").is_err() && state("none-such0").is_err());
    }
}
