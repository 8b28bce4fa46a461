//! Flows that move payload, each on a thread of its own.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Instant;

use linerate_protocol::iperf3::udp::{Iperf3Header, read_header, write_header};
use linerate_protocol::iperf3::{CounterWidth, FlowResult, Iperf3Params};

use super::{Clock, NAP};

/// What all flows of a test look at.
#[derive(Default)]
pub struct Signals {
    pub started: AtomicBool,
    /// Sources stop.
    pub ended: AtomicBool,
    /// Sinks stop too.
    pub closed: AtomicBool,
    /// Bytes of all sources together.
    pub sent_bytes: AtomicU64,
}

/// What a flow has counted.
#[derive(Default)]
pub struct Tally {
    pub bytes: AtomicU64,
    /// Datagrams sent, or the highest number that came.
    pub packets: AtomicU64,
    pub arrived: AtomicU64,
    /// Smoothed variation of the transit times, in nanoseconds.
    pub ipdv_ns: AtomicU64,
    pub last_transit_ns: AtomicU64,
}

/// A flow under way.
pub struct Running {
    pub id: u32,
    pub sends: bool,
    pub tally: Arc<Tally>,
    pub thread: Option<JoinHandle<()>>,
}

impl Running {
    pub fn bytes(&self) -> u64 {
        self.tally.bytes.load(SeqCst)
    }

    /// In the words of the results.
    pub fn result(&self, udp: bool, ran_ns: u64) -> FlowResult {
        let packets = self.tally.packets.load(SeqCst);
        let arrived = self.tally.arrived.load(SeqCst);
        let receives_udp = udp && !self.sends;
        FlowResult {
            id: self.id,
            bytes: Some(self.bytes()),
            packets: udp.then_some(packets),
            lost: receives_udp.then(|| packets.saturating_sub(arrived)),
            ipdv_ns: receives_udp.then(|| self.tally.ipdv_ns.load(SeqCst) as f64),
            start_ns: Some(0),
            end_ns: Some(ran_ns),
            ..FlowResult::default()
        }
    }
}

impl Tally {
    /// A datagram of a flow to this end.
    pub fn take(&self, datagram: &[u8], counters: CounterWidth, now_ns: u64) {
        let Some(header) = read_header(datagram, counters) else {
            return;
        };
        self.bytes.fetch_add(datagram.len() as u64, SeqCst);
        self.packets.fetch_max(header.sequence, SeqCst);
        let transit = now_ns.wrapping_sub(header.sent_ns);
        let last = self.last_transit_ns.swap(transit, SeqCst);
        if self.arrived.fetch_add(1, SeqCst) > 0 {
            let difference = (transit.wrapping_sub(last) as i64).unsigned_abs();
            let ipdv = self.ipdv_ns.load(SeqCst);
            let next = ipdv as f64 + (difference as f64 - ipdv as f64) / 16.0;
            self.ipdv_ns.store(next as u64, SeqCst);
        }
    }
}

fn wait_for_start(signals: &Signals) -> bool {
    while !signals.started.load(SeqCst) && !signals.closed.load(SeqCst) {
        std::thread::sleep(NAP / 5);
    }
    signals.started.load(SeqCst)
}

/// Whether another block may leave; counts it.
fn may_send(signals: &Signals, params: &Iperf3Params) -> bool {
    if signals.ended.load(SeqCst) || signals.closed.load(SeqCst) {
        return false;
    }
    let block = u64::from(params.block_bytes);
    let before = signals.sent_bytes.fetch_add(block, SeqCst);
    let wanted = params
        .amount_bytes
        .or(params.blocks.map(|blocks| blocks * block));
    if wanted.is_some_and(|wanted| before >= wanted) {
        signals.sent_bytes.fetch_sub(block, SeqCst);
        return false;
    }
    true
}

/// Keeps the rate.
struct Pace {
    begun: Instant,
    left_bits: u64,
    rate_bps: Option<u64>,
}

