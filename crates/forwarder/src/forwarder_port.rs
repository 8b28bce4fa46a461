//! Port of the forwarder: its counters, and its queues while no thread polls them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_packet::mac_address::MacAddress;
use linerate_port::facts::{outages_since, xdp_facts};
use linerate_port::kinds::{AnyReceive, AnyTransmit};
use linerate_port::{
    DropCause, FrameCopy, PeerState, PortCapabilities, PortError, PortUrl, QueueCounters,
    QueueTotals, RxQueue, TxQueue, open,
};
use linerate_record::forward::{ForwardPort, PeerOutage, QueueFigures};
use linerate_sys::af_packet::PromiscuousMode;
use linerate_sys::clock;
use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;

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
pub(super) fn queue_figures(totals: QueueTotals) -> QueueFigures {
    let drops = DropCause::ALL
        .iter()
        .map(|&cause| (cause, totals.drops_by(cause)));
    QueueFigures {
        packets: totals.frames,
        bytes: totals.bytes,
        dropped: totals.total_drops(),
        drops: drops
            .filter(|&(_, count)| count > 0)
            .map(|(cause, count)| (cause.name().to_owned(), count))
            .collect(),
    }
}

/// Queue pair of a port.
pub(super) struct QueuePair {
    pub(super) receive: Option<AnyReceive>,
    pub(super) transmit: Option<AnyTransmit>,
    pub(super) received: Arc<QueueCounters>,
    pub(super) sent: Arc<QueueCounters>,
}

impl QueuePair {
    fn totals(&self) -> PortTotals {
        PortTotals {
            receive: self.received.read(),
            transmit: self.sent.read(),
        }
    }
}

/// Port of the forwarder.
pub(super) struct ForwarderPort {
    pub(super) number: u32,
    pub(super) url: PortUrl,
    pub(super) queues: Vec<QueuePair>,
    pub(super) capabilities: PortCapabilities,
    /// Totals of earlier openings.
    earlier_totals: PortTotals,
    /// Totals at the last `clear`, of the port and of each queue.
    totals_at_clear: PortTotals,
    queue_totals_at_clear: Vec<PortTotals>,
    /// True if the port is detached and its number is free.
    pub(super) is_detached: bool,
    /// Requested promiscuous mode of the interface, where it can be set.
    promiscuous: bool,
    /// Start of the last run, and the carrier at that time.
    run_started_at: Instant,
    had_carrier: Option<bool>,
}

impl ForwarderPort {
    pub(super) fn open(
        number: u32,
        url: &PortUrl,
        memory: &FrameRegion,
    ) -> Result<Self, PortError> {
        let opened = open(url, memory)?;
        let capabilities = match opened.first() {
            Some(first) => PortCapabilities {
                name: url.short_name(),
                ..first.capabilities.clone()
            },
            None => PortCapabilities::plain(url.short_name(), url.frame_bytes()),
        };
        let queues = opened.into_iter().map(|pair| QueuePair {
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
            earlier_totals: PortTotals::default(),
            totals_at_clear: PortTotals::default(),
            queue_totals_at_clear: Vec::new(),
            is_detached: false,
            promiscuous: true,
            run_started_at: Instant::now(),
            had_carrier: None,
        })
    }

    /// Records the start of a run.
    pub(super) fn start_run(&mut self) {
        self.run_started_at = Instant::now();
        self.had_carrier = self.capabilities.has_carrier();
    }

    /// Returns the times without a peer in the run, of the queue that had the most.
    fn outages(&self) -> Vec<PeerOutage> {
        let queues = self
            .queues
            .iter()
            .filter_map(|queue| queue.receive.as_ref());
        let queues = queues.map(|receive| outages_since(receive, self.run_started_at));
        queues.max_by_key(Vec::len).unwrap_or_default()
    }

    pub(super) fn close(&mut self) {
        self.earlier_totals = self.totals();
        self.queues.clear();
        self.queue_totals_at_clear.clear();
        // Otherwise the setting would outlive the port.
        self.capabilities.promiscuous = None;
    }

    /// Returns whether the port is open.
    pub(super) fn is_started(&self) -> bool {
        !self.queues.is_empty()
    }

    /// Reopens the queues.
    pub(super) fn reopen(&mut self, memory: &FrameRegion) -> Result<(), PortError> {
        let reopened = Self::open(self.number, &self.url, memory)?;
        self.queues = reopened.queues;
        self.capabilities = reopened.capabilities;
        if let Some(promiscuous) = &self.capabilities.promiscuous {
            // An interface that is gone reports the error when it is polled.
            let _ = promiscuous.set_enabled(self.promiscuous);
        }
        Ok(())
    }

