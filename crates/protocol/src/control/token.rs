//! Secret that ties a data flow to its control connection.

use std::fmt;

use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// Bytes of a [`FlowToken`].
pub const TOKEN_BYTES: usize = 16;

/// 16 random bytes that the server announces on the control connection and the client repeats when
/// it opens a data flow.
///
/// They protect against off-path attackers: only a reader of the control connection can place a
/// flow into a test or make the server send UDP to an address. They do not protect against an
/// attacker on the path, where they are visible in clear text. A token is used for one flow of one
/// run and must come from the system's random number generator. The comparison is not
/// constant-time; over a network its timing reveals nothing useful about 16 random bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowToken(pub [u8; TOKEN_BYTES]);

impl fmt::Debug for FlowToken {
    /// Shows only the first two bytes: enough to distinguish tokens in a log without revealing
    /// them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}

impl Serialize for FlowToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for FlowToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TokenBytes;
        impl<'de> Visitor<'de> for TokenBytes {
            type Value = FlowToken;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{TOKEN_BYTES} bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<FlowToken, E> {
                let bytes = bytes
                    .try_into()
                    .map_err(|_| E::invalid_length(bytes.len(), &self))?;
                Ok(FlowToken(bytes))
            }

            // Formats without a byte type (JSON in tests and logs) encode them as numbers.
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<FlowToken, A::Error> {
                let mut bytes = [0; TOKEN_BYTES];
                for (position, byte) in bytes.iter_mut().enumerate() {
                    *byte = seq
                        .next_element()?
                        .ok_or_else(|| de::Error::invalid_length(position, &self))?;
                }
                match seq.next_element::<u8>()? {
                    None => Ok(FlowToken(bytes)),
                    Some(_) => Err(de::Error::invalid_length(TOKEN_BYTES + 1, &self)),
                }
            }
        }
        deserializer.deserialize_bytes(TokenBytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_hides_the_token() {
        let token = FlowToken(*b"0123456789abcdef");
        assert_eq!(format!("{token:?}"), "Token(3031..)");
    }

    #[test]
    fn only_sixteen_bytes_are_a_token() {
        for length in 0..40 {
            let encoded = rmp_serde::to_vec(&vec![7u8; length]).unwrap();
            assert_eq!(
                rmp_serde::from_slice::<FlowToken>(&encoded).is_ok(),
                length == TOKEN_BYTES,
                "{length}"
            );
            let mut binary = vec![0xc4, length as u8];
            binary.resize(2 + length, 7);
            assert_eq!(
                rmp_serde::from_slice::<FlowToken>(&binary).is_ok(),
                length == TOKEN_BYTES,
                "{length}"
            );
        }
    }
}
