//! The device that a socket's packets pass, where it stamps them by a clock of its own.

use std::io;
use std::time::Duration;

use linerate_host::device_clock::DeviceClock;
use linerate_host::snapshot::interface_towards;
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::device_stamps::{Clock, switched};
use linerate_host::sys::ethtool::Ethtool;
use linerate_host::sys::stamp::Bridge;
use socket2::Socket;

/// Time between two findings of where the clock stands: at 100 us a second, as far as a bad one
/// drifts, it moves by 2 us meanwhile, and its rate is known.
const FIND_EVERY_NS: Nanos = 20_000_000;

/// Between the first two findings, which tell the rate: no question leaves that early.
const FIRST_RATE: Duration = Duration::from_millis(10);

/// A clock that stamps.
pub struct Device {
    file: Clock,
    clock: DeviceClock,
    next_ns: Nanos,
}

impl Device {
    /// The one that a connected socket's packets leave through, if it stamps; `Err` says why its
    /// stamps cannot be used.
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
            return Err(format!(
                "{interface} stamps by a clock that cannot be asked"
            ));
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
            format!("the stamps of {interface} cannot be used: {path}: {error}")
        })
    }

    /// The time of a stamp on our clock.
    pub fn monotonic(&self, stamp_ns: Nanos, bridge: &Bridge) -> Nanos {
        bridge.monotonic(self.clock.real(stamp_ns))
    }

    /// Finds where the clock stands, when that is due. Not within a trip.
    pub fn keep_up(&mut self) {
        let now = clock::now();
        if now < self.next_ns {
            return;
        }
        self.next_ns = now + FIND_EVERY_NS;
        // A device that went away stamps nothing more either.
        if let Ok(offset) = self.file.offset() {
            self.clock.found(offset);
        }
    }

    /// How far a time may be off.
    pub fn error_ns(&self) -> Nanos {
        self.clock.error_ns()
    }
}
