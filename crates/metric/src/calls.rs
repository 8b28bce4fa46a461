//! What the system calls of a run took, by call and by what the call found.
//!
//! Names of calls are those of the kernel (`strace` shows the same): `sendto`, `sendmsg`, `sendmmsg`,
//! `sendfile`, `splice`, `recvfrom`, `recvmsg`, `recvmmsg`, `poll` (ppoll), `select`, `epoll_wait`,
//! `io_uring_enter`. Of our own stack they are those on it: `turn`, `flush`, `sleep`, `tcp_send`, `tcp_receive`,
//! `udp_send`, `udp_receive`, `udp_send_burst`, `udp_receive_burst`, `udp_echo`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::facts::Role;
use crate::histogram::{Histogram, HistogramData, Quantiles};

/// One system call, told apart by what it found. A kind that never happened is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Call {
    /// Sends that found room for all they had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room: Option<CallTimes>,
    /// Sends that found the buffer full, or too full for all they had: those that may sleep until
    /// there was room, the others until they came back with less, or with nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full: Option<CallTimes>,
    /// What was waited for was there already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<CallTimes>,
    /// It was not: the call slept until it came, or until its time was over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited: Option<CallTimes>,
    /// It was not, and the call came back at once without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub empty: Option<CallTimes>,
}

impl Call {
    /// The kinds that happened, each with its name.
    pub fn kinds(&self) -> impl Iterator<Item = (&'static str, &CallTimes)> {
        [
            ("room", &self.room),
            ("full", &self.full),
            ("ready", &self.ready),
            ("waited", &self.waited),
            ("empty", &self.empty),
        ]
        .into_iter()
        .filter_map(|(name, times)| Some((name, times.as_ref()?)))
    }
}

/// The calls of one end by name.
pub type Calls = BTreeMap<String, Call>;

/// How long calls of one kind took, in nanoseconds; the omitted time is left out.
///
/// Each duration contains one reading of the clock ([`CallClock::read_ns`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallTimes {
    /// Their distribution.
    #[serde(flatten)]
    pub times: Quantiles,
    /// All of them together: time that the measuring threads spent in these calls.
    pub total_ns: u64,
    /// Every duration.
    pub histogram: HistogramData,
}

impl CallTimes {
    /// The times of a histogram; `None` when it is empty.
    #[must_use]
    pub fn of(histogram: &Histogram) -> Option<Self> {
        let data = HistogramData::from(histogram);
        Some(Self {
            times: histogram.summary()?,
            total_ns: data.sum,
            histogram: data,
        })
    }
}

/// What the calls of one end were timed with, and what that cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallClock {
    /// Which end.
    pub role: Role,
    /// `tsc` where the processor's counter is invariant and the kernel's own clock, else
    /// `clock_gettime`.
    pub source: String,
    /// Steps of that counter per second, as compared with the kernel's clock over the run.
    pub hz: f64,
    /// One reading of it, which every duration contains, in nanoseconds.
    pub read_ns: f64,
    /// What recording adds to one call in all, in nanoseconds: measured before the run.
    pub record_ns: f64,
    /// Measuring threads whose calls were recorded.
    pub threads: u32,
}
