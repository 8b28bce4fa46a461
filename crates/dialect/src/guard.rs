//! Whether an address that proved nothing may be sent to.
//!
//! Whoever answers datagrams can be used against others: the sender's address may be forged, and the
//! answer goes to whom it names. So a server asks the [`Guard`] before each datagram to an address
//! that has not shown that it receives there:
//!
//! 1. **Never more than came.** Each address has what it sent as credit, in bytes, and what is sent to
//!    it is taken from it. Nothing lifts this but proof. Credit is kept up to [`CREDIT_LIMIT_BYTES`],
//!    so that a long flow that came cannot be followed by a flood that leaves.
//! 2. **Neighbours only.** The address must be in a network that the host is directly connected to (no
//!    router on the way forwards a forged neighbour), or in one that was allowed by name.
//! 3. **At a rate.** Bytes a second to one address, and to all addresses together.
//!
//! A flow of datagrams, which is far more than was asked with, is for addresses that proved themselves, and for
//! those that were allowed one by one: whoever names an address answers for it, and for nobody else. A network
//! that is allowed is answered and sent no flow, or the server would be an amplifier for all of it.
//!
//! An address proves itself by returning something that only it can know: the end of a TCP
//! handshake, a token. Proof holds for [`PROOF_NS`] from the last time; whoever serves a connection
//! says so when it begins and when it ends. Datagrams do not prolong it: they may be forged.
//!
//! Memory is bounded: [`ADDRESSES`] unproved addresses and as many proved ones, the longest silent
//! leaves first. Forgetting is safe: an address that is not known has no credit. Forged addresses
//! cannot push out proved ones, which are kept apart.
//!
//! Times are nanoseconds of one clock that does not go back; no clock is read here.

mod network;
mod recent;

use std::net::IpAddr;

pub use network::{Network, NetworkError};

use recent::Recent;

/// Credit that an address keeps at most: enough for the largest answer any dialect gives at once
/// (a burst of 16 datagrams of 64 KiB).
pub const CREDIT_LIMIT_BYTES: u64 = 1 << 20;

/// Addresses of each kind that are remembered: 16,384 take about 1.5 MiB.
pub const ADDRESSES: usize = 16_384;

/// Time after which an address has to prove itself again, in nanoseconds.
pub const PROOF_NS: u64 = 60_000_000_000;

/// Depth of the rates, as time: what may leave at once is what the rate gives in this time.
pub const RATE_DEPTH_NS: u64 = 100_000_000;

/// How long a [`Leave`] holds, in nanoseconds: after it proof and networks are looked at again.
pub const LEAVE_NS: u64 = 10_000_000;

/// What a [`Leave`] takes of the rates beforehand, as time. A tenth of the time that it holds: those that are
/// not used up keep little from others.
const LEAVE_RATE_NS: u64 = LEAVE_NS / 10;

/// What is allowed. All of it is data from outside: the host knows its networks, options the rest.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Networks that the host is directly connected to, loopback included.
    pub neighbours: Vec<Network>,
    /// Networks that [`OPTION_NETWORK`] allows besides.
    pub allowed: Vec<Network>,
    /// Bytes a second to one unproved address.
    pub address_bytes_per_second: u64,
    /// Bytes a second to all unproved addresses together.
    pub total_bytes_per_second: u64,
}

impl Default for Rules {
    /// Loopback only. One address gets 1 Gb/s at most (125 MB/s), which an honest round-trip test over
    /// datagrams of 64 B reaches at 2 million a second; all together twice as much.
    fn default() -> Self {
        Self {
            neighbours: Network::loopback().to_vec(),
            allowed: Vec::new(),
            address_bytes_per_second: 125_000_000,
            total_bytes_per_second: 250_000_000,
        }
    }
}

/// The option that allows networks beyond those directly connected.
pub const OPTION_NETWORK: &str = "--allow";

/// The option that sets the rates.
pub const OPTION_RATE: &str = "--max-rate";

/// Why nothing is sent to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is reached through a router.
    #[error(
        "{address} is in no directly connected network and its address may be forged: {OPTION_NETWORK} {address} answers it all the same"
    )]
    NotNeighbour {
        /// Whom.
        address: IpAddr,
    },
    /// It sent less than it would get. No option lifts this.
    #[error(
        "{address} would get {wanted} B for {credit} B that it sent, and its address may be forged: it has to prove itself first (a test over TCP, or our own client, does)"
    )]
    MoreThanReceived {
        /// Whom.
        address: IpAddr,
        /// Size of the answer.
        wanted: u64,
        /// What is left of what it sent.
        credit: u64,
    },
    /// It asks for a flow, and has shown nothing of itself but datagrams.
    #[error(
        "{address} asks to be sent a flow of datagrams, and its address may be forged: {OPTION_NETWORK} {address}, which names that address alone, sends it all the same, or it has to prove itself first (a test over TCP, or our own client, does)"
    )]
    Unproved {
        /// Whom.
        address: IpAddr,
    },
    /// It gets as much as it may.
    #[error(
        "{address} asks for more answers a second than one address may have: see {OPTION_RATE}"
    )]
    AddressRate {
        /// Whom.
        address: IpAddr,
    },
    /// All together get as much as they may.
    #[error(
        "all addresses together ask for more answers a second than they may have, {address} too: see {OPTION_RATE}"
    )]
    TotalRate {
        /// Whom.
        address: IpAddr,
    },
}

