//! Codec of one end of a control connection: bytes in, frames out, and the reverse.

use super::error::ControlError;
use super::frame::Frame;
use super::hello::{Hello, Security};
use super::magic::CONTROL_MAGIC;
use super::noise::{self, Proof, Seal, Step};
use super::{FRAME_LIMIT_BYTES, HELLO_LIMIT_BYTES};
use crate::byte_queue::Queue;

/// Bytes that may be passed to [`Connection::receive`] beyond an incomplete frame: the largest read
/// that a caller should make.
pub const READ_AHEAD_BYTES: usize = 64 << 10;

/// Bytes that may wait for the peer before [`Connection::send`] fails.
pub const BACKLOG_LIMIT_BYTES: usize = FRAME_LIMIT_BYTES;

/// Bytes of the opening: magic number and security.
const OPENING_BYTES: usize = CONTROL_MAGIC.len() + 1;

/// Bytes of the length in front of a frame.
const LENGTH_BYTES: usize = 4;

/// Bytes of the type in front of a body.
const KIND_BYTES: usize = 2;

/// Sans-I/O codec of one end of a control connection.
///
/// ```
/// use linerate_dialect::control::{Connection, Frame, Hello};
///
/// # fn main() -> Result<(), linerate_dialect::control::ControlError> {
/// let mut client = Connection::client(Hello::new("linerate 0.1.0"))?;
/// let mut server = Connection::server(Hello::new("linerate 0.2.0"))?;
///
/// server.receive(client.outgoing())?;
/// client.sent(client.outgoing().len());
/// assert!(matches!(server.next_frame()?, Some(Frame::Hello(_))));
///
/// client.receive(server.outgoing())?;
/// assert!(matches!(client.next_frame()?, Some(Frame::Hello(_))));
/// assert_eq!(client.version(), Some(1));
/// # Ok(())
/// # }
/// ```
///
/// Read at most [`READ_AHEAD_BYTES`] at a time, and take every frame before the next read: then the
/// buffered bytes stay below one frame and one read.
#[derive(Debug)]
pub struct Connection {
    hello: Hello,
    connects: bool,
    proof: Option<Proof>,
    /// Created when both ends have a key.
    seal: Option<Seal>,
    /// Received bytes that are not decrypted yet; without encryption all go to `incoming`.
    sealed: Queue,
    /// HELLO of this end, until it is sent.
    greeting: Option<Vec<u8>>,
    reading: Reading,
    peer: Option<Hello>,
    version: Option<u16>,
    incoming: Queue,
    outgoing: Queue,
    skipped: u64,
    /// Longest incoming frame that the caller allows.
    most_bytes: usize,
}

/// Expected kind of the next bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Opening,
    Handshake,
    Hello,
    Frames,
    Nothing,
}

impl Connection {
    /// Creates the client: its opening and HELLO are queued at once.
    ///
    /// # Errors
    /// [`ControlError::Outsized`] if HELLO is too long.
    pub fn client(hello: Hello) -> Result<Self, ControlError> {
        let mut connection = Self::new(hello, None, true)?;
        connection.open(Security::Plain);
        connection.greet();
        Ok(connection)
    }

    /// Creates a client that requires the server to prove that it has the key.
    ///
    /// # Errors
    /// [`ControlError::Outsized`] if HELLO is too long.
    pub fn proving_client(hello: Hello, proof: Proof) -> Result<Self, ControlError> {
        let mut connection = Self::new(hello, None, true)?;
        connection.open(Security::Noise);
        let prologue = opening(Security::Noise);
        connection.seal = Some(Seal::client(&proof, &prologue, connection.outgoing.tail()));
        connection.proof = Some(proof);
        Ok(connection)
    }

    /// Creates the server: it sends nothing before it has read the client's HELLO.
    ///
    /// # Errors
    /// [`ControlError::Outsized`] if HELLO is too long.
    pub fn server(hello: Hello) -> Result<Self, ControlError> {
        Self::new(hello, None, false)
    }

