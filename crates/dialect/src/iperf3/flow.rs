//! Data flows of a test: numbers, order, directions.

use linerate_metric::plan::Direction;

use super::params::{PARALLEL_LIMIT, Params};

/// Direction of the payload that a client requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
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
pub struct Flow {
    /// Number in the results of both ends.
    pub id: u32,
    /// True if the client sends and the server receives.
    pub from_client: bool,
}

impl Flow {
    /// Returns the direction seen by the client.
    #[must_use]
    pub fn at_client(self) -> Direction {
        if self.from_client {
            Direction::Send
        } else {
            Direction::Receive
        }
    }

    /// Returns the direction seen by the server.
    #[must_use]
    pub fn at_server(self) -> Direction {
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

impl Params {
    /// Returns the flows in the order in which the client opens them: at most [`PARALLEL_LIMIT`] in
    /// each direction, even for parameters that [`Params::check`] has not checked.
    #[must_use]
    pub fn flows(&self) -> Vec<Flow> {
        let groups: &[bool] = match self.way {
            Way::Forward => &[true],
            Way::Reverse => &[false],
            Way::Both => &[true, false],
        };
        let parallel = self.parallel.min(PARALLEL_LIMIT);
        groups
            .iter()
            .flat_map(|&from_client| (0..parallel).map(move |_| from_client))
            .zip(0..)
            .map(|(from_client, index)| Flow {
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
        let params = Params {
            parallel: 2,
            way: Way::Both,
            ..Params::default()
        };
        let flows: Vec<_> = params
            .flows()
            .iter()
            .map(|f| (f.id, f.from_client))
            .collect();
        assert_eq!(flows, [(1, true), (3, true), (4, false), (5, false)]);
    }
}