impl Refusal {
    /// The option that would have allowed it; `None` where only proof does.
    #[must_use]
    pub fn option(&self) -> Option<&'static str> {
        match self {
            Self::NotNeighbour { .. } | Self::Unproved { .. } => Some(OPTION_NETWORK),
            Self::MoreThanReceived { .. } => None,
            Self::AddressRate { .. } | Self::TotalRate { .. } => Some(OPTION_RATE),
        }
    }
}

/// What is known of an unproved address.
#[derive(Clone, Copy, Debug)]
struct Stranger {
    credit_bytes: u64,
    rate: Bucket,
}

/// Decides, and remembers whom it decided about.
///
/// ```
/// use linerate_dialect::guard::{Guard, Refusal, Rules};
///
/// let mut guard = Guard::new(Rules::default());
/// let peer = "127.0.0.1".parse().unwrap();
/// guard.received(0, peer, 100);
/// assert_eq!(guard.send(0, peer, 60), Ok(()));
/// assert!(matches!(guard.send(0, peer, 60), Err(Refusal::MoreThanReceived { credit: 40, .. })));
/// guard.prove(0, peer);
/// assert_eq!(guard.send(0, peer, 1_000_000), Ok(()));
/// ```
#[derive(Clone, Debug)]
pub struct Guard {
    rules: Rules,
    strangers: Recent<Stranger>,
    /// When each proved address proved itself last.
    proved: Recent<u64>,
    total: Bucket,
}

impl Guard {
    /// Takes all its memory now.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self::with_addresses(rules, ADDRESSES)
    }

    /// The same for another number of addresses of each kind.
    #[must_use]
    pub fn with_addresses(rules: Rules, addresses: usize) -> Self {
        Self {
            strangers: Recent::new(addresses),
            proved: Recent::new(addresses),
            total: Bucket::full(rules.total_bytes_per_second),
            rules,
        }
    }

    /// So many bytes of payload came from an address.
    pub fn received(&mut self, now_ns: u64, from: IpAddr, bytes: u64) {
        let from = from.to_canonical();
        if self.is_proved(now_ns, from) {
            return;
        }
        let rate = self.rules.address_bytes_per_second;
        let stranger = self.strangers.entry(from, || Stranger {
            credit_bytes: 0,
            rate: Bucket::full(rate),
        });
        stranger.credit_bytes = stranger
            .credit_bytes
            .saturating_add(bytes)
            .min(CREDIT_LIMIT_BYTES);
    }

    /// An address returned what only it can know.
    pub fn prove(&mut self, now_ns: u64, address: IpAddr) {
        let address = address.to_canonical();
        self.strangers.remove(address);
        *self.proved.entry(address, || now_ns) = now_ns;
    }

    /// Whether an address has proved itself, not too long ago.
    pub fn is_proved(&mut self, now_ns: u64, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let Some(&mut proved_ns) = self.proved.touch(address) else {
            return false;
        };
        let holds = now_ns.saturating_sub(proved_ns) <= PROOF_NS;
        if !holds {
            self.proved.remove(address);
        }
        holds
    }

    /// Whether an address may be sent a flow of datagrams: it has proved itself, or was allowed by itself.
    pub fn may_have_flow(&mut self, now_ns: u64, address: IpAddr) -> bool {
        let mut allowed = self.rules.allowed.iter();
        allowed.any(|network| network.is_one() && network.contains(address))
            || self.is_proved(now_ns, address)
    }

    /// Whether a datagram with so many bytes of payload may be sent to an address; if so, it counts
    /// as sent.
    ///
    /// # Errors
    /// The first rule that forbids it; nothing is taken from any account then.
    pub fn send(&mut self, now_ns: u64, to: IpAddr, bytes: u64) -> Result<(), Refusal> {
        let address = to.to_canonical();
        if self.is_proved(now_ns, address) {
            return Ok(());
        }
        if !self.may_know(address) {
            return Err(Refusal::NotNeighbour { address });
        }
        let Some(stranger) = self.strangers.touch(address) else {
            return Err(Refusal::MoreThanReceived {
                address,
                wanted: bytes,
                credit: 0,
            });
        };
        if stranger.credit_bytes < bytes {
            return Err(Refusal::MoreThanReceived {
                address,
                wanted: bytes,
                credit: stranger.credit_bytes,
            });
        }
        let rate = self.rules.address_bytes_per_second;
        if !stranger.rate.holds(now_ns, rate, bytes) {
            return Err(Refusal::AddressRate { address });
        }
        let total_rate = self.rules.total_bytes_per_second;
        if !self.total.holds(now_ns, total_rate, bytes) {
            return Err(Refusal::TotalRate { address });
        }
        stranger.rate.take(bytes);
        self.total.take(bytes);
        stranger.credit_bytes -= bytes;
        Ok(())
    }

    /// The same for a datagram that answers so many bytes more, with leave for those that follow it.
    ///
    /// # Errors
    /// The first rule that forbids it.
    pub fn leave(
        &mut self,
        now_ns: u64,
        to: IpAddr,
        came: u64,
        answer: u64,
    ) -> Result<Leave, Refusal> {
        self.received(now_ns, to, came);
        self.send(now_ns, to, answer)?;
        let until_ns = now_ns.saturating_add(LEAVE_NS);
        let address = to.to_canonical();
        let leave = Leave {
            until_ns,
            ..Leave::default()
        };
        let Some(stranger) = self.strangers.touch(address) else {
            // It is proved, and has no account.
            return Ok(Leave {
                proved: true,
                ..leave
            });
        };
        let rate = self.rules.address_bytes_per_second;
        let more = u128::from(rate) * u128::from(LEAVE_RATE_NS) / Bucket::NANO;
        let more = u64::try_from(more).unwrap_or(u64::MAX);
        let more = more.min(stranger.rate.bytes()).min(self.total.bytes());
        stranger.rate.take(more);
        self.total.take(more);
        Ok(Leave {
            bytes: more,
            ..leave
        })
    }

    /// The host's networks have changed.
    pub fn set_neighbours(&mut self, neighbours: Vec<Network>) {
        self.rules.neighbours = neighbours;
    }

    /// Whether the address is in a network whose unproved addresses are answered.
    #[must_use]
    pub fn may_know(&self, address: IpAddr) -> bool {
        let mut networks = self.rules.neighbours.iter().chain(&self.rules.allowed);
        networks.any(|network| network.contains(address))
    }

    /// Addresses that are remembered now: unproved and proved ones.
    #[must_use]
    pub fn remembered(&self) -> (usize, usize) {
        (self.strangers.len(), self.proved.len())
    }
}

