//! TCP: the header at the server, and at the client.

use super::settings::{HEADER_LIMIT_BYTES, Settings, VERSION, Way, flags, header_length};
use super::{Iperf2Error, bounceback, put, split_ns, wall_ns, word};

/// Bytes of the two acknowledgements: version, and version with times.
pub const ACK_BYTES: [usize; 2] = [28, 52];

/// Type of an acknowledgement.
const ACK_TYPE: u32 = 2;

/// What a client on TCP wants.
#[derive(Debug)]
pub enum TcpJob {
    /// Nothing was asked: take what comes until its end. An old client, ttcp, anything.
    Plain,
    /// This. What was read of the header counts as payload.
    Test(Box<Settings>),
    /// Questions to be answered. The first of them has begun: what was read is in it.
    Bounceback(Box<bounceback::Server>),
}

/// The beginning of a connection, at the server.
#[derive(Debug, Default)]
pub struct TcpServer {
    header: Vec<u8>,
    outgoing: Vec<u8>,
    written: usize,
    decided: bool,
}

impl TcpServer {
    /// A connection of which nothing was read.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes what arrived, and says what the client wants once its header is there; ask until then.
    /// Returns how many bytes were taken: all until it has said, and then none. What was not taken is
    /// payload that goes where the job wants it.
    ///
    /// # Errors
    /// [`Iperf2Error::MessageTooLarge`] and [`Iperf2Error::MessageTooSmall`] for questions.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        now_wall_ns: u64,
    ) -> Result<(usize, Option<TcpJob>), Iperf2Error> {
        let mut taken = 0;
        while !self.decided {
            match self.wanted() {
                // Everything is there.
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

    /// Bytes of payload that were taken: all of them, except in a bounceback.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.header.len() as u64
    }

    /// How many bytes tell what is wanted; grows with what is known.
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
        // The length ends behind the key's own length.
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

    /// What is to be written to the client, before any payload.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        &self.outgoing[self.written..]
    }

    /// So many bytes of it were written.
    ///
    /// # Panics
    /// When there were fewer.
    pub fn sent(&mut self, bytes: usize) {
        assert!(
            bytes <= self.outgoing().len(),
            "more was written than was there"
        );
        self.written += bytes;
    }
}

/// What a server says of itself when it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Its version, upper and lower word.
    pub version: (u32, u32),
    /// Times, where the client sent its own.
    pub times: Option<AckTimes>,
}

/// Wall-clock times of an [`Ack`], in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckTimes {
    /// The client's, as it wrote it.
    pub client_sent_ns: u64,
    /// When the header arrived.
    pub server_received_ns: u64,
    /// When the acknowledgement left.
    pub server_sent_ns: u64,
}

impl Ack {
    /// As it goes over the wire.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let bytes = ACK_BYTES[usize::from(self.times.is_some())];
        let mut out = vec![0; bytes];
        put(&mut out, 0, ACK_TYPE);
        // Both sizes fit.
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

    /// Reads a whole one.
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

/// A connection, at the client.
#[derive(Debug)]
pub struct TcpClient {
    settings: Settings,
    header: Vec<u8>,
    heard: Vec<u8>,
}

impl TcpClient {
    /// A connection that was just opened.
    ///
    /// # Errors
    /// [`Iperf2Error::Unsendable`] for what the header has no room for.
    pub fn new(settings: Settings) -> Result<Self, Iperf2Error> {
        // An old client has nothing to say unless it wants both directions.
        let silent = settings.version.is_none() && settings.dual.is_none();
        let mut header = vec![0; if silent { 0 } else { settings.written_bytes(0) }];
        settings.write(&mut header, 0)?;
        Ok(Self {
            settings,
            header,
            heard: Vec::new(),
        })
    }

    /// The first bytes of the connection, which count as payload.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// Whether the server's acknowledgement has to be there before payload goes.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.settings.peer_detect && self.ack().is_none()
    }

    /// Takes what arrived from the server: how many of the bytes are not payload. Where the server
    /// does not send payload none of them is, and they must be read all the same: a connection that
    /// is closed with unread bytes is reset.
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

    /// What the server said of itself, once it is there.
    #[must_use]
    pub fn ack(&self) -> Option<Ack> {
        Ack::read(&self.heard)
    }
}
