//! A router between two stacks, whose other link takes shorter packets.

use std::cell::Cell;
use std::rc::Rc;

use super::segments::checksum;
use super::{Frames, Link, World};

pub const ETHERNET: usize = 14;

/// What a router in the middle says of a packet that the near end sent: kind, code, and the second half of the header.
pub fn message(frame: &[u8], (kind, code): (u8, u8), word: u32) -> Vec<u8> {
    let packet = &frame[ETHERNET..];
    let v4 = packet[0] >> 4 == 4;
    // The least that must be quoted, and as much as fits.
    let quote = &packet[..packet.len().min(if v4 { 28 } else { 1_232 })];
    let mut icmp = vec![kind, code, 0, 0];
    icmp.extend(word.to_be_bytes());
    icmp.extend(quote);
    let (router, own): (&[u8], &[u8]) = match v4 {
        true => (&[10, 0, 0, 254], &packet[12..16]),
        false => (
            &[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 254],
            &packet[8..24],
        ),
    };
    let mut pseudo = 0;
    if !v4 {
        let ends = [router, own].concat();
        let words = ends
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
        pseudo = words.sum::<u32>() + 58 + icmp.len() as u32;
    }
    let sum = checksum(&icmp, pseudo);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut made = [&frame[6..12], &[2, 0, 0, 0, 0, 9], &frame[12..14]].concat();
    if v4 {
        let mut header = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 60, 1, 0, 0];
        header[2..4].copy_from_slice(&(20 + icmp.len() as u16).to_be_bytes());
        header.extend([router, own].concat());
        let sum = checksum(&header, 0);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        made.extend(header);
    } else {
        made.extend([0x60, 0, 0, 0]);
        made.extend((icmp.len() as u16).to_be_bytes());
        made.extend([58, 60]);
        made.extend([router, own].concat());
    }
    made.extend(icmp);
    made
}

pub fn too_long(frame: &[u8], mtu: u32) -> Vec<u8> {
    let kind = if frame[ETHERNET] >> 4 == 4 {
        (3, 4)
    } else {
        (2, 0)
    };
    message(frame, kind, mtu)
}

/// Who sums and cuts: the stacks, nobody, or devices that are left to.
pub const CUTTERS: [&str; 3] = ["software", "offload", "devices"];

/// Two stacks whose packets are summed and cut by one of [`CUTTERS`].
pub fn cut_by(cutter: &str, settings: &[&str]) -> World {
    let sums = format!("checksum={cutter}");
    match cutter {
        "devices" => World::with_devices(settings, Link::CLEAN),
        _ => World::alike(&[&[&*sums], settings].concat(), Link::CLEAN),
    }
}

/// A router between the ends, whose link takes packets of this length: what it says comes back to the near end.
pub fn router(world: &mut World, mtu: usize, says: Option<u32>) -> Frames {
    changing(world, mtu, says).0
}

/// The same of a link that changes: what it says, how long packets it takes, which may be set, and how many longer than
/// 1,300 B came to it.
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

/// What the router has said arrives.
pub fn deliver(world: &mut World, said: &Frames) {
    for frame in said.take() {
        world.wire.put(0, &frame);
    }
}