/// Leave to send to one address for a moment, so that the [`Guard`] need not be asked for each datagram.
///
/// What it may spend was taken from the rates before; never more than came is its own to see to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Leave {
    /// What came since the guard was asked, and was not answered.
    came: u64,
    /// What may leave.
    bytes: u64,
    until_ns: u64,
    proved: bool,
}

impl Leave {
    /// Whether an answer may be sent to what came, so many bytes more; if not, the guard is to be asked, with
    /// [`Self::untold`].
    #[inline]
    pub fn take(&mut self, now_ns: u64, came: u64, answer: u64) -> bool {
        self.came = self.came.saturating_add(came);
        if now_ns >= self.until_ns {
            return false;
        }
        if self.proved {
            // It is answered, and no credit for the time after.
            self.came = 0;
            return true;
        }
        let holds = answer <= self.came && answer <= self.bytes;
        if holds {
            self.came -= answer;
            self.bytes -= answer;
        }
        holds
    }

    /// What the guard has to be told that came.
    pub fn untold(&mut self) -> u64 {
        std::mem::take(&mut self.came)
    }
}

/// A token bucket in bytes, [`RATE_DEPTH_NS`] deep.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Bytes times 10^9, so that no part of a byte is lost between two looks.
    level: u128,
    filled_ns: u64,
}

impl Bucket {
    const NANO: u128 = 1_000_000_000;

    /// What it can hold: at least the largest datagram, or a low rate would never let one pass.
    fn depth(rate: u64) -> u128 {
        (u128::from(rate) * u128::from(RATE_DEPTH_NS)).max(65_536 * Self::NANO)
    }

    fn full(rate: u64) -> Self {
        Self {
            level: Self::depth(rate),
            filled_ns: 0,
        }
    }

    /// Fills it up to now, and says whether it holds so many bytes. A rate of 0 holds none.
    fn holds(&mut self, now_ns: u64, rate: u64, bytes: u64) -> bool {
        let passed = now_ns.saturating_sub(self.filled_ns);
        self.filled_ns = self.filled_ns.max(now_ns);
        let filled = self.level + u128::from(rate) * u128::from(passed);
        self.level = filled.min(Self::depth(rate));
        rate > 0 && self.level >= u128::from(bytes) * Self::NANO
    }

    /// What it held when it was filled last.
    fn bytes(&self) -> u64 {
        u64::try_from(self.level / Self::NANO).unwrap_or(u64::MAX)
    }

    /// Takes what it holds.
    fn take(&mut self, bytes: u64) {
        self.level = self.level.saturating_sub(u128::from(bytes) * Self::NANO);
    }
}
