//! Anti-amplification limit for datagrams to unvalidated addresses.
//!
//! A server that answers datagrams can be misused for reflection: the source address may be forged,
//! and the reply goes to the forged address. A server therefore calls the [`AmplificationGuard`]
//! before each datagram to an address that is not validated (RFC 9000 section 8):
//!
//! 1. **Never more bytes than received.** Each address has the bytes that it sent as credit, and
//!    replies consume the credit. No option lifts this rule, only validation does. Credit is kept
//!    up to [`CREDIT_LIMIT_BYTES`], so that a long received flow cannot be followed by a flood of
//!    replies.
//! 2. **Neighbours only.** The address must be in a directly connected network (no router forwards
//!    a forged address of such a network to this host), or in one that an option allows.
//! 3. **Rate limits.** Bytes per second to one address, and to all addresses together.
//!
//! A sender that returns replies may be a service that replies to every datagram, and a forged
//! datagram then keeps both busy for ever. After a number of them it is checked
//! ([`AmplificationGuard::count_returned`]).
//!
//! A flow of datagrams is far larger than its request. It is sent only to validated addresses, and
//! to addresses that an option allows one by one. A client in an allowed network gets replies but
//! no flow; otherwise the server would be an amplifier for the whole network.
//!
//! An address is validated when it returns a value that only it can have received: the end of a TCP
//! handshake, or a token. The validation expires [`VALIDATION_LIFETIME_NS`] after the last one. The
//! server reports it when a connection begins and when it ends. Datagrams do not extend it: they
//! may be forged.
//!
//! Memory is bounded: [`ADDRESS_LIMIT`] unvalidated addresses and as many validated ones; the one
//! that was silent for the longest time is evicted first. Eviction is safe: an unknown address has
//! no credit. Forged addresses cannot evict validated ones, which are in a table of their own.
//!
//! Times are nanoseconds of one monotonic clock, which the caller reads.

mod ip_network;
mod lru_map;
mod returned_replies;

use std::net::IpAddr;

use lru_map::LruMap;

pub use ip_network::{IpNetwork, IpNetworkError};
pub use returned_replies::RecentReplies;

/// Maximum credit of an address: enough for the largest reply of any protocol (a burst of 16
/// datagrams of 64 KiB).
pub const CREDIT_LIMIT_BYTES: u64 = 1 << 20;

/// Maximum number of addresses in each table: 16,384 take about 1.5 MiB in each.
pub const ADDRESS_LIMIT: usize = 16_384;

/// Time after which a validation expires, in nanoseconds.
pub const VALIDATION_LIFETIME_NS: u64 = 60_000_000_000;

/// Depth of the rate limits as a time: the burst is the amount that the rate allows in this time.
pub const RATE_DEPTH_NS: u64 = 100_000_000;

/// Lifetime of a [`SendCredit`] in nanoseconds; after it the guard checks validation and networks
/// again.
pub const CREDIT_LIFETIME_NS: u64 = 10_000_000;

/// Share of the rate limits that a [`SendCredit`] reserves, as a time. It is a tenth of the
/// lifetime, so that unused credit takes little from other addresses.
const CREDIT_RESERVATION_NS: u64 = CREDIT_LIFETIME_NS / 10;

/// Replies to datagrams of one address that repeat an earlier reply, before the address is checked.
/// A loop of one datagram between neighbours has had as many after 50 ms.
pub const RETURNED_REPLY_LIMIT: u32 = 1_000;

/// Time without such datagrams after which an address starts again, in nanoseconds.
pub const RETURNED_REPLY_PAUSE_NS: u64 = 60_000_000_000;

/// Time in which a service replies to a check, in nanoseconds.
pub const CHECK_TIMEOUT_NS: u64 = 1_000_000_000;

