//! Flow rules of a device (ntuple filters, `ethtool -N`), through `SIOCETHTOOL`.
//!
//! `struct ethtool_rxnfc` of linux/ethtool.h as 32-bit words: command, flow type, 64 bits of data,
//! a rule, a count, and that many rule locations. A rule is its flow type, 72 bytes of values, 72
//! bytes of masks, 64 bits of a queue, and its location.

use std::io;
use std::os::fd::BorrowedFd;

use super::ethtool_features::request;
use super::rss_table::{RXNFC_WORDS as WORDS, data_of};

/// `ETHTOOL_GRXCLSRLCNT`, `_GRXCLSRULE`, `_GRXCLSRLALL`, `_SRXCLSRLDEL` and `_SRXCLSRLINS`.
const COUNT: u32 = 0x2e;
const READ: u32 = 0x2f;
const LIST: u32 = 0x30;
const DELETE: u32 = 0x31;
const INSERT: u32 = 0x32;

const FLOW: usize = 4;
const MASKS: usize = 23;
const MASKS_END: usize = 41;
/// Word of the queue: 64 bits, which 32-bit x86 aligns to 4 bytes and all other architectures to 8.
const QUEUE: usize = if align_of::<u64>() == 4 { 41 } else { 42 };
const PLACE: usize = QUEUE + 2;
const RULES: usize = (PLACE + 1).next_multiple_of(align_of::<u64>() / 4);
const PLACES: usize = RULES + 1;

/// `RX_CLS_LOC_SPECIAL`: the driver chooses the location for `RX_CLS_LOC_ANY`.
const CHOOSES: u32 = 0x8000_0000;
const ANY_PLACE: u32 = 0xffff_ffff;
/// Larger rule tables are rejected as invalid.
const MOST_RULES: u32 = 65_536;

/// Transport protocol over one version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
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
    pub protocol: Protocol,
    /// Destination port.
    pub port: u16,
    pub queue: u32,
}

impl FlowRule {
    /// `TCP_V4_FLOW` and the like.
    fn flow(self) -> u32 {
        match self.protocol {
            Protocol::Tcp4 => 0x01,
            Protocol::Udp4 => 0x02,
            Protocol::Tcp6 => 0x05,
            Protocol::Udp6 => 0x06,
        }
    }

    /// Returns the word, counted from the start of the values, whose second half is the destination
    /// port: `struct ethtool_tcpip4_spec` and `_tcpip6_spec`.
    fn port_word(self) -> usize {
        match self.protocol {
            Protocol::Tcp4 | Protocol::Udp4 => 2,
            Protocol::Tcp6 | Protocol::Udp6 => 8,
        }
    }

