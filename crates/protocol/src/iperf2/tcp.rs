//! TCP: header of a connection, server and client side.

use super::settings::{
    HEADER_LIMIT_BYTES, Iperf2Direction, Iperf2Settings, VERSION, flags, header_length,
};
use super::{Iperf2Error, bounceback, read_u32, to_wire_time, wire_time_ns, write_u32};

/// Sizes of the two acknowledgements: version, and version with times.
pub const ACK_BYTES: [usize; 2] = [28, 52];

/// Type field of an acknowledgement.
const ACK_TYPE: u32 = 2;

/// Request of a TCP client.
#[derive(Debug)]
pub enum Iperf2TcpRequest {
    /// No header: receive until the connection ends. An old client, ttcp, or other payload.
    Plain,
    /// Test with these settings. The header counts as payload.
    Test(Box<Iperf2Settings>),
    /// Bounceback requests. The bytes that were read belong to the first request.
    Bounceback(Box<bounceback::BouncebackServer>),
}

/// Server side of a connection until its header is complete.
#[derive(Debug, Default)]
pub struct Iperf2TcpServer {
    header: Vec<u8>,
    outgoing: Vec<u8>,
    written_bytes: usize,
    is_decided: bool,
}

impl Iperf2TcpServer {
    /// Creates the state for a connection from which nothing was read.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends received bytes and returns the client's request once its header is complete; call it
    /// again until then. Also returns how many bytes were consumed: all before that point, none
    /// after it. The other bytes are payload for the test.
    ///
    /// # Errors
    /// [`Iperf2Error::MessageTooLarge`] and [`Iperf2Error::MessageTooSmall`] for bounceback
    /// requests.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        now_wall_ns: u64,
    ) -> Result<(usize, Option<Iperf2TcpRequest>), Iperf2Error> {
        let mut consumed = 0;
        while !self.is_decided {
            match self.required_header_bytes() {
                // The header is complete.
                required_bytes if self.header.len() >= required_bytes => {
                    self.is_decided = true;
                    return self.decide(now_wall_ns).map(|job| (consumed, Some(job)));
                }
                required_bytes => {
                    let rest = &bytes[consumed..];
                    if rest.is_empty() {
                        break;
                    }
                    let chunk_bytes = rest.len().min(required_bytes - self.header.len());
                    self.header.extend_from_slice(&rest[..chunk_bytes]);
                    consumed += chunk_bytes;
                }
            }
        }
        Ok((consumed, None))
    }

    /// Returns the consumed bytes that are payload: all of them, except in a bounceback test.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.header.len() as u64
    }

    /// Returns the header bytes needed to decide; grows with the fields that are already read.
    fn required_header_bytes(&self) -> usize {
        let Some(first) = read_u32(&self.header, 0) else {
            return 4;
        };
        if first == flags::BOUNCEBACK {
            return bounceback::MESSAGE_MIN_BYTES;
        }
        let Some(length) = header_length(first, 0) else {
            return 4;
        };
        if first & flags::KEY == 0 {
            return length;
        }
        // The length of the header includes the field with the length of the key, but not the key.
        let key = length
            .checked_sub(2)
            .and_then(|at| self.header.get(at..length))
            .map_or(0, |size| {
                usize::from(u16::from_be_bytes([size[0], size[1]]))
            });
        (length + key).min(HEADER_LIMIT_BYTES)
    }

    fn decide(&mut self, now_wall_ns: u64) -> Result<Iperf2TcpRequest, Iperf2Error> {
        if read_u32(&self.header, 0) == Some(flags::BOUNCEBACK) {
            let mut server = bounceback::BouncebackServer::new(&self.header)?;
            server.receive(&std::mem::take(&mut self.header), now_wall_ns);
            return Ok(Iperf2TcpRequest::Bounceback(Box::new(server)));
        }
        let Some(settings) = Iperf2Settings::read(&self.header, 0) else {
            return Ok(Iperf2TcpRequest::Plain);
        };
        if settings.expects_ack() {
            let ack = VersionAck {
                version: VERSION,
                times: settings.start_ns.map(|start_ns| VersionAckTimes {
                    client_sent_ns: start_ns,
                    server_received_ns: now_wall_ns,
                    server_sent_ns: now_wall_ns,
                }),
            };
            self.outgoing = ack.write();
        }
        Ok(Iperf2TcpRequest::Test(Box::new(settings)))
    }

    /// Returns the bytes to write to the client before any payload.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        &self.outgoing[self.written_bytes..]
    }

    /// Removes bytes of `outgoing` that were written.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn mark_sent(&mut self, bytes: usize) {
        assert!(
            bytes <= self.outgoing().len(),
            "more bytes were written than queued"
        );
        self.written_bytes += bytes;
    }
}

