//! Read-only requests to a network driver (`ethtool -i`, `-k`, `-g`, `-l`, `-T` and the link
//! speed).
//!
//! They use a socket, so they apply to the network namespace of the calling thread; none needs a
//! privilege. Layouts are from linux/ethtool.h, kept as arrays of 32-bit words: these are aligned,
//! and every bit pattern is valid.

use std::io;
use std::os::fd::AsFd;

use linerate_record::facts::{CoalescingSettings, EeeState};
use socket2::{Domain, Socket, Type};

use crate::ethtool_features::{ETH_GSTRING_LEN, NamedFeature, ethtool_ioctl, read_features};

const ETHTOOL_GSET: u32 = 0x01;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCOALESCE: u32 = 0x0e;
const ETHTOOL_GRINGPARAM: u32 = 0x10;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_GET_TS_INFO: u32 = 0x41;
const ETHTOOL_GEEE: u32 = 0x44;
const ETHTOOL_GLINKSETTINGS: u32 = 0x4c;

/// Driver of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverInfo {
    pub name: String,
    pub version: Option<String>,
    pub firmware: Option<String>,
    /// Address of the device on its bus (`0000:03:00.0`).
    pub bus_address: Option<String>,
}

/// Speed and duplex of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkSettings {
    /// Speed, megabit (10^6 bit) per second.
    pub speed_mbps: Option<u32>,
    pub full_duplex: Option<bool>,
    /// Fastest of the supported modes, megabit per second.
    pub fastest_mbps: Option<u32>,
}

/// Descriptors per queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingParameters {
    pub rx: u32,
    /// Largest supported number of receive descriptors.
    pub rx_max: u32,
    pub tx: u32,
    /// Largest supported number of transmit descriptors.
    pub tx_max: u32,
}

/// Number of queues in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Receive queues, combined ones included.
    pub rx: u32,
    /// Transmit queues, combined ones included.
    pub tx: u32,
}

/// Timestamping capabilities of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimestampingSupport {
    /// Kernel timestamps of sent frames, in the driver.
    pub software_transmit: bool,
    /// Kernel timestamps of received frames.
    pub software_receive: bool,
    /// Hardware timestamps from a device clock.
    pub hardware: bool,
    /// Number of the device clock (`/dev/ptpN`).
    pub ptp_clock: Option<u32>,
    /// Hardware timestamps of all sent frames.
    pub hardware_transmit: bool,
    /// Hardware timestamps of all received frames, not of PTP packets only.
    pub hardware_receive: bool,
}

/// Request channel for one interface of the calling thread's network namespace.
#[derive(Debug)]
pub struct EthtoolSocket {
    socket: Socket,
    interface: String,
}

impl EthtoolSocket {
    /// Prepares requests about `interface`; a missing interface shows as an error of the first
    /// request.
    ///
    /// # Errors
    /// `InvalidInput` for an invalid interface name; else errors of `socket(2)`.
    pub fn new(interface: &str) -> io::Result<Self> {
        // The kernel needs a terminating zero within IFNAMSIZ.
        if interface.is_empty() || interface.len() >= libc::IFNAMSIZ || interface.contains('\0') {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self {
            socket: Socket::new(Domain::UNIX, Type::DGRAM, None)?,
            interface: interface.to_owned(),
        })
    }

    /// Reads the driver information.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for loopback and similar interfaces, `ENODEV` without such an interface.
    pub fn read_driver(&self) -> io::Result<DriverInfo> {
        // struct ethtool_drvinfo: 196 bytes.
        let mut words = [0_u32; 49];
        words[0] = ETHTOOL_GDRVINFO;
        // SAFETY: the command writes one ethtool_drvinfo, which is as large as the array.
        unsafe { self.ioctl(&mut words)? };
        let bytes = words_to_bytes(&words);
        let text = |start: usize| parse_text(&bytes[start..start + ETH_GSTRING_LEN]);
        Ok(DriverInfo {
            name: text(4).unwrap_or_default(),
            version: text(36),
            firmware: text(68),
            bus_address: text(100),
        })
    }

    /// Reads speed and duplex; both absent while the link is down or without a physical link.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the driver reports no speed.
    pub fn read_link(&self) -> io::Result<LinkSettings> {
        self.read_link_settings()
            .or_else(|_| self.read_legacy_settings())
    }