    fn write(self, words: &mut [u32]) {
        words[FLOW] = self.flow();
        words[FLOW + 1 + self.port_word()] = second_half(self.port);
        words[MASKS + self.port_word()] = second_half(u16::MAX);
        let queue = u64::from(self.queue).to_ne_bytes();
        for (word, bytes) in words[QUEUE..].iter_mut().zip(queue.chunks_exact(4)) {
            *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
    }

    /// Returns whether a rule read from the kernel equals this one; unmasked bits are ignored.
    fn is_in(self, words: &[u32]) -> bool {
        let mut own = [0; WORDS];
        self.write(&mut own);
        let port = FLOW + 1 + self.port_word();
        let mask = second_half(u16::MAX);
        words[FLOW] & !EXTENDED == own[FLOW]
            && words[port] & mask == own[port]
            && words[MASKS..MASKS_END] == own[MASKS..MASKS_END]
            && words[QUEUE..PLACE] == own[QUEUE..PLACE]
    }
}

/// `FLOW_EXT`: extension words are valid. ixgbe sets it for every rule, so the masks of these words
/// decide.
const EXTENDED: u32 = 0x8000_0000;

/// Packs 16 bits in network order after 16 zero bits.
fn second_half(bits: u16) -> u32 {
    let [high, low] = bits.to_be_bytes();
    u32::from_ne_bytes([0, 0, high, low])
}

/// Returns whether a device has this rule, in the network namespace of the socket.
///
/// # Errors
/// `EOPNOTSUPP` without support for rules, `ENODEV` without such an interface.
pub fn has_rule(socket: BorrowedFd<'_>, interface: &str, rule: FlowRule) -> io::Result<bool> {
    let found = place_of(rule, |words| request(socket, interface, words))?;
    Ok(found.is_some())
}

/// Adds a rule.
///
/// # Errors
/// As [`has_rule`]; `EINVAL` for a queue that is not in use, `EPERM`, `ENOSPC` when the table is
/// full.
pub fn add_rule(socket: BorrowedFd<'_>, interface: &str, rule: FlowRule) -> io::Result<()> {
    insert(rule, |words| request(socket, interface, words))
}

/// Removes the rule if it exists.
///
/// # Errors
/// As [`has_rule`], and `EPERM`.
pub fn remove_rule(socket: BorrowedFd<'_>, interface: &str, rule: FlowRule) -> io::Result<()> {
    remove(rule, |words| request(socket, interface, words))
}

/// Rules of a device.
struct Table {
    places: Vec<u32>,
    /// Number of locations.
    size: u32,
    /// True if the driver chooses locations.
    chooses: bool,
}

/// Reads the table. Each call passes at least [`RXNFC_WORDS`](super::indirection::RXNFC_WORDS)
/// words, and after the count as many location words as it states.
fn table(ask: &mut impl FnMut(&mut [u32]) -> io::Result<()>) -> io::Result<Table> {
    let mut words = vec![0; WORDS];
    words[0] = COUNT;
    ask(&mut words)?;
    let count = words[RULES];
    if count > MOST_RULES {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let chooses = data_of(&words) & CHOOSES != 0;
    let mut words = vec![0; WORDS.max(PLACES + count as usize)];
    (words[0], words[RULES]) = (LIST, count);
    ask(&mut words)?;
    let told = words[RULES].min(count) as usize;
    Ok(Table {
        places: words[PLACES..PLACES + told].to_vec(),
        size: data_of(&words) & !CHOOSES,
        chooses,
    })
}

fn place_of(
    rule: FlowRule,
    mut ask: impl FnMut(&mut [u32]) -> io::Result<()>,
) -> io::Result<Option<u32>> {
    for place in table(&mut ask)?.places {
        let mut words = [0; WORDS];
        (words[0], words[PLACE]) = (READ, place);
        // A rule that was removed meanwhile is skipped.
        if ask(&mut words).is_ok() && rule.is_in(&words) {
            return Ok(Some(place));
        }
    }
    Ok(None)
}

fn insert(rule: FlowRule, mut ask: impl FnMut(&mut [u32]) -> io::Result<()>) -> io::Result<()> {
    let table = table(&mut ask)?;
    let place = match table.chooses {
        true => Some(ANY_PLACE),
        // The last free location: rules of other programs, which come first, have precedence.
        false => (0..table.size)
            .rev()
            .find(|place| !table.places.contains(place)),
    };
    let mut words = [0; WORDS];
    rule.write(&mut words);
    words[0] = INSERT;
    words[PLACE] = place.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSPC))?;
    ask(&mut words)
}

