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
use crate::byte_queue::Queue;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

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
const PROOF_BYTES: usize = 16;

/// Length of each message of the handshake.
const HANDSHAKE_BYTES: usize = 32 + PROOF_BYTES;

/// Pre-shared key of two ends.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; KEY_BYTES]);

/// Reason why a secret is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The secret could be guessed.
    #[error(
        "the secret has {bytes} B, and fewer than {SECRET_MIN_BYTES} can be guessed: make one with `head -c 32 /dev/urandom | base64`"
    )]
    TooShort {
        /// Length without surrounding white space.
        bytes: usize,
    },
    /// The file is no secret.
    #[error("the secret has more than {SECRET_MAX_BYTES} B: give the file with the secret")]
    TooLong,
}

impl Key {
    /// Derives the key from a secret. Surrounding white space is ignored, so a line of a file gives
    /// the same key as an environment variable.
    ///
    /// # Errors
    /// If it is shorter than [`SECRET_MIN_BYTES`] or longer than [`SECRET_MAX_BYTES`].
    pub fn new(secret: &[u8]) -> Result<Self, KeyError> {
        let secret = secret.trim_ascii();
        if secret.len() < SECRET_MIN_BYTES {
            let bytes = secret.len();
            return Err(KeyError::TooShort { bytes });
        }
        if secret.len() > SECRET_MAX_BYTES {
            return Err(KeyError::TooLong);
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

impl fmt::Debug for Key {
    /// Hides the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Credentials of one end for one connection.
#[derive(Clone)]
pub struct Proof {
    /// Key of both ends.
    pub key: Key,
    /// Random bytes for this connection, from the system's random number generator.
    pub random: [u8; KEY_BYTES],
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proof(..)")
    }
}

/// Noise state of one end.
pub(super) struct Seal {
    state: State,
}

enum State {
    Shaking(Box<HandshakeState>),
    Sealed(Box<TransportState>),
    Broken,
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Shaking(_) => "Seal(handshake)",
            State::Sealed(_) => "Seal(transport)",
            State::Broken => "Seal(failed)",
        })
    }
}

/// Progress of the handshake after the received messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The handshake is not complete.
    Waiting,
    /// The handshake was completed by these messages.
    Settled,
    /// The handshake was complete before.
    Open,
}

impl Seal {
    /// Creates the connecting end; its first message is appended to `out`.
    pub(super) fn client(proof: &Proof, prologue: &[u8], out: &mut Vec<u8>) -> Self {
        let mut shaking = builder(proof, prologue, |builder| builder.build_initiator());
        shake(&mut shaking, out).expect("a first message needs nothing of the peer");
        Self {
            state: State::Shaking(Box::new(shaking)),
        }
    }

    /// Creates the accepting end.
    pub(super) fn server(proof: &Proof, prologue: &[u8]) -> Self {
        let shaking = builder(proof, prologue, |builder| builder.build_responder());
        Self {
            state: State::Shaking(Box::new(shaking)),
        }
    }

    /// Decrypts all complete messages in `sealed` and appends their frames to `plain`; replies of
    /// the handshake are appended to `out`.
    ///
    /// # Errors
    /// [`ControlError::KeyDiffers`] if the handshake fails, [`ControlError::Tampered`] for a
    /// message that is not from the peer, or not the next one.
    pub(super) fn open(
        &mut self,
        sealed: &mut Queue,
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<Step, ControlError> {
        let mut step = match self.state {
            State::Sealed(_) => Step::Open,
            State::Shaking(_) => Step::Waiting,
            State::Broken => return Err(ControlError::Failed),
        };
        while let Some((&length, rest)) = sealed.bytes().split_first_chunk() {
            let length = usize::from(u16::from_be_bytes(length));
            if matches!(self.state, State::Shaking(_)) && length != HANDSHAKE_BYTES {
                // No handshake message has another length: the keys differ, which a server reports
                // with length 0.
                return Err(self.fail(ControlError::KeyDiffers));
            }
            let Some(message) = rest.get(..length) else {
                break;
            };
            match &mut self.state {
                State::Shaking(shaking) => {
                    let read = shaking.read_message(message, &mut []);
                    let answered = read.and_then(|_| match shaking.is_handshake_finished() {
                        true => Ok(()),
                        false => shake(shaking, out),
                    });
                    if answered.is_err() {
                        return Err(self.fail(ControlError::KeyDiffers));
                    }
                    self.seal_up()?;
                    step = Step::Settled;
                }
                State::Sealed(state) => {
                    let start = plain.len();
                    plain.resize(start + length, 0);
                    let Ok(bytes) = state.read_message(message, &mut plain[start..]) else {
                        plain.truncate(start);
                        return Err(self.fail(ControlError::Tampered));
                    };
                    plain.truncate(start + bytes);
                }
                State::Broken => return Err(ControlError::Failed),
            }
            sealed.pop(LENGTH_BYTES + length);
        }
        Ok(step)
    }

    /// Switches from the handshake to encrypted messages.
    fn seal_up(&mut self) -> Result<(), ControlError> {
        let State::Shaking(shaking) = std::mem::replace(&mut self.state, State::Broken) else {
            return Err(ControlError::Failed);
        };
        let sealed = shaking.into_transport_mode();
        self.state = State::Sealed(Box::new(sealed.map_err(|_| ControlError::KeyDiffers)?));
        Ok(())
    }

    /// Appends frames to `out`, encrypted.
    ///
    /// # Panics
    /// If the handshake is not complete.
    pub(super) fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        let State::Sealed(state) = &mut self.state else {
            panic!("frames are sent only after the handshake");
        };
        for piece in plain.chunks(MESSAGE_BYTES - PROOF_BYTES) {
            put_message(out, piece.len() + PROOF_BYTES, |room| {
                state.write_message(piece, room)
            })
            .expect("2^64 messages are more than a connection carries");
        }
    }

