//! Kernel timestamps (SO_TIMESTAMPING) of sent and received packets.

use std::io;
use std::task;
use std::time::Duration;

use linerate_record::plan::TransportProtocol;
use linerate_sys::packet_timestamps;
use linerate_sys::packet_timestamps::RealtimeConverter;

use super::super::call_times::{CallRecorder, TransportCall};
use super::super::{RecvMeta, TxTimestamp};
use super::timestamping_device::TimestampingDevice;
use super::{KernelTransport, SOCKET_IS_OPEN, SocketIndex, SocketWait};

/// Longest time in which the kernel may start to timestamp arrivals: half of the shortest usual
/// time after which requests count as lost.
const ENABLE_TIMEOUT: Duration = Duration::from_millis(500);

impl<W: SocketWait, R: CallRecorder> KernelTransport<W, R> {
    /// [`Transport::enable_timestamps`](super::Transport::enable_timestamps).
    pub(super) fn start_timestamps(
        &mut self,
        index: SocketIndex,
        protocol: TransportProtocol,
    ) -> io::Result<Vec<String>> {
        let entry = self.sockets[index.0].as_ref().expect(SOCKET_IS_OPEN);
        packet_timestamps::enable_timestamps(&entry.socket, protocol == TransportProtocol::Tcp)?;
        let device = TimestampingDevice::for_socket(&entry.socket);
        let mut warnings = Vec::new();
        // Before the first request is sent. The kernel enables receive timestamps for the whole
        // machine, so one wait is enough for all flows.
        if self.clock_bridge.is_none() {
            if packet_timestamps::wait_for_rx_timestamps(ENABLE_TIMEOUT)
                .is_ok_and(|started| !started)
            {
                warnings.push(format!(
                    "the kernel did not start to timestamp arrivals within {} ms",
                    ENABLE_TIMEOUT.as_millis()
                ));
            }
            self.clock_bridge = Some(RealtimeConverter::measure());
        }
        match device {
            Ok(device) => self.timestamping_device = device,
            Err(reason) => warnings.push(reason),
        }
        Ok(warnings)
    }

    /// [`Transport::receive_with_timestamp`](super::Transport::receive_with_timestamp).
    #[inline]
    pub(super) fn receive_timestamped<T>(
        &mut self,
        index: SocketIndex,
        max_bytes: usize,
        take: impl FnOnce(&[u8], RecvMeta) -> T,
    ) -> task::Poll<io::Result<T>> {
        let clock_bridge = self.clock_bridge;
        let received = self.receive(
            index,
            TransportCall::RecvMsg,
            max_bytes,
            packet_timestamps::receive_with_timestamp,
        );
        let device = &self.timestamping_device;
        received.map_ok(|(bytes, stamp)| {
            let by_device = stamp.hardware_ns.zip(device.as_ref()).zip(clock_bridge);
            let meta = RecvMeta {
                hardware_ns: by_device
                    .map(|((at, device), clock_bridge)| device.to_monotonic_ns(at, &clock_bridge)),
                timestamp_ns: stamp
                    .software_ns
                    .zip(clock_bridge)
                    .map(|(real, clock_bridge)| clock_bridge.to_monotonic(real)),
                ..RecvMeta::default()
            };
            take(self.receive_buffer.prefix(bytes), meta)
        })
    }

    /// [`Transport::departures`](super::Transport::departures).
    pub(super) fn drain_tx_timestamps(
        &mut self,
        index: SocketIndex,
        mut take: impl FnMut(TxTimestamp),
    ) -> io::Result<()> {
        let entry = self.sockets[index.0].as_ref().expect(SOCKET_IS_OPEN);
        let Some(clock_bridge) = self.clock_bridge else {
            return Ok(());
        };
        while let Some(departure) = packet_timestamps::next_tx_timestamp(&entry.socket)? {
            let (id, point) = (departure.id, departure.point);
            let mut pass_on = |at_ns, by_device| {
                take(TxTimestamp {
                    id,
                    point,
                    at_ns,
                    is_hardware: by_device,
                });
            };
            if let Some(real) = departure.timestamp.software_ns {
                pass_on(clock_bridge.to_monotonic(real), false);
            }
            if let Some((at, device)) = departure
                .timestamp
                .hardware_ns
                .zip(self.timestamping_device.as_ref())
            {
                pass_on(device.to_monotonic_ns(at, &clock_bridge), true);
            }
        }
        if let Some(device) = &mut self.timestamping_device {
            device.sync_if_due();
        }
        Ok(())
    }

    /// Returns the step of the system time since timestamps were enabled.
    pub(super) fn realtime_step_ns(&self) -> u64 {
        self.clock_bridge.map_or(0, |clock_bridge| {
            RealtimeConverter::measure().step_since(&clock_bridge)
        })
    }
}
