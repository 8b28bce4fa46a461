//! smoltcp as in its documentation: a device over the same ring, with `poll` in a loop.

use std::hint::black_box;
use std::time::Instant;

use linerate_port::{AnyPort, PortUrl, RxQueue, TxQueue, memory_plan, open};
use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame::Frame;
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::{tcp, udp};
use smoltcp::time::Instant as Time;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};

use super::{BUFFER_BYTES, BURST_DATAGRAMS, SLICE_TIME, repeat_for, shift_allocations};
use crate::error::BenchError;

struct RingDevice {
    port: AnyPort,
    pool: FramePool,
    memory: FrameRegion,
    received: Burst,
    outgoing: Burst,
    current: Option<Frame>,
}

struct RingRxToken<'a>(&'a [u8]);

struct RingTxToken<'a> {
    memory: &'a FrameRegion,
    pool: &'a mut FramePool,
    outgoing: &'a mut Burst,
    port: &'a mut AnyPort,
}

impl RxToken for RingRxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

impl TxToken for RingTxToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        let mut frame = self.pool.allocate().expect("the memory holds both rings");
        frame.set_len(length as u16);
        let result = write(self.memory.bytes_mut(&mut frame));
        if self.outgoing.is_full() {
            self.port.transmit.transmit(self.pool, self.outgoing);
        }
        if let Err(frame) = self.outgoing.push(frame) {
            self.pool.free(frame);
        }
        result
    }
}

impl Device for RingDevice {
    type RxToken<'a> = RingRxToken<'a>;
    type TxToken<'a> = RingTxToken<'a>;

    fn receive(&mut self, _: Time) -> Option<(RingRxToken<'_>, RingTxToken<'_>)> {
        if let Some(frame) = self.current.take() {
            self.pool.free(frame);
        }
        if self.received.is_empty() {
            self.port
                .receive
                .receive(&mut self.pool, &mut self.received);
            // Frames are popped from the end.
            self.received.frames_mut().reverse();
        }
        self.current = self.received.pop();
        let frame = self.current.as_ref()?;
        let tx_token = RingTxToken {
            memory: &self.memory,
            pool: &mut self.pool,
            outgoing: &mut self.outgoing,
            port: &mut self.port,
        };
        Some((RingRxToken(self.memory.bytes(frame)), tx_token))
    }

    fn transmit(&mut self, _: Time) -> Option<RingTxToken<'_>> {
        Some(RingTxToken {
            memory: &self.memory,
            pool: &mut self.pool,
            outgoing: &mut self.outgoing,
            port: &mut self.port,
        })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1_514;
        capabilities
    }
}

struct SmoltcpHost {
    ring: RingDevice,
    interface: Interface,
    sockets: SocketSet<'static>,
}

fn smoltcp_error(error: impl std::fmt::Debug) -> BenchError {
    BenchError::program_failed("smoltcp", format!("{error:?}"))
}

fn build_hosts() -> Result<[SmoltcpHost; 2], BenchError> {
    let url = |build_host| format!("ring:plain,end={build_host}").parse::<PortUrl>();
    let urls = [
        url("a").map_err(smoltcp_error)?,
        url("b").map_err(smoltcp_error)?,
    ];
    let memory = FrameRegion::new(memory_plan(&urls)).map_err(smoltcp_error)?;
    let build_host = |number: u8| -> Result<SmoltcpHost, BenchError> {
        let port = open(&urls[usize::from(number)], &memory)
            .map_err(smoltcp_error)?
            .remove(0);
        let mut ring = RingDevice {
            port,
            pool: memory.pool(),
            memory: memory.clone(),
            received: Burst::new(),
            outgoing: Burst::new(),
            current: None,
        };
        let config = Config::new(EthernetAddress([2, 0, 0, 0, 0, number + 1]).into());
        let mut interface = Interface::new(config, &mut ring, Time::from_micros(1));
        interface.update_ip_addrs(|list| {
            let address = IpCidr::new(IpAddress::v4(10, 0, 0, number + 1), 24);
            list.push(address).expect("the list has capacity for one");
        });
        Ok(SmoltcpHost {
            ring,
            interface,
            sockets: SocketSet::new(Vec::new()),
        })
    };
    Ok([build_host(0)?, build_host(1)?])
}

