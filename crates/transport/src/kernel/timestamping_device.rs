//! Hardware timestamps of the interface that a socket's packets pass.

use std::io;
use std::time::Duration;

use linerate_host::snapshot::egress_interface;
use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_sys::device_clock::DeviceClock;
use linerate_sys::ethtool::EthtoolSocket;
use linerate_sys::hardware_timestamps::{PtpClock, read_enabled};
use linerate_sys::packet_timestamps::RealtimeConverter;
use socket2::Socket;

/// Time between two synchronisations with the device's clock. A bad clock drifts by 100 us per
/// second, thus by 2 us meanwhile, and its rate is known.
const SYNC_INTERVAL_NS: Nanos = 20_000_000;

/// Time between the first two synchronisations, which give the rate; no request is sent before.
const RATE_BASELINE: Duration = Duration::from_millis(10);

/// An interface with a hardware clock for timestamps.
pub struct TimestampingDevice {
    clock_file: PtpClock,
    clock: DeviceClock,
    next_sync_ns: Nanos,
}

impl TimestampingDevice {
    /// Returns the interface through which a connected socket sends, if it makes timestamps.
    ///
    /// # Errors
    /// The reason why its timestamps cannot be used.
    pub fn for_socket(socket: &Socket) -> Result<Option<Self>, String> {
        let remote = socket
            .peer_addr()
            .ok()
            .and_then(|remote| remote.as_socket());
        let Some(interface) = remote.and_then(|remote| egress_interface(remote.ip())) else {
            return Ok(None);
        };
        let supported =
            EthtoolSocket::new(&interface).and_then(|ethtool| ethtool.read_timestamping());
        let supported = supported.unwrap_or_default();
        let enabled = read_enabled(&interface).unwrap_or_default();
        if !supported.hardware || !(enabled.transmit || enabled.receive) {
            return Ok(None);
        }
        let Some(number) = supported.ptp_clock else {
            return Err(format!("the hardware clock of {interface} cannot be read"));
        };
        let file = PtpClock::open(number);
        let device = file.and_then(|file| {
            let first = file.read_offset()?;
            std::thread::sleep(RATE_BASELINE);
            let second = file.read_offset()?;
            Ok(Self {
                clock_file: file,
                clock: DeviceClock::new(first, second),
                next_sync_ns: clock::now() + SYNC_INTERVAL_NS,
            })
        });
        device.map(Some).map_err(|error: io::Error| {
            let path = PtpClock::path(number);
            format!("the hardware timestamps of {interface} cannot be used: {path}: {error}")
        })
    }

    /// Converts a hardware timestamp to our clock.
    #[inline]
    pub fn to_monotonic_ns(&self, stamp_ns: Nanos, bridge: &RealtimeConverter) -> Nanos {
        bridge.to_monotonic(self.clock.to_realtime(stamp_ns))
    }

    /// Synchronises with the device's clock when that is due. Not to be called within a round trip.
    pub fn sync_if_due(&mut self) {
        let now = clock::now();
        if now < self.next_sync_ns {
            return;
        }
        self.next_sync_ns = now + SYNC_INTERVAL_NS;
        // A removed device makes no further timestamps either, so the error is ignored.
        if let Ok(offset) = self.clock_file.read_offset() {
            self.clock.update(offset);
        }
    }

    /// Returns the error bound of a converted timestamp.
    pub fn error_ns(&self) -> Nanos {
        self.clock.error_ns()
    }
}
