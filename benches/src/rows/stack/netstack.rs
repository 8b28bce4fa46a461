//! Two user-space stacks connected by a ring.

use std::hint::black_box;
use std::task::Poll;
use std::time::Instant;

use linerate_port::{PortUrl, open};
use linerate_stack::{SocketId, Stack, StackAddressing, StackConfig, TcpState, memory_plan};
use linerate_sys::frames::chunked_copy::copy_in_chunks;
use linerate_sys::frames::frame_memory::FrameRegion;

use super::{BUFFER_BYTES, BURST_DATAGRAMS, RUN_TIME, SLICE_TIME, repeat_for, shift_allocations};
use crate::error::BenchError;

struct StackPair {
    client: Stack,
    server: Stack,
    start: Instant,
}

fn stack_error(error: impl ToString) -> BenchError {
    BenchError::program_failed("linerate-stack", error.to_string())
}

fn ready_value<T>(
    poll: Poll<Result<T, linerate_stack::StackError>>,
) -> Result<Option<T>, BenchError> {
    match poll {
        Poll::Ready(result) => result.map(Some).map_err(stack_error),
        Poll::Pending => Ok(None),
    }
}

impl StackPair {
    fn new(settings: &[&str]) -> Result<Self, BenchError> {
        let mut config = StackConfig::default();
        for setting in settings {
            config.apply(setting).map_err(stack_error)?;
        }
        let url = |end| format!("ring:bench,end={end}").parse::<PortUrl>();
        let (a, b) = (
            url("a").map_err(stack_error)?,
            url("b").map_err(stack_error)?,
        );
        let plan = memory_plan(&config, &a).combine(memory_plan(&config, &b));
        let memory = FrameRegion::new(plan).map_err(stack_error)?;
        let stack = |url: &PortUrl, address: &str| -> Result<Stack, BenchError> {
            let port = open(url, &memory).map_err(stack_error)?.remove(0);
            let addressing = StackAddressing::new(&[address]).map_err(stack_error)?;
            Stack::new(port, &memory, &config, &addressing).map_err(stack_error)
        };
        Ok(Self {
            client: stack(&a, "10.0.0.1/24")?,
            server: stack(&b, "10.0.0.2/24")?,
            start: Instant::now(),
        })
    }

    fn poll_both(&mut self) {
        let time = self.start.elapsed().as_nanos() as u64 + 1;
        self.client.poll(time);
        self.server.poll(time);
    }

    fn open_datagram_sockets(&mut self) -> Result<(SocketId, SocketId), BenchError> {
        let any = |port| std::net::SocketAddr::from(([0, 0, 0, 0], port));
        let server = self.server.udp_bind(any(7)).map_err(stack_error)?;
        let client = self.client.udp_bind(any(0)).map_err(stack_error)?;
        let peer = ([10, 0, 0, 2], 7).into();
        self.client.udp_connect(client, peer).map_err(stack_error)?;
        // This datagram resolves the neighbor addresses of both ends.
        ready_value(self.client.udp_send(client, None, 1, |_| ()))?;
        for _ in 0..10 {
            self.poll_both();
        }
        ready_value(self.server.udp_receive(server, |_, _| ()))?
            .ok_or_else(|| stack_error("nothing was received"))?;
        Ok((client, server))
    }

    fn connect(&mut self, listener: SocketId) -> Result<(SocketId, SocketId), BenchError> {
        let peer = ([10, 0, 0, 2], 7).into();
        let client = self.client.tcp_connect(peer, None).map_err(stack_error)?;
        loop {
            self.poll_both();
            if self.client.tcp_state(client).map_err(stack_error)? == TcpState::Established
                && let Some(server) = ready_value(self.server.tcp_accept(listener))?
            {
                return Ok((client, server));
            }
        }
    }
}

pub fn measure_datagrams() -> Result<f64, BenchError> {
    let mut stacks = StackPair::new(&[])?;
    let (client, server) = stacks.open_datagram_sockets()?;
    let mut sum = 0u64;
    let (count, elapsed_ns) = repeat_for(SLICE_TIME, || {
        let fill = |number: usize, payload: &mut [u8]| payload.fill(number as u8);
        ready_value(
            stacks
                .client
                .udp_send_burst(client, None, 64, BURST_DATAGRAMS, fill),
        )?;
        stacks.poll_both();
        let add_first_byte = |payload: &[u8], _| sum += u64::from(payload[0]);
        Ok(ready_value(
            stacks
                .server
                .udp_receive_burst(server, BURST_DATAGRAMS, add_first_byte),
        )?
        .unwrap_or(0))
    })?;
    black_box(sum);
    Ok(elapsed_ns / count)
}

