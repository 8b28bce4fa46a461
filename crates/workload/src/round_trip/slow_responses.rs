//! Responses above the limit, and their cause as far as this end has evidence.
//!
//! Counters are read after a slow response, and every few milliseconds between two requests, so
//! that their increase belongs to a short time. Neither happens within a round trip.

use linerate_host::thread_counters::{ThreadCounterReader, ThreadCounters, steal_tick_ns};
use linerate_record::round_trip::{MAX_LISTED_SLOW_RESPONSES, SlowResponse};
use linerate_stats::histogram::Histogram;
use linerate_stats::units::format_nanos;
use linerate_sys::clock;
use linerate_sys::clock::Nanos;

/// Shortest time between two readings without a slow response: at 20 us each they take 0.2 % of the
/// time between requests.
const REFRESH_NS: Nanos = 10_000_000;

/// Cause of a slow response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowCause {
    /// Number of segments of the connection that the kernel retransmitted.
    Retransmit(u64),
    /// The requesting thread was preempted and waited for this time to run again, in ns (0 where
    /// the kernel does not report it).
    Preempted(u64),
    /// Number of page faults that waited for a disk.
    MajorFault(u64),
    /// Ticks during which the hypervisor ran other guests.
    Steal(u64),
    /// Time from wake-up to running, in ns.
    WakeUp(u64),
    /// Processors before and after a migration.
    Migrated(u32, u32),
    /// Number of minor page faults.
    MinorFault(u64),
    /// Number of softirqs on its processor other than those of the network.
    Softirq(u64),
    /// Time in the receive queue before the program received it, in ns.
    QueueWait(u64),
    /// No evidence at this end: the path, the remote end, or anything without a counter. The time
    /// from arrival to receipt in ns, where known.
    Unknown(Option<u64>),
}

impl SlowCause {
    /// Id in the record.
    fn id(self) -> &'static str {
        match self {
            Self::Retransmit(_) => "retransmit",
            Self::Preempted(_) => "preempted",
            Self::MajorFault(_) | Self::MinorFault(_) => "page-fault",
            Self::Steal(_) => "steal",
            Self::WakeUp(_) => "scheduler-wake-up",
            Self::Migrated(..) => "migrated",
            Self::Softirq(_) => "softirq-or-timer-tick",
            Self::QueueWait(_) => "receive-queue-wait",
            Self::Unknown(_) => "not-known",
        }
    }

    fn evidence(self) -> String {
        match self {
            Self::Retransmit(count) => format!("{count} segments retransmitted"),
            Self::Preempted(0) => "preempted".to_owned(),
            Self::Preempted(time) => {
                format!("preempted, waited {} for a CPU", format_nanos(time as f64))
            }
            Self::MajorFault(count) => format!("{count} major page faults"),
            Self::MinorFault(count) => format!("{count} minor page faults"),
            Self::Steal(ticks) => {
                let time = format_nanos((ticks * steal_tick_ns()) as f64);
                format!("steal time of about {time}")
            }
            Self::WakeUp(time) => format!(
                "waited {} for a CPU after its wake-up",
                format_nanos(time as f64)
            ),
            Self::Migrated(from, to) => format!("migrated from CPU {from} to {to}"),
            Self::Softirq(count) => format!("{count} softirqs of timers, scheduler or RCU"),
            Self::QueueWait(time) => {
                format!("waited {} in the receive queue", format_nanos(time as f64))
            }
            Self::Unknown(None) => String::new(),
            Self::Unknown(Some(time)) => format!(
                "no evidence here; received {} after its arrival",
                format_nanos(time as f64)
            ),
        }
    }
}

