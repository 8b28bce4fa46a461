//! Labs inside this process: real namespaces, links and traffic.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{labctl, namespace_is_held, soon, with_privilege};
use linerate_lab::{Lab, LabError, LabHost, Topology};

fn up(file: &str) -> Lab {
    let topology = Topology::from_toml(file).expect("a good lab file");
    Lab::up(&topology).unwrap_or_else(|error| panic!("{}", error.full_text()))
}

/// Returns a lab file of two hosts and a link with these properties.
fn pair(properties: &str) -> String {
    format!("[hosts.a]\n[hosts.b]\n[[links]]\nbetween = ['a', 'b']\n{properties}\n")
}

fn connect(from: &LabHost, to: &LabHost, address: IpAddr) -> (TcpStream, TcpStream) {
    let listener = to.run(|| TcpListener::bind((address, 0)).unwrap()).unwrap();
    let target = listener.local_addr().unwrap();
    let client_end = from.run(|| TcpStream::connect(target).unwrap()).unwrap();
    let (server_end, _) = listener.accept().unwrap();
    (client_end, server_end)
}

#[test]
fn hosts_connect_across_switches() {
    with_privilege("lab::hosts_connect_across_switches", || {
        for hops in [0, 1, 4] {
            let lab = Lab::up(&Topology::hops(hops)).unwrap();
            let (client, server) = (lab.host("client").unwrap(), lab.host("server").unwrap());
            assert_eq!(client.address().to_string(), "10.77.0.1");
            let mut addresses = vec![IpAddr::V4(server.address())];
            addresses.extend(server.address_v6().map(IpAddr::V6));
            for address in addresses {
                let (mut client_end, mut server_end) = connect(client, server, address);
                client_end.write_all(b"ping").unwrap();
                let mut text = [0; 4];
                server_end.read_exact(&mut text).unwrap();
                assert_eq!(&text, b"ping", "{hops} hops, {address}");
            }
        }
    });
}

#[test]
fn several_hosts_share_a_segment_and_reach_each_other() {
    with_privilege(
        "lab::several_hosts_share_a_segment_and_reach_each_other",
        || {
            let mut file = "[switches.s]\n".to_owned();
            for number in 1..=5 {
                file.push_str(&format!(
                    "[hosts.h{number}]\n[[links]]\nbetween=['h{number}','s']\n"
                ));
            }
            let lab = up(&file);
            let results = lab.check().unwrap();
            let reached = results
                .iter()
                .filter(|result| result.property.starts_with("reaching"));
            let families = if lab.hosts()[0].address_v6().is_some() {
                2
            } else {
                1
            };
            assert_eq!(reached.count(), 5 * 4 * families);
            assert_eq!(lab.host("h5").unwrap().address().to_string(), "10.77.0.5");
        },
    );
}

#[test]
fn many_hosts_fit_on_a_switch() {
    with_privilege("lab::many_hosts_fit_on_a_switch", || {
        let mut file = "[switches.s]\n".to_owned();
        for number in 1..=40 {
            file.push_str(&format!(
                "[hosts.h{number}]\n[[links]]\nbetween=['h{number}','s']\n"
            ));
        }
        assert_eq!(up(&file).hosts().len(), 40);
    });
}

#[test]
fn hosts_between_segments_forward() {
    with_privilege("lab::hosts_between_segments_forward", || {
        let lab = up(
            "[hosts.a]\n[hosts.r]\n[hosts.b]\n[[links]]\nbetween=['a','r']\n[[links]]\nbetween=['r','b']",
        );
        let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
        let (client_end, server_end) = connect(a, b, b.address().into());
        assert_eq!(
            server_end.peer_addr().unwrap(),
            client_end.local_addr().unwrap()
        );
        assert_eq!(lab.host("r").unwrap().interfaces().len(), 2);
    });
}

/// Measures the payload that arrives at `to`, in bit/s.
fn goodput(from: &LabHost, to: &LabHost) -> f64 {
    let (mut client_end, mut server_end) = connect(from, to, to.address().into());
    let sending = std::thread::spawn(move || while client_end.write_all(&[0; 65_536]).is_ok() {});
    let mut buffer = vec![0; 1 << 18];
    let mut count = |time: Duration| {
        let start = Instant::now();
        let mut bytes = 0;
        while start.elapsed() < time {
            bytes += server_end.read(&mut buffer).unwrap();
        }
        bytes as f64 * 8.0 / start.elapsed().as_secs_f64()
    };
    // Excludes slow start and the full token bucket after a pause.
    count(Duration::from_millis(500));
    let rate = count(Duration::from_millis(1500));
    drop(server_end);
    sending.join().unwrap();
    rate
}

