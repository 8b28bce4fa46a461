//! Router between two stacks, whose other link has a smaller MTU.

use std::cell::Cell;
use std::rc::Rc;

use super::packets::{self, ETHERNET};
use super::{Frames, Link, World};

/// Returns the ICMP error of a router about a packet of the local stack: type, code, and second
/// half of the header.
pub fn message(frame: &[u8], (kind, code): (u8, u8), word: u32) -> Vec<u8> {
    let packet = &frame[ETHERNET..];
    let (least, router, protocol) = match packets::is_v4(frame) {
        true => (28, "10.0.0.254", packets::ICMP),
        false => (1_232, "fd00::fe", packets::ICMPV6),
    };
    let mut message = vec![kind, code, 0, 0];
    message.extend(word.to_be_bytes());
    // The minimum that must be quoted, and as much as fits.
    message.extend(&packet[..packet.len().min(least)]);
    let to = packets::sender(frame).to_string();
    let ethernet = frame[6..12].try_into().unwrap();
    packets::packet(ethernet, (router, &to), protocol, &message)
}

pub fn too_long(frame: &[u8], mtu: u32) -> Vec<u8> {
    let kind = match packets::is_v4(frame) {
        true => (3, 4),
        false => (2, 0),
    };
    message(frame, kind, mtu)
}

/// Place of checksums and segmentation: the stacks, none, or devices.
pub const CUTTERS: [&str; 3] = ["software", "offload", "devices"];

/// Creates two stacks with one of [`CUTTERS`].
pub fn cut_by(cutter: &str, settings: &[&str]) -> World {
    let sums = format!("checksum={cutter}");
    match cutter {
        "devices" => World::with_devices(settings, Link::CLEAN),
        _ => World::alike(&[&[&*sums], settings].concat(), Link::CLEAN),
    }
}

/// Puts a router with this MTU between the stacks; its ICMP errors go to the local stack.
pub fn router(world: &mut World, mtu: usize, says: Option<u32>) -> Frames {
    changing(world, mtu, says).0
}

/// Puts a router with a variable MTU between the stacks. Returns its messages, its MTU, and the
/// number of packets above 1,300 B that reached it. Its messages report the MTU in `says`, if any.
pub fn changing(
    world: &mut World,
    mtu: usize,
    says: Option<u32>,
) -> (Frames, Rc<Cell<usize>>, Rc<Cell<usize>>) {
    let (said, mtu) = (Frames::default(), Rc::new(Cell::new(mtu)));
    let longs = Rc::new(Cell::new(0));
    let (list, takes, count) = (Rc::clone(&said), Rc::clone(&mtu), Rc::clone(&longs));
    world.wire.watch = Box::new(move |end, frame| {
        let length = frame.len() - ETHERNET;
        let fits = end == 1 || length <= takes.get();
        count.set(count.get() + usize::from(end == 0 && length > 1_300));
        if let (false, Some(told)) = (fits, says) {
            list.borrow_mut().push(too_long(frame, told));
        }
        fits
    });
    (said, mtu, longs)
}

/// Delivers the router's messages.
pub fn deliver(world: &mut World, said: &Frames) {
    for frame in said.take() {
        world.wire.put(0, &frame);
    }
}
