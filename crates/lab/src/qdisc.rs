//! Queueing disciplines for a link's rate, burst, queue, delay and loss, and their encoding in
//! `TCA_OPTIONS`. Pure.

use netlink_packet_core::{DefaultNla, Emitable, NlaBuffer, NlasIterator};

use crate::topology::{ETHERNET_HEADER_BYTES, LinkSpec};

/// Default burst: time that it lasts at the link's rate. A smaller bucket would lose rate whenever
/// the timer that refills it fires late, as it does by up to a millisecond on a virtual machine
/// whose core was halted.
const DEFAULT_BURST_NS: u128 = 1_000_000;
/// Default queue: time that it takes to drain when full, about as routers are shipped.
const DEFAULT_QUEUE_NS: u128 = 50_000_000;
/// Smallest queue in frames: more than TCP's initial window.
const MIN_QUEUE_FRAMES: u64 = 64;
/// Largest number of packets that netem holds, unless a queue was requested. Its own default of
/// 1000 drops packets at 1 Gb/s from a delay of 12 ms on, which looks like loss on the path.
const NETEM_PACKETS: u32 = 1_000_000;

// linux/pkt_sched.h
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
const TCA_NETEM_REORDER: u16 = 3;
const TCA_NETEM_LATENCY64: u16 = 10;
const TCA_NETEM_JITTER64: u16 = 11;
/// `TC_LINKLAYER_ETHERNET`. Left at zero ("unaware"), the kernel insists on a rate table of 256
/// times that it has not used since Linux 3.8.
const LINKLAYER_ETHERNET: u8 = 1;

/// Token bucket: the `tbf` discipline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// Bytes per second.
    pub bytes_per_second: u64,
    /// Bytes that may be sent at once.
    pub burst_bytes: u32,
    /// Bytes queued before it drops.
    pub limit_bytes: u32,
}

impl TokenBucket {
    /// Returns the bucket of a link with a rate.
    #[must_use]
    pub fn from_link(link: &LinkSpec) -> Option<Self> {
        let rate = link.rate?.0 / 8;
        let frame = u64::from(link.mtu() + ETHERNET_HEADER_BYTES);
        let in_time = |ns: u128| (u128::from(rate) * ns / 1_000_000_000) as u64;
        let fit = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        Some(Self {
            bytes_per_second: rate,
            burst_bytes: fit(link
                .burst
                .map_or(in_time(DEFAULT_BURST_NS).max(2 * frame), |size| size.0)),
            limit_bytes: fit(link.queue.map_or(
                in_time(DEFAULT_QUEUE_NS).max(MIN_QUEUE_FRAMES * frame),
                |size| size.0,
            )),
        })
    }

    /// Encodes the content of `TCA_OPTIONS`.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        let narrow = u32::try_from(self.bytes_per_second).unwrap_or(u32::MAX);
        // struct tc_tbf_qopt: rate, peak rate, limit, buffer, mtu. The last two are in ticks of
        // time and superseded by TCA_TBF_BURST; no peak rate.
        let mut parameters = Vec::with_capacity(36);
        parameters.extend(rate_spec(narrow));
        parameters.extend([0; 12]);
        parameters.extend(self.limit_bytes.to_ne_bytes());
        parameters.extend([0; 8]);
        let mut attributes = vec![
            DefaultNla::new(TCA_TBF_PARMS, parameters),
            DefaultNla::new(TCA_TBF_BURST, self.burst_bytes.to_ne_bytes().to_vec()),
        ];
        // Only beyond 34 Gb/s: the kernel uses the 64-bit rate only when the 32-bit one is at its
        // maximum.
        if narrow == u32::MAX {
            attributes.push(DefaultNla::new(
                TCA_TBF_RATE64,
                self.bytes_per_second.to_ne_bytes().to_vec(),
            ));
        }
        emit(&attributes)
    }

    /// Decodes rate and queue from the `TCA_OPTIONS` of a dump. The dump has the burst as a time in
    /// ticks, rounded; it is converted with the rate.
    #[must_use]
    pub fn decode(options: &[u8]) -> Option<Self> {
        let parameters = attribute(options, TCA_TBF_PARMS)?;
        let u32_at = |at: usize| {
            let bytes = parameters.get(at..at + 4)?;
            Some(u32::from_ne_bytes(bytes.try_into().ok()?))
        };
        let wide = attribute(options, TCA_TBF_RATE64)
            .and_then(|bytes| Some(u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?)));
        let rate = wide.unwrap_or(u64::from(u32_at(8)?));
        // A tick is 64 ns (PSCHED_SHIFT 6).
        let burst = u128::from(u32_at(28)?) * 64 * u128::from(rate) / 1_000_000_000;
        Some(Self {
            bytes_per_second: rate,
            burst_bytes: u32::try_from(burst).unwrap_or(u32::MAX),
            limit_bytes: u32_at(24)?,
        })
    }
}

