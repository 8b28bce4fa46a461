//! TCP: header of a connection, server and client side.

use super::settings::{HEADER_LIMIT_BYTES, Settings, VERSION, Way, flags, header_length};
use super::{Iperf2Error, bounceback, put, split_ns, wall_ns, word};

/// Sizes of the two acknowledgements: version, and version with times.
pub const ACK_BYTES: [usize; 2] = [28, 52];

/// Type field of an acknowledgement.
const ACK_TYPE: u32 = 2;

/// Request of a TCP client.
#[derive(Debug)]
pub enum TcpJob {
    /// No header: receive until the connection ends. An old client, ttcp, or other payload.
    Plain,
    /// Test with these settings. The header counts as payload.
    Test(Box<Settings>),
    /// Bounceback requests. The bytes that were read belong to the first request.
    Bounceback(Box<bounceback::Server>),
}

/// Server side of a connection until its header is complete.
#[derive(Debug, Default)]
pub struct TcpServer {
    header: Vec<u8>,
    outgoing: Vec<u8>,
    written: usize,
    decided: bool,
}

impl TcpServer {
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
    ) -> Result<(usize, Option<TcpJob>), Iperf2Error> {
        let mut taken = 0;
        while !self.decided {
            match self.wanted() {
                // The header is complete.
                wanted if self.header.len() >= wanted => {
                    self.decided = true;
                    return self.decide(now_wall_ns).map(|job| (taken, Some(job)));
                }
                wanted => {
                    let rest = &bytes[taken..];
                    if rest.is_empty() {
                        break;
                    }
                    let some = rest.len().min(wanted - self.header.len());
                    self.header.extend_from_slice(&rest[..some]);
                    taken += some;
                }
            }
        }
        Ok((taken, None))
    }

    /// Returns the consumed bytes that are payload: all of them, except in a bounceback test.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.header.len() as u64
    }

    /// Returns the header bytes needed to decide; grows with the fields that are already read.
    fn wanted(&self) -> usize {
        let Some(first) = word(&self.header, 0) else {
            return 4;
        };
        if first == flags::BOUNCEBACK {
            return bounceback::BEGINNING_BYTES;
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

    fn decide(&mut self, now_wall_ns: u64) -> Result<TcpJob, Iperf2Error> {
        if word(&self.header, 0) == Some(flags::BOUNCEBACK) {
            let mut server = bounceback::Server::new(&self.header)?;
            server.receive(&std::mem::take(&mut self.header), now_wall_ns);
            return Ok(TcpJob::Bounceback(Box::new(server)));
        }
        let Some(settings) = Settings::read(&self.header, 0) else {
            return Ok(TcpJob::Plain);
        };
        if settings.wants_ack() {
            let ack = Ack {
                version: VERSION,
                times: settings.start_ns.map(|start_ns| AckTimes {
                    client_sent_ns: start_ns,
                    server_received_ns: now_wall_ns,
                    server_sent_ns: now_wall_ns,
                }),
            };
            self.outgoing = ack.write();
        }
        Ok(TcpJob::Test(Box::new(settings)))
    }

    /// Returns the bytes to write to the client before any payload.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        &self.outgoing[self.written..]
    }

    /// Removes bytes of `outgoing` that were written.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn sent(&mut self, bytes: usize) {
        assert!(
            bytes <= self.outgoing().len(),
            "more bytes were written than queued"
        );
        self.written += bytes;
    }
}

/// Version of a server, sent on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Upper and lower word of the version.
    pub version: (u32, u32),
    /// Times, if the client sent its start time.
    pub times: Option<AckTimes>,
}

/// Times of an [`Ack`], in wall-clock nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckTimes {
    /// Start time that the client sent.
    pub client_sent_ns: u64,
    /// Time when the header arrived.
    pub server_received_ns: u64,
    /// Time when the acknowledgement left.
    pub server_sent_ns: u64,
}

impl Ack {
    /// Encodes the acknowledgement.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let bytes = ACK_BYTES[usize::from(self.times.is_some())];
        let mut out = vec![0; bytes];
        put(&mut out, 0, ACK_TYPE);
        // Both sizes fit into 32 bits.
        put(&mut out, 4, bytes as u32);
        put(&mut out, 12, self.version.0);
        put(&mut out, 16, self.version.1);
        if let Some(times) = &self.times {
            for (at, ns) in [
                (28, times.client_sent_ns),
                (36, times.server_received_ns),
                (44, times.server_sent_ns),
            ] {
                let (seconds, microseconds) = split_ns(ns);
                put(&mut out, at, seconds);
                put(&mut out, at + 4, microseconds);
            }
        }
        out
    }

    /// Decodes a complete acknowledgement.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        if word(bytes, 0)? != ACK_TYPE || !ACK_BYTES.contains(&bytes.len()) {
            return None;
        }
        let time = |at| Some(wall_ns(word(bytes, at)?, word(bytes, at + 4)?));
        let times = || {
            Some(AckTimes {
                client_sent_ns: time(28)?,
                server_received_ns: time(36)?,
                server_sent_ns: time(44)?,
            })
        };
        Some(Self {
            version: (word(bytes, 12)?, word(bytes, 16)?),
            times: times(),
        })
    }
}

/// Client side of a connection.
#[derive(Debug)]
pub struct TcpClient {
    settings: Settings,
    header: Vec<u8>,
    heard: Vec<u8>,
}

impl TcpClient {
    /// Creates the state for a new connection.
    ///
    /// # Errors
    /// [`Iperf2Error::Unsendable`] for a value that the header cannot express.
    pub fn new(settings: Settings) -> Result<Self, Iperf2Error> {
        // An old client sends a header only if it requests both directions.
        let silent = settings.version.is_none() && settings.dual.is_none();
        let mut header = vec![0; if silent { 0 } else { settings.written_bytes(0) }];
        settings.write(&mut header, 0)?;
        Ok(Self {
            settings,
            header,
            heard: Vec::new(),
        })
    }

    /// Returns the first bytes of the connection, which count as payload.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// Returns whether payload must wait for the server's acknowledgement.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.settings.peer_detect && self.ack().is_none()
    }

    /// Reads bytes from the server and returns how many of them are not payload. If the server
    /// sends no payload, all bytes are not payload; read them nevertheless: closing a connection
    /// with unread bytes resets it.
    pub fn receive(&mut self, bytes: &[u8]) -> usize {
        if !self.settings.wants_ack() {
            return match self.settings.way {
                Way::Forward => bytes.len(),
                Way::Reverse | Way::Both => 0,
            };
        }
        let wanted = match word(&self.heard, 4) {
            _ if self.heard.len() < 8 => 8,
            Some(length) if length as usize == ACK_BYTES[1] => ACK_BYTES[1],
            _ => ACK_BYTES[0],
        };
        let some = bytes.len().min(wanted.saturating_sub(self.heard.len()));
        self.heard.extend_from_slice(&bytes[..some]);
        if some > 0 && some < bytes.len() {
            return some + self.receive(&bytes[some..]);
        }
        match self.settings.way {
            Way::Forward => bytes.len(),
            Way::Reverse | Way::Both => some,
        }
    }

    /// Returns the server's acknowledgement, once it is complete.
    #[must_use]
    pub fn ack(&self) -> Option<Ack> {
        Ack::read(&self.heard)
    }
}
