//! Flow rules of a device (ntuple filters, `ethtool -N`), through `SIOCETHTOOL`.
//!
//! `struct ethtool_rxnfc` of linux/ethtool.h as 32-bit words: command, flow type, 64 bits of data,
//! a rule, a count, and that many rule locations. A rule is its flow type, 72 bytes of values, 72
//! bytes of masks, 64 bits of a queue, and its location.

use std::io;
use std::os::fd::BorrowedFd;

use super::ethtool_features::ethtool_ioctl;
use super::rss_table::{RXNFC_WORDS as WORDS, rxnfc_data};

/// `ETHTOOL_GRXCLSRLCNT`, `_GRXCLSRULE`, `_GRXCLSRLALL`, `_SRXCLSRLDEL` and `_SRXCLSRLINS`.
const ETHTOOL_GRXCLSRLCNT: u32 = 0x2e;
const ETHTOOL_GRXCLSRULE: u32 = 0x2f;
const ETHTOOL_GRXCLSRLALL: u32 = 0x30;
const ETHTOOL_SRXCLSRLDEL: u32 = 0x31;
const ETHTOOL_SRXCLSRLINS: u32 = 0x32;

const FLOW_TYPE_WORD: usize = 4;
const MASKS_WORD: usize = 23;
const MASKS_END_WORD: usize = 41;
/// Word of the queue: 64 bits, which 32-bit x86 aligns to 4 bytes and all other architectures to 8.
const QUEUE_WORD: usize = if align_of::<u64>() == 4 { 41 } else { 42 };
const LOCATION_WORD: usize = QUEUE_WORD + 2;
const RULE_COUNT_WORD: usize = (LOCATION_WORD + 1).next_multiple_of(align_of::<u64>() / 4);
const LOCATIONS_WORD: usize = RULE_COUNT_WORD + 1;

/// `RX_CLS_LOC_SPECIAL`: the driver chooses the location for `RX_CLS_LOC_ANY`.
const RX_CLS_LOC_SPECIAL: u32 = 0x8000_0000;
const RX_CLS_LOC_ANY: u32 = 0xffff_ffff;
/// Larger rule tables are rejected as invalid.
const MAX_RULES: u32 = 65_536;

/// Transport protocol over one version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowProtocol {
    /// TCP over IPv4.
    Tcp4,
    /// UDP over IPv4.
    Udp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv6.
    Udp6,
}

/// Rule that assigns packets to a destination port to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRule {
    pub protocol: FlowProtocol,
    /// Destination port.
    pub port: u16,
    pub queue: u32,
}

impl FlowRule {
    /// `TCP_V4_FLOW` and the like.
    fn flow_type(self) -> u32 {
        match self.protocol {
            FlowProtocol::Tcp4 => 0x01,
            FlowProtocol::Udp4 => 0x02,
            FlowProtocol::Tcp6 => 0x05,
            FlowProtocol::Udp6 => 0x06,
        }
    }

    /// Returns the word, counted from the start of the values, whose second half is the destination
    /// port: `struct ethtool_tcpip4_spec` and `_tcpip6_spec`.
    fn destination_port_word(self) -> usize {
        match self.protocol {
            FlowProtocol::Tcp4 | FlowProtocol::Udp4 => 2,
            FlowProtocol::Tcp6 | FlowProtocol::Udp6 => 8,
        }
    }

