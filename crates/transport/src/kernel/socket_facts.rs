//! Socket state reported by the kernel.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use linerate_record::record::{SocketFacts, TcpFacts};
use linerate_sys::socket;
use socket2::{SockAddr, SockRef, Socket, Type};

/// Observes a socket that another thread uses.
pub struct SocketWatch {
    socket: Arc<Socket>,
    port_unreachable: Arc<AtomicU32>,
}

impl SocketWatch {
    #[must_use]
    pub fn of(socket: &Arc<Socket>) -> Self {
        Self {
            socket: Arc::clone(socket),
            port_unreachable: Arc::default(),
        }
    }

    /// Adds the counter of sends that failed because the remote port is closed.
    #[must_use]
    pub(super) fn with_port_unreachable(self, port_unreachable: &Arc<AtomicU32>) -> Self {
        let port_unreachable = Arc::clone(port_unreachable);
        Self {
            port_unreachable,
            ..self
        }
    }

    /// Returns the number of sends so far that failed because the remote port is closed.
    #[must_use]
    pub fn port_unreachable(&self) -> u32 {
        self.port_unreachable.load(Relaxed)
    }

    /// Returns TCP_INFO; `None` for a socket that is not TCP.
    #[must_use]
    pub fn tcp_info(&self) -> Option<socket::TcpInfo> {
        socket::read_tcp_info(&self.socket).ok()
    }

    /// Returns the bytes that it has accepted and that are not sent, or, of a connection, not
    /// acknowledged.
    #[must_use]
    pub fn unsent_bytes(&self) -> Option<u64> {
        socket::read_unacknowledged_bytes(&self.socket).ok()
    }

    /// Returns the memory of its queues, in bytes.
    #[must_use]
    pub fn queued_memory(&self) -> Option<u64> {
        socket::read_queued_memory(&self.socket).ok()
    }
}

/// Reads a socket's addresses, buffers, counters and TCP state, for the record.
pub fn facts_of(socket: &Socket) -> SocketFacts {
    let address = |address: io::Result<SockAddr>| {
        let address = address.ok()?.as_socket()?;
        Some(SocketAddr::new(address.ip().to_canonical(), address.port()).to_string())
    };
    let size = |bytes: io::Result<usize>| bytes.ok().map(|bytes| bytes as u64);
    let is_stream = socket.r#type().ok() == Some(Type::STREAM);
    SocketFacts {
        local: address(socket.local_addr()),
        remote: address(socket.peer_addr()),
        send_buffer_bytes: size(socket.send_buffer_size()),
        receive_buffer_bytes: size(socket.recv_buffer_size()),
        congestion_control: is_stream
            .then(|| congestion_control(&SockRef::from(socket)))
            .flatten(),
        receive_queue_drops: (!is_stream)
            .then(|| socket::read_receive_queue_drops(socket).ok())
            .flatten()
            .map(u64::from),
        napi_id: socket::read_napi_id(socket),
        tcp: socket::read_tcp_info(socket).ok().map(to_tcp_state),
        ..SocketFacts::default()
    }
}

/// Returns the congestion control of a socket.
pub fn congestion_control(socket: &SockRef<'_>) -> Option<String> {
    let name = socket.tcp_congestion().ok()?;
    let name = String::from_utf8_lossy(&name);
    let name = name.trim_end_matches('\0');
    (!name.is_empty()).then(|| name.to_owned())
}

fn to_tcp_state(info: socket::TcpInfo) -> TcpFacts {
    const US: u64 = 1_000;
    TcpFacts {
        retransmits: u64::from(info.retransmits),
        cwnd_segments: u64::from(info.cwnd),
        mss_bytes: u64::from(info.mss),
        path_mtu_bytes: u64::from(info.path_mtu),
        rtt_ns: u64::from(info.rtt_us) * US,
        rtt_variation_ns: u64::from(info.rtt_variation_us) * US,
        min_rtt_ns: info.min_rtt_us.map(|rtt| u64::from(rtt) * US),
        send_window_bytes: info.send_window.map(u64::from),
        delivery_rate_bps: info.delivery_rate.map(|rate| rate.saturating_mul(8)),
        busy_ns: info.busy_us.map(|time| time.saturating_mul(US)),
        receive_window_limited_ns: info
            .receive_window_limited_us
            .map(|time| time.saturating_mul(US)),
        send_buffer_limited_ns: info
            .send_buffer_limited_us
            .map(|time| time.saturating_mul(US)),
        retransmitted_bytes: info.retransmitted_bytes,
        spurious_retransmits: info.dsack_duplicates.map(u64::from),
        reordering_seen: info.reordering_events.map(u64::from),
        timeouts: info.timeouts.map(u64::from),
        marked: info.delivered_ce.map(u64::from),
        ecn: Some(info.ecn_negotiated),
    }
}
