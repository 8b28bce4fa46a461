//! Random numbers that must not be guessable: flow tokens and nonces of authenticated connections.

use linerate_protocol::control::{NoiseCredentials, PresharedKey};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::MeasureError;

/// Returns bytes of the system's random number generator.
pub fn bytes<const N: usize>() -> Result<[u8; N], MeasureError> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(MeasureError::system("random numbers", error.into())),
        }
    }
    Ok(bytes)
}

/// Returns the key with a fresh nonce, for the proof on a new connection.
pub fn new_proof(key: &PresharedKey) -> Result<NoiseCredentials, MeasureError> {
    Ok(NoiseCredentials {
        key: key.clone(),
        random: bytes()?,
    })
}
