//! `packet:` ports on real interfaces.

use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

use crate::common::{
    memory, numbered, open_in, pair, receive, receive_within, send, with_privilege,
};
use linerate_packet::checksum;
use linerate_port::{DropCause, Port, PortError, PortUrl, RxQueue, TxQueue};

const MODES: [&str; 3] = ["mmsg", "2", "3"];

#[test]
fn frames_cross_in_every_mode() {
    with_privilege("packet::frames_cross_in_every_mode", || {
        let lab = pair("");
        let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
        for mode in MODES {
            let memory = memory(4096);
            let mut pool = memory.pool();
            let url = format!("packet:eth0,v={mode},rxd=2048");
            let (mut local, mut remote) = (open_in(a, &url, &memory), open_in(b, &url, &memory));
            assert!(local.capabilities().address.is_some());
            for (from, to) in [(0, 1), (1, 0)] {
                let ports = [&mut local, &mut remote];
                let frames: Vec<Vec<u8>> = (0..500)
                    .map(|number| numbered(number, 60 + number as usize * 2))
                    .collect();
                send(ports[from], &mut pool, &frames);
                let arrived = receive(ports[to], &mut pool, frames.len());
                assert_eq!(arrived.len(), frames.len(), "{mode}");
                assert_eq!(arrived, frames, "{mode}");
                // A port does not receive the frames that it sends.
                let echoed = receive_within(
                    ports[from],
                    &mut pool,
                    1,
                    Duration::from_millis(20),
                    |frame| frame[12..14] == [0x88, 0xb5],
                );
                assert!(echoed.is_empty(), "{mode}");
            }
            let (received, sent) = local.counters();
            assert_eq!(sent.read().frames, 500, "{mode}");
            assert!(received.read().frames >= 500, "{mode}");
            assert_eq!(received.read().total_drops(), 0, "{mode}");
            local.refresh().unwrap();
            drop((local, remote));
            let free = std::iter::from_fn(|| pool.allocate()).count();
            assert_eq!(free, 4096, "{mode}: no slot is lost");
        }
    });
}

#[test]
fn tags_are_kept() {
    with_privilege("packet::tags_are_kept", || {
        let lab = pair("");
        let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
        for mode in MODES {
            let memory = memory(4096);
            let mut pool = memory.pool();
            let url = format!("packet:eth0,v={mode}");
            let (mut local, mut remote) = (open_in(a, &url, &memory), open_in(b, &url, &memory));
            let mut tagged = numbered(7, 100);
            tagged.splice(12..12, [0x81, 0, 0x20, 5]);
            send(&mut local, &mut pool, std::slice::from_ref(&tagged));
            let arrived = receive_within(
                &mut remote,
                &mut pool,
                1,
                Duration::from_secs(10),
                |frame| frame[12..14] == [0x81, 0],
            );
            assert_eq!(arrived, [tagged], "{mode}");
        }
    });
}

#[test]
fn checksums_that_a_sender_left_open_are_completed() {
    with_privilege(
        "packet::checksums_that_a_sender_left_open_are_completed",
        || {
            let lab = pair("");
            let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
            let target = (b.address(), 9000);
            for mode in MODES {
                let memory = memory(4096);
                let mut pool = memory.pool();
                let mut port = open_in(b, &format!("packet:eth0,v={mode}"), &memory);
                let client = a
                    .run(|| UdpSocket::bind((a.address(), 0)).unwrap())
                    .unwrap();
                client.send_to(b"is this right?", target).unwrap();
                let of_client =
                    |frame: &[u8]| frame.len() > 42 && frame.ends_with(b"is this right?");
                let arrived =
                    receive_within(&mut port, &mut pool, 1, Duration::from_secs(10), of_client);
                let mut complete = arrived[0].clone();
                assert!(checksum::complete(&mut complete));
                assert_eq!(arrived[0], complete, "{mode}");

                // Sent back with addresses and ports exchanged; the client's kernel accepts it.
                let mut reply = complete;
                let (ethernet, rest) = reply.split_at_mut(14);
                ethernet[..12].rotate_left(6);
                rest[12..20].rotate_left(4);
                rest[20..24].rotate_left(2);
                send(&mut port, &mut pool, &[reply]);
                client
                    .set_read_timeout(Some(Duration::from_secs(10)))
                    .unwrap();
                let mut buffer = [0; 64];
                let size = loop {
                    match client.recv(&mut buffer) {
                        Ok(size) => break size,
                        // The kernel of `b` also received the request and rejects it: no socket has
                        // that port.
                        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
                        Err(error) => panic!("{mode}: {error}"),
                    }
                };
                assert_eq!(&buffer[..size], b"is this right?", "{mode}");
            }
        },
    );
}

#[test]
fn losses_are_counted_by_cause() {
    with_privilege("packet::losses_are_counted_by_cause", || {
        let lab = pair("");
        let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
        for mode in MODES {
            let memory = memory(4096);
            let mut pool = memory.pool();
            let mut local = open_in(a, &format!("packet:eth0,v={mode},txd=512"), &memory);
            let mut remote = open_in(b, &format!("packet:eth0,v={mode},mtu=500,rxd=4"), &memory);
            assert_eq!(remote.capabilities().frame_bytes, 518);
            let long = numbered(0, 600);
            send(&mut local, &mut pool, &[long, numbered(1, 518)]);
            let arrived = receive(&mut remote, &mut pool, 1);
            assert_eq!(arrived, [numbered(1, 518)], "{mode}");
            let longer = remote
                .receive
                .counters()
                .read()
                .drops_by(DropCause::TooLong);
            assert!(longer >= 1, "{mode}");

            let before = remote.receive.counters().read().frames;
            let many: Vec<Vec<u8>> = (0..2000).map(|number| numbered(number, 500)).collect();
            send(&mut local, &mut pool, &many);
            let arrived = receive_within(
                &mut remote,
                &mut pool,
                2000,
                Duration::from_millis(200),
                |_| true,
            );
            remote.refresh().unwrap();
            let read = remote.receive.counters().read();
            let lost = read.drops_by(DropCause::RingFull);
            assert!(lost > 0, "{mode}: {read:?}");
            assert_eq!(read.frames - before, arrived.len() as u64, "{mode}");
            // Frames of the kernel itself (neighbour discovery) may be among them.
            assert!(arrived.len() as u64 + lost >= 2000, "{mode}: {read:?}");
            assert!(local.transmit.counters().read().frames == 2002, "{mode}");
        }
    });
}

