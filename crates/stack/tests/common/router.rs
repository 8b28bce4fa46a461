//! Router between two stacks, whose other link has a smaller MTU.

use std::cell::Cell;
use std::rc::Rc;

use super::packets::{self, ETHERNET_BYTES};
use super::{CapturedFrames, LinkModel, TwoStackSim};

/// Returns the ICMP error of a router about a packet of the local stack: type, code, and second
/// half of the header.
pub fn icmp_error(frame: &[u8], (kind, code): (u8, u8), second_half: u32) -> Vec<u8> {
    let packet = &frame[ETHERNET_BYTES..];
    let (quote_bytes, router, protocol) = match packets::is_v4(frame) {
        true => (28, "10.0.0.254", packets::ICMP),
        false => (1_232, "fd00::fe", packets::ICMPV6),
    };
    let mut message = vec![kind, code, 0, 0];
    message.extend(second_half.to_be_bytes());
    // The minimum that must be quoted, and as much as fits.
    message.extend(&packet[..packet.len().min(quote_bytes)]);
    let to = packets::source(frame).to_string();
    let ethernet = frame[6..12].try_into().unwrap();
    packets::packet(ethernet, (router, &to), protocol, &message)
}

pub fn packet_too_big(frame: &[u8], mtu: u32) -> Vec<u8> {
    let kind = match packets::is_v4(frame) {
        true => (3, 4),
        false => (2, 0),
    };
    icmp_error(frame, kind, mtu)
}

/// Place of checksums and segmentation: the stacks, none, or devices.
pub const OFFLOAD_MODES: [&str; 3] = ["software", "offload", "devices"];

/// Creates two stacks with one of [`OFFLOAD_MODES`].
pub fn with_offload_mode(mode: &str, settings: &[&str]) -> TwoStackSim {
    let checksum_setting = format!("checksum={mode}");
    match mode {
        "devices" => TwoStackSim::with_devices(settings, LinkModel::CLEAN),
        _ => TwoStackSim::symmetric(
            &[&[&*checksum_setting], settings].concat(),
            LinkModel::CLEAN,
        ),
    }
}

/// Puts a router with this MTU between the stacks; its ICMP errors go to the local stack.
pub fn put_router(sim: &mut TwoStackSim, mtu: usize, reported_mtu: Option<u32>) -> CapturedFrames {
    put_variable_router(sim, mtu, reported_mtu).0
}

/// Puts a router with a variable MTU between the stacks. Returns its messages, its MTU, and the
/// number of packets above 1,300 B that reached it. Its messages report the MTU in `reported_mtu`,
/// if any.
pub fn put_variable_router(
    sim: &mut TwoStackSim,
    mtu: usize,
    reported_mtu: Option<u32>,
) -> (CapturedFrames, Rc<Cell<usize>>, Rc<Cell<usize>>) {
    let (messages, mtu) = (CapturedFrames::default(), Rc::new(Cell::new(mtu)));
    let long_packets = Rc::new(Cell::new(0));
    let (frames, link_mtu, count) = (
        Rc::clone(&messages),
        Rc::clone(&mtu),
        Rc::clone(&long_packets),
    );
    sim.wire.filter = Box::new(move |end, frame| {
        let length = frame.len() - ETHERNET_BYTES;
        let fits = end == 1 || length <= link_mtu.get();
        count.set(count.get() + usize::from(end == 0 && length > 1_300));
        if let (false, Some(mtu_in_message)) = (fits, reported_mtu) {
            frames
                .borrow_mut()
                .push(packet_too_big(frame, mtu_in_message));
        }
        fits
    });
    (messages, mtu, long_packets)
}

/// Delivers the router's messages.
pub fn deliver_messages(sim: &mut TwoStackSim, messages: &CapturedFrames) {
    for frame in messages.take() {
        sim.wire.deliver(0, &frame);
    }
}
