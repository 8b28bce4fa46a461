//! The ports of a generator, over one memory.

use std::sync::Arc;
use std::time::Instant;

use linerate_metric::generate::{FCS_BYTES, TemplatePlan};
use linerate_metric::record::Doubt;
use linerate_port::{
    AnyPort, Capabilities, Memory, Partner, PortError, PortUrl, QueueCounters, QueueTotals,
    Receive, Transmit, memory_plan, open,
};

use super::template::{MAC_BYTES, Template, TemplateError};
use crate::MeasureError;
use crate::forward::{absences_since, peer_left};
use crate::numa::Seats;

/// Carriers of the sending and the receiving port.
pub(super) type Carriers = (Option<bool>, Option<bool>);

/// Ports of a generator, open.
pub struct Ports {
    /// The queue that frames leave by: one thread sends, and on several queues those of a flow would overtake each
    /// other.
    pub(super) send: AnyPort,
    /// The sending port's other queues, where frames come back as well.
    pub(super) others: Vec<AnyPort>,
    /// Where frames come back; the sending port's own queues where none is named.
    pub(super) receive: Option<Vec<AnyPort>>,
    pub(super) reflects: bool,
    pub(super) memory: Memory,
    /// Where they and their memory lie, asked once for all runs over them.
    pub(super) seats: Seats,
}

/// Where frames are to arrive.
#[derive(Clone, Debug)]
pub enum Arrival {
    /// At this port.
    At(PortUrl),
    /// At the sending port: the device sends them back.
    Back,
    /// Nowhere.
    Nowhere,
}

/// Frames that rings and pools of a generator hold beside those that ports ask for.
const IN_HAND: u32 = 2048;

impl Ports {
    /// Opens them.
    ///
    /// # Errors
    /// What a port says.
    pub fn open(send: &PortUrl, arrival: &Arrival) -> Result<Self, MeasureError> {
        let mut urls = vec![send.clone()];
        if let Arrival::At(url) = arrival {
            urls.push(url.clone());
        }
        let mut plan = memory_plan(&urls);
        plan.frames = plan.frames.saturating_add(IN_HAND);
        let memory = Memory::new(plan)?;
        let sending = open(send, &memory)?;
        let receive = match arrival {
            Arrival::At(url) => Some(open(url, &memory)?),
            Arrival::Back | Arrival::Nowhere => None,
        };
        let reflects = matches!(arrival, Arrival::Back);
        Ok(Self::over(memory, sending, receive, reflects))
    }

    /// Takes ports that are open over one memory, with all of their queues: the sending one has one at least.
    #[must_use]
    pub fn of(memory: Memory, send: Vec<AnyPort>, receive: Option<Vec<AnyPort>>) -> Self {
        let reflects = receive.is_none();
        Self::over(memory, send, receive, reflects)
    }

    fn over(
        memory: Memory,
        mut sending: Vec<AnyPort>,
        receive: Option<Vec<AnyPort>>,
        reflects: bool,
    ) -> Self {
        let others = sending.split_off(1);
        let send = sending.remove(0);
        let all = std::iter::once(&send)
            .chain(&others)
            .chain(receive.iter().flatten());
        let seats = Seats::of(all.map(|port| &port.capabilities), &memory);
        Self {
            send,
            others,
            receive,
            reflects,
            memory,
            seats,
        }
    }

    /// The sending port, then the receiving one where that is another.
    pub fn capabilities(&self) -> impl Iterator<Item = &Capabilities> {
        let receive = self.receive.iter().flatten();
        std::iter::once(&self.send.capabilities).chain(receive.map(|port| &port.capabilities))
    }

    pub(super) fn address(capabilities: Option<&Capabilities>, number: u8) -> [u8; MAC_BYTES] {
        // Locally administered (IEEE 802c), for ports that have none.
        capabilities
            .and_then(|port| port.address)
            .unwrap_or([2, 0, 0, 0, 0, number])
    }

    /// Makes the frames of a plan between these ports.
    ///
    /// # Errors
    /// [`TemplateError`] as a [`MeasureError`].
    pub fn template(&self, plan: &TemplatePlan) -> Result<Template, MeasureError> {
        let source = Self::address(Some(&self.send.capabilities), 1);
        let receive = self.receive.as_ref().and_then(|ports| ports.first());
        let destination = Self::address(receive.map(|port| &port.capabilities), 2);
        let template = Template::new(plan, source, destination)?;
        self.check_size(template.sizes().largest())?;
        Ok(template)
    }