/// `struct tc_ratespec`: cell_log, linklayer, overhead, cell_align, mpu, rate.
fn rate_spec(rate: u32) -> [u8; 12] {
    let mut spec = [0; 12];
    spec[1] = LINKLAYER_ETHERNET;
    spec[8..].copy_from_slice(&rate.to_ne_bytes());
    spec
}

/// Delay, jitter, loss and reordering: the `netem` discipline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Netem {
    /// Delay of every packet in ns.
    pub delay_ns: i64,
    /// Variation of the delay in ns.
    pub jitter_ns: i64,
    /// Fraction of packets lost.
    pub loss: f64,
    /// Fraction of packets that skip the delay.
    pub reorder: f64,
    /// Largest number of packets held.
    pub limit_packets: u32,
}

impl Netem {
    /// Returns the netem options of a link; `None` when it needs none.
    #[must_use]
    pub fn from_link(link: &LinkSpec) -> Option<Self> {
        if !link.needs_netem() {
            return None;
        }
        let nanos = |time: Option<std::time::Duration>| {
            time.map_or(0, |time| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX))
        };
        // With a rate, the token bucket behind netem limits the queue in bytes; alone, netem counts
        // packets.
        let frame = u64::from(link.mtu() + ETHERNET_HEADER_BYTES);
        let limit = match (link.rate, link.queue) {
            (None, Some(queue)) => u32::try_from(queue.0.div_ceil(frame)).unwrap_or(u32::MAX),
            _ => NETEM_PACKETS,
        };
        Some(Self {
            delay_ns: nanos(link.delay),
            jitter_ns: nanos(link.jitter),
            loss: link.loss.unwrap_or(0.0),
            reorder: link.reorder.unwrap_or(0.0),
            limit_packets: limit,
        })
    }

    /// Encodes the content of `TCA_OPTIONS`: unlike in other disciplines a structure comes first
    /// and the attributes follow it.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        let ticks = |ns: i64| u32::try_from(ns / 64).unwrap_or(u32::MAX);
        // struct tc_netem_qopt: latency, limit, loss, gap, duplicate, jitter. Reordering works only
        // with a gap: of a row of `gap` packets, all but the last are always delayed.
        let gap = u32::from(self.reorder > 0.0);
        let fields = [
            ticks(self.delay_ns),
            self.limit_packets,
            probability(self.loss),
            gap,
            0,
            ticks(self.jitter_ns),
        ];
        let mut bytes: Vec<u8> = fields
            .iter()
            .flat_map(|field| field.to_ne_bytes())
            .collect();
        let mut attributes = vec![
            DefaultNla::new(TCA_NETEM_LATENCY64, self.delay_ns.to_ne_bytes().to_vec()),
            DefaultNla::new(TCA_NETEM_JITTER64, self.jitter_ns.to_ne_bytes().to_vec()),
        ];
        if self.reorder > 0.0 {
            // struct tc_netem_reorder: probability, correlation.
            let mut reorder = probability(self.reorder).to_ne_bytes().to_vec();
            reorder.extend([0; 4]);
            attributes.push(DefaultNla::new(TCA_NETEM_REORDER, reorder));
        }
        bytes.extend(emit(&attributes));
        bytes
    }
}

/// Converts a fraction to the kernel's 32-bit fixed point.
fn probability(share: f64) -> u32 {
    (share.clamp(0.0, 1.0) * f64::from(u32::MAX)).round() as u32
}

fn emit(attributes: &[DefaultNla]) -> Vec<u8> {
    let mut bytes = vec![0; attributes.buffer_len()];
    attributes.emit(&mut bytes);
    bytes
}

