//! Tests of each mode over rings, with frames written by hand.

use linerate_packet::frame::{FlowAddress, FlowFrames, FrameSpec, is_ipv4_checksum_right};
use linerate_packet::mac_address::MacAddress;
use linerate_port::{AnyPort, PortUrl, RxQueue, TxQueue, open};
use linerate_sys::frames::burst::{BURST_FRAMES, Burst};
use linerate_sys::frames::frame_memory::{FrameRegion, MemoryPlan};
use linerate_sys::frames::frame_pool::FramePool;

use super::*;
use crate::stream::{ForwardMode, FwdStream, HELD_AT_STOP, ModeSettings, NoOptions, StreamFacts};

const PORT_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 9]);
const PEER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 7]);

/// A mode between the ends of two ring cables, with the test at their other ends.
struct ModeBench<M> {
    memory: FrameRegion,
    pool: FramePool,
    mode: M,
    stream: FwdStream<linerate_port::AnyReceive, linerate_port::AnyTransmit>,
    source: AnyPort,
    sink: AnyPort,
}

impl<M: ForwardMode> ModeBench<M> {
    fn new(plan: &M::Plan, settings: &ModeSettings) -> Self {
        let memory = FrameRegion::new(MemoryPlan::default()).unwrap();
        let port = |url: &str| {
            let url: PortUrl = url.parse().unwrap();
            open(&url, &memory).unwrap().remove(0)
        };
        let (source, rx_port) = (port("ring:in,end=a"), port("ring:in,end=b"));
        let (tx_port, sink) = (port("ring:out,end=a"), port("ring:out,end=b"));
        let facts = StreamFacts {
            number: 0,
            address: PORT_MAC,
            peer: PEER_MAC,
            frame_bytes: 1518,
            max_held_frames: 1000,
            is_discarded: false,
        };
        Self {
            mode: M::new(plan, &facts, settings),
            stream: FwdStream::new(rx_port.receive, tx_port.transmit, BURST_FRAMES, None, facts),
            pool: memory.pool(),
            memory,
            source,
            sink,
        }
    }

    /// Sends frames through the mode; returns the frames that come out.
    fn pass(&mut self, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut burst = Burst::new();
        for bytes in frames {
            let mut frame = self.pool.allocate().unwrap();
            frame.set_len(bytes.len() as u16);
            self.memory.bytes_mut(&mut frame).copy_from_slice(bytes);
            burst.push(frame).unwrap();
        }
        self.source.transmit.transmit(&mut self.pool, &mut burst);
        assert!(burst.is_empty());
        self.step();
        self.arrived()
    }

    fn step(&mut self) -> usize {
        self.mode
            .step(&mut self.stream, &mut self.pool, &self.memory)
    }

    fn arrived(&mut self) -> Vec<Vec<u8>> {
        let mut burst = Burst::new();
        self.sink.receive.receive(&mut self.pool, &mut burst);
        let frames = burst.frames().iter();
        let frames = frames
            .map(|frame| self.memory.bytes(frame).to_vec())
            .collect();
        self.pool.free_all(&mut burst);
        frames
    }

    /// Asserts that all frames are free again.
    fn assert_none_lost(mut self) {
        self.mode.release_held(&mut self.pool);
        let free = std::iter::from_fn(|| self.pool.allocate()).count();
        assert_eq!(free, self.memory.frames() as usize);
    }
}

