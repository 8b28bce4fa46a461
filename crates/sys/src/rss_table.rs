//! RSS indirection table of a device, through `SIOCETHTOOL`.

use std::io;
use std::os::fd::BorrowedFd;

use super::ethtool_features::ethtool_ioctl;

/// `ETHTOOL_GRXRINGS`, `ETHTOOL_GRXFHINDIR` and `ETHTOOL_SRXFHINDIR` of linux/ethtool.h.
const ETHTOOL_GRXRINGS: u32 = 0x2d;
const ETHTOOL_GRXFHINDIR: u32 = 0x38;
const ETHTOOL_SRXFHINDIR: u32 = 0x39;
/// `struct ethtool_rxnfc` is 192 bytes; a newer kernel's may be longer.
pub(super) const RXNFC_WORDS: usize = 128;

/// Larger tables are rejected as invalid.
const MAX_ENTRIES: u32 = 65_536;

/// RSS indirection table: queues by remainder of a frame's hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RssTable {
    /// Queue for each remainder.
    pub entries: Vec<u32>,
    /// Number of receive queues in use; from the table where the device does not report it.
    pub queues: u32,
}

/// Reads the table, in the network namespace of the socket.
///
/// # Errors
/// `EOPNOTSUPP` where the device has no table, `ENODEV` without such an interface.
pub fn read_rss_table(socket: BorrowedFd<'_>, interface: &str) -> io::Result<RssTable> {
    read_with(|words| ethtool_ioctl(socket, interface, words))
}

/// Sets the table; without entries, the driver's own, which then follows the number of queues.
///
/// # Errors
/// As [`read_rss_table`]; `EINVAL` for an unused queue or another number of entries, `EPERM`.
pub fn set_rss_table(socket: BorrowedFd<'_>, interface: &str, entries: &[u32]) -> io::Result<()> {
    write_with(entries, |words| ethtool_ioctl(socket, interface, words))
}

fn read_with(mut ioctl: impl FnMut(&mut [u32]) -> io::Result<()>) -> io::Result<RssTable> {
    // `struct ethtool_rxfh_indir`: command, number of entries, entries. With a number of zero the
    // kernel writes only the number (the two words exist); otherwise it writes as many entries as
    // announced.
    let mut size = [ETHTOOL_GRXFHINDIR, 0];
    ioctl(&mut size)?;
    let count = size[1];
    if count == 0 || count > MAX_ENTRIES {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let mut table = vec![0; 2 + count as usize];
    (table[0], table[1]) = (ETHTOOL_GRXFHINDIR, count);
    ioctl(&mut table)?;
    // `struct ethtool_rxnfc`: command, flow type, 64 bits of data, more.
    let mut rings = [0; RXNFC_WORDS];
    rings[0] = ETHTOOL_GRXRINGS;
    let rings_result = ioctl(&mut rings);
    let entries = table.split_off(2);
    // A device that does not report its queues has at least those that the table names. With fewer,
    // the driver's own table would look like a custom one and be fixed when written back.
    let named_queues = entries
        .iter()
        .max()
        .map_or(0, |queue| queue.saturating_add(1));
    Ok(RssTable {
        queues: rings_result.map_or(named_queues, |()| rxnfc_data(&rings)),
        entries,
    })
}

/// Returns the 64 bits of data of an `ethtool_rxnfc` as a number, saturating.
pub(super) fn rxnfc_data(words: &[u32]) -> u32 {
    let (first, second) = (words[2].to_ne_bytes(), words[3].to_ne_bytes());
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first);
    bytes[4..].copy_from_slice(&second);
    u32::try_from(u64::from_ne_bytes(bytes)).unwrap_or(u32::MAX)
}

fn write_with(
    entries: &[u32],
    mut ioctl: impl FnMut(&mut [u32]) -> io::Result<()>,
) -> io::Result<()> {
    let count = u32::try_from(entries.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // The kernel reads as many words as the second one states; zero selects the driver's own table.
    let mut change = vec![ETHTOOL_SRXFHINDIR, count];
    change.extend(entries);
    ioctl(&mut change)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// Simulated kernel with a device of four entries and two queues; logs each request, word by
    /// word.
    fn simulated_device(requests: &mut Vec<Vec<u32>>) -> impl FnMut(&mut [u32]) -> io::Result<()> {
        |words| {
            let length = if words[0] == ETHTOOL_GRXRINGS {
                4
            } else {
                words.len()
            };
            requests.push(words[..length].to_vec());
            match (words[0], words[1]) {
                (0x38, 0) => words[1] = 4,
                (0x38, 4) => words[2..].copy_from_slice(&[0, 1, 0, 1]),
                (0x2d, 0) => words[2..4].copy_from_slice(&if cfg!(target_endian = "little") {
                    [2, 0]
                } else {
                    [0, 2]
                }),
                (0x39, 0 | 4) => {}
                _ => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
            }
            Ok(())
        }
    }

    #[test]
    fn requests_are_those_of_the_kernel() {
        let mut requests = Vec::new();
        let table = read_with(simulated_device(&mut requests)).unwrap();
        let expected = RssTable {
            entries: vec![0, 1, 0, 1],
            queues: 2,
        };
        assert_eq!(table, expected);
        write_with(&[1, 1, 0, 1], simulated_device(&mut requests)).unwrap();
        write_with(&[], simulated_device(&mut requests)).unwrap();
        assert!(write_with(&[0, 1], simulated_device(&mut requests)).is_err());
        let expected: [&[u32]; 6] = [
            &[0x38, 0],
            &[0x38, 4, 0, 0, 0, 0],
            &[0x2d, 0, 0, 0],
            &[0x39, 4, 1, 1, 0, 1],
            &[0x39, 0],
            &[0x39, 2, 0, 1],
        ];
        assert_eq!(requests, expected);
    }

    #[test]
    fn unreported_queues_are_taken_from_the_table() {
        let mut requests = Vec::new();
        let mut device = simulated_device(&mut requests);
        let table = read_with(|words| match words[0] {
            ETHTOOL_GRXRINGS => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
            _ => device(words),
        });
        assert_eq!(table.unwrap().queues, 2);
    }

    #[test]
    fn tables_of_invalid_size_are_rejected() {
        for claimed in [0, u32::MAX] {
            let error = read_with(|words| {
                words[1] = claimed;
                Ok(())
            });
            let error = error.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{claimed}");
        }
    }

    #[test]
    fn loopback_has_no_rss_table() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let error = read_rss_table(socket.as_fd(), "lo").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP), "{error}");
        let error = set_rss_table(socket.as_fd(), "no-such0", &[]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{error}");
    }
}
