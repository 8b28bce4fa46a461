//! `icmpecho`: replies to ARP requests and ICMP echo requests, for any destination address.

use std::ops::Range;

use linerate_port::{Memory, Pool, Receive, Transmit, checksum};

use super::mac_swap;
use crate::forward::frame::{Mac, carried, ipv4_header};
use crate::forward::settings::Settings;
use crate::forward::stream::{Facts, ForwardMode, NoPlan, Stream};

/// Sends replies on the port that received the request.
pub struct IcmpEcho {
    address: Mac,
}

/// RFC 826: hardware type Ethernet, protocol IPv4, lengths 6 and 4, operation 1.
const ARP_REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];
const ARP_BYTES: usize = 28;
const ARP: u16 = 0x0806;
const ICMP: u8 = 1;
/// RFC 792.
const ECHO_REQUEST: u8 = 8;

/// Turns a request into its reply; returns false if the frame is no request. VLAN tags are kept.
pub(super) fn answer(frame: &mut [u8], own: Mac) -> bool {
    answer_arp(frame, own) || answer_ping(frame)
}

fn answer_arp(frame: &mut [u8], own: Mac) -> bool {
    let Some((at, ARP)) = carried(frame) else {
        return false;
    };
    if frame.len() < at + ARP_BYTES || frame[at..at + 8] != ARP_REQUEST {
        return false;
    }
    let (head, arp) = frame.split_at_mut(at);
    let mut asker = [0; 10];
    asker.copy_from_slice(&arp[8..18]);
    let mut wanted = [0; 4];
    wanted.copy_from_slice(&arp[24..28]);
    head[..6].copy_from_slice(&asker[..6]);
    head[6..12].copy_from_slice(&own.0);
    arp[7] = 2;
    arp[8..14].copy_from_slice(&own.0);
    arp[14..18].copy_from_slice(&wanted);
    arp[18..28].copy_from_slice(&asker);
    true
}

fn answer_ping(frame: &mut [u8]) -> bool {
    let Some(Range { start: at, end }) = ipv4_header(frame) else {
        return false;
    };
    let packet = &frame[at..];
    let (header, total) = (
        end - at,
        usize::from(u16::from_be_bytes([packet[2], packet[3]])),
    );
    let fragment = [packet[6] & 0x3f, packet[7]] != [0, 0];
    if packet[9] != ICMP || fragment || total < header + 8 || packet.len() < total {
        return false;
    }
    if packet[header..header + 2] != [ECHO_REQUEST, 0] {
        return false;
    }
    mac_swap::swap(frame);
    let packet = &mut frame[at..];
    // The reply to a multicast request has the group as source address, which hosts must not use.
    // The mode has no IP address of its own.
    let (source, destination) = packet[12..20].split_at_mut(4);
    source.swap_with_slice(destination);
    let icmp = &mut packet[header..total];
    icmp[0] = 0;
    icmp[2..4].fill(0);
    let sum = !checksum::sum(icmp);
    icmp[2..4].copy_from_slice(&sum.to_ne_bytes());
    true
}

impl ForwardMode for IcmpEcho {
    type Plan = NoPlan;
    const ABOUT: &'static str = "replies to ARP and ping on the receiving port, drops the rest";
    const REPLIES_ON_RX_PORT: bool = true;

    fn new(_: &NoPlan, facts: &Facts, _: &Settings) -> Self {
        Self {
            address: facts.address,
        }
    }

    fn step<R: Receive, T: Transmit>(
        &mut self,
        stream: &mut Stream<R, T>,
        pool: &mut Pool,
        memory: &Memory,
    ) -> usize {
        let received = stream.receive(pool);
        if received > 0 {
            let own = self.address;
            let taken = &mut stream.taken;
            stream.burst.retain(
                |frame| answer(memory.bytes_mut(frame), own),
                |frame| {
                    *taken += 1;
                    pool.free(frame);
                },
            );
            stream.transmit(pool);
        }
        received
    }
}