/// A slow response with the context needed to find its cause.
#[derive(Clone, Copy, Debug)]
pub struct SlowContext {
    /// Round-trip time of the response.
    pub rtt_ns: Nanos,
    /// Median round-trip time.
    pub median_rtt_ns: Nanos,
    /// Run delay that this number of responses usually has in total.
    pub usual_delay_ns: u64,
    /// Time between responses in which other threads may have had the processor.
    pub unrelated_ns: Nanos,
    /// Number of preemptions that this number of responses usually has: with both ends on one
    /// processor, every request has one.
    pub usual_preemptions: u64,
    /// Segments retransmitted since the previous reading.
    pub retransmits: u64,
    /// Lower bound of the time from arrival in the kernel to the return of the receive call.
    pub waited_ns: Option<Nanos>,
}

/// Upper bounds of the cost of each event. The evidence is a count, and has to account for a fair
/// share of the excess time. Generous, so that a cause is ruled out only safely: a busy disk takes
/// tens of ms, clearing a page 1 to 2 us, a migrated thread finds cold caches, and a softirq of
/// timers, scheduler or RCU runs for some us.
const MAJOR_FAULT_NS: u64 = 50_000_000;
const MINOR_FAULT_NS: u64 = 2_000;
const MIGRATION_NS: u64 = 50_000;
const SOFTIRQ_NS: u64 = 30_000;

/// Run delay and time in the socket are the same wait if they differ by at most one part in so
/// many.
/// One ends when the thread gets its processor, the other when its call returns.
const SAME_WAIT_DIVISOR: u64 = 10;

/// Number of responses from which their median counts as typical.
const MIN_TYPICAL_RESPONSES: u64 = 10;

/// Returns the cause with the strongest evidence between two readings, the certain kinds first.
#[must_use]
pub fn find_cause(
    before: &ThreadCounters,
    after: &ThreadCounters,
    context: &SlowContext,
) -> SlowCause {
    // If the median itself is above the limit, a quarter of the time counts as excess.
    let excess_ns = (context.rtt_ns.saturating_sub(context.median_rtt_ns)).max(context.rtt_ns / 4);
    let is_enough = |time_ns: u64| time_ns > 0 && time_ns >= excess_ns / 2;
    let window_ns = after.at_ns.saturating_sub(before.at_ns).max(1);
    let increase = |after: u64, before: u64| after.saturating_sub(before);
    let known_increase = |after: Option<u64>, before: Option<u64>| Some(increase(after?, before?));
    // True if the response fills so much of the time between the readings that events in that time
    // can be attributed to it.
    let is_attributable = context.rtt_ns.saturating_mul(4) >= window_ns;
    let events =
        |count: u64, each_ns: u64| is_attributable && is_enough(count.saturating_mul(each_ns));
    if context.retransmits > 0 && is_attributable {
        return SlowCause::Retransmit(context.retransmits);
    }
    let (now, then) = (&after.events, &before.events);
    let faults = increase(now.major_faults, then.major_faults);
    if events(faults, MAJOR_FAULT_NS) {
        return SlowCause::MajorFault(faults);
    }
    let preemptions = increase(now.involuntary_switches, then.involuntary_switches);
    let was_preempted = preemptions > context.usual_preemptions;
    if let Some(delay) = known_increase(after.run_delay_ns, before.run_delay_ns) {
        let own_delay = |subtracted: u64| delay.saturating_sub(subtracted);
        let own_alone = own_delay(context.usual_delay_ns + context.unrelated_ns);
        // It waited in the socket at least as long as the thread waited for its processor: the same
        // wait, independent of usual delays and of other threads.
        let queue_wait = context.waited_ns.filter(|&waited| is_enough(waited));
        let same_wait = |waited: u64| {
            let slack = waited / SAME_WAIT_DIVISOR;
            let least_delay = own_delay(context.usual_delay_ns);
            match least_delay + slack >= waited || delay.abs_diff(waited) <= slack {
                true => Some(delay.min(waited)),
                false => None,
            }
        };
        let delay = queue_wait.and_then(same_wait).unwrap_or(own_alone);
        // A longer delay than the response took is not all its own. With other responses between
        // the readings its share is unknown.
        let is_own = is_attributable || delay <= context.rtt_ns;
        let delay = delay.min(context.rtt_ns);
        if is_own && is_enough(delay) {
            return match was_preempted {
                true => SlowCause::Preempted(delay),
                false => SlowCause::WakeUp(delay),
            };
        }
    } else if was_preempted && is_attributable {
        return SlowCause::Preempted(0);
    }
    // Cause of last resort: the place where it waited.
    let fallback = match context.waited_ns {
        Some(waited) if is_enough(waited) => SlowCause::QueueWait(waited),
        waited => SlowCause::Unknown(waited),
    };
    let is_same_cpu = after.cpu == before.cpu;
    if let Some(ticks) = known_increase(after.steal_ticks, before.steal_ticks)
        && is_same_cpu
        && events(ticks, steal_tick_ns())
        // A tick is counted when enough short steals have added up, so a short response is none.
        && context.rtt_ns.saturating_mul(4) >= steal_tick_ns()
    {
        return SlowCause::Steal(ticks);
    }
    if !is_same_cpu {
        return match events(1, MIGRATION_NS) {
            true => SlowCause::Migrated(before.cpu, after.cpu),
            // Counters of two processors cannot be compared.
            false => fallback,
        };
    }
    let faults = increase(now.minor_faults, then.minor_faults);
    if events(faults, MINOR_FAULT_NS) {
        return SlowCause::MinorFault(faults);
    }
    match known_increase(after.non_network_softirqs, before.non_network_softirqs) {
        Some(count) if events(count, SOFTIRQ_NS) => SlowCause::Softirq(count),
        _ => fallback,
    }
}

