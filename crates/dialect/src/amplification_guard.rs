//! Anti-amplification limit for datagrams to unvalidated addresses.
//!
//! A server that answers datagrams can be misused for reflection: the source address may be forged,
//! and the reply goes to the forged address. A server therefore calls the [`Guard`] before each
//! datagram to an address that is not validated (RFC 9000 section 8):
//!
//! 1. **Never more bytes than received.** Each address has the bytes that it sent as credit, and
//!    replies consume the credit. No option lifts this rule, only validation does. Credit is kept
//!    up to [`CREDIT_LIMIT_BYTES`], so that a long received flow cannot be followed by a flood of
//!    replies.
//! 2. **Neighbours only.** The address must be in a directly connected network (no router forwards
//!    a forged address of such a network to this host), or in one that an option allows.
//! 3. **Rate limits.** Bytes per second to one address, and to all addresses together.
//!
//! A flow of datagrams is far larger than its request. It is sent only to validated addresses, and
//! to addresses that an option allows one by one. A client in an allowed network gets replies but
//! no flow; otherwise the server would be an amplifier for the whole network.
//!
//! An address is validated when it returns a value that only it can have received: the end of a TCP
//! handshake, or a token. The validation expires [`PROOF_NS`] after the last one. The server
//! reports it when a connection begins and when it ends. Datagrams do not extend it: they may be
//! forged.
//!
//! Memory is bounded: [`ADDRESSES`] unvalidated addresses and as many validated ones; the one that
//! was silent for the longest time is evicted first. Eviction is safe: an unknown address has no
//! credit. Forged addresses cannot evict validated ones, which are in a table of their own.
//!
//! Times are nanoseconds of one monotonic clock, which the caller reads.

mod ip_network;
mod lru_map;

use std::net::IpAddr;

pub use ip_network::{Network, NetworkError};

use lru_map::Recent;

/// Maximum credit of an address: enough for the largest reply of any protocol (a burst of 16
/// datagrams of 64 KiB).
pub const CREDIT_LIMIT_BYTES: u64 = 1 << 20;

/// Maximum number of addresses in each table: 16,384 take about 1.5 MiB.
pub const ADDRESSES: usize = 16_384;

/// Time after which a validation expires, in nanoseconds.
pub const PROOF_NS: u64 = 60_000_000_000;

/// Depth of the rate limits as a time: the burst is the amount that the rate allows in this time.
pub const RATE_DEPTH_NS: u64 = 100_000_000;

/// Lifetime of a [`Leave`] in nanoseconds; after it the guard checks validation and networks again.
pub const LEAVE_NS: u64 = 10_000_000;

/// Share of the rate limits that a [`Leave`] reserves, as a time. It is a tenth of the lifetime, so
/// that unused credit takes little from other addresses.
const LEAVE_RATE_NS: u64 = LEAVE_NS / 10;

/// Rules of the [`Guard`]: networks of the host and limits from options.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Networks that the host is directly connected to, including loopback.
    pub neighbours: Vec<Network>,
    /// Further networks, allowed by [`OPTION_NETWORK`].
    pub allowed: Vec<Network>,
    /// Bytes per second to one unvalidated address.
    pub address_bytes_per_second: u64,
    /// Bytes per second to all unvalidated addresses together.
    pub total_bytes_per_second: u64,
}

impl Default for Rules {
    /// Returns rules that allow loopback only. The limit per address is 1 Gb/s (125 MB/s), which a
    /// round-trip test with datagrams of 64 B reaches at 2 million per second; the total is twice
    /// that.
    fn default() -> Self {
        Self {
            neighbours: Network::loopback().to_vec(),
            allowed: Vec::new(),
            address_bytes_per_second: 125_000_000,
            total_bytes_per_second: 250_000_000,
        }
    }
}

/// Option that allows networks other than the directly connected ones.
pub const OPTION_NETWORK: &str = "--allow";

/// Option that sets the rate limits.
pub const OPTION_RATE: &str = "--max-rate";

/// Reason why nothing may be sent to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The address is reached through a router.
    #[error(
        "{address} is not in a directly connected network and its address may be forged: allow it with {OPTION_NETWORK} {address}"
    )]
    NotNeighbour {
        /// Address of the client.
        address: IpAddr,
    },
    /// The address sent fewer bytes than it would receive. No option lifts this.
    #[error(
        "{address} would receive {wanted} B for {credit} B that it sent, and its address may be forged: validate it first with a test over TCP, or use linerate's own client"
    )]
    MoreThanReceived {
        /// Address of the client.
        address: IpAddr,
        /// Size of the reply in bytes.
        wanted: u64,
        /// Remaining credit in bytes.
        credit: u64,
    },
    /// The address requests a flow and is not validated.
    #[error(
        "{address} requests a flow of datagrams, and its address may be forged: allow this single address with {OPTION_NETWORK} {address}, or validate it first with a test over TCP or with linerate's own client"
    )]
    Unproved {
        /// Address of the client.
        address: IpAddr,
    },
    /// The rate limit of the address is reached.
    #[error(
        "{address} requests more replies per second than one address may receive: raise {OPTION_RATE}"
    )]
    AddressRate {
        /// Address of the client.
        address: IpAddr,
    },
    /// The rate limit of all addresses together is reached.
    #[error(
        "all addresses together, {address} among them, request more replies per second than allowed: raise {OPTION_RATE}"
    )]
    TotalRate {
        /// Address of the client.
        address: IpAddr,
    },
}

