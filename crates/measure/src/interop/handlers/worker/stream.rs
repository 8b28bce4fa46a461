//! Payload over TCP connections.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::pacing;
use linerate_host::sys::socket::{self, Flags};
use socket2::Socket;

use super::{Broke, Context, LOOK_UP, Moved, RECEIVE_BYTES, Sending, is_nothing, wait_for_turn};
use crate::interop::handlers::payload::Ring;

const LOOK_UP_NS: Nanos = LOOK_UP.as_nanos() as u64;

/// Poll interval shortly before the planned end: bytes that find space after the end are not part
/// of the test.
const LAST_LOOK_UP: Duration = Duration::from_millis(5);

/// Receives a connection until its end, or until the client is silent for too long.
///
/// `result` is the result of payload received before.
pub fn receive_stream(context: &Context, socket: &Socket, idle: Duration, moved: Moved) -> Moved {
    watch_stream(context, socket, idle, moved, |_| {})
}

/// Receives a connection as [`receive_stream`] does, and passes received bytes to `watch`.
pub fn watch_stream(
    context: &Context,
    socket: &Socket,
    idle: Duration,
    mut moved: Moved,
    mut watch: impl FnMut(&[u8]),
) -> Moved {
    let mut room = vec![0; RECEIVE_BYTES];
    let mut last = clock::now();
    let idle_ns = idle.as_nanos() as u64;
    if moved.totals.bytes > 0 {
        moved.at(last);
        context.publish(&moved);
    }
    if let Err(error) = socket.set_read_timeout(Some(LOOK_UP)) {
        moved.broke = Some(Broke::Error(error));
        return moved;
    }
    while !context.signals.closed.load(Relaxed) {
        match socket::receive(socket, &mut room, Flags::NONE) {
            Ok(0) => {
                // The end is the time of its receipt, as in the reference receivers.
                moved.at(clock::now());
                break;
            }
            Ok(bytes) => {
                last = clock::now();
                watch(&room[..bytes]);
                moved.at(last);
                moved.totals.bytes += bytes as u64;
                moved.totals.calls += 1;
                context.publish(&moved);
            }
            Err(error) if is_nothing(&error) => {
                if clock::now().saturating_sub(last) > idle_ns {
                    moved.broke = Some(Broke::Silent(idle));
                    break;
                }
            }
            Err(error) => {
                moved.broke = Some(Broke::Error(error));
                break;
            }
        }
    }
    moved
}

/// Sends on connections, a block on each in rotation; with a rate, in paced writes.
pub fn send_stream(
    context: &Context,
    sockets: &[Socket],
    sending: &Sending,
    payload: &mut Ring,
) -> Moved {
    let mut moved = Moved::default();
    for socket in sockets {
        if let Err(error) = socket.set_write_timeout(Some(LOOK_UP)) {
            moved.broke = Some(Broke::Error(error));
            return moved;
        }
    }
    if let Some(most) = sending.most_bps {
        for socket in sockets {
            // After a client stalls, the socket's buffer is full, and only the kernel can pace what
            // leaves it. Where it cannot, our own pacing is all there is.
            let _ = pacing::set_max_rate(socket, (most / 8).max(1));
        }
    }
    let piece = sending.piece_bytes();
    let begun = clock::now();
    let mut pacer = sending.pacer(begun, piece);
    let idle_ns = sending.idle.as_nanos() as u64;
    let (mut turn, mut left) = (0, sending.block_bytes);
    let (mut last, mut hurries) = (clock::now(), false);
    loop {
        let now = clock::now();
        if sending.is_over(&context.signals, now, moved.totals.bytes) {
            break;
        }
        if !hurries
            && sending
                .until_ns
                .is_some_and(|until| now + LOOK_UP_NS > until)
        {
            hurries = true;
            for socket in sockets {
                // If this fails, the end is noticed later.
                let _ = socket.set_write_timeout(Some(LAST_LOOK_UP));
            }
        }
        if wait_for_turn(&pacer, now, sending.until_ns) {
            continue;
        }
        if sending.held {
            pacer.give_up(now, piece as u64);
        }
        let all = sending
            .amount_bytes
            .map_or(u64::MAX, |amount| amount - moved.totals.bytes);
        let most = left.min(piece);
        let most = most.min(usize::try_from(all).unwrap_or(usize::MAX));
        match socket::send(&sockets[turn], payload.next(most), Flags::NONE) {
            Ok(bytes) => {
                payload.sent(bytes);
                last = clock::now();
                moved.began(begun, &pacer);
                // Part of a block: the call blocked until its timeout, and the time at which the
                // last bytes were accepted is not known. The end of the wait would make the test
                // longer than it was.
                moved.at(if bytes < most { now } else { last });
                pacer.left(bytes as u64, last);
                moved.totals.bytes += bytes as u64;
                moved.totals.calls += 1;
                context.publish(&moved);
                left -= bytes;
                if left == 0 {
                    left = sending.block_bytes;
                    turn = (turn + 1) % sockets.len();
                }
            }
            Err(error) if is_nothing(&error) => {
                if now.saturating_sub(last) > idle_ns {
                    moved.broke = Some(Broke::Silent(sending.idle));
                    break;
                }
            }
            Err(error) => {
                moved.broke = Some(Broke::Error(error));
                break;
            }
        }
    }
    moved.sent_all(sending.until_ns, &context.signals);
    moved
}