    fn fail(&mut self, error: ControlError) -> ControlError {
        self.state = State::Broken;
        error
    }
}

/// Writes the next message of the handshake.
fn shake(shaking: &mut HandshakeState, out: &mut Vec<u8>) -> Result<(), snow::Error> {
    put_message(out, HANDSHAKE_BYTES, |room| {
        shaking.write_message(&[], room)
    })
}

/// Appends a message and its length.
fn put_message(
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

fn builder<'a>(
    proof: &'a Proof,
    prologue: &'a [u8],
    build: impl FnOnce(Builder<'a>) -> Result<HandshakeState, snow::Error>,
) -> HandshakeState {
    let pattern: NoiseParams = PATTERN.parse().expect("the pattern is one of Noise's");
    let resolver = Box::new(Given(proof.random));
    Builder::with_resolver(pattern, resolver)
        .psk(0, &proof.key.0)
        .and_then(|builder| builder.prologue(prologue))
        .and_then(build)
        .expect("the pattern needs a key and a prologue, and has both")
}

/// Source of the random bytes that the caller passed in: this crate generates none.
struct Given([u8; KEY_BYTES]);

impl Random for Given {
    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), snow::Error> {
        // One end generates one ephemeral key; a second request would reuse its bytes.
        if bytes.len() != KEY_BYTES {
            return Err(snow::Error::Rng);
        }
        bytes.copy_from_slice(&self.0);
        Ok(())
    }
}

impl CryptoResolver for Given {
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
        let key = Key::new(b"0123456789abcdef").unwrap();
        assert_eq!(Key::new(b"  0123456789abcdef\r\n"), Ok(key.clone()));
        assert_ne!(Key::new(b"0123456789abcdeF"), Ok(key.clone()));
        assert_eq!(format!("{key:?}"), "Key(..)");
        for (secret, want) in [
            (&b""[..], KeyError::TooShort { bytes: 0 }),
            (b"0123456789abcde\n", KeyError::TooShort { bytes: 15 }),
            (&[b'x'; 5000], KeyError::TooLong),
        ] {
            assert_eq!(Key::new(secret), Err(want));
        }
    }

    #[test]
    fn long_frames_go_in_several_messages() {
        let proof = |random| Proof {
            key: Key::new(b"0123456789abcdef").unwrap(),
            random: [random; KEY_BYTES],
        };
        let (mut out, mut back, mut plain) = (Vec::new(), Vec::new(), Vec::new());
        let mut near = Seal::client(&proof(1), b"", &mut out);
        let mut far = Seal::server(&proof(2), b"");
        let mut queue = Queue::default();
        queue.push(&out);
        let step = far.open(&mut queue, &mut plain, &mut back).unwrap();
        assert_eq!(step, Step::Settled);
        queue.push(&back);
        let step = near.open(&mut queue, &mut plain, &mut back).unwrap();
        assert_eq!(step, Step::Settled);

        let said: Vec<u8> = (0..200_000u32).map(|at| at as u8).collect();
        out.clear();
        near.seal(&said, &mut out);
        assert_eq!(out.len(), said.len() + 4 * (LENGTH_BYTES + PROOF_BYTES));
        for piece in out.chunks(60_000) {
            queue.push(piece);
            let step = far.open(&mut queue, &mut plain, &mut back).unwrap();
            assert_eq!(step, Step::Open);
        }
        assert!(queue.is_empty());
        assert_eq!(plain, said);
    }

    #[test]
    fn an_end_draws_once() {
        let mut given = Given([7; KEY_BYTES]);
        assert!(given.try_fill_bytes(&mut [0; 31]).is_err());
        let mut key = [0; KEY_BYTES];
        given.try_fill_bytes(&mut key).unwrap();
        assert_eq!(key, [7; KEY_BYTES]);
    }
}
