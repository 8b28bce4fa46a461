//! Encryption and authentication of a control connection whose ends have the same key.
//!
//! Uses the Noise protocol with the pattern NNpsk0. Both ends prove that they have the key without
//! revealing it. Fresh Diffie-Hellman keys prevent replay, and keep recorded traffic secret if the
//! key leaks later. The [opening](super::magic) is the prologue, so a protected connection cannot
//! be downgraded to a plain one on the path.
//!
//! ```text
//! client    opening | length u16 | first message, 48 B
//! server    opening | length u16 | second message, 48 B      or length 0: the keys differ
//! both      length u16 | frames, encrypted: at most 65,535 B, 16 B of them the tag
//! ```

use std::fmt;

use snow::params::NoiseParams;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState, TransportState};

use super::error::ControlError;
use crate::byte_queue::ByteQueue;

const NOISE_PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

/// Bytes of a key, and of the random number of one end for one connection.
pub const KEY_BYTES: usize = 32;

/// Minimum length of a secret in bytes. The first message of a recorded connection allows offline
/// guessing, so the secret must not be guessable.
pub const SECRET_MIN_BYTES: usize = 16;

/// Maximum length of a secret in bytes: a longer file is no secret.
pub const SECRET_MAX_BYTES: usize = 4 << 10;

/// Bytes of the length in front of a message.
pub(super) const LENGTH_BYTES: usize = 2;

/// Longest message in bytes, without its length.
pub(super) const MESSAGE_BYTES: usize = 65_535;

/// Bytes of the authentication tag of a message.
const TAG_BYTES: usize = 16;

/// Length of each message of the handshake.
const HANDSHAKE_BYTES: usize = 32 + TAG_BYTES;

/// Pre-shared key of two ends.
#[derive(Clone, PartialEq, Eq)]
pub struct PresharedKey([u8; KEY_BYTES]);

/// Reason why a secret is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PresharedKeyError {
    /// The secret could be guessed.
    #[error(
        "key shorter than {SECRET_MIN_BYTES} bytes ({bytes}): make one with `head -c 32 /dev/urandom | base64`"
    )]
    TooShort {
        /// Length without surrounding white space.
        bytes: usize,
    },
    /// The file is no secret.
    #[error("the secret has more than {SECRET_MAX_BYTES} B: give the file with the secret")]
    TooLong,
}

impl PresharedKey {
    /// Derives the key from a secret. Surrounding white space is ignored, so a line of a file gives
    /// the same key as an environment variable.
    ///
    /// # Errors
    /// If it is shorter than [`SECRET_MIN_BYTES`] or longer than [`SECRET_MAX_BYTES`].
    pub fn new(secret: &[u8]) -> Result<Self, PresharedKeyError> {
        let secret = secret.trim_ascii();
        if secret.len() < SECRET_MIN_BYTES {
            let bytes = secret.len();
            return Err(PresharedKeyError::TooShort { bytes });
        }
        if secret.len() > SECRET_MAX_BYTES {
            return Err(PresharedKeyError::TooLong);
        }
        let mut hash = DefaultResolver
            .resolve_hash(&snow::params::HashChoice::Blake2s)
            .expect("snow is built with BLAKE2s");
        hash.input(b"linerate key 1\0");
        hash.input(secret);
        let mut key = [0; KEY_BYTES];
        hash.result(&mut key);
        Ok(Self(key))
    }
}

impl fmt::Debug for PresharedKey {
    /// Hides the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Credentials of one end for one connection.
#[derive(Clone)]
pub struct NoiseCredentials {
    /// Key of both ends.
    pub key: PresharedKey,
    /// Random bytes for this connection, from the system's random number generator.
    pub random: [u8; KEY_BYTES],
}

impl fmt::Debug for NoiseCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proof(..)")
    }
}

/// Noise state of one end.
pub(super) struct NoiseChannel {
    state: NoiseState,
}

enum NoiseState {
    Handshake(Box<HandshakeState>),
    Transport(Box<TransportState>),
    Failed,
}

impl fmt::Debug for NoiseChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            NoiseState::Handshake(_) => "Seal(handshake)",
            NoiseState::Transport(_) => "Seal(transport)",
            NoiseState::Failed => "Seal(failed)",
        })
    }
}

/// Progress of the handshake after the received messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandshakeProgress {
    /// The handshake is not complete.
    Pending,
    /// The handshake was completed by these messages.
    JustCompleted,
    /// The handshake was complete before.
    Completed,
}

