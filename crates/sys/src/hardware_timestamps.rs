//! Hardware timestamps of a network device: their configuration (SIOCGHWTSTAMP) and the device
//! clock (PTP_SYS_OFFSET).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use socket2::{Domain, Socket, Type};

use super::clock::Nanos;
use crate::device_clock::ClockOffset;

/// Packets for which a device takes hardware timestamps, as configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnabledTimestamps {
    /// Sent packets whose socket requests it.
    pub transmit: bool,
    /// All received packets.
    pub receive: bool,
}

impl EnabledTimestamps {
    /// Reads `struct hwtstamp_config`: a filter for PTP or NTP packets only does not cover test
    /// packets.
    fn from_config(config: &libc::hwtstamp_config) -> Self {
        const OFF: libc::c_int = libc::HWTSTAMP_TX_OFF as libc::c_int;
        const ALL: libc::c_int = libc::HWTSTAMP_FILTER_ALL as libc::c_int;
        Self {
            transmit: config.tx_type != OFF,
            receive: config.rx_filter == ALL,
        }
    }
}

/// Reads the timestamping configuration of an interface of the calling thread's network namespace.
///
/// # Errors
/// `EOPNOTSUPP` where the driver has no timestamping, `ENODEV` without such an interface.
pub fn read_enabled(interface: &str) -> io::Result<EnabledTimestamps> {
    // The kernel needs a terminating zero within IFNAMSIZ.
    if interface.is_empty() || interface.len() >= libc::IFNAMSIZ || interface.contains('\0') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let socket = Socket::new(Domain::UNIX, Type::DGRAM, None)?;
    let mut config = libc::hwtstamp_config {
        flags: 0,
        tx_type: 0,
        rx_filter: 0,
    };
    // SAFETY: ifreq is integers, arrays and a pointer; all zeros is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (slot, byte) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *slot = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut config).cast();
    // SAFETY: the request is valid, its name ends with a zero, and its data point to one
    // hwtstamp_config, which is what the kernel writes.
    let result = unsafe {
        libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCGHWTSTAMP as libc::Ioctl,
            &raw mut request,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(EnabledTimestamps::from_config(&config))
}

/// Clock of a device (`/dev/ptpN`).
#[derive(Debug)]
pub struct PtpClock(File);

impl PtpClock {
    /// Returns the path of the clock device with this number.
    #[must_use]
    pub fn path(number: u32) -> String {
        format!("/dev/ptp{number}")
    }

    /// Opens the clock read-only.
    ///
    /// # Errors
    /// `NotFound` without such a clock, `PermissionDenied` for users who may not read it.
    pub fn open(number: u32) -> io::Result<Self> {
        File::open(Self::path(number)).map(Self)
    }

    /// Reads the offset from CLOCK_REALTIME; a few samples of some us each.
    ///
    /// # Errors
    /// Errors of the ioctl; `InvalidData` when no device reading lies between two system readings.
    pub fn read_offset(&self) -> io::Result<ClockOffset> {
        /// Number of samples, of which the shortest is used.
        const SAMPLES: u32 = 5;
        // SAFETY: ptp_sys_offset is integers; all zeros is valid.
        let mut request: libc::ptp_sys_offset = unsafe { std::mem::zeroed() };
        request.n_samples = SAMPLES;
        // SAFETY: the request reads and writes one ptp_sys_offset.
        let result =
            unsafe { libc::ioctl(self.0.as_raw_fd(), libc::PTP_SYS_OFFSET, &raw mut request) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        let readings: Vec<Nanos> = (request.ts.iter())
            .take(2 * SAMPLES as usize + 1)
            .map(to_nanos)
            .collect();
        ClockOffset::from_readings(&readings).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

fn to_nanos(time: &libc::ptp_clock_time) -> Nanos {
    // A clock that was never set may count from any time; negative seconds become zero.
    let seconds = u64::try_from(time.sec).unwrap_or(0);
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::from(time.nsec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_for_ptp_covers_no_test_packets() {
        for (tx_type, rx_filter, transmit, receive) in [
            (0, 0, false, false),
            (1, 0, true, false),
            (1, 1, true, true),
            // One-step mode: the timestamp is written into the packet, and reported too.
            (2, 1, true, true),
            // PTPV2_EVENT, NTP_ALL, SOME.
            (1, 12, true, false),
            (1, 15, true, false),
            (0, 2, false, false),
        ] {
            let config = libc::hwtstamp_config {
                flags: 0,
                tx_type,
                rx_filter,
            };
            let expected = EnabledTimestamps { transmit, receive };
            assert_eq!(
                EnabledTimestamps::from_config(&config),
                expected,
                "{tx_type} {rx_filter}"
            );
        }
    }

    #[test]
    fn times_of_the_kernel_are_nanoseconds() {
        // SAFETY: ptp_clock_time is integers; all zeros is valid.
        let mut time: libc::ptp_clock_time = unsafe { std::mem::zeroed() };
        for (sec, nsec, expected) in [
            (0, 0, 0),
            (3, 7, 3_000_000_007),
            (-1, 5, 5),
            (i64::MAX, 0, Nanos::MAX),
        ] {
            (time.sec, time.nsec) = (sec, nsec);
            assert_eq!(to_nanos(&time), expected, "{sec} {nsec}");
        }
    }

    #[test]
    fn interfaces_without_a_clock_are_an_error() {
        assert!(read_enabled("lo").is_err());
        assert!(read_enabled("").is_err() && read_enabled("a-name-of-16-byt").is_err());
        assert_eq!(
            read_enabled("none-such0").unwrap_err().raw_os_error(),
            Some(libc::ENODEV)
        );
        let Ok(clock) = PtpClock::open(0) else {
            println!("skipped: no {} that this user may read", PtpClock::path(0));
            return;
        };
        let offset = clock.read_offset().unwrap();
        assert!(offset.error_ns < 1_000_000, "{offset:?}");
    }
}
