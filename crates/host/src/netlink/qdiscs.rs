//! Queueing disciplines of an interface. Attribute numbers are from linux/pkt_sched.h.

use std::io;

use super::{NLM_F_DUMP, parse_text, parse_u32, request_rtnetlink, split_attributes};

/// Queueing discipline of an interface, with its counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Qdisc {
    /// `fq`, `tbf`, `noqueue`, ...
    pub kind: String,
    /// Identifier (major number in the upper 16 bits).
    pub handle: u32,
    /// Identifier of the parent.
    pub parent: u32,
    /// Packets dequeued, each segment of a GSO packet counted.
    pub packets: u64,
    /// Packets dropped, including children; a GSO packet counts once.
    pub drops: u32,
    /// Times that its rate limit delayed packets (overlimits).
    pub over_limit: u32,
    /// Rate limit, bit/s; absent without one, or for kinds that are not parsed here.
    pub rate_bps: Option<u64>,
    /// Bytes that may be sent at once after a pause.
    pub burst_bytes: Option<u64>,
}

impl Qdisc {
    fn is_child_of(&self, parent: &Self) -> bool {
        self.parent != TC_H_ROOT && self.parent & TC_H_MAJ_MASK == parent.handle & TC_H_MAJ_MASK
    }
}

/// Returns the root discipline of an interface and its direct children; `None` where the kernel
/// reports none.
///
/// # Errors
/// Errors of the netlink request.
pub fn read_qdiscs(index: u32) -> io::Result<Option<(Qdisc, Vec<Qdisc>)>> {
    Ok(split_root(request_qdiscs(index)?))
}

/// Returns the kinds of all disciplines of an interface, in the kernel's order.
///
/// # Errors
/// Errors of the netlink request.
pub fn read_qdisc_kinds(index: u32) -> io::Result<Vec<String>> {
    let all = request_qdiscs(index)?.into_iter();
    Ok(all.map(|qdisc| qdisc.kind).collect())
}

/// Requests all disciplines of an interface.
fn request_qdiscs(index: u32) -> io::Result<Vec<Qdisc>> {
    // struct tcmsg: family and padding, interface, handle, parent, info.
    let mut request = vec![0_u8; TCMSG_BYTES];
    request[4..8].copy_from_slice(&index.to_ne_bytes());
    let reply = request_rtnetlink(RTM_GETQDISC, NLM_F_DUMP, &request)?;
    // The reply lists every interface: filter by index.
    Ok(reply
        .iter()
        .filter_map(|(kind, body)| parse_qdisc(*kind, body, index))
        .collect())
}

fn split_root(mut all: Vec<Qdisc>) -> Option<(Qdisc, Vec<Qdisc>)> {
    let root = all.iter().position(|qdisc| qdisc.parent == TC_H_ROOT)?;
    let root = all.swap_remove(root);
    all.retain(|qdisc| qdisc.is_child_of(&root));
    Some((root, all))
}

const RTM_NEWQDISC: u16 = 36;
const RTM_GETQDISC: u16 = 38;
const TCMSG_BYTES: usize = 20;
/// `TC_H_ROOT` of linux/pkt_sched.h.
const TC_H_ROOT: u32 = u32::MAX;
/// `TC_H_MAJ_MASK`.
const TC_H_MAJ_MASK: u32 = 0xffff_0000;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
/// Nanoseconds per tick of the packet scheduler (`PSCHED_SHIFT` of net/pkt_sched.h: 6;
/// /proc/net/psched).
const PSCHED_TICK_NS: u64 = 64;
const TCA_STATS2: u16 = 7;
const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_QUEUE: u16 = 3;