/// A slow response, as received.
#[derive(Clone, Copy, Debug)]
pub struct SlowResponseEvent {
    /// Number of the request.
    pub number: u64,
    /// Time of receipt, from the start of the run.
    pub at_ns: Nanos,
    /// Time of receipt on the thread's clock.
    pub received_ns: Nanos,
    /// Round-trip time.
    pub rtt_ns: Nanos,
    /// Time from its arrival to the return of the receive call.
    pub waited_ns: Option<Nanos>,
}

/// A listed response, before its evidence is formatted.
struct ListedResponse {
    number: u64,
    at_ns: Nanos,
    rtt_ns: Nanos,
    cause: SlowCause,
}

/// Time since the last reading that ordinary responses do not take. The run delay in it is not part
/// of a usual response.
#[derive(Clone, Copy, Debug, Default)]
struct UnrelatedTime {
    /// Long gaps between a response and the next request, and long responses within the limit,
    /// since the last reading.
    since_reading_ns: Nanos,
    /// Time of the previous response.
    last_response_ns: Option<Nanos>,
    /// Moving average of ordinary round-trip times, over some sixteen.
    ordinary_rtt_ns: f64,
}

impl UnrelatedTime {
    /// Returns whether a stretch is long: near the limit, and clearly above an ordinary response
    /// (the limit may be close to the median).
    fn is_long(&self, stretch_ns: Nanos, limit_ns: Nanos) -> bool {
        stretch_ns >= limit_ns / 4 && stretch_ns as f64 >= 2.0 * self.ordinary_rtt_ns
    }

    /// Adds the gap before a request, if it is long.
    #[inline]
    fn record_gap(&mut self, sent_ns: Nanos, received_ns: Nanos, limit_ns: Nanos) {
        let since = |before: Nanos| sent_ns.saturating_sub(before);
        let gap = self.last_response_ns.replace(received_ns).map_or(0, since);
        if self.is_long(gap, limit_ns) {
            self.since_reading_ns += gap;
        }
    }

    /// Adds a response that is not listed.
    #[inline]
    fn record_ordinary(&mut self, time_ns: Nanos, limit_ns: Nanos) {
        if self.ordinary_rtt_ns > 0.0 && self.is_long(time_ns, limit_ns) {
            self.since_reading_ns += time_ns;
        }
        let step = if self.ordinary_rtt_ns == 0.0 {
            1.0
        } else {
            1.0 / 16.0
        };
        let time = (time_ns.min(limit_ns)) as f64;
        self.ordinary_rtt_ns += (time - self.ordinary_rtt_ns) * step;
    }
}

