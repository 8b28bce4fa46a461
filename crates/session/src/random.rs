//! Random numbers that must not be guessable: flow tokens and nonces of authenticated connections.

use linerate_protocol::control::{NoiseCredentials, PresharedKey};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::SessionError;

/// Returns bytes of the system's random number generator.
pub fn bytes<const N: usize>() -> Result<[u8; N], SessionError> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(SessionError::system("random numbers", error.into())),
        }
    }
    Ok(bytes)
}

/// Returns the key with a fresh nonce, for the proof on a new connection.
pub fn new_proof(key: &PresharedKey) -> Result<NoiseCredentials, SessionError> {
    Ok(NoiseCredentials {
        key: key.clone(),
        random: bytes()?,
    })
}
