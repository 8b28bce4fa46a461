//! MTU, link state and offload switches (`ethtool -K`) of an interface, as text.

use std::io;
use std::os::fd::AsFd;

use linerate_sys::ethtool_features::{OffloadSwitch, read_switch, set_switch};

use super::open_socket;
use crate::netlink::{
    IFLA_MTU, NLM_F_ACK, RTM_NEWLINK, find_link, ifinfomsg, push_attribute, request_rtnetlink,
};

/// Names of `ethtool -K`, in setting order: prerequisites first.
const OFFLOAD_SWITCHES: &[(&str, OffloadSwitch)] = &[
    ("rx", OffloadSwitch::RxChecksum),
    ("tx", OffloadSwitch::TxChecksum),
    ("sg", OffloadSwitch::ScatterGather),
    ("tso", OffloadSwitch::Tso),
    ("gso", OffloadSwitch::Gso),
    ("gro", OffloadSwitch::Gro),
];

/// Reads the MTU of an interface of the calling thread's network namespace, bytes.
///
/// # Errors
/// `ENODEV` without such an interface.
pub fn read_mtu(interface: &str) -> io::Result<u32> {
    let mtu = find_link(interface)?.mtu;
    mtu.ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// Sets the MTU.
///
/// # Errors
/// Errors of the kernel: `EINVAL` beyond the device limit, `EPERM`.
pub fn set_mtu(interface: &str, bytes: u32) -> io::Result<()> {
    let link = find_link(interface)?;
    if link.mtu == Some(bytes) {
        // An unchanged value needs no privilege.
        return Ok(());
    }
    let mut request = ifinfomsg(link.index);
    push_attribute(&mut request, IFLA_MTU, &bytes.to_ne_bytes());
    request_rtnetlink(RTM_NEWLINK, NLM_F_ACK, &request).map(drop)
}

/// Reads the administrative state: `up` or `down`.
///
/// # Errors
/// `ENODEV` without such an interface.
pub fn read_state(interface: &str) -> io::Result<String> {
    Ok(if find_link(interface)?.up { UP } else { DOWN }.to_owned())
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
            let problem = format!("`{text}` is neither up nor down");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
    };
    let link = find_link(interface)?;
    if link.up == up {
        return Ok(());
    }
    // struct ifinfomsg: the index is followed by the flags and the mask of flags to change.
    let mut request = ifinfomsg(link.index);
    let flag = libc::IFF_UP as u32;
    let flags = if up { flag } else { 0 };
    request[8..12].copy_from_slice(&flags.to_ne_bytes());
    request[12..16].copy_from_slice(&flag.to_ne_bytes());
    request_rtnetlink(RTM_NEWLINK, NLM_F_ACK, &request).map(drop)
}

/// Reads the switches that the driver reports: `rx=on tx=on sg=on tso=on gso=on gro=off`.
///
/// # Errors
/// `ENODEV`, or `EOPNOTSUPP` where it reports none.
pub fn read_switches(interface: &str) -> io::Result<String> {
    let socket = open_socket()?;
    let mut last_error = None;
    let mut reported = Vec::new();
    for (name, offload) in OFFLOAD_SWITCHES {
        match read_switch(socket.as_fd(), interface, *offload) {
            Ok(on) => reported.push(format!("{name}={}", if on { "on" } else { "off" })),
            Err(error) => last_error = Some(error),
        }
    }
    match (reported.is_empty(), last_error) {
        (true, Some(error)) => Err(error),
        _ => Ok(reported.join(" ")),
    }
}

/// Sets the named switches; fails when the driver leaves one unchanged.
///
/// # Errors
/// Errors of the kernel; `InvalidInput` for a malformed text.
pub fn set_switches(interface: &str, text: &str) -> io::Result<()> {
    let requested = parse_switches(text)?;
    let socket = open_socket()?;
    for (name, offload, on) in requested {
        // A switch that already has its value may be fixed.
        if read_switch(socket.as_fd(), interface, offload).is_ok_and(|current| current == on) {
            continue;
        }
        set_switch(socket.as_fd(), interface, offload, on)?;
        if read_switch(socket.as_fd(), interface, offload)? != on {
            let state_text = if on { "on" } else { "off" };
            return Err(io::Error::other(format!(
                "{name} cannot be turned {state_text}"
            )));
        }
    }
    Ok(())
}

/// Parses the requested switches, in the order of [`OFFLOAD_SWITCHES`].
fn parse_switches(text: &str) -> io::Result<Vec<(&'static str, OffloadSwitch, bool)>> {
    let invalid_text = || {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("`{text}` is not a list of switches such as `tso=on`"),
        )
    };
    let mut requested = Vec::new();
    for pair in text.split_whitespace() {
        let (name, value) = pair.split_once('=').ok_or_else(invalid_text)?;
        let index = OFFLOAD_SWITCHES
            .iter()
            .position(|(switch_name, _)| *switch_name == name);
        let on = match value {
            "on" => true,
            "off" => false,
            _ => return Err(invalid_text()),
        };
        requested.push((index.ok_or_else(invalid_text)?, on));
    }
    if requested.is_empty() {
        return Err(invalid_text());
    }
    requested.sort_unstable();
    let by_index =
        |(index, on): (usize, bool)| (OFFLOAD_SWITCHES[index].0, OFFLOAD_SWITCHES[index].1, on);
    Ok(requested.into_iter().map(by_index).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prerequisites_are_set_first() {
        let names: Vec<_> = parse_switches("gro=off tso=on sg=on").unwrap();
        let names: Vec<_> = names.iter().map(|(name, _, on)| (*name, *on)).collect();
        assert_eq!(names, [("sg", true), ("tso", true), ("gro", false)]);
        for text in ["", "tso", "tso=1", "speed=on"] {
            assert!(parse_switches(text).is_err(), "{text}");
        }
    }

    #[test]
    fn loopback_settings_can_be_read() {
        assert!(read_mtu("lo").unwrap() >= 1280);
        match read_switches("lo") {
            Ok(text) => assert!(text.contains("gso="), "{text}"),
            Err(error) => println!("skipped: no ethtool calls here: {error}"),
        }
        assert!(read_mtu("none-such0").is_err() && read_switches("none-such0").is_err());
        // An unchanged value needs no privilege.
        set_mtu("lo", read_mtu("lo").unwrap()).unwrap();
        set_state("lo", &read_state("lo").unwrap()).unwrap();
        assert!(set_state("lo", "sideways").is_err() && read_state("none-such0").is_err());
    }
}
