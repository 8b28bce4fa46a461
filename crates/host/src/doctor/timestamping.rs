//! Check of packet timestamps, by the kernel and by devices.

use std::io;

use linerate_sys::ethtool::{EthtoolSocket, TimestampingSupport};
use linerate_sys::hardware_timestamps;
use linerate_sys::hardware_timestamps::{EnabledTimestamps, PtpClock};
use linerate_sys::timestamp_probe;
use linerate_sys::timestamp_probe::LoopbackTimestamps;

use super::{CheckOutcome, DoctorInputs};
use crate::netlink;

pub(super) fn check_timestamping(_: &DoctorInputs) -> CheckOutcome {
    let devices: Vec<TimestampingInterface> = netlink::list_links()
        .unwrap_or_default()
        .into_iter()
        .filter(|link| link.up && !link.loopback)
        .filter_map(|link| TimestampingInterface::read(link.name))
        .collect();
    assess_timestamping(timestamp_probe::probe_loopback(), &devices)
}

/// Interface whose device takes hardware timestamps.
#[derive(Clone, Debug)]
struct TimestampingInterface {
    interface: String,
    support: TimestampingSupport,
    /// Timestamps that are enabled now; `None` where that cannot be read.
    enabled: Option<EnabledTimestamps>,
    /// True if this user may read the device clock; `None` without one.
    is_clock_readable: Option<bool>,
}

impl TimestampingInterface {
    fn read(interface: String) -> Option<Self> {
        let support = EthtoolSocket::new(&interface)
            .ok()?
            .read_timestamping()
            .ok()?;
        support.hardware.then(|| Self {
            support,
            enabled: hardware_timestamps::read_enabled(&interface).ok(),
            is_clock_readable: (support.ptp_clock).map(|number| PtpClock::open(number).is_ok()),
            interface,
        })
    }

    /// Describes the timestamps that `latency --stages` gets, and the command that enables more.
    fn describe(&self) -> String {
        let Self {
            interface,
            support,
            enabled,
            is_clock_readable,
        } = self;
        let packets = match (support.hardware_transmit, support.hardware_receive) {
            (true, true) => "sent and received packets",
            (true, false) => "sent packets and received PTP packets",
            (false, true) => "received packets",
            (false, false) => return format!("{interface} timestamps PTP packets only"),
        };
        let Some(number) = support.ptp_clock else {
            return format!("{interface} timestamps {packets}, but has no clock device");
        };
        let clock = PtpClock::path(number);
        if *is_clock_readable != Some(true) {
            return format!("{interface} timestamps {packets}, but only root can read {clock}");
        }
        let enabled = enabled.unwrap_or_default();
        let is_on = enabled.transmit >= support.hardware_transmit
            && enabled.receive >= support.hardware_receive;
        if is_on {
            return format!("hardware timestamps of {packets} on {interface} ({clock})");
        }
        let receive_filter = u8::from(support.hardware_receive);
        format!(
            "{interface} supports hardware timestamps of {packets} once enabled: `sudo hwstamp_ctl -i {interface} -t 1 -r {receive_filter}`"
        )
    }
}

fn assess_timestamping(
    software: io::Result<LoopbackTimestamps>,
    devices: &[TimestampingInterface],
) -> CheckOutcome {
    let clocks = match devices {
        [] => "; no interface with hardware timestamps".to_owned(),
        devices => devices
            .iter()
            .map(|device| format!("; {}", device.describe()))
            .collect(),
    };
    match software {
        Ok(LoopbackTimestamps {
            transmit: true,
            receive: true,
        }) => CheckOutcome::ok(format!(
            "software timestamps of sent and received packets{clocks}"
        )),
        Ok(LoopbackTimestamps { receive: true, .. }) => CheckOutcome::limited(format!(
            "software timestamps of received packets only{clocks}"
        ))
        .with_enable("boot a kernel with CONFIG_NETWORK_PHY_TIMESTAMPING or a later one"),
        Ok(LoopbackTimestamps { transmit: true, .. }) => {
            CheckOutcome::limited(format!("software timestamps of sent packets only{clocks}"))
        }
        Ok(_) => CheckOutcome::missing("no timestamps on loopback"),
        Err(error) => CheckOutcome::unknown(format!("could not be tested on loopback: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Support;
    use super::*;

    #[test]
    fn timestamping_is_described() {
        let software = |transmit, receive| Ok(LoopbackTimestamps { transmit, receive });
        let eth0 = TimestampingInterface {
            interface: "eth0".to_owned(),
            support: TimestampingSupport {
                hardware: true,
                ptp_clock: Some(0),
                hardware_transmit: true,
                hardware_receive: true,
                ..TimestampingSupport::default()
            },
            enabled: Some(EnabledTimestamps {
                transmit: true,
                receive: true,
            }),
            is_clock_readable: Some(true),
        };
        let changed = |change: fn(&mut TimestampingInterface)| {
            let mut device = eth0.clone();
            change(&mut device);
            device.describe()
        };
        assert_eq!(
            assess_timestamping(software(true, true), std::slice::from_ref(&eth0)),
            CheckOutcome::ok(
                "software timestamps of sent and received packets; \
                 hardware timestamps of sent and received packets on eth0 (/dev/ptp0)"
            )
        );
        let off = changed(|device| device.enabled = Some(EnabledTimestamps::default()));
        assert!(
            off.ends_with("`sudo hwstamp_ctl -i eth0 -t 1 -r 1`"),
            "{off}"
        );
        let ptp = changed(|device| {
            device.support.hardware_receive = false;
            device.enabled = None;
        });
        assert!(
            ptp.contains("received PTP packets") && ptp.ends_with("-t 1 -r 0`"),
            "{ptp}"
        );
        let user = changed(|device| device.is_clock_readable = Some(false));
        assert_eq!(
            user,
            "eth0 timestamps sent and received packets, but only root can read /dev/ptp0"
        );
        let without_clock = changed(|device| device.support.ptp_clock = None);
        assert!(without_clock.contains("no clock device"), "{without_clock}");
        let none = changed(|device| {
            (
                device.support.hardware_transmit,
                device.support.hardware_receive,
            ) = (false, false)
        });
        assert_eq!(none, "eth0 timestamps PTP packets only");
        assert_eq!(
            assess_timestamping(software(false, true), &[]).support,
            Support::Limited
        );
        assert_eq!(
            assess_timestamping(software(false, false), &[]).support,
            Support::Missing
        );
        assert_eq!(
            assess_timestamping(Err(io::ErrorKind::TimedOut.into()), &[]).support,
            Support::Unknown
        );
    }
}