/// Rules of the [`AmplificationGuard`]: networks of the host and limits from options.
#[derive(Clone, Debug)]
pub struct GuardRules {
    /// Networks that the host is directly connected to, including loopback.
    pub neighbours: Vec<IpNetwork>,
    /// Further networks, allowed by [`OPTION_NETWORK`].
    pub allowed: Vec<IpNetwork>,
    /// Bytes per second to one unvalidated address.
    pub address_bytes_per_second: u64,
    /// Bytes per second to all unvalidated addresses together.
    pub total_bytes_per_second: u64,
}

impl Default for GuardRules {
    /// Returns rules that allow loopback only. The limit per address is 1 Gb/s (125 MB/s), which a
    /// round-trip test with datagrams of 64 B reaches at 2 million per second; the total is twice
    /// that.
    fn default() -> Self {
        Self {
            neighbours: IpNetwork::loopback().to_vec(),
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
pub enum SendRejection {
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
        "{address} would receive {response_bytes} B for {credit_bytes} B that it sent, and its address may be forged: validate it first with a test over TCP, or use linerate's own client"
    )]
    MoreThanReceived {
        /// Address of the client.
        address: IpAddr,
        /// Size of the reply in bytes.
        response_bytes: u64,
        /// Remaining credit in bytes.
        credit_bytes: u64,
    },
    /// The address requests a flow and is not validated.
    #[error(
        "{address} requests a flow of datagrams, and its address may be forged: allow this single address with {OPTION_NETWORK} {address}, or validate it first with a test over TCP or with linerate's own client"
    )]
    Unvalidated {
        /// Address of the client.
        address: IpAddr,
    },
    /// The address has a service that replies to every datagram.
    #[error(
        "{address} returned {RETURNED_REPLY_LIMIT} replies unchanged and replied to a datagram of another port: a service there replies to every datagram, in an endless loop; no option allows this"
    )]
    ReturnedReplies {
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

impl SendRejection {
    /// Returns the option that would allow it; `None` if only validation does.
    #[must_use]
    pub fn option(&self) -> Option<&'static str> {
        match self {
            Self::NotNeighbour { .. } | Self::Unvalidated { .. } => Some(OPTION_NETWORK),
            Self::MoreThanReceived { .. } | Self::ReturnedReplies { .. } => None,
            Self::AddressRate { .. } | Self::TotalRate { .. } => Some(OPTION_RATE),
        }
    }
}

/// Credit and rate limit of an unvalidated address.
#[derive(Clone, Copy, Debug)]
struct UnvalidatedAddress {
    credit_bytes: u64,
    bucket: ByteBucket,
}

/// What happens to the reply to a datagram that repeats an earlier reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnedReply {
    /// It is sent.
    Send,
    /// It is sent, and then one datagram of another port, to the same address and port. A service
    /// replies to that: call [`AmplificationGuard::mark_service`] for any datagram that arrives at
    /// that port within [`CHECK_TIMEOUT_NS`]. The connected socket of a client does not receive it.
    SendAndCheck,
    /// The sender is a service: nothing is sent.
    Reject,
}

/// Returned replies of an address.
#[derive(Clone, Copy, Debug)]
struct ReturnedReplies {
    count: u32,
    /// Count at which the address is checked.
    limit: u32,
    /// Time of the check whose reply is awaited.
    checked_ns: Option<u64>,
    is_service: bool,
    last_ns: u64,
}

impl ReturnedReplies {
    fn new(now_ns: u64) -> Self {
        Self {
            count: 0,
            limit: RETURNED_REPLY_LIMIT,
            checked_ns: None,
            is_service: false,
            last_ns: now_ns,
        }
    }
}

