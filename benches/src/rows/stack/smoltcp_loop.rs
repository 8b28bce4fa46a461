//! smoltcp as in its documentation: a device over the same ring, with `poll` in a loop.

use std::hint::black_box;
use std::time::Instant;

use linerate_port::{
    AnyPort, Burst, Frame, Memory, Pool, PortUrl, Receive, Transmit, memory_plan, open,
};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::{tcp, udp};
use smoltcp::time::Instant as Time;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};

use super::{BUFFER_BYTES, BURST, SLICE, over, shift};
use crate::error::Trouble;

struct Ring {
    port: AnyPort,
    pool: Pool,
    memory: Memory,
    came: Burst,
    goes: Burst,
    current: Option<Frame>,
}

struct Came<'a>(&'a [u8]);

struct Goes<'a> {
    memory: &'a Memory,
    pool: &'a mut Pool,
    goes: &'a mut Burst,
    port: &'a mut AnyPort,
}

impl RxToken for Came<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

impl TxToken for Goes<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        let mut frame = self.pool.allocate().expect("the memory holds both rings");
        frame.set_len(length as u16);
        let result = write(self.memory.bytes_mut(&mut frame));
        if self.goes.is_full() {
            self.port.transmit.transmit(self.pool, self.goes);
        }
        if let Err(frame) = self.goes.push(frame) {
            self.pool.free(frame);
        }
        result
    }
}

impl Device for Ring {
    type RxToken<'a> = Came<'a>;
    type TxToken<'a> = Goes<'a>;

    fn receive(&mut self, _: Time) -> Option<(Came<'_>, Goes<'_>)> {
        if let Some(frame) = self.current.take() {
            self.pool.free(frame);
        }
        if self.came.is_empty() {
            self.port.receive.receive(&mut self.pool, &mut self.came);
            // Frames are popped from the end.
            self.came.frames_mut().reverse();
        }
        self.current = self.came.pop();
        let frame = self.current.as_ref()?;
        let goes = Goes {
            memory: &self.memory,
            pool: &mut self.pool,
            goes: &mut self.goes,
            port: &mut self.port,
        };
        Some((Came(self.memory.bytes(frame)), goes))
    }

    fn transmit(&mut self, _: Time) -> Option<Goes<'_>> {
        Some(Goes {
            memory: &self.memory,
            pool: &mut self.pool,
            goes: &mut self.goes,
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

struct End {
    ring: Ring,
    interface: Interface,
    sockets: SocketSet<'static>,
}

fn broken(why: impl std::fmt::Debug) -> Trouble {
    Trouble::program("smoltcp", format!("{why:?}"))
}

fn ends() -> Result<[End; 2], Trouble> {
    let url = |end| format!("ring:plain,end={end}").parse::<PortUrl>();
    let urls = [url("a").map_err(broken)?, url("b").map_err(broken)?];
    let memory = Memory::new(memory_plan(&urls)).map_err(broken)?;
    let end = |number: u8| -> Result<End, Trouble> {
        let port = open(&urls[usize::from(number)], &memory)
            .map_err(broken)?
            .remove(0);
        let mut ring = Ring {
            port,
            pool: memory.pool(),
            memory: memory.clone(),
            came: Burst::new(),
            goes: Burst::new(),
            current: None,
        };
        let config = Config::new(EthernetAddress([2, 0, 0, 0, 0, number + 1]).into());
        let mut interface = Interface::new(config, &mut ring, Time::from_micros(1));
        interface.update_ip_addrs(|list| {
            let own = IpCidr::new(IpAddress::v4(10, 0, 0, number + 1), 24);
            list.push(own).expect("the list has capacity for one");
        });
        Ok(End {
            ring,
            interface,
            sockets: SocketSet::new(Vec::new()),
        })
    };
    Ok([end(0)?, end(1)?])
}

impl End {
    fn poll(&mut self, now: Time) {
        self.interface.poll(now, &mut self.ring, &mut self.sockets);
        let Ring {
            port, pool, goes, ..
        } = &mut self.ring;
        port.transmit.transmit(pool, goes);
    }

    fn datagram_socket(&mut self, port: u16) -> Result<SocketHandle, Trouble> {
        let buffer = || {
            let slots = vec![udp::PacketMetadata::EMPTY; 4 * BURST];
            udp::PacketBuffer::new(slots, vec![0; BUFFER_BYTES])
        };
        let mut socket = udp::Socket::new(buffer(), buffer());
        socket.bind(port).map_err(broken)?;
        Ok(self.sockets.add(socket))
    }

    fn stream_socket(&mut self) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER_BYTES]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_congestion_control(tcp::CongestionControl::None);
        self.sockets.add(socket)
    }
}

fn time(start: Instant) -> Time {
    Time::from_micros(start.elapsed().as_micros() as i64 + 1)
}

pub fn datagrams() -> Result<f64, Trouble> {
    let [mut near, mut far] = ends()?;
    let (client, server) = (near.datagram_socket(9)?, far.datagram_socket(7)?);
    let (start, mut sum) = (Instant::now(), 0u64);
    let (count, took) = over(SLICE, || {
        let socket = near.sockets.get_mut::<udp::Socket>(client);
        for number in 0..BURST {
            let to = (IpAddress::v4(10, 0, 0, 2), 7);
            if let Ok(payload) = socket.send(64, to) {
                payload.fill(number as u8);
            }
        }
        let now = time(start);
        near.poll(now);
        far.poll(now);
        let socket = far.sockets.get_mut::<udp::Socket>(server);
        let mut count = 0;
        while let Ok((payload, _)) = socket.recv() {
            sum += u64::from(payload[0]);
            count += 1;
        }
        Ok(count)
    })?;
    black_box(sum);
    Ok(took / count)
}

pub fn stream() -> Result<f64, Trouble> {
    let _shift = shift();
    let [mut near, mut far] = ends()?;
    let (client, server) = (near.stream_socket(), far.stream_socket());
    let listening = far.sockets.get_mut::<tcp::Socket>(server);
    listening.listen(7).map_err(broken)?;
    let socket = near.sockets.get_mut::<tcp::Socket>(client);
    let to = (IpAddress::v4(10, 0, 0, 2), 7);
    let context = near.interface.context();
    socket.connect(context, to, 50_000).map_err(broken)?;
    let (source, mut sink) = (vec![7; BUFFER_BYTES], vec![0; BUFFER_BYTES]);
    let start = Instant::now();
    let (bytes, took) = over(SLICE, || {
        let socket = near.sockets.get_mut::<tcp::Socket>(client);
        while socket.can_send() && socket.send_slice(&source).is_ok_and(|sent| sent > 0) {}
        let now = time(start);
        near.poll(now);
        far.poll(now);
        let socket = far.sockets.get_mut::<tcp::Socket>(server);
        let mut bytes = 0;
        while socket.can_recv() {
            bytes += socket.recv_slice(&mut sink).map_err(broken)?;
        }
        Ok(bytes)
    })?;
    black_box(&sink);
    Ok(bytes * 8.0 / took)
}
