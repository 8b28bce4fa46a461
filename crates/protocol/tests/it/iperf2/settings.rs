//! Headers: recorded ones, and ours.

use linerate_protocol::iperf2::datagram::{HEADER_BYTES, read_header, write_header};
use linerate_protocol::iperf2::{
    DualTest, Iperf2Datagram, Iperf2Direction, Iperf2Error, Iperf2Report, Iperf2Settings,
    Iperf2TcpClient, Iperf2UdpClient, Iperf2UdpServer, TestAmount, VersionAck,
};
use proptest::prelude::*;

use super::recorded::{recorded, settings};
use super::tcp::open;

#[test]
fn recorded_headers_are_understood() {
    let mut out = String::new();
    for test in recorded() {
        out += &format!("{}\n", test.options);
        if test.udp {
            let mut flow = Iperf2UdpServer::open(&test.client[0], 0);
            out += &format!("{:#?}\n", flow.as_ref().and_then(Iperf2UdpServer::settings));
            if let (Some(flow), Some(end)) = (&mut flow, test.client.get(1)) {
                assert_eq!(
                    flow.receive(end, 1),
                    Iperf2Datagram::End,
                    "{}",
                    test.options
                );
                out += &format!(
                    "the client reports {:?} sent datagrams\n",
                    flow.client_sent()
                );
            }
            for datagram in &test.server {
                out += &format!(
                    "{:?} {:?}\n",
                    Iperf2Report::read(datagram),
                    read_header(datagram, true)
                );
            }
        } else {
            let (job, payload, output) = open(&test.client[0], &[]);
            out += &format!("{} ({payload} B)\n", job.unwrap().unwrap());
            // An upstream server sends the same except for the times.
            let upstream = test.server.first().map_or(&[][..], |output| output);
            match VersionAck::read(upstream) {
                Some(ack) => {
                    let ours = VersionAck::read(&output).unwrap();
                    assert_eq!(output.len(), upstream.len(), "{}", test.options);
                    assert_eq!(ours.version, ack.version);
                    let start_ns = |ack: VersionAck| ack.times.map(|times| times.client_sent_ns);
                    assert_eq!(start_ns(ours), start_ns(ack), "{}", test.options);
                }
                None if test.server.is_empty() => {}
                None => assert!(output.is_empty(), "{}", test.options),
            }
        }
        out += "\n";
    }
    insta::assert_snapshot!(out);
}

#[test]
fn our_headers_are_those_of_the_upstream_client() {
    let mut compared = 0;
    for test in recorded() {
        let written_otherwise = ["--trip-times", "--permit-key", "--isochronous"];
        if written_otherwise.iter().any(|option| test.has(option)) {
            continue;
        }
        let Some(settings) = settings(&test.client[0], test.udp) else {
            continue;
        };
        if test.udp {
            let ours = Iperf2UdpClient::new(settings, test.client[0].len()).unwrap();
            let mut template = ours.template();
            let upstream = read_header(&test.client[0], true).unwrap();
            write_header(&mut template, true, upstream);
            assert_eq!(template[..76], test.client[0][..76], "{}", test.options);
        } else {
            let ours = Iperf2TcpClient::new(settings).unwrap();
            assert_eq!(
                ours.header(),
                &test.client[0][..ours.header().len()],
                "{}",
                test.options
            );
            assert_eq!(ours.header().len(), 60);
        }
        compared += 1;
    }
    assert_eq!(compared, 17);
}

#[test]
fn trip_times_over_udp_are_where_the_upstream_client_has_them() {
    let test = recorded()
        .into_iter()
        .find(|t| t.udp && t.options.ends_with("1 --trip-times"))
        .unwrap();
    let settings = settings(&test.client[0], true).unwrap();
    assert!(settings.trip_times && settings.start_ns.is_some());
    let mut ours = Iperf2UdpClient::new(settings, 136).unwrap().template();
    write_header(&mut ours, true, read_header(&test.client[0], true).unwrap());
    assert_eq!(ours[..128], test.client[0][..128]);
}

