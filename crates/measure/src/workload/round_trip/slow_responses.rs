//! Responses above the limit, and their cause as far as this end has evidence.
//!
//! Counters are read after a slow response, and every few milliseconds between two requests, so
//! that their increase belongs to a short time. Neither happens within a round trip.

use linerate_host::sys::clock::{self, Nanos};
use linerate_host::thread_counters::{Evidence, Reading, steal_tick_ns};
use linerate_metric::histogram::Histogram;
use linerate_metric::round_trip::{SLOW_LISTED, SlowAnswer};
use linerate_metric::units::format_nanos;

/// Shortest time between two readings without a slow response: at 20 us each they take 0.2 % of the
/// time between requests.
const REFRESH_NS: Nanos = 10_000_000;

/// Cause of a slow response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Number of segments of the connection that the kernel retransmitted.
    Retransmit(u64),
    /// The requesting thread was preempted and waited for this time to run again, in ns (0 where
    /// the
    /// kernel does not report it).
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
    /// from
    /// arrival to receipt in ns, where known.
    NotKnown(Option<u64>),
}

impl Cause {
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
            Self::NotKnown(_) => "not-known",
        }
    }

    fn evidence(self) -> String {
        match self {
            Self::Retransmit(count) => format!("{count} segments retransmitted"),
            Self::Preempted(0) => "preempted".to_owned(),
            Self::Preempted(time) => format!(
                "preempted, waited {} for a processor",
                format_nanos(time as f64)
            ),
            Self::MajorFault(count) => format!("{count} major page faults"),
            Self::MinorFault(count) => format!("{count} minor page faults"),
            Self::Steal(ticks) => {
                let time = format_nanos((ticks * steal_tick_ns()) as f64);
                format!("steal time of about {time}")
            }
            Self::WakeUp(time) => format!(
                "waited {} for a processor after its wake-up",
                format_nanos(time as f64)
            ),
            Self::Migrated(from, to) => format!("migrated from processor {from} to {to}"),
            Self::Softirq(count) => format!("{count} softirqs of timers, scheduler or RCU"),
            Self::QueueWait(time) => format!(
                "arrived {} before the program received it",
                format_nanos(time as f64)
            ),
            Self::NotKnown(None) => String::new(),
            Self::NotKnown(Some(time)) => format!(
                "received by the program {} after its arrival",
                format_nanos(time as f64)
            ),
        }
    }
}

