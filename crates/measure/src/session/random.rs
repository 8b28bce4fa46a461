//! What nobody may guess: tokens of flows, and what ends with a key draw for a connection.

use linerate_dialect::control::{Key, Proof};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::MeasureError;

/// So many bytes of the system's random number generator.
pub fn bytes<const N: usize>() -> Result<[u8; N], MeasureError> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(MeasureError::system("random numbers", error.into())),
        }
    }
    Ok(bytes)
}

/// What an end proves on a new connection that it has this key.
pub fn proof(key: &Key) -> Result<Proof, MeasureError> {
    Ok(Proof {
        key: key.clone(),
        random: bytes()?,
    })
}