#[test]
fn values_that_the_header_cannot_express_are_errors() {
    let base = Iperf2Settings {
        amount: Some(TestAmount::Bytes(1 << 40)),
        ..Iperf2Settings::client(5001)
    };
    assert!(
        Iperf2TcpClient::new(base.clone()).is_ok(),
        "a server that only receives needs no end"
    );
    for settings in [
        Iperf2Settings {
            direction: Iperf2Direction::Reverse,
            ..base.clone()
        },
        Iperf2Settings {
            dual: Some(DualTest::Simultaneous),
            ..base.clone()
        },
        Iperf2Settings {
            amount: Some(TestAmount::Time(u64::MAX)),
            ..base
        },
    ] {
        assert!(matches!(
            Iperf2TcpClient::new(settings.clone()),
            Err(Iperf2Error::Unencodable { .. })
        ));
        assert!(matches!(
            Iperf2UdpClient::new(settings, 1470),
            Err(Iperf2Error::Unencodable { .. })
        ));
    }
    assert!(matches!(
        Iperf2UdpClient::new(Iperf2Settings::client(5001), 75),
        Err(Iperf2Error::DatagramTooSmall {
            bytes: 75,
            min_bytes: 76
        })
    ));
    assert!(Iperf2UdpClient::new(Iperf2Settings::legacy(5001), 12).is_ok());
}

pub fn any_settings() -> impl Strategy<Value = Iperf2Settings> {
    (
        (
            0usize..3,
            prop::option::of(any::<bool>()),
            1u32..1000,
            1u16..,
        ),
        (
            prop::option::of(1u32..1 << 20),
            prop::option::of(1i32..),
            any::<bool>(),
        ),
        (
            prop::option::of(1u64..1 << 55),
            prop::option::of(1u8..),
            any::<[bool; 4]>(),
        ),
    )
        .prop_map(
            |(
                (direction, dual, flows, port),
                (buffer, amount, timed),
                (rate, tos, [wide, detect, no_fin, old]),
            )| {
                let amount = amount.map(|amount| {
                    let amount = u64::from(amount.unsigned_abs());
                    if timed {
                        TestAmount::Time(amount * 10_000_000)
                    } else {
                        TestAmount::Bytes(amount)
                    }
                });
                let base = Iperf2Settings {
                    dual: dual.map(|now| {
                        if now {
                            DualTest::Simultaneous
                        } else {
                            DualTest::Sequential
                        }
                    }),
                    flows,
                    port,
                    buffer_bytes: buffer,
                    amount,
                    ..Iperf2Settings::default()
                };
                if old {
                    return base;
                }
                let direction = [
                    Iperf2Direction::Forward,
                    Iperf2Direction::Reverse,
                    Iperf2Direction::Both,
                ][direction];
                Iperf2Settings {
                    direction,
                    rate,
                    tos,
                    wide,
                    peer_detect: detect,
                    no_fin,
                    version: Some((0x0002_0001, 0x0008_0003)),
                    ..base
                }
            },
        )
}

proptest! {
    #[test]
    fn settings_read_as_written(settings in any_settings(), udp: bool) {
        let before = if udp { HEADER_BYTES } else { 0 };
        let mut bytes = vec![0; settings.required_bytes(0)];
        settings.write(&mut bytes, before).unwrap();
        match Iperf2Settings::read(&bytes, before) {
            // An old header is sent only if both directions are requested.
            None => prop_assert!(settings.version.is_none() && settings.dual.is_none()),
            Some(read) => {
                let want = Iperf2Settings {
                    header_bytes: read.header_bytes,
                    wide: settings.wide && udp,
                    no_fin: settings.no_fin || (udp && settings.direction == Iperf2Direction::Both),
                    ..settings
                };
                prop_assert_eq!(read, want);
            }
        }
    }
}
