//! Answers above the limit, and why they were slow as far as this end can tell.
//!
//! Counters are read after a slow answer, and every few milliseconds between two questions so that
//! what they grew by belongs to a short time. Neither is within a round trip.

use linerate_host::evidence::{Evidence, Reading, steal_tick_ns};
use linerate_host::sys::clock::{self, Nanos};
use linerate_metric::histogram::Histogram;
use linerate_metric::round_trip::{SLOW_LISTED, SlowAnswer};
use linerate_metric::units::format_nanos;

/// Shortest time between two readings without a slow answer: at 20 us each they take 0.2 % of the
/// time between questions.
const REFRESH_NS: Nanos = 10_000_000;

/// What made an answer slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The kernel sent so many segments of the connection again.
    Retransmit(u64),
    /// The asking thread was pushed off its processor, and was ready to run for so long meanwhile
    /// (0 where the kernel does not tell).
    Preempted(u64),
    /// It waited for the disk so many times.
    MajorFault(u64),
    /// The hypervisor ran somebody else for so many ticks.
    Steal(u64),
    /// It was ready to run for so long before it ran.
    WakeUp(u64),
    /// It was moved from one processor to another.
    Migrated(u32, u32),
    /// It touched so many pages for the first time.
    MinorFault(u64),
    /// So many softirqs that are not the network's ran on its processor.
    Softirq(u64),
    /// It had arrived so long before the receive call gave it to the program.
    QueueWait(u64),
    /// This end has no evidence: the path, the far end, or what no counter shows. The time from its
    /// arrival to the program, where that is known.
    NotKnown(Option<u64>),
}

impl Cause {
    /// Its id in the record.
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
            Self::Retransmit(count) => format!("{count} segments sent again"),
            Self::Preempted(0) => "pushed off its processor".to_owned(),
            Self::Preempted(time) => format!(
                "pushed off its processor, ready to run for {}",
                format_nanos(time as f64)
            ),
            Self::MajorFault(count) => format!("{count} page faults waited for a disk"),
            Self::MinorFault(count) => format!("{count} page faults"),
            Self::Steal(ticks) => {
                let time = format_nanos((ticks * steal_tick_ns()) as f64);
                format!("the hypervisor ran others for about {time}")
            }
            Self::WakeUp(time) => format!("ready to run for {}", format_nanos(time as f64)),
            Self::Migrated(from, to) => format!("moved from processor {from} to {to}"),
            Self::Softirq(count) => format!("{count} softirqs of timers, scheduler or RCU"),
            Self::QueueWait(time) => format!(
                "had arrived {} before the program got it",
                format_nanos(time as f64)
            ),
            Self::NotKnown(None) => String::new(),
            Self::NotKnown(Some(time)) => format!(
                "the program got it {} after its arrival",
                format_nanos(time as f64)
            ),
        }
    }
}

/// A slow answer, and what is known of the time around it.
#[derive(Clone, Copy, Debug)]
pub struct Around {
    /// How long the answer took.
    pub time_ns: Nanos,
    /// How long half of the answers take at most.
    pub typical_ns: Nanos,
    /// Run delay that so many answers usually have together.
    pub usual_delay_ns: u64,
    /// Time in between in which others may have had the processor.
    pub apart_ns: Nanos,
    /// Times that so many answers usually push the thread off its processor: where both ends share
    /// one, every question does.
    pub usual_pushes: u64,
    /// Segments sent again since the reading before.
    pub retransmits: u64,
    /// Time from its arrival in the kernel until the receive call had returned, at least.
    pub waited_ns: Option<Nanos>,
}

/// What each event costs at most; the evidence is a count, and has to make up for a fair share of
/// what the answer took too long. Generous, so that what is ruled out is ruled out: a disk takes tens
/// of ms when it is busy, a page of memory is cleared in 1 to 2 us, a thread that was moved finds cold
/// caches, and a softirq of timers, scheduler or RCU runs for some us.
const MAJOR_FAULT_NS: u64 = 50_000_000;
const MINOR_FAULT_NS: u64 = 2_000;
const MIGRATION_NS: u64 = 50_000;
const SOFTIRQ_NS: u64 = 30_000;