/// Usual run delay and preemptions of one response, without slow ones.
#[derive(Clone, Copy, Debug, Default)]
struct UsualDelays {
    readings: u64,
    run_delay_ns: f64,
    preemptions: f64,
}

impl UsualDelays {
    /// Updates the values from two readings and the number and times of the responses between them.
    fn update(
        &mut self,
        before: &ThreadCounters,
        after: &ThreadCounters,
        responses: u64,
        ordinary_ns: f64,
        unrelated_ns: Nanos,
    ) {
        let responses = responses.max(1) as f64;
        let increase = |now: u64, then: u64| now.saturating_sub(then);
        let delay = (after.run_delay_ns.zip(before.run_delay_ns)).map(|(now, then)| {
            // A response cannot wait longer than it takes.
            let most = (responses * ordinary_ns) as u64;
            increase(now, then).saturating_sub(unrelated_ns).min(most) as f64 / responses
        });
        let switches = |reading: &ThreadCounters| reading.events.involuntary_switches;
        let preemptions = increase(switches(after), switches(before)) as f64 / responses;
        // Falls at once and rises slowly: a time with another busy thread is not representative.
        let adjust = |usual: f64, each: f64| match self.readings {
            0 => each,
            _ => each.min(usual + (each - usual) / 10.0),
        };
        if let Some(delay) = delay {
            self.run_delay_ns = adjust(self.run_delay_ns, delay);
        }
        self.preemptions = adjust(self.preemptions, preemptions);
        self.readings += 1;
    }

    fn run_delay_of(&self, responses: u64) -> u64 {
        (self.run_delay_ns * responses as f64) as u64
    }

    fn preemptions_of(&self, responses: u64) -> u64 {
        (self.preemptions * responses as f64).ceil() as u64
    }
}

/// Watches one flow for slow responses.
pub struct SlowResponseWatch {
    limit_ns: Nanos,
    count: u64,
    listed: Vec<ListedResponse>,
    max_listed: usize,
    evidence: ThreadCounterReader,
    last_reading: ThreadCounters,
    /// Responses since the last reading.
    responses: u64,
    /// True if requests follow responses at once; a flow with a schedule sleeps in between.
    closed_loop: bool,
    unrelated: UnrelatedTime,
    usual: UsualDelays,
    /// Retransmitted segments up to the last reading; `None` before the first.
    retransmits: Option<u64>,
    /// True once the counted time has started.
    is_counting: bool,
}

impl SlowResponseWatch {
    pub fn new(limit_ns: Nanos, flows: u32, closed_loop: bool) -> Self {
        let max_listed = (MAX_LISTED_SLOW_RESPONSES / flows.max(1) as usize).max(1);
        let mut evidence = ThreadCounterReader::for_current_thread();
        Self {
            limit_ns,
            count: 0,
            listed: Vec::with_capacity(max_listed),
            max_listed,
            last_reading: evidence.sample(),
            evidence,
            responses: 0,
            closed_loop,
            unrelated: UnrelatedTime::default(),
            usual: UsualDelays::default(),
            retransmits: None,
            is_counting: false,
        }
    }

    /// Called before a request on a stream; retransmissions before the first request do not count.
    #[inline]
    pub fn before_request(&mut self, retransmits: impl FnOnce() -> Option<u64>) {
        if self.retransmits.is_none() {
            self.retransmits = Some(retransmits().unwrap_or(0));
        }
    }

    #[inline]
    pub fn limit_ns(&self) -> Nanos {
        self.limit_ns
    }

