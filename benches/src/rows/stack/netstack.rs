//! Two user-space stacks connected by a ring.

use std::hint::black_box;
use std::task::Poll;
use std::time::Instant;

use linerate_port::{Memory, PortUrl, copy, open};
use linerate_stack::{Addressing, Config, SocketId, Stack, TcpState, memory_plan};

use super::{BUFFER_BYTES, BURST, SLICE, TIME, over, shift};
use crate::error::Trouble;

struct Ends {
    near: Stack,
    far: Stack,
    start: Instant,
}

fn broken(why: impl ToString) -> Trouble {
    Trouble::program("linerate-stack", why.to_string())
}

fn now<T>(poll: Poll<Result<T, linerate_stack::StackError>>) -> Result<Option<T>, Trouble> {
    match poll {
        Poll::Ready(result) => result.map(Some).map_err(broken),
        Poll::Pending => Ok(None),
    }
}

impl Ends {
    fn new(settings: &[&str]) -> Result<Self, Trouble> {
        let mut config = Config::default();
        for setting in settings {
            config.apply(setting).map_err(broken)?;
        }
        let url = |end| format!("ring:bench,end={end}").parse::<PortUrl>();
        let (a, b) = (url("a").map_err(broken)?, url("b").map_err(broken)?);
        let plan = memory_plan(&config, &a).joined(memory_plan(&config, &b));
        let memory = Memory::new(plan).map_err(broken)?;
        let stack = |url: &PortUrl, address: &str| -> Result<Stack, Trouble> {
            let port = open(url, &memory).map_err(broken)?.remove(0);
            let own = Addressing::new(&[address]).map_err(broken)?;
            Stack::new(port, &memory, &config, &own).map_err(broken)
        };
        Ok(Self {
            near: stack(&a, "10.0.0.1/24")?,
            far: stack(&b, "10.0.0.2/24")?,
            start: Instant::now(),
        })
    }

    fn turn(&mut self) {
        let time = self.start.elapsed().as_nanos() as u64 + 1;
        self.near.turn(time);
        self.far.turn(time);
    }

    fn datagram_sockets(&mut self) -> Result<(SocketId, SocketId), Trouble> {
        let any = |port| std::net::SocketAddr::from(([0, 0, 0, 0], port));
        let server = self.far.udp_bind(any(7)).map_err(broken)?;
        let client = self.near.udp_bind(any(0)).map_err(broken)?;
        let peer = ([10, 0, 0, 2], 7).into();
        self.near.udp_connect(client, peer).map_err(broken)?;
        // This datagram resolves the neighbor addresses of both ends.
        now(self.near.udp_send(client, None, 1, |_| ()))?;
        for _ in 0..10 {
            self.turn();
        }
        now(self.far.udp_receive(server, |_, _| ()))?
            .ok_or_else(|| broken("nothing was received"))?;
        Ok((client, server))
    }

    fn connect(&mut self, listener: SocketId) -> Result<(SocketId, SocketId), Trouble> {
        let peer = ([10, 0, 0, 2], 7).into();
        let client = self.near.tcp_connect(peer, None).map_err(broken)?;
        loop {
            self.turn();
            if self.near.tcp_state(client).map_err(broken)? == TcpState::Established
                && let Some(server) = now(self.far.tcp_accept(listener))?
            {
                return Ok((client, server));
            }
        }
    }
}

pub fn datagrams() -> Result<f64, Trouble> {
    let mut ends = Ends::new(&[])?;
    let (client, server) = ends.datagram_sockets()?;
    let mut sum = 0u64;
    let (count, took) = over(SLICE, || {
        let fill = |number: usize, payload: &mut [u8]| payload.fill(number as u8);
        now(ends.near.udp_send_burst(client, None, 64, BURST, fill))?;
        ends.turn();
        let take = |payload: &[u8], _| sum += u64::from(payload[0]);
        Ok(now(ends.far.udp_receive_burst(server, BURST, take))?.unwrap_or(0))
    })?;
    black_box(sum);
    Ok(took / count)
}

/// Stream whose application copies payload as `linerate` does over the stack.
pub fn stream() -> Result<f64, Trouble> {
    let settings = [
        "tcp.send_buffer=64K",
        "tcp.receive_window=64K",
        "tcp.congestion_control=none",
    ];
    let _shift = shift();
    let mut ends = Ends::new(&settings)?;
    let any = ([0, 0, 0, 0], 7).into();
    let listener = ends.far.tcp_listen(any, 1).map_err(broken)?;
    let (client, server) = ends.connect(listener)?;
    let (source, mut sink) = (vec![7; BUFFER_BYTES], vec![0; BUFFER_BYTES]);
    let (bytes, took) = over(SLICE, || {
        while now(ends.near.tcp_send(client, |room| {
            copy(room, &source[..room.len()]);
            room.len()
        }))?
        .is_some()
        {}
        ends.turn();
        let mut bytes = 0;
        while let Some(count) = now(ends.far.tcp_receive(server, |got| {
            copy(&mut sink[..got.len()], got);
            (got.len(), got.len())
        }))? {
            bytes += count;
        }
        Ok(bytes)
    })?;
    black_box(&sink);
    Ok(bytes * 8.0 / took)
}

pub fn udp_round_trip(idle: usize) -> Result<f64, Trouble> {
    let mut ends = Ends::new(&["sockets.udp=10001", "udp.receive_queue=4"])?;
    for number in 0..idle {
        let port = 1_000 + number as u16;
        let any = ([0, 0, 0, 0], port).into();
        ends.far.udp_bind(any).map_err(broken)?;
    }
    let (client, server) = ends.datagram_sockets()?;
    let (count, took) = over(TIME, || {
        now(ends
            .near
            .udp_send(client, None, 64, |payload| payload.fill(1)))?;
        ends.turn();
        let from = now(ends.far.udp_receive(server, |_, meta| meta.from))?;
        now(ends
            .far
            .udp_send(server, from, 64, |payload| payload.fill(2)))?;
        ends.far.flush();
        ends.turn();
        let came = now(ends.near.udp_receive(client, |_, _| ()))?;
        Ok(usize::from(came.is_some()))
    })?;
    Ok(took / count)
}

pub fn tcp_round_trip(idle: usize) -> Result<f64, Trouble> {
    let settings = [
        "sockets.tcp=10001",
        "tcp.send_buffer=1024",
        "tcp.receive_window=1024",
        "tcp.delayed_ack=off",
    ];
    let mut ends = Ends::new(&settings)?;
    let any = ([0, 0, 0, 0], 7).into();
    let listener = ends.far.tcp_listen(any, 16).map_err(broken)?;
    for _ in 0..idle {
        ends.connect(listener)?;
    }
    let (client, server) = ends.connect(listener)?;
    let fill = |room: &mut [u8]| {
        room[..64].fill(1);
        64
    };
    let (count, took) = over(TIME, || {
        now(ends.near.tcp_send(client, fill))?;
        while now(ends.far.tcp_receive(server, |got| (got.len(), ())))?.is_none() {
            ends.turn();
        }
        now(ends.far.tcp_send(server, fill))?;
        while now(ends.near.tcp_receive(client, |got| (got.len(), ())))?.is_none() {
            ends.turn();
        }
        Ok(1)
    })?;
    Ok(took / count)
}
