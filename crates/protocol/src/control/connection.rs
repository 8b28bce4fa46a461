//! Codec of one end of a control connection: bytes in, frames out, and the reverse.

use super::error::ControlError;
use super::frame::Frame;
use super::hello::{Hello, Security};
use super::magic::CONTROL_MAGIC;
use super::noise::{self, HandshakeProgress, NoiseChannel, NoiseCredentials};
use super::{FRAME_LIMIT_BYTES, HELLO_LIMIT_BYTES};
use crate::byte_queue::ByteQueue;

/// Bytes that may be passed to [`ControlCodec::receive`] beyond an incomplete frame: the largest
/// read that a caller should make.
pub const READ_AHEAD_BYTES: usize = 64 << 10;

/// Bytes that may wait for the peer before [`ControlCodec::send`] fails.
pub const BACKLOG_LIMIT_BYTES: usize = FRAME_LIMIT_BYTES;

/// Bytes of the opening: magic number and security.
const OPENING_BYTES: usize = CONTROL_MAGIC.len() + 1;

/// Bytes of the length in front of a frame.
const LENGTH_BYTES: usize = 4;

/// Bytes of the type in front of a body.
const KIND_BYTES: usize = 2;

/// Bytes of a connection's beginning that [`is_first_frame_complete`] needs at most.
pub const FIRST_FRAME_LIMIT_BYTES: usize = OPENING_BYTES + LENGTH_BYTES + HELLO_LIMIT_BYTES;

/// Returns whether a byte is a state that an iperf3 server sends to a new client: it takes our
/// opening for a cookie.
fn is_iperf3_state(byte: u8) -> bool {
    use crate::iperf3::Iperf3State;
    matches!(
        Iperf3State::from_byte(byte),
        Some(Iperf3State::ParamExchange | Iperf3State::AccessDenied)
    )
}

/// Returns whether the first bytes of a client's control connection can be judged: its HELLO or its
/// first message with a key is complete, or the codec rejects what has arrived. Until then a server
/// need spend nothing on it.
#[must_use]
pub fn is_first_frame_complete(bytes: &[u8]) -> bool {
    let Some((opening, rest)) = bytes.split_first_chunk::<OPENING_BYTES>() else {
        return false;
    };
    let announced = match Security::from_byte(opening[OPENING_BYTES - 1]) {
        Some(Security::Plain) => rest.split_first_chunk().map(|(&length, rest)| {
            let length = u32::from_be_bytes(length);
            (usize::try_from(length).unwrap_or(usize::MAX), rest)
        }),
        Some(Security::Noise) => rest
            .split_first_chunk()
            .map(|(&length, rest)| (usize::from(u16::from_be_bytes(length)), rest)),
        None => return true,
    };
    announced.is_some_and(|(length, rest)| rest.len() >= length || length > HELLO_LIMIT_BYTES)
}

/// Sans-I/O codec of one end of a control connection.
///
/// ```
/// use linerate_protocol::control::{ControlCodec, Frame, Hello};
///
/// # fn main() -> Result<(), linerate_protocol::control::ControlError> {
/// let mut client = ControlCodec::client(Hello::new("linerate 0.1.0"))?;
/// let mut server = ControlCodec::server(Hello::new("linerate 0.2.0"))?;
///
/// server.receive(client.outgoing())?;
/// client.mark_sent(client.outgoing().len());
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
pub struct ControlCodec {
    hello: Hello,
    is_client: bool,
    credentials: Option<NoiseCredentials>,
    /// Created when both ends have a key.
    noise: Option<NoiseChannel>,
    /// Received bytes that are not decrypted yet; without encryption all go to `incoming`.
    encrypted: ByteQueue,
    /// HELLO of this end, until it is sent.
    hello_frame: Option<Vec<u8>>,
    read_state: ReadState,
    peer_hello: Option<Hello>,
    version: Option<u16>,
    incoming: ByteQueue,
    outgoing: ByteQueue,
    skipped_frames: u64,
    /// Longest incoming frame that the caller allows.
    max_incoming_bytes: usize,
}

/// Expected kind of the next bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadState {
    Opening,
    Handshake,
    Hello,
    Frames,
    Failed,
}

