//! `tap:` ports, with the kernel's network stack at the other end.

use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{memory, open_in, pair, receive_within, send, with_privilege};
use linerate_lab::LabHost;
use linerate_packet::checksum;
use linerate_packet::vnet::{Segmentation, VNET_HEADER_BYTES, VnetHeader};
use linerate_port::{AnyPort, DropCause, Port, PortError, PortUrl, RxQueue, TxQueue};
use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;

const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// Host 10.9.0.2 on the wire of a tap whose interface has the address 10.9.0.1.
struct TapPeer {
    port: AnyPort,
    pool: FramePool,
    header_bytes: usize,
}

impl TapPeer {
    fn new(host: &LabHost, url: &str) -> Self {
        let parsed: PortUrl = url.parse().unwrap();
        let memory = FrameRegion::new(parsed.memory_plan()).unwrap();
        let port = open_in(host, url, &memory);
        let header = usize::from(port.capabilities().vnet_header);
        Self {
            port,
            pool: memory.pool(),
            header_bytes: header,
        }
    }

    fn send(&mut self, header: VnetHeader, frame: &[u8]) {
        let header = &header.to_bytes()[..self.header_bytes];
        send(&mut self.port, &mut self.pool, &[[header, frame].concat()]);
    }

    /// Receives the next UDP datagram, with the headers in front of it; replies to ARP meanwhile.
    fn datagram(&mut self) -> Vec<u8> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            assert!(Instant::now() < deadline, "no datagram received");
            let timeout = Duration::from_millis(100);
            let arrived = receive_within(&mut self.port, &mut self.pool, 1, timeout, |_| true);
            for frame in arrived {
                let ethernet = &frame[self.header_bytes..];
                match ethernet[12..14] {
                    [8, 6] if ethernet[38..42] == [10, 9, 0, 2] => {
                        let mut reply = ethernet.to_vec();
                        reply.copy_within(6..12, 0);
                        reply[6..12].copy_from_slice(&PEER_MAC);
                        reply[21] = 2;
                        reply[32..42].copy_from_slice(&ethernet[22..32]);
                        reply[22..28].copy_from_slice(&PEER_MAC);
                        reply[28..32].copy_from_slice(&[10, 9, 0, 2]);
                        self.send(VnetHeader::default(), &reply);
                    }
                    [8, 0] if ethernet[23] == 17 && ethernet[30..34] == [10, 9, 0, 2] => {
                        return frame;
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Reply to a datagram: the same with source and destination exchanged.
fn reply_to(ethernet: &[u8]) -> Vec<u8> {
    let mut reply = ethernet.to_vec();
    let (link, rest) = reply.split_at_mut(14);
    link.rotate_left(6);
    link[..6].copy_from_slice(&ethernet[6..12]);
    link[6..12].copy_from_slice(&PEER_MAC);
    link[12..14].copy_from_slice(&[8, 0]);
    rest[12..20].rotate_left(4);
    rest[20..24].rotate_left(2);
    reply
}

fn socket(host: &LabHost) -> UdpSocket {
    let socket = host.run(|| UdpSocket::bind("10.9.0.1:0").unwrap()).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    socket
}

#[test]
fn the_kernel_is_at_the_other_end() {
    with_privilege("tap::the_kernel_is_at_the_other_end", || {
        let lab = pair("");
        let host = lab.host("a").unwrap();
        let mut peer = TapPeer::new(host, "tap:t0,address=10.9.0.1/24");
        let client = socket(host);
        client.send_to(b"question", "10.9.0.2:7").unwrap();
        let request = peer.datagram();
        assert_eq!(&request[42..], b"question");
        let mut complete = request.clone();
        assert!(checksum::complete(&mut complete));
        assert_eq!(
            request, complete,
            "without vnet the kernel completes checksums"
        );
        peer.send(VnetHeader::default(), &reply_to(&request));
        let mut buffer = [0; 64];
        let size = client.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..size], b"question");
        let (received, sent) = peer.port.counters();
        assert!(received.read().frames >= 2 && sent.read().frames == 2);
        peer.port.refresh().unwrap();

        // After an empty poll the first of several frames is delivered alone.
        let mut burst = Burst::new();
        let mut poll = |peer: &mut TapPeer| {
            let count = peer.port.receive.receive(&mut peer.pool, &mut burst);
            peer.pool.free_all(&mut burst);
            count
        };
        while poll(&mut peer) > 0 {}
        for _ in 0..3 {
            client.send_to(b"question", "10.9.0.2:7").unwrap();
        }
        assert_eq!([poll(&mut peer), poll(&mut peer)], [1, 2]);
        let TapPeer { port, mut pool, .. } = peer;
        drop(port);
        let free = std::iter::from_fn(|| pool.allocate()).count();
        assert_eq!(free, pool.memory().frames() as usize, "no slot is lost");
    });
}

#[test]
fn with_vnet_checksums_and_segmentation_are_left_open() {
    with_privilege(
        "tap::with_vnet_checksums_and_segmentation_are_left_open",
        || {
            let lab = pair("");
            let host = lab.host("a").unwrap();
            let mut peer = TapPeer::new(host, "tap:t0,address=10.9.0.1/24,vnet");
            assert_eq!(peer.header_bytes, VNET_HEADER_BYTES);
            let client = socket(host);
            client.send_to(b"question", "10.9.0.2:7").unwrap();
            let request = peer.datagram();
            let header = VnetHeader::parse(&request).unwrap();
            assert!(header.needs_checksum, "{header:?}");
            assert_eq!((header.checksum_start, header.checksum_offset), (34, 6));
            // The reply's checksum is partial too: the sum of the pseudo header does not change.
            peer.send(header, &reply_to(&request[VNET_HEADER_BYTES..]));
            let mut buffer = [0; 64];
            let size = client.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..size], b"question");

            // Three datagrams in one frame, if the kernel supports it (Linux 6.2).
            if !peer.port.capabilities().notes.is_empty() {
                println!("skipped: the rest: {:?}", peer.port.capabilities().notes);
                return;
            }
            let mut long = reply_to(&request[VNET_HEADER_BYTES..]);
            long.truncate(42);
            long.extend((0..3000u32).map(|at| (at / 1000) as u8));
            long[16..18].copy_from_slice(&3028u16.to_be_bytes());
            long[24..26].fill(0);
            let sum = !checksum::sum(&long[14..34]);
            long[24..26].copy_from_slice(&sum.to_ne_bytes());
            long[38..40].copy_from_slice(&3008u16.to_be_bytes());
            let pseudo = [checksum::sum(&long[26..34]), 17u16.to_be(), 3008u16.to_be()];
            let partial = pseudo.into_iter().fold(0, checksum::add_folded);
            long[40..42].copy_from_slice(&partial.to_ne_bytes());
            let header = VnetHeader {
                needs_checksum: true,
                segmentation: Segmentation::Udp,
                header_bytes: 42,
                segment_bytes: 1000,
                checksum_start: 34,
                checksum_offset: 6,
                ..VnetHeader::default()
            };
            peer.send(header, &long);
            let mut buffer = [9; 4000];
            for part in 0..3 {
                assert_eq!(client.recv(&mut buffer).unwrap(), 1000, "datagram {part}");
                assert!(buffer[..1000].iter().all(|&byte| byte == part));
            }
        },
    );
}

