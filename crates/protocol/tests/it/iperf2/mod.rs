//! iperf2 through its public API: recorded bytes of the upstream program, two ends with bytes
//! between them, and hostile peers.

mod bounceback;
mod recorded;
mod settings;
mod sniff;
mod tcp;
mod udp;
mod write_times;

use linerate_protocol::iperf2::{
    Iperf2Direction, Iperf2Settings, Iperf2TcpClient, Iperf2UdpClient, Iperf2UdpServer, fill,
};
use proptest::prelude::*;
use recorded::encode_words;
use tcp::open;

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), known: bool) {
        let mut bytes = bytes;
        if known && bytes.len() > 20 {
            bytes[..20].copy_from_slice(&encode_words(&[1, 5, 5, 0, 0x6801_00d8]));
        }
        if let Some(mut flow) = Iperf2UdpServer::open(&bytes, 0) {
            flow.receive(&bytes, u64::MAX);
            bytes[0] |= 0x80;
            flow.receive(&bytes, 0);
            let _ = (flow.reply(128), flow.remote_report());
        }
        let _ = open(&bytes, &[]);
        let mut client = Iperf2UdpClient::new(Iperf2Settings::client(1), 100).unwrap();
        client.finish(0);
        client.receive(&bytes);
        let mut tcp = Iperf2TcpClient::new(Iperf2Settings::client(1)).unwrap();
        tcp.receive(&bytes);
        for direction in [Iperf2Direction::Forward, Iperf2Direction::Reverse] {
            let _ = Iperf2Settings { direction, ..Iperf2Settings::client(1) }.expects_ack();
        }
        fill(&mut bytes);
    }
}