impl ControlCodec {
    /// Creates the client: its opening and HELLO are queued at once.
    ///
    /// # Errors
    /// [`ControlError::OutgoingTooLong`] if HELLO is too long.
    pub fn client(hello: Hello) -> Result<Self, ControlError> {
        let mut connection = Self::new(hello, None, true)?;
        connection.queue_opening(Security::Plain);
        connection.queue_hello();
        Ok(connection)
    }

    /// Creates a client that requires the server to prove that it has the key.
    ///
    /// # Errors
    /// [`ControlError::OutgoingTooLong`] if HELLO is too long.
    pub fn authenticated_client(
        hello: Hello,
        credentials: NoiseCredentials,
    ) -> Result<Self, ControlError> {
        let mut connection = Self::new(hello, None, true)?;
        connection.queue_opening(Security::Noise);
        let prologue = opening_bytes(Security::Noise);
        connection.noise = Some(NoiseChannel::client(
            &credentials,
            &prologue,
            connection.outgoing.buffer_mut(),
        ));
        connection.credentials = Some(credentials);
        Ok(connection)
    }

    /// Creates the server: it sends nothing before it has read the client's HELLO.
    ///
    /// # Errors
    /// [`ControlError::OutgoingTooLong`] if HELLO is too long.
    pub fn server(hello: Hello) -> Result<Self, ControlError> {
        Self::new(hello, None, false)
    }

    /// Creates a server that requires the client to prove that it has the key.
    ///
    /// # Errors
    /// [`ControlError::OutgoingTooLong`] if HELLO is too long.
    pub fn authenticated_server(
        hello: Hello,
        credentials: NoiseCredentials,
    ) -> Result<Self, ControlError> {
        Self::new(hello, Some(credentials), false)
    }

    fn new(
        hello: Hello,
        credentials: Option<NoiseCredentials>,
        is_client: bool,
    ) -> Result<Self, ControlError> {
        let mut hello_frame = Vec::new();
        encode_frame(&hello.clone().into(), HELLO_LIMIT_BYTES, &mut hello_frame)?;
        Ok(Self {
            hello,
            is_client,
            credentials,
            noise: None,
            encrypted: ByteQueue::default(),
            hello_frame: Some(hello_frame),
            read_state: ReadState::Opening,
            peer_hello: None,
            version: None,
            incoming: ByteQueue::default(),
            outgoing: ByteQueue::default(),
            skipped_frames: 0,
            max_incoming_bytes: FRAME_LIMIT_BYTES,
        })
    }

    /// Appends received bytes, at most [`READ_AHEAD_BYTES`] per call.
    ///
    /// # Errors
    /// [`ControlError::ReadAhead`] if earlier frames were not taken out,
    /// [`ControlError::AlreadyFailed`] after any error.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), ControlError> {
        if self.read_state == ReadState::Failed {
            return Err(ControlError::AlreadyFailed);
        }
        let message_bytes = match self.noise {
            Some(_) => noise::LENGTH_BYTES + noise::MESSAGE_BYTES,
            None => 0,
        };
        let capacity =
            OPENING_BYTES + LENGTH_BYTES + self.incoming_limit() + READ_AHEAD_BYTES + message_bytes;
        if self.encrypted.len() + self.incoming.len() + bytes.len() > capacity {
            return Err(self.fail(ControlError::ReadAhead));
        }
        match self.noise {
            Some(_) => self.encrypted.push(bytes),
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
        if self.read_state == ReadState::Failed {
            return Err(ControlError::AlreadyFailed);
        }
        self.read().map_err(|error| self.fail(error))
    }

