//! Record of a test, built from the results of its workers.

use linerate_dialect::remote_report::FarReport;
use linerate_host::sys::cpu::ThreadUsage;
use linerate_metric::cost::ThreadCost;
use linerate_metric::event::{Problem, What};
use linerate_metric::facts::Role;
use linerate_metric::plan::{Kind, Protocol};
use linerate_metric::record::{CountedAt, CpuCost, Doubt, Served};

use super::{Lane, SHORTEST_ALONE_NS, SHORTEST_NS, Test};
use crate::cpu_cost::{self, Spent};
use crate::error::MeasureError;
use crate::flow::Part;
use crate::interop::handlers::worker::{Broke, Moved};
use crate::interop::record::{Counted, PeerTest, own_half};
use crate::session::setup::host_facts;

/// Returns the caveat of datagrams that are in no count.
fn unread_doubt(dialect: &str, unread: u64) -> Doubt {
    let datagrams = match unread {
        1 => "1 datagram was received that is",
        _ => &format!("{unread} datagrams were received that are"),
    };
    Doubt::new(
        "unread-datagrams",
        format!(
            "{datagrams} not of {dialect}, and in no count; a port that is given to plain payload \
             counts all (--also PORT=plain)"
        ),
    )
}

/// Returns the caveat of a flow whose first received datagram is not its first one.
fn before_doubt(before: u64) -> Doubt {
    Doubt::new(
        "began-before",
        format!(
            "the first received datagram has number {}: {before} before it are in no count here, and lost in the \
             client's own report; they were sent before this server had a place for the flow (then it logged that), to \
             another server, before a pause of the client that ended its test, or were lost",
            before.saturating_add(1)
        ),
    )
}

impl Test {
    /// Builds and emits the record, and releases all resources. `failure` is the error that ended
    /// the test early.
    pub fn finish(mut self, far: FarReport, failure: Option<MeasureError>) {
        self.join();
        let is_crumbs = self.is_crumbs();
        self.end_intervals();
        let failure = failure.or_else(|| self.broke());
        if is_crumbs {
            let crumbs = format!("one datagram of {} B", self.sum().bytes);
            self.house.hall.refuse_crumbs(self.peer, &crumbs);
            (self.claim.began, self.claim.shown) = (false, true);
            return;
        }
        let unread: u64 = self.ended().map(|moved| moved.unread).sum();
        if unread > 0 {
            self.doubt(unread_doubt(self.dialect, unread));
        }
        if let Some(before) = self
            .ended()
            .map(|moved| moved.before)
            .max()
            .filter(|&n| n > 0)
        {
            self.doubt(before_doubt(before));
        }
        let nothing = if self.sum().bytes == 0 {
            Some(("no payload was received", "see the client's own messages"))
        } else if self.answered_nobody() {
            let next = "see which responses were rejected, and what would allow them";
            Some(("no request was answered", next))
        } else {
            None
        };
        if let Some((what, next)) = nothing {
            let problem = failure.as_ref().map_or_else(
                || Problem::new(what, self.peer.to_string(), next),
                MeasureError::problem,
            );
            self.emit(What::Failed { problem });
            self.give_failure(failure);
            return;
        }
        if self.sized_by_payload
            && let Some(bytes) = self.largest_size()
        {
            self.plan.payload_bytes = bytes;
        }
        let host = host_facts(Role::Server, self.peer.ip());
        let counted: Vec<_> = self.lanes.iter().map(|lane| self.counted(lane)).collect();
        let mut own = own_half(Role::Server, host, &self.plan, &counted);
        if self.plan.kind == Kind::Latency {
            for (flow, lane) in own.streams.iter_mut().zip(&self.lanes) {
                let Some(moved) = &lane.moved else { continue };
                let summary = &mut flow.stream.summary;
                summary.bytes_received = Some(moved.totals.bytes);
                summary.round_trips = moved.answered;
                let seconds = summary.duration_ns.filter(|&ns| ns > 0);
                summary.round_trips_per_second =
                    (moved.answered.zip(seconds)).map(|(n, ns)| n as f64 * 1e9 / ns as f64);
            }
        }
        own.cpu = Some(self.cpu());
        own.interrupted = self.interrupted;
        own.doubts = std::mem::take(&mut self.doubts);
        let mut test = PeerTest::new(self.dialect, self.plan.clone(), self.started, own);
        test.intervals = std::mem::take(&mut self.intervals);
        test.intervals_left_out = self.left_out;
        test.far = far;
        test.failure = failure;
        test.ipv6 = self.peer.is_ipv6();
        let (mut record, failure) = test.record();
        record.served = Some(Served {
            client: self.peer.to_string(),
            agent: std::mem::take(&mut self.agent),
        });
        self.emit(What::Finished {
            record: Box::new(record),
        });
        self.give_failure(failure);
    }