impl Pace {
    fn wait(&mut self, block_bytes: u32, signals: &Signals) {
        let Some(rate) = self.rate_bps else { return };
        let due = self.left_bits as f64 / rate as f64;
        self.left_bits += u64::from(block_bytes) * 8;
        while self.begun.elapsed().as_secs_f64() < due && !signals.ended.load(SeqCst) {
            std::thread::sleep(NAP / 5);
        }
    }
}

pub fn tcp(
    id: u32,
    sends: bool,
    mut stream: TcpStream,
    params: &Iperf3Params,
    signals: &Arc<Signals>,
) -> Running {
    let tally = Arc::new(Tally::default());
    let (params, counts, signals) = (params.clone(), Arc::clone(&tally), Arc::clone(signals));
    let thread = std::thread::spawn(move || {
        stream.set_read_timeout(Some(NAP)).unwrap();
        stream.set_write_timeout(Some(NAP)).unwrap();
        let mut block = vec![b'x'; params.block_bytes as usize];
        if sends && wait_for_start(&signals) {
            let mut pace = Pace {
                begun: Instant::now(),
                left_bits: 0,
                rate_bps: params.rate_bps,
            };
            'blocks: while may_send(&signals, &params) {
                pace.wait(params.block_bytes, &signals);
                let mut left = block.len();
                while left > 0 {
                    match stream.write(&block[..left]) {
                        Ok(written) => {
                            counts.bytes.fetch_add(written as u64, SeqCst);
                            left -= written;
                        }
                        Err(e) if e.kind() == ErrorKind::WouldBlock => {
                            if signals.ended.load(SeqCst) || signals.closed.load(SeqCst) {
                                break 'blocks;
                            }
                        }
                        Err(_) => break 'blocks,
                    }
                }
            }
        }
        // Also a sender reads until the end, so that closing does not reset the connection.
        while !signals.closed.load(SeqCst) {
            match stream.read(&mut block) {
                Ok(0) => break,
                Ok(bytes) if !sends => {
                    counts.bytes.fetch_add(bytes as u64, SeqCst);
                }
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
    });
    Running {
        id,
        sends,
        tally,
        thread: Some(thread),
    }
}

/// A source of datagrams over a socket that others may use too; `to` is where they go.
pub fn udp_source(
    id: u32,
    socket: UdpSocket,
    to: std::net::SocketAddr,
    params: &Iperf3Params,
    signals: &Arc<Signals>,
) -> Running {
    let tally = Arc::new(Tally::default());
    let (params, counts, signals) = (params.clone(), Arc::clone(&tally), Arc::clone(signals));
    let thread = std::thread::spawn(move || {
        let clock = Clock::start();
        let mut datagram = vec![b'x'; params.block_bytes as usize];
        if !wait_for_start(&signals) {
            return;
        }
        let mut pace = Pace {
            begun: Instant::now(),
            left_bits: 0,
            rate_bps: params.rate_bps.or(Some(1_000_000)),
        };
        while may_send(&signals, &params) {
            pace.wait(params.block_bytes, &signals);
            let sequence = counts.packets.load(SeqCst) + 1;
            let sent_ns = clock.now_ns();
            write_header(
                &mut datagram,
                params.counter_width,
                Iperf3Header { sequence, sent_ns },
            );
            // The socket may be closed already: the control connection reports it.
            let _ = socket.send_to(&datagram, to);
            counts.packets.store(sequence, SeqCst);
            counts.bytes.fetch_add(datagram.len() as u64, SeqCst);
        }
    });
    Running {
        id,
        sends: true,
        tally,
        thread: Some(thread),
    }
}

/// A sink of datagrams that the caller passes in.
pub fn udp_sink(id: u32) -> Running {
    Running {
        id,
        sends: false,
        tally: Arc::default(),
        thread: None,
    }
}
