//! Conversion of UDP reports to [`FarReport`]. Over TCP no end reports anything.

use linerate_metric::plan::Direction;

use super::settings::Way;
use super::udp_client::UdpClient;
use super::udp_server::UdpServer;
use crate::remote_report::{FarFigures, FarFlow, FarReport};

impl UdpClient {
    /// Returns what the server reported for the flow that it received; nothing for a flow that it
    /// sent.
    ///
    /// The end datagram, which servers count, is subtracted.
    #[must_use]
    pub fn far_report(&self) -> FarReport {
        let Some(report) = self.report() else {
            return FarReport::default();
        };
        // A server that did not count the end has one number less. With any other difference the
        // report includes datagrams of another flow.
        let end = u64::from(report.datagrams == self.sent() + 1);
        let arrived = report.datagrams.saturating_sub(report.lost);
        FarReport {
            flows: vec![FarFlow {
                id: None,
                direction: Direction::Send,
                figures: FarFigures {
                    bytes: Some(
                        report
                            .bytes
                            .saturating_sub(end * self.datagram_bytes() as u64),
                    ),
                    packets: Some(arrived.saturating_sub(end)),
                    lost: Some(report.lost),
                    out_of_order: Some(report.out_of_order),
                    ipdv_ns: Some(report.ipdv_ns as f64),
                    retransmits: None,
                    duration_ns: (report.duration_ns > 0).then_some(report.duration_ns),
                },
            }],
            ..FarReport::default()
        }
    }
}

impl UdpServer {
    /// Returns the number of datagrams that the client sent, from the number of its end datagram.
    ///
    /// End datagrams that it repeated after a loss are included: the number is too high by at most
    /// the number of lost datagrams.
    #[must_use]
    pub fn far_report(&self) -> FarReport {
        let sends = matches!(self.way(), Way::Forward | Way::Both);
        let Some(packets) = self.client_sent().filter(|_| sends) else {
            return FarReport::default();
        };
        let packets = packets.saturating_sub(self.tally().before());
        FarReport {
            flows: vec![FarFlow {
                id: None,
                direction: Direction::Receive,
                figures: FarFigures {
                    packets: Some(packets),
                    ..FarFigures::default()
                },
            }],
            ..FarReport::default()
        }
    }
}
