//! End of an iperf3 test: payload arrives, the end message is sent, both ends exchange results.

use linerate_dialect::control::Outcome;
use linerate_dialect::iperf3::{Cpu, Flow, FlowResult, Protocol, Results};
use linerate_host::sys::clock::Nanos;
use linerate_metric::plan::Direction;

use super::super::setup_context::foreign;
use super::Test;
use crate::error::MeasureError;

/// Time for a server to read what has arrived, before the end message.
const READING_NS: Nanos = 5_000_000;

/// Minimum time that unacknowledged bytes stay the same before they count as arrived: a kernel
/// delays the acknowledgement of the last segment of a stream (Linux by 40 ms).
const DELAYED_NS: Nanos = 20_000_000;

impl Test {
    /// Returns the server's time without the parts before this end sent and after the last payload
    /// arrived.
    pub(super) fn without_pauses(&self, time_ns: Nanos) -> Nanos {
        // The server's time, and payload sent in it, begin after the omitted time.
        let ran = self.ran.1.saturating_sub(self.ran.0);
        let ran = ran.saturating_sub(self.params.omit_ns);
        let moved = self.own_send_ns.map(|sent| sent + self.drain_ns);
        let pauses = moved.map_or(0, |moved| ran.saturating_sub(moved));
        time_ns
            .checked_sub(pauses)
            .filter(|&t| t > 0)
            .unwrap_or(time_ns)
    }

    /// Sends the end message once everything has arrived.
    pub(super) fn finish_in_time(&mut self, now: Nanos) -> Result<(), MeasureError> {
        let Some(limit) = self.ending_ns.filter(|_| !self.finished) else {
            return Ok(());
        };
        // The FIN is not counted: a server that has closed does not acknowledge it.
        let left = self.sending.iter();
        let left = left
            .map(|socket| socket.unacknowledged(false).unwrap_or(0))
            .sum();
        if left == 0 {
            let since = match now.saturating_sub(self.left.1) {
                waited if waited >= DELAYED_NS => self.left.1,
                _ => now,
            };
            self.arrived_ns.get_or_insert((now, since.min(now)));
        } else if left != self.left.0 {
            self.left = (left, now);
        }
        let read = self
            .arrived_ns
            .is_some_and(|(at, _)| now >= at + READING_NS);
        if read || now >= limit {
            self.finished = true;
            let arrived = self.arrived_ns.map_or(now, |(_, since)| since);
            self.drain_ns = arrived.saturating_sub(self.sent_ns);
            self.ran.1 = now;
            self.machine
                .finish(now)
                .map_err(|error| foreign(self.peer, error))?;
        }
        Ok(())
    }

    /// Converts the results of this end into those for the server.
    pub(super) fn note_own(&mut self, own: &Outcome) {
        let sent = own
            .streams
            .iter()
            .filter(|own| own.direction == Direction::Send);
        self.own_send_ns = sent.filter_map(|own| own.stream.summary.duration_ns).max();
        let flows = self.params.flows();
        let result = |(number, flow): (u32, &Flow)| {
            let stream = own.streams.iter().find(|own| own.stream.id == number);
            let figures = stream
                .map(|own| own.stream.summary.clone())
                .unwrap_or_default();
            let (bytes, packets) = match flow.from_client {
                true => (figures.bytes_sent, figures.packets_sent),
                false => (
                    figures.bytes_received,
                    figures
                        .packets_received
                        .zip(figures.lost)
                        .map(|(came, lost)| came.saturating_add(lost)),
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
        self.own = Some(Results {
            cpu: own.cpu.as_ref().map(|cpu| {
                // The format has user and system parts, and no value for unknown ones.
                let user = cpu.user_share.unwrap_or(0.0);
                Cpu {
                    total: cpu.share * 100.0,
                    user: user * 100.0,
                    system: (cpu.share - user) * 100.0,
                }
            }),
            knows_retransmits: Some(self.params.protocol == Protocol::Tcp),
            congestion: None,
            flows: (1..).zip(&flows).map(result).collect(),
            output_text: None,
            output_json: None,
        });
    }
}