fn forwarded_by<M: ForwardMode<Plan = NoOptions>>(frame: &[u8]) -> Vec<Vec<u8>> {
    let mut bench = ModeBench::<M>::new(&NoOptions, &ModeSettings::default());
    let out = bench.pass(&[frame.to_vec()]);
    bench.assert_none_lost();
    out
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pairs = digits.chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// A ping of a Linux host (sequence 1, 8 bytes) and its reply; checksums by RFC 1071.
const PING: &str = "020000000001 020000000002 0800
    45000024 1c460000 400149f7 0a4d0001 0a4d0002
    0800d9ba 12340001 0001020304050607";
const PONG: &str = "020000000002 020000000001 0800
    45000024 1c460000 400149f7 0a4d0002 0a4d0001
    0000e1ba 12340001 0001020304050607";

/// ARP request for 10.77.0.2 from 10.77.0.1 (RFC 826).
const ARP: &str = "ffffffffffff 020000000002 0806
    0001 0800 06 04 0001 020000000002 0a4d0001 000000000000 0a4d0002";
const ARP_REPLY: &str = "020000000002 020000000009 0806
    0001 0800 06 04 0002 020000000009 0a4d0002 020000000002 0a4d0001";

/// Inserts VLAN tags after the addresses of a frame.
fn tagged(frame: &[u8], tags: &[[u8; 4]]) -> Vec<u8> {
    let (addresses, payload) = frame.split_at(12);
    [addresses, &tags.concat(), payload].concat()
}

fn udp() -> Vec<u8> {
    let spec = FrameSpec {
        source_port: 1234,
        destination_port: 7,
        ..FrameSpec::default()
    };
    let (from, to) = (
        MacAddress([2, 0, 0, 0, 0, 2]),
        MacAddress([2, 0, 0, 0, 0, 1]),
    );
    let flows = FlowFrames::new(&spec, from, to, 1, FlowAddress::Source);
    let mut frame = vec![0; flows.len().into()];
    flows.write(&mut frame, 0);
    frame
}

/// UDP over IPv6 in a VLAN, ports 0x1111 to 0x2222.
const UDP_V6: &str = "020000000001 020000000002 8100 0064 86dd
    60000000 000c 11 40
    20010db8000000000000000000000001 20010db8000000000000000000000002
    1111 2222 000c abcd 01020304";
const UDP_V6_SWAPPED: &str = "020000000002 020000000001 8100 0064 86dd
    60000000 000c 11 40
    20010db8000000000000000000000002 20010db8000000000000000000000001
    2222 1111 000c abcd 01020304";

#[test]
fn io_leaves_frames_unchanged() {
    for length in [14, 60, 1500] {
        let frame: Vec<u8> = (0..length).map(|at| at as u8).collect();
        assert_eq!(forwarded_by::<io::Io>(&frame), std::slice::from_ref(&frame));
    }
}

#[test]
fn mac_sets_source_and_destination() {
    let frame = udp();
    let [out] = &forwarded_by::<mac::MacForward>(&frame)[..] else {
        panic!("one frame in, one out");
    };
    assert_eq!((&out[..6], &out[6..12]), (&PEER_MAC.0[..], &PORT_MAC.0[..]));
    assert_eq!(out[12..], frame[12..]);
    // Too short for addresses: forwarded unchanged.
    assert_eq!(forwarded_by::<mac::MacForward>(&[1; 11]), [vec![1; 11]]);
}

#[test]
fn macswap_swaps_and_keeps_the_rest() {
    for length in [12usize, 13, 15, 16, 60] {
        let frame: Vec<u8> = (0..length).map(|at| at as u8).collect();
        let out = forwarded_by::<mac_swap::MacSwap>(&frame);
        assert_eq!(out[0][..6], frame[6..12], "{length}");
        assert_eq!(out[0][6..12], frame[..6], "{length}");
        assert_eq!(out[0][12..], frame[12..], "{length}");
    }
}

#[test]
fn a_five_tuple_swap_is_its_own_inverse_and_keeps_checksums() {
    let frame = udp();
    let out = forwarded_by::<five_tuple_swap::FiveTupleSwap>(&frame).remove(0);
    assert_eq!(
        (&out[26..30], &out[30..34]),
        (&frame[30..34], &frame[26..30])
    );
    assert_eq!(
        (&out[34..36], &out[36..38]),
        (&frame[36..38], &frame[34..36])
    );
    assert_eq!(is_ipv4_checksum_right(&out), Some(true));
    assert_eq!(
        csum::correct_checksums(&mut out.clone()),
        csum::WrongChecksums::default()
    );
    assert_eq!(
        forwarded_by::<five_tuple_swap::FiveTupleSwap>(&out),
        std::slice::from_ref(&frame)
    );
    let swapped = forwarded_by::<five_tuple_swap::FiveTupleSwap>(&bytes(UDP_V6));
    assert_eq!(swapped, [bytes(UDP_V6_SWAPPED)]);
    // Behind VLAN tags.
    let tags = [[0x88, 0xa8, 0, 5], [0x81, 0, 0, 6]];
    let swapped = forwarded_by::<five_tuple_swap::FiveTupleSwap>(&tagged(&frame, &tags));
    assert_eq!(swapped, [tagged(&out, &tags)]);
    // No ports are swapped behind a header with an invalid length.
    let mut short = frame.clone();
    short[14] = 0x40;
    let swapped = forwarded_by::<five_tuple_swap::FiveTupleSwap>(&short).remove(0);
    assert_eq!((swapped[14], &swapped[34..38]), (0x40, &frame[34..38]));
    // Truncated at any length, no frame causes a panic.
    for end in 0..frame.len() {
        let _ = forwarded_by::<five_tuple_swap::FiveTupleSwap>(&frame[..end]);
        let _ = forwarded_by::<five_tuple_swap::FiveTupleSwap>(&bytes(UDP_V6)[..end]);
    }
}

#[test]
fn rxonly_frees() {
    let mut bench = ModeBench::<rx_only::RxOnly>::new(&NoOptions, &ModeSettings::default());
    assert!(bench.pass(&vec![udp(); 32]).is_empty());
    assert_eq!(bench.stream.consumed, 32);
    bench.assert_none_lost();
}

#[test]
fn txonly_and_flowgen_send_right_frames() {
    let settings = ModeSettings {
        transmit_flows: 3,
        generated_flows: 5,
        frame: FrameSpec {
            bytes: 100,
            ..FrameSpec::default()
        },
        ..ModeSettings::default()
    };
    let mut bench = ModeBench::<tx_only::TxOnly>::new(&NoOptions, &settings);
    assert_eq!(bench.step(), 32);
    let sources: Vec<u8> = check_frames(&bench.arrived())
        .map(|frame| frame[29])
        .collect();
    assert_eq!(sources[..7], [1, 2, 3, 1, 2, 3, 1]);
    bench.assert_none_lost();

    // With reused slots of other frames and of its own: the content is zeros in all of them.
    let mut bench = ModeBench::<tx_only::TxOnly>::new(&NoOptions, &settings);
    let mut used = Burst::new();
    while let Some(mut frame) = bench.pool.allocate() {
        frame.set_len(100);
        bench.memory.bytes_mut(&mut frame).fill(0xee);
        if used.push(frame).is_err() {
            break;
        }
    }
    bench.pool.free_all(&mut used);
    for first in [1, 3, 2] {
        assert_eq!(bench.step(), 32);
        let frames: Vec<Vec<u8>> = check_frames(&bench.arrived()).cloned().collect();
        assert_eq!(frames.len(), 32);
        assert_eq!(frames[0][29], first);
        assert!(frames.iter().all(|frame| frame[42..] == [0; 58]));
    }
    // The first bursts (`--tx-first`) write all slots in full.
    bench
        .mode
        .fill_all_slots(&mut bench.stream, &mut bench.pool, &bench.memory);
    bench.stream.modify(&bench.memory, |slot| slot.fill(0xee));
    bench.pool.free_all(&mut bench.stream.burst);
    bench
        .mode
        .fill_all_slots(&mut bench.stream, &mut bench.pool, &bench.memory);
    bench
        .stream
        .modify(&bench.memory, |slot| assert_eq!(slot[42..], [0; 58]));
    bench.pool.free_all(&mut bench.stream.burst);

    let mut bench = ModeBench::<flowgen::FlowGen>::new(&NoOptions, &settings);
    let out = bench.pass(&[udp(), udp()]);
    let destinations: Vec<u8> = check_frames(&out).map(|frame| frame[33]).collect();
    assert_eq!(destinations[..6], [2, 3, 4, 5, 6, 2]);
    assert_eq!(bench.stream.consumed, 2);
    bench.assert_none_lost();

    // Each frame with two copies after it, across the ends of bursts.
    let settings = ModeSettings {
        flow_clones: 2,
        ..settings
    };
    let mut bench = ModeBench::<flowgen::FlowGen>::new(&NoOptions, &settings);
    let mut destinations: Vec<u8> = Vec::new();
    for _ in 0..2 {
        bench.step();
        destinations.extend(check_frames(&bench.arrived()).map(|frame| frame[33]));
    }
    let expected = (0..64).map(|at| 2 + (at / 3 % 5) as u8);
    assert_eq!(destinations, expected.collect::<Vec<_>>());
    bench.assert_none_lost();
}

/// Checks generated frames: length, addresses, checksums.
fn check_frames(frames: &[Vec<u8>]) -> impl Iterator<Item = &Vec<u8>> {
    frames.iter().inspect(|frame| {
        assert_eq!(frame.len(), 100);
        assert_eq!(
            (&frame[..6], &frame[6..12]),
            (&PEER_MAC.0[..], &PORT_MAC.0[..])
        );
        assert_eq!(is_ipv4_checksum_right(frame), Some(true));
        assert_eq!(
            csum::correct_checksums(&mut frame.to_vec()),
            csum::WrongChecksums::default()
        );
    })
}

#[test]
fn a_source_keeps_what_a_full_ring_refuses() {
    let mut bench = ModeBench::<tx_only::TxOnly>::new(&NoOptions, &ModeSettings::default());
    while bench.step() > 0 {}
    let mut total = 0;
    loop {
        match bench.arrived().len() {
            0 => break,
            count => total += count,
        }
    }
    assert_eq!(total, 1024);
    assert_eq!(bench.stream.transmit.counters().read().total_drops(), 0);
}

#[test]
fn requests_get_replies_and_the_rest_is_freed() {
    let mut bench = ModeBench::<icmp_echo::IcmpEcho>::new(&NoOptions, &ModeSettings::default());
    let mut fragment = bytes(PING);
    fragment[20] = 0x20;
    let out = bench.pass(&[bytes(PING), udp(), bytes(ARP), bytes(PONG), fragment]);
    assert_eq!(out, [bytes(PONG), bytes(ARP_REPLY)]);
    assert_eq!(bench.stream.consumed, 3);
    // VLAN tags are kept in the reply.
    for tags in [
        &[[0x81, 0, 0, 5]][..],
        &[[0x88, 0xa8, 0, 5], [0x81, 0, 0, 6]],
    ] {
        let out = bench.pass(&[bytes(PING), bytes(ARP)].map(|frame| tagged(&frame, tags)));
        let expected = [bytes(PONG), bytes(ARP_REPLY)].map(|frame| tagged(&frame, tags));
        assert_eq!(out, expected);
    }
    for frame in [
        bytes(PING),
        tagged(&bytes(PING), &[[0x81, 0, 0, 5]]),
        bytes(ARP),
    ] {
        for end in 0..frame.len() {
            assert!(
                !icmp_echo::reply_to(&mut frame.clone()[..end], PORT_MAC),
                "{end}"
            );
        }
    }
    bench.assert_none_lost();
}

#[test]
fn checksums_are_summed_anew_and_wrong_ones_counted() {
    let right = udp();
    let mut bench = ModeBench::<csum::Csum>::new(&NoOptions, &ModeSettings::default());
    let mut frames = vec![right.clone(); 5];
    frames[1][24] ^= 1;
    frames[2][41] ^= 1;
    // Zero means no checksum in UDP: one is added, but none was wrong.
    frames[3][40..42].fill(0);
    frames[4][12] = 0x99;
    let out = bench.pass(&frames);
    for (number, frame) in out.iter().enumerate().take(4) {
        assert_eq!(frame[12..], right[12..], "frame {number}");
        assert_eq!(
            (&frame[..6], &frame[6..12]),
            (&PEER_MAC.0[..], &PORT_MAC.0[..])
        );
    }
    assert_eq!(out[4][12..], frames[4][12..]);
    let counts = bench.mode.counts();
    assert_eq!(
        (counts["bad-ip-checksum"], counts["bad-l4-checksum"]),
        (1, 1)
    );
    bench.assert_none_lost();
}

/// Checksums behind VLAN tags and in both IP versions.
#[test]
fn checksums_behind_tags_and_of_version_6_are_summed_anew() {
    // Summed by hand: addresses, 17, 12 twice, ports and content.
    let mut v6 = bytes(UDP_V6);
    let sum: u32 = [
        0x2001, 0x0db8, 1, 0x2001, 0x0db8, 2, 17, 12, 0x1111, 0x2222, 12, 0x0102, 0x0304,
    ]
    .iter()
    .sum();
    v6[64..66].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    for (right, ip, l4) in [
        (tagged(&udp(), &[[0x81, 0, 0, 5]]), Some(28), 44),
        (
            tagged(&udp(), &[[0x88, 0xa8, 0, 5], [0x81, 0, 0, 6]]),
            Some(32),
            48,
        ),
        (v6, None, 64),
    ] {
        let mut bench = ModeBench::<csum::Csum>::new(&NoOptions, &ModeSettings::default());
        let mut frames = vec![right.clone(); 4];
        if let Some(ip) = ip {
            frames[1][ip] ^= 1;
        }
        frames[2][l4] ^= 0x40;
        // No checksum, which UDP permits over IPv4 only.
        frames[3][l4..l4 + 2].fill(0);
        for frame in bench.pass(&frames) {
            assert_eq!(frame[12..], right[12..]);
        }
        let counts = bench.mode.counts();
        let wrong_counts = (counts["bad-ip-checksum"], counts["bad-l4-checksum"]);
        let expected = if ip.is_some() { (1, 1) } else { (0, 2) };
        assert_eq!(wrong_counts, expected, "{ip:?}");
        bench.assert_none_lost();
    }
}

#[test]
fn noisy_frames_wait_and_come_in_order() {
    let plan: noisy::NoisyPlan =
        crate::stream::FromOptions::from_options("delay=2ms,memory=4K,writes=1").unwrap();
    let mut bench = ModeBench::<noisy::Noisy>::new(&plan, &ModeSettings::default());
    let frames: Vec<_> = (0..20u8).map(|number| vec![number; 60]).collect();
    let before = linerate_sys::clock::now();
    assert!(bench.pass(&frames).is_empty());
    assert!(bench.mode.holds_frames());
    // A sleeping thread can read the deadline.
    let deadline = bench.mode.next_deadline().unwrap();
    let after = linerate_sys::clock::now();
    assert!((before + 2_000_000..=after + 2_000_000).contains(&deadline));
    std::thread::sleep(std::time::Duration::from_millis(3));
    bench.step();
    assert_eq!(bench.arrived(), frames);
    assert!(!bench.mode.holds_frames());
    bench.assert_none_lost();
}

#[test]
fn a_link_delays_copies_and_garbles_in_its_own_time() {
    let plan =
        crate::stream::FromOptions::from_options("delay=2ms,duplicate=100%,corrupt=100%").unwrap();
    let mut bench = ModeBench::<link::Link>::new(&plan, &ModeSettings::default());
    let frame = vec![0; 60];
    assert!(bench.pass(std::slice::from_ref(&frame)).is_empty());
    std::thread::sleep(std::time::Duration::from_millis(3));
    bench.step();
    let out = bench.arrived();
    assert_eq!(out.len(), 2);
    let wrong_bits = |frame: &Vec<u8>| frame.iter().map(|byte| byte.count_ones()).sum::<u32>();
    // The duplicate was copied before the bit was flipped.
    let mut bits: Vec<_> = out.iter().map(wrong_bits).collect();
    bits.sort_unstable();
    assert_eq!(bits, [0, 1]);
    let counts = bench.mode.counts();
    assert_eq!((counts["duplicated"], counts["corrupted"]), (1, 1));
    bench.assert_none_lost();
}

#[test]
fn link_with_full_loss_frees_all() {
    let plan = crate::stream::FromOptions::from_options("loss=100%").unwrap();
    let mut bench = ModeBench::<link::Link>::new(&plan, &ModeSettings::default());
    assert!(bench.pass(&vec![udp(); 32]).is_empty());
    assert_eq!(
        (bench.stream.consumed, bench.mode.counts()["lost"]),
        (32, 32)
    );
    bench.assert_none_lost();
}

/// Frames in the link or delayed at the end of the run are freed and counted.
#[test]
fn held_frames_are_counted_at_the_stop() {
    fn held_count<M: ForwardMode>(options: &str) -> u64 {
        let plan = crate::stream::FromOptions::from_options(options).unwrap();
        let mut bench = ModeBench::<M>::new(&plan, &ModeSettings::default());
        assert!(bench.pass(&vec![udp(); 32]).is_empty());
        assert!(!bench.mode.counts().contains_key(HELD_AT_STOP));
        bench.mode.release_held(&mut bench.pool);
        let count = bench.mode.counts()[HELD_AT_STOP];
        assert!(!bench.mode.holds_frames());
        bench.assert_none_lost();
        count
    }
    assert_eq!(held_count::<link::Link>("delay=1h"), 32);
    assert_eq!(held_count::<link::Link>("delay=1h,duplicate=100%"), 64);
    assert_eq!(held_count::<noisy::Noisy>("delay=1h"), 32);
}

/// A duplicate without memory for the copy is not counted as duplicated.
#[test]
fn copies_that_were_not_made_are_not_counted() {
    let plan = crate::stream::FromOptions::from_options("delay=1h,duplicate=100%").unwrap();
    let mut bench = ModeBench::<link::Link>::new(&plan, &ModeSettings::default());
    let mut allocated: Vec<_> = std::iter::from_fn(|| bench.pool.allocate()).collect();
    for _ in 0..10 {
        bench.pool.free(allocated.pop().unwrap());
    }
    // Eight frames arrive, and two copies fit.
    assert!(bench.pass(&vec![udp(); 8]).is_empty());
    let counts = bench.mode.counts();
    assert_eq!((counts["duplicated"], counts["not-duplicated"]), (2, 6));
    allocated
        .into_iter()
        .for_each(|frame| bench.pool.free(frame));
    bench.assert_none_lost();
}