    fn read_link_settings(&self) -> io::Result<LinkSettings> {
        // struct ethtool_link_settings (12 words) and three masks, each of up to i8::MAX words.
        const HEADER: usize = 12;
        let mut words = [0_u32; HEADER + 3 * i8::MAX as usize];
        words[0] = ETHTOOL_GLINKSETTINGS;
        // The first reply returns the mask length as a negative number (handshake of this request).
        // SAFETY: with a length of 0 the command writes the header alone.
        unsafe { self.ioctl(&mut words)? };
        let length = words_to_bytes(&words)[15] as i8;
        if length >= 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        words = [0; HEADER + 3 * i8::MAX as usize];
        words[0] = ETHTOOL_GLINKSETTINGS;
        let mut fourth = words[3].to_ne_bytes();
        fourth[3] = length.unsigned_abs();
        words[3] = u32::from_ne_bytes(fourth);
        // SAFETY: the command writes the header and three masks of `length` words; the array has
        // room for the largest that the field can say.
        unsafe { self.ioctl(&mut words)? };
        let bytes = words_to_bytes(&words);
        let supported = &words[HEADER..HEADER + usize::from(length.unsigned_abs())];
        Ok(LinkSettings {
            fastest_mbps: fastest_mode(supported),
            ..parse_speed(words[1], bytes[8])
        })
    }

    fn read_legacy_settings(&self) -> io::Result<LinkSettings> {
        // struct ethtool_cmd: 44 bytes.
        let mut words = [0_u32; 11];
        words[0] = ETHTOOL_GSET;
        // SAFETY: the command writes one ethtool_cmd, which is as large as the array.
        unsafe { self.ioctl(&mut words)? };
        let bytes = words_to_bytes(&words);
        let low = u16::from_ne_bytes([bytes[12], bytes[13]]);
        let high = u16::from_ne_bytes([bytes[28], bytes[29]]);
        let speed = match (high, low) {
            // Kernels without the high half report "unknown" as 16 ones.
            (0, u16::MAX) => u32::MAX,
            _ => u32::from(high) << 16 | u32::from(low),
        };
        Ok(parse_speed(speed, bytes[14]))
    }

    /// Reads the state of every offload, in the kernel's order.
    ///
    /// # Errors
    /// As [`read_features`].
    pub fn read_features(&self) -> io::Result<Vec<NamedFeature>> {
        read_features(self.socket.as_fd(), &self.interface)
    }

    /// Reads the number of descriptors per queue.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the driver has no rings.
    pub fn read_rings(&self) -> io::Result<RingParameters> {
        // struct ethtool_ringparam: nine words.
        let mut words = [0_u32; 9];
        words[0] = ETHTOOL_GRINGPARAM;
        // SAFETY: the command writes one ethtool_ringparam, which is as large as the array.
        unsafe { self.ioctl(&mut words)? };
        Ok(RingParameters {
            rx_max: words[1],
            tx_max: words[4],
            rx: words[5],
            tx: words[8],
        })
    }

    /// Reads the interrupt coalescing.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the driver has no such setting.
    pub fn read_coalescing(&self) -> io::Result<CoalescingSettings> {
        // struct ethtool_coalesce: 23 words.
        let mut words = [0_u32; 23];
        words[0] = ETHTOOL_GCOALESCE;
        // SAFETY: the command writes one ethtool_coalesce, which is as large as the array.
        unsafe { self.ioctl(&mut words)? };
        Ok(parse_coalescing(&words))
    }

    /// Reads the state of Energy-Efficient Ethernet.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the driver does not support it.
    pub fn read_eee(&self) -> io::Result<EeeState> {
        // struct ethtool_eee: ten words.
        let mut words = [0_u32; 10];
        words[0] = ETHTOOL_GEEE;
        // SAFETY: the command writes one ethtool_eee, which is as large as the array.
        unsafe { self.ioctl(&mut words)? };
        Ok(parse_eee(&words))
    }

    /// Reads the number of queues in use.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the driver has a single queue per direction.
    pub fn read_channels(&self) -> io::Result<QueueCounts> {
        // struct ethtool_channels: nine words.
        let mut words = [0_u32; 9];
        words[0] = ETHTOOL_GCHANNELS;
        // SAFETY: the command writes one ethtool_channels, which is as large as the array.
        unsafe { self.ioctl(&mut words)? };
        let combined = words[8];
        Ok(QueueCounts {
            rx: words[5].saturating_add(combined),
            tx: words[6].saturating_add(combined),
        })
    }

    /// Reads the timestamping capabilities.
    ///
    /// # Errors
    /// Errors of the ioctl.
    pub fn read_timestamping(&self) -> io::Result<TimestampingSupport> {
        // struct ethtool_ts_info: 44 bytes.
        let mut words = [0_u32; 11];
        words[0] = ETHTOOL_GET_TS_INFO;
        // SAFETY: the command writes one ethtool_ts_info, which is as large as the array.
        unsafe { self.ioctl(&mut words)? };
        Ok(parse_timestamping(&words))
    }