/// A slow response with the context needed to find its cause.
#[derive(Clone, Copy, Debug)]
pub struct Around {
    /// Round-trip time of the response.
    pub time_ns: Nanos,
    /// Median round-trip time.
    pub typical_ns: Nanos,
    /// Run delay that this number of responses usually has in total.
    pub usual_delay_ns: u64,
    /// Time between responses in which other threads may have had the processor.
    pub apart_ns: Nanos,
    /// Number of preemptions that this number of responses usually has: with both ends on one
    /// processor, every request has one.
    pub usual_pushes: u64,
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
const SAME: u64 = 10;

/// Number of responses from which their median counts as typical.
const TYPICAL_FROM: u64 = 10;

/// Returns the cause with the strongest evidence between two readings, the certain kinds first.
#[must_use]
pub fn cause(before: &Reading, after: &Reading, around: &Around) -> Cause {
    // If the median itself is above the limit, a quarter of the time counts as excess.
    let excess_ns = (around.time_ns.saturating_sub(around.typical_ns)).max(around.time_ns / 4);
    let explains = |time_ns: u64| time_ns > 0 && time_ns >= excess_ns / 2;
    let window_ns = after.at_ns.saturating_sub(before.at_ns).max(1);
    let grown = |after: u64, before: u64| after.saturating_sub(before);
    let known = |after: Option<u64>, before: Option<u64>| Some(grown(after?, before?));
    // True if the response fills so much of the time between the readings that events in that time
    // can be attributed to it.
    let fills = around.time_ns.saturating_mul(4) >= window_ns;
    let events = |count: u64, each_ns: u64| fills && explains(count.saturating_mul(each_ns));
    if around.retransmits > 0 && fills {
        return Cause::Retransmit(around.retransmits);
    }
    let (now, then) = (&after.events, &before.events);
    let faults = grown(now.major_faults, then.major_faults);
    if events(faults, MAJOR_FAULT_NS) {
        return Cause::MajorFault(faults);
    }
    let pushes = grown(now.involuntary_switches, then.involuntary_switches);
    let was_pushed = pushes > around.usual_pushes;
    if let Some(delay) = known(after.run_delay_ns, before.run_delay_ns) {
        let its = |taken: u64| delay.saturating_sub(taken);
        let alone = its(around.usual_delay_ns + around.apart_ns);
        // It waited in the socket at least as long as the thread waited for its processor: the same
        // wait, independent of usual delays and of other threads.
        let lay = around.waited_ns.filter(|&waited| explains(waited));
        let same = |waited: u64| {
            let slack = waited / SAME;
            let least = its(around.usual_delay_ns);
            match least + slack >= waited || delay.abs_diff(waited) <= slack {
                true => Some(delay.min(waited)),
                false => None,
            }
        };
        let delay = lay.and_then(same).unwrap_or(alone);
        // A longer delay than the response took is not all its own. With other responses between
        // the
        // readings its share is unknown.
        let is_its = fills || delay <= around.time_ns;
        let delay = delay.min(around.time_ns);
        if is_its && explains(delay) {
            return match was_pushed {
                true => Cause::Preempted(delay),
                false => Cause::WakeUp(delay),
            };
        }
    } else if was_pushed && fills {
        return Cause::Preempted(0);
    }
    // Cause of last resort: the place where it waited.
    let where_it_was = match around.waited_ns {
        Some(waited) if explains(waited) => Cause::QueueWait(waited),
        waited => Cause::NotKnown(waited),
    };
    let same_cpu = after.cpu == before.cpu;
    if let Some(ticks) = known(after.steal_ticks, before.steal_ticks)
        && same_cpu
        && events(ticks, steal_tick_ns())
        // A tick is counted when enough short steals have added up, so a short response is none.
        && around.time_ns.saturating_mul(4) >= steal_tick_ns()
    {
        return Cause::Steal(ticks);
    }
    if !same_cpu {
        return match events(1, MIGRATION_NS) {
            true => Cause::Migrated(before.cpu, after.cpu),
            // Counters of two processors cannot be compared.
            false => where_it_was,
        };
    }
    let faults = grown(now.minor_faults, then.minor_faults);
    if events(faults, MINOR_FAULT_NS) {
        return Cause::MinorFault(faults);
    }
    match known(after.other_softirqs, before.other_softirqs) {
        Some(count) if events(count, SOFTIRQ_NS) => Cause::Softirq(count),
        _ => where_it_was,
    }
}

/// A slow response, as received.
#[derive(Clone, Copy, Debug)]
pub struct Late {
    /// Number of the request.
    pub number: u64,
    /// Time of receipt, from the start of the run.
    pub at_ns: Nanos,
    /// Time of receipt on the thread's clock.
    pub answered_ns: Nanos,
    /// Round-trip time.
    pub time_ns: Nanos,
    /// Time from its arrival to the return of the receive call.
    pub waited_ns: Option<Nanos>,
}

/// A listed response, before its evidence is formatted.
struct Noted {
    number: u64,
    at_ns: Nanos,
    time_ns: Nanos,
    cause: Cause,
}

/// Time since the last reading that ordinary responses do not take. The run delay in it is not part
/// of a usual response.
#[derive(Clone, Copy, Debug, Default)]
struct Apart {
    /// Long gaps between a response and the next request, and long responses within the limit,
    /// since
    /// the last reading.
    since_reading_ns: Nanos,
    /// Time of the previous response.
    answered_ns: Option<Nanos>,
    /// Moving average of ordinary round-trip times, over some sixteen.
    ordinary_ns: f64,
}

impl Apart {
    /// Returns whether a stretch is long: near the limit, and clearly above an ordinary response
    /// (the
    /// limit may be close to the median).
    fn is_long(&self, stretch_ns: Nanos, limit_ns: Nanos) -> bool {
        stretch_ns >= limit_ns / 4 && stretch_ns as f64 >= 2.0 * self.ordinary_ns
    }