    /// Records a response within the limit, or before the counted time.
    #[inline]
    pub fn record(
        &mut self,
        sent_ns: Nanos,
        now: Nanos,
        counts: bool,
        slow: bool,
        retransmits: impl FnOnce() -> Option<u64>,
    ) {
        self.responses += 1;
        if self.closed_loop {
            self.unrelated.record_gap(sent_ns, now, self.limit_ns);
        }
        self.unrelated
            .record_ordinary(now.saturating_sub(sent_ns), self.limit_ns);
        // Events before the counted time, or of a slow response in it, must not count later.
        let is_restart = counts != self.is_counting || slow;
        self.is_counting = counts;
        if (is_restart || now >= self.last_reading.at_ns + REFRESH_NS)
            && self.listed.len() < self.max_listed
        {
            self.refresh(slow, retransmits());
        }
    }

    #[cold]
    fn refresh(&mut self, slow: bool, retransmits: Option<u64>) {
        self.retransmits = retransmits.or(self.retransmits);
        let unrelated_ns = std::mem::take(&mut self.unrelated.since_reading_ns);
        if slow {
            self.last_reading = self.evidence.sample();
            self.responses = 0;
            return;
        }
        let after = self.evidence.sample();
        let ordinary_ns = self.unrelated.ordinary_rtt_ns;
        self.usual.update(
            &self.last_reading,
            &after,
            self.responses,
            ordinary_ns,
            unrelated_ns,
        );
        self.last_reading = after;
        self.responses = 0;
    }

    /// Records a slow response; beyond the capacity of the list it is only counted.
    #[cold]
    pub fn record_slow(
        &mut self,
        event: SlowResponseEvent,
        times: &Histogram,
        retransmits: impl FnOnce() -> Option<u64>,
    ) {
        let SlowResponseEvent {
            number,
            at_ns,
            received_ns,
            rtt_ns: time_ns,
            waited_ns,
        } = event;
        self.count += 1;
        if self.listed.len() == self.max_listed {
            return;
        }
        let after = self.evidence.sample();
        if self.closed_loop {
            let sent_ns = received_ns.saturating_sub(time_ns);
            self.unrelated
                .record_gap(sent_ns, received_ns, self.limit_ns);
        }
        let unrelated_ns = std::mem::take(&mut self.unrelated.since_reading_ns);
        self.is_counting = true;
        let retransmits_now = retransmits();
        let context = SlowContext {
            rtt_ns: time_ns,
            median_rtt_ns: (times.quantile(0.5))
                .filter(|_| times.count() >= MIN_TYPICAL_RESPONSES)
                .unwrap_or(0),
            usual_delay_ns: self.usual.run_delay_of(self.responses + 1),
            unrelated_ns,
            usual_preemptions: self.usual.preemptions_of(self.responses + 1),
            retransmits: (retransmits_now.zip(self.retransmits))
                .map_or(0, |(now, before)| now.saturating_sub(before)),
            waited_ns,
        };
        self.listed.push(ListedResponse {
            number,
            at_ns,
            rtt_ns: time_ns,
            cause: find_cause(&self.last_reading, &after, &context),
        });
        self.retransmits = retransmits_now.or(self.retransmits);
        self.last_reading = after;
        // Taking the evidence took time that belongs to no response.
        self.last_reading.at_ns = clock::now();
        self.responses = 0;
    }

    /// Returns the number of slow responses, and the list of the first ones.
    pub fn finish(self, flow: u32) -> (u64, Vec<SlowResponse>) {
        let listed = self.listed.into_iter().map(|response| SlowResponse {
            flow,
            number: response.number,
            at_ns: response.at_ns,
            time_ns: response.rtt_ns,
            cause: response.cause.id().to_owned(),
            evidence: response.cause.evidence(),
        });
        (self.count, listed.collect())
    }
}

#[cfg(test)]
mod tests {
    use linerate_sys::cpu::ThreadEvents;

    use super::*;

