//! Ring sizes, channels and interrupt coalescing of an interface, through the `ethtool` family of
//! generic netlink.
//!
//! Settings are text, `rx=512 tx=512`, with the names of `ethtool -G`, `ethtool -L` and `ethtool
//! -C`. Message
//! and attribute numbers are from linux/ethtool_netlink.h.

use std::io;

use crate::netlink::{NLM_F_ACK, push_attribute, request_netlink, split_attributes};

/// `GENL_ID_CTRL`: controller that resolves family names.
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// struct genlmsghdr: command, version, two bytes reserved.
const GENLMSG_HEADER_BYTES: usize = 4;
const GENL_VERSION: u8 = 1;

/// `ETHTOOL_A_…_HEADER` of all messages, and the interface name in it.
const ETHTOOL_A_HEADER: u16 = 1;
const ETHTOOL_A_HEADER_DEV_NAME: u16 = 2;
/// `NLA_F_NESTED`: required by this family.
const NLA_F_NESTED: u16 = 0x8000;

/// Encoding of a value.
#[derive(Clone, Copy)]
enum ValueEncoding {
    /// Unsigned 32-bit number.
    U32,
    /// Byte, 0 or 1.
    Bool,
}

/// Settings of one message type.
struct SettingsTable {
    get_command: u8,
    set_command: u8,
    /// Name, attribute and encoding of each setting.
    fields: &'static [(&'static str, u16, ValueEncoding)],
}

const RINGS: SettingsTable = SettingsTable {
    get_command: 15,
    set_command: 16,
    fields: &[("rx", 6, ValueEncoding::U32), ("tx", 9, ValueEncoding::U32)],
};

/// Channel kinds that a driver lacks are missing in its reply.
const CHANNELS: SettingsTable = SettingsTable {
    get_command: 17,
    set_command: 18,
    fields: &[
        ("rx", 6, ValueEncoding::U32),
        ("tx", 7, ValueEncoding::U32),
        ("combined", 9, ValueEncoding::U32),
    ],
};

const COALESCING: SettingsTable = SettingsTable {
    get_command: 19,
    set_command: 20,
    fields: &[
        ("rx-usecs", 2, ValueEncoding::U32),
        ("rx-frames", 3, ValueEncoding::U32),
        ("tx-usecs", 6, ValueEncoding::U32),
        ("tx-frames", 7, ValueEncoding::U32),
        ("adaptive-rx", 11, ValueEncoding::Bool),
        ("adaptive-tx", 12, ValueEncoding::Bool),
    ],
};

