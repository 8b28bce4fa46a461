//! Ports of a generator, with one shared memory.

use std::sync::Arc;
use std::time::Instant;

use linerate_host::numa::NumaPlacement;
use linerate_packet::template::{MAC_BYTES, Template, TemplateError};
use linerate_port::caveats::peer_outage_caveat;
use linerate_port::facts::outages_since;
use linerate_port::{
    AnyPort, FrameRunError, PeerState, PortCapabilities, PortError, PortUrl, QueueCounters,
    QueueTotals, RxQueue, TxQueue, memory_plan, open,
};
use linerate_record::generate::{FCS_BYTES, TemplatePlan};
use linerate_record::record::Caveat;
use linerate_sys::frames::frame_memory::FrameRegion;

/// Carrier states of the sending and the receiving port; `None`: unknown.
pub(super) type CarrierPair = (Option<bool>, Option<bool>);

/// Open ports of a generator.
pub struct GeneratorPorts {
    /// Queue that sends. Only one thread sends: on several queues, frames of a flow would overtake
    /// each other.
    pub(super) send: AnyPort,
    /// Other queues of the sending port, on which frames may return.
    pub(super) other_queues: Vec<AnyPort>,
    /// Queues of the receiving port; `None`: the queues of the sending port receive.
    pub(super) receive: Option<Vec<AnyPort>>,
    pub(super) reflects: bool,
    pub(super) memory: FrameRegion,
    /// NUMA nodes of the ports and their memory, read once for all runs.
    pub(super) numa_placement: NumaPlacement,
}

/// Port at which frames are received.
#[derive(Clone, Debug)]
pub enum ReceiveSide {
    /// Another port.
    Port(PortUrl),
    /// The sending port: the device sends the frames back.
    SendPort,
    /// None: frames are not received.
    Nowhere,
}

/// Frames in rings and pools of the generator, in addition to those that the ports require.
const EXTRA_FRAMES: u32 = 2048;

impl GeneratorPorts {
    /// Opens the ports.
    ///
    /// # Errors
    /// The error of the port that cannot be opened.
    pub fn open(send: &PortUrl, receive_side: &ReceiveSide) -> Result<Self, FrameRunError> {
        let mut urls = vec![send.clone()];
        if let ReceiveSide::Port(url) = receive_side {
            urls.push(url.clone());
        }
        let mut plan = memory_plan(&urls);
        plan.frames = plan.frames.saturating_add(EXTRA_FRAMES);
        let memory = FrameRegion::new(plan)?;
        let sending = open(send, &memory)?;
        let receive = match receive_side {
            ReceiveSide::Port(url) => Some(open(url, &memory)?),
            ReceiveSide::SendPort | ReceiveSide::Nowhere => None,
        };
        let reflects = matches!(receive_side, ReceiveSide::SendPort);
        Ok(Self::new(memory, sending, receive, reflects))
    }

    /// Takes open ports with one shared memory, with all their queues. The sending port has at
    /// least one queue.
    #[must_use]
    pub fn from_open(
        memory: FrameRegion,
        send: Vec<AnyPort>,
        receive: Option<Vec<AnyPort>>,
    ) -> Self {
        let reflects = receive.is_none();
        Self::new(memory, send, receive, reflects)
    }

    fn new(
        memory: FrameRegion,
        mut sending: Vec<AnyPort>,
        receive: Option<Vec<AnyPort>>,
        reflects: bool,
    ) -> Self {
        let other_queues = sending.split_off(1);
        let send = sending.remove(0);
        let all = std::iter::once(&send)
            .chain(&other_queues)
            .chain(receive.iter().flatten());
        let numa_placement = NumaPlacement::read(
            all.map(|port| port.capabilities.name_and_interface()),
            memory.numa_node(),
        );
        Self {
            send,
            other_queues,
            receive,
            reflects,
            memory,
            numa_placement,
        }
    }

    /// Returns the capabilities of the sending port and of the receiving queues, if these belong to
    /// another port.
    pub fn capabilities(&self) -> impl Iterator<Item = &PortCapabilities> {
        let receive = self.receive.iter().flatten();
        std::iter::once(&self.send.capabilities).chain(receive.map(|port| &port.capabilities))
    }

    pub(super) fn address(capabilities: Option<&PortCapabilities>, number: u8) -> [u8; MAC_BYTES] {
        // Locally administered address (IEEE 802c), for ports without an address.
        capabilities
            .and_then(|port| port.address)
            .unwrap_or([2, 0, 0, 0, 0, number])
    }

