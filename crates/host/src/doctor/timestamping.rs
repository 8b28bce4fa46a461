//! Check of packet timestamps, by the kernel and by devices.

use std::io;

use super::{Answer, Ground};
use crate::snapshot::netlink;
use crate::sys::ethtool::{Ethtool, Timestamping};
use crate::sys::hardware_timestamps::{self, Clock, Switched};
use crate::sys::timestamp_probe::{self, Stamps};

pub(super) fn time_stamping(_: &Ground) -> Answer {
    let devices: Vec<Device> = netlink::links()
        .unwrap_or_default()
        .into_iter()
        .filter(|link| link.up && !link.loopback)
        .filter_map(|link| Device::of(link.name))
        .collect();
    time_stamping_of(timestamp_probe::software_on_loopback(), &devices)
}

/// Interface whose device takes hardware timestamps.
#[derive(Clone, Debug)]
struct Device {
    interface: String,
    can: Timestamping,
    /// Timestamps that are enabled now; `None` where that cannot be read.
    told: Option<Switched>,
    /// True if this user may read the device clock; `None` without one.
    readable: Option<bool>,
}

impl Device {
    fn of(interface: String) -> Option<Self> {
        let can = Ethtool::new(&interface).ok()?.timestamping().ok()?;
        can.hardware.then(|| Self {
            can,
            told: hardware_timestamps::switched(&interface).ok(),
            readable: (can.clock).map(|number| Clock::open(number).is_ok()),
            interface,
        })
    }

    /// Describes the timestamps that `latency --stages` gets, and the command that enables more.
    fn text(&self) -> String {
        let Self {
            interface,
            can,
            told,
            readable,
        } = self;
        let which = match (can.departures, can.arrivals) {
            (true, true) => "sent and received packets",
            (true, false) => "sent packets and received PTP packets",
            (false, true) => "received packets",
            (false, false) => return format!("{interface} timestamps PTP packets only"),
        };
        let Some(number) = can.clock else {
            return format!("{interface} timestamps {which}, but has no clock device");
        };
        let clock = Clock::path(number);
        if *readable != Some(true) {
            return format!("{interface} timestamps {which}, but only root can read {clock}");
        }
        let told = told.unwrap_or_default();
        let on = told.departures >= can.departures && told.arrivals >= can.arrivals;
        if on {
            return format!("hardware timestamps of {which} on {interface} ({clock})");
        }
        let all = u8::from(can.arrivals);
        format!(
            "{interface} supports hardware timestamps of {which} once enabled: `sudo hwstamp_ctl -i {interface} -t 1 -r {all}`"
        )
    }
}

fn time_stamping_of(software: io::Result<Stamps>, devices: &[Device]) -> Answer {
    let clocks = match devices {
        [] => "; no interface with hardware timestamps".to_owned(),
        devices => devices
            .iter()
            .map(|device| format!("; {}", device.text()))
            .collect(),
    };
    match software {
        Ok(Stamps {
            transmit: true,
            receive: true,
        }) => Answer::ok(format!(
            "software timestamps of sent and received packets{clocks}"
        )),
        Ok(Stamps { receive: true, .. }) => Answer::limited(format!(
            "software timestamps of received packets only{clocks}"
        ))
        .enable("a kernel with CONFIG_NETWORK_PHY_TIMESTAMPING or a later one"),
        Ok(Stamps { transmit: true, .. }) => {
            Answer::limited(format!("software timestamps of sent packets only{clocks}"))
        }
        Ok(_) => Answer::missing("no timestamps on loopback"),
        Err(error) => Answer::unknown(format!("could not be tested on loopback: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Ability;
    use super::*;

    #[test]
    fn stamps() {
        let stamps = |transmit, receive| Ok(Stamps { transmit, receive });
        let eth0 = Device {
            interface: "eth0".to_owned(),
            can: Timestamping {
                hardware: true,
                clock: Some(0),
                departures: true,
                arrivals: true,
                ..Timestamping::default()
            },
            told: Some(Switched {
                departures: true,
                arrivals: true,
            }),
            readable: Some(true),
        };
        let with = |change: fn(&mut Device)| {
            let mut device = eth0.clone();
            change(&mut device);
            device.text()
        };
        assert_eq!(
            time_stamping_of(stamps(true, true), std::slice::from_ref(&eth0)),
            Answer::ok(
                "software timestamps of sent and received packets; \
                 hardware timestamps of sent and received packets on eth0 (/dev/ptp0)"
            )
        );
        let off = with(|device| device.told = Some(Switched::default()));
        assert!(
            off.ends_with("`sudo hwstamp_ctl -i eth0 -t 1 -r 1`"),
            "{off}"
        );
        let ptp = with(|device| {
            device.can.arrivals = false;
            device.told = None;
        });
        assert!(
            ptp.contains("received PTP packets") && ptp.ends_with("-t 1 -r 0`"),
            "{ptp}"
        );
        let user = with(|device| device.readable = Some(false));
        assert_eq!(
            user,
            "eth0 timestamps sent and received packets, but only root can read /dev/ptp0"
        );
        let blind = with(|device| device.can.clock = None);
        assert!(blind.contains("no clock device"), "{blind}");
        let none = with(|device| (device.can.departures, device.can.arrivals) = (false, false));
        assert_eq!(none, "eth0 timestamps PTP packets only");
        assert_eq!(
            time_stamping_of(stamps(false, true), &[]).ability,
            Ability::Limited
        );
        assert_eq!(
            time_stamping_of(stamps(false, false), &[]).ability,
            Ability::Missing
        );
        assert_eq!(
            time_stamping_of(Err(io::ErrorKind::TimedOut.into()), &[]).ability,
            Ability::Unknown
        );
    }
}
