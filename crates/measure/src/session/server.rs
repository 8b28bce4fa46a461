//! The far end: one port that serves many tests at a time.
//!
//! One thread accepts connections and reads their first bytes without ever waiting for one of them
//! ([`lobby`](super::lobby)); each test then has a thread of its own
//! ([`session`](super::session)), besides those that move payload.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use linerate_metric::event::{Event, What};
use socket2::{Domain, SockAddr, Socket, Type};

use super::client::Family;
use super::house::House;
use super::limits::raise_open_files;
use super::lobby::Lobby;
use crate::error::MeasureError;

/// How a server listens.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Its port; 0 takes any free one.
    pub port: u16,
    /// The address that it listens on; all when absent.
    pub address: Option<IpAddr>,
    /// The interface that it listens on; all when absent.
    pub interface: Option<String>,
    /// The families that it listens on, when no address is given.
    pub family: Family,
    /// Serve one test and end.
    pub once: bool,
    /// What far clients may have for the time of their runs.
    pub grants: Vec<Grant>,
}

/// Something that a far client may have for the time of its run, if the server says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Keep the cores from halting.
    Idle,
    /// Run its threads at a scheduling class and priority of its choice.
    Sched,
}

impl std::str::FromStr for Grant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "idle" => Ok(Self::Idle),
            "sched" => Ok(Self::Sched),
            _ => Err(format!("`{text}` cannot be granted: sched, idle")),
        }
    }
}

/// Takes events of any test, from any thread.
pub type Emit = Arc<dyn Fn(Event) + Send + Sync>;

/// A bound server.
pub struct Server {
    tcp: std::net::TcpListener,
    udp: UdpSocket,
    port: u16,
    options: ServerOptions,
}

impl Server {
    /// Binds TCP and UDP to the same port.
    ///
    /// # Errors
    /// [`MeasureError::PortTaken`], or what is wrong with the address or interface.
    pub fn bind(options: &ServerOptions) -> Result<Self, MeasureError> {
        raise_open_files();
        // With port 0 the port that TCP gets may be taken for UDP: try another.
        let mut tries = if options.port == 0 { 32 } else { 1 };
        loop {
            match Self::bind_once(options) {
                Err(MeasureError::PortTaken { .. }) if tries > 1 => tries -= 1,
                done => return done,
            }
        }
    }

    fn bind_once(options: &ServerOptions) -> Result<Self, MeasureError> {
        let address = match (options.address, options.family) {
            (Some(address), _) => address,
            (None, Family::V4) => Ipv4Addr::UNSPECIFIED.into(),
            (None, _) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let both = options.address.is_none() && options.family == Family::Any;
        let bound = listen(options, SocketAddr::new(address, options.port), both);
        let (tcp, udp) = match bound {
            // A kernel without IPv6 still has IPv4.
            Err(MeasureError::LocalAddress { .. }) if both => {
                let address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), options.port);
                listen(options, address, false)?
            }
            bound => bound?,
        };
        let local = tcp.local_addr();
        let local = local.map_err(|error| MeasureError::system("listening socket", error))?;
        Ok(Self {
            tcp,
            udp,
            port: local.port(),
            options: options.clone(),
        })
    }

    /// The port it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The addresses it listens on.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        (self.tcp.local_addr().into_iter())
            .map(|address| address.ip().to_string())
            .collect()
    }

    /// Serves until `stop` is set, or until one test is over when it is to serve only one.
    ///
    /// # Errors
    /// What broke the one test of a server that serves only one, or the listening sockets.
    pub fn run(self, stop: Arc<AtomicBool>, emit: Emit) -> Result<(), MeasureError> {
        emit(Event {
            test: 0,
            what: What::Ready {
                port: self.port,
                addresses: self.addresses(),
            },
        });
        let options = self.options;
        let house = Arc::new(House::new(
            emit,
            stop,
            options.once,
            options.grants,
            self.port,
            options.interface,
        ));
        let mut lobby = Lobby::new(self.tcp, self.udp, Arc::clone(&house))
            .map_err(|error| MeasureError::system("listening", error))?;
        while !house.stop.load(Relaxed) && !house.over.load(Relaxed) {
            lobby
                .turn()
                .map_err(|error| MeasureError::system("listening", error))?;
        }
        lobby.close();
        let failure = house.failure.lock().expect("no holder panics").take();
        match failure {
            Some(failure) if house.once => Err(failure),
            _ => Ok(()),
        }
    }
}

fn listen(
    options: &ServerOptions,
    address: SocketAddr,
    both: bool,
) -> Result<(std::net::TcpListener, UdpSocket), MeasureError> {
    let bind = |kind: Type, address: SocketAddr| -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(address), kind, None)?;
        if address.is_ipv6() {
            socket.set_only_v6(!both)?;
        }
        // TCP: connections of an earlier server may linger. UDP: each flow gets a socket of its own
        // on the same port.
        socket.set_reuse_address(true)?;
        if let Some(interface) = &options.interface {
            socket.bind_device(Some(interface.as_bytes()))?;
        }
        socket.bind(&SockAddr::from(address))?;
        Ok(socket)
    };
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => MeasureError::PortTaken {
            port: address.port(),
            source,
        },
        io::ErrorKind::PermissionDenied if address.port() < 1024 => MeasureError::OptionRefused {
            option: format!("-p {}", address.port()),
            why: "ports below 1024 need a privilege".to_owned(),
            next_step: "run as root, or choose a port above 1023".to_owned(),
        },
        _ => MeasureError::LocalAddress {
            address: match &options.interface {
                Some(interface) => format!("{}%{interface}", address.ip()),
                None => address.ip().to_string(),
            },
            source,
        },
    };
    let tcp = bind(Type::STREAM, address).map_err(failed)?;
    tcp.listen(4096).map_err(failed)?;
    let port = tcp.local_addr().map_err(failed)?.as_socket();
    let address = SocketAddr::new(address.ip(), port.map_or(address.port(), |a| a.port()));
    // SO_REUSEADDR lets two servers share a UDP port; whether one is there already is seen
    // without it.
    if options.port != 0 {
        let probe = Socket::new(Domain::for_address(address), Type::DGRAM, None);
        let probe = probe.and_then(|socket| {
            if address.is_ipv6() {
                socket.set_only_v6(!both)?;
            }
            if let Some(interface) = &options.interface {
                socket.bind_device(Some(interface.as_bytes()))?;
            }
            socket.bind(&SockAddr::from(address))
        });
        probe.map_err(failed)?;
    }
    let udp = bind(Type::DGRAM, address).map_err(failed)?;
    Ok((tcp.into(), udp.into()))
}