    /// Sets promiscuous mode of the interface; `None` if the port has no interface with such a
    /// mode.
    pub(super) fn set_promiscuous(&mut self, on: bool) -> Option<std::io::Result<()>> {
        let switch = self.capabilities.promiscuous.as_ref()?;
        let result = switch.set_enabled(on);
        if result.is_ok() {
            self.promiscuous = on;
        }
        Some(result)
    }

    /// Returns the totals of each queue since the port was cleared or opened.
    pub(super) fn queue_totals_since_clear(&self) -> Vec<PortTotals> {
        let queues = self.queues.iter().enumerate();
        queues
            .map(|(index, queue)| {
                let cleared = self.queue_totals_at_clear.get(index).copied();
                queue.totals().since(cleared.unwrap_or_default())
            })
            .collect()
    }

    /// Returns the Ethernet address of the port, or one derived from its number.
    pub(super) fn address(&self) -> MacAddress {
        self.capabilities
            .address
            .map_or(MacAddress::of_port(self.number), MacAddress)
    }

    /// Returns the totals over all openings.
    pub(super) fn totals(&self) -> PortTotals {
        let mut totals = self.earlier_totals;
        for queue in &self.queues {
            totals.receive = totals.receive.plus(queue.received.read());
            totals.transmit = totals.transmit.plus(queue.sent.read());
        }
        totals
    }

    /// Returns the totals since the last clear.
    pub(super) fn totals_since_clear(&self) -> PortTotals {
        self.totals().since(self.totals_at_clear)
    }

    pub(super) fn clear(&mut self) {
        self.totals_at_clear = self.totals();
        self.queue_totals_at_clear = self.queues.iter().map(QueuePair::totals).collect();
    }

    /// Reads the counters that only the kernel keeps, while no thread polls the queues.
    pub(super) fn refresh(&mut self) -> Result<(), PortError> {
        let mut result = Ok(());
        for queue in &mut self.queues {
            if let (Some(receive), Some(transmit)) = (&mut queue.receive, &mut queue.transmit) {
                // After an error the other queues are still refreshed.
                result = result.and(receive.refresh());
                result = result.and(transmit.refresh());
            }
        }
        result
    }

    /// Drops the frames in the receive queues until none has arrived for `quiet`; returns
    /// their number. Ends after [`FLUSH_LIMIT_NS`] on a port that never stops receiving.
    pub(super) fn flush(&mut self, pool: &mut FramePool, quiet: Duration) -> u64 {
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
            let started_ns = clock::now();
            let (mut last_arrival_ns, mut empty_polls, mut polls) = (started_ns, 0, 0);
            loop {
                let received = receive.receive(pool, &mut burst);
                pool.free_all(&mut burst);
                flushed += received as u64;
                polls += 1;
                let now = clock::now();
                if received > 0 {
                    (last_arrival_ns, empty_polls) = (now, 0);
                } else {
                    empty_polls += 1;
                }
                let is_silent = empty_polls >= EMPTY_POLLS && now - last_arrival_ns >= quiet_ns;
                let is_timed_out =
                    polls >= FLUSH_POLLS && now - started_ns > FLUSH_LIMIT_NS + quiet_ns;
                if is_silent || is_timed_out {
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
    pub(super) fn to_record(&self, base: PortTotals) -> ForwardPort {
        let totals = self.totals().since(base);
        ForwardPort {
            port: self.number,
            name: self.url.short_name(),
            address: self
                .capabilities
                .address
                .map(|address| MacAddress(address).to_string()),
            queues: u32::try_from(self.queues.len()).unwrap_or(u32::MAX),
            frame_bytes: Some(self.capabilities.frame_bytes.into()),
            rx_descriptors: self.capabilities.receive_descriptors,
            tx_descriptors: self.capabilities.transmit_descriptors,
            peer_seen: (self.queues.iter())
                .filter_map(|queue| queue.receive.as_ref()?.peer_state())
                .map(|partner| partner != PeerState::NeverConnected)
                .reduce(|all, one| all && one),
            peer_outages: self.outages(),
            carrier: (self.capabilities.has_carrier())
                .map(|carrier| carrier && self.had_carrier.unwrap_or(true)),
            promiscuous: (self.capabilities.promiscuous.as_ref()).map(PromiscuousMode::is_enabled),
            bit_rates: None,
            copies: match self.capabilities.copies {
                FrameCopy::None => "none",
                FrameCopy::EachDirection => "each-way",
                FrameCopy::InKernel => "in-kernel",
            }
            .to_owned(),
            xdp: self.capabilities.xdp.as_ref().map(xdp_facts),
            notes: self.capabilities.current_notes(),
            receive: queue_figures(totals.receive),
            transmit: queue_figures(totals.transmit),
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