impl Refusal {
    /// Returns the option that would allow it; `None` if only validation does.
    #[must_use]
    pub fn option(&self) -> Option<&'static str> {
        match self {
            Self::NotNeighbour { .. } | Self::Unproved { .. } => Some(OPTION_NETWORK),
            Self::MoreThanReceived { .. } => None,
            Self::AddressRate { .. } | Self::TotalRate { .. } => Some(OPTION_RATE),
        }
    }
}

/// Credit and rate limit of an unvalidated address.
#[derive(Clone, Copy, Debug)]
struct Stranger {
    credit_bytes: u64,
    rate: Bucket,
}

/// Decides whether datagrams may be sent to unvalidated addresses, and counts their credit.
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
    /// Time of the last validation of each validated address.
    proved: Recent<u64>,
    total: Bucket,
}

impl Guard {
    /// Creates a guard for [`ADDRESSES`] addresses; allocates all its memory.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self::with_addresses(rules, ADDRESSES)
    }

    /// Creates a guard for another number of addresses of each kind.
    #[must_use]
    pub fn with_addresses(rules: Rules, addresses: usize) -> Self {
        Self {
            strangers: Recent::new(addresses),
            proved: Recent::new(addresses),
            total: Bucket::full(rules.total_bytes_per_second),
            rules,
        }
    }

    /// Adds received payload bytes to the credit of an address.
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

    /// Marks an address as validated.
    pub fn prove(&mut self, now_ns: u64, address: IpAddr) {
        let address = address.to_canonical();
        self.strangers.remove(address);
        *self.proved.entry(address, || now_ns) = now_ns;
    }

    /// Returns whether the validation of an address has not expired.
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

    /// Returns whether an address may receive a flow of datagrams: it is validated, or an option
    /// allows exactly this address.
    pub fn may_have_flow(&mut self, now_ns: u64, address: IpAddr) -> bool {
        let mut allowed = self.rules.allowed.iter();
        allowed.any(|network| network.is_one() && network.contains(address))
            || self.is_proved(now_ns, address)
    }

    /// Decides whether a datagram with `bytes` of payload may be sent to an address; if so, counts
    /// it as sent.
    ///
    /// # Errors
    /// The first rule that forbids it; no credit is consumed then.
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

    /// Counts `came` received bytes, decides about a reply of `answer` bytes, and reserves credit
    /// for the datagrams that follow.
    ///
    /// # Errors
    /// The first rule that forbids the reply.
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
            // A validated address has no credit to count.
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

    /// Replaces the directly connected networks after a change.
    pub fn set_neighbours(&mut self, neighbours: Vec<Network>) {
        self.rules.neighbours = neighbours;
    }

    /// Returns whether unvalidated addresses of the network of this address get replies.
    #[must_use]
    pub fn may_know(&self, address: IpAddr) -> bool {
        let mut networks = self.rules.neighbours.iter().chain(&self.rules.allowed);
        networks.any(|network| network.contains(address))
    }

    /// Returns the number of unvalidated and of validated addresses in the tables.
    #[must_use]
    pub fn remembered(&self) -> (usize, usize) {
        (self.strangers.len(), self.proved.len())
    }
}

/// Credit to send to one address for a short time without a call of the [`Guard`] per datagram.
///
/// The bytes were taken from the rate limits in advance. The rule of never more than received is
/// checked here.
#[derive(Clone, Copy, Debug, Default)]
pub struct Leave {
    /// Bytes received since the last call of the guard and not answered.
    came: u64,
    /// Bytes that may still be sent.
    bytes: u64,
    until_ns: u64,
    proved: bool,
}

impl Leave {
    /// Counts `came` received bytes and returns whether a reply of `answer` bytes may be sent. If
    /// not, call the guard, and pass it [`Self::untold`].
    #[inline]
    pub fn take(&mut self, now_ns: u64, came: u64, answer: u64) -> bool {
        self.came = self.came.saturating_add(came);
        if now_ns >= self.until_ns {
            return false;
        }
        if self.proved {
            // No credit is kept for the time after the validation expires.
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

    /// Takes the received bytes that the guard has not counted yet.
    pub fn untold(&mut self) -> u64 {
        std::mem::take(&mut self.came)
    }
}

/// A token bucket in bytes, [`RATE_DEPTH_NS`] deep.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Bytes times 10^9, so that no fraction of a byte is lost between two refills.
    level: u128,
    filled_ns: u64,
}

impl Bucket {
    const NANO: u128 = 1_000_000_000;

    /// Returns the capacity: at least the largest datagram, or a low rate would never allow one.
    fn depth(rate: u64) -> u128 {
        (u128::from(rate) * u128::from(RATE_DEPTH_NS)).max(65_536 * Self::NANO)
    }

    fn full(rate: u64) -> Self {
        Self {
            level: Self::depth(rate),
            filled_ns: 0,
        }
    }

    /// Refills the bucket and returns whether it holds `bytes`. A rate of 0 holds none.
    fn holds(&mut self, now_ns: u64, rate: u64, bytes: u64) -> bool {
        let passed = now_ns.saturating_sub(self.filled_ns);
        self.filled_ns = self.filled_ns.max(now_ns);
        let filled = self.level + u128::from(rate) * u128::from(passed);
        self.level = filled.min(Self::depth(rate));
        rate > 0 && self.level >= u128::from(bytes) * Self::NANO
    }

    /// Returns the bytes in the bucket at the last refill.
    fn bytes(&self) -> u64 {
        u64::try_from(self.level / Self::NANO).unwrap_or(u64::MAX)
    }

    fn take(&mut self, bytes: u64) {
        self.level = self.level.saturating_sub(u128::from(bytes) * Self::NANO);
    }
}
