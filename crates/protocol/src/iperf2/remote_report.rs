//! Conversion of UDP reports to [`RemoteReport`]. Over TCP no end reports anything.

use linerate_record::plan::Direction;

use super::settings::Iperf2Direction;
use super::udp_client::Iperf2UdpClient;
use super::udp_server::Iperf2UdpServer;
use crate::remote_report::{RemoteFigures, RemoteFlow, RemoteReport};

impl Iperf2UdpClient {
    /// Returns what the server reported for the flow that it received; nothing for a flow that it
    /// sent.
    ///
    /// The end datagram, which servers count, is subtracted.
    #[must_use]
    pub fn remote_report(&self) -> RemoteReport {
        let Some(report) = self.report() else {
            return RemoteReport::default();
        };
        // A server that did not count the end has one number less. With any other difference the
        // report includes datagrams of another flow.
        let end_datagrams = u64::from(report.datagrams == self.sent() + 1);
        // zperf reports the datagrams that arrived, and not the highest number.
        let is_arrived = report.lost > 0
            && report.bytes
                == report
                    .datagrams
                    .saturating_mul(self.datagram_bytes() as u64);
        let lost = if is_arrived { 0 } else { report.lost };
        let arrived = report.datagrams.saturating_sub(lost);
        RemoteReport {
            flows: vec![RemoteFlow {
                id: None,
                direction: Direction::Send,
                figures: RemoteFigures {
                    bytes: Some(
                        report
                            .bytes
                            .saturating_sub(end_datagrams * self.datagram_bytes() as u64),
                    ),
                    packets: Some(arrived.saturating_sub(end_datagrams)),
                    lost: Some(report.lost),
                    out_of_order: Some(report.out_of_order),
                    ipdv_ns: Some(report.ipdv_ns as f64),
                    retransmits: None,
                    duration_ns: (report.duration_ns > 0).then_some(report.duration_ns),
                },
            }],
            ..RemoteReport::default()
        }
    }
}

impl Iperf2UdpServer {
    /// Returns the number of datagrams that the client sent, from the number of its end datagram.
    ///
    /// End datagrams that it repeated after a loss are included: the number is too high by at most
    /// the number of lost datagrams.
    #[must_use]
    pub fn remote_report(&self) -> RemoteReport {
        let sends = matches!(
            self.direction(),
            Iperf2Direction::Forward | Iperf2Direction::Both
        );
        let Some(packets) = self.client_sent().filter(|_| sends) else {
            return RemoteReport::default();
        };
        let packets = packets.saturating_sub(self.stats().lost_before_first());
        RemoteReport {
            flows: vec![RemoteFlow {
                id: None,
                direction: Direction::Receive,
                figures: RemoteFigures {
                    packets: Some(packets),
                    ..RemoteFigures::default()
                },
            }],
            ..RemoteReport::default()
        }
    }
}