impl NoiseChannel {
    /// Creates the connecting end; its first message is appended to `out`.
    pub(super) fn client(
        credentials: &NoiseCredentials,
        prologue: &[u8],
        out: &mut Vec<u8>,
    ) -> Self {
        let mut handshake =
            build_handshake(credentials, prologue, |builder| builder.build_initiator());
        write_handshake_message(&mut handshake, out)
            .expect("a first message needs nothing of the peer");
        Self {
            state: NoiseState::Handshake(Box::new(handshake)),
        }
    }

    /// Creates the accepting end.
    pub(super) fn server(credentials: &NoiseCredentials, prologue: &[u8]) -> Self {
        let handshake = build_handshake(credentials, prologue, |builder| builder.build_responder());
        Self {
            state: NoiseState::Handshake(Box::new(handshake)),
        }
    }

    /// Decrypts all complete messages in `encrypted` and appends their frames to `plain`; replies
    /// of the handshake are appended to `out`.
    ///
    /// # Errors
    /// [`ControlError::KeyMismatch`] if the handshake fails, [`ControlError::Tampered`] for a
    /// message that is not from the peer, or not the next one.
    pub(super) fn decrypt(
        &mut self,
        encrypted: &mut ByteQueue,
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<HandshakeProgress, ControlError> {
        let mut step = match self.state {
            NoiseState::Transport(_) => HandshakeProgress::Completed,
            NoiseState::Handshake(_) => HandshakeProgress::Pending,
            NoiseState::Failed => return Err(ControlError::AlreadyFailed),
        };
        while let Some((&length, rest)) = encrypted.bytes().split_first_chunk() {
            let length = usize::from(u16::from_be_bytes(length));
            if matches!(self.state, NoiseState::Handshake(_)) && length != HANDSHAKE_BYTES {
                // No handshake message has another length: the keys differ, which a server reports
                // with length 0.
                return Err(self.fail(ControlError::KeyMismatch));
            }
            let Some(message) = rest.get(..length) else {
                break;
            };
            match &mut self.state {
                NoiseState::Handshake(handshake) => {
                    let read = handshake.read_message(message, &mut []);
                    let result = read.and_then(|_| match handshake.is_handshake_finished() {
                        true => Ok(()),
                        false => write_handshake_message(handshake, out),
                    });
                    if result.is_err() {
                        return Err(self.fail(ControlError::KeyMismatch));
                    }
                    self.enter_transport_mode()?;
                    step = HandshakeProgress::JustCompleted;
                }
                NoiseState::Transport(state) => {
                    let start = plain.len();
                    plain.resize(start + length, 0);
                    let Ok(bytes) = state.read_message(message, &mut plain[start..]) else {
                        plain.truncate(start);
                        return Err(self.fail(ControlError::Tampered));
                    };
                    plain.truncate(start + bytes);
                }
                NoiseState::Failed => return Err(ControlError::AlreadyFailed),
            }
            encrypted.pop(LENGTH_BYTES + length);
        }
        Ok(step)
    }

    /// Switches from the handshake to encrypted messages.
    fn enter_transport_mode(&mut self) -> Result<(), ControlError> {
        let NoiseState::Handshake(handshake) =
            std::mem::replace(&mut self.state, NoiseState::Failed)
        else {
            return Err(ControlError::AlreadyFailed);
        };
        let transport = handshake.into_transport_mode();
        self.state =
            NoiseState::Transport(Box::new(transport.map_err(|_| ControlError::KeyMismatch)?));
        Ok(())
    }

    /// Appends frames to `out`, encrypted.
    ///
    /// # Panics
    /// If the handshake is not complete.
    pub(super) fn encrypt(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        let NoiseState::Transport(state) = &mut self.state else {
            panic!("frames are sent only after the handshake");
        };
        for chunk in plain.chunks(MESSAGE_BYTES - TAG_BYTES) {
            append_message(out, chunk.len() + TAG_BYTES, |buffer| {
                state.write_message(chunk, buffer)
            })
            .expect("2^64 messages are more than a connection carries");
        }
    }

    fn fail(&mut self, error: ControlError) -> ControlError {
        self.state = NoiseState::Failed;
        error
    }
}

/// Writes the next message of the handshake.
fn write_handshake_message(
    handshake: &mut HandshakeState,
    out: &mut Vec<u8>,
) -> Result<(), snow::Error> {
    append_message(out, HANDSHAKE_BYTES, |buffer| {
        handshake.write_message(&[], buffer)
    })
}

/// Appends a message and its length.
fn append_message(
    out: &mut Vec<u8>,
    bytes: usize,
    write: impl FnOnce(&mut [u8]) -> Result<usize, snow::Error>,
) -> Result<(), snow::Error> {
    let length = u16::try_from(bytes).expect("pieces fit into a message");
    out.extend(length.to_be_bytes());
    let start = out.len();
    out.resize(start + bytes, 0);
    let written = write(&mut out[start..])?;
    assert_eq!(written, bytes, "lengths of messages are known beforehand");
    Ok(())
}

fn build_handshake<'a>(
    credentials: &'a NoiseCredentials,
    prologue: &'a [u8],
    build: impl FnOnce(Builder<'a>) -> Result<HandshakeState, snow::Error>,
) -> HandshakeState {
    let pattern: NoiseParams = NOISE_PATTERN
        .parse()
        .expect("the pattern is one of Noise's");
    let resolver = Box::new(FixedRandom(credentials.random));
    Builder::with_resolver(pattern, resolver)
        .psk(0, &credentials.key.0)
        .and_then(|builder| builder.prologue(prologue))
        .and_then(build)
        .expect("the pattern needs a key and a prologue, and has both")
}

/// Source of the random bytes that the caller passed in: this crate generates none.
struct FixedRandom([u8; KEY_BYTES]);

impl Random for FixedRandom {
    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), snow::Error> {
        // One end generates one ephemeral key; a second request would reuse its bytes.
        if bytes.len() != KEY_BYTES {
            return Err(snow::Error::Rng);
        }
        bytes.copy_from_slice(&self.0);
        Ok(())
    }
}

