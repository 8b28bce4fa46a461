//! What the far end said of a run, in the same words for every dialect.
//!
//! Each dialect has a pure function from what its machine ended with to a [`FarReport`]. What the far
//! end did not say, or what its dialect cannot say, is `None`, never zero.

use linerate_metric::plan::Direction;

/// All that the far end said of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FarReport {
    /// One for each flow it counted; a dialect that tells totals only has one for each direction.
    pub flows: Vec<FarFlow>,
    /// Its own report for people, when it sent one.
    pub text: Option<String>,
    /// It ended the test while payload was on its way to it: that it did not count, and it is not lost.
    pub stopped_first: bool,
}

/// What the far end said of one flow, or of all flows of one direction together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FarFlow {
    /// The flow's number in its dialect, from 1; `None` for a total.
    pub id: Option<u32>,
    /// Which way payload went, seen from the near end: with [`Direction::Send`] the far end counted
    /// what arrived there, with [`Direction::Receive`] what it sent.
    pub direction: Direction,
    /// Its figures.
    pub figures: FarFigures,
}

/// Figures as the far end counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FarFigures {
    /// Payload bytes that arrived there, or that it sent.
    pub bytes: Option<u64>,
    /// Datagrams that arrived there, or that it sent.
    pub packets: Option<u64>,
    /// Datagrams that it missed.
    pub lost: Option<u64>,
    /// Datagrams that came to it after one with a higher number.
    pub out_of_order: Option<u64>,
    /// Smoothed variation of the transit time (RFC 3550 section 6.4.1), in nanoseconds.
    pub ipdv_ns: Option<f64>,
    /// Segments that its kernel sent again.
    pub retransmits: Option<u64>,
    /// How long it counted, in nanoseconds.
    pub duration_ns: Option<u64>,
}
