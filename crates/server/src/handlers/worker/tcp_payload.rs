//! Payload over TCP connections.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use linerate_sys::clock::Nanos;
use linerate_sys::socket::MessageFlags;
use linerate_sys::{clock, pacing, socket};
use socket2::Socket;

use super::{
    FlowFailure, FlowWorkerContext, FlowWorkerResult, POLL_INTERVAL, RECEIVE_BUFFER_BYTES,
    SendPlan, is_retryable, wait_for_pacer,
};
use crate::handlers::payload::PayloadRing;

const POLL_INTERVAL_NS: Nanos = POLL_INTERVAL.as_nanos() as u64;

/// Poll interval shortly before the planned end: bytes that find space after the end are not part
/// of the test.
const FINAL_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Receives a connection until its end, or until the client is silent for too long.
///
/// `result` is the result of payload received before.
pub fn receive_stream(
    context: &FlowWorkerContext,
    socket: &Socket,
    idle_timeout: Duration,
    result: FlowWorkerResult,
) -> FlowWorkerResult {
    watch_stream(context, socket, idle_timeout, result, |_| {})
}

/// Receives a connection as [`receive_stream`] does, and passes received bytes to `watch`.
pub fn watch_stream(
    context: &FlowWorkerContext,
    socket: &Socket,
    idle_timeout: Duration,
    mut result: FlowWorkerResult,
    mut watch: impl FnMut(&[u8]),
) -> FlowWorkerResult {
    let mut buffer = vec![0; RECEIVE_BUFFER_BYTES];
    let mut last = clock::now();
    let idle_ns = idle_timeout.as_nanos() as u64;
    if result.totals.bytes > 0 {
        result.record_payload(last);
        context.publish(&result);
    }
    if let Err(error) = socket.set_read_timeout(Some(POLL_INTERVAL)) {
        result.failure = Some(FlowFailure::Socket(error));
        return result;
    }
    while !context.signals.closed.load(Relaxed) {
        match socket::receive(socket, &mut buffer, MessageFlags::NONE) {
            Ok(0) => {
                // The end is the time of its receipt, as in the reference receivers.
                result.record_payload(clock::now());
                break;
            }
            Ok(bytes) => {
                last = clock::now();
                watch(&buffer[..bytes]);
                result.record_payload(last);
                result.totals.bytes += bytes as u64;
                result.totals.calls += 1;
                context.publish(&result);
            }
            Err(error) if is_retryable(&error) => {
                if clock::now().saturating_sub(last) > idle_ns {
                    result.failure = Some(FlowFailure::Idle(idle_timeout));
                    break;
                }
            }
            Err(error) => {
                result.failure = Some(FlowFailure::Socket(error));
                break;
            }
        }
    }
    result
}

/// Sends on connections, a block on each in rotation; with a rate, in paced writes.
pub fn send_stream(
    context: &FlowWorkerContext,
    sockets: &[Socket],
    send_plan: &SendPlan,
    payload: &mut PayloadRing,
) -> FlowWorkerResult {
    let mut result = FlowWorkerResult::default();
    for socket in sockets {
        if let Err(error) = socket.set_write_timeout(Some(POLL_INTERVAL)) {
            result.failure = Some(FlowFailure::Socket(error));
            return result;
        }
    }
    if let Some(most) = send_plan.limit_bps {
        for socket in sockets {
            // After a client stalls, the socket's buffer is full, and only the kernel can pace what
            // leaves it. Where it cannot, our own pacing is all there is.
            let _ = pacing::set_max_rate(socket, (most / 8).max(1));
        }
    }
    let write_bytes = send_plan.write_bytes();
    let start_ns = clock::now();
    let mut pacer = send_plan.pacer(start_ns, write_bytes);
    let idle_ns = send_plan.idle_timeout.as_nanos() as u64;
    let (mut index, mut block_left) = (0, send_plan.block_bytes);
    let (mut last, mut uses_short_timeout) = (start_ns, false);
    // Read after each call that takes time: one read serves a write and the next decision.
    let mut now = start_ns;
    loop {
        if send_plan.is_over(&context.signals, now, result.totals.bytes) {
            break;
        }
        if !uses_short_timeout
            && send_plan
                .until_ns
                .is_some_and(|until| now + POLL_INTERVAL_NS > until)
        {
            uses_short_timeout = true;
            for socket in sockets {
                // If this fails, the end is noticed later.
                let _ = socket.set_write_timeout(Some(FINAL_POLL_INTERVAL));
            }
        }
        if wait_for_pacer(&pacer, now, send_plan.until_ns) {
            now = clock::now();
            continue;
        }
        if send_plan.at_limit {
            pacer.drop_overdue(now, write_bytes as u64);
        }
        let remaining = send_plan
            .amount_bytes
            .map_or(u64::MAX, |amount| amount - result.totals.bytes);
        let most = block_left.min(write_bytes);
        let most = most.min(usize::try_from(remaining).unwrap_or(usize::MAX));
        match socket::send(&sockets[index], payload.next(most), MessageFlags::NONE) {
            Ok(bytes) => {
                payload.advance(bytes);
                last = clock::now();
                result.record_start(start_ns, &pacer);
                // Part of a block: the call blocked until its timeout, and the time at which the
                // last bytes were accepted is not known. The end of the wait would make the test
                // longer than it was.
                result.record_payload(if bytes < most { now } else { last });
                pacer.record_sent(bytes as u64, last);
                now = last;
                result.totals.bytes += bytes as u64;
                result.totals.calls += 1;
                context.publish(&result);
                block_left -= bytes;
                if block_left == 0 {
                    block_left = send_plan.block_bytes;
                    index = (index + 1) % sockets.len();
                }
            }
            Err(error) if is_retryable(&error) => {
                if now.saturating_sub(last) > idle_ns {
                    result.failure = Some(FlowFailure::Idle(send_plan.idle_timeout));
                    break;
                }
                now = clock::now();
            }
            Err(error) => {
                result.failure = Some(FlowFailure::Socket(error));
                break;
            }
        }
    }
    result.record_send_end(send_plan.until_ns, &context.signals);
    result
}