    fn encode(self, words: &mut [u32]) {
        words[FLOW_TYPE_WORD] = self.flow_type();
        words[FLOW_TYPE_WORD + 1 + self.destination_port_word()] = port_bits(self.port);
        words[MASKS_WORD + self.destination_port_word()] = port_bits(u16::MAX);
        let queue = u64::from(self.queue).to_ne_bytes();
        for (word, bytes) in words[QUEUE_WORD..].iter_mut().zip(queue.chunks_exact(4)) {
            *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
    }

    /// Returns whether a rule read from the kernel equals this one; unmasked bits are ignored.
    fn matches(self, words: &[u32]) -> bool {
        let mut expected = [0; WORDS];
        self.encode(&mut expected);
        let port = FLOW_TYPE_WORD + 1 + self.destination_port_word();
        let mask = port_bits(u16::MAX);
        words[FLOW_TYPE_WORD] & !FLOW_EXT == expected[FLOW_TYPE_WORD]
            && words[port] & mask == expected[port]
            && words[MASKS_WORD..MASKS_END_WORD] == expected[MASKS_WORD..MASKS_END_WORD]
            && words[QUEUE_WORD..LOCATION_WORD] == expected[QUEUE_WORD..LOCATION_WORD]
    }
}

/// `FLOW_EXT`: extension words are valid. ixgbe sets it for every rule, so the masks of these words
/// decide.
const FLOW_EXT: u32 = 0x8000_0000;

/// Packs 16 bits in network order after 16 zero bits.
fn port_bits(bits: u16) -> u32 {
    let [high, low] = bits.to_be_bytes();
    u32::from_ne_bytes([0, 0, high, low])
}

/// Returns whether a device has this rule, in the network namespace of the socket.
///
/// # Errors
/// `EOPNOTSUPP` without support for rules, `ENODEV` without such an interface.
pub fn has_rule(socket: BorrowedFd<'_>, interface: &str, rule: FlowRule) -> io::Result<bool> {
    let location = find_location(rule, |words| ethtool_ioctl(socket, interface, words))?;
    Ok(location.is_some())
}

/// Adds a rule.
///
/// # Errors
/// As [`has_rule`]; `EINVAL` for a queue that is not in use, `EPERM`, `ENOSPC` when the table is
/// full.
pub fn add_rule(socket: BorrowedFd<'_>, interface: &str, rule: FlowRule) -> io::Result<()> {
    insert(rule, |words| ethtool_ioctl(socket, interface, words))
}

/// Removes the rule if it exists.
///
/// # Errors
/// As [`has_rule`], and `EPERM`.
pub fn remove_rule(socket: BorrowedFd<'_>, interface: &str, rule: FlowRule) -> io::Result<()> {
    remove(rule, |words| ethtool_ioctl(socket, interface, words))
}

/// Rules of a device.
struct RuleTable {
    locations: Vec<u32>,
    /// Number of locations.
    size: u32,
    /// True if the driver chooses locations.
    driver_chooses: bool,
}

/// Reads the table. Each call passes at least [`RXNFC_WORDS`](super::rss_table::RXNFC_WORDS)
/// words, and after the count as many location words as it states.
fn read_table(ioctl: &mut impl FnMut(&mut [u32]) -> io::Result<()>) -> io::Result<RuleTable> {
    let mut words = vec![0; WORDS];
    words[0] = ETHTOOL_GRXCLSRLCNT;
    ioctl(&mut words)?;
    let count = words[RULE_COUNT_WORD];
    if count > MAX_RULES {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let driver_chooses = rxnfc_data(&words) & RX_CLS_LOC_SPECIAL != 0;
    let mut words = vec![0; WORDS.max(LOCATIONS_WORD + count as usize)];
    (words[0], words[RULE_COUNT_WORD]) = (ETHTOOL_GRXCLSRLALL, count);
    ioctl(&mut words)?;
    let reported = words[RULE_COUNT_WORD].min(count) as usize;
    Ok(RuleTable {
        locations: words[LOCATIONS_WORD..LOCATIONS_WORD + reported].to_vec(),
        size: rxnfc_data(&words) & !RX_CLS_LOC_SPECIAL,
        driver_chooses,
    })
}

fn find_location(
    rule: FlowRule,
    mut ioctl: impl FnMut(&mut [u32]) -> io::Result<()>,
) -> io::Result<Option<u32>> {
    for location in read_table(&mut ioctl)?.locations {
        let mut words = [0; WORDS];
        (words[0], words[LOCATION_WORD]) = (ETHTOOL_GRXCLSRULE, location);
        // A rule that was removed meanwhile is skipped.
        if ioctl(&mut words).is_ok() && rule.matches(&words) {
            return Ok(Some(location));
        }
    }
    Ok(None)
}

fn insert(rule: FlowRule, mut ioctl: impl FnMut(&mut [u32]) -> io::Result<()>) -> io::Result<()> {
    let table = read_table(&mut ioctl)?;
    let location = match table.driver_chooses {
        true => Some(RX_CLS_LOC_ANY),
        // The last free location: rules of other programs, which come first, have precedence.
        false => (0..table.size)
            .rev()
            .find(|location| !table.locations.contains(location)),
    };
    let mut words = [0; WORDS];
    rule.encode(&mut words);
    words[0] = ETHTOOL_SRXCLSRLINS;
    words[LOCATION_WORD] = location.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSPC))?;
    ioctl(&mut words)
}

