//! Durations of a run's system calls, by call and by outcome.
//!
//! Calls have the kernel's names (as in `strace`): `sendto`, `sendmsg`, `sendmmsg`, `sendfile`,
//! `splice`, `recvfrom`, `recvmsg`, `recvmmsg`, `poll` (ppoll), `select`, `epoll_wait`,
//! `io_uring_enter`. Calls to our stack are `stack_poll`, `flush`, `sleep`,
//! `tcp_send`, `tcp_receive`, `udp_send`, `udp_receive`, `udp_send_burst`, `udp_receive_burst`,
//! `udp_echo`.

use std::collections::BTreeMap;

use linerate_stats::histogram::{Histogram, HistogramData, Quantiles};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::facts::Role;

/// Durations of one system call by outcome; an outcome that never happened is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CallOutcomes {
    /// Sends whose data fit into the buffer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(alias = "room")]
    pub accepted: Option<CallTimes>,
    /// Sends whose data did not fit. A blocking send includes the time until there was space; a
    /// non-blocking one returned with a part of the data sent, or none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full: Option<CallTimes>,
    /// Receives or waits whose data or event was ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<CallTimes>,
    /// Receives or waits that blocked until the data or event arrived, or until their timeout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited: Option<CallTimes>,
    /// Receives or waits that returned at once with nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub empty: Option<CallTimes>,
}

impl CallOutcomes {
    /// Returns the outcomes that happened, with their names.
    pub fn outcomes(&self) -> impl Iterator<Item = (&'static str, &CallTimes)> {
        [
            ("accepted", &self.accepted),
            ("full", &self.full),
            ("ready", &self.ready),
            ("waited", &self.waited),
            ("empty", &self.empty),
        ]
        .into_iter()
        .filter_map(|(name, times)| Some((name, times.as_ref()?)))
    }
}

/// Calls of one end by name.
pub type CallsByName = BTreeMap<String, CallOutcomes>;

/// Durations of calls with one outcome, in nanoseconds, without the omitted time.
///
/// Each duration includes one reading of the clock ([`CallClock::read_ns`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallTimes {
    /// Distribution of the durations.
    #[serde(flatten)]
    pub times: Quantiles,
    /// Sum of the durations: time that the measuring threads spent in these calls.
    pub total_ns: u64,
    /// Full histogram of the durations.
    pub histogram: HistogramData,
}

impl CallTimes {
    /// Returns the times of a histogram; `None` if it is empty.
    #[must_use]
    pub fn from_histogram(histogram: &Histogram) -> Option<Self> {
        let data = HistogramData::from(histogram);
        Some(Self {
            times: histogram.summary()?,
            total_ns: data.sum,
            histogram: data,
        })
    }
}

/// Clock that timed the calls of one end, and its cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallClock {
    /// End of the run.
    pub role: Role,
    /// `tsc` if the processor's counter is invariant and the kernel uses it as its clock, else
    /// `clock_gettime`.
    pub source: String,
    /// Frequency of the counter, calibrated against the kernel's clock over the run.
    pub hz: f64,
    /// Time of one clock reading, which every duration includes, in nanoseconds.
    pub read_ns: f64,
    /// Total overhead of recording one call, in nanoseconds, measured before the run.
    pub record_ns: f64,
    /// Measuring threads whose calls were recorded.
    pub threads: u32,
}