/// Decides whether datagrams may be sent to unvalidated addresses, and counts their credit.
///
/// ```
/// use linerate_protocol::amplification_guard::{AmplificationGuard, SendRejection, GuardRules};
///
/// let mut guard = AmplificationGuard::new(GuardRules::default());
/// let peer = "127.0.0.1".parse().unwrap();
/// guard.add_received(0, peer, 100);
/// assert_eq!(guard.authorize_send(0, peer, 60), Ok(()));
/// assert!(matches!(guard.authorize_send(0, peer, 60), Err(SendRejection::MoreThanReceived { credit_bytes: 40, .. })));
/// guard.validate(0, peer);
/// assert_eq!(guard.authorize_send(0, peer, 1_000_000), Ok(()));
/// ```
#[derive(Clone, Debug)]
pub struct AmplificationGuard {
    rules: GuardRules,
    unvalidated: LruMap<UnvalidatedAddress>,
    /// Time of the last validation of each validated address.
    validated: LruMap<u64>,
    /// Addresses that return replies. Validation changes nothing: it shows that a host is there, not
    /// that its port has a client.
    returned: LruMap<ReturnedReplies>,
    total_bucket: ByteBucket,
}

impl AmplificationGuard {
    /// Creates a guard for [`ADDRESS_LIMIT`] addresses; allocates all its memory.
    #[must_use]
    pub fn new(rules: GuardRules) -> Self {
        Self::with_addresses(rules, ADDRESS_LIMIT)
    }

    /// Creates a guard for another number of addresses of each kind.
    #[must_use]
    pub fn with_addresses(rules: GuardRules, addresses: usize) -> Self {
        Self {
            unvalidated: LruMap::new(addresses),
            validated: LruMap::new(addresses),
            returned: LruMap::new(addresses),
            total_bucket: ByteBucket::new_full(rules.total_bytes_per_second),
            rules,
        }
    }

    /// Adds received payload bytes to the credit of an address.
    pub fn add_received(&mut self, now_ns: u64, from: IpAddr, bytes: u64) {
        let from = from.to_canonical();
        if self.is_validated(now_ns, from) {
            return;
        }
        let rate = self.rules.address_bytes_per_second;
        let entry = self
            .unvalidated
            .get_or_insert_with(from, || UnvalidatedAddress {
                credit_bytes: 0,
                bucket: ByteBucket::new_full(rate),
            });
        entry.credit_bytes = entry
            .credit_bytes
            .saturating_add(bytes)
            .min(CREDIT_LIMIT_BYTES);
    }

    /// Marks an address as validated.
    pub fn validate(&mut self, now_ns: u64, address: IpAddr) {
        let address = address.to_canonical();
        self.unvalidated.remove(address);
        *self.validated.get_or_insert_with(address, || now_ns) = now_ns;
    }

    /// Returns whether the validation of an address has not expired.
    pub fn is_validated(&mut self, now_ns: u64, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let Some(&mut validated_ns) = self.validated.touch(address) else {
            return false;
        };
        let is_valid = now_ns.saturating_sub(validated_ns) <= VALIDATION_LIFETIME_NS;
        if !is_valid {
            self.validated.remove(address);
        }
        is_valid
    }

    /// Returns whether an address may receive a flow of datagrams: it is validated, or an option
    /// allows exactly this address.
    pub fn may_receive_flow(&mut self, now_ns: u64, address: IpAddr) -> bool {
        let mut allowed = self.rules.allowed.iter();
        allowed.any(|network| network.is_single_address() && network.contains(address))
            || self.is_validated(now_ns, address)
    }

    /// Decides whether a datagram with `bytes` of payload may be sent to an address; if so, counts
    /// it as sent.
    ///
    /// # Errors
    /// The first rule that forbids it; no credit is consumed then.
    pub fn authorize_send(
        &mut self,
        now_ns: u64,
        to: IpAddr,
        bytes: u64,
    ) -> Result<(), SendRejection> {
        let address = to.to_canonical();
        if self.is_validated(now_ns, address) {
            return Ok(());
        }
        if !self.allows_replies_to(address) {
            return Err(SendRejection::NotNeighbour { address });
        }
        let Some(entry) = self.unvalidated.touch(address) else {
            return Err(SendRejection::MoreThanReceived {
                address,
                response_bytes: bytes,
                credit_bytes: 0,
            });
        };
        if entry.credit_bytes < bytes {
            return Err(SendRejection::MoreThanReceived {
                address,
                response_bytes: bytes,
                credit_bytes: entry.credit_bytes,
            });
        }
        let rate = self.rules.address_bytes_per_second;
        if !entry.bucket.refill_and_check(now_ns, rate, bytes) {
            return Err(SendRejection::AddressRate { address });
        }
        let total_rate = self.rules.total_bytes_per_second;
        if !self
            .total_bucket
            .refill_and_check(now_ns, total_rate, bytes)
        {
            return Err(SendRejection::TotalRate { address });
        }
        entry.bucket.consume(bytes);
        self.total_bucket.consume(bytes);
        entry.credit_bytes -= bytes;
        Ok(())
    }

