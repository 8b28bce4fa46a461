//! Report of the remote end on a run, in one form for all protocols.
//!
//! Each protocol converts the data that its remote end sent into a [`RemoteReport`]. A figure that
//! the remote end did not send, or that its protocol lacks, is `None`, never zero.

use linerate_record::plan::Direction;

/// Figures that the remote end reported for a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemoteReport {
    /// Entries per flow; one per direction if the protocol reports only totals.
    pub flows: Vec<RemoteFlow>,
    /// Report of the remote end as text, if it sent one.
    pub text: Option<String>,
    /// True if the remote end stopped while payload was on its way to it; that payload is not lost.
    pub stopped_early: bool,
}

/// Figures of one flow, or of all flows of one direction, as the remote end reported them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RemoteFlow {
    /// Number of the flow in its protocol, from 1; `None` for a total.
    pub id: Option<u32>,
    /// Direction of the payload, seen from this end: with [`Direction::NuttcpSendAction`] the
    /// remote end counted what it received, with [`Direction::Receive`] what it sent.
    pub direction: Direction,
    /// Counters of the remote end.
    pub figures: RemoteFigures,
}

/// Counters of the remote end for one flow or direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RemoteFigures {
    /// Payload bytes that the remote end received or sent.
    pub bytes: Option<u64>,
    /// Datagrams that the remote end received or sent.
    pub packets: Option<u64>,
    /// Datagrams that the remote end did not receive.
    pub lost: Option<u64>,
    /// Datagrams that arrived after one with a higher number.
    pub out_of_order: Option<u64>,
    /// Smoothed variation of the transit time (RFC 3550 section 6.4.1), in nanoseconds.
    pub ipdv_ns: Option<f64>,
    /// Segments that the remote kernel retransmitted.
    pub retransmits: Option<u64>,
    /// Duration of the counting at the remote end, in nanoseconds.
    pub duration_ns: Option<u64>,
}