#[test]
fn a_link_keeps_to_its_rate() {
    with_privilege("lab::a_link_keeps_to_its_rate", || {
        let lab = up(&pair("rate = '100M'"));
        let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
        for (from, to) in [(a, b), (b, a)] {
            // The bucket counts 1514 bytes a frame; 1448 of them are payload.
            let rate = goodput(from, to) * 1514.0 / 1448.0;
            assert!(
                (85e6..115e6).contains(&rate),
                "{} to {}: {rate}",
                from.name(),
                to.name()
            );
        }
    });
}

#[test]
fn a_link_has_its_mtu() {
    with_privilege("lab::a_link_has_its_mtu", || {
        for mtu in [576, 1500, 9000] {
            let lab = up(&pair(&format!("mtu = {mtu}")));
            let host = lab.host("a").unwrap();
            // Only IPv4 below IPv6's minimum MTU.
            assert_eq!(host.address_v6().is_some(), mtu >= 1280, "{mtu}");
            let (client_end, _server_end) = connect(
                host,
                lab.host("b").unwrap(),
                lab.host("b").unwrap().address().into(),
            );
            let size = socket2::SockRef::from(&client_end).tcp_mss().unwrap();
            // 40 bytes of headers, plus 12 of timestamps where they are on.
            assert!(
                [mtu - 40, mtu - 52].contains(&size),
                "mtu {mtu}: segments of {size}"
            );
        }
    });
}

#[test]
fn gso_sizes_and_offloads_are_as_requested() {
    with_privilege("lab::gso_sizes_and_offloads_are_as_requested", || {
        let topology = Topology::from_toml(&pair(
            "gso = '512K'\noffloads = { tso = false, gro = true, tx-udp-segmentation = false }",
        ))
        .unwrap();
        let lab = match Lab::up(&topology) {
            Ok(lab) => lab,
            Err(LabError::CheckFailed { failed })
                if failed.iter().all(|result| result.property.contains("IPv4")) =>
            {
                println!("skipped: this kernel has no large segments for IPv4 (Linux 6.3)");
                return;
            }
            Err(error) => panic!("{}", error.full_text()),
        };
        let results = lab.check().unwrap();
        let actual = |property: &str| {
            let both_ends: Vec<_> = results
                .iter()
                .filter(|result| result.property == property)
                .map(|result| result.actual.as_deref().unwrap_or("missing"))
                .collect();
            assert_eq!(both_ends.len(), 2, "{property} at both ends");
            both_ends.join(" ")
        };
        for property in ["gso", "gro", "gso for IPv4", "gro for IPv4"] {
            assert_eq!(actual(property), "524280 524280", "{property}");
        }
        assert_eq!(actual("offload tso"), "off off");
        assert_eq!(actual("offload gro"), "on on");
        assert_eq!(actual("offload tx-udp-segmentation"), "off off");
    });
}

#[test]
fn a_property_that_cannot_be_is_named() {
    with_privilege("lab::a_property_that_cannot_be_is_named", || {
        // Without transmit checksums the kernel switches segmentation off again.
        let impossible = pair("offloads = { tso = true, tx-checksumming = false }");
        let error = Lab::up(&Topology::from_toml(&impossible).unwrap()).unwrap_err();
        let LabError::CheckFailed { failed } = &error else {
            panic!("{error}");
        };
        assert_eq!(failed.len(), 2);
        assert!(
            error
                .to_string()
                .contains("link a-b, interface eth0 of a: offload tso is off instead of on"),
            "{error}"
        );

        let unknown = pair("offloads = { tx-no-such-thing = true }");
        let error = Lab::up(&Topology::from_toml(&unknown).unwrap()).unwrap_err();
        assert!(matches!(error, LabError::UnknownOffload { .. }), "{error}");
    });
}