fn remove(rule: FlowRule, mut ioctl: impl FnMut(&mut [u32]) -> io::Result<()>) -> io::Result<()> {
    let Some(location) = find_location(rule, &mut ioctl)? else {
        return Ok(());
    };
    let mut words = [0; WORDS];
    (words[0], words[LOCATION_WORD]) = (ETHTOOL_SRXCLSRLDEL, location);
    ioctl(&mut words)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::fd::AsFd;

    use super::*;

    const UDP: FlowRule = FlowRule {
        protocol: FlowProtocol::Udp4,
        port: 0x1389,
        queue: 3,
    };

    /// Simulated device with eight locations; keeps each rule as it was given.
    #[derive(Default)]
    struct SimulatedDevice {
        rules: BTreeMap<u32, Vec<u32>>,
        driver_chooses: bool,
    }

    impl SimulatedDevice {
        fn ioctl(&mut self, words: &mut [u32]) -> io::Result<()> {
            assert!(words.len() >= WORDS);
            let error = |number| Err(io::Error::from_raw_os_error(number));
            let low = if cfg!(target_endian = "little") { 2 } else { 3 };
            match words[0] {
                0x2e => {
                    words[RULE_COUNT_WORD] = self.rules.len() as u32;
                    words[low] = 8 | if self.driver_chooses {
                        RX_CLS_LOC_SPECIAL
                    } else {
                        0
                    };
                }
                0x30 => {
                    assert_eq!(words[RULE_COUNT_WORD] as usize, self.rules.len());
                    words[low] = 8;
                    for (to, location) in words[LOCATIONS_WORD..].iter_mut().zip(self.rules.keys())
                    {
                        *to = *location;
                    }
                }
                0x2f => match self.rules.get(&words[LOCATION_WORD]) {
                    Some(rule) => {
                        words[FLOW_TYPE_WORD..LOCATION_WORD].copy_from_slice(rule);
                        // As the ixgbe driver does.
                        words[FLOW_TYPE_WORD] |= if self.driver_chooses { 0 } else { FLOW_EXT };
                    }
                    None => return error(libc::EINVAL),
                },
                0x31 => match self.rules.remove(&words[LOCATION_WORD]) {
                    Some(_) => {}
                    None => return error(libc::ENOENT),
                },
                0x32 => {
                    let location = match (words[LOCATION_WORD], self.driver_chooses) {
                        (RX_CLS_LOC_ANY, true) => 5,
                        (location @ 0..8, false) => location,
                        _ => return error(libc::EINVAL),
                    };
                    self.rules
                        .insert(location, words[FLOW_TYPE_WORD..LOCATION_WORD].to_vec());
                }
                _ => return error(libc::EOPNOTSUPP),
            }
            Ok(())
        }
    }

    /// Bytes of `ethtool -N eth0 flow-type udp4 dst-port 5001 action 3` on a 64-bit machine.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn a_rule_is_laid_out_as_the_kernel_has_it() {
        let bytes = |rule: FlowRule| {
            let mut words = [0; WORDS];
            rule.encode(&mut words);
            words
                .iter()
                .flat_map(|word| word.to_ne_bytes())
                .collect::<Vec<u8>>()
        };
        let set = |rule| {
            let bytes = bytes(rule).into_iter().enumerate();
            bytes.filter(|(_, byte)| *byte != 0).collect::<Vec<_>>()
        };
        let (flow, queue) = match cfg!(target_endian = "little") {
            true => (16, 168),
            false => (19, 175),
        };
        let expected = [
            (flow, 2),
            (30, 0x13),
            (31, 0x89),
            (102, 0xff),
            (103, 0xff),
            (queue, 3),
        ];
        assert_eq!(set(UDP), expected);
        let v6 = FlowRule {
            protocol: FlowProtocol::Tcp6,
            ..UDP
        };
        let expected = [
            (flow, 5),
            (54, 0x13),
            (55, 0x89),
            (126, 0xff),
            (127, 0xff),
            (queue, 3),
        ];
        assert_eq!(set(v6), expected);
        assert_eq!(
            (LOCATION_WORD * 4, RULE_COUNT_WORD * 4, LOCATIONS_WORD * 4),
            (176, 184, 188)
        );
    }

    #[test]
    fn a_rule_is_added_and_removed_and_other_rules_stay() {
        for driver_chooses in [false, true] {
            let mut device = SimulatedDevice {
                driver_chooses,
                ..SimulatedDevice::default()
            };
            let mut other_rule = vec![0; LOCATION_WORD - FLOW_TYPE_WORD];
            other_rule[0] = 2;
            device.rules.insert(7, other_rule.clone());
            assert_eq!(
                find_location(UDP, |words| device.ioctl(words)).unwrap(),
                None
            );
            insert(UDP, |words| device.ioctl(words)).unwrap();
            let location = if driver_chooses { 5 } else { 6 };
            assert_eq!(
                find_location(UDP, |words| device.ioctl(words)).unwrap(),
                Some(location)
            );
            for rule in [
                FlowRule { queue: 2, ..UDP },
                FlowRule { port: 1, ..UDP },
                FlowRule {
                    protocol: FlowProtocol::Tcp4,
                    ..UDP
                },
            ] {
                assert_eq!(
                    find_location(rule, |words| device.ioctl(words)).unwrap(),
                    None
                );
                remove(rule, |words| device.ioctl(words)).unwrap();
            }
            // A narrower rule, which also matches the source address.
            let mut narrower_rule = device.rules[&location].clone();
            narrower_rule[MASKS_WORD - FLOW_TYPE_WORD] = u32::MAX;
            device.rules.insert(0, narrower_rule.clone());
            remove(UDP, |words| device.ioctl(words)).unwrap();
            let remaining: Vec<_> = device.rules.into_values().collect();
            assert_eq!(remaining, [narrower_rule, other_rule]);
        }
    }

    #[test]
    fn full_and_invalid_tables_are_rejected() {
        let mut device = SimulatedDevice::default();
        for location in 0..8 {
            device
                .rules
                .insert(location, vec![0; LOCATION_WORD - FLOW_TYPE_WORD]);
        }
        let error = insert(UDP, |words| device.ioctl(words)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        let error = find_location(UDP, |words| {
            words[RULE_COUNT_WORD] = u32::MAX;
            Ok(())
        });
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::Unsupported);
    }

    #[test]
    fn loopback_has_no_rules() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for (name, number) in [("lo", libc::EOPNOTSUPP), ("no-such0", libc::ENODEV)] {
            let error = has_rule(socket.as_fd(), name, UDP).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(number), "{name}: {error}");
        }
    }
}