/// A wait for the processor and a time in the socket are one where they differ by no more than this
/// part: the one ends as the thread is put on its processor, the other when its call returns.
const SAME: u64 = 10;

/// Answers from which on their median says what is typical.
const TYPICAL_FROM: u64 = 10;

/// The strongest evidence between two readings, the certain kinds first.
#[must_use]
pub fn cause(before: &Reading, after: &Reading, around: &Around) -> Cause {
    // Where the median is above the limit itself, the excess is a part of the answer all the same.
    let excess_ns = (around.time_ns.saturating_sub(around.typical_ns)).max(around.time_ns / 4);
    let explains = |time_ns: u64| time_ns > 0 && time_ns >= excess_ns / 2;
    let window_ns = after.at_ns.saturating_sub(before.at_ns).max(1);
    let grown = |after: u64, before: u64| after.saturating_sub(before);
    let known = |after: Option<u64>, before: Option<u64>| Some(grown(after?, before?));
    // Whether the answer fills enough of the time between the readings that what happened in that
    // time happened to it.
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
        // It lay in the socket for as long as the thread waited for its processor, at least: that is one
        // and the same wait, whatever is usual and whoever had the processor in between.
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
        // More than the answer took was not its: nobody knows how much of it was, where others came
        // between the readings.
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
    // Where it was all that time, when nothing tells why.
    let where_it_was = match around.waited_ns {
        Some(waited) if explains(waited) => Cause::QueueWait(waited),
        waited => Cause::NotKnown(waited),
    };
    let same_cpu = after.cpu == before.cpu;
    if let Some(ticks) = known(after.steal_ticks, before.steal_ticks)
        && same_cpu
        && events(ticks, steal_tick_ns())
        // A tick is counted when enough small thefts have added up: a short answer cannot be one.
        && around.time_ns.saturating_mul(4) >= steal_tick_ns()
    {
        return Cause::Steal(ticks);
    }
    if !same_cpu {
        return match events(1, MIGRATION_NS) {
            true => Cause::Migrated(before.cpu, after.cpu),
            // The counters of two processors say nothing together.
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

/// A slow answer, as whoever received it knows it.
#[derive(Clone, Copy, Debug)]
pub struct Late {
    /// Number of the question.
    pub number: u64,
    /// When it came, from the start of the run.
    pub at_ns: Nanos,
    /// The same on the thread's clock.
    pub answered_ns: Nanos,
    /// How long it took.
    pub time_ns: Nanos,
    /// Time from its arrival until the receive call had returned.
    pub waited_ns: Option<Nanos>,
}

/// A listed answer before it is put in words.
struct Noted {
    number: u64,
    at_ns: Nanos,
    time_ns: Nanos,
    cause: Cause,
}

/// Where the time since the last reading went that ordinary answers do not take: what the thread
/// waited for its processor then is not what an answer usually waits.
#[derive(Clone, Copy, Debug, Default)]
struct Apart {
    /// Long stretches between an answer and the next question, and long answers that are within the
    /// limit, since the last reading.
    since_reading_ns: Nanos,
    /// The answer before.
    answered_ns: Option<Nanos>,
    /// What an ordinary answer takes: the mean of some sixteen.
    ordinary_ns: f64,
}

impl Apart {
    /// A stretch is long that an answer within it would be listed for soon, and that is no ordinary
    /// answer of a flow whose limit is close to its median.
    fn is_long(&self, stretch_ns: Nanos, limit_ns: Nanos) -> bool {
        stretch_ns >= limit_ns / 4 && stretch_ns as f64 >= 2.0 * self.ordinary_ns
    }

    /// A question was asked and answered.
    #[inline]
    fn turn(&mut self, asked_ns: Nanos, answered_ns: Nanos, limit_ns: Nanos) {
        let since = |before: Nanos| asked_ns.saturating_sub(before);
        let gap = self.answered_ns.replace(answered_ns).map_or(0, since);
        if self.is_long(gap, limit_ns) {
            self.since_reading_ns += gap;
        }
    }

    /// Its answer is not listed.
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

/// Run delay and pushes of one answer in times without a slow one.
#[derive(Clone, Copy, Debug, Default)]
struct Usual {
    readings: u64,
    delay_ns: f64,
    pushes: f64,
}

impl Usual {
    /// What grew between two readings, with so many answers of so long and so much time apart.
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
            // An ordinary answer waits no longer than it takes.
            let most = (answers * ordinary_ns) as u64;
            grown(now, then).saturating_sub(apart_ns).min(most) as f64 / answers
        });
        let pushes = |reading: &Reading| reading.events.involuntary_switches;
        let pushed = grown(pushes(after), pushes(before)) as f64 / answers;
        // It falls at once and rises slowly: a time in which somebody else had the processor tells
        // nothing of an ordinary answer.
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

/// Watches for slow answers of one flow.
pub struct SlowWatch {
    limit_ns: Nanos,
    count: u64,
    listed: Vec<Noted>,
    room: usize,
    evidence: Evidence,
    before: Reading,
    /// Answers since the last reading.
    answers: u64,
    /// Whether questions follow their answers at once: a flow with a schedule sleeps in between.
    closed_loop: bool,
    apart: Apart,
    usual: Usual,
    /// Segments sent again up to the last reading; `None` before the first look.
    retransmits: Option<u64>,
    /// Whether the time that counts has begun.
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

    /// Before a question on a stream: what was sent again before the first one is not its.
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

    /// An answer came in time, or in the time that does not count.
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
        // What happened before the counted time, or to a slow answer in it, is over with it.
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

    /// An answer was slow. Beyond the list it is only counted.
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
        // The looking itself took time that belongs to nobody.
        self.before.at_ns = clock::now();
        self.answers = 0;
    }

    /// How many there were, and the list of the first ones.
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
        // A short wait is no reason for a long answer, and none is no reason at all: not where the
        // median is as slow as the answer either.
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
        // Pushed off, but back at once.
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
        // 5 us more than at first, 2 us of which are usual: no reason for 250 us.
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
        // A wait of 1.2 ms was not that of an answer of 0.3 ms among others.
        assert_eq!(
            with(|after| {
                after.run_delay_ns = Some(1_207_000);
                after.at_ns = 9_000_000;
            }),
            Cause::NotKnown(None)
        );
        // Too long ago to be this answer's.
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
        // A tick of 10 ms was not stolen within 0.3 ms.
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
        // What cannot be read is no evidence.
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
            // Half of what it took too long.
            (Some(124_000), Cause::NotKnown(Some(124_000))),
            (Some(125_000), Cause::QueueWait(125_000)),
            (Some(290_000), Cause::QueueWait(290_000)),
        ] {
            assert_eq!(of(waited, &after), want, "{waited:?}");
        }
        // What tells why comes first.
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
                "had arrived 290 us before the program got it",
                "the program got it 4.00 us after its arrival"
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
        // Somebody else burns time on the thread's processor: answers of 40 us, 5 us of which it waits
        // for its processor, and at times it is pushed off for 3 ms.
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
                // After the answer before, and before this question.
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
        // So the slow answer after 40 quick ones keeps what it waited, of 2.4 ms.
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
        // Where what is usual was learned wrong, the time in the socket tells that it was one wait.
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
        // One quiet time is enough to know better.
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
        // Before the first question.
        let mut watch = SlowWatch::new(100, 1, true);
        watch.begin(|| Some(3));
        watch.begin(|| panic!("once"));
        assert_ne!(caused(&mut watch, 3), Cause::Retransmit(3));
        assert_eq!(caused(&mut watch, 4), Cause::Retransmit(1));
        // In the omitted time, to a slow answer.
        watch.passed(10, 20, false, true, || Some(9));
        assert_eq!(caused(&mut watch, 11), Cause::Retransmit(2));
        // In the omitted time, to none; counting begins with the next.
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
