//! Port of the forwarder: its counters, and its queues while no thread polls them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_host::sys::clock;
use linerate_metric::forward::{BusyPollFacts, ForwardPort, PeerAbsence, QueueFigures, XdpFacts};
use linerate_port::kinds::{AnyReceive, AnyTransmit};
use linerate_port::{
    Burst, Capabilities, Cause, Copies, Memory, Partner, Pool, PortError, PortUrl, Promiscuous,
    QueueCounters, QueueTotals, Receive, Transmit, XdpBinding, open,
};

use super::frame::Mac;

/// Frames that a port has moved and dropped since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortTotals {
    /// Receive counters, all queues.
    pub receive: QueueTotals,
    /// Transmit counters, all queues.
    pub transmit: QueueTotals,
}

impl PortTotals {
    /// Returns the difference to an earlier reading.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            receive: self.receive.since(earlier.receive),
            transmit: self.transmit.since(earlier.transmit),
        }
    }

    /// Returns the sum of two readings.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            receive: self.receive.plus(other.receive),
            transmit: self.transmit.plus(other.transmit),
        }
    }
}

/// Converts queue totals to the form of the record.
pub(super) fn figures(totals: QueueTotals) -> QueueFigures {
    let drops = Cause::ALL
        .iter()
        .map(|&cause| (cause, totals.dropped(cause)));
    QueueFigures {
        packets: totals.frames,
        bytes: totals.bytes,
        dropped: totals.all_dropped(),
        drops: drops
            .filter(|&(_, count)| count > 0)
            .map(|(cause, count)| (cause.name().to_owned(), count))
            .collect(),
    }
}

/// Converts the binding of an AF_XDP socket to the form of the record.
pub(crate) fn xdp_facts(binding: &XdpBinding) -> XdpFacts {
    XdpFacts {
        mode: if binding.native { "native" } else { "generic" }.to_owned(),
        zero_copy: binding.zero_copy,
        need_wakeup: binding.need_wakeup,
        busy_poll: binding.busy_poll.as_ref().map(|polling| BusyPollFacts {
            budget: polling.budget,
            napi_id: polling.napi_id(),
        }),
    }
}

/// Returns the times without a peer at a queue that overlap a run which began at `began`.
pub(crate) fn absences_since(receive: &AnyReceive, began: Instant) -> Vec<PeerAbsence> {
    let since = |time: Instant| {
        let since = time.saturating_duration_since(began);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    };
    let absences = receive.absences().into_iter();
    absences
        .filter(|absence| absence.until.is_none_or(|until| until > began))
        .map(|absence| PeerAbsence {
            from_ns: since(absence.from),
            until_ns: absence.until.map(since),
        })
        .collect()
}

/// Queue pair of a port.
pub(super) struct Queue {
    pub(super) receive: Option<AnyReceive>,
    pub(super) transmit: Option<AnyTransmit>,
    pub(super) received: Arc<QueueCounters>,
    pub(super) sent: Arc<QueueCounters>,
}

impl Queue {
    fn totals(&self) -> PortTotals {
        PortTotals {
            receive: self.received.read(),
            transmit: self.sent.read(),
        }
    }
}

/// Port of the forwarder.
pub(super) struct Port {
    pub(super) number: u32,
    pub(super) url: PortUrl,
    pub(super) queues: Vec<Queue>,
    pub(super) capabilities: Capabilities,
    /// Totals of earlier openings.
    before: PortTotals,
    /// Totals at the last `clear`, of the port and of each queue.
    cleared: PortTotals,
    cleared_queues: Vec<PortTotals>,
    /// True if the port is detached and its number is free.
    pub(super) is_detached: bool,
    /// Requested promiscuous mode of the interface, where it can be set.
    promiscuous: bool,
    /// Start of the last run, and the carrier at that time.
    began: Instant,
    carrier: Option<bool>,
}

impl Port {
    pub(super) fn open(number: u32, url: &PortUrl, memory: &Memory) -> Result<Self, PortError> {
        let opened = open(url, memory)?;
        let capabilities = match opened.first() {
            Some(first) => Capabilities {
                name: url.short(),
                ..first.capabilities.clone()
            },
            None => Capabilities::plain(url.short(), url.frame_bytes()),
        };
        let queues = opened.into_iter().map(|pair| Queue {
            received: Arc::clone(pair.receive.counters()),
            sent: Arc::clone(pair.transmit.counters()),
            receive: Some(pair.receive),
            transmit: Some(pair.transmit),
        });
        Ok(Self {
            number,
            url: url.clone(),
            queues: queues.collect(),
            capabilities,
            before: PortTotals::default(),
            cleared: PortTotals::default(),
            cleared_queues: Vec::new(),
            is_detached: false,
            promiscuous: true,
            began: Instant::now(),
            carrier: None,
        })
    }

    /// Records the start of a run.
    pub(super) fn begin(&mut self) {
        self.began = Instant::now();
        self.carrier = self.capabilities.has_carrier();
    }

    /// Returns the times without a peer in the run, of the queue that had the most.
    fn absences(&self) -> Vec<PeerAbsence> {
        let queues = self
            .queues
            .iter()
            .filter_map(|queue| queue.receive.as_ref());
        let queues = queues.map(|receive| absences_since(receive, self.began));
        queues.max_by_key(Vec::len).unwrap_or_default()
    }

    pub(super) fn stop(&mut self) {
        self.before = self.totals();
        self.queues.clear();
        self.cleared_queues.clear();
        // Otherwise the setting would outlive the port.
        self.capabilities.promiscuous = None;
    }

    /// Returns whether the port is open.
    pub(super) fn is_started(&self) -> bool {
        !self.queues.is_empty()
    }