#[test]
fn frames_of_a_wrong_length_are_counted() {
    with_privilege("tap::frames_of_a_wrong_length_are_counted", || {
        let lab = pair("");
        let mut peer = TapPeer::new(lab.host("a").unwrap(), "tap:t0,mtu=600");
        send(
            &mut peer.port,
            &mut peer.pool,
            &[vec![1; 619], vec![2; 10], vec![2; 618]],
        );
        let sent = peer.port.transmit.counters().read();
        assert_eq!(sent.frames, 1);
        assert_eq!(
            (
                sent.drops_by(DropCause::TooLong),
                sent.drops_by(DropCause::Invalid)
            ),
            (1, 1)
        );
    });
}

#[test]
fn queues_are_of_one_interface() {
    with_privilege("tap::queues_are_of_one_interface", || {
        let lab = pair("");
        let memory = memory(512);
        let url: PortUrl = "tap:t0,queues=2".parse().unwrap();
        let partial = || linerate_port::open(&url, &memory);
        let ports = lab.host("a").unwrap().run(partial).unwrap().unwrap();
        assert_eq!(ports.len(), 2);
        let single = || {
            crate::common::try_open("tap:t0", &memory)
                .map(|_| ())
                .unwrap_err()
        };
        let error = lab.host("a").unwrap().run(single).unwrap();
        assert!(matches!(error, PortError::InUse { .. }), "{error}");
        let none = || {
            crate::common::try_open("tap:eth0", &memory)
                .map(|_| ())
                .unwrap_err()
        };
        let error = lab.host("a").unwrap().run(none).unwrap();
        assert!(matches!(error, PortError::InUse { .. }), "{error}");
    });
}

