//! Recorded bytes of the upstream program.

use linerate_protocol::iperf2::Iperf2Settings;
use linerate_protocol::iperf2::datagram::HEADER_BYTES;

/// Recorded test.
pub struct Recorded {
    pub options: String,
    pub udp: bool,
    pub client: Vec<Vec<u8>>,
    pub server: Vec<Vec<u8>>,
}

impl Recorded {
    pub fn has(&self, option: &str) -> bool {
        self.options.split(' ').any(|word| word.starts_with(option))
    }
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .map(|c| c.to_digit(16).unwrap() as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

pub fn recorded() -> Vec<Recorded> {
    let mut tests: Vec<Recorded> = Vec::new();
    for line in include_str!("../../fixtures/iperf2-2.1.8.hex").lines() {
        let (keyword, rest) = line.split_once(' ').unwrap_or((line, ""));
        match keyword {
            "tcp" | "udp" => tests.push(Recorded {
                options: rest.to_owned(),
                udp: keyword == "udp",
                client: Vec::new(),
                server: Vec::new(),
            }),
            "client" => tests.last_mut().unwrap().client.push(unhex(rest)),
            "server" => tests.last_mut().unwrap().server.push(unhex(rest)),
            _ => assert!(line.is_empty() || line.starts_with('#'), "{line}"),
        }
    }
    tests
}

pub fn settings(bytes: &[u8], udp: bool) -> Option<Iperf2Settings> {
    let prefix_bytes = if udp { HEADER_BYTES } else { 0 };
    Iperf2Settings::read(bytes.get(prefix_bytes..)?, prefix_bytes)
}

/// Returns a recorded beginning, extended to the length of its datagram.
pub fn sized(bytes: &[u8], size: usize) -> Vec<u8> {
    let mut datagram = vec![0; size];
    let there = bytes.len().min(size);
    datagram[..there].copy_from_slice(&bytes[..there]);
    datagram
}

pub fn encode_words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|word| word.to_be_bytes()).collect()
}
