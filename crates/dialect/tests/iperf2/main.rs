//! iperf2 through its public API: recorded bytes of the upstream program, two ends with bytes
//! between them, and hostile peers.

mod bounceback;
mod recorded;
mod settings;
mod sniff;
mod tcp;
mod udp;
mod write_times;

use linerate_dialect::iperf2::{Settings, TcpClient, UdpClient, UdpServer, Way, fill};
use proptest::prelude::*;

use recorded::words;
use tcp::open;

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), known: bool) {
        let mut bytes = bytes;
        if known && bytes.len() > 20 {
            bytes[..20].copy_from_slice(&words(&[1, 5, 5, 0, 0x6801_00d8]));
        }
        if let Some(mut flow) = UdpServer::open(&bytes, 0) {
            flow.receive(&bytes, u64::MAX);
            bytes[0] |= 0x80;
            flow.receive(&bytes, 0);
            let _ = (flow.answer(128), flow.far_report());
        }
        let _ = open(&bytes, &[]);
        let mut client = UdpClient::new(Settings::client(1), 100).unwrap();
        client.finish(0);
        client.receive(&bytes);
        let mut tcp = TcpClient::new(Settings::client(1)).unwrap();
        tcp.receive(&bytes);
        for way in [Way::Forward, Way::Reverse] {
            let _ = Settings { way, ..Settings::client(1) }.wants_ack();
        }
        fill(&mut bytes);
    }
}
