//! The stack against the kernel's network stack, over a tap, a packet socket and AF_XDP, in network
//! namespaces.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{BulkTransfer, any_address, config, pattern_byte};
use linerate_lab::{Lab, LabHost, Topology, privileged};
use linerate_stack::{SocketId, Stack, StackAddressing, TcpState, memory_plan, port_url};
use linerate_sys::frames::frame_memory::FrameRegion;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Test case: a stack on one side, a host with the kernel's stack on the other.
struct KernelCase {
    url: &'static str,
    /// Host in whose network namespace the port is opened.
    port_host: &'static str,
    stack: &'static str,
    kernel: &'static str,
    settings: &'static [&'static str],
    /// Keys of the link between both hosts.
    link: &'static str,
}

const TAP: KernelCase = KernelCase {
    url: "tap:t0,address=10.9.0.1/24",
    port_host: "a",
    stack: "10.9.0.2",
    kernel: "10.9.0.1",
    settings: &[],
    link: "",
};

const TAP_VNET: KernelCase = KernelCase {
    url: "tap:t0,address=10.9.0.1/24,vnet",
    settings: &[
        "checksum=offload",
        "tcp.send_buffer=1M",
        "tcp.receive_window=1M",
    ],
    ..TAP
};

const TAP_V6: KernelCase = KernelCase {
    stack: "fd09::2",
    kernel: "fd09::1",
    ..TAP
};

const TAP_VNET_V6: KernelCase = KernelCase {
    stack: "fd09::2",
    kernel: "fd09::1",
    ..TAP_VNET
};

/// Segments that the sender leaves to a segmenting device are longer than the port's frames.
const PLAIN: &str = "offloads = { tso = false, gso = false, gro = false, tx-checksumming = false }";

const PACKET: KernelCase = KernelCase {
    url: "packet:eth0",
    port_host: "b",
    stack: "10.77.0.50",
    kernel: "10.77.0.1",
    settings: &[],
    link: PLAIN,
};

const XDP: KernelCase = KernelCase {
    url: "xdp:eth0,mode=generic",
    ..PACKET
};

/// A veth with the settings of `linerate lab` and `ip link`: the kernel leaves checksums to its
/// device, and a port in the driver sees frames before a checksum could be made.
const XDP_WITH_OFFLOADS: KernelCase = KernelCase {
    url: "xdp:eth0,mode=native",
    link: "",
    ..PACKET
};

/// Stack in a thread of its own that echoes on port 7, over UDP and TCP.
struct EchoServer<'a> {
    lab: &'a Lab,
    case: &'a KernelCase,
}

fn elapsed_ns(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap() + 1
}

fn start_lab(name: &KernelCase) -> Lab {
    let file = format!(
        "[hosts.a]\n[hosts.b]\n[[links]]\nbetween = ['a', 'b']\n{}\n",
        name.link
    );
    let topology = Topology::from_toml(&file).expect("a good lab file");
    Lab::up(&topology).unwrap_or_else(|error| panic!("{}", error.full_text()))
}

fn open_stack(lab: &Lab, name: &KernelCase) -> Stack {
    let config = config(name.settings);
    let url = port_url(&config, name.url).unwrap();
    let memory = FrameRegion::new(memory_plan(&config, &url)).unwrap();
    let host = lab.host(name.port_host).unwrap();
    let port = host
        .run(|| linerate_port::open(&url, &memory))
        .unwrap()
        .unwrap_or_else(|error| panic!("{error}"))
        .remove(0);
    if name.kernel.contains(':') {
        let network = format!("{}/24", name.kernel);
        let args = ["address", "add", &network, "dev", "t0", "nodad"];
        let added = host.run(|| Command::new("ip").args(args).status());
        assert!(added.unwrap().unwrap().success());
    }
    let addressing = StackAddressing::new(&[&format!("{}/24", name.stack)]).unwrap();
    Stack::new(port, &memory, &config, &addressing).unwrap()
}

/// Connection that returns what it receives.
struct EchoConnection {
    socket: SocketId,
    buffered: Vec<u8>,
    has_received_end: bool,
}