#[test]
fn delay_needs_netem_and_reports_its_absence() {
    with_privilege("lab::delay_needs_netem_and_reports_its_absence", || {
        let topology = Topology::from_toml(&pair("delay = '20ms'\nrate = '1G'")).unwrap();
        let lab = match Lab::up(&topology) {
            Ok(lab) => lab,
            Err(error) => {
                assert!(matches!(error, LabError::NotEmulated { .. }), "{error}");
                assert!(error.is_missing_privilege());
                let text = error.to_string();
                assert!(
                    text.contains("netem") && text.contains("linerate lab"),
                    "{text}"
                );
                println!("this kernel has no netem: rejected as it should be");
                return;
            }
        };
        let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
        let server_end = b
            .run(|| UdpSocket::bind((b.address(), 0)).unwrap())
            .unwrap();
        let client_end = a
            .run(|| UdpSocket::bind((a.address(), 0)).unwrap())
            .unwrap();
        let start = Instant::now();
        client_end
            .send_to(b"x", server_end.local_addr().unwrap())
            .unwrap();
        let (_, from) = server_end.recv_from(&mut [0; 1]).unwrap();
        server_end.send_to(b"x", from).unwrap();
        client_end.recv_from(&mut [0; 1]).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(40));
    });
}

#[test]
fn threads_and_programs_are_inside() {
    with_privilege("lab::threads_and_programs_are_inside", || {
        let lab = Lab::up(&Topology::hops(0)).unwrap();
        let host = lab.host("client").unwrap();
        let current_namespace = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let outside = current_namespace();
        let inside = host.run(current_namespace).unwrap();
        assert_ne!(outside, inside);
        let nested = host
            .run(|| std::thread::spawn(current_namespace).join().unwrap())
            .unwrap();
        assert_eq!(nested, inside);
        assert_eq!(
            host.spawn(current_namespace).unwrap().join().unwrap(),
            inside
        );
        let program = host
            .run(|| {
                Command::new("readlink")
                    .arg("/proc/self/ns/net")
                    .output()
                    .unwrap()
            })
            .unwrap();
        assert_eq!(
            String::from_utf8_lossy(&program.stdout).trim(),
            inside.to_string_lossy()
        );
        let counters = host
            .run(|| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap())
            .unwrap();
        assert!(counters.contains("eth0"), "{counters}");
        assert_eq!(current_namespace(), outside, "this thread has not moved");
        let panic = std::panic::catch_unwind(|| host.run(|| panic!("as planned")));
        assert!(panic.is_err(), "a panic inside is not lost");
    });
}

#[test]
fn nothing_is_left_when_dropped() {
    with_privilege("lab::nothing_is_left_when_dropped", || {
        let current_namespace = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let lab = Lab::up(&Topology::hops(1)).unwrap();
        let spaces: Vec<_> = lab
            .hosts()
            .iter()
            .map(|host| {
                host.run(current_namespace)
                    .unwrap()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        assert!(namespace_is_held(&spaces[0]));
        drop(lab);
        for space in spaces {
            soon("the namespace is gone", || !namespace_is_held(&space));
        }
    });
}

#[test]
fn nothing_is_left_when_killed() {
    with_privilege("lab::nothing_is_left_when_killed", || {
        let Some(labctl) = labctl() else { return };
        let interfaces = || {
            std::fs::read_to_string("/proc/net/dev")
                .unwrap()
                .lines()
                .count()
        };
        let before = interfaces();
        let mut child = Command::new(labctl)
            .arg("here")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut space = String::new();
        let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut output, &mut space).unwrap();
        assert!(namespace_is_held(space.trim()), "{space}");
        child.kill().unwrap();
        child.wait().unwrap();
        soon("the namespace is gone", || !namespace_is_held(space.trim()));
        assert_eq!(interfaces(), before, "nothing was made outside");
    });
}

#[test]
fn labs_live_side_by_side() {
    with_privilege("lab::labs_live_side_by_side", || {
        let (one, two) = (
            Lab::up(&Topology::hops(1)).unwrap(),
            Lab::up(&Topology::hops(1)).unwrap(),
        );
        // The same address and port in both labs: they share nothing.
        let bind = |lab: &Lab| {
            let server = lab.host("server").unwrap();
            let target = SocketAddr::new(server.address().into(), 5201);
            server.run(|| TcpListener::bind(target).unwrap()).unwrap()
        };
        let _listeners = (bind(&one), bind(&two));
        assert!(one.host("nobody").is_err());
    });
}