/// Parses a discipline of one interface; its statistics are nested attributes.
fn parse_qdisc(kind: u16, body: &[u8], index: u32) -> Option<Qdisc> {
    if kind != RTM_NEWQDISC {
        return None;
    }
    let header = body.first_chunk::<TCMSG_BYTES>()?;
    let header_word = |at: usize| parse_u32(&header[at..]);
    if header_word(4)? != index {
        return None;
    }
    let mut qdisc = Qdisc {
        handle: header_word(8)?,
        parent: header_word(12)?,
        ..Qdisc::default()
    };
    let mut options = &[][..];
    for (kind, value) in split_attributes(&body[TCMSG_BYTES..]) {
        match kind {
            TCA_KIND => qdisc.kind = parse_text(value).unwrap_or_default(),
            TCA_OPTIONS => options = value,
            TCA_STATS2 => {
                for (kind, value) in split_attributes(value) {
                    match kind {
                        // struct gnet_stats_basic: bytes (64 bits), packets.
                        TCA_STATS_BASIC => {
                            qdisc.packets = value.get(8..).and_then(parse_u32).map_or(0, u64::from);
                        }
                        // struct gnet_stats_queue: length, backlog, drops, requeues, overlimits.
                        TCA_STATS_QUEUE => {
                            qdisc.drops = value.get(8..).and_then(parse_u32).unwrap_or(0);
                            qdisc.over_limit = value.get(16..).and_then(parse_u32).unwrap_or(0);
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    if qdisc.kind == "tbf" {
        (qdisc.rate_bps, qdisc.burst_bytes) = parse_tbf(options);
    }
    Some(qdisc)
}

/// Returns rate in bit/s and burst in bytes of a token bucket.
///
/// struct tc_tbf_qopt of linux/pkt_sched.h starts with the rate's struct tc_ratespec, whose third
/// word is bytes per second. Its eighth word is the burst as time at that rate: the kernel takes
/// the burst in bytes and reports it as time.
fn parse_tbf(options: &[u8]) -> (Option<u64>, Option<u64>) {
    let (mut rate32, mut rate64, mut ticks) = (None, None, None);
    for (kind, value) in split_attributes(options) {
        match kind {
            TCA_TBF_PARMS => {
                rate32 = value.get(8..).and_then(parse_u32).map(u64::from);
                ticks = value.get(28..).and_then(parse_u32).map(u64::from);
            }
            TCA_TBF_RATE64 => {
                rate64 = value.first_chunk().map(|value| u64::from_ne_bytes(*value));
            }
            _ => {}
        }
    }
    let rate = rate64.or(rate32).filter(|&rate| rate > 0);
    // Both values were rounded down in the kernel.
    let burst = rate.zip(ticks).map(|(rate, ticks)| {
        let bytes = u128::from(rate) * u128::from(ticks * PSCHED_TICK_NS) / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    });
    (rate.map(|rate| rate.saturating_mul(8)), burst)
}

#[cfg(test)]
mod tests {
    use super::super::{find_link, push_attribute};
    use super::*;
    use proptest::prelude::*;

    /// A kernel message about interface 7.
    fn message(kind: &[u8], handle: u32, parent: u32) -> Vec<u8> {
        let mut body = vec![0; TCMSG_BYTES];
        body[4..8].copy_from_slice(&7_u32.to_ne_bytes());
        body[8..12].copy_from_slice(&handle.to_ne_bytes());
        body[12..16].copy_from_slice(&parent.to_ne_bytes());
        push_attribute(&mut body, TCA_KIND, kind);
        body
    }

    #[test]
    fn a_discipline_is_read_with_its_counters() {
        let mut body = message(b"tbf\0", 0x8001_0000, TC_H_ROOT);
        let mut statistics = Vec::new();
        let mut basic = 64_000_u64.to_ne_bytes().to_vec();
        basic.extend(64_u32.to_ne_bytes());
        push_attribute(&mut statistics, TCA_STATS_BASIC, &basic);
        let queue: Vec<u8> = [1_u32, 1000, 12, 0, 5]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        push_attribute(&mut statistics, TCA_STATS_QUEUE, &queue);
        push_attribute(&mut body, TCA_STATS2, &statistics);
        let expected = Qdisc {
            kind: "tbf".to_owned(),
            handle: 0x8001_0000,
            parent: TC_H_ROOT,
            packets: 64,
            drops: 12,
            over_limit: 5,
            ..Qdisc::default()
        };
        assert_eq!(parse_qdisc(RTM_NEWQDISC, &body, 7), Some(expected));
        assert_eq!(
            parse_qdisc(RTM_NEWQDISC, &body, 8),
            None,
            "another interface"
        );
    }

    #[test]
    fn children_of_the_root_are_returned_with_it() {
        const MQ: u32 = 0x8001_0000;
        let mut bucket = message(b"tbf\0", 0x8002_0000, MQ | 1);
        // 32,768 bytes take 2,621,440 ns at 12,500,000 bytes per second: 40,960 ticks.
        let parameter_words = [0, 0, 12_500_000, 0, 0, 0, 75_000, 40_960, 0];
        let parameters: Vec<u8> = parameter_words
            .iter()
            .flat_map(|word: &u32| word.to_ne_bytes())
            .collect();
        let mut options = Vec::new();
        push_attribute(&mut options, TCA_TBF_PARMS, &parameters);
        push_attribute(&mut bucket, TCA_OPTIONS, &options);
        // Unordered, with an ingress discipline and one below a queue's discipline.
        let messages = [
            message(b"ingress\0", 0xffff_0000, 0xffff_fff1),
            message(b"pfifo_fast\0", 0, MQ | 2),
            message(b"mq\0", MQ, TC_H_ROOT),
            message(b"bfifo\0", 0x8003_0000, 0x8002_0001),
            bucket,
        ];
        let parse_tree = |messages: &[Vec<u8>]| {
            let all = messages.iter();
            split_root(
                all.filter_map(|body| parse_qdisc(RTM_NEWQDISC, body, 7))
                    .collect(),
            )
        };
        let (root, children) = parse_tree(&messages).expect("a root");
        assert_eq!(root.kind, "mq");
        let children: Vec<_> = (children.iter())
            .map(|qdisc| (qdisc.kind.as_str(), qdisc.rate_bps, qdisc.burst_bytes))
            .collect();
        assert_eq!(children.len(), 2, "{children:?}");
        assert!(children.contains(&("tbf", Some(100_000_000), Some(32_768))));
        assert!(children.contains(&("pfifo_fast", None, None)));
        // Disciplines created by the kernel itself have no handle.
        let kernel_default = [
            message(b"mq\0", 0, TC_H_ROOT),
            message(b"fq\0", 0, 1),
            message(b"fq\0", 0, 2),
        ];
        let (_, children) = parse_tree(&kernel_default).expect("a root");
        assert_eq!(children.len(), 2);
        assert_eq!(parse_tree(&kernel_default[1..]), None);
    }

    #[test]
    fn loopback_can_be_queried() {
        let lo = find_link("lo").unwrap();
        read_qdiscs(lo.index).unwrap();
        read_qdisc_kinds(lo.index).unwrap();
    }

    proptest! {
        #[test]
        fn no_bytes_can_hurt(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_qdisc(RTM_NEWQDISC, &bytes, 0);
        }
    }
}