    /// Counts a datagram from an address that repeats a recent reply to it ([`RecentReplies`]), and
    /// decides about the reply.
    ///
    /// All ports of the address share the count, and all ports of this server: a loop between two
    /// hosts may change its ports.
    pub fn count_returned(&mut self, now_ns: u64, from: IpAddr) -> ReturnedReply {
        let entry = (self.returned)
            .get_or_insert_with(from.to_canonical(), || ReturnedReplies::new(now_ns));
        if now_ns.saturating_sub(entry.last_ns) > RETURNED_REPLY_PAUSE_NS {
            *entry = ReturnedReplies::new(now_ns);
        }
        entry.last_ns = now_ns.max(entry.last_ns);
        if entry.is_service {
            return ReturnedReply::Reject;
        }
        if let Some(since_ns) = entry.checked_ns {
            if now_ns.saturating_sub(since_ns) <= CHECK_TIMEOUT_NS {
                return ReturnedReply::Send;
            }
            // No reply: a client, which is checked more and more rarely.
            entry.checked_ns = None;
            entry.limit = entry.limit.saturating_mul(2);
            entry.count = 0;
        }
        entry.count += 1;
        if entry.count < entry.limit {
            return ReturnedReply::Send;
        }
        entry.checked_ns = Some(now_ns);
        ReturnedReply::SendAndCheck
    }

    /// Records that an address replied to a check: it has a service.
    pub fn mark_service(&mut self, now_ns: u64, address: IpAddr) {
        let entry = (self.returned)
            .get_or_insert_with(address.to_canonical(), || ReturnedReplies::new(now_ns));
        entry.is_service = true;
    }

    /// Counts `received_bytes` received bytes, decides about a reply of `response_bytes` bytes, and
    /// reserves credit for the datagrams that follow.
    ///
    /// # Errors
    /// The first rule that forbids the reply.
    pub fn grant_credit(
        &mut self,
        now_ns: u64,
        to: IpAddr,
        received_bytes: u64,
        response_bytes: u64,
    ) -> Result<SendCredit, SendRejection> {
        self.add_received(now_ns, to, received_bytes);
        self.authorize_send(now_ns, to, response_bytes)?;
        let expiry_ns = now_ns.saturating_add(CREDIT_LIFETIME_NS);
        let address = to.to_canonical();
        let credit = SendCredit {
            expiry_ns,
            ..SendCredit::default()
        };
        let Some(entry) = self.unvalidated.touch(address) else {
            // A validated address has no credit to count.
            return Ok(SendCredit {
                validated: true,
                ..credit
            });
        };
        let rate = self.rules.address_bytes_per_second;
        let reserved_bytes =
            u128::from(rate) * u128::from(CREDIT_RESERVATION_NS) / ByteBucket::NANOBYTES_PER_BYTE;
        let reserved_bytes = u64::try_from(reserved_bytes).unwrap_or(u64::MAX);
        let reserved_bytes = reserved_bytes
            .min(entry.bucket.available_bytes())
            .min(self.total_bucket.available_bytes());
        entry.bucket.consume(reserved_bytes);
        self.total_bucket.consume(reserved_bytes);
        Ok(SendCredit {
            sendable_bytes: reserved_bytes,
            ..credit
        })
    }

    /// Replaces the directly connected networks after a change.
    pub fn set_neighbours(&mut self, neighbours: Vec<IpNetwork>) {
        self.rules.neighbours = neighbours;
    }