    /// Reopens the queues.
    pub(super) fn start(&mut self, memory: &Memory) -> Result<(), PortError> {
        let again = Self::open(self.number, &self.url, memory)?;
        self.queues = again.queues;
        self.capabilities = again.capabilities;
        if let Some(promiscuous) = &self.capabilities.promiscuous {
            // An interface that is gone reports the error when it is polled.
            let _ = promiscuous.set(self.promiscuous);
        }
        Ok(())
    }

    /// Sets promiscuous mode of the interface; `None` if the port has no interface with such a
    /// mode.
    pub(super) fn set_promiscuous(&mut self, on: bool) -> Option<std::io::Result<()>> {
        let switch = self.capabilities.promiscuous.as_ref()?;
        let done = switch.set(on);
        if done.is_ok() {
            self.promiscuous = on;
        }
        Some(done)
    }

    /// Returns the totals of each queue since the port was cleared or opened.
    pub(super) fn queues_shown(&self) -> Vec<PortTotals> {
        let queues = self.queues.iter().enumerate();
        queues
            .map(|(at, queue)| {
                let cleared = self.cleared_queues.get(at).copied();
                queue.totals().since(cleared.unwrap_or_default())
            })
            .collect()
    }

    /// Returns the Ethernet address of the port, or one derived from its number.
    pub(super) fn address(&self) -> Mac {
        self.capabilities
            .address
            .map_or(Mac::of_port(self.number), Mac)
    }

    /// Returns the totals over all openings.
    pub(super) fn totals(&self) -> PortTotals {
        let mut totals = self.before;
        for queue in &self.queues {
            totals.receive = totals.receive.plus(queue.received.read());
            totals.transmit = totals.transmit.plus(queue.sent.read());
        }
        totals
    }

    /// Returns the totals since the last clear.
    pub(super) fn shown(&self) -> PortTotals {
        self.totals().since(self.cleared)
    }

    pub(super) fn clear(&mut self) {
        self.cleared = self.totals();
        self.cleared_queues = self.queues.iter().map(Queue::totals).collect();
    }

    /// Reads the counters that only the kernel keeps, while no thread polls the queues.
    pub(super) fn refresh(&mut self) -> Result<(), PortError> {
        let mut first = Ok(());
        for queue in &mut self.queues {
            if let (Some(receive), Some(transmit)) = (&mut queue.receive, &mut queue.transmit) {
                // After an error the other queues are still refreshed.
                first = first.and(receive.refresh());
                first = first.and(transmit.refresh());
            }
        }
        first
    }

    /// Drops the frames in the receive queues until none has arrived for `quiet`; returns their
    /// number. Ends after [`FLUSH_LIMIT_NS`] on a port that never stops receiving.
    pub(super) fn flush(&mut self, pool: &mut Pool, quiet: Duration) -> u64 {
        if self.capabilities.replays {
            return 0;
        }
        let mut burst = Burst::new();
        let mut flushed = 0;
        let quiet_ns = u64::try_from(quiet.as_nanos()).unwrap_or(u64::MAX);
        for queue in &mut self.queues {
            let Some(receive) = &mut queue.receive else {
                continue;
            };
            let began = clock::now();
            let (mut latest, mut empty, mut polls) = (began, 0, 0);
            loop {
                let came = receive.receive(pool, &mut burst);
                pool.free_all(&mut burst);
                flushed += came as u64;
                polls += 1;
                let now = clock::now();
                if came > 0 {
                    (latest, empty) = (now, 0);
                } else {
                    empty += 1;
                }
                let silent = empty >= EMPTY_POLLS && now - latest >= quiet_ns;
                let long = polls >= FLUSH_POLLS && now - began > FLUSH_LIMIT_NS + quiet_ns;
                if silent || long {
                    break;
                }
            }
            if let Some(transmit) = &mut queue.transmit {
                transmit.reclaim(pool);
            }
        }
        flushed
    }

    /// Returns the port in the form of the record, with its totals since `base`.
    pub(super) fn record(&self, base: PortTotals) -> ForwardPort {
        let moved = self.totals().since(base);
        ForwardPort {
            port: self.number,
            name: self.url.short(),
            address: self
                .capabilities
                .address
                .map(|address| Mac(address).to_string()),
            queues: u32::try_from(self.queues.len()).unwrap_or(u32::MAX),
            frame_bytes: Some(self.capabilities.frame_bytes.into()),
            rx_descriptors: self.capabilities.receive_descriptors,
            tx_descriptors: self.capabilities.transmit_descriptors,
            joined: (self.queues.iter())
                .filter_map(|queue| queue.receive.as_ref()?.partner())
                .map(|partner| partner != Partner::Awaited)
                .reduce(|all, one| all && one),
            absences: self.absences(),
            carrier: (self.capabilities.has_carrier())
                .map(|carrier| carrier && self.carrier.unwrap_or(true)),
            promiscuous: (self.capabilities.promiscuous.as_ref()).map(Promiscuous::is_on),
            bit_rates: None,
            copies: match self.capabilities.copies {
                Copies::None => "none",
                Copies::EachWay => "each-way",
                Copies::InKernel => "in-kernel",
            }
            .to_owned(),
            xdp: self.capabilities.xdp.as_ref().map(xdp_facts),
            notes: self.capabilities.notes_so_far(),
            receive: figures(moved.receive),
            transmit: figures(moved.transmit),
        }
    }
}

/// Number of empty polls in a row after which a queue counts as empty.
const EMPTY_POLLS: u32 = 8;
/// Maximum time for one queue: ports that generate frames never become silent.
const FLUSH_LIMIT_NS: u64 = 50_000_000;
/// Number of polls before the time limit applies: more than any ring has bursts. While another
/// thread has the processor, time passes without polls, and frames left in the ring would circulate
/// in the run.
const FLUSH_POLLS: u32 = 1024;
