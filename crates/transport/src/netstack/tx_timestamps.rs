//! Transmit timestamps of the stack: times at which datagrams and segments passed each stage.

use std::io;

use linerate_record::plan::TransportProtocol;
use linerate_sys::packet_timestamps::TxTimestampPoint as Passed;
use linerate_sys::tick_clock;

use super::socket_table::SocketSlot;
use super::{NetstackTransport, to_io_error};
use crate::{MAX_TIMESTAMPED_ROUND_TRIPS, TxTimestamp};

impl NetstackTransport {
    /// Enables transmit timestamps of a socket, numbered from here.
    pub(super) fn start_timestamps(
        &mut self,
        slot: SocketSlot,
        protocol: TransportProtocol,
    ) -> io::Result<Vec<String>> {
        let socket = self.socket_id(slot)?;
        self.stack
            .watch_stages(tick_clock::interpolated_now, MAX_TIMESTAMPED_ROUND_TRIPS);
        let from = match protocol {
            TransportProtocol::Udp => self.stack.udp_sent_count(socket).map_err(to_io_error)?,
            TransportProtocol::Tcp => self.sockets.get(slot).sent_stream_bytes,
        };
        self.sockets.get_mut(slot).first_number = Some(from);
        Ok(Vec::new())
    }

    /// Passes on the timestamps since the last call: out of the stack, and into the driver.
    pub(super) fn drain_tx_timestamps(
        &mut self,
        slot: SocketSlot,
        mut take: impl FnMut(TxTimestamp),
    ) -> io::Result<()> {
        let socket = self.socket_id(slot)?;
        let Some(from) = self.sockets.get(slot).first_number else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let pass_on = |departure: linerate_stack::FrameDeparture| {
            if departure.socket != socket {
                return;
            }
            let timestamp = |at_ns, point| TxTimestamp {
                id: departure.number.wrapping_sub(from),
                point,
                at_ns,
                is_hardware: false,
            };
            take(timestamp(departure.finished_ns, Passed::Scheduled));
            take(timestamp(departure.sent_ns, Passed::Driver));
        };
        // Packets that exceeded the buffer are omitted from the stages, as other incomplete ones.
        let _missed = self.stack.take_departures(pass_on);
        Ok(())
    }
}