    /// Sends one command; the kernel overwrites `words` with its reply.
    ///
    /// # Safety
    /// `words` must hold the complete reply to the command in its first word: the kernel does not
    /// check its size.
    unsafe fn ioctl(&self, words: &mut [u32]) -> io::Result<()> {
        ethtool_ioctl(self.socket.as_fd(), &self.interface, words)
    }
}

/// Parses struct ethtool_ts_info: command, timestamping flags, number of the clock (-1: none),
/// transmit types, three reserved words, receive filters, three reserved words.
fn parse_timestamping(words: &[u32; 11]) -> TimestampingSupport {
    let has_flags = |flags: libc::c_uint| words[1] & flags == flags;
    let hardware = has_flags(libc::SOF_TIMESTAMPING_RAW_HARDWARE);
    TimestampingSupport {
        software_transmit: has_flags(
            libc::SOF_TIMESTAMPING_TX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE,
        ),
        software_receive: has_flags(
            libc::SOF_TIMESTAMPING_RX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE,
        ),
        hardware,
        ptp_clock: (i32::try_from(words[2]).ok())
            .and_then(|number| u32::try_from(number).ok())
            .filter(|_| hardware),
        hardware_transmit: hardware
            && has_flags(libc::SOF_TIMESTAMPING_TX_HARDWARE)
            && words[3] & (1 << libc::HWTSTAMP_TX_ON) != 0,
        hardware_receive: hardware
            && has_flags(libc::SOF_TIMESTAMPING_RX_HARDWARE)
            && words[7] & (1 << libc::HWTSTAMP_FILTER_ALL) != 0,
    }
}

/// Parses struct ethtool_coalesce: command, receive time and frames, the same during an interrupt,
/// the four transmit values, statistics period, adaptive flags.
fn parse_coalescing(words: &[u32; 23]) -> CoalescingSettings {
    CoalescingSettings {
        rx_us: words[1],
        rx_frames: words[2],
        tx_us: words[5],
        tx_frames: words[6],
        adaptive_rx: words[10] != 0,
    }
}

/// Parses struct ethtool_eee: command, three masks of modes, active, enabled, transmit LPI enabled,
/// transmit LPI timer.
fn parse_eee(words: &[u32; 10]) -> EeeState {
    EeeState {
        active: words[4] != 0,
        enabled: words[5] != 0,
        tx_timer_us: words[7],
    }
}

fn words_to_bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Parses a C string that may fill its field; `None` when empty or "N/A".
fn parse_text(field: &[u8]) -> Option<String> {
    let end = field
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(field.len());
    let text = String::from_utf8_lossy(&field[..end]).trim().to_owned();
    (!text.is_empty() && text != "N/A").then_some(text)
}

/// Interprets speed and duplex: `SPEED_UNKNOWN` is all ones, `DUPLEX_UNKNOWN` is 255; some drivers
/// report speed 0 for a link that is down.
fn parse_speed(speed: u32, duplex: u8) -> LinkSettings {
    LinkSettings {
        speed_mbps: (speed != 0 && speed != u32::MAX).then_some(speed),
        full_duplex: match duplex {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        },
        fastest_mbps: None,
    }
}

/// Speeds of `ETHTOOL_LINK_MODE_*_BIT` (linux/ethtool.h) up to 100 Gb/s, by bit number.
const LINK_MODE_SPEEDS: &[(std::ops::RangeInclusive<usize>, u32)] = &[
    (0..=1, 10),
    (2..=3, 100),
    (4..=5, 1_000),
    (12..=12, 10_000),
    (15..=15, 2_500),
    (17..=17, 1_000),
    (18..=20, 10_000),
    (21..=22, 20_000),
    (23..=26, 40_000),
    (27..=30, 56_000),
    (31..=33, 25_000),
    (34..=35, 50_000),
    (36..=39, 100_000),
    (40..=40, 50_000),
    (41..=41, 1_000),
    (42..=46, 10_000),
    (47..=47, 2_500),
    (48..=48, 5_000),
];

