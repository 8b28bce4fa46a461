//! Hardware timestamps of the interface that a socket's packets pass.

use std::io;
use std::time::Duration;

use linerate_host::device_clock::DeviceClock;
use linerate_host::snapshot::interface_towards;
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::ethtool::Ethtool;
use linerate_host::sys::hardware_timestamps::{Clock, switched};
use linerate_host::sys::packet_timestamps::Bridge;
use socket2::Socket;

/// Time between two synchronisations with the device's clock. A bad clock drifts by 100 us per
/// second, thus by 2 us meanwhile, and its rate is known.
const FIND_EVERY_NS: Nanos = 20_000_000;

/// Time between the first two synchronisations, which give the rate; no request is sent before.
const FIRST_RATE: Duration = Duration::from_millis(10);

/// An interface with a hardware clock for timestamps.
pub struct Device {
    file: Clock,
    clock: DeviceClock,
    next_ns: Nanos,
}

impl Device {
    /// Returns the interface through which a connected socket sends, if it makes timestamps.
    ///
    /// # Errors
    /// The reason why its timestamps cannot be used.
    pub fn of(socket: &Socket) -> Result<Option<Self>, String> {
        let remote = socket
            .peer_addr()
            .ok()
            .and_then(|remote| remote.as_socket());
        let Some(interface) = remote.and_then(|remote| interface_towards(remote.ip())) else {
            return Ok(None);
        };
        let can = Ethtool::new(&interface).and_then(|ethtool| ethtool.timestamping());
        let can = can.unwrap_or_default();
        let told = switched(&interface).unwrap_or_default();
        if !can.hardware || !(told.departures || told.arrivals) {
            return Ok(None);
        }
        let Some(number) = can.clock else {
            return Err(format!("the hardware clock of {interface} cannot be read"));
        };
        let file = Clock::open(number);
        let device = file.and_then(|file| {
            let first = file.offset()?;
            std::thread::sleep(FIRST_RATE);
            let second = file.offset()?;
            Ok(Self {
                file,
                clock: DeviceClock::between(first, second),
                next_ns: clock::now() + FIND_EVERY_NS,
            })
        });
        device.map(Some).map_err(|error: io::Error| {
            let path = Clock::path(number);
            format!("the hardware timestamps of {interface} cannot be used: {path}: {error}")
        })
    }

    /// Converts a hardware timestamp to our clock.
    pub fn monotonic(&self, stamp_ns: Nanos, bridge: &Bridge) -> Nanos {
        bridge.monotonic(self.clock.real(stamp_ns))
    }

    /// Synchronises with the device's clock when that is due. Not to be called within a round trip.
    pub fn keep_up(&mut self) {
        let now = clock::now();
        if now < self.next_ns {
            return;
        }
        self.next_ns = now + FIND_EVERY_NS;
        // A removed device makes no further timestamps either, so the error is ignored.
        if let Ok(offset) = self.file.offset() {
            self.clock.found(offset);
        }
    }

    /// Returns the error bound of a converted timestamp.
    pub fn error_ns(&self) -> Nanos {
        self.clock.error_ns()
    }
}