    /// Creates a server that requires the client to prove that it has the key.
    ///
    /// # Errors
    /// [`ControlError::Outsized`] if HELLO is too long.
    pub fn proving_server(hello: Hello, proof: Proof) -> Result<Self, ControlError> {
        Self::new(hello, Some(proof), false)
    }

    fn new(hello: Hello, proof: Option<Proof>, connects: bool) -> Result<Self, ControlError> {
        let mut greeting = Vec::new();
        encode(&hello.clone().into(), HELLO_LIMIT_BYTES, &mut greeting)?;
        Ok(Self {
            hello,
            connects,
            proof,
            seal: None,
            sealed: Queue::default(),
            greeting: Some(greeting),
            reading: Reading::Opening,
            peer: None,
            version: None,
            incoming: Queue::default(),
            outgoing: Queue::default(),
            skipped: 0,
            most_bytes: FRAME_LIMIT_BYTES,
        })
    }

    /// Appends received bytes, at most [`READ_AHEAD_BYTES`] per call.
    ///
    /// # Errors
    /// [`ControlError::ReadAhead`] if earlier frames were not taken out, [`ControlError::Failed`]
    /// after any error.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), ControlError> {
        if self.reading == Reading::Nothing {
            return Err(ControlError::Failed);
        }
        let message = match self.seal {
            Some(_) => noise::LENGTH_BYTES + noise::MESSAGE_BYTES,
            None => 0,
        };
        let room = OPENING_BYTES + LENGTH_BYTES + self.taken_limit() + READ_AHEAD_BYTES + message;
        if self.sealed.len() + self.incoming.len() + bytes.len() > room {
            return Err(self.fail(ControlError::ReadAhead));
        }
        match self.seal {
            Some(_) => self.sealed.push(bytes),
            None => self.incoming.push(bytes),
        }
        Ok(())
    }

    /// Takes out the next complete frame; `None` until more has arrived. The peer's HELLO is the
    /// first.
    ///
    /// # Errors
    /// Any protocol error of the peer; nothing can be read after it.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, ControlError> {
        if self.reading == Reading::Nothing {
            return Err(ControlError::Failed);
        }
        self.read().map_err(|error| self.fail(error))
    }

    fn read(&mut self) -> Result<Option<Frame>, ControlError> {
        if self.reading == Reading::Opening && !self.read_opening()? {
            return Ok(None);
        }
        if self.seal.is_some() && !self.unseal()? {
            return Ok(None);
        }
        loop {
            let Some((&length, rest)) = self.incoming.bytes().split_first_chunk() else {
                return Ok(None);
            };
            let length = u32::from_be_bytes(length);
            let limit = self.taken_limit();
            // Checked before the frame has arrived, so that no read waits for a frame that will be
            // rejected.
            let size = match usize::try_from(length) {
                Ok(size) if size <= limit => size,
                _ => return Err(ControlError::TooLong { length, limit }),
            };
            if size < KIND_BYTES {
                return Err(ControlError::TooShort { length });
            }
            let Some((&kind, rest)) = rest.split_first_chunk() else {
                return Ok(None);
            };
            let kind = u16::from_be_bytes(kind);
            if self.reading == Reading::Hello && kind != HELLO_KIND {
                return Err(ControlError::HelloMissing { kind });
            }
            let Some(body) = rest.get(..size - KIND_BYTES) else {
                return Ok(None);
            };
            let frame = Frame::decode(kind, body)
                .map_err(|(frame, source)| ControlError::Body { frame, source })?;
            self.incoming.pop(LENGTH_BYTES + size);
            match frame {
                Some(Frame::Hello(hello)) => {
                    self.settle(&hello)?;
                    return Ok(Some(Frame::Hello(hello)));
                }
                Some(frame) => return Ok(Some(frame)),
                None => self.skipped += 1,
            }
        }
    }

    /// Returns whether the opening is complete; fails at the first wrong byte.
    fn read_opening(&mut self) -> Result<bool, ControlError> {
        let arrived = match self.seal {
            Some(_) => &mut self.sealed,
            None => &mut self.incoming,
        };
        let bytes = arrived.bytes();
        let there = bytes.len().min(CONTROL_MAGIC.len());
        if bytes[..there] != CONTROL_MAGIC[..there] {
            return Err(ControlError::NotOurs);
        }
        let Some(&asked) = bytes.get(CONTROL_MAGIC.len()) else {
            return Ok(false);
        };
        let security = Security::from_byte(asked).ok_or(ControlError::Security { asked })?;
        arrived.pop(OPENING_BYTES);
        self.reading = match (security, self.proof.is_some()) {
            (Security::Plain, false) => Reading::Hello,
            (Security::Noise, true) => Reading::Handshake,
            (theirs, _) => return Err(self.part(theirs)),
        };
        if let (false, Some(proof)) = (self.connects, &self.proof) {
            self.seal = Some(Seal::server(proof, &opening(Security::Noise)));
            // The bytes after the opening are encrypted.
            std::mem::swap(&mut self.incoming, &mut self.sealed);
        }
        Ok(true)
    }

    /// Handles a key at only one end: a server sends its own opening, so that the client can report
    /// which side lacks the key.
    fn part(&mut self, theirs: Security) -> ControlError {
        match (self.connects, theirs) {
            (true, Security::Noise) => ControlError::KeyDemanded,
            (true, Security::Plain) => ControlError::KeyUnused,
            (false, Security::Noise) => {
                self.open(Security::Plain);
                ControlError::KeyUnknown
            }
            (false, Security::Plain) => {
                self.open(Security::Noise);
                ControlError::KeyMissing
            }
        }
    }

    /// Decrypts the received bytes and returns whether the handshake is complete.
    fn unseal(&mut self) -> Result<bool, ControlError> {
        let Some(seal) = &mut self.seal else {
            return Ok(true);
        };
        let mut answer = Vec::new();
        let step = seal.open(&mut self.sealed, self.incoming.tail(), &mut answer);
        let shook = self.reading == Reading::Handshake && !matches!(step, Ok(Step::Waiting));
        if shook && !self.connects {
            self.open(Security::Noise);
            if matches!(step, Err(ControlError::KeyDiffers)) {
                // A message of length 0 signals that the keys differ.
                answer = vec![0; noise::LENGTH_BYTES];
            }
        }
        self.outgoing.push(&answer);
        let step = step?;
        if step == Step::Settled {
            self.reading = Reading::Hello;
            if self.connects {
                self.greet();
            }
        }
        Ok(step != Step::Waiting)
    }

    fn settle(&mut self, theirs: &Hello) -> Result<(), ControlError> {
        if self.reading != Reading::Hello {
            return Err(ControlError::HelloAgain);
        }
        // Also sent if no version is shared: the client can then report which side to update.
        if !self.connects {
            if self.seal.is_none() {
                self.open(Security::Plain);
            }
            self.greet();
        }
        let (ours, theirs_speak) = (self.hello.versions(), theirs.versions());
        let version = ours.common(theirs_speak).ok_or(ControlError::Version {
            ours,
            theirs: theirs_speak,
        })?;
        self.reading = Reading::Frames;
        self.version = Some(version);
        self.peer = Some(theirs.clone());
        Ok(())
    }

    fn open(&mut self, security: Security) {
        self.outgoing.push(&opening(security));
    }

    fn greet(&mut self) {
        if let Some(greeting) = self.greeting.take() {
            self.say(&greeting);
        }
    }

    /// Queues complete frames.
    fn say(&mut self, frames: &[u8]) {
        match &mut self.seal {
            Some(seal) => seal.seal(frames, self.outgoing.tail()),
            None => self.outgoing.push(frames),
        }
    }

    /// Queues a frame for the peer. Until the peer's HELLO has arrived, only REJECT and BYE may
    /// follow this end's HELLO.
    ///
    /// # Errors
    /// [`ControlError::TooEarly`], [`ControlError::HelloAgain`]; [`ControlError::Outsized`] or
    /// [`ControlError::Unsendable`] for a frame that the peer would reject;
    /// [`ControlError::Backlog`] if the peer does not read. No error leaves a partial frame in the
    /// queue.
    pub fn send(&mut self, frame: &Frame) -> Result<(), ControlError> {
        let ending = matches!(frame, Frame::Refuse(_) | Frame::Bye(_));
        if self.greeting.is_some() || (self.peer.is_none() && !ending) {
            return Err(ControlError::TooEarly {
                frame: frame.name(),
            });
        }
        if matches!(frame, Frame::Hello(_)) {
            return Err(ControlError::HelloAgain);
        }
        if self.outgoing.bytes().len() > BACKLOG_LIMIT_BYTES {
            return Err(ControlError::Backlog);
        }
        let limit = self.limit();
        if self.seal.is_none() {
            return encode(frame, limit, self.outgoing.tail());
        }
        let mut plain = Vec::new();
        encode(frame, limit, &mut plain)?;
        self.say(&plain);
        Ok(())
    }

    /// Returns the bytes to write next.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.outgoing.bytes()
    }

    /// Removes bytes of [`Connection::outgoing`] that were written.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn sent(&mut self, bytes: usize) {
        self.outgoing.pop(bytes);
    }

    /// Returns the peer's HELLO, once it was accepted.
    #[must_use]
    pub fn peer(&self) -> Option<&Hello> {
        self.peer.as_ref()
    }

    /// Returns the protocol version of the connection, once both HELLOs were exchanged.
    #[must_use]
    pub fn version(&self) -> Option<u16> {
        self.version
    }

    /// Returns the number of skipped frames of unknown types.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Returns the longest frame of either end in this state.
    fn limit(&self) -> usize {
        if self.peer.is_some() {
            FRAME_LIMIT_BYTES
        } else {
            HELLO_LIMIT_BYTES
        }
    }

    /// Limits incoming frames to `bytes` (type and body) until the next call: a client without a
    /// granted test has no long frame to send.
    pub fn take_at_most(&mut self, bytes: usize) {
        self.most_bytes = bytes.min(FRAME_LIMIT_BYTES);
    }

    /// Returns the longest frame that this end accepts now.
    fn taken_limit(&self) -> usize {
        self.limit().min(self.most_bytes)
    }

    fn fail(&mut self, error: ControlError) -> ControlError {
        self.reading = Reading::Nothing;
        self.incoming = Queue::default();
        self.sealed = Queue::default();
        error
    }
}

