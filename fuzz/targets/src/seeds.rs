//! Seeds of the fuzzer: recorded messages of real programs.

use linerate_protocol::control::{Bye, ControlCodec, FlowToken, Hello, KEY_BYTES, NoiseCredentials, PresharedKey, flow};
use linerate_protocol::nuttcp::{NuttcpClient, NuttcpDirection, NuttcpTest};
use linerate_protocol::sniff::TransportKind;

use crate::InputPieces;

/// Reads a recording of the tests of `linerate-protocol`.
macro_rules! recorded {
    ($name:literal) => {
        include_str!(concat!("../../../crates/protocol/tests/fixtures/", $name))
    };
}

/// Returns the seeds of a target; none for an unknown name.
#[must_use]
pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    let datagrams = |lines: Vec<Vec<u8>>| {
        let pieces: Vec<&[u8]> = lines.iter().map(Vec::as_slice).collect();
        vec![InputPieces::encode(&pieces)]
    };
    match target {
        "control" => {
            let mut client = ControlCodec::client(Hello::new("seed")).expect("HELLO fits");
            let _ = client.send(&Bye {}.into());
            vec![InputPieces::encode(&[client.outgoing()])]
        }
        "control_encrypted" => {
            let credentials = NoiseCredentials {
                key: PresharedKey::new(b"a secret of this target").expect("it is long enough"),
                random: [1; KEY_BYTES],
            };
            let client = ControlCodec::authenticated_client(Hello::new("seed"), credentials)
                .expect("HELLO fits");
            vec![InputPieces::encode(&[client.outgoing()]), vec![0; 60]]
        }
        "sniff" => {
            let mut beginnings: Vec<Vec<u8>> = [
                &b"HELO nuttcp v6.1.2\n"[..],
                b"o3zcvulb4ybmnxqckv4jjlyxqyqlvw2hkrkp\0",
                b"\x40\x01\0\x78\0\0\0\x01\0\0\x13\x89\0\0\0\0\0\0\0\0\xff\xff\xfc\x18",
                b"\0\0\0\0\0\0\0\x01\0\x03\0\0\0\x20",
                b"9876",
                b"BOD0",
            ]
            .map(<[u8]>::to_vec)
            .to_vec();
            beginnings.push(flow::opening(FlowToken([1; 16])).to_vec());
            beginnings
        }
        "nuttcp_server" => {
            let test = NuttcpTest::new(NuttcpDirection::ToServer, TransportKind::Stream, 5_001);
            let mut client = NuttcpClient::new(test).expect("a valid test");
            client.receive(b"HELO nuttcp v6.1.2\n").expect("a valid HELLO");
            client.mark_ready();
            let message = client.outgoing();
            let lines: Vec<&[u8]> = message.split_inclusive(|&byte| byte == b'\n').collect();
            vec![InputPieces::encode(&lines)]
        }
        "nuttcp_client" => [
            recorded!("nuttcp-6.1.2/tcp-send-intervals.txt"),
            recorded!("nuttcp-6.1.2/tcp-parse-intervals.txt"),
            recorded!("nuttcp-6.1.2/udp-running-totals.txt"),
        ]
        .map(|text| {
            let lines: Vec<String> = text
                .lines()
                .filter_map(|line| line.strip_prefix("S: "))
                .map(|line| format!("{line}\n"))
                .collect();
            let pieces: Vec<&[u8]> = lines.iter().map(String::as_bytes).collect();
            InputPieces::encode(&pieces)
        })
        .to_vec(),
        "nuttcp_udp" => {
            let lines = recorded!("nuttcp-6.1.2/udp-datagrams.hex").lines();
            let fields = lines.filter_map(|line| line.split(' ').nth(3));
            let mut seed = vec![1, 0, 35, 5];
            let datagrams_of_test = fields.filter_map(hex).collect();
            seed.extend(datagrams(datagrams_of_test).remove(0));
            vec![seed]
        }
        "sockperf" => {
            let lines = recorded!("sockperf-3.7.hex").lines();
            let client = lines.filter_map(|line| line.strip_prefix("C "));
            datagrams(client.filter_map(hex).collect())
        }
        "iperf3" => {
            // Both ends of a recorded exchange; the acceptor reads the cookie.
            let lines = recorded!("iperf3-3.12.hex").lines();
            let recorded = lines.filter_map(|line| {
                let client = line.strip_prefix("client ").and_then(hex);
                let server = line.strip_prefix("server ").and_then(hex);
                client.map(|message| message[37..].to_vec()).or(server)
            });
            // A few bytes that request more flows than there is memory for.
            let params = br#"{"tcp":true,"parallel":4294967295,"bidirectional":true}"#;
            let mut greedy = (params.len() as u32).to_be_bytes().to_vec();
            greedy.extend(params);
            recorded
                .chain([greedy])
                .map(|message| InputPieces::encode(&message.chunks(200).collect::<Vec<_>>()))
                .collect()
        }
        "iperf2" => {
            let lines = recorded!("iperf2-2.1.8.hex").lines();
            let mut seeds = Vec::new();
            // The datagrams and beginnings of a test in order.
            let mut test: Vec<Vec<u8>> = Vec::new();
            for line in lines.chain([""]) {
                let message = line
                    .strip_prefix("client ")
                    .or(line.strip_prefix("server "));
                match message.and_then(hex) {
                    Some(message) => test.push(message),
                    None if line.is_empty() && !test.is_empty() => {
                        seeds.extend(datagrams(std::mem::take(&mut test)));
                    }
                    None => {}
                }
            }
            seeds
        }
        "ttcp" => datagrams(vec![vec![0; 4], vec![1; 100], vec![2; 100], vec![0; 4]]),
        "echo" | "chargen" | "plain" => datagrams(vec![b"hello".to_vec(), vec![1; 300], vec![]]),
        "guard" => vec![
            vec![0, 1, 100, 0, 3, 1, 50, 1, 2, 9, 16, 0, 3, 9, 200, 1],
            b"10.1.0.0/24".to_vec(),
        ],
        "stack" => {
            let frames = crate::stack::frames();
            let pieces: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
            vec![InputPieces::encode(&pieces)]
        }
        "template" => [
            "size = \"imix\"\nflows = 16\n[ethernet]\nsource = \"02:00:00:00:00:01\"\n[[vlan]]\nid = 5\n\
             [ipv4]\ndestination = \"198.18.1.1-198.18.1.16\"\n[udp]\nsource = \"draw:1000-2000\"\n",
            "size = \"64-1518+2\"\ncontent = \"random\"\n[ipv6]\nsource = \"2001:2::1\"\n[tcp]\nflags = \"S\"\n",
            "size = \"64:7,594:4,1518:1\"\n[arp]\n",
        ]
        .map(|text| text.as_bytes().to_vec())
        .to_vec(),
        "arguments" => [
            "10kpps",
            "l1:10G",
            "50%",
            "max",
            "shm:x,role=server,rxd=512,mtu=9000",
            "xdp:eth0,mode=native,q=0-1",
            "pcap:rx=a.pcap,tx=b.pcap",
            "tap:tap0,address=10.0.0.1/24",
            "link:rate=1G,delay=50us,jitter=5us,loss=0.1%,reorder=1%,duplicate=1%,corrupt=0.01%,limit=9",
            "noisy:delay=10us,memory=16M,reads=4,writes=4",
        ]
        .map(|text| text.as_bytes().to_vec())
        .to_vec(),
        "capture" => {
            // Classic format: magic, version 2.4, no time zone, no accuracy, 65535 bytes at most,
            // Ethernet; one frame of 14 bytes.
            let mut classic = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0];
            classic.extend([0; 8]);
            classic.extend([0xff, 0xff, 0, 0, 1, 0, 0, 0]);
            classic.extend([1, 0, 0, 0, 2, 0, 0, 0, 14, 0, 0, 0, 14, 0, 0, 0]);
            classic.extend([7; 14]);
            // pcapng: a section, an interface.
            let mut newer = vec![0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a];
            newer.extend([1, 0, 0, 0]);
            newer.extend([0xff; 8]);
            newer.extend([28, 0, 0, 0]);
            newer.extend([1, 0, 0, 0, 20, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 20, 0, 0, 0]);
            vec![classic, newer]
        }
        _ => Vec::new(),
    }
}

fn hex(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks_exact(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.map(byte).collect()
}
