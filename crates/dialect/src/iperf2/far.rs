//! What the other end said of a UDP flow. Over TCP nobody says anything.

use linerate_metric::plan::Direction;

use super::settings::Way;
use super::udp_client::UdpClient;
use super::udp_server::UdpServer;
use crate::far::{FarFigures, FarFlow, FarReport};

impl UdpClient {
    /// What the server said of this flow: of what arrived there, its report; of what it sent, nothing.
    ///
    /// The end's datagram, which servers count, is taken out again.
    #[must_use]
    pub fn far_report(&self) -> FarReport {
        let Some(report) = self.report() else {
            return FarReport::default();
        };
        // A server that did not count the end has one number less. One that is far off has counted
        // somebody else's.
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
    /// What the client said of this flow: by the number of its end, how many datagrams it sent. The
    /// ends that it repeated because the first was lost are among them: at most what is missing.
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
