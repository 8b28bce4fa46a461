//! Cookie that ties data flows to their control connection.

use std::fmt;

/// Bytes of a cookie on the wire: 36 characters and a NUL.
pub const COOKIE_BYTES: usize = 37;

pub(super) const CHARACTERS: usize = COOKIE_BYTES - 1;

/// Alphabet of cookies since 3.2; earlier ones were a host name, a time and random digits.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Identifier of a test: a connection that opens with it is one of its flows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cookie([u8; CHARACTERS]);

impl Cookie {
    /// Creates a cookie in upstream's format. The bytes must be random: a guessed cookie allows
    /// placing a flow into the test.
    #[must_use]
    pub fn new(random: [u8; 36]) -> Self {
        Self(random.map(|byte| ALPHABET[usize::from(byte % 32)]))
    }

    /// Reads the first [`COOKIE_BYTES`] of a connection; `None` if they are no cookie.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (cookie, rest) = bytes.split_first_chunk::<CHARACTERS>()?;
        (rest == [0] && cookie.iter().all(|&byte| is_cookie_byte(byte))).then_some(Self(*cookie))
    }

    /// Returns the bytes that open a connection.
    #[must_use]
    pub fn to_wire(self) -> [u8; COOKIE_BYTES] {
        let mut wire = [0; COOKIE_BYTES];
        wire[..CHARACTERS].copy_from_slice(&self.0);
        wire
    }
}

impl fmt::Debug for Cookie {
    /// Shows only the first characters: enough to distinguish cookies in a log without revealing
    /// them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Cookie({}..)",
            self.0[..4]
                .iter()
                .map(|&b| char::from(b))
                .collect::<String>()
        )
    }
}

pub(super) fn is_cookie_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn cookies_of_all_versions_are_known() {
        for (bytes, version) in [
            (&b"ydm5fwt4x4y5xyepdgnbnbd2a26uucdaknbs\0"[..], "3.12"),
            (b"laptop.1400000000.123456.3c5e21f9aab\0", "3.0"),
        ] {
            assert!(Cookie::read(bytes).is_some(), "{version}");
        }
    }

    #[test]
    fn other_bytes_are_no_cookie() {
        for bytes in [
            &b"HELO nuttcp v6.1.2\n"[..],
            b"GET / HTTP/1.1\r\n",
            b"012345678901234567890123456789012345678901",
            b"ydm5fwt4x4y5xyepdgnbnbd2a26uucdaknbs\n",
            b"\0",
            b"ydm\0",
        ] {
            assert_eq!(Cookie::read(bytes), None);
        }
    }

    #[test]
    fn debug_output_hides_the_cookie() {
        assert_eq!(format!("{:?}", Cookie::new([0; 36])), "Cookie(aaaa..)");
    }

    proptest! {
        #[test]
        fn cookies_read_as_written(random in prop::collection::vec(any::<u8>(), 36)) {
            let cookie = Cookie::new(random.try_into().unwrap());
            prop_assert_eq!(Cookie::read(&cookie.to_wire()), Some(cookie));
        }
    }
}