/// Reads the ring sizes of an interface of the calling thread's network namespace: `rx=256 tx=256`.
///
/// # Errors
/// `EOPNOTSUPP` where the driver does not report them, `ENODEV` without such an interface.
pub fn read_rings(interface: &str) -> io::Result<String> {
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
pub fn read_channels(interface: &str) -> io::Result<String> {
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
pub fn read_coalescing(interface: &str) -> io::Result<String> {
    COALESCING.read(interface)
}

/// Sets the named coalescing parameters.
///
/// # Errors
/// As [`set_rings`].
pub fn set_coalescing(interface: &str, text: &str) -> io::Result<()> {
    COALESCING.write(interface, text)
}

impl SettingsTable {
    fn read(&self, interface: &str) -> io::Result<String> {
        let request = new_message(self.get_command, interface)?;
        let reply = request_netlink(libc::NETLINK_GENERIC, read_family_id()?, 0, &request)?;
        let body = reply.first().map_or(&[][..], |(_, body)| body.as_slice());
        Ok(self.format_reply(body))
    }

    fn write(&self, interface: &str, text: &str) -> io::Result<()> {
        let mut request = new_message(self.set_command, interface)?;
        self.push_settings(&mut request, text)?;
        request_netlink(
            libc::NETLINK_GENERIC,
            read_family_id()?,
            NLM_F_ACK,
            &request,
        )
        .map(drop)
    }

    fn format_reply(&self, body: &[u8]) -> String {
        let body = body.get(GENLMSG_HEADER_BYTES..).unwrap_or_default();
        let reported = split_attributes(body);
        let fields = self.fields.iter().filter_map(|(name, number, encoding)| {
            let (_, value) = reported.iter().find(|(kind, _)| kind == number)?;
            Some(match encoding {
                ValueEncoding::U32 => {
                    format!("{name}={}", u32::from_ne_bytes(*value.first_chunk()?))
                }
                ValueEncoding::Bool => {
                    format!("{name}={}", if *value.first()? == 0 { "off" } else { "on" })
                }
            })
        });
        fields.collect::<Vec<_>>().join(" ")
    }

    fn push_settings(&self, request: &mut Vec<u8>, text: &str) -> io::Result<()> {
        let invalid_text = || {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("`{text}` is not a list of known settings such as `rx=512`"),
            )
        };
        let pairs: Vec<&str> = text.split_whitespace().collect();
        if pairs.is_empty() {
            return Err(invalid_text());
        }
        for pair in pairs {
            let (name, value) = pair.split_once('=').ok_or_else(invalid_text)?;
            let field = self.fields.iter().find(|(setting, _, _)| *setting == name);
            let (_, number, encoding) = field.ok_or_else(invalid_text)?;
            match (encoding, value) {
                (ValueEncoding::U32, value) => {
                    let value: u32 = value.parse().map_err(|_| invalid_text())?;
                    push_attribute(request, *number, &value.to_ne_bytes());
                }
                (ValueEncoding::Bool, "on") => push_attribute(request, *number, &[1]),
                (ValueEncoding::Bool, "off") => push_attribute(request, *number, &[0]),
                (ValueEncoding::Bool, _) => return Err(invalid_text()),
            }
        }
        Ok(())
    }
}

/// Starts a message about an interface, without settings.
fn new_message(command: u8, interface: &str) -> io::Result<Vec<u8>> {
    if interface.is_empty() || interface.len() >= libc::IFNAMSIZ || interface.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    let mut message = vec![command, GENL_VERSION, 0, 0];
    let mut header = Vec::new();
    let mut name = interface.as_bytes().to_vec();
    name.push(0);
    push_attribute(&mut header, ETHTOOL_A_HEADER_DEV_NAME, &name);
    push_attribute(&mut message, ETHTOOL_A_HEADER | NLA_F_NESTED, &header);
    Ok(message)
}

/// Returns the id of the family, which the kernel assigns at boot.
fn read_family_id() -> io::Result<u16> {
    let mut request = vec![CTRL_CMD_GETFAMILY, GENL_VERSION, 0, 0];
    push_attribute(&mut request, CTRL_ATTR_FAMILY_NAME, b"ethtool\0");
    let reply = request_netlink(libc::NETLINK_GENERIC, GENL_ID_CTRL, 0, &request)?;
    let body = reply
        .first()
        .and_then(|(_, body)| body.get(GENLMSG_HEADER_BYTES..));
    let id = split_attributes(body.unwrap_or_default())
        .into_iter()
        .find(|(kind, _)| *kind == CTRL_ATTR_FAMILY_ID)
        .and_then(|(_, value)| Some(u16::from_ne_bytes(*value.first_chunk()?)));
    id.ok_or_else(|| io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of four bytes, each as hexadecimal digits in memory order.
    fn hex_words(bytes: &[u8]) -> Vec<String> {
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
        let mut ring_message = new_message(RINGS.set_command, "eth0").unwrap();
        RINGS
            .push_settings(&mut ring_message, "rx=512 tx=1024")
            .unwrap();
        let sizes = ["08000600", "00020000", "08000900", "00040000"];
        assert_eq!(
            hex_words(&ring_message),
            [&["10010000"][..], &header, &sizes].concat(),
            "ETHTOOL_MSG_RINGS_SET"
        );
        let mut channel_message = new_message(CHANNELS.set_command, "eth0").unwrap();
        CHANNELS
            .push_settings(&mut channel_message, "rx=2 tx=1 combined=4")
            .unwrap();
        let counts = [
            "08000600", "02000000", "08000700", "01000000", "08000900", "04000000",
        ];
        assert_eq!(
            hex_words(&channel_message),
            [&["12010000"][..], &header, &counts].concat(),
            "ETHTOOL_MSG_CHANNELS_SET"
        );
        let mut coalescing_message = new_message(COALESCING.set_command, "eth0").unwrap();
        (COALESCING.push_settings(&mut coalescing_message, "rx-usecs=50 adaptive-rx=off")).unwrap();
        let times = ["08000200", "32000000", "05000b00", "00000000"];
        assert_eq!(
            hex_words(&coalescing_message),
            [&["14010000"][..], &header, &times].concat(),
            "ETHTOOL_MSG_COALESCE_SET"
        );
        assert_eq!(new_message(RINGS.get_command, "eth0").unwrap()[0], 15);
        assert_eq!(new_message(CHANNELS.get_command, "eth0").unwrap()[0], 17);
        assert_eq!(new_message(COALESCING.get_command, "eth0").unwrap()[0], 19);
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
            let mut body = new_message(table.set_command, "eth0").unwrap();
            table.push_settings(&mut body, text).unwrap();
            assert_eq!(table.format_reply(&body), text);
        }
        assert_eq!(RINGS.format_reply(&[]), "");
    }

    #[test]
    fn malformed_settings_are_rejected_before_the_system_call() {
        for text in ["", "rx", "rx=many", "speed=1", "rx=-1"] {
            let mut body = Vec::new();
            assert!(RINGS.push_settings(&mut body, text).is_err(), "{text}");
        }
        assert!(
            COALESCING
                .push_settings(&mut Vec::new(), "adaptive-rx=1")
                .is_err()
        );
        assert!(new_message(RINGS.get_command, "a-name-much-too-long").is_err());
    }

    #[test]
    fn the_kernel_accepts_the_request() {
        let error = match read_rings("lo") {
            Ok(text) => panic!("loopback has rings: {text}"),
            Err(error) => error,
        };
        let code = error.raw_os_error();
        if code == Some(libc::ENOENT) || code == Some(libc::EPROTONOSUPPORT) {
            println!("skipped: no ethtool family here");
            return;
        }
        assert_eq!(code, Some(libc::EOPNOTSUPP), "{error}");
        let error = read_rings("none-such0").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{error}");
    }
}
