//! Ends of a run (client and server) and of a flow (sender and receiver).

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A value for each end of a run, written `CLIENT[/SERVER]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PerEnd<T> {
    /// Value of the client.
    #[serde(alias = "near")]
    pub client: T,
    /// Value of the server.
    #[serde(alias = "far")]
    pub server: T,
}

impl<T> PerEnd<T> {
    /// Returns the pair with the values of client and server exchanged.
    #[must_use]
    pub fn swapped(self) -> Self {
        Self {
            client: self.server,
            server: self.client,
        }
    }
}

impl<T: Clone> PerEnd<T> {
    /// Creates a pair with the same value for both ends.
    #[must_use]
    pub fn same(value: T) -> Self {
        Self {
            server: value.clone(),
            client: value,
        }
    }
}

impl<T: FromStr + Clone> FromStr for PerEnd<T> {
    type Err = T::Err;

    /// Parses `CLIENT[/SERVER]`; without `/SERVER` both ends have the same value.
    fn from_str(text: &str) -> Result<Self, T::Err> {
        match text.split_once('/') {
            None => text.parse().map(Self::same),
            Some((client, server)) => Ok(Self {
                client: client.parse()?,
                server: server.parse()?,
            }),
        }
    }
}

impl<T: fmt::Display + PartialEq> fmt::Display for PerEnd<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.client == self.server {
            write!(f, "{}", self.client)
        } else {
            write!(f, "{}/{}", self.client, self.server)
        }
    }
}

/// End of a flow: where payload is sent or where it is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FlowEnd {
    /// The sending end.
    Sender,
    /// The receiving end.
    Receiver,
}
