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

impl Iperf3Driver {
    /// Returns the server's time without the parts before this end sent and after the last payload
    /// arrived.
    pub(super) fn without_pauses(&self, time_ns: Nanos) -> Nanos {
        // The server's time, and payload sent in it, begin after the omitted time.
        let run_ns = self.server_run_ns.1.saturating_sub(self.server_run_ns.0);
        let run_ns = run_ns.saturating_sub(self.params.omit_ns);
        let moved_ns = self.send_duration_ns.map(|sent| sent + self.drain_ns);
        let pauses = moved_ns.map_or(0, |moved_ns| run_ns.saturating_sub(moved_ns));
        time_ns
            .checked_sub(pauses)
            .filter(|&t| t > 0)
            .unwrap_or(time_ns)
    }

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
            self.drain_ns = arrival_ns.saturating_sub(self.sent_ns);
            self.server_run_ns.1 = now;
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