    /// Makes the template of a plan, with the addresses of these ports.
    ///
    /// # Errors
    /// [`TemplateError`] as a [`FrameRunError`].
    pub fn template(&self, plan: &TemplatePlan) -> Result<Template, FrameRunError> {
        let source = Self::address(Some(&self.send.capabilities), 1);
        let receive = self.receive.as_ref().and_then(|ports| ports.first());
        let destination = Self::address(receive.map(|port| &port.capabilities), 2);
        let template = Template::new(plan, source, destination)?;
        self.check_size(template.sizes().largest())?;
        Ok(template)
    }

    pub(super) fn check_size(&self, largest: u16) -> Result<(), FrameRunError> {
        for port in self.capabilities() {
            if largest > port.frame_bytes {
                // The longest captured frame already has the largest 16-bit length.
                let with_fcs = |bytes: u16| u32::from(bytes) + u32::from(FCS_BYTES);
                return Err(TemplateError::TooLong {
                    size: with_fcs(largest),
                    port: port.name.clone(),
                    most: with_fcs(port.frame_bytes),
                }
                .into());
            }
        }
        Ok(())
    }

    /// Returns the name of the first port without carrier.
    #[must_use]
    pub fn without_carrier(&self) -> Option<&str> {
        let mut ports = self.capabilities();
        let port = ports.find(|port| port.has_carrier() == Some(false))?;
        Some(&port.name)
    }

    /// Returns the name of the first port whose peer has never connected.
    #[must_use]
    pub fn without_peer(&self) -> Option<&str> {
        let receive = self.receive.iter().flatten();
        let mut ports = std::iter::once(&self.send).chain(receive);
        let port =
            ports.find(|port| port.receive.peer_state() == Some(PeerState::NeverConnected))?;
        Some(&port.capabilities.name)
    }

    /// Returns the caveats about peers that left during a run that began at `started_at` and sent
    /// for `sending_ns`. Each port has at most one, from the queue that recorded the most outages.
    pub(super) fn peer_outages(&self, started_at: Instant, sending_ns: u64) -> Vec<Caveat> {
        let outages_of = |port: &AnyPort| {
            let mut outages = outages_since(&port.receive, started_at);
            // An outage after the end of sending loses no frame.
            outages.retain(|outage| outage.from_ns < sending_ns);
            (port.capabilities.name.clone(), outages)
        };
        let queues = self.receive.iter().flatten().map(outages_of);
        let receive = queues.max_by_key(|(_, outages)| outages.len());
        std::iter::once(outages_of(&self.send))
            .chain(receive)
            .filter_map(|(name, outages)| peer_outage_caveat(&name, &outages, sending_ns))
            .collect()
    }

    pub(super) fn carriers(&self) -> CarrierPair {
        let receive = self.receive.as_ref().and_then(|ports| ports.first());
        let send = self.send.capabilities.has_carrier();
        let receive = receive.map_or(send, |port| port.capabilities.has_carrier());
        (send, receive)
    }

    /// Reads the counters that only the kernel keeps, for the queues that a run uses, while no
    /// thread polls them.
    pub(super) fn refresh(&mut self) -> Result<(), PortError> {
        let mut result = self.send.transmit.refresh();
        let receiving: Vec<_> = match &mut self.receive {
            Some(ports) => ports.iter_mut().map(|port| &mut port.receive).collect(),
            None => std::iter::once(&mut self.send.receive)
                .chain(self.other_queues.iter_mut().map(|port| &mut port.receive))
                .collect(),
        };
        for queue in receiving {
            // After an error the other queues are still refreshed.
            result = result.and(queue.refresh());
        }
        result
    }

    /// Returns the counters of the sending queue and of the receiving queues.
    pub(super) fn queue_counters(&self) -> (Arc<QueueCounters>, Vec<Arc<QueueCounters>>) {
        let counters_of = |port: &AnyPort| Arc::clone(port.receive.counters());
        let receive = match &self.receive {
            Some(ports) => ports.iter().map(counters_of).collect(),
            None => std::iter::once(&self.send)
                .chain(&self.other_queues)
                .map(counters_of)
                .collect(),
        };
        (Arc::clone(self.send.transmit.counters()), receive)
    }

    pub(super) fn counters(&self) -> (QueueTotals, QueueTotals) {
        let (sent, received) = self.queue_counters();
        totals(&sent, &received)
    }
}

/// Returns the present values of the counters: sent, received.
pub(super) fn totals(
    sent: &QueueCounters,
    received: &[Arc<QueueCounters>],
) -> (QueueTotals, QueueTotals) {
    let received = received.iter().map(|counters| counters.read());
    (
        sent.read(),
        received.fold(QueueTotals::default(), QueueTotals::plus),
    )
}