fn remove(rule: FlowRule, mut ask: impl FnMut(&mut [u32]) -> io::Result<()>) -> io::Result<()> {
    let Some(place) = place_of(rule, &mut ask)? else {
        return Ok(());
    };
    let mut words = [0; WORDS];
    (words[0], words[PLACE]) = (DELETE, place);
    ask(&mut words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::os::fd::AsFd;

    const UDP: FlowRule = FlowRule {
        protocol: Protocol::Udp4,
        port: 0x1389,
        queue: 3,
    };

    /// Simulated device with eight locations; keeps each rule as it was given.
    #[derive(Default)]
    struct Device {
        rules: BTreeMap<u32, Vec<u32>>,
        chooses: bool,
    }

    impl Device {
        fn answer(&mut self, words: &mut [u32]) -> io::Result<()> {
            assert!(words.len() >= WORDS);
            let error = |number| Err(io::Error::from_raw_os_error(number));
            let low = if cfg!(target_endian = "little") { 2 } else { 3 };
            match words[0] {
                0x2e => {
                    words[RULES] = self.rules.len() as u32;
                    words[low] = 8 | if self.chooses { CHOOSES } else { 0 };
                }
                0x30 => {
                    assert_eq!(words[RULES] as usize, self.rules.len());
                    words[low] = 8;
                    for (to, place) in words[PLACES..].iter_mut().zip(self.rules.keys()) {
                        *to = *place;
                    }
                }
                0x2f => match self.rules.get(&words[PLACE]) {
                    Some(rule) => {
                        words[FLOW..PLACE].copy_from_slice(rule);
                        // As the ixgbe driver does.
                        words[FLOW] |= if self.chooses { 0 } else { EXTENDED };
                    }
                    None => return error(libc::EINVAL),
                },
                0x31 => match self.rules.remove(&words[PLACE]) {
                    Some(_) => {}
                    None => return error(libc::ENOENT),
                },
                0x32 => {
                    let place = match (words[PLACE], self.chooses) {
                        (ANY_PLACE, true) => 5,
                        (place @ 0..8, false) => place,
                        _ => return error(libc::EINVAL),
                    };
                    self.rules.insert(place, words[FLOW..PLACE].to_vec());
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
            rule.write(&mut words);
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
        let want = [
            (flow, 2),
            (30, 0x13),
            (31, 0x89),
            (102, 0xff),
            (103, 0xff),
            (queue, 3),
        ];
        assert_eq!(set(UDP), want);
        let v6 = FlowRule {
            protocol: Protocol::Tcp6,
            ..UDP
        };
        let want = [
            (flow, 5),
            (54, 0x13),
            (55, 0x89),
            (126, 0xff),
            (127, 0xff),
            (queue, 3),
        ];
        assert_eq!(set(v6), want);
        assert_eq!((PLACE * 4, RULES * 4, PLACES * 4), (176, 184, 188));
    }

    #[test]
    fn a_rule_comes_and_goes_and_those_of_others_stay() {
        for chooses in [false, true] {
            let mut device = Device {
                chooses,
                ..Device::default()
            };
            let mut theirs = vec![0; PLACE - FLOW];
            theirs[0] = 2;
            device.rules.insert(7, theirs.clone());
            assert_eq!(place_of(UDP, |words| device.answer(words)).unwrap(), None);
            insert(UDP, |words| device.answer(words)).unwrap();
            let place = if chooses { 5 } else { 6 };
            assert_eq!(
                place_of(UDP, |words| device.answer(words)).unwrap(),
                Some(place)
            );
            for other in [
                FlowRule { queue: 2, ..UDP },
                FlowRule { port: 1, ..UDP },
                FlowRule {
                    protocol: Protocol::Tcp4,
                    ..UDP
                },
            ] {
                assert_eq!(place_of(other, |words| device.answer(words)).unwrap(), None);
                remove(other, |words| device.answer(words)).unwrap();
            }
            // A narrower rule, which also matches the source address.
            let mut narrow = device.rules[&place].clone();
            narrow[MASKS - FLOW] = u32::MAX;
            device.rules.insert(0, narrow.clone());
            remove(UDP, |words| device.answer(words)).unwrap();
            let left: Vec<_> = device.rules.into_values().collect();
            assert_eq!(left, [narrow, theirs]);
        }
    }

    #[test]
    fn a_full_table_and_a_table_of_nonsense_are_refused() {
        let mut device = Device::default();
        for place in 0..8 {
            device.rules.insert(place, vec![0; PLACE - FLOW]);
        }
        let error = insert(UDP, |words| device.answer(words)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        let error = place_of(UDP, |words| {
            words[RULES] = u32::MAX;
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