    #[test]
    fn each_cause_by_its_evidence() {
        let before = ThreadCounters {
            at_ns: 1_000_000,
            cpu: 1,
            events: ThreadEvents::default(),
            run_delay_ns: Some(5_000),
            non_network_softirqs: Some(10),
            steal_ticks: Some(3),
        };
        let quiet = ThreadCounters {
            at_ns: 1_400_000,
            ..before
        };
        let context = SlowContext {
            rtt_ns: 300_000,
            median_rtt_ns: 50_000,
            usual_delay_ns: 2_000,
            unrelated_ns: 0,
            usual_preemptions: 0,
            retransmits: 0,
            waited_ns: None,
        };
        let with = |change: fn(&mut ThreadCounters)| {
            let mut after = quiet;
            change(&mut after);
            find_cause(&before, &after, &context)
        };
        assert_eq!(with(|_| {}), SlowCause::Unknown(None));
        // A short wait does not explain a long response, and no wait explains nothing; neither does
        // it when the median is as slow as the response.
        let usual = SlowContext {
            median_rtt_ns: 300_000,
            ..context
        };
        for delay in [5_000, 8_700] {
            let mut after = quiet;
            after.run_delay_ns = Some(delay);
            assert_eq!(
                find_cause(&before, &after, &context),
                SlowCause::Unknown(None)
            );
            assert_eq!(
                find_cause(&before, &after, &usual),
                SlowCause::Unknown(None)
            );
        }
        // Preempted, but running again at once.
        assert_eq!(
            with(|after| after.events.involuntary_switches = 2),
            SlowCause::Unknown(None)
        );
        assert_eq!(
            with(|after| {
                after.events.involuntary_switches = 2;
                after.run_delay_ns = Some(207_000);
            }),
            SlowCause::Preempted(200_000)
        );
        assert_eq!(
            with(|after| {
                after.events.involuntary_switches = 2;
                after.run_delay_ns = None;
            }),
            SlowCause::Preempted(0)
        );
        assert_eq!(
            with(|after| after.events.major_faults = 1),
            SlowCause::MajorFault(1)
        );
        assert_eq!(
            with(|after| after.events.minor_faults = 4),
            SlowCause::Unknown(None),
            "8 us of 250"
        );
        assert_eq!(
            with(|after| after.events.minor_faults = 100),
            SlowCause::MinorFault(100)
        );
        assert_eq!(
            with(|after| after.cpu = 0),
            SlowCause::Unknown(None),
            "50 us of 250"
        );
        let short = SlowContext {
            rtt_ns: 120_000,
            ..context
        };
        let mut migrated = quiet;
        migrated.cpu = 0;
        assert_eq!(
            find_cause(&before, &migrated, &short),
            SlowCause::Migrated(1, 0)
        );
        // 5 us more than before, of which 2 us are usual: no explanation of 250 us.
        assert_eq!(
            with(|after| after.run_delay_ns = Some(10_000)),
            SlowCause::Unknown(None)
        );
        assert_eq!(
            with(|after| after.run_delay_ns = Some(207_000)),
            SlowCause::WakeUp(200_000)
        );
        assert_eq!(
            with(|after| after.non_network_softirqs = Some(13)),
            SlowCause::Unknown(None),
            "at most 90 us of 250"
        );
        assert_eq!(
            with(|after| after.non_network_softirqs = Some(16)),
            SlowCause::Softirq(6)
        );
        // A wait of 1.2 ms does not belong to a response of 0.3 ms among others.
        assert_eq!(
            with(|after| {
                after.run_delay_ns = Some(1_207_000);
                after.at_ns = 9_000_000;
            }),
            SlowCause::Unknown(None)
        );
        // Too long ago to belong to this response.
        assert_eq!(
            with(|after| {
                after.non_network_softirqs = Some(90);
                after.events.major_faults = 1;
                after.events.minor_faults = 500;
                after.cpu = 0;
                after.at_ns = 9_000_000;
            }),
            SlowCause::Unknown(None)
        );
        let old = SlowContext {
            retransmits: 1,
            ..context
        };
        let later = ThreadCounters {
            at_ns: 9_000_000,
            ..quiet
        };
        assert_eq!(find_cause(&before, &later, &old), SlowCause::Unknown(None));
        // A tick of 10 ms cannot be stolen within 0.3 ms.
        assert_eq!(
            with(|after| after.steal_ticks = Some(4)),
            SlowCause::Unknown(None)
        );
        let long = SlowContext {
            rtt_ns: 12_000_000,
            ..context
        };
        let mut after = quiet;
        after.steal_ticks = Some(4);
        assert_eq!(find_cause(&before, &after, &long), SlowCause::Steal(1));
        let lost = SlowContext {
            retransmits: 1,
            ..long
        };
        assert_eq!(find_cause(&before, &after, &lost), SlowCause::Retransmit(1));
        // Missing counters are no evidence.
        after.run_delay_ns = None;
        after.steal_ticks = None;
        after.non_network_softirqs = None;
        assert_eq!(
            find_cause(&before, &after, &context),
            SlowCause::Unknown(None)
        );
    }