impl EchoConnection {
    /// Returns false once the connection is closed.
    fn step(&mut self, stack: &mut Stack) -> bool {
        if self.buffered.is_empty() && !self.has_received_end {
            let buffered = &mut self.buffered;
            let got = stack.tcp_receive(self.socket, |bytes| {
                buffered.extend_from_slice(bytes);
                (bytes.len(), bytes.len())
            });
            match got {
                Poll::Ready(Ok(0)) => self.has_received_end = true,
                Poll::Ready(Ok(_)) | Poll::Pending => {}
                Poll::Ready(Err(_)) => {
                    stack.close(self.socket).unwrap();
                    return false;
                }
            }
        }
        while !self.buffered.is_empty() {
            let buffered = &self.buffered;
            let sent = stack.tcp_send(self.socket, |space| {
                let count = space.len().min(buffered.len());
                space[..count].copy_from_slice(&buffered[..count]);
                count
            });
            match sent {
                Poll::Ready(Ok(count)) => drop(self.buffered.drain(..count)),
                _ => return true,
            }
        }
        if self.has_received_end {
            stack.close(self.socket).unwrap();
        }
        !self.has_received_end
    }
}

impl EchoServer<'_> {
    /// Runs `client` with the kernel's sockets while the stack echoes; returns the stack.
    fn run_client(&self, client: impl FnOnce(&LabHost) + Send) -> Stack {
        let mut stack = open_stack(self.lab, self.case);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                serve(&mut stack, &done);
                stack
            });
            // Set on panic of the client, too, or the server would run for ever.
            struct Done<'a>(&'a AtomicBool);
            impl Drop for Done<'_> {
                fn drop(&mut self) {
                    self.0.store(true, Relaxed);
                }
            }
            let end = Done(&done);
            client(self.lab.host("a").unwrap());
            drop(end);
            worker.join().unwrap()
        })
    }
}

fn serve(stack: &mut Stack, done: &AtomicBool) {
    let start = Instant::now();
    let udp = stack.udp_bind(any_address(7)).unwrap();
    let listener = stack.tcp_listen(any_address(7), 16).unwrap();
    let mut connections: Vec<EchoConnection> = Vec::new();
    let mut buffer = Vec::with_capacity(65_536);
    let mut waiting: Option<SocketAddr> = None;
    while !done.load(Relaxed) {
        if start.elapsed() > 2 * TIMEOUT {
            break;
        }
        let outcome = stack.poll(elapsed_ns(start));
        loop {
            if waiting.is_none() {
                let got = stack.udp_receive(udp, |payload, meta| {
                    buffer.clear();
                    buffer.extend_from_slice(payload);
                    meta.from
                });
                let Poll::Ready(from) = got else { break };
                waiting = Some(from.unwrap());
            }
            let sent = stack.udp_send(udp, waiting, buffer.len(), |payload| {
                payload.copy_from_slice(&buffer);
            });
            if sent.is_pending() {
                break;
            }
            waiting = None;
        }
        while let Poll::Ready(socket) = stack.tcp_accept(listener) {
            connections.push(EchoConnection {
                socket: socket.unwrap(),
                buffered: Vec::new(),
                has_received_end: false,
            });
        }
        connections.retain_mut(|connection| connection.step(stack));
        if outcome.received == 0 {
            thread::yield_now();
        }
    }
    // State for a failed test.
    println!(
        "{:#?}, deadline {:?}",
        stack.counters(),
        stack.next_deadline()
    );
    for EchoConnection {
        socket, buffered, ..
    } in &connections
    {
        let (state, queued) = (stack.tcp_state(*socket), stack.tcp_queued(*socket));
        println!("{state:?}, queued {queued:?}, held {}", buffered.len());
    }
}

fn with_lab(name: &KernelCase, test: impl FnOnce(&EchoServer)) {
    if !privileged() {
        println!("skipped: namespaces and taps need CAP_SYS_ADMIN and CAP_NET_ADMIN");
        return;
    }
    let lab = start_lab(name);
    test(&EchoServer {
        lab: &lab,
        case: name,
    });
}

fn address(text: &str, port: u16) -> SocketAddr {
    SocketAddr::new(text.parse::<IpAddr>().unwrap(), port)
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(pattern_byte).collect()
}

fn echo_datagrams(name: &KernelCase, sizes: &'static [usize]) {
    with_lab(name, |server| {
        let to = address(name.stack, 7);
        let stack = server.run_client(|host| {
            let any = address(if to.is_ipv4() { "0.0.0.0" } else { "::" }, 0);
            let socket = host.run(|| UdpSocket::bind(any).unwrap()).unwrap();
            socket.connect(to).unwrap();
            socket
                .set_read_timeout(Some(Duration::from_secs(2)))
                .unwrap();
            let mut buffer = vec![0; 65_536];
            let mut replies = 0;
            for round in 0..20 {
                for &size in sizes {
                    let request = content(size);
                    // The first one may be lost while the port comes up; a busy machine may drop
                    // others.
                    for _ in 0..10 {
                        socket.send(&request).unwrap();
                        if let Ok(count) = socket.recv(&mut buffer) {
                            assert!(buffer[..count] == request, "{size} B in round {round}");
                            replies += 1;
                            break;
                        }
                    }
                }
            }
            assert_eq!(replies, 20 * sizes.len());
        });
        let counters = stack.counters();
        assert_eq!(counters.udp.in_checksum_errors, 0, "{counters:#?}");
        assert_eq!(counters.ip.in_header_errors, 0);
    });
}

