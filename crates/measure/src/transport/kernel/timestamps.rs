//! Kernel timestamps (SO_TIMESTAMPING) of sent and received packets.

use std::io;
use std::task;
use std::time::Duration;

use linerate_host::sys::packet_timestamps::{self, Bridge};
use linerate_metric::plan::Protocol;

use super::super::call_times::{Call, Recorder};
use super::super::{Departure, Meta};
use super::timestamping_device::Device;
use super::{Index, Kernel, OPEN, Waiting};

/// Longest time in which the kernel may start to timestamp arrivals: half of the shortest usual
/// time after which requests count as lost.
const STAMPS_PATIENCE: Duration = Duration::from_millis(500);

impl<W: Waiting, R: Recorder> Kernel<W, R> {
    /// [`Transport::stamp`](super::Transport::stamp).
    pub(super) fn start_stamps(
        &mut self,
        index: Index,
        protocol: Protocol,
    ) -> io::Result<Vec<String>> {
        let entry = self.sockets[index.0].as_ref().expect(OPEN);
        packet_timestamps::enable(&entry.socket, protocol == Protocol::Tcp)?;
        let device = Device::of(&entry.socket);
        let mut notes = Vec::new();
        // Before the first request is sent. The kernel enables receive timestamps for the whole
        // machine, so one wait is enough for all flows.
        if self.bridge.is_none() {
            if packet_timestamps::await_arrivals(STAMPS_PATIENCE).is_ok_and(|begun| !begun) {
                notes.push(format!(
                    "the kernel did not start to timestamp arrivals within {} ms",
                    STAMPS_PATIENCE.as_millis()
                ));
            }
            self.bridge = Some(Bridge::now());
        }
        match device {
            Ok(device) => self.device = device,
            Err(why) => notes.push(why),
        }
        Ok(notes)
    }

    /// [`Transport::receive_stamped`](super::Transport::receive_stamped).
    #[inline]
    pub(super) fn take_stamped<T>(
        &mut self,
        index: Index,
        room: usize,
        take: impl FnOnce(&[u8], Meta) -> T,
    ) -> task::Poll<io::Result<T>> {
        let bridge = self.bridge;
        let received = self.receive(index, Call::RecvMsg, room, packet_timestamps::receive);
        let device = &self.device;
        received.map_ok(|(bytes, stamp)| {
            let by_device = stamp.hardware_ns.zip(device.as_ref()).zip(bridge);
            let meta = Meta {
                device_ns: by_device.map(|((at, device), bridge)| device.monotonic(at, &bridge)),
                stamp_ns: stamp
                    .software_ns
                    .zip(bridge)
                    .map(|(real, bridge)| bridge.monotonic(real)),
                ..Meta::default()
            };
            take(self.incoming.front(bytes), meta)
        })
    }

    /// [`Transport::departures`](super::Transport::departures).
    pub(super) fn take_departures(
        &mut self,
        index: Index,
        mut take: impl FnMut(Departure),
    ) -> io::Result<()> {
        let entry = self.sockets[index.0].as_ref().expect(OPEN);
        let Some(bridge) = self.bridge else {
            return Ok(());
        };
        while let Some(departure) = packet_timestamps::departure(&entry.socket)? {
            let (id, place) = (departure.id, departure.place);
            let mut tell = |at_ns, by_device| {
                take(Departure {
                    id,
                    place,
                    at_ns,
                    by_device,
                });
            };
            if let Some(real) = departure.stamp.software_ns {
                tell(bridge.monotonic(real), false);
            }
            if let Some((at, device)) = departure.stamp.hardware_ns.zip(self.device.as_ref()) {
                tell(device.monotonic(at, &bridge), true);
            }
        }
        if let Some(device) = &mut self.device {
            device.keep_up();
        }
        Ok(())
    }

    /// Returns the step of the system time since timestamps were enabled.
    pub(super) fn clock_moved_by_ns(&self) -> u64 {
        self.bridge
            .map_or(0, |bridge| Bridge::now().moved_since(&bridge))
    }
}
