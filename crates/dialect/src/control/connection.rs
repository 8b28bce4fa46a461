//! One end of a control connection: bytes in, frames out, and the other way round.

use super::error::ControlError;
use super::frame::Frame;
use super::hello::{Hello, Security};
use super::magic::CONTROL_MAGIC;
use super::{FRAME_LIMIT_BYTES, HELLO_LIMIT_BYTES};

/// Bytes that may be handed to [`Connection::receive`] beyond a frame that is not whole yet: the
/// largest read that a caller should make.
pub const READ_AHEAD_BYTES: usize = 64 << 10;

/// Bytes that may wait for the peer before [`Connection::send`] takes no more.
pub const BACKLOG_LIMIT_BYTES: usize = FRAME_LIMIT_BYTES;

/// Opening: magic and security.
const OPENING_BYTES: usize = CONTROL_MAGIC.len() + 1;

/// The length in front of a frame.
const LENGTH_BYTES: usize = 4;

/// The type in front of a body.
const KIND_BYTES: usize = 2;

/// One end of a control connection.
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
/// Read at most [`READ_AHEAD_BYTES`] at a time, and take every frame before reading on: then what
/// is buffered stays below one frame and one read.
#[derive(Debug)]
pub struct Connection {
    hello: Hello,
    /// What this end says first, until it has said it.
    greeting: Option<Vec<u8>>,
    reading: Reading,
    peer: Option<Hello>,
    version: Option<u16>,
    incoming: Queue,
    outgoing: Queue,
    skipped: u64,
    /// Longest frame that is taken now.
    most_bytes: usize,
}

/// What the next bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Opening,
    Hello,
    Frames,
    Nothing,
}

impl Connection {
    /// The end that connects: its opening and HELLO are to be sent at once.
    ///
    /// # Errors
    /// [`ControlError::Outsized`] when the greeting is too long for any peer.
    pub fn client(hello: Hello) -> Result<Self, ControlError> {
        let mut connection = Self::server(hello)?;
        connection.greet();
        Ok(connection)
    }

