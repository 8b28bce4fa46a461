//! Histograms of a request flow, allocated before the start.
//!
//! Allocated later, they would disturb the run: each thread would fault in a few megabytes during
//! its first round trips.

use linerate_record::plan::{Plan, RunKind};
use linerate_record::round_trip::SocketMode;
use linerate_stats::histogram::Histogram;
use linerate_transport::flow_role::FlowRole;

/// Largest number of request threads with three significant digits in every histogram (230 KiB).
/// With more threads, histograms other than those of the full run have two digits (30 KiB): 1,000
/// threads then use half a gigabyte instead of two.
const MAX_PRECISE_FLOWS: u32 = 64;

/// Histograms of the steps of a round trip with its own socket.
const STEP_HISTOGRAMS: usize = 7;

/// Preallocated histograms of one flow.
#[derive(Debug, Default)]
pub struct HistogramPool {
    /// For the round trips of the full run.
    full_run: Vec<Histogram>,
    /// For intervals and steps.
    auxiliary: Vec<Histogram>,
    is_coarse: bool,
}

impl HistogramPool {
    /// Allocates a flow's histograms; the first flow of a thread gets those of the steps.
    #[must_use]
    pub fn for_flow(plan: &Plan, role: FlowRole, is_first: bool) -> Self {
        let mut pool = Self {
            is_coarse: plan.streams > MAX_PRECISE_FLOWS,
            ..Self::default()
        };
        if plan.kind != RunKind::Latency || role == FlowRole::Receiver || !plan.timestamps.is_none()
        {
            return pool;
        }
        let options = &plan.round_trip;
        let full_run_count = 1 + usize::from(options.is_pipelined());
        pool.full_run = (0..full_run_count).map(|_| Histogram::new()).collect();
        let steps = match options.socket_mode {
            SocketMode::Reopened if is_first => STEP_HISTOGRAMS,
            _ => 0,
        };
        // The current interval, and the one being handed over.
        pool.auxiliary = (0..2 + steps).map(|_| pool.new_auxiliary()).collect();
        pool
    }

    fn new_auxiliary(&self) -> Histogram {
        match self.is_coarse {
            true => Histogram::coarse(),
            false => Histogram::new(),
        }
    }

    /// Takes a histogram for the round trips of the full run.
    pub fn take_full_run(&mut self) -> Histogram {
        self.full_run.pop().unwrap_or_default()
    }

    /// Takes a histogram for intervals or steps.
    pub fn take_auxiliary(&mut self) -> Histogram {
        self.auxiliary.pop().unwrap_or_else(|| self.new_auxiliary())
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::plan::TransportProtocol;

    use super::*;

    #[test]
    fn histograms_of_a_flow_are_allocated_before_the_start() {
        let mut plan = Plan::new(RunKind::Latency, TransportProtocol::Tcp, "far");
        let counts = |plan: &Plan, role, first| {
            let pool = HistogramPool::for_flow(plan, role, first);
            (pool.full_run.len(), pool.auxiliary.len())
        };
        assert_eq!(counts(&plan, FlowRole::Sender, true), (1, 2));
        assert_eq!(counts(&plan, FlowRole::Receiver, true), (0, 0));
        plan.round_trip.socket_mode = SocketMode::Reopened;
        assert_eq!(
            counts(&plan, FlowRole::Sender, true),
            (1, 2 + STEP_HISTOGRAMS)
        );
        assert_eq!(counts(&plan, FlowRole::Sender, false), (1, 2));
        plan.round_trip.socket_mode = SocketMode::Connected;
        plan.round_trip.rate_per_second = Some(10);
        assert_eq!(counts(&plan, FlowRole::Sender, true), (2, 2));
    }

    #[test]
    fn with_many_threads_only_the_round_trips_have_three_digits() {
        let mut plan = Plan::new(RunKind::Latency, TransportProtocol::Tcp, "far");
        for (streams, error) in [(MAX_PRECISE_FLOWS, 0.001), (MAX_PRECISE_FLOWS + 1, 0.01)] {
            plan.streams = streams;
            let mut pool = HistogramPool::for_flow(&plan, FlowRole::Sender, true);
            let sample = 1_234_567;
            let relative_error = |mut times: Histogram| {
                times.record(sample);
                times.record(sample * 100);
                let median = times.quantile(0.5).expect("there are two") as f64;
                median / sample as f64 - 1.0
            };
            let error_share = relative_error(pool.take_auxiliary());
            assert!(
                (0.0..=error).contains(&error_share),
                "{streams}: {error_share}"
            );
            assert!(
                (0.0..=0.001).contains(&relative_error(pool.take_full_run())),
                "{streams}"
            );
        }
    }
}