fn opening(security: Security) -> [u8; OPENING_BYTES] {
    let mut bytes = [0; OPENING_BYTES];
    bytes[..CONTROL_MAGIC.len()].copy_from_slice(&CONTROL_MAGIC);
    bytes[CONTROL_MAGIC.len()] = security.to_byte();
    bytes
}

/// Type of HELLO, which the codec itself must recognise.
const HELLO_KIND: u16 = 1;

/// Appends a frame; appends nothing on an error.
fn encode(frame: &Frame, limit: usize, out: &mut Vec<u8>) -> Result<(), ControlError> {
    let start = out.len();
    out.extend([0; LENGTH_BYTES]);
    out.extend(frame.kind().to_be_bytes());
    let encoded = frame
        .encode_body(out)
        .map_err(|source| ControlError::Unsendable {
            frame: frame.name(),
            source,
        });
    let size = out.len() - start - LENGTH_BYTES;
    let checked = encoded.and_then(|()| match u32::try_from(size) {
        Ok(length) if size <= limit => Ok(length),
        _ => Err(ControlError::Outsized {
            frame: frame.name(),
            length: size,
            limit,
        }),
    });
    match checked {
        Ok(length) => {
            out[start..start + LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
            Ok(())
        }
        Err(error) => {
            out.truncate(start);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constant_is_the_tables() {
        assert_eq!(Frame::from(Hello::new("")).kind(), HELLO_KIND);
    }
}