    /// The end that was connected to: it says nothing before it has read the client's HELLO.
    ///
    /// # Errors
    /// [`ControlError::Outsized`] when the greeting is too long for any peer.
    pub fn server(hello: Hello) -> Result<Self, ControlError> {
        let mut greeting = CONTROL_MAGIC.to_vec();
        greeting.push(Security::Plain.to_byte());
        encode(&hello.clone().into(), HELLO_LIMIT_BYTES, &mut greeting)?;
        Ok(Self {
            hello,
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

    /// Takes what arrived, in pieces of any size up to [`READ_AHEAD_BYTES`].
    ///
    /// # Errors
    /// [`ControlError::ReadAhead`] when frames that were there before were not taken out,
    /// [`ControlError::Failed`] after any error.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), ControlError> {
        if self.reading == Reading::Nothing {
            return Err(ControlError::Failed);
        }
        let room = OPENING_BYTES + LENGTH_BYTES + self.taken_limit() + READ_AHEAD_BYTES;
        if self.incoming.bytes().len() + bytes.len() > room {
            return Err(self.fail(ControlError::ReadAhead));
        }
        self.incoming.push(bytes);
        Ok(())
    }

    /// Takes out the next whole frame; `None` until more has arrived. The peer's HELLO comes first.
    ///
    /// # Errors
    /// Whatever the peer did wrong; nothing can be read after that.
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
        loop {
            let Some((&length, rest)) = self.incoming.bytes().split_first_chunk() else {
                return Ok(None);
            };
            let length = u32::from_be_bytes(length);
            let limit = self.taken_limit();
            // Checked before the frame is there: nobody waits for what will not be taken.
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

    /// Whether the opening is complete; what cannot become one is an error at its first wrong byte.
    fn read_opening(&mut self) -> Result<bool, ControlError> {
        let bytes = self.incoming.bytes();
        let there = bytes.len().min(CONTROL_MAGIC.len());
        if bytes[..there] != CONTROL_MAGIC[..there] {
            return Err(ControlError::NotOurs);
        }
        let Some(&security) = bytes.get(CONTROL_MAGIC.len()) else {
            return Ok(false);
        };
        if Security::from_byte(security).is_none() {
            return Err(ControlError::Security { asked: security });
        }
        self.incoming.pop(OPENING_BYTES);
        self.reading = Reading::Hello;
        Ok(true)
    }

    fn settle(&mut self, theirs: &Hello) -> Result<(), ControlError> {
        if self.reading != Reading::Hello {
            return Err(ControlError::HelloAgain);
        }
        // Also when no version is shared: the client then knows why, and whom to update.
        self.greet();
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

    fn greet(&mut self) {
        if let Some(greeting) = self.greeting.take() {
            self.outgoing.push(&greeting);
        }
    }

    /// Queues a frame for the peer. Before the peer's HELLO has come only REFUSE and BYE may follow
    /// this end's own.
    ///
    /// # Errors
    /// [`ControlError::TooEarly`], [`ControlError::HelloAgain`], and [`ControlError::Outsized`] or
    /// [`ControlError::Unsendable`] for what the peer would refuse; [`ControlError::Backlog`] when
    /// it takes nothing any more. None of them leaves half a frame behind.
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
        encode(frame, limit, self.outgoing.tail())
    }

    /// What is to be written to the peer next.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.outgoing.bytes()
    }

    /// So many bytes of [`Connection::outgoing`] were written.
    ///
    /// # Panics
    /// When there were fewer.
    pub fn sent(&mut self, bytes: usize) {
        self.outgoing.pop(bytes);
    }

    /// The peer's HELLO, once it was accepted.
    #[must_use]
    pub fn peer(&self) -> Option<&Hello> {
        self.peer.as_ref()
    }

    /// The version of the protocol that both ends speak, once that is settled.
    #[must_use]
    pub fn version(&self) -> Option<u16> {
        self.version
    }

    /// Frames of unknown types that were skipped.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Longest frame that either end takes in this state.
    fn limit(&self) -> usize {
        if self.peer.is_some() {
            FRAME_LIMIT_BYTES
        } else {
            HELLO_LIMIT_BYTES
        }
    }

    /// Takes no frame above this size (type and body, in bytes) until it is told otherwise: whoever
    /// has not been granted anything yet has nothing long to say.
    pub fn take_at_most(&mut self, bytes: usize) {
        self.most_bytes = bytes.min(FRAME_LIMIT_BYTES);
    }

    /// Longest frame that this end takes now.
    fn taken_limit(&self) -> usize {
        self.limit().min(self.most_bytes)
    }

    fn fail(&mut self, error: ControlError) -> ControlError {
        self.reading = Reading::Nothing;
        self.incoming = Queue::default();
        error
    }
}

/// Type of the one frame that the connection itself must tell from all others.
const HELLO_KIND: u16 = 1;

/// Appends a frame, or nothing.
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

/// Bytes in the order they came, taken from the front.
#[derive(Debug, Default)]
struct Queue {
    buffer: Vec<u8>,
    taken: usize,
}

impl Queue {
    /// Room that is kept when a long frame has gone.
    const KEPT_BYTES: usize = READ_AHEAD_BYTES;

    fn bytes(&self) -> &[u8] {
        &self.buffer[self.taken..]
    }

    fn push(&mut self, bytes: &[u8]) {
        self.tail().extend_from_slice(bytes);
    }

    /// The buffer, to be appended to.
    fn tail(&mut self) -> &mut Vec<u8> {
        // Moving the rest costs less than what was taken in reading it: at most once for each byte.
        if self.taken > self.buffer.len() / 2 {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        &mut self.buffer
    }

    fn pop(&mut self, bytes: usize) {
        assert!(bytes <= self.bytes().len(), "more was taken than was there");
        self.taken += bytes;
        if self.taken == self.buffer.len() {
            self.buffer.clear();
            self.buffer.shrink_to(Self::KEPT_BYTES);
            self.taken = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_queue_is_a_queue(steps in prop::collection::vec((0usize..300, 0usize..300), 1..60)) {
            let (mut queue, mut model) = (Queue::default(), std::collections::VecDeque::new());
            let mut next = 0u8;
            for (pushed, popped) in steps {
                let bytes: Vec<u8> = std::iter::repeat_n(next, pushed).collect();
                next = next.wrapping_add(1);
                queue.push(&bytes);
                model.extend(bytes);
                let popped = popped.min(model.len());
                queue.pop(popped);
                model.drain(..popped);
                prop_assert_eq!(queue.bytes(), model.make_contiguous());
                // Never more than twice what is in it and what was pushed last.
                prop_assert!(queue.buffer.len() <= 2 * model.len() + popped + 300);
            }
        }
    }

    #[test]
    fn the_constant_is_the_tables() {
        assert_eq!(Frame::from(Hello::new("")).kind(), HELLO_KIND);
    }
}