/// Stream whose application copies payload as `linerate` does over the stack.
pub fn measure_stream() -> Result<f64, BenchError> {
    let settings = [
        "tcp.send_buffer=64K",
        "tcp.receive_window=64K",
        "tcp.congestion_control=none",
    ];
    let _shift = shift_allocations();
    let mut stacks = StackPair::new(&settings)?;
    let any = ([0, 0, 0, 0], 7).into();
    let listener = stacks.server.tcp_listen(any, 1).map_err(stack_error)?;
    let (client, server) = stacks.connect(listener)?;
    let (source, mut sink) = (vec![7; BUFFER_BYTES], vec![0; BUFFER_BYTES]);
    let (bytes, elapsed_ns) = repeat_for(SLICE_TIME, || {
        while ready_value(stacks.client.tcp_send(client, |space| {
            copy_in_chunks(space, &source[..space.len()]);
            space.len()
        }))?
        .is_some()
        {}
        stacks.poll_both();
        let mut bytes = 0;
        while let Some(count) = ready_value(stacks.server.tcp_receive(server, |payload| {
            copy_in_chunks(&mut sink[..payload.len()], payload);
            (payload.len(), payload.len())
        }))? {
            bytes += count;
        }
        Ok(bytes)
    })?;
    black_box(&sink);
    Ok(bytes * 8.0 / elapsed_ns)
}

pub fn measure_udp_round_trip(idle: usize) -> Result<f64, BenchError> {
    let mut stacks = StackPair::new(&["sockets.udp=10001", "udp.receive_queue=4"])?;
    for number in 0..idle {
        let port = 1_000 + number as u16;
        let any = ([0, 0, 0, 0], port).into();
        stacks.server.udp_bind(any).map_err(stack_error)?;
    }
    let (client, server) = stacks.open_datagram_sockets()?;
    let (count, elapsed_ns) = repeat_for(RUN_TIME, || {
        ready_value(
            stacks
                .client
                .udp_send(client, None, 64, |payload| payload.fill(1)),
        )?;
        stacks.poll_both();
        let from = ready_value(stacks.server.udp_receive(server, |_, meta| meta.from))?;
        ready_value(
            stacks
                .server
                .udp_send(server, from, 64, |payload| payload.fill(2)),
        )?;
        stacks.server.flush();
        stacks.poll_both();
        let response = ready_value(stacks.client.udp_receive(client, |_, _| ()))?;
        Ok(usize::from(response.is_some()))
    })?;
    Ok(elapsed_ns / count)
}

pub fn measure_tcp_round_trip(idle: usize) -> Result<f64, BenchError> {
    let settings = [
        "sockets.tcp=10001",
        "tcp.send_buffer=1024",
        "tcp.receive_window=1024",
        "tcp.delayed_ack=off",
    ];
    let mut stacks = StackPair::new(&settings)?;
    let any = ([0, 0, 0, 0], 7).into();
    let listener = stacks.server.tcp_listen(any, 16).map_err(stack_error)?;
    for _ in 0..idle {
        stacks.connect(listener)?;
    }
    let (client, server) = stacks.connect(listener)?;
    let fill = |space: &mut [u8]| {
        space[..64].fill(1);
        64
    };
    let (count, elapsed_ns) = repeat_for(RUN_TIME, || {
        ready_value(stacks.client.tcp_send(client, fill))?;
        while ready_value(
            stacks
                .server
                .tcp_receive(server, |payload| (payload.len(), ())),
        )?
        .is_none()
        {
            stacks.poll_both();
        }
        ready_value(stacks.server.tcp_send(server, fill))?;
        while ready_value(
            stacks
                .client
                .tcp_receive(client, |payload| (payload.len(), ())),
        )?
        .is_none()
        {
            stacks.poll_both();
        }
        Ok(1)
    })?;
    Ok(elapsed_ns / count)
}
