//! Transmit timestamps of the stack: times at which datagrams and segments passed each stage.

use std::io;

use linerate_host::sys::tick_clock;
use linerate_metric::plan::Protocol;

use super::socket_table::Place;
use super::{OnStack, system};
use crate::timestamps::ring::KEPT;
use crate::transport::{Departure, Place as Passed};

impl OnStack {
    /// Enables transmit timestamps of a socket, numbered from here.
    pub(super) fn begin_stamping(
        &mut self,
        place: Place,
        protocol: Protocol,
    ) -> io::Result<Vec<String>> {
        let socket = self.id(place)?;
        self.stack.watch_stages(tick_clock::now, KEPT);
        let from = match protocol {
            Protocol::Udp => self.stack.udp_sent(socket).map_err(system)?,
            Protocol::Tcp => self.entries.get(place).stream_bytes,
        };
        self.entries.get_mut(place).numbered_from = Some(from);
        Ok(Vec::new())
    }

    /// Passes on the timestamps since the last call: out of the stack, and into the driver.
    pub(super) fn show_departures(
        &mut self,
        place: Place,
        mut take: impl FnMut(Departure),
    ) -> io::Result<()> {
        let socket = self.id(place)?;
        let Some(from) = self.entries.get(place).numbered_from else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let show = |left: linerate_stack::Departure| {
            if left.socket != socket {
                return;
            }
            let passed = |at_ns, point| Departure {
                id: left.number.wrapping_sub(from),
                place: point,
                at_ns,
                by_device: false,
            };
            take(passed(left.handed_ns, Passed::Queued));
            take(passed(left.left_ns, Passed::Driver));
        };
        // Packets that exceeded the buffer are omitted from the stages, as other incomplete ones.
        let _missed = self.stack.departures(show);
        Ok(())
    }
}