#[test]
fn a_frame_that_the_interface_cannot_send_is_counted() {
    with_privilege(
        "packet::a_frame_that_the_interface_cannot_send_is_counted",
        || {
            let lab = pair("mtu = 600");
            let memory = memory(512);
            let mut pool = memory.pool();
            for mode in MODES {
                let url = format!("packet:eth0,v={mode}");
                let mut port = open_in(lab.host("a").unwrap(), &url, &memory);
                let frames = [numbered(0, 614), numbered(1, 700), numbered(2, 60)];
                send(&mut port, &mut pool, &frames);
                let sent = port.transmit.counters().read();
                assert_eq!(
                    (sent.frames, sent.drops_by(DropCause::TooLong)),
                    (2, 1),
                    "{mode}"
                );
            }
        },
    );
}

#[test]
fn queues_share_an_interface() {
    with_privilege("packet::queues_share_an_interface", || {
        let lab = pair("");
        let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
        let memory = memory(8192);
        let mut pool = memory.pool();
        let url: PortUrl = "packet:eth0,queues=2".parse().unwrap();
        let mut remote = b
            .run(|| linerate_port::open(&url, &memory).unwrap())
            .unwrap();
        assert_eq!(remote[1].capabilities().name, "packet:eth0 queue 1");
        let client = a
            .run(|| UdpSocket::bind((a.address(), 0)).unwrap())
            .unwrap();
        for port in 1000..1064 {
            client.send_to(b"flow", (b.address(), port)).ok();
        }
        let flow = |frame: &[u8]| frame.len() >= 46 && &frame[42..46] == b"flow";
        let per_queue = remote.iter_mut().map(|port| {
            receive_within(port, &mut pool, 64, Duration::from_millis(300), flow).len()
        });
        let per_queue: Vec<usize> = per_queue.collect();
        assert_eq!(per_queue.iter().sum::<usize>(), 64, "{per_queue:?}");
        assert!(per_queue.iter().all(|&count| count > 0), "{per_queue:?}");
    });
}

#[test]
fn a_removed_interface_is_reported() {
    with_privilege("packet::a_removed_interface_is_reported", || {
        for mode in MODES {
            let lab = pair("");
            let memory = memory(512);
            let mut pool = memory.pool();
            let url = format!("packet:eth0,v={mode}");
            let mut port = open_in(lab.host("a").unwrap(), &url, &memory);
            port.refresh().unwrap();
            drop(lab);
            let mut error = None;
            for _ in 0..1000 {
                receive_within(&mut port, &mut pool, 1, Duration::from_millis(1), |_| true);
                error = port.receive.refresh().err();
                if error.is_some() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(matches!(error, Some(PortError::Stopped { .. })), "{mode}");
        }
    });
}

#[test]
fn unusable_interfaces_are_rejected() {
    let memory = memory(64);
    let open_error = |url: &str| {
        crate::common::try_open(url, &memory)
            .map(|_| ())
            .unwrap_err()
    };
    assert!(matches!(
        open_error("packet:no-such-if"),
        PortError::NoInterface { .. }
    ));
    // The interface with the default route of this machine, if there is one.
    let routes = std::fs::read_to_string("/proc/thread-self/net/route").unwrap_or_default();
    let default = routes.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(7) == Some(&"00000000")).then(|| fields[0])
    });
    if let Some(interface) = default {
        let error = open_error(&format!("packet:{interface}"));
        assert!(matches!(error, PortError::InterfaceInUse { .. }), "{error}");
        assert!(error.to_report().next_step.contains("--force"));
    }
    // Loopback carries this host's connections to itself, of which a packet socket gets copies.
    if linerate_lab::privileged() {
        assert!(crate::common::try_open("packet:lo,mtu=1500", &memory).is_ok());
    } else {
        let error = open_error("packet:lo,mtu=1500");
        assert!(error.is_missing_privilege(), "{error}");
    }
}

#[test]
fn a_remote_end_that_is_down_clears_the_carrier() {
    with_privilege(
        "packet::a_remote_end_that_is_down_clears_the_carrier",
        || {
            let lab = pair("");
            let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
            let memory = memory(4096);
            let port = open_in(a, "packet:eth0", &memory);
            // Queried from outside its namespace.
            assert_eq!(port.capabilities().has_carrier(), Some(true));
            for (state, expected) in [("down", false), ("up", true)] {
                let set = || {
                    Command::new("ip")
                        .args(["link", "set", "eth0", state])
                        .status()
                };
                assert!(b.run(set).unwrap().unwrap().success());
                assert_eq!(port.capabilities().has_carrier(), Some(expected));
            }
            let ring = crate::common::open("ring:0", &memory);
            assert_eq!(ring.capabilities().has_carrier(), None);
        },
    );
}
