//! Whether packets are stamped on their way, by the kernel and by devices.

use std::io;

use super::{Answer, Ground};
use crate::snapshot::netlink;
use crate::sys::device_stamps::{self, Clock, Switched};
use crate::sys::ethtool::{Ethtool, Timestamping};
use crate::sys::timestamping::{self, Stamps};

pub(super) fn time_stamping(_: &Ground) -> Answer {
    let devices: Vec<Device> = netlink::links()
        .unwrap_or_default()
        .into_iter()
        .filter(|link| link.up && !link.loopback)
        .filter_map(|link| Device::of(link.name))
        .collect();
    time_stamping_of(timestamping::software_on_loopback(), &devices)
}

/// An interface whose device stamps by its own clock.
#[derive(Clone, Debug)]
struct Device {
    interface: String,
    can: Timestamping,
    /// What it is told to stamp; `None` where that cannot be asked.
    told: Option<Switched>,
    /// Whether this user may read its clock; `None` where it has none.
    readable: Option<bool>,
}

impl Device {
    fn of(interface: String) -> Option<Self> {
        let can = Ethtool::new(&interface).ok()?.timestamping().ok()?;
        can.hardware.then(|| Self {
            can,
            told: device_stamps::switched(&interface).ok(),
            readable: (can.clock).map(|number| Clock::open(number).is_ok()),
            interface,
        })
    }

    /// What `latency --stages` gets of it, and what changes that.
    fn text(&self) -> String {
        let Self {
            interface,
            can,
            told,
            readable,
        } = self;
        let which = match (can.departures, can.arrivals) {
            (true, true) => "both ways",
            (true, false) => "of departures, and arrivals of PTP alone",
            (false, true) => "of arrivals",
            (false, false) => return format!("{interface} stamps packets of PTP alone"),
        };
        let Some(number) = can.clock else {
            return format!("{interface} stamps {which}, and has no clock to ask");
        };
        let clock = Clock::path(number);
        if *readable != Some(true) {
            return format!("{interface} stamps {which}, but only root reads {clock}");
        }
        let told = told.unwrap_or_default();
        let on = told.departures >= can.departures && told.arrivals >= can.arrivals;
        if on {
            return format!("in hardware on {interface}, {which}, by {clock}");
        }
        let all = u8::from(can.arrivals);
        format!(
            "{interface} can in hardware, {which}, once that is on: `sudo hwstamp_ctl -i {interface} -t 1 -r {all}`"
        )
    }
}

fn time_stamping_of(software: io::Result<Stamps>, devices: &[Device]) -> Answer {
    let clocks = match devices {
        [] => "; no interface with a clock of its own".to_owned(),
        devices => devices
            .iter()
            .map(|device| format!("; {}", device.text()))
            .collect(),
    };
    match software {
        Ok(Stamps {
            transmit: true,
            receive: true,
        }) => Answer::ok(format!("in software, both ways{clocks}")),
        Ok(Stamps { receive: true, .. }) => {
            Answer::limited(format!("in software, of arrivals alone{clocks}"))
                .enable("a kernel with CONFIG_NETWORK_PHY_TIMESTAMPING or a later one")
        }
        Ok(Stamps { transmit: true, .. }) => {
            Answer::limited(format!("in software, of departures alone{clocks}"))
        }
        Ok(_) => Answer::missing("loopback gave no stamps"),
        Err(error) => Answer::unknown(format!("could not be tried on loopback: {error}")),
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
            Answer::ok("in software, both ways; in hardware on eth0, both ways, by /dev/ptp0")
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
            ptp.contains("PTP alone") && ptp.ends_with("-t 1 -r 0`"),
            "{ptp}"
        );
        let user = with(|device| device.readable = Some(false));
        assert_eq!(user, "eth0 stamps both ways, but only root reads /dev/ptp0");
        let blind = with(|device| device.can.clock = None);
        assert!(blind.contains("no clock to ask"), "{blind}");
        let none = with(|device| (device.can.departures, device.can.arrivals) = (false, false));
        assert_eq!(none, "eth0 stamps packets of PTP alone");
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
