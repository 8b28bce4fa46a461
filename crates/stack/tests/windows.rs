//! Who does not keep to the window that it was told.

mod common;

use std::cell::RefCell;
use std::rc::Rc;

use common::{Bulk, Link, World};

const ETHERNET: usize = 14;
const IP: usize = 20;
const TCP: usize = 20;

fn sum(bytes: &[u8]) -> u32 {
    let pairs = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    pairs.sum()
}

fn checksum(bytes: &[u8], start: u32) -> u16 {
    let mut sum = sum(bytes) + start;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// A segment like the one in `frame`, `ahead` bytes later in its stream.
fn later(frame: &[u8], ahead: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = frame[..ETHERNET + IP + TCP].to_vec();
    bytes.extend_from_slice(payload);
    let ip = &mut bytes[ETHERNET..];
    let total = (IP + TCP + payload.len()) as u16;
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    ip[10..12].fill(0);
    let header = checksum(&ip[..IP], 0);
    ip[10..12].copy_from_slice(&header.to_be_bytes());
    let pseudo = sum(&ip[12..20]) + 6 + (TCP + payload.len()) as u32;
    let tcp = &mut ip[IP..];
    let sequence = u32::from_be_bytes(tcp[4..8].try_into().unwrap()).wrapping_add(ahead);
    tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
    // The header alone, without options.
    tcp[12] = 5 << 4;
    tcp[16..18].fill(0);
    let whole = checksum(tcp, pseudo);
    tcp[16..18].copy_from_slice(&whole.to_be_bytes());
    bytes
}

/// The window of a greeting is not scaled, and the engine takes it to be: eight times as much as there is room for.
#[test]
fn what_is_sent_beyond_the_buffer_is_not_taken() {
    for (window, ahead) in [
        // Across the end of the buffer, just beyond it, and far beyond.
        ("256K", (256 << 10) - 700),
        ("256K", 256 << 10),
        ("256K", 500_000),
        ("64K", (64 << 10) - 1),
        ("64K", 100_000),
        ("32K", (32 << 10) - 1_000),
    ] {
        let window_setting = format!("tcp.receive_window={window}");
        let mut world = World::alike(&[&window_setting], Link::CLEAN);
        let frames = Rc::new(RefCell::new(Vec::new()));
        let seen = Rc::clone(&frames);
        world.wire.watch = Box::new(move |end, frame| {
            let is_tcp = frame[12..14] == [8, 0] && frame[ETHERNET + 9] == 6;
            if end == 0 && is_tcp {
                seen.borrow_mut().push(frame.clone());
            }
            true
        });
        let (client, server) = world.connected(80);
        // The last of the greeting, after which the far end has told of no window yet.
        let last = frames.borrow().last().cloned().expect("a greeting");
        world.wire.put(1, &later(&last, ahead, &[0xaa; 1_400]));
        let mut near = Bulk::new(client, 600_000);
        let mut far = Bulk::new(server, 0);
        // Until all room is taken, and nobody reads.
        for _ in 0..3_000 {
            near.step(&mut world.near);
            world.turn();
            world.pass();
        }
        assert!(
            near.sent < near.send,
            "{window} {ahead}: there was no end to the room"
        );
        world.until(60, |world| {
            near.step(&mut world.near);
            far.step(&mut world.far);
            far.ended
        });
        assert_eq!(far.received, near.send, "{window} {ahead}");
    }
}