    fn read(&mut self) -> Result<Option<Frame>, ControlError> {
        if self.read_state == ReadState::Opening && !self.read_opening()? {
            return Ok(None);
        }
        if self.noise.is_some() && !self.decrypt()? {
            return Ok(None);
        }
        loop {
            let Some((&length, rest)) = self.incoming.bytes().split_first_chunk() else {
                return Ok(None);
            };
            let length = u32::from_be_bytes(length);
            let limit = self.incoming_limit();
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
            if self.read_state == ReadState::Hello && kind != HELLO_KIND {
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
                    self.accept_hello(&hello)?;
                    return Ok(Some(Frame::Hello(hello)));
                }
                Some(frame) => return Ok(Some(frame)),
                None => self.skipped_frames += 1,
            }
        }
    }

    /// Returns whether the opening is complete; fails at the first wrong byte.
    fn read_opening(&mut self) -> Result<bool, ControlError> {
        let arrived = match self.noise {
            Some(_) => &mut self.encrypted,
            None => &mut self.incoming,
        };
        let bytes = arrived.bytes();
        let available = bytes.len().min(CONTROL_MAGIC.len());
        if bytes[..available] != CONTROL_MAGIC[..available] {
            return Err(match (self.is_client, bytes) {
                (true, &[byte]) if is_iperf3_state(byte) => ControlError::Iperf3,
                _ => ControlError::NotLinerate,
            });
        }
        let Some(&security_byte) = bytes.get(CONTROL_MAGIC.len()) else {
            return Ok(false);
        };
        let security =
            Security::from_byte(security_byte).ok_or(ControlError::Security { security_byte })?;
        arrived.pop(OPENING_BYTES);
        self.read_state = match (security, self.credentials.is_some()) {
            (Security::Plain, false) => ReadState::Hello,
            (Security::Noise, true) => ReadState::Handshake,
            (peer_security, _) => return Err(self.reject_security(peer_security)),
        };
        if let (false, Some(credentials)) = (self.is_client, &self.credentials) {
            self.noise = Some(NoiseChannel::server(
                credentials,
                &opening_bytes(Security::Noise),
            ));
            // The bytes after the opening are encrypted.
            std::mem::swap(&mut self.incoming, &mut self.encrypted);
        }
        Ok(true)
    }

    /// Handles a key at only one end: a server sends its own opening, so that the client can report
    /// which side lacks the key.
    fn reject_security(&mut self, peer_security: Security) -> ControlError {
        match (self.is_client, peer_security) {
            (true, Security::Noise) => ControlError::ServerRequiresKey,
            (true, Security::Plain) => ControlError::ServerHasNoKey,
            (false, Security::Noise) => {
                self.queue_opening(Security::Plain);
                ControlError::UnexpectedClientKey
            }
            (false, Security::Plain) => {
                self.queue_opening(Security::Noise);
                ControlError::ClientHasNoKey
            }
        }
    }

    /// Decrypts the received bytes and returns whether the handshake is complete.
    fn decrypt(&mut self) -> Result<bool, ControlError> {
        let Some(noise) = &mut self.noise else {
            return Ok(true);
        };
        let mut reply = Vec::new();
        let step = noise.decrypt(&mut self.encrypted, self.incoming.buffer_mut(), &mut reply);
        let handshake_ended = self.read_state == ReadState::Handshake
            && !matches!(step, Ok(HandshakeProgress::Pending));
        if handshake_ended && !self.is_client {
            self.queue_opening(Security::Noise);
            if matches!(step, Err(ControlError::KeyMismatch)) {
                // A message of length 0 signals that the keys differ.
                reply = vec![0; noise::LENGTH_BYTES];
            }
        }
        self.outgoing.push(&reply);
        let step = step?;
        if step == HandshakeProgress::JustCompleted {
            self.read_state = ReadState::Hello;
            if self.is_client {
                self.queue_hello();
            }
        }
        Ok(step != HandshakeProgress::Pending)
    }

    fn accept_hello(&mut self, peer_hello: &Hello) -> Result<(), ControlError> {
        if self.read_state != ReadState::Hello {
            return Err(ControlError::DuplicateHello);
        }
        // Also sent if no version is shared: the client can then report which side to update.
        if !self.is_client {
            if self.noise.is_none() {
                self.queue_opening(Security::Plain);
            }
            self.queue_hello();
        }
        let (local, remote) = (self.hello.versions(), peer_hello.versions());
        let version = local
            .highest_common(remote)
            .ok_or(ControlError::Version { local, remote })?;
        self.read_state = ReadState::Frames;
        self.version = Some(version);
        self.peer_hello = Some(peer_hello.clone());
        Ok(())
    }

    fn queue_opening(&mut self, security: Security) {
        self.outgoing.push(&opening_bytes(security));
    }

    fn queue_hello(&mut self) {
        if let Some(hello_frame) = self.hello_frame.take() {
            self.queue_frames(&hello_frame);
        }
    }

    /// Queues complete frames.
    fn queue_frames(&mut self, frames: &[u8]) {
        match &mut self.noise {
            Some(noise) => noise.encrypt(frames, self.outgoing.buffer_mut()),
            None => self.outgoing.push(frames),
        }
    }

    /// Queues a frame for the peer. Until the peer's HELLO has arrived, only REJECT and BYE may
    /// follow this end's HELLO.
    ///
    /// # Errors
    /// [`ControlError::BeforeHello`], [`ControlError::DuplicateHello`];
    /// [`ControlError::OutgoingTooLong`] or [`ControlError::Unencodable`] for a frame that the peer
    /// would reject; [`ControlError::BacklogFull`] if the peer does not read. No error leaves a
    /// partial frame in the queue.
    pub fn send(&mut self, frame: &Frame) -> Result<(), ControlError> {
        let ends_connection = matches!(frame, Frame::Reject(_) | Frame::Bye(_));
        if self.hello_frame.is_some() || (self.peer_hello.is_none() && !ends_connection) {
            return Err(ControlError::BeforeHello {
                frame: frame.name(),
            });
        }
        if matches!(frame, Frame::Hello(_)) {
            return Err(ControlError::DuplicateHello);
        }
        if self.outgoing.bytes().len() > BACKLOG_LIMIT_BYTES {
            return Err(ControlError::BacklogFull);
        }
        let limit = self.frame_limit();
        if self.noise.is_none() {
            return encode_frame(frame, limit, self.outgoing.buffer_mut());
        }
        let mut plain = Vec::new();
        encode_frame(frame, limit, &mut plain)?;
        self.queue_frames(&plain);
        Ok(())
    }

    /// Returns the bytes to write next.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.outgoing.bytes()
    }

    /// Removes bytes of [`ControlCodec::outgoing`] that were written.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn mark_sent(&mut self, bytes: usize) {
        self.outgoing.pop(bytes);
    }

    /// Returns the peer's HELLO, once it was accepted.
    #[must_use]
    pub fn peer_hello(&self) -> Option<&Hello> {
        self.peer_hello.as_ref()
    }

    /// Returns the protocol version of the connection, once both HELLOs were exchanged.
    #[must_use]
    pub fn version(&self) -> Option<u16> {
        self.version
    }

    /// Returns the number of skipped frames of unknown types.
    #[must_use]
    pub fn skipped_frames(&self) -> u64 {
        self.skipped_frames
    }

    /// Returns the longest frame of either end in this state.
    fn frame_limit(&self) -> usize {
        if self.peer_hello.is_some() {
            FRAME_LIMIT_BYTES
        } else {
            HELLO_LIMIT_BYTES
        }
    }

    /// Limits incoming frames to `bytes` (type and body) until the next call: a client without a
    /// granted test has no long frame to send.
    pub fn limit_incoming(&mut self, bytes: usize) {
        self.max_incoming_bytes = bytes.min(FRAME_LIMIT_BYTES);
    }

    /// Returns the longest frame that this end accepts now.
    fn incoming_limit(&self) -> usize {
        self.frame_limit().min(self.max_incoming_bytes)
    }

    fn fail(&mut self, error: ControlError) -> ControlError {
        self.read_state = ReadState::Failed;
        self.incoming = ByteQueue::default();
        self.encrypted = ByteQueue::default();
        error
    }
}

fn opening_bytes(security: Security) -> [u8; OPENING_BYTES] {
    let mut bytes = [0; OPENING_BYTES];
    bytes[..CONTROL_MAGIC.len()].copy_from_slice(&CONTROL_MAGIC);
    bytes[CONTROL_MAGIC.len()] = security.to_byte();
    bytes
}

/// Type of HELLO, which the codec itself must recognise.
const HELLO_KIND: u16 = 1;

/// Appends a frame; appends nothing on an error.
fn encode_frame(frame: &Frame, limit: usize, out: &mut Vec<u8>) -> Result<(), ControlError> {
    let start = out.len();
    out.extend([0; LENGTH_BYTES]);
    out.extend(frame.kind().to_be_bytes());
    let encoded = frame
        .encode_body(out)
        .map_err(|source| ControlError::Unencodable {
            frame: frame.name(),
            source,
        });
    let size = out.len() - start - LENGTH_BYTES;
    let checked = encoded.and_then(|()| match u32::try_from(size) {
        Ok(length) if size <= limit => Ok(length),
        _ => Err(ControlError::OutgoingTooLong {
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
    fn the_hello_type_matches_the_table() {
        assert_eq!(Frame::from(Hello::new("")).kind(), HELLO_KIND);
    }
}
