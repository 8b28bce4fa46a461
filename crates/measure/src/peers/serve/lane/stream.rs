//! Payload over connections.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::pacing;
use linerate_host::sys::socket::{self, Flags};
use socket2::Socket;

use super::{Broke, Context, LOOK_UP, Moved, RECEIVE_BYTES, Sending, is_nothing, wait_for_turn};
use crate::peers::serve::payload::Ring;

const LOOK_UP_NS: Nanos = LOOK_UP.as_nanos() as u64;

/// The same shortly before the planned end: what has room only after it is none of the test's.
const LAST_LOOK_UP: Duration = Duration::from_millis(5);

/// Takes a connection until its end, or until the client is silent for too long.
///
/// `moved` has what was taken of it before.
pub fn receive_stream(context: &Context, socket: &Socket, idle: Duration, moved: Moved) -> Moved {
    watch_stream(context, socket, idle, moved, |_| {})
}

/// The same, and shows what comes.
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
                // The end is when it was heard, as stock receivers have it.
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

/// Sends over connections, a whole block to each in turn; at a rate, in pieces that are due.
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
            // Behind a client that stood still a socket's buffer is full: what leaves it then is the kernel's to
            // pace. Where it cannot, our own pace is all there is.
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
                // Without it the end is only seen later.
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
                // Part of a block: it waited for room until its time was over, and nothing says when the last
                // of it moved. An end that is the wait's would make the whole longer than it was.
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
