//! `icmpecho`: replies to ARP requests and ICMP echo requests, for any destination address.

use std::ops::Range;

use linerate_packet::checksum;
use linerate_packet::frame::{ipv4_header, network_header};
use linerate_packet::ip_protocol;
use linerate_packet::mac_address::MacAddress;
use linerate_port::{RxQueue, TxQueue};
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;

use super::mac_swap;
use crate::stream::{ForwardMode, FwdStream, ModeSettings, NoOptions, StreamFacts};

/// Sends replies on the port that received the request.
pub struct IcmpEcho {
    address: MacAddress,
}

/// RFC 826: hardware type Ethernet, protocol IPv4, lengths 6 and 4, operation 1.
const ARP_REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];
const ARP_BYTES: usize = 28;
const ARP_ETHERTYPE: u16 = 0x0806;
/// RFC 792.
const ECHO_REQUEST: u8 = 8;

/// Turns a request into its reply; returns false if the frame is no request. VLAN tags are kept.
pub(super) fn reply_to(frame: &mut [u8], local_address: MacAddress) -> bool {
    reply_to_arp(frame, local_address) || reply_to_ping(frame)
}

fn reply_to_arp(frame: &mut [u8], local_address: MacAddress) -> bool {
    let Some((offset, ARP_ETHERTYPE)) = network_header(frame) else {
        return false;
    };
    if frame.len() < offset + ARP_BYTES || frame[offset..offset + 8] != ARP_REQUEST {
        return false;
    }
    let (head, arp) = frame.split_at_mut(offset);
    let mut sender = [0; 10];
    sender.copy_from_slice(&arp[8..18]);
    let mut target_ip = [0; 4];
    target_ip.copy_from_slice(&arp[24..28]);
    head[..6].copy_from_slice(&sender[..6]);
    head[6..12].copy_from_slice(&local_address.0);
    arp[7] = 2;
    arp[8..14].copy_from_slice(&local_address.0);
    arp[14..18].copy_from_slice(&target_ip);
    arp[18..28].copy_from_slice(&sender);
    true
}

fn reply_to_ping(frame: &mut [u8]) -> bool {
    let Some(Range { start: offset, end }) = ipv4_header(frame) else {
        return false;
    };
    let packet = &frame[offset..];
    let (header, total) = (
        end - offset,
        usize::from(u16::from_be_bytes([packet[2], packet[3]])),
    );
    let is_fragment = [packet[6] & 0x3f, packet[7]] != [0, 0];
    if packet[9] != ip_protocol::ICMP || is_fragment || total < header + 8 || packet.len() < total {
        return false;
    }
    if packet[header..header + 2] != [ECHO_REQUEST, 0] {
        return false;
    }
    mac_swap::swap(frame);
    let packet = &mut frame[offset..];
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
    type Plan = NoOptions;
    const ABOUT: &'static str = "replies to ARP and ping on the receiving port, drops the rest";
    const REPLIES_ON_RX_PORT: bool = true;

    fn new(_: &NoOptions, facts: &StreamFacts, _: &ModeSettings) -> Self {
        Self {
            address: facts.address,
        }
    }

    fn step<R: RxQueue, T: TxQueue>(
        &mut self,
        stream: &mut FwdStream<R, T>,
        pool: &mut FramePool,
        memory: &FrameRegion,
    ) -> usize {
        let received = stream.receive(pool);
        if received > 0 {
            let local_address = self.address;
            let consumed = &mut stream.consumed;
            stream.burst.retain(
                |frame| reply_to(memory.bytes_mut(frame), local_address),
                |frame| {
                    *consumed += 1;
                    pool.free(frame);
                },
            );
            stream.transmit(pool);
        }
        received
    }
}