    pub(super) fn check_size(&self, largest: u16) -> Result<(), MeasureError> {
        for port in self.capabilities() {
            if largest > port.frame_bytes {
                // The longest captured frame has all the bytes that 16 bits count already.
                let with_check = |bytes: u16| u32::from(bytes) + u32::from(FCS_BYTES);
                return Err(TemplateError::TooLong {
                    size: with_check(largest),
                    port: port.name.clone(),
                    most: with_check(port.frame_bytes),
                }
                .into());
            }
        }
        Ok(())
    }

    /// The first port that has no carrier at this moment.
    #[must_use]
    pub fn without_carrier(&self) -> Option<&str> {
        let mut ports = self.capabilities();
        let port = ports.find(|port| port.has_carrier() == Some(false))?;
        Some(&port.name)
    }

    /// The first port at whose other end nobody ever was.
    #[must_use]
    pub fn without_peer(&self) -> Option<&str> {
        let receive = self.receive.iter().flatten();
        let mut ports = std::iter::once(&self.send).chain(receive);
        let port = ports.find(|port| port.receive.partner() == Some(Partner::Awaited))?;
        Some(&port.capabilities.name)
    }

    /// That processes at other ends went away in a run that began then and sent for so long: one of each port, by the
    /// queue that has seen most of it.
    pub(super) fn left(&self, began: Instant, sending_ns: u64) -> Vec<Doubt> {
        let seen = |port: &AnyPort| {
            let mut absences = absences_since(&port.receive, began);
            // Whoever goes once all has left takes nothing with it.
            absences.retain(|absence| absence.from_ns < sending_ns);
            (port.capabilities.name.clone(), absences)
        };
        let queues = self.receive.iter().flatten().map(seen);
        let receive = queues.max_by_key(|(_, absences)| absences.len());
        std::iter::once(seen(&self.send))
            .chain(receive)
            .filter_map(|(name, absences)| peer_left(&name, &absences, sending_ns))
            .collect()
    }

    pub(super) fn carriers(&self) -> Carriers {
        let receive = self.receive.as_ref().and_then(|ports| ports.first());
        let send = self.send.capabilities.has_carrier();
        let receive = receive.map_or(send, |port| port.capabilities.has_carrier());
        (send, receive)
    }

    /// Takes over what only the kernel counts, while nobody polls: of the queues that a run reads.
    pub(super) fn refresh(&mut self) -> Result<(), PortError> {
        let mut first = self.send.transmit.refresh();
        let receiving: Vec<_> = match &mut self.receive {
            Some(ports) => ports.iter_mut().map(|port| &mut port.receive).collect(),
            None => std::iter::once(&mut self.send.receive)
                .chain(self.others.iter_mut().map(|port| &mut port.receive))
                .collect(),
        };
        for queue in receiving {
            // Whatever one says, the others are asked too.
            first = first.and(queue.refresh());
        }
        first
    }

    /// Counters of the queue that sends, and of those at which frames arrive.
    pub(super) fn queue_counters(&self) -> (Arc<QueueCounters>, Vec<Arc<QueueCounters>>) {
        let of = |port: &AnyPort| Arc::clone(port.receive.counters());
        let receive = match &self.receive {
            Some(ports) => ports.iter().map(of).collect(),
            None => std::iter::once(&self.send)
                .chain(&self.others)
                .map(of)
                .collect(),
        };
        (Arc::clone(self.send.transmit.counters()), receive)
    }

    pub(super) fn counters(&self) -> (QueueTotals, QueueTotals) {
        let (sent, received) = self.queue_counters();
        totals(&sent, &received)
    }
}

/// What they stand at: sent, received.
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

impl From<TemplateError> for MeasureError {
    fn from(error: TemplateError) -> Self {
        let text = error.to_string();
        let (situation, next_step) = text.split_once(": ").unwrap_or((text.as_str(), ""));
        Self::Generator {
            object: "template".to_owned(),
            situation: situation.to_owned(),
            next_step: next_step.to_owned(),
        }
    }
}