#[test]
fn datagrams_over_a_tap() {
    echo_datagrams(&TAP, &[0, 1, 64, 1472, 1473, 8_000, 65_507]);
}

#[test]
fn datagrams_over_a_tap_with_offloads() {
    echo_datagrams(&TAP_VNET, &[0, 1, 64, 1472, 1473, 8_000, 65_507]);
}

/// Fragments in both directions: the kernel reassembles what the stack fragments, and vice versa.
#[test]
fn datagrams_of_ipv6_over_a_tap() {
    for name in [&TAP_V6, &TAP_VNET_V6] {
        echo_datagrams(name, &[0, 1, 64, 1452, 1453, 4_000, 65_527]);
    }
}

#[test]
fn datagrams_over_a_packet_socket() {
    echo_datagrams(&PACKET, &[1, 1472, 20_000]);
}

#[test]
fn datagrams_over_xdp() {
    echo_datagrams(&XDP, &[1, 1472, 20_000]);
}

/// Sends `bytes` from the kernel and compares what is echoed, over several connections one after
/// the other.
fn echo_streams(name: &KernelCase, bytes: usize, times: usize) {
    echo_slowly(name, bytes, times, Duration::ZERO);
}

/// Like [`echo_streams`], with a reader that starts after a pause: until then all windows are full.
fn echo_slowly(name: &KernelCase, bytes: usize, times: usize, pause: Duration) {
    with_lab(name, |server| {
        let to = address(name.stack, 7);
        let stack = server.run_client(|host| {
            for _ in 0..times {
                let stream = host.run(|| TcpStream::connect(to).unwrap()).unwrap();
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                stream.set_write_timeout(Some(TIMEOUT)).unwrap();
                let all = content(bytes);
                thread::scope(|scope| {
                    scope.spawn(|| {
                        (&stream).write_all(&all).unwrap();
                        stream.shutdown(Shutdown::Write).unwrap();
                    });
                    thread::sleep(pause);
                    let mut echoed = Vec::new();
                    (&stream).read_to_end(&mut echoed).unwrap();
                    assert_eq!(echoed.len(), all.len());
                    assert!(echoed == all, "the content differs");
                });
            }
        });
        let counters = stack.counters();
        assert_eq!(counters.tcp.in_checksum_errors, 0, "{counters:#?}");
        assert_eq!(counters.tcp.passive_opens, times as u64);
        assert_eq!(counters.tcp.established_resets, 0, "{counters:#?}");
    });
}

#[test]
fn streams_over_a_tap() {
    echo_streams(&TAP, 4_000_000, 3);
}

#[test]
fn streams_over_a_tap_with_offloads() {
    echo_streams(&TAP_VNET, 20_000_000, 3);
}

/// Acknowledgements then lie beyond a window whose edge was rounded down.
#[test]
fn full_windows_in_both_directions_do_not_lock() {
    for settings in [
        &["tcp.receive_window=1000003", "tcp.send_buffer=1M"][..],
        &["tcp.receive_window=99991", "tcp.send_buffer=1M"],
        &["tcp.receive_window=1024", "tcp.send_buffer=64K"],
    ] {
        let name = KernelCase { settings, ..TAP };
        echo_slowly(&name, 3_000_000, 1, Duration::from_millis(700));
    }
}

#[test]
fn streams_over_a_packet_socket() {
    echo_streams(&PACKET, 2_000_000, 2);
}

#[test]
fn streams_over_xdp() {
    echo_streams(&XDP, 2_000_000, 2);
}

/// For UDP and TCP, without any setting: partial checksums are accepted, and counted.
#[test]
fn partial_checksums_are_accepted_from_a_veth() {
    echo_datagrams(&XDP_WITH_OFFLOADS, &[1, 64, 1472, 20_000]);
    echo_streams(&XDP_WITH_OFFLOADS, 1_000_000, 2);
    with_lab(&XDP_WITH_OFFLOADS, |server| {
        let stack = server.run_client(|host| {
            let send_request = || {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                socket.set_read_timeout(Some(TIMEOUT)).unwrap();
                socket.send_to(b"?", address("10.77.0.50", 7)).unwrap();
                socket.recv(&mut [0; 8]).unwrap()
            };
            assert_eq!(host.run(send_request).unwrap(), 1);
        });
        let counters = stack.counters();
        assert!(counters.udp.in_open_checksums > 0, "{counters:#?}");
        assert_eq!(counters.udp.open_checksum_drops, 0);
    });
}