/// Version of a server, sent on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionAck {
    /// Upper and lower word of the version.
    pub version: (u32, u32),
    /// Times, if the client sent its start time.
    pub times: Option<VersionAckTimes>,
}

/// Times of an [`VersionAck`], in wall-clock nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionAckTimes {
    /// Start time that the client sent.
    pub client_sent_ns: u64,
    /// Time when the header arrived.
    pub server_received_ns: u64,
    /// Time when the acknowledgement left.
    pub server_sent_ns: u64,
}

impl VersionAck {
    /// Encodes the acknowledgement.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let bytes = ACK_BYTES[usize::from(self.times.is_some())];
        let mut out = vec![0; bytes];
        write_u32(&mut out, 0, ACK_TYPE);
        // Both sizes fit into 32 bits.
        write_u32(&mut out, 4, bytes as u32);
        write_u32(&mut out, 12, self.version.0);
        write_u32(&mut out, 16, self.version.1);
        if let Some(times) = &self.times {
            for (at, ns) in [
                (28, times.client_sent_ns),
                (36, times.server_received_ns),
                (44, times.server_sent_ns),
            ] {
                let (seconds, microseconds) = to_wire_time(ns);
                write_u32(&mut out, at, seconds);
                write_u32(&mut out, at + 4, microseconds);
            }
        }
        out
    }

    /// Decodes a complete acknowledgement.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        if read_u32(bytes, 0)? != ACK_TYPE || !ACK_BYTES.contains(&bytes.len()) {
            return None;
        }
        let time = |at| Some(wire_time_ns(read_u32(bytes, at)?, read_u32(bytes, at + 4)?));
        let times = || {
            Some(VersionAckTimes {
                client_sent_ns: time(28)?,
                server_received_ns: time(36)?,
                server_sent_ns: time(44)?,
            })
        };
        Some(Self {
            version: (read_u32(bytes, 12)?, read_u32(bytes, 16)?),
            times: times(),
        })
    }
}

/// Client side of a connection.
#[derive(Debug)]
pub struct Iperf2TcpClient {
    settings: Iperf2Settings,
    header: Vec<u8>,
    ack_bytes: Vec<u8>,
}

impl Iperf2TcpClient {
    /// Creates the state for a new connection.
    ///
    /// # Errors
    /// [`Iperf2Error::Unencodable`] for a value that the header cannot express.
    pub fn new(settings: Iperf2Settings) -> Result<Self, Iperf2Error> {
        // An old client sends a header only if it requests both directions.
        let sends_no_header = settings.version.is_none() && settings.dual.is_none();
        let mut header = vec![
            0;
            if sends_no_header {
                0
            } else {
                settings.announced_bytes(0)
            }
        ];
        settings.write(&mut header, 0)?;
        Ok(Self {
            settings,
            header,
            ack_bytes: Vec::new(),
        })
    }

    /// Returns the first bytes of the connection, which count as payload.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// Returns whether payload must wait for the server's acknowledgement.
    #[must_use]
    pub fn waits_for_ack(&self) -> bool {
        self.settings.peer_detect && self.ack().is_none()
    }

    /// Reads bytes from the server and returns how many of them are not payload. If the server
    /// sends no payload, all bytes are not payload; read them nevertheless: closing a connection
    /// with unread bytes resets it.
    pub fn receive(&mut self, bytes: &[u8]) -> usize {
        if !self.settings.expects_ack() {
            return match self.settings.direction {
                Iperf2Direction::Forward => bytes.len(),
                Iperf2Direction::Reverse | Iperf2Direction::Both => 0,
            };
        }
        let required_bytes = match read_u32(&self.ack_bytes, 4) {
            _ if self.ack_bytes.len() < 8 => 8,
            Some(length) if length as usize == ACK_BYTES[1] => ACK_BYTES[1],
            _ => ACK_BYTES[0],
        };
        let chunk_bytes = bytes
            .len()
            .min(required_bytes.saturating_sub(self.ack_bytes.len()));
        self.ack_bytes.extend_from_slice(&bytes[..chunk_bytes]);
        if chunk_bytes > 0 && chunk_bytes < bytes.len() {
            return chunk_bytes + self.receive(&bytes[chunk_bytes..]);
        }
        match self.settings.direction {
            Iperf2Direction::Forward => bytes.len(),
            Iperf2Direction::Reverse | Iperf2Direction::Both => chunk_bytes,
        }
    }

    /// Returns the server's acknowledgement, once it is complete.
    #[must_use]
    pub fn ack(&self) -> Option<VersionAck> {
        VersionAck::read(&self.ack_bytes)
    }
}