    /// Adds the gap before a request, if it is long.
    #[inline]
    fn turn(&mut self, asked_ns: Nanos, answered_ns: Nanos, limit_ns: Nanos) {
        let since = |before: Nanos| asked_ns.saturating_sub(before);
        let gap = self.answered_ns.replace(answered_ns).map_or(0, since);
        if self.is_long(gap, limit_ns) {
            self.since_reading_ns += gap;
        }
    }

    /// Adds a response that is not listed.
    #[inline]
    fn ordinary(&mut self, time_ns: Nanos, limit_ns: Nanos) {
        if self.ordinary_ns > 0.0 && self.is_long(time_ns, limit_ns) {
            self.since_reading_ns += time_ns;
        }
        let step = if self.ordinary_ns == 0.0 {
            1.0
        } else {
            1.0 / 16.0
        };
        let time = (time_ns.min(limit_ns)) as f64;
        self.ordinary_ns += (time - self.ordinary_ns) * step;
    }
}

/// Usual run delay and preemptions of one response, without slow ones.
#[derive(Clone, Copy, Debug, Default)]
struct Usual {
    readings: u64,
    delay_ns: f64,
    pushes: f64,
}

impl Usual {
    /// Updates the values from two readings and the number and times of the responses between them.
    fn learn(
        &mut self,
        before: &Reading,
        after: &Reading,
        answers: u64,
        ordinary_ns: f64,
        apart_ns: Nanos,
    ) {
        let answers = answers.max(1) as f64;
        let grown = |now: u64, then: u64| now.saturating_sub(then);
        let delay = (after.run_delay_ns.zip(before.run_delay_ns)).map(|(now, then)| {
            // A response cannot wait longer than it takes.
            let most = (answers * ordinary_ns) as u64;
            grown(now, then).saturating_sub(apart_ns).min(most) as f64 / answers
        });
        let pushes = |reading: &Reading| reading.events.involuntary_switches;
        let pushed = grown(pushes(after), pushes(before)) as f64 / answers;
        // Falls at once and rises slowly: a time with another busy thread is not representative.
        let learn = |usual: f64, each: f64| match self.readings {
            0 => each,
            _ => each.min(usual + (each - usual) / 10.0),
        };
        if let Some(delay) = delay {
            self.delay_ns = learn(self.delay_ns, delay);
        }
        self.pushes = learn(self.pushes, pushed);
        self.readings += 1;
    }

    fn delay_of(&self, answers: u64) -> u64 {
        (self.delay_ns * answers as f64) as u64
    }

    fn pushes_of(&self, answers: u64) -> u64 {
        (self.pushes * answers as f64).ceil() as u64
    }
}

/// Watches one flow for slow responses.
pub struct SlowWatch {
    limit_ns: Nanos,
    count: u64,
    listed: Vec<Noted>,
    room: usize,
    evidence: Evidence,
    before: Reading,
    /// Responses since the last reading.
    answers: u64,
    /// True if requests follow responses at once; a flow with a schedule sleeps in between.
    closed_loop: bool,
    apart: Apart,
    usual: Usual,
    /// Retransmitted segments up to the last reading; `None` before the first.
    retransmits: Option<u64>,
    /// True once the counted time has started.
    counting: bool,
}

impl SlowWatch {
    pub fn new(limit_ns: Nanos, flows: u32, closed_loop: bool) -> Self {
        let room = (SLOW_LISTED / flows.max(1) as usize).max(1);
        let mut evidence = Evidence::of_this_thread();
        Self {
            limit_ns,
            count: 0,
            listed: Vec::with_capacity(room),
            room,
            before: evidence.read(),
            evidence,
            answers: 0,
            closed_loop,
            apart: Apart::default(),
            usual: Usual::default(),
            retransmits: None,
            counting: false,
        }
    }

