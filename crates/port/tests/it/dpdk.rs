//! DPDK ports: `cargo test -p linerate-port --features dpdk --test it dpdk::`, if libdpdk-dev is
//! installed; without the feature the kind is rejected with a hint.

use linerate_port::PortUrl;

#[cfg(not(feature = "dpdk"))]
#[test]
fn the_error_names_the_feature() {
    let error = "dpdk:net_null0".parse::<PortUrl>().unwrap_err().to_string();
    assert!(error.contains("--features dpdk"), "{error}");
    println!("skipped: built without the feature dpdk");
}

/// The EAL exists once per process, and `cargo test` runs all tests in one: only this one opens a
/// DPDK port.
#[cfg(feature = "dpdk")]
#[test]
fn frames_go_round_a_ring_of_dpdk() {
    use linerate_port::{DropCause, Port, RxQueue, TxQueue, memory_plan, open};
    use linerate_sys::frames::burst::Burst;
    use linerate_sys::frames::frame_memory::FrameRegion;

    let url: PortUrl = "dpdk:net_ring0".parse().unwrap();
    // Another port of the run may have longer frames.
    let jumbo: PortUrl = "ring:0,mtu=9000".parse().unwrap();
    let memory = FrameRegion::new(memory_plan(&[url.clone(), jumbo])).unwrap();
    let before = std::thread::available_parallelism().unwrap();
    let mut ports = match open(&url, &memory) {
        Ok(ports) => ports,
        Err(error) if error.is_missing_privilege() => {
            println!("skipped: {error}");
            return;
        }
        Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
    };
    assert_eq!(
        std::thread::available_parallelism().unwrap(),
        before,
        "the EAL's pinning is undone"
    );
    let mut pool = memory.pool();
    let mut burst = Burst::new();
    let port = &mut ports[0];
    assert!(port.capabilities().receive_descriptors.is_some());
    // Copied out and in again.
    for length in [60u16, 61, 1514] {
        let mut frame = pool.allocate().unwrap();
        frame.set_len(length);
        memory.bytes_mut(&mut frame).fill(length as u8);
        burst.push(frame).unwrap();
    }
    assert_eq!(port.transmit(&mut pool, &mut burst), 3);
    assert_eq!(port.receive(&mut pool, &mut burst), 3);
    for (frame, length) in burst.frames().iter().zip([60u16, 61, 1514]) {
        assert_eq!(frame.len(), length);
        assert!(memory.bytes(frame).iter().all(|&byte| byte == length as u8));
    }
    // A frame longer than a buffer of the device is not sent, and not counted as sent.
    pool.free_all(&mut burst);
    for length in [60u16, 3000, 61, 1514] {
        let mut frame = pool.allocate().unwrap();
        frame.set_len(length);
        memory.bytes_mut(&mut frame).fill(length as u8);
        burst.push(frame).unwrap();
    }
    assert_eq!(port.transmit(&mut pool, &mut burst), 4);
    let sent = port.transmit.counters().read();
    assert_eq!((sent.frames, sent.drops_by(DropCause::TooLong)), (6, 1));
    assert_eq!(port.receive(&mut pool, &mut burst), 3);
    let lengths: Vec<u16> = burst.frames().iter().map(|frame| frame.len()).collect();
    assert_eq!(lengths, [60, 61, 1514]);
    // Direct forwarding without a copy: two frames circulate.
    let (received, sent) = port.counters();
    let (received, sent) = (received.clone(), sent.clone());
    assert_eq!(port.transmit(&mut pool, &mut burst), 3);
    let forwarded: Option<usize> = (0..100)
        .map(|_| port.receive.forward_direct(&mut port.transmit, 32))
        .sum();
    // Fewer than the maximum: one poll per visit.
    assert_eq!(forwarded, Some(300));
    assert_eq!(received.read().frames, 306);
    assert_eq!(sent.read().frames, 309);
    assert_eq!(received.read().bytes, 102 * (60 + 61 + 1514));
    // If every poll is full, a visit makes several polls. This device counts no bytes, so the
    // lengths of few frames are read and represent the others.
    let forwarded: Option<usize> = (0..5_000)
        .map(|_| port.receive.forward_direct(&mut port.transmit, 3))
        .sum();
    assert_eq!(forwarded, Some(5_000 * 3 * 8));
    assert_eq!(received.read().frames, 306 + 120_000);
    assert_eq!(received.read().bytes, (102 + 40_000) * (60 + 61 + 1514));
    // Frames of a closed device remain valid in another one.
    let another = |name: &str| {
        let url: PortUrl = name.parse().unwrap();
        open(&url, &memory).unwrap().remove(0)
    };
    let (mut first, mut second) = (another("dpdk:net_ring1"), another("dpdk:net_ring2"));
    let fill =
        |burst: &mut Burst, pool: &mut linerate_sys::frames::frame_pool::FramePool, byte: u8| {
            for length in [60u16, 61, 1514] {
                let mut frame = pool.allocate().unwrap();
                frame.set_len(length);
                memory.bytes_mut(&mut frame).fill(byte);
                burst.push(frame).unwrap();
            }
        };
    pool.free_all(&mut burst);
    fill(&mut burst, &mut pool, 7);
    assert_eq!(first.transmit(&mut pool, &mut burst), 3);
    assert_eq!(
        first.receive.forward_direct(&mut second.transmit, 32),
        Some(3)
    );
    drop(first);
    // The next port may get its memory.
    let mut third = another("dpdk:net_ring3");
    for _ in 0..100 {
        fill(&mut burst, &mut pool, 9);
        third.transmit(&mut pool, &mut burst);
        pool.free_all(&mut burst);
    }
    assert_eq!(second.receive(&mut pool, &mut burst), 3);
    for (frame, length) in burst.frames().iter().zip([60u16, 61, 1514]) {
        assert_eq!(frame.len(), length);
        assert!(
            memory.bytes(frame).iter().all(|&byte| byte == 7),
            "{length}"
        );
    }
    pool.free_all(&mut burst);
    drop((second, third));
    // Another thread may poll the port: it is registered with the EAL.
    let mut port = ports.remove(0);
    let poller = std::thread::spawn(move || {
        let mut pool = memory.pool();
        let mut burst = Burst::new();
        let received_count = port.receive.receive(&mut pool, &mut burst);
        let sent_count = port.transmit.transmit(&mut pool, &mut burst);
        (received_count, sent_count)
    });
    assert_eq!(poller.join().unwrap(), (3, 3));
    // Opening an unknown device fails.
    let url: PortUrl = "dpdk:net_nonsense0".parse().unwrap();
    let memory = linerate_sys::frames::frame_memory::FrameRegion::new(memory_plan(
        std::slice::from_ref(&url),
    ))
    .unwrap();
    assert!(open(&url, &memory).is_err());
}