/// Frames that the kernel does not segment are dropped by the port, and counted there.
#[test]
fn frames_above_the_mtu_are_counted() {
    let name = KernelCase { link: "", ..PACKET };
    with_lab(&name, |server| {
        let stack = server.run_client(|host| {
            let stream = host.run(|| TcpStream::connect(address(name.stack, 7)).unwrap());
            let mut stream = stream.unwrap();
            stream.write_all(&content(100_000)).unwrap();
            let mut echoed = vec![0; 1_000];
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            stream.read_exact(&mut echoed).unwrap();
        });
        let counters = stack.counters();
        assert!(counters.link.port_too_long > 0, "{counters:#?}");
    });
}

/// The stack connects to the kernel; payload in both directions at once, checked at each end.
fn connects_out(name: &KernelCase, bytes: usize) {
    with_lab(name, |server| {
        let mut stack = open_stack(server.lab, name);
        let host = server.lab.host("a").unwrap();
        let listener = host
            .run(|| TcpListener::bind(address(name.kernel, 5_555)).unwrap())
            .unwrap();
        let kernel = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut writer = stream.try_clone().unwrap();
            let sender = thread::spawn(move || {
                writer.write_all(&content(bytes)).unwrap();
                writer.shutdown(Shutdown::Write).unwrap();
            });
            let mut got = Vec::new();
            stream.read_to_end(&mut got).unwrap();
            sender.join().unwrap();
            assert!(got == content(bytes), "the content differs");
        });
        let start = Instant::now();
        let socket = stack
            .tcp_connect(address(name.kernel, 5_555), None)
            .unwrap();
        while stack.tcp_state(socket).unwrap() == TcpState::Connecting {
            assert!(start.elapsed() < TIMEOUT, "no connection");
            stack.poll(elapsed_ns(start));
        }
        let mut bulk = BulkTransfer::new(socket, bytes);
        while !bulk.has_received_end || bulk.sent < bytes {
            assert!(start.elapsed() < TIMEOUT, "{:#?}", stack.counters().tcp);
            stack.poll(elapsed_ns(start));
            bulk.step(&mut stack);
        }
        assert_eq!(bulk.received, bytes);
        // Until the kernel has acknowledged the FIN.
        while !kernel.is_finished() {
            assert!(start.elapsed() < TIMEOUT, "{:#?}", stack.counters().tcp);
            stack.poll(elapsed_ns(start));
        }
        kernel.join().unwrap();
        if name.url.ends_with("vnet") {
            // Segmented by the kernel: fewer frames than packets, for both IP versions.
            let sent_segments = stack.counters().tcp.out_segments;
            assert!(
                sent_segments < bytes as u64 / 1_460,
                "{sent_segments} segments"
            );
        }
        let rejected = stack
            .tcp_connect(address(name.kernel, 5_556), None)
            .unwrap();
        while stack.tcp_state(rejected).unwrap() != TcpState::Closed {
            assert!(start.elapsed() < TIMEOUT, "not rejected");
            stack.poll(elapsed_ns(start));
        }
    });
}

#[test]
fn connections_to_the_kernel_over_a_tap() {
    connects_out(&TAP, 3_000_000);
}

#[test]
fn streams_over_a_tap_with_offloads_and_ipv6() {
    echo_streams(&TAP_VNET_V6, 20_000_000, 2);
    connects_out(&TAP_VNET_V6, 10_000_000);
}

#[test]
fn connections_to_the_kernel_over_a_tap_with_offloads() {
    connects_out(&TAP_VNET, 10_000_000);
}

