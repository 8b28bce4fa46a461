//! Ring sizes, channels and interrupt coalescing of an interface, through the `ethtool` family of
//! generic netlink.
//!
//! Settings are text, `rx=512 tx=512`, with the names of `ethtool -G`, `ethtool -L` and `ethtool
//! -C`. Message
//! and attribute numbers are from linux/ethtool_netlink.h.

use std::io;

use crate::snapshot::netlink::{ACKNOWLEDGE, ask_of, attributes, push_attribute};

/// `GENL_ID_CTRL`: controller that resolves family names.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// struct genlmsghdr: command, version, two bytes reserved.
const GENERIC_BYTES: usize = 4;
const VERSION: u8 = 1;

/// `ETHTOOL_A_…_HEADER` of all messages, and the interface name in it.
const HEADER: u16 = 1;
const HEADER_NAME: u16 = 2;
/// `NLA_F_NESTED`: required by this family.
const NESTED: u16 = 0x8000;

/// Encoding of a value.
#[derive(Clone, Copy)]
enum Shape {
    /// Unsigned 32-bit number.
    Number,
    /// One byte: 0 or 1.
    Switch,
}

/// Settings of one message type.
struct Table {
    get: u8,
    set: u8,
    /// Name, attribute and encoding of each setting.
    fields: &'static [(&'static str, u16, Shape)],
}

const RINGS: Table = Table {
    get: 15,
    set: 16,
    fields: &[("rx", 6, Shape::Number), ("tx", 9, Shape::Number)],
};

/// Channel kinds that a driver lacks are missing in its reply.
const CHANNELS: Table = Table {
    get: 17,
    set: 18,
    fields: &[
        ("rx", 6, Shape::Number),
        ("tx", 7, Shape::Number),
        ("combined", 9, Shape::Number),
    ],
};

const COALESCING: Table = Table {
    get: 19,
    set: 20,
    fields: &[
        ("rx-usecs", 2, Shape::Number),
        ("rx-frames", 3, Shape::Number),
        ("tx-usecs", 6, Shape::Number),
        ("tx-frames", 7, Shape::Number),
        ("adaptive-rx", 11, Shape::Switch),
        ("adaptive-tx", 12, Shape::Switch),
    ],
};

/// Reads the ring sizes of an interface of the calling thread's network namespace: `rx=256 tx=256`.
///
/// # Errors
/// `EOPNOTSUPP` where the driver does not report them, `ENODEV` without such an interface.
pub fn rings(interface: &str) -> io::Result<String> {
    RINGS.read(interface)
}

/// Sets the named ring sizes.
///
/// # Errors
/// As for reading; `EINVAL` above the driver limit, `InvalidInput` for a malformed text.
pub fn set_rings(interface: &str, text: &str) -> io::Result<()> {
    RINGS.write(interface, text)
}

/// Reads the number of queues in use, of the kinds that the driver has: `rx=2 tx=2`, `combined=4`.
///
/// # Errors
/// As for ring sizes.
pub fn channels(interface: &str) -> io::Result<String> {
    CHANNELS.read(interface)
}

/// Sets the named numbers of queues.
///
/// # Errors
/// As [`set_rings`]; `EINVAL` also when a queue to be removed has an AF_XDP socket.
pub fn set_channels(interface: &str, text: &str) -> io::Result<()> {
    CHANNELS.write(interface, text)
}

/// Reads the interrupt coalescing that the driver reports: `rx-usecs=50 adaptive-rx=off`.
///
/// # Errors
/// As for ring sizes.
pub fn coalescing(interface: &str) -> io::Result<String> {
    COALESCING.read(interface)
}

/// Sets the named coalescing parameters.
///
/// # Errors
/// As [`set_rings`].
pub fn set_coalescing(interface: &str, text: &str) -> io::Result<()> {
    COALESCING.write(interface, text)
}

impl Table {
    fn read(&self, interface: &str) -> io::Result<String> {
        let request = message(self.get, interface)?;
        let answer = ask_of(libc::NETLINK_GENERIC, family()?, 0, &request)?;
        let body = answer.first().map_or(&[][..], |(_, body)| body.as_slice());
        Ok(self.text(body))
    }

    fn write(&self, interface: &str, text: &str) -> io::Result<()> {
        let mut request = message(self.set, interface)?;
        self.push(&mut request, text)?;
        ask_of(libc::NETLINK_GENERIC, family()?, ACKNOWLEDGE, &request).map(drop)
    }

    fn text(&self, body: &[u8]) -> String {
        let body = body.get(GENERIC_BYTES..).unwrap_or_default();
        let told = attributes(body);
        let fields = self.fields.iter().filter_map(|(name, number, shape)| {
            let (_, value) = told.iter().find(|(kind, _)| kind == number)?;
            Some(match shape {
                Shape::Number => {
                    format!("{name}={}", u32::from_ne_bytes(*value.first_chunk()?))
                }
                Shape::Switch => {
                    format!("{name}={}", if *value.first()? == 0 { "off" } else { "on" })
                }
            })
        });
        fields.collect::<Vec<_>>().join(" ")
    }

    fn push(&self, request: &mut Vec<u8>, text: &str) -> io::Result<()> {
        let wrong = || {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("`{text}` is not a list of known settings such as `rx=512`"),
            )
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        if words.is_empty() {
            return Err(wrong());
        }
        for word in words {
            let (name, value) = word.split_once('=').ok_or_else(wrong)?;
            let field = self.fields.iter().find(|(known, _, _)| *known == name);
            let (_, number, shape) = field.ok_or_else(wrong)?;
            match (shape, value) {
                (Shape::Number, value) => {
                    let value: u32 = value.parse().map_err(|_| wrong())?;
                    push_attribute(request, *number, &value.to_ne_bytes());
                }
                (Shape::Switch, "on") => push_attribute(request, *number, &[1]),
                (Shape::Switch, "off") => push_attribute(request, *number, &[0]),
                (Shape::Switch, _) => return Err(wrong()),
            }
        }
        Ok(())
    }
}