    #[test]
    fn without_a_cause_the_place_of_the_wait_is_reported() {
        let before = ThreadCounters {
            at_ns: 1_000_000,
            non_network_softirqs: Some(10),
            run_delay_ns: Some(0),
            ..ThreadCounters::default()
        };
        let after = ThreadCounters {
            at_ns: 1_400_000,
            ..before
        };
        let of = |waited_ns, after: &ThreadCounters| {
            let context = SlowContext {
                rtt_ns: 300_000,
                median_rtt_ns: 50_000,
                usual_delay_ns: 0,
                unrelated_ns: 0,
                usual_preemptions: 0,
                retransmits: 0,
                waited_ns,
            };
            find_cause(&before, after, &context)
        };
        for (waited, expected) in [
            (None, SlowCause::Unknown(None)),
            (Some(4_000), SlowCause::Unknown(Some(4_000))),
            // Half of the excess time.
            (Some(124_000), SlowCause::Unknown(Some(124_000))),
            (Some(125_000), SlowCause::QueueWait(125_000)),
            (Some(290_000), SlowCause::QueueWait(290_000)),
        ] {
            assert_eq!(of(waited, &after), expected, "{waited:?}");
        }
        // Evidence of a cause takes precedence.
        let ready = ThreadCounters {
            run_delay_ns: Some(280_000),
            ..after
        };
        assert_eq!(of(Some(290_000), &ready), SlowCause::WakeUp(280_000));
        let migrated = ThreadCounters { cpu: 1, ..after };
        assert_eq!(of(Some(290_000), &migrated), SlowCause::QueueWait(290_000));
        let texts = [
            SlowCause::QueueWait(290_000),
            SlowCause::Unknown(Some(4_000)),
        ]
        .map(SlowCause::evidence);
        assert_eq!(
            texts,
            [
                "waited 290 us in the receive queue",
                "no evidence here; received 4.00 us after its arrival"
            ]
        );
    }

    fn slow_response(number: u64, time_ns: Nanos) -> SlowResponseEvent {
        SlowResponseEvent {
            number,
            at_ns: 10,
            received_ns: 10,
            rtt_ns: time_ns,
            waited_ns: None,
        }
    }