/// Returns the fastest mode in a mask of link modes.
fn fastest_mode(mask: &[u32]) -> Option<u32> {
    let has = |bit: usize| {
        mask.get(bit / 32)
            .is_some_and(|word| word & (1 << (bit % 32)) != 0)
    };
    let speeds = LINK_MODE_SPEEDS
        .iter()
        .filter(|(bits, _)| bits.clone().any(has))
        .map(|&(_, speed)| speed);
    speeds.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_speeds_and_duplexes_are_absent() {
        let table = [
            ((1000, 1), (Some(1000), Some(true))),
            ((10, 0), (Some(10), Some(false))),
            ((400_000, 1), (Some(400_000), Some(true))),
            ((u32::MAX, 255), (None, None)),
            ((0, 255), (None, None)),
        ];
        for ((speed, duplex), (speed_mbps, full_duplex)) in table {
            assert_eq!(
                parse_speed(speed, duplex),
                LinkSettings {
                    speed_mbps,
                    full_duplex,
                    fastest_mbps: None,
                },
                "speed {speed}, duplex {duplex}"
            );
        }
    }

    #[test]
    fn timestamping_support_is_parsed() {
        const SOFTWARE: u32 = 0x1a;
        const HARDWARE: u32 = 0x45;
        let parse = |stamps, clock: i32, kinds, filters| {
            let words = [0x41, stamps, clock as u32, kinds, 0, 0, 0, filters, 0, 0, 0];
            let parsed = parse_timestamping(&words);
            assert_eq!(parsed.hardware, stamps & 0x40 != 0);
            (
                parsed.ptp_clock,
                parsed.hardware_transmit,
                parsed.hardware_receive,
            )
        };
        for (stamps, clock, kinds, filters, expected) in [
            (SOFTWARE, -1, 0, 0, (None, false, false)),
            (SOFTWARE | HARDWARE, 0, 0b11, 0b11, (Some(0), true, true)),
            // Sent packets, and received PTP packets (filter 12) only.
            (
                SOFTWARE | HARDWARE,
                3,
                0b11,
                1 << 12 | 1,
                (Some(3), true, false),
            ),
            // Timestamps without a readable clock.
            (SOFTWARE | HARDWARE, -1, 0b10, 0b10, (None, true, true)),
            // A clock without timestamps.
            (SOFTWARE, 2, 0, 0, (None, false, false)),
        ] {
            assert_eq!(
                parse(stamps, clock, kinds, filters),
                expected,
                "{stamps:#x} {clock}"
            );
        }
    }

    #[test]
    fn link_modes_coalescing_and_eee_are_parsed() {
        for (mask, expected) in [
            (&[][..], None),
            (&[0b11][..], Some(10)),
            (&[0b10_1000][..], Some(1_000)),
            (&[0, 1 << 15][..], Some(2_500)),
            (&[1 << 5, 1 << 4][..], Some(100_000)),
            (&[1 << 6][..], None),
        ] {
            assert_eq!(fastest_mode(mask), expected, "{mask:?}");
        }
        let mut words = [0_u32; 23];
        for (index, word) in words.iter_mut().enumerate() {
            *word = index as u32;
        }
        let parsed = parse_coalescing(&words);
        assert_eq!((parsed.rx_us, parsed.rx_frames), (1, 2));
        assert_eq!((parsed.tx_us, parsed.tx_frames), (5, 6));
        assert!(parsed.adaptive_rx);
        let parsed = parse_eee(&[0x44, 0, 0, 0, 1, 1, 1, 17, 0, 0]);
        assert!(parsed.active && parsed.enabled);
        assert_eq!(parsed.tx_timer_us, 17);
    }

    #[test]
    fn texts_end_at_zero_or_with_their_field() {
        let table: [(&[u8], Option<&str>); 5] = [
            (b"veth\0\0rest", Some("veth")),
            (b"full", Some("full")),
            (b"\0\0\0", None),
            (b"N/A\0", None),
            (b" 1.2 \0", Some("1.2")),
        ];
        for (field, expected) in table {
            assert_eq!(parse_text(field).as_deref(), expected, "{field:?}");
        }
    }

    #[test]
    fn loopback_reports_its_offloads() {
        let features = EthtoolSocket::new("lo").unwrap().read_features().unwrap();
        let gro = features.iter().find(|feature| feature.name == "rx-gro");
        assert!(gro.is_some(), "{features:?}");
        assert!(
            features
                .iter()
                .any(|feature| feature.name == "tx-tcp-segmentation")
        );
        assert!(
            features
                .iter()
                .any(|feature| !feature.is_changeable && feature.is_active),
            "loopback's checksums are fixed"
        );
    }

    #[test]
    fn missing_interfaces_are_an_error() {
        assert_eq!(
            EthtoolSocket::new("none-such0")
                .unwrap()
                .read_driver()
                .unwrap_err()
                .raw_os_error(),
            Some(libc::ENODEV)
        );
        for name in ["", "a-name-of-16-byt", "with\0zero"] {
            assert_eq!(
                EthtoolSocket::new(name).unwrap_err().kind(),
                io::ErrorKind::InvalidInput,
                "{name:?}"
            );
        }
        assert!(EthtoolSocket::new("lo").unwrap().read_link().is_err());
    }
}