    /// Returns whether unvalidated addresses of the network of this address get replies.
    #[must_use]
    pub fn allows_replies_to(&self, address: IpAddr) -> bool {
        let mut networks = self.rules.neighbours.iter().chain(&self.rules.allowed);
        networks.any(|network| network.contains(address))
    }

    /// Returns the number of unvalidated and of validated addresses in the tables.
    #[must_use]
    pub fn address_counts(&self) -> (usize, usize) {
        (self.unvalidated.len(), self.validated.len())
    }
}

/// Credit to send to one address for a short time without a call of the [`AmplificationGuard`] per
/// datagram.
///
/// The bytes were taken from the rate limits in advance. The rule of never more than received is
/// checked here.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendCredit {
    /// Bytes received since the last call of the guard and not answered.
    received_bytes: u64,
    /// Bytes that may still be sent.
    sendable_bytes: u64,
    expiry_ns: u64,
    validated: bool,
}

impl SendCredit {
    /// Counts `received_bytes` received bytes and returns whether a reply of `response_bytes` bytes
    /// may be sent. If not, call the guard, and pass it [`Self::take_unreported`].
    #[inline]
    pub fn try_consume(&mut self, now_ns: u64, received_bytes: u64, response_bytes: u64) -> bool {
        self.received_bytes = self.received_bytes.saturating_add(received_bytes);
        if now_ns >= self.expiry_ns {
            return false;
        }
        if self.validated {
            // No credit is kept for the time after the validation expires.
            self.received_bytes = 0;
            return true;
        }
        let is_allowed =
            response_bytes <= self.received_bytes && response_bytes <= self.sendable_bytes;
        if is_allowed {
            self.received_bytes -= response_bytes;
            self.sendable_bytes -= response_bytes;
        }
        is_allowed
    }

    /// Takes the received bytes that the guard has not counted yet.
    pub fn take_unreported(&mut self) -> u64 {
        std::mem::take(&mut self.received_bytes)
    }
}

/// A token bucket in bytes, [`RATE_DEPTH_NS`] deep.
#[derive(Clone, Copy, Debug)]
struct ByteBucket {
    /// Bytes times 10^9, so that no fraction of a byte is lost between two refills.
    level_nanobytes: u128,
    refilled_ns: u64,
}

impl ByteBucket {
    const NANOBYTES_PER_BYTE: u128 = 1_000_000_000;

    /// Returns the capacity: at least the largest datagram, or a low rate would never allow one.
    fn capacity(rate: u64) -> u128 {
        (u128::from(rate) * u128::from(RATE_DEPTH_NS)).max(65_536 * Self::NANOBYTES_PER_BYTE)
    }

    fn new_full(rate: u64) -> Self {
        Self {
            level_nanobytes: Self::capacity(rate),
            refilled_ns: 0,
        }
    }

    /// Refills the bucket and returns whether it holds `bytes`. A rate of 0 holds none.
    fn refill_and_check(&mut self, now_ns: u64, rate: u64, bytes: u64) -> bool {
        let elapsed_ns = now_ns.saturating_sub(self.refilled_ns);
        self.refilled_ns = self.refilled_ns.max(now_ns);
        let level = self.level_nanobytes + u128::from(rate) * u128::from(elapsed_ns);
        self.level_nanobytes = level.min(Self::capacity(rate));
        rate > 0 && self.level_nanobytes >= u128::from(bytes) * Self::NANOBYTES_PER_BYTE
    }

    /// Returns the bytes in the bucket at the last refill.
    fn available_bytes(&self) -> u64 {
        u64::try_from(self.level_nanobytes / Self::NANOBYTES_PER_BYTE).unwrap_or(u64::MAX)
    }

    fn consume(&mut self, bytes: u64) {
        self.level_nanobytes = self
            .level_nanobytes
            .saturating_sub(u128::from(bytes) * Self::NANOBYTES_PER_BYTE);
    }
}
