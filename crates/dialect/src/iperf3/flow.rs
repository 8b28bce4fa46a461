//! The data flows of a test: their numbers, their order, their directions.

use linerate_metric::plan::Direction;

use super::params::{PARALLEL_LIMIT, Params};

/// Which way payload goes, as a client asks for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// From the client to the server.
    #[default]
    Forward,
    /// From the server to the client (`-R`).
    Reverse,
    /// Both, on flows of their own (`--bidir`).
    Both,
}

/// One data flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Its number in the results of both ends.
    pub id: u32,
    /// Whether the client sends and the server receives.
    pub from_client: bool,
}

impl Flow {
    /// Its direction as the client sees it.
    #[must_use]
    pub fn at_client(self) -> Direction {
        if self.from_client {
            Direction::Send
        } else {
            Direction::Receive
        }
    }

    /// Its direction as the server sees it.
    #[must_use]
    pub fn at_server(self) -> Direction {
        if self.from_client {
            Direction::Receive
        } else {
            Direction::Send
        }
    }
}

/// The number of the flow that is opened after `index` others. 2 is never used: a stock end numbers
/// its second flow 3, and the peer refuses results with other numbers than its own.
#[must_use]
pub fn flow_id(index: u32) -> u32 {
    if index == 0 { 1 } else { index + 2 }
}

impl Params {
    /// The flows in the order in which the client opens and the server takes them: at most
    /// [`PARALLEL_LIMIT`] in each direction, whatever number a peer says before [`Params::check`].
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