    /// Emits the last interval, once all workers have ended.
    pub fn end_intervals(&mut self) {
        self.start_with_payload();
        let last = self.lanes.iter().filter_map(|lane| self.span(lane));
        let last = last.map(|(_, last)| last).max().unwrap_or(self.start_ns);
        self.forget_silence();
        while self.interval_end() <= last {
            self.interval(self.interval_end());
        }
        let shortest = match self.number {
            0 => SHORTEST_ALONE_NS,
            _ => SHORTEST_NS,
        };
        if last > self.from_ns + shortest && !self.pauses {
            self.interval(last);
        }
        self.tell_held();
    }

    /// Returns the results of the workers that have ended.
    fn ended(&self) -> impl Iterator<Item = &Moved> {
        self.lanes.iter().filter_map(|lane| lane.moved.as_ref())
    }

    /// Returns the size of the received datagrams; of several flows, the largest.
    fn largest_size(&self) -> Option<u64> {
        self.ended().filter_map(|moved| moved.sizes.most()).max()
    }

    /// Returns whether there were requests but not one response.
    fn answered_nobody(&self) -> bool {
        let answers = || self.ended().filter_map(|moved| moved.answered);
        self.plan.kind == Kind::Latency
            && self.plan.protocol == Protocol::Udp
            && answers().next().is_some()
            && answers().sum::<u64>() == 0
    }

    fn give_failure(&self, failure: Option<MeasureError>) {
        if let Some(failure) = failure {
            *self.house.failure.lock().expect("no holder panics") = Some(failure);
        }
    }

    /// Returns the failure of the first worker that ended early.
    fn broke(&self) -> Option<MeasureError> {
        let mut broke = self
            .lanes
            .iter()
            .filter_map(|lane| lane.moved.as_ref()?.broke.as_ref());
        broke.next().map(|broke| MeasureError::Vanished {
            peer: self.peer,
            how: match broke {
                Broke::Silent(time) => format!("no payload moved for {} s", time.as_secs()),
                Broke::Error(error) => error.to_string(),
                Broke::Nonsense(what) => what.clone(),
            },
        })
    }

    fn counted(&self, lane: &Lane) -> Counted {
        let mut counted = Counted::new(lane.id, lane.part);
        let Some(moved) = &lane.moved else {
            return counted;
        };
        let udp = self.plan.protocol == Protocol::Udp;
        let base = self.omitted(lane.id);
        let totals = moved.totals.since(base);
        counted.bytes = totals.bytes;
        counted.packets = udp.then_some(totals.packets);
        counted.calls = Some(totals.calls);
        counted.duration_ns = self.lane_ns(lane).unwrap_or(0);
        if let Some(numbers) = moved.numbers {
            counted.lost = numbers.lost.map(|lost| lost.saturating_sub(base.missing));
            counted.out_of_order = numbers.out_of_order;
            counted.duplicates = numbers.duplicates;
            counted.ipdv_ns = numbers.ipdv_ns;
        }
        counted.one_way = moved.delays.as_ref().and_then(|d| d.times().cloned());
        if lane.part == Part::Source {
            let tcp = moved.socket.as_ref().and_then(|socket| socket.tcp.as_ref());
            counted.retransmits = tcp.map(|tcp| tcp.retransmits);
        }
        counted.socket.clone_from(&moved.socket);
        counted
    }

    /// Returns the processor cost of the workers.
    fn cpu(&self) -> CpuCost {
        let mut usage = ThreadUsage::default();
        let mut threads = Vec::new();
        // Workers also wait for the first payload, and the cost of that is theirs.
        let (mut begin_ns, mut end_ns) = (self.start_ns, self.start_ns);
        for lane in &self.lanes {
            let Some(moved) = &lane.moved else { continue };
            let own = moved.usage;
            usage.cpu_ns += own.cpu_ns;
            usage.user_ns += own.user_ns;
            usage.system_ns += own.system_ns;
            usage.voluntary_switches += own.voluntary_switches;
            usage.involuntary_switches += own.involuntary_switches;
            begin_ns = begin_ns.min(moved.lived.0);
            end_ns = end_ns.max(moved.lived.1);
            threads.push(ThreadCost {
                direction: lane.direction(),
                part: match lane.part {
                    Part::Source => CountedAt::Sender,
                    Part::Sink => CountedAt::Receiver,
                },
                flows: 1,
                wall_ns: moved.lived.1.saturating_sub(moved.lived.0),
                cpu_ns: own.cpu_ns,
                user_ns: own.user_ns,
                system_ns: own.system_ns,
                runnable_ns: None,
                blocked_ns: None,
                voluntary_switches: own.voluntary_switches,
                involuntary_switches: own.involuntary_switches,
                cpus: None,
                calls: Some(moved.totals.calls),
                empty_calls: None,
                cycles: None,
                instructions: None,
            });
        }
        cpu_cost::cpu(&Spent {
            role: Role::Server,
            plan: &self.plan,
            wall_ns: end_ns.saturating_sub(begin_ns),
            usage: &usage,
            threads: &threads,
            moved: self.sum(),
            machine: None,
            processors: Vec::new(),
            uncounted: None,
        })
    }
}
