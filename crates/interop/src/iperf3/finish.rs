//! End of an iperf3 test: payload arrives, the end message is sent, both ends exchange results.

use linerate_protocol::control::EndResults;
use linerate_protocol::iperf3::{
    CpuPercent, FlowResult, Iperf3Flow, Iperf3Results, Iperf3Transport,
};
use linerate_record::plan::Direction;
use linerate_session::error::SessionError;
use linerate_sys::clock::Nanos;

use super::super::setup_context::protocol_error;
use super::Iperf3Driver;

/// Time for a server to read what has arrived, before the end message.
const SERVER_READ_NS: Nanos = 5_000_000;

/// Minimum time that unacknowledged bytes stay the same before they count as arrived: a kernel
/// delays the acknowledgement of the last segment of a stream (Linux by 40 ms).
const DELAYED_ACK_NS: Nanos = 20_000_000;

/// Parts of a server's time in which no payload arrives. The wait until the queue of a socket is
/// empty is none of them: its payload is on the link.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerPauses {
    pub(super) omit_ns: Nanos,
    /// Time from the arrival of the last payload to the end message, at this end.
    pub(super) end_ns: Nanos,
    /// Round-trip time: the time from the server's start to the first payload.
    pub(super) rtt_ns: Nanos,
    /// Time in which this end sent.
    pub(super) sent_ns: Option<Nanos>,
}

impl ServerPauses {
    /// Returns the server's time without the parts before payload arrives and after the last one.
    pub(super) fn subtract_from(&self, time_ns: Nanos) -> Nanos {
        // The server's time begins after the omitted time, and payload sent in it fills the start.
        let start_ns = self.rtt_ns.saturating_sub(self.omit_ns);
        time_ns
            .checked_sub(self.end_ns + start_ns)
            .filter(|&left_ns| left_ns > 0 && self.sent_ns.is_none_or(|sent| left_ns >= sent / 2))
            .unwrap_or(time_ns)
    }
}

impl Iperf3Driver {
    /// Sends the end message once everything has arrived.
    pub(super) fn finish_when_arrived(&mut self, now: Nanos) -> Result<(), SessionError> {
        let Some(limit) = self.finish_by_ns.filter(|_| !self.finished) else {
            return Ok(());
        };
        // The FIN is not counted: a server that has closed does not acknowledge it.
        let unacknowledged = self.tcp_senders.iter();
        let unacknowledged = unacknowledged
            .map(|socket| socket.unacknowledged(false).unwrap_or(0))
            .sum();
        if unacknowledged == 0 {
            let since = match now.saturating_sub(self.unacknowledged.1) {
                waited if waited >= DELAYED_ACK_NS => self.unacknowledged.1,
                _ => now,
            };
            self.arrival_ns.get_or_insert((now, since.min(now)));
        } else if unacknowledged != self.unacknowledged.0 {
            self.unacknowledged = (unacknowledged, now);
        }
        let is_read = self
            .arrival_ns
            .is_some_and(|(at, _)| now >= at + SERVER_READ_NS);
        if is_read || now >= limit {
            self.finished = true;
            let arrival_ns = self.arrival_ns.map_or(now, |(_, since)| since);
            self.end_pause_ns = now.saturating_sub(arrival_ns);
            self.machine
                .finish(now)
                .map_err(|error| protocol_error(self.peer, error))?;
        }
        Ok(())
    }

    /// Converts the results of this end into those for the server.
    pub(super) fn store_results(&mut self, local_results: &EndResults) {
        let sent = local_results
            .streams
            .iter()
            .filter(|local_results| local_results.direction == Direction::Send);
        self.send_duration_ns = sent
            .filter_map(|local_results| local_results.stream.summary.duration_ns)
            .max();
        let flows = self.params.flows();
        let result = |(number, flow): (u32, &Iperf3Flow)| {
            let stream = local_results
                .streams
                .iter()
                .find(|local_results| local_results.stream.id == number);
            let figures = stream
                .map(|local_results| local_results.stream.summary.clone())
                .unwrap_or_default();
            let (bytes, packets) = match flow.from_client {
                true => (figures.bytes_sent, figures.packets_sent),
                false => (
                    figures.bytes_received,
                    figures
                        .packets_received
                        .zip(figures.lost)
                        .map(|(received, lost)| received.saturating_add(lost)),
                ),
            };
            FlowResult {
                id: flow.id,
                bytes: Some(bytes.unwrap_or(0)),
                retransmits: figures.retransmits,
                ipdv_ns: figures.ipdv_ns,
                lost: Some(figures.lost.unwrap_or(0)),
                packets: Some(packets.unwrap_or(0)),
                omitted_lost: None,
                omitted_packets: None,
                start_ns: Some(0),
                end_ns: figures.duration_ns,
            }
        };
        self.local_results = Some(Iperf3Results {
            cpu: local_results.cpu.as_ref().map(|cpu| {
                // The format has user and system parts, and no value for unknown ones.
                let user = cpu.user_share.unwrap_or(0.0);
                CpuPercent {
                    total: cpu.share * 100.0,
                    user: user * 100.0,
                    system: (cpu.share - user) * 100.0,
                }
            }),
            has_retransmits: Some(self.params.protocol == Iperf3Transport::Tcp),
            congestion: None,
            flows: (1..).zip(&flows).map(result).collect(),
            output_text: None,
            output_json: None,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_time_is_that_of_payload() {
        let ms = 1_000_000;
        // Sent for 3 s over a path with a round trip of 600 ms; the end message came 5 ms after the
        // last payload.
        let path = ServerPauses {
            omit_ns: 0,
            end_ns: 5 * ms,
            rtt_ns: 600 * ms,
            sent_ns: Some(3_000 * ms),
        };
        let omitted = |omit_ns| ServerPauses { omit_ns, ..path };
        for (pauses, server_ms, payload_ms) in [
            (path, 3_605, 3_000),
            // A queue that took 4 s to empty, before the end message or ahead of it.
            (path, 7_605, 7_000),
            // Payload of the omitted time fills the server's first round trip.
            (omitted(1_000 * ms), 3_605, 3_600),
            (omitted(200 * ms), 3_605, 3_200),
            // Its time is something else.
            (path, 1_000, 1_000),
            (path, 500, 500),
        ] {
            let time_ns = pauses.subtract_from(server_ms * ms);
            assert_eq!(time_ns, payload_ms * ms, "{server_ms} {pauses:?}");
        }
    }
}