impl CryptoResolver for FixedRandom {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Self(self.0)))
    }

    fn resolve_dh(&self, choice: &snow::params::DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &snow::params::HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &snow::params::CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_the_same_in_a_file_and_in_a_variable() {
        let key = PresharedKey::new(b"0123456789abcdef").unwrap();
        assert_eq!(
            PresharedKey::new(b"  0123456789abcdef\r\n"),
            Ok(key.clone())
        );
        assert_ne!(PresharedKey::new(b"0123456789abcdeF"), Ok(key.clone()));
        assert_eq!(format!("{key:?}"), "Key(..)");
        for (secret, expected) in [
            (&b""[..], PresharedKeyError::TooShort { bytes: 0 }),
            (
                b"0123456789abcde\n",
                PresharedKeyError::TooShort { bytes: 15 },
            ),
            (&[b'x'; 5000], PresharedKeyError::TooLong),
        ] {
            assert_eq!(PresharedKey::new(secret), Err(expected));
        }
    }

    #[test]
    fn long_frames_go_in_several_messages() {
        let credentials = |random| NoiseCredentials {
            key: PresharedKey::new(b"0123456789abcdef").unwrap(),
            random: [random; KEY_BYTES],
        };
        let (mut out, mut back, mut plain) = (Vec::new(), Vec::new(), Vec::new());
        let mut near = NoiseChannel::client(&credentials(1), b"", &mut out);
        let mut far = NoiseChannel::server(&credentials(2), b"");
        let mut queue = ByteQueue::default();
        queue.push(&out);
        let step = far.decrypt(&mut queue, &mut plain, &mut back).unwrap();
        assert_eq!(step, HandshakeProgress::JustCompleted);
        queue.push(&back);
        let step = near.decrypt(&mut queue, &mut plain, &mut back).unwrap();
        assert_eq!(step, HandshakeProgress::JustCompleted);

        let payload: Vec<u8> = (0..200_000u32).map(|at| at as u8).collect();
        out.clear();
        near.encrypt(&payload, &mut out);
        assert_eq!(out.len(), payload.len() + 4 * (LENGTH_BYTES + TAG_BYTES));
        for chunk in out.chunks(60_000) {
            queue.push(chunk);
            let step = far.decrypt(&mut queue, &mut plain, &mut back).unwrap();
            assert_eq!(step, HandshakeProgress::Completed);
        }
        assert!(queue.is_empty());
        assert_eq!(plain, payload);
    }

    #[test]
    fn an_end_generates_one_key() {
        let mut random = FixedRandom([7; KEY_BYTES]);
        assert!(random.try_fill_bytes(&mut [0; 31]).is_err());
        let mut key = [0; KEY_BYTES];
        random.try_fill_bytes(&mut key).unwrap();
        assert_eq!(key, [7; KEY_BYTES]);
    }
}