    #[test]
    fn a_wait_between_requests_is_no_response_delay() {
        // Another thread uses the processor: of responses of 40 us, 5 us are run delay, and
        // sometimes the thread is preempted for 3 ms.
        let (limit_ns, time_ns, waits_ns) = (1_000_000, 40_000, 5_000);
        let mut unrelated = UnrelatedTime::default();
        let mut usual = UsualDelays::default();
        let mut reading = ThreadCounters {
            run_delay_ns: Some(0),
            ..ThreadCounters::default()
        };
        let mut now = 0;
        let mut window = |unrelated: &mut UnrelatedTime, responses: u64, preempted_ns: u64| {
            let before = reading;
            for response in 0..responses {
                // Between the previous response and this request.
                now += 2_000 + if response == 3 { preempted_ns } else { 0 };
                unrelated.record_gap(now, now + time_ns, limit_ns);
                unrelated.record_ordinary(time_ns, limit_ns);
                now += time_ns;
            }
            reading.at_ns = now;
            let delay = reading.run_delay_ns.unwrap_or(0) + responses * waits_ns + preempted_ns;
            reading.run_delay_ns = Some(delay);
            (before, reading)
        };
        for preempted_ns in [3_000_000, 0, 3_000_000, 6_000_000] {
            let (before, after) = window(&mut unrelated, 160, preempted_ns);
            let unrelated_ns = std::mem::take(&mut unrelated.since_reading_ns);
            usual.update(
                &before,
                &after,
                160,
                unrelated.ordinary_rtt_ns,
                unrelated_ns,
            );
        }
        assert!(
            (4_900.0..5_100.0).contains(&usual.run_delay_ns),
            "{usual:?}"
        );
        // A slow response of 2.4 ms after 40 quick ones keeps its own delay.
        let (before, mut after) = window(&mut unrelated, 40, 0);
        after.at_ns += 2_400_000;
        after.run_delay_ns = after.run_delay_ns.map(|delay| delay + 2_350_000);
        let context = SlowContext {
            rtt_ns: 2_400_000,
            median_rtt_ns: 40_000,
            usual_delay_ns: usual.run_delay_of(41),
            unrelated_ns: unrelated.since_reading_ns,
            usual_preemptions: 0,
            retransmits: 0,
            waited_ns: Some(2_380_000),
        };
        let found = find_cause(&before, &after, &context);
        assert!(matches!(found, SlowCause::WakeUp(_)), "{found:?}");
        // With a wrong usual delay, the time in the socket shows that it was the same wait.
        let wrong = SlowContext {
            usual_delay_ns: 6_000_000,
            ..context
        };
        assert_eq!(
            find_cause(&before, &after, &wrong),
            SlowCause::WakeUp(2_380_000)
        );
        let no_queue_wait = SlowContext {
            waited_ns: None,
            ..wrong
        };
        assert_eq!(
            find_cause(&before, &after, &no_queue_wait),
            SlowCause::Unknown(None)
        );
        // One quiet time corrects the usual delay.
        let (before, after) = window(&mut unrelated, 160, 0);
        let mut wrong = UsualDelays {
            run_delay_ns: 100_000.0,
            ..usual
        };
        wrong.update(&before, &after, 160, unrelated.ordinary_rtt_ns, 0);
        assert!(wrong.run_delay_ns < 5_100.0, "{wrong:?}");
    }

    #[test]
    fn earlier_retransmissions_do_not_count() {
        let times = Histogram::new();
        let long_ns = 60_000_000_000;
        let cause_with = |watch: &mut SlowResponseWatch, retransmits_now: u64| {
            watch.record_slow(slow_response(0, long_ns), &times, || Some(retransmits_now));
            watch.listed.last().unwrap().cause
        };
        // Before the first request.
        let mut watch = SlowResponseWatch::new(100, 1, true);
        watch.before_request(|| Some(3));
        watch.before_request(|| panic!("once"));
        assert_ne!(cause_with(&mut watch, 3), SlowCause::Retransmit(3));
        assert_eq!(cause_with(&mut watch, 4), SlowCause::Retransmit(1));
        // In the omitted time, of a slow response.
        watch.record(10, 20, false, true, || Some(9));
        assert_eq!(cause_with(&mut watch, 11), SlowCause::Retransmit(2));
        // In the omitted time, of none; counting begins with the next.
        watch.record(10, 20, false, false, || Some(12));
        watch.record(10, 20, true, false, || Some(13));
        assert_eq!(cause_with(&mut watch, 14), SlowCause::Retransmit(1));
    }

    #[test]
    fn the_list_is_bounded_and_the_count_is_not() {
        let mut watch = SlowResponseWatch::new(100, 1_000, true);
        assert_eq!(watch.max_listed, 1);
        let times = Histogram::new();
        for number in 0..5 {
            watch.record_slow(slow_response(number, 200), &times, || None);
        }
        let (count, listed) = watch.finish(7);
        assert_eq!((count, listed.len()), (5, 1));
        assert_eq!((listed[0].flow, listed[0].time_ns), (7, 200));
    }
}
