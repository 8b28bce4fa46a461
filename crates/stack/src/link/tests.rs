use linerate_port::{AnyPort, AnyReceive, PortUrl, RxQueue, open};

use super::*;
use crate::stack::memory_plan;

/// Returns a link whose port is one end of a ring, the receive half of that port, and the port
/// at the other end.
pub(crate) fn on_ring(settings: &[&str], frames: u32) -> (LinkLayer, AnyReceive, AnyPort) {
    let mut config = StackConfig::default();
    for setting in settings {
        config.apply(setting).unwrap();
    }
    let mtu = config.mtu;
    let url = |end| format!("ring:l,end={end},rxd={frames},mtu={mtu}").parse();
    let urls: [PortUrl; 2] = ["a", "b"].map(|end| url(end).unwrap());
    let plan = memory_plan(&config, &urls[0]).combine(memory_plan(&config, &urls[1]));
    let memory = FrameRegion::new(MemoryPlan {
        huge_pages: false,
        ..plan
    });
    let memory = memory.unwrap();
    let [local_port, remote_port] = urls.map(|url| open(&url, &memory).unwrap().remove(0));
    let addressing = StackAddressing::new(&["10.0.0.1/24", "fd00::1/64"]).unwrap();
    let link = LinkLayer::new(
        &memory,
        local_port.transmit,
        0,
        addressing.with_full_capacity(),
        [2, 0, 0, 0, 0, 1],
        &config,
    );
    (link, local_port.receive, remote_port)
}

/// Pushes a frame with `kind` in its first byte.
fn push(link: &mut LinkLayer, kind: u8) {
    let mut frame = link.allocate_frame(20).unwrap();
    link.memory.bytes_mut(&mut frame)[0] = kind;
    link.push(frame);
}

#[test]
fn replies_take_half_of_what_a_port_takes() {
    // Budgets for many frames, for a few, and for one; and a port that takes two per poll.
    for (descriptors, frames) in [(64u32, 512u32), (6, 512), (1, 512), (64, 8)] {
        let setting = format!("tx_descriptors={descriptors}");
        let (mut link, _receive, mut remote_port) = on_ring(&[&setting], frames);
        let mut pool = link.memory.pool();
        let port_takes = if frames == 8 { 2 } else { 64 };
        let mut sent = [0u32; 2];
        for poll in 0..400u64 {
            link.begin_poll(poll);
            for _ in 0..64 {
                if link.may_reply(1) {
                    push(&mut link, 1);
                }
            }
            while link.can_send() {
                push(&mut link, 0);
            }
            link.flush();
            let mut received = 0;
            while received < port_takes {
                let mut burst = Burst::with_limit(port_takes - received);
                let count = remote_port.receive.receive(&mut pool, &mut burst);
                for frame in burst.frames() {
                    let kind = link.memory.bytes(frame)[0];
                    sent[usize::from(kind)] += u32::from(poll >= 100);
                }
                pool.free_all(&mut burst);
                received += count;
                if count == 0 {
                    break;
                }
            }
        }
        let [other_frames, replies] = sent;
        let all = 300 * descriptors.min(port_takes as u32);
        let name = format!("{descriptors} descriptors, {frames} frames: {sent:?}");
        assert_eq!(other_frames + replies, all, "{name}");
        // Part of their half is reserved for neighbour replies.
        assert!(replies * 4 >= all, "{name}");
        assert!(other_frames * 2 + 10 >= all, "{name}");
        assert!(link.counters.link.out_answers_limited > 0);
    }
}

/// Like the fragments of a long datagram: more frames than ring and burst hold.
#[test]
fn waiting_frames_leave_a_short_ring_complete() {
    let (mut link, _receive, mut remote_port) = on_ring(&["tx_descriptors=4"], 4);
    let mut pool = link.memory.pool();
    let to = "10.0.0.2".parse().unwrap();
    link.begin_poll(0);
    for number in 0..45 {
        let mut frame = link.allocate_frame(40).unwrap();
        link.packet(&mut frame).fill(number);
        link.send(frame, to, VnetHeader::default());
    }
    link.neighbors.learn(to, [2, 0, 0, 0, 0, 2], true, 0);
    link.release_resolved();
    let mut sent = Vec::new();
    for poll in 1..100 {
        let mut burst = Burst::new();
        remote_port.receive.receive(&mut pool, &mut burst);
        let waited = burst.frames().iter().map(|frame| link.memory.bytes(frame));
        sent.extend(
            waited
                .filter(|bytes| bytes.len() == 54)
                .map(|bytes| bytes[53]),
        );
        pool.free_all(&mut burst);
        link.begin_poll(poll);
        assert!(link.poll_neighbors().is_none());
        link.flush();
    }
    assert_eq!(sent, (0..45).collect::<Vec<u8>>());
    assert_eq!(link.counters.link.out_ring_full, 0);
}

/// A burst of long frames is larger than the caches that one of them fits into.
#[test]
fn a_long_frame_leaves_at_once() {
    let (mut link, _receive, mut remote_port) = on_ring(&["mtu=60000"], 64);
    let mut pool = link.memory.pool();
    link.begin_poll(0);
    let received = [1_000, 40_000, 40_001, 1_001].map(|bytes| {
        let frame = link.allocate_frame(bytes).unwrap();
        link.push(frame);
        let mut burst = Burst::new();
        remote_port.receive.receive(&mut pool, &mut burst);
        pool.free_all(&mut burst)
    });
    // Frames pushed before it leave with it.
    assert_eq!(received, [0, 2, 1, 0]);
    link.flush();
    let mut burst = Burst::new();
    assert_eq!(remote_port.receive.receive(&mut pool, &mut burst), 1);
    pool.free_all(&mut burst);
}

#[test]
fn a_long_reply_uses_later_shares() {
    let (mut link, _receive, _remote_port) = on_ring(&["tx_descriptors=4"], 64);
    link.begin_poll(0);
    // 45 frames: the share of 22 polls.
    assert!(link.may_reply(45));
    let waited = (1..100).find(|&poll| {
        link.begin_poll(poll);
        link.may_reply(1)
    });
    assert_eq!(waited, Some(23));
}
