//! Headers: recorded ones, and ours.

use linerate_dialect::iperf2::datagram::{HEADER_BYTES, read_header, write_header};
use linerate_dialect::iperf2::{
    Ack, Amount, Dual, Heard, Iperf2Error, Report, Settings, TcpClient, UdpClient, UdpServer, Way,
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
            let mut flow = UdpServer::open(&test.client[0], 0);
            out += &format!("{:#?}\n", flow.as_ref().and_then(UdpServer::settings));
            if let (Some(flow), Some(end)) = (&mut flow, test.client.get(1)) {
                assert_eq!(flow.receive(end, 1), Heard::End, "{}", test.options);
                out += &format!(
                    "the client reports {:?} sent datagrams\n",
                    flow.client_sent()
                );
            }
            for datagram in &test.server {
                out += &format!(
                    "{:?} {:?}\n",
                    Report::read(datagram),
                    read_header(datagram, true)
                );
            }
        } else {
            let (job, payload, said) = open(&test.client[0], &[]);
            out += &format!("{} ({payload} B)\n", job.unwrap().unwrap());
            // An upstream server sends the same except for the times.
            let stock = test.server.first().map_or(&[][..], |said| said);
            match Ack::read(stock) {
                Some(ack) => {
                    let ours = Ack::read(&said).unwrap();
                    assert_eq!(said.len(), stock.len(), "{}", test.options);
                    assert_eq!(ours.version, ack.version);
                    let begun = |ack: Ack| ack.times.map(|times| times.client_sent_ns);
                    assert_eq!(begun(ours), begun(ack), "{}", test.options);
                }
                None if test.server.is_empty() => {}
                None => assert!(said.is_empty(), "{}", test.options),
            }
        }
        out += "\n";
    }
    insta::assert_snapshot!(out);
}

#[test]
fn our_headers_are_those_of_the_stock_client() {
    let mut same = 0;
    for test in recorded() {
        let written_otherwise = ["--trip-times", "--permit-key", "--isochronous"];
        if written_otherwise.iter().any(|option| test.has(option)) {
            continue;
        }
        let Some(settings) = settings(&test.client[0], test.udp) else {
            continue;
        };
        if test.udp {
            let ours = UdpClient::new(settings, test.client[0].len()).unwrap();
            let mut template = ours.template();
            let stock = read_header(&test.client[0], true).unwrap();
            write_header(&mut template, true, stock);
            assert_eq!(template[..76], test.client[0][..76], "{}", test.options);
        } else {
            let ours = TcpClient::new(settings).unwrap();
            assert_eq!(
                ours.header(),
                &test.client[0][..ours.header().len()],
                "{}",
                test.options
            );
            assert_eq!(ours.header().len(), 60);
        }
        same += 1;
    }
    assert_eq!(same, 17);
}

#[test]
fn trip_times_over_udp_are_where_the_stock_client_has_them() {
    let test = recorded()
        .into_iter()
        .find(|t| t.udp && t.options.ends_with("1 --trip-times"))
        .unwrap();
    let settings = settings(&test.client[0], true).unwrap();
    assert!(settings.trip_times && settings.start_ns.is_some());
    let mut ours = UdpClient::new(settings, 136).unwrap().template();
    write_header(&mut ours, true, read_header(&test.client[0], true).unwrap());
    assert_eq!(ours[..128], test.client[0][..128]);
}

#[test]
fn what_the_header_cannot_say_is_told() {
    let much = Settings {
        amount: Some(Amount::Bytes(1 << 40)),
        ..Settings::client(5001)
    };
    assert!(
        TcpClient::new(much.clone()).is_ok(),
        "a server that only receives needs no end"
    );
    for settings in [
        Settings {
            way: Way::Reverse,
            ..much.clone()
        },
        Settings {
            dual: Some(Dual::Now),
            ..much.clone()
        },
        Settings {
            amount: Some(Amount::Time(u64::MAX)),
            ..much
        },
    ] {
        assert!(matches!(
            TcpClient::new(settings.clone()),
            Err(Iperf2Error::Unsendable { .. })
        ));
        assert!(matches!(
            UdpClient::new(settings, 1470),
            Err(Iperf2Error::Unsendable { .. })
        ));
    }
    assert!(matches!(
        UdpClient::new(Settings::client(5001), 75),
        Err(Iperf2Error::DatagramTooSmall {
            bytes: 75,
            least: 76
        })
    ));
    assert!(UdpClient::new(Settings::legacy(5001), 12).is_ok());
}

pub fn any_settings() -> impl Strategy<Value = Settings> {
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
                (way, dual, flows, port),
                (buffer, amount, timed),
                (rate, tos, [wide, detect, quiet, old]),
            )| {
                let amount = amount.map(|amount| {
                    let amount = u64::from(amount.unsigned_abs());
                    if timed {
                        Amount::Time(amount * 10_000_000)
                    } else {
                        Amount::Bytes(amount)
                    }
                });
                let base = Settings {
                    dual: dual.map(|now| if now { Dual::Now } else { Dual::After }),
                    flows,
                    port,
                    buffer_bytes: buffer,
                    amount,
                    ..Settings::default()
                };
                if old {
                    return base;
                }
                let way = [Way::Forward, Way::Reverse, Way::Both][way];
                Settings {
                    way,
                    rate,
                    tos,
                    wide,
                    peer_detect: detect,
                    no_fin: quiet,
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
        let mut bytes = vec![0; settings.room_bytes(0)];
        settings.write(&mut bytes, before).unwrap();
        match Settings::read(&bytes, before) {
            // An old header is sent only if both directions are requested.
            None => prop_assert!(settings.version.is_none() && settings.dual.is_none()),
            Some(read) => {
                let want = Settings {
                    header_bytes: read.header_bytes,
                    wide: settings.wide && udp,
                    no_fin: settings.no_fin || (udp && settings.way == Way::Both),
                    ..settings
                };
                prop_assert_eq!(read, want);
            }
        }
    }
}