    /// Called before a request on a stream; retransmissions before the first request do not count.
    #[inline]
    pub fn begin(&mut self, retransmits: impl FnOnce() -> Option<u64>) {
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
    pub fn passed(
        &mut self,
        asked_ns: Nanos,
        now: Nanos,
        counts: bool,
        slow: bool,
        retransmits: impl FnOnce() -> Option<u64>,
    ) {
        self.answers += 1;
        if self.closed_loop {
            self.apart.turn(asked_ns, now, self.limit_ns);
        }
        self.apart
            .ordinary(now.saturating_sub(asked_ns), self.limit_ns);
        // Events before the counted time, or of a slow response in it, must not count later.
        let anew = counts != self.counting || slow;
        self.counting = counts;
        if (anew || now >= self.before.at_ns + REFRESH_NS) && self.listed.len() < self.room {
            self.refresh(slow, retransmits());
        }
    }

    #[cold]
    fn refresh(&mut self, slow: bool, retransmits: Option<u64>) {
        self.retransmits = retransmits.or(self.retransmits);
        let apart_ns = std::mem::take(&mut self.apart.since_reading_ns);
        if slow {
            self.before = self.evidence.read();
            self.answers = 0;
            return;
        }
        let after = self.evidence.read();
        let ordinary_ns = self.apart.ordinary_ns;
        self.usual
            .learn(&self.before, &after, self.answers, ordinary_ns, apart_ns);
        self.before = after;
        self.answers = 0;
    }

    /// Records a slow response; beyond the capacity of the list it is only counted.
    #[cold]
    pub fn note(
        &mut self,
        answer: Late,
        times: &Histogram,
        retransmits: impl FnOnce() -> Option<u64>,
    ) {
        let Late {
            number,
            at_ns,
            answered_ns,
            time_ns,
            waited_ns,
        } = answer;
        self.count += 1;
        if self.listed.len() == self.room {
            return;
        }
        let after = self.evidence.read();
        if self.closed_loop {
            let asked_ns = answered_ns.saturating_sub(time_ns);
            self.apart.turn(asked_ns, answered_ns, self.limit_ns);
        }
        let apart_ns = std::mem::take(&mut self.apart.since_reading_ns);
        self.counting = true;
        let sent_again = retransmits();
        let around = Around {
            time_ns,
            typical_ns: (times.quantile(0.5))
                .filter(|_| times.count() >= TYPICAL_FROM)
                .unwrap_or(0),
            usual_delay_ns: self.usual.delay_of(self.answers + 1),
            apart_ns,
            usual_pushes: self.usual.pushes_of(self.answers + 1),
            retransmits: (sent_again.zip(self.retransmits))
                .map_or(0, |(now, before)| now.saturating_sub(before)),
            waited_ns,
        };
        self.listed.push(Noted {
            number,
            at_ns,
            time_ns,
            cause: cause(&self.before, &after, &around),
        });
        self.retransmits = sent_again.or(self.retransmits);
        self.before = after;
        // Taking the evidence took time that belongs to no response.
        self.before.at_ns = clock::now();
        self.answers = 0;
    }

    /// Returns the number of slow responses, and the list of the first ones.
    pub fn finish(self, flow: u32) -> (u64, Vec<SlowAnswer>) {
        let listed = self.listed.into_iter().map(|noted| SlowAnswer {
            flow,
            number: noted.number,
            at_ns: noted.at_ns,
            time_ns: noted.time_ns,
            cause: noted.cause.id().to_owned(),
            evidence: noted.cause.evidence(),
        });
        (self.count, listed.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_host::sys::cpu::ThreadEvents;

    #[test]
    fn each_cause_by_its_evidence() {
        let before = Reading {
            at_ns: 1_000_000,
            cpu: 1,
            events: ThreadEvents::default(),
            run_delay_ns: Some(5_000),
            other_softirqs: Some(10),
            steal_ticks: Some(3),
        };
        let quiet = Reading {
            at_ns: 1_400_000,
            ..before
        };
        let around = Around {
            time_ns: 300_000,
            typical_ns: 50_000,
            usual_delay_ns: 2_000,
            apart_ns: 0,
            usual_pushes: 0,
            retransmits: 0,
            waited_ns: None,
        };
        let with = |change: fn(&mut Reading)| {
            let mut after = quiet;
            change(&mut after);
            cause(&before, &after, &around)
        };
        assert_eq!(with(|_| {}), Cause::NotKnown(None));
        // A short wait does not explain a long response, and no wait explains nothing; neither does
        // it when the median is as slow as the response.
        let usual = Around {
            typical_ns: 300_000,
            ..around
        };
        for delay in [5_000, 8_700] {
            let mut after = quiet;
            after.run_delay_ns = Some(delay);
            assert_eq!(cause(&before, &after, &around), Cause::NotKnown(None));
            assert_eq!(cause(&before, &after, &usual), Cause::NotKnown(None));
        }
        // Preempted, but running again at once.
        assert_eq!(
            with(|after| after.events.involuntary_switches = 2),
            Cause::NotKnown(None)
        );
        assert_eq!(
            with(|after| {
                after.events.involuntary_switches = 2;
                after.run_delay_ns = Some(207_000);
            }),
            Cause::Preempted(200_000)
        );
        assert_eq!(
            with(|after| {
                after.events.involuntary_switches = 2;
                after.run_delay_ns = None;
            }),
            Cause::Preempted(0)
        );
        assert_eq!(
            with(|after| after.events.major_faults = 1),
            Cause::MajorFault(1)
        );
        assert_eq!(
            with(|after| after.events.minor_faults = 4),
            Cause::NotKnown(None),
            "8 us of 250"
        );
        assert_eq!(
            with(|after| after.events.minor_faults = 100),
            Cause::MinorFault(100)
        );
        assert_eq!(
            with(|after| after.cpu = 0),
            Cause::NotKnown(None),
            "50 us of 250"
        );
        let short = Around {
            time_ns: 120_000,
            ..around
        };
        let mut moved = quiet;
        moved.cpu = 0;
        assert_eq!(cause(&before, &moved, &short), Cause::Migrated(1, 0));
        // 5 us more than before, of which 2 us are usual: no explanation of 250 us.
        assert_eq!(
            with(|after| after.run_delay_ns = Some(10_000)),
            Cause::NotKnown(None)
        );
        assert_eq!(
            with(|after| after.run_delay_ns = Some(207_000)),
            Cause::WakeUp(200_000)
        );
        assert_eq!(
            with(|after| after.other_softirqs = Some(13)),
            Cause::NotKnown(None),
            "at most 90 us of 250"
        );
        assert_eq!(
            with(|after| after.other_softirqs = Some(16)),
            Cause::Softirq(6)
        );
        // A wait of 1.2 ms does not belong to a response of 0.3 ms among others.
        assert_eq!(
            with(|after| {
                after.run_delay_ns = Some(1_207_000);
                after.at_ns = 9_000_000;
            }),
            Cause::NotKnown(None)
        );
        // Too long ago to belong to this response.
        assert_eq!(
            with(|after| {
                after.other_softirqs = Some(90);
                after.events.major_faults = 1;
                after.events.minor_faults = 500;
                after.cpu = 0;
                after.at_ns = 9_000_000;
            }),
            Cause::NotKnown(None)
        );
        let old = Around {
            retransmits: 1,
            ..around
        };
        let late = Reading {
            at_ns: 9_000_000,
            ..quiet
        };
        assert_eq!(cause(&before, &late, &old), Cause::NotKnown(None));
        // A tick of 10 ms cannot be stolen within 0.3 ms.
        assert_eq!(
            with(|after| after.steal_ticks = Some(4)),
            Cause::NotKnown(None)
        );
        let long = Around {
            time_ns: 12_000_000,
            ..around
        };
        let mut after = quiet;
        after.steal_ticks = Some(4);
        assert_eq!(cause(&before, &after, &long), Cause::Steal(1));
        let lost = Around {
            retransmits: 1,
            ..long
        };
        assert_eq!(cause(&before, &after, &lost), Cause::Retransmit(1));
        // Missing counters are no evidence.
        after.run_delay_ns = None;
        after.steal_ticks = None;
        after.other_softirqs = None;
        assert_eq!(cause(&before, &after, &around), Cause::NotKnown(None));
    }

    #[test]
    fn where_an_answer_was_is_told_when_nothing_tells_why() {
        let before = Reading {
            at_ns: 1_000_000,
            other_softirqs: Some(10),
            run_delay_ns: Some(0),
            ..Reading::default()
        };
        let after = Reading {
            at_ns: 1_400_000,
            ..before
        };
        let of = |waited_ns, after: &Reading| {
            let around = Around {
                time_ns: 300_000,
                typical_ns: 50_000,
                usual_delay_ns: 0,
                apart_ns: 0,
                usual_pushes: 0,
                retransmits: 0,
                waited_ns,
            };
            cause(&before, after, &around)
        };
        for (waited, want) in [
            (None, Cause::NotKnown(None)),
            (Some(4_000), Cause::NotKnown(Some(4_000))),
            // Half of the excess time.
            (Some(124_000), Cause::NotKnown(Some(124_000))),
            (Some(125_000), Cause::QueueWait(125_000)),
            (Some(290_000), Cause::QueueWait(290_000)),
        ] {
            assert_eq!(of(waited, &after), want, "{waited:?}");
        }
        // Evidence of a cause takes precedence.
        let ready = Reading {
            run_delay_ns: Some(280_000),
            ..after
        };
        assert_eq!(of(Some(290_000), &ready), Cause::WakeUp(280_000));
        let moved = Reading { cpu: 1, ..after };
        assert_eq!(of(Some(290_000), &moved), Cause::QueueWait(290_000));
        let texts = [Cause::QueueWait(290_000), Cause::NotKnown(Some(4_000))].map(Cause::evidence);
        assert_eq!(
            texts,
            [
                "arrived 290 us before the program received it",
                "received by the program 4.00 us after its arrival"
            ]
        );
    }

    fn late(number: u64, time_ns: Nanos) -> Late {
        Late {
            number,
            at_ns: 10,
            answered_ns: 10,
            time_ns,
            waited_ns: None,
        }
    }

    #[test]
    fn waiting_between_two_questions_is_not_what_answers_wait() {
        // Another thread uses the processor: of responses of 40 us, 5 us are run delay, and
        // sometimes
        // the thread is preempted for 3 ms.
        let (limit_ns, time_ns, waits_ns) = (1_000_000, 40_000, 5_000);
        let mut apart = Apart::default();
        let mut usual = Usual::default();
        let mut reading = Reading {
            run_delay_ns: Some(0),
            ..Reading::default()
        };
        let mut now = 0;
        let mut window = |apart: &mut Apart, answers: u64, pushed_off: u64| {
            let before = reading;
            for answer in 0..answers {
                // Between the previous response and this request.
                now += 2_000 + if answer == 3 { pushed_off } else { 0 };
                apart.turn(now, now + time_ns, limit_ns);
                apart.ordinary(time_ns, limit_ns);
                now += time_ns;
            }
            reading.at_ns = now;
            let delay = reading.run_delay_ns.unwrap_or(0) + answers * waits_ns + pushed_off;
            reading.run_delay_ns = Some(delay);
            (before, reading)
        };
        for pushed_off in [3_000_000, 0, 3_000_000, 6_000_000] {
            let (before, after) = window(&mut apart, 160, pushed_off);
            let apart_ns = std::mem::take(&mut apart.since_reading_ns);
            usual.learn(&before, &after, 160, apart.ordinary_ns, apart_ns);
        }
        assert!((4_900.0..5_100.0).contains(&usual.delay_ns), "{usual:?}");
        // A slow response of 2.4 ms after 40 quick ones keeps its own delay.
        let (before, mut after) = window(&mut apart, 40, 0);
        after.at_ns += 2_400_000;
        after.run_delay_ns = after.run_delay_ns.map(|delay| delay + 2_350_000);
        let around = Around {
            time_ns: 2_400_000,
            typical_ns: 40_000,
            usual_delay_ns: usual.delay_of(41),
            apart_ns: apart.since_reading_ns,
            usual_pushes: 0,
            retransmits: 0,
            waited_ns: Some(2_380_000),
        };
        let found = cause(&before, &after, &around);
        assert!(matches!(found, Cause::WakeUp(_)), "{found:?}");
        // With a wrong usual delay, the time in the socket shows that it was the same wait.
        let wrong = Around {
            usual_delay_ns: 6_000_000,
            ..around
        };
        assert_eq!(cause(&before, &after, &wrong), Cause::WakeUp(2_380_000));
        let unseen = Around {
            waited_ns: None,
            ..wrong
        };
        assert_eq!(cause(&before, &after, &unseen), Cause::NotKnown(None));
        // One quiet time corrects the usual delay.
        let (before, after) = window(&mut apart, 160, 0);
        let mut wrong = Usual {
            delay_ns: 100_000.0,
            ..usual
        };
        wrong.learn(&before, &after, 160, apart.ordinary_ns, 0);
        assert!(wrong.delay_ns < 5_100.0, "{wrong:?}");
    }

    #[test]
    fn segments_sent_again_before_the_answer_are_not_its() {
        let times = Histogram::new();
        let long_ns = 60_000_000_000;
        let caused = |watch: &mut SlowWatch, sent_again: u64| {
            watch.note(late(0, long_ns), &times, || Some(sent_again));
            watch.listed.last().unwrap().cause
        };
        // Before the first request.
        let mut watch = SlowWatch::new(100, 1, true);
        watch.begin(|| Some(3));
        watch.begin(|| panic!("once"));
        assert_ne!(caused(&mut watch, 3), Cause::Retransmit(3));
        assert_eq!(caused(&mut watch, 4), Cause::Retransmit(1));
        // In the omitted time, of a slow response.
        watch.passed(10, 20, false, true, || Some(9));
        assert_eq!(caused(&mut watch, 11), Cause::Retransmit(2));
        // In the omitted time, of none; counting begins with the next.
        watch.passed(10, 20, false, false, || Some(12));
        watch.passed(10, 20, true, false, || Some(13));
        assert_eq!(caused(&mut watch, 14), Cause::Retransmit(1));
    }

    #[test]
    fn the_list_is_bounded_and_the_count_is_not() {
        let mut watch = SlowWatch::new(100, 1_000, true);
        assert_eq!(watch.room, 1);
        let times = Histogram::new();
        for number in 0..5 {
            watch.note(late(number, 200), &times, || None);
        }
        let (count, listed) = watch.finish(7);
        assert_eq!((count, listed.len()), (5, 1));
        assert_eq!((listed[0].flow, listed[0].time_ns), (7, 200));
    }
}