/// Behind the tap's host there is a link with a smaller MTU, which that host reports, for packets
/// that it would have segmented, too.
#[test]
fn segments_cross_a_link_that_is_smaller() {
    const BYTES: usize = 3_000_000;
    const MTU: usize = 1_400;
    if !privileged() {
        println!("skipped: namespaces and taps need CAP_SYS_ADMIN and CAP_NET_ADMIN");
        return;
    }
    for name in [&TAP, &TAP_VNET] {
        let file = format!("[hosts.a]\n[hosts.b]\n[[links]]\nbetween = ['a', 'b']\nmtu = {MTU}\n");
        let topology = Topology::from_toml(&file).expect("a good lab file");
        let lab = Lab::up(&topology).unwrap_or_else(|error| panic!("{}", error.full_text()));
        let config = config(name.settings);
        let url = port_url(&config, name.url).unwrap();
        let memory = FrameRegion::new(memory_plan(&config, &url)).unwrap();
        let router = lab.host("a").unwrap();
        let forwards = || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1");
        router.run(forwards).unwrap().unwrap();
        let opened = router.run(|| linerate_port::open(&url, &memory));
        let port = opened.unwrap().unwrap_or_else(|error| panic!("{error}"));
        let mut addressing = StackAddressing::new(&[&format!("{}/24", name.stack)]).unwrap();
        addressing.gateways.push(name.kernel.parse().unwrap());
        let port = port.into_iter().next().unwrap();
        let mut stack = Stack::new(port, &memory, &config, &addressing).unwrap();
        let remote_host = lab.host("b").unwrap();
        // As if only a link in between had a smaller MTU.
        let args = "route add 10.9.0.0/24 via 10.77.0.1 advmss 1460";
        let added = remote_host.run(|| Command::new("ip").args(args.split(' ')).status());
        assert!(added.unwrap().unwrap().success());
        let listener = remote_host
            .run(|| TcpListener::bind(address("10.77.0.2", 5_555)).unwrap())
            .unwrap();
        let kernel = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut got = Vec::new();
            stream.read_to_end(&mut got).unwrap();
            assert!(got == content(BYTES), "the content differs");
        });
        let start = Instant::now();
        let socket = stack
            .tcp_connect(address("10.77.0.2", 5_555), None)
            .unwrap();
        while stack.tcp_state(socket).unwrap() == TcpState::Connecting {
            assert!(start.elapsed() < TIMEOUT, "no connection");
            stack.poll(elapsed_ns(start));
        }
        let mut bulk = BulkTransfer::new(socket, BYTES);
        while !kernel.is_finished() {
            assert!(start.elapsed() < TIMEOUT, "{:#?}", stack.counters());
            stack.poll(elapsed_ns(start));
            bulk.step(&mut stack);
        }
        kernel.join().unwrap();
        let tcp = stack.counters().tcp;
        assert_eq!(
            (tcp.path_mtu_reported, tcp.path_mtu_guesses),
            (1, 0),
            "{}",
            name.url
        );
        let is_segmented_late = tcp.out_segments < BYTES as u64 / MTU as u64;
        assert_eq!(is_segmented_late, name.url.ends_with("vnet"), "{tcp:#?}");
    }
}

#[test]
fn pings_get_replies() {
    for name in [&TAP, &TAP_VNET, &TAP_V6, &TAP_VNET_V6] {
        with_lab(name, |server| {
            let stack = server.run_client(|host| {
                for size in ["0", "56", "1472", "4000", "60000"] {
                    let ping = || {
                        let args = ["-c", "3", "-i", "0.05", "-W", "5", "-s", size, name.stack];
                        Command::new("ping").args(args).output()
                    };
                    match host.run(ping).unwrap() {
                        Ok(output) => {
                            let text = String::from_utf8_lossy(&output.stdout).into_owned();
                            assert!(output.status.success(), "{size} B: {text}");
                        }
                        Err(error) => println!("skipped: no ping ({error})"),
                    }
                }
            });
            assert_eq!(stack.counters().icmp.in_checksum_errors, 0);
        });
    }
}

/// The MTU of a link shrinks under a stack: the port takes frames that are too long now, and drops
/// them.
#[test]
fn frames_that_a_port_does_not_send_are_not_counted_as_sent() {
    with_lab(&PACKET, |server| {
        let mut stack = open_stack(server.lab, server.case);
        let (start, to) = (Instant::now(), address(server.case.kernel, 7));
        while !stack.resolve_next_hop(to.ip()).unwrap().1 {
            assert!(start.elapsed() < TIMEOUT, "no neighbour");
            stack.poll(elapsed_ns(start));
        }
        let host = server.lab.host(server.case.port_host).unwrap();
        let shrink = || {
            Command::new("ip")
                .args(["link", "set", "eth0", "mtu", "600"])
                .status()
        };
        assert!(host.run(shrink).unwrap().unwrap().success());
        let socket = stack.udp_bind(any_address(0)).unwrap();
        stack.flush();
        let before = stack.counters().link;
        for bytes in [1_000, 100] {
            let sent = stack.udp_send(socket, Some(to), bytes, |payload| payload.fill(0));
            assert!(sent.is_ready());
            stack.flush();
        }
        let link = stack.counters().link;
        let sent = link.out_frames - before.out_frames;
        assert_eq!((sent, link.port_out_dropped), (1, 1), "{link:#?}");
    });
}