/// Starts a message about an interface, without settings.
fn message(command: u8, interface: &str) -> io::Result<Vec<u8>> {
    if interface.is_empty() || interface.len() >= libc::IFNAMSIZ || interface.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    let mut message = vec![command, VERSION, 0, 0];
    let mut header = Vec::new();
    let mut name = interface.as_bytes().to_vec();
    name.push(0);
    push_attribute(&mut header, HEADER_NAME, &name);
    push_attribute(&mut message, HEADER | NESTED, &header);
    Ok(message)
}

/// Returns the id of the family, which the kernel assigns at boot.
fn family() -> io::Result<u16> {
    let mut request = vec![GET_FAMILY, VERSION, 0, 0];
    push_attribute(&mut request, FAMILY_NAME, b"ethtool\0");
    let answer = ask_of(libc::NETLINK_GENERIC, CONTROL, 0, &request)?;
    let body = answer
        .first()
        .and_then(|(_, body)| body.get(GENERIC_BYTES..));
    let id = attributes(body.unwrap_or_default())
        .into_iter()
        .find(|(kind, _)| *kind == FAMILY_ID)
        .and_then(|(_, value)| Some(u16::from_ne_bytes(*value.first_chunk()?)));
    id.ok_or_else(|| io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of four bytes, each as hexadecimal digits in memory order.
    fn words(bytes: &[u8]) -> Vec<String> {
        assert!(bytes.len().is_multiple_of(4), "{bytes:?}");
        let words = bytes.chunks_exact(4);
        words
            .map(|word| word.iter().map(|byte| format!("{byte:02x}")).collect())
            .collect()
    }

    /// Messages of `ethtool -G eth0 rx 512 tx 1024` and `ethtool -C eth0 rx-usecs 50 adaptive-rx
    /// off`, written by hand from linux/ethtool_netlink.h: genlmsghdr, nested header with the name,
    /// one attribute each.
    #[cfg(target_endian = "little")]
    #[test]
    fn messages_are_those_of_the_kernel() {
        let header = ["10000180", "09000200", "65746830", "00000000"];
        let mut rings = message(RINGS.set, "eth0").unwrap();
        RINGS.push(&mut rings, "rx=512 tx=1024").unwrap();
        let sizes = ["08000600", "00020000", "08000900", "00040000"];
        assert_eq!(
            words(&rings),
            [&["10010000"][..], &header, &sizes].concat(),
            "ETHTOOL_MSG_RINGS_SET"
        );
        let mut channels = message(CHANNELS.set, "eth0").unwrap();
        CHANNELS
            .push(&mut channels, "rx=2 tx=1 combined=4")
            .unwrap();
        let counts = [
            "08000600", "02000000", "08000700", "01000000", "08000900", "04000000",
        ];
        assert_eq!(
            words(&channels),
            [&["12010000"][..], &header, &counts].concat(),
            "ETHTOOL_MSG_CHANNELS_SET"
        );
        let mut moments = message(COALESCING.set, "eth0").unwrap();
        (COALESCING.push(&mut moments, "rx-usecs=50 adaptive-rx=off")).unwrap();
        let times = ["08000200", "32000000", "05000b00", "00000000"];
        assert_eq!(
            words(&moments),
            [&["14010000"][..], &header, &times].concat(),
            "ETHTOOL_MSG_COALESCE_SET"
        );
        assert_eq!(message(RINGS.get, "eth0").unwrap()[0], 15);
        assert_eq!(message(CHANNELS.get, "eth0").unwrap()[0], 17);
        assert_eq!(message(COALESCING.get, "eth0").unwrap()[0], 19);
    }

    #[test]
    fn answers_are_read_as_they_are_written() {
        for (table, text) in [
            (&RINGS, "rx=512 tx=1024"),
            (&RINGS, "tx=64"),
            (&CHANNELS, "rx=0 tx=0 combined=8"),
            (
                &COALESCING,
                "rx-usecs=50 rx-frames=8 tx-usecs=0 tx-frames=0 adaptive-rx=on adaptive-tx=off",
            ),
        ] {
            let mut body = message(table.set, "eth0").unwrap();
            table.push(&mut body, text).unwrap();
            assert_eq!(table.text(&body), text);
        }
        assert_eq!(RINGS.text(&[]), "");
    }

    #[test]
    fn what_sets_nothing_is_refused_before_the_kernel_hears_of_it() {
        for text in ["", "rx", "rx=many", "speed=1", "rx=-1"] {
            let mut body = Vec::new();
            assert!(RINGS.push(&mut body, text).is_err(), "{text}");
        }
        assert!(COALESCING.push(&mut Vec::new(), "adaptive-rx=1").is_err());
        assert!(message(RINGS.get, "a-name-much-too-long").is_err());
    }

    #[test]
    fn the_kernel_understands_the_question() {
        let error = match rings("lo") {
            Ok(text) => panic!("loopback has rings: {text}"),
            Err(error) => error,
        };
        let code = error.raw_os_error();
        if code == Some(libc::ENOENT) || code == Some(libc::EPROTONOSUPPORT) {
            println!("skipped: no ethtool family here");
            return;
        }
        assert_eq!(code, Some(libc::EOPNOTSUPP), "{error}");
        let error = rings("none-such0").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{error}");
    }
}