/// A persistent tap is used with our settings, and its own are restored.
#[test]
fn a_tap_that_was_there_is_left_as_it_was() {
    with_privilege("tap::a_tap_that_was_there_is_left_as_it_was", || {
        let lab = pair("");
        let host = lab.host("a").unwrap();
        let ip = |args: &str| {
            let run = || Command::new("ip").args(args.split(' ')).output();
            let output = host.run(run).unwrap().expect("ip runs");
            assert!(output.status.success(), "ip {args}: {output:?}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let offloads = || {
            let run = || linerate_host::settings::interface::read_switches("t0");
            host.run(run).unwrap().expect("offloads are readable")
        };
        for (address, up) in [(None, false), (Some("10.9.9.9/16"), true)] {
            ip("tuntap add dev t0 mode tap");
            ip("link set t0 mtu 1400");
            if let Some(address) = address {
                ip(&format!("addr add {address} dev t0"));
            }
            if up {
                ip("link set t0 up");
            }
            let state = || {
                let shown = ip("-o addr show dev t0");
                let addresses: Vec<String> = shown
                    .split(' ')
                    .filter(|field| field.starts_with("10.") && field.contains('/'))
                    .map(str::to_owned)
                    .collect();
                let link = ip("-o link show dev t0");
                let flags = link.split(['<', '>']).nth(1).unwrap_or_default().to_owned();
                let is_up = flags.split(',').any(|flag| flag == "UP");
                (addresses, is_up, link.contains("mtu 1400"), offloads())
            };
            let before = state();
            assert_eq!((before.1, before.2), (up, true), "{before:?}");
            let peer = TapPeer::new(host, "tap:t0,address=10.9.0.1/24,mtu=600,vnet");
            let (addresses, is_up, has_old_mtu, during) = state();
            assert_eq!(addresses, ["10.9.0.1/24"]);
            assert_eq!((is_up, has_old_mtu), (true, false));
            assert_ne!(during, before.3, "checksums are left to us");
            // Dropped on this thread, which is in another network namespace.
            drop(peer);
            assert_eq!(state(), before);
            ip("tuntap del dev t0 mode tap");
        }
    });
}

/// Not a test: the code of a child process.
#[test]
fn child() {
    if std::env::var_os("LINERATE_TEST_TAP").is_none() {
        return;
    }
    let memory = memory(64);
    let _port = crate::common::open("tap:t0", &memory);
    println!("open");
    std::thread::sleep(Duration::from_secs(60));
}

fn has(host: &LabHost, interface: &str) -> bool {
    let read = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    host.run(read).unwrap().contains(interface)
}

#[test]
fn the_interface_vanishes_with_its_process() {
    with_privilege("tap::the_interface_vanishes_with_its_process", || {
        let lab = pair("");
        let host = lab.host("a").unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "tap::child", "--nocapture"])
            .env("LINERATE_TEST_TAP", "1")
            .stdout(Stdio::null());
        let mut child = host.run(|| command.spawn().unwrap()).unwrap();
        let wait_until = |there: bool| {
            let deadline = Instant::now() + Duration::from_secs(10);
            while has(host, "t0:") != there {
                assert!(Instant::now() < deadline, "t0 there: {}", !there);
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        wait_until(true);
        child.kill().unwrap();
        child.wait().unwrap();
        wait_until(false);
    });
}