fn attribute(options: &[u8], kind: u16) -> Option<&[u8]> {
    NlasIterator::new(options)
        .filter_map(Result::ok)
        .find(|nla: &NlaBuffer<&[u8]>| nla.kind() == kind)
        .map(|nla| {
            let start = nla.into_inner();
            let length = usize::from(u16::from_ne_bytes([start[0], start[1]]));
            &start[4..length]
        })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use linerate_stats::units::{BitRate, ByteSize};
    use proptest::prelude::*;

    use super::*;

    fn link(rate: u64) -> LinkSpec {
        LinkSpec {
            rate: Some(BitRate(rate)),
            ..LinkSpec::between("a", "b")
        }
    }

    #[test]
    fn bursts_and_queues_follow_the_rate() {
        for (rate, burst, limit) in [
            // (bit/s, bytes of 1 ms or two frames, bytes of 50 ms or 64 frames)
            (55_000, 2 * 1514, 64 * 1514),
            (100_000_000, 12_500, 625_000),
            (1_000_000_000, 125_000, 6_250_000),
            (10_000_000_000_000, 1_250_000_000, u32::MAX),
        ] {
            let bucket = TokenBucket::from_link(&link(rate)).unwrap();
            let expected = TokenBucket {
                bytes_per_second: rate / 8,
                burst_bytes: burst,
                limit_bytes: limit,
            };
            assert_eq!(bucket, expected, "{rate}");
        }
        let requested = LinkSpec {
            burst: Some(ByteSize(4000)),
            queue: Some(ByteSize(9000)),
            ..link(8000)
        };
        let bucket = TokenBucket::from_link(&requested).unwrap();
        assert_eq!((bucket.burst_bytes, bucket.limit_bytes), (4000, 9000));
        assert_eq!(TokenBucket::from_link(&LinkSpec::between("a", "b")), None);
    }

    #[test]
    fn a_bucket_is_written_as_tc_writes_it() {
        let bytes = TokenBucket {
            bytes_per_second: 0x0102_0304,
            burst_bytes: 0x0506_0708,
            limit_bytes: 0x090a_0b0c,
        }
        .encode();
        // 4 + 36 of TCA_TBF_PARMS, 4 + 4 of TCA_TBF_BURST.
        assert_eq!(bytes.len(), 48);
        assert_eq!(bytes[5], LINKLAYER_ETHERNET);
        assert_eq!(bytes[12..16], 0x0102_0304_u32.to_ne_bytes());
        assert_eq!(bytes[28..32], 0x090a_0b0c_u32.to_ne_bytes());
        assert_eq!(bytes[44..48], 0x0506_0708_u32.to_ne_bytes());
    }

    #[test]
    fn netem_puts_its_structure_first() {
        let bytes = Netem::from_link(&LinkSpec {
            delay: Some(Duration::from_millis(20)),
            jitter: Some(Duration::from_millis(1)),
            loss: Some(0.5),
            reorder: Some(1.0),
            ..LinkSpec::between("a", "b")
        })
        .unwrap()
        .encode();
        let u32_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(u32_at(0), 20_000_000 / 64, "ticks of 64 ns");
        assert_eq!(u32_at(4), NETEM_PACKETS);
        assert_eq!(u32_at(8), 0x8000_0000, "half of all");
        assert_eq!(u32_at(12), 1, "the gap that reordering needs");
        assert_eq!(u32_at(20), 1_000_000 / 64);
        let latency = attribute(&bytes[24..], TCA_NETEM_LATENCY64).unwrap();
        assert_eq!(latency, 20_000_000_i64.to_ne_bytes());
        let reorder = attribute(&bytes[24..], TCA_NETEM_REORDER).unwrap();
        assert_eq!(reorder[..4], u32::MAX.to_ne_bytes());
    }

    proptest! {
        #[test]
        fn a_bucket_reads_back(bytes_per_second in 1u64..1 << 40, limit_bytes: u32) {
            let written = TokenBucket { bytes_per_second, burst_bytes: 4000, limit_bytes };
            let read = TokenBucket::decode(&written.encode()).unwrap();
            prop_assert_eq!((read.bytes_per_second, read.limit_bytes), (bytes_per_second, limit_bytes));
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = TokenBucket::decode(&bytes);
        }
    }
}