impl SmoltcpHost {
    fn poll(&mut self, now: Time) {
        self.interface.poll(now, &mut self.ring, &mut self.sockets);
        let RingDevice {
            port,
            pool,
            outgoing,
            ..
        } = &mut self.ring;
        port.transmit.transmit(pool, outgoing);
    }

    fn add_datagram_socket(&mut self, port: u16) -> Result<SocketHandle, BenchError> {
        let buffer = || {
            let slots = vec![udp::PacketMetadata::EMPTY; 4 * BURST_DATAGRAMS];
            udp::PacketBuffer::new(slots, vec![0; BUFFER_BYTES])
        };
        let mut socket = udp::Socket::new(buffer(), buffer());
        socket.bind(port).map_err(smoltcp_error)?;
        Ok(self.sockets.add(socket))
    }

    fn add_stream_socket(&mut self) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER_BYTES]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_congestion_control(tcp::CongestionControl::None);
        self.sockets.add(socket)
    }
}

fn poll_time(start: Instant) -> Time {
    Time::from_micros(start.elapsed().as_micros() as i64 + 1)
}

pub fn measure_datagrams() -> Result<f64, BenchError> {
    let [mut client_host, mut server_host] = build_hosts()?;
    let (client, server) = (
        client_host.add_datagram_socket(9)?,
        server_host.add_datagram_socket(7)?,
    );
    let (start, mut sum) = (Instant::now(), 0u64);
    let (count, elapsed_ns) = repeat_for(SLICE_TIME, || {
        let socket = client_host.sockets.get_mut::<udp::Socket>(client);
        for number in 0..BURST_DATAGRAMS {
            let to = (IpAddress::v4(10, 0, 0, 2), 7);
            if let Ok(payload) = socket.send(64, to) {
                payload.fill(number as u8);
            }
        }
        let now = poll_time(start);
        client_host.poll(now);
        server_host.poll(now);
        let socket = server_host.sockets.get_mut::<udp::Socket>(server);
        let mut count = 0;
        while let Ok((payload, _)) = socket.recv() {
            sum += u64::from(payload[0]);
            count += 1;
        }
        Ok(count)
    })?;
    black_box(sum);
    Ok(elapsed_ns / count)
}

pub fn measure_stream() -> Result<f64, BenchError> {
    let _shift = shift_allocations();
    let [mut client_host, mut server_host] = build_hosts()?;
    let (client, server) = (
        client_host.add_stream_socket(),
        server_host.add_stream_socket(),
    );
    let server_socket = server_host.sockets.get_mut::<tcp::Socket>(server);
    server_socket.listen(7).map_err(smoltcp_error)?;
    let socket = client_host.sockets.get_mut::<tcp::Socket>(client);
    let to = (IpAddress::v4(10, 0, 0, 2), 7);
    let context = client_host.interface.context();
    socket.connect(context, to, 50_000).map_err(smoltcp_error)?;
    let (source, mut sink) = (vec![7; BUFFER_BYTES], vec![0; BUFFER_BYTES]);
    let start = Instant::now();
    let (bytes, elapsed_ns) = repeat_for(SLICE_TIME, || {
        let socket = client_host.sockets.get_mut::<tcp::Socket>(client);
        while socket.can_send() && socket.send_slice(&source).is_ok_and(|sent| sent > 0) {}
        let now = poll_time(start);
        client_host.poll(now);
        server_host.poll(now);
        let socket = server_host.sockets.get_mut::<tcp::Socket>(server);
        let mut bytes = 0;
        while socket.can_recv() {
            bytes += socket.recv_slice(&mut sink).map_err(smoltcp_error)?;
        }
        Ok(bytes)
    })?;
    black_box(&sink);
    Ok(bytes * 8.0 / elapsed_ns)
}
