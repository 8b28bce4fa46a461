//! Chargen (RFC 864): an endless stream of characters, or one datagram for each received one.

use std::net::TcpStream;
use std::slice::from_ref;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use linerate_dialect::chargen::{DIALECT, PERIOD_BYTES, PORT, answer, fill};
use linerate_dialect::remote_report::FarReport;
use linerate_host::sys::socket::{self, Flags};
use linerate_metric::plan::{Direction, Kind, Protocol};
use socket2::Socket;

use super::echo::plan_of_questions;
use super::payload::Ring;
use super::plain::plan;
use super::responder_loop::{Questions, answer_datagrams, would_answer};
use super::test_run::{PLAIN_IDLE, Test};
use super::worker::{Broke, LOOK_UP, Moved, Sending, is_nothing, send_stream};
use super::{Caller, OnStream, Speaker};
use crate::flow::Part;
use crate::session::server_state::Claim;

/// Handler of chargen.
pub const SPEAKER: Speaker = Speaker {
    name: DIALECT.name,
    port: Some(PORT),
    speaks_first: true,
    stream: Some(OnStream::Test(stream)),
    flow_of: None,
    datagrams: Some(|caller, claim, arrived| {
        let flow = Questions::answered_by(|question: &mut [u8], line| {
            answer(question.len(), line, question)
        });
        let plan = plan_of_questions(&caller);
        answer_datagrams(DIALECT.name, plan, caller, claim, arrived, flow);
    }),
    turns_away: Some(|hall, from, _| would_answer(DIALECT.name, hall, from)),
};

/// Bytes dropped by one receive call.
const THROWN_BYTES: usize = 64 << 10;

/// Bytes of a write: a multiple of the pattern's period.
const WRITE_BYTES: usize = 16 * PERIOD_BYTES;

fn stream(mut caller: Caller, claim: Claim, stream: TcpStream) {
    let mut plan = plan(&caller, Kind::Throughput, Protocol::Tcp, Direction::Receive);
    plan.payload_bytes = WRITE_BYTES as u64;
    let limits = *caller.house.hall.limits();
    plan.rate_bps = limits.rate_bps;
    let mut test = Test::begin(&mut caller, claim, DIALECT.name, DIALECT.name, plan);
    let spawned = test.spawn(1, Part::Source, stream.into(), move |context, socket| {
        let mut characters = vec![0; WRITE_BYTES];
        fill(0, &mut characters);
        let sending = Sending::new(WRITE_BYTES, PLAIN_IDLE).within(&limits, 1);
        let over = AtomicBool::new(false);
        let mut moved = std::thread::scope(|scope| {
            let thrower = std::thread::Builder::new().name("chargen-discard".to_owned());
            if let Err(error) = thrower.spawn_scoped(scope, || throw_away(socket, &over)) {
                // A client that writes would block for ever: the next one may find a thread.
                return Moved {
                    broke: Some(Broke::Nonsense(format!(
                        "this server could start no thread for it ({error}): raise `ulimit -u`, or \
                         lower --max-tests"
                    ))),
                    ..Moved::default()
                };
            }
            let mut payload = Ring::new(characters);
            let moved = send_stream(context, from_ref(socket), &sending, &mut payload);
            over.store(true, Relaxed);
            moved
        });
        // A chargen test ends only when its client closes.
        if matches!(moved.broke, Some(Broke::Error(_))) {
            moved.broke = None;
        }
        moved
    });
    test.conclude(spawned, FarReport::default);
}

/// Drops what the client sends, which has no meaning (RFC 864). Without that, a client that writes
/// would block for ever, and closing with unread bytes would reset the connection while the client
/// still reads.
fn throw_away(socket: &Socket, over: &AtomicBool) {
    let mut room = vec![0; THROWN_BYTES];
    if socket.set_read_timeout(Some(LOOK_UP)).is_err() {
        return;
    }
    while !over.load(Relaxed) {
        match socket::receive(socket, &mut room, Flags::TRUNCATE) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if is_nothing(&error) => {}
            Err(_) => return,
        }
    }
}
