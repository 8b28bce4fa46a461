//! Data flows of a test: numbers, order, directions.

use linerate_record::plan::Direction;

use super::params::{Iperf3Params, PARALLEL_LIMIT};

/// Direction of the payload that a client requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Iperf3Direction {
    /// Client to server.
    #[default]
    Forward,
    /// Server to client (`-R`).
    Reverse,
    /// Both directions, on separate flows (`--bidir`).
    Both,
}

/// Data flow of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iperf3Flow {
    /// Number in the results of both ends.
    pub id: u32,
    /// True if the client sends and the server receives.
    pub from_client: bool,
}

impl Iperf3Flow {
    /// Returns the direction seen by the client.
    #[must_use]
    pub fn direction_at_client(self) -> Direction {
        if self.from_client {
            Direction::Send
        } else {
            Direction::Receive
        }
    }

    /// Returns the direction seen by the server.
    #[must_use]
    pub fn direction_at_server(self) -> Direction {
        if self.from_client {
            Direction::Receive
        } else {
            Direction::Send
        }
    }
}

/// Returns the number of the flow that is opened after `index` others. 2 is never used: upstream
/// numbers its second flow 3, and rejects results with other numbers than its own.
#[must_use]
pub fn flow_id(index: u32) -> u32 {
    if index == 0 { 1 } else { index + 2 }
}

impl Iperf3Params {
    /// Returns the flows in the order in which the client opens them: at most [`PARALLEL_LIMIT`] in
    /// each direction, even for parameters that [`Iperf3Params::validate`] has not checked.
    #[must_use]
    pub fn flows(&self) -> Vec<Iperf3Flow> {
        let groups: &[bool] = match self.direction {
            Iperf3Direction::Forward => &[true],
            Iperf3Direction::Reverse => &[false],
            Iperf3Direction::Both => &[true, false],
        };
        let parallel = self.parallel.min(PARALLEL_LIMIT);
        groups
            .iter()
            .flat_map(|&from_client| (0..parallel).map(move |_| from_client))
            .zip(0..)
            .map(|(from_client, index)| Iperf3Flow {
                id: flow_id(index),
                from_client,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_flow_is_number_three() {
        let params = Iperf3Params {
            parallel: 2,
            direction: Iperf3Direction::Both,
            ..Iperf3Params::default()
        };
        let flows: Vec<_> = params
            .flows()
            .iter()
            .map(|f| (f.id, f.from_client))
            .collect();
        assert_eq!(flows, [(1, true), (3, true), (4, false), (5, false)]);
    }
}
