//! RSS indirection table of a device, through `SIOCETHTOOL`.

use std::io;
use std::os::fd::BorrowedFd;

use super::ethtool_features::request;

/// `ETHTOOL_GRXRINGS`, `ETHTOOL_GRXFHINDIR` and `ETHTOOL_SRXFHINDIR` of linux/ethtool.h.
const RINGS: u32 = 0x2d;
const READ: u32 = 0x38;
const WRITE: u32 = 0x39;
/// `struct ethtool_rxnfc` is 192 bytes; a newer kernel's may be longer.
pub(super) const RXNFC_WORDS: usize = 128;

/// Larger tables are rejected as invalid.
const MOST_ENTRIES: u32 = 65_536;

/// RSS indirection table: queues by remainder of a frame's hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Indirection {
    /// Queue for each remainder.
    pub entries: Vec<u32>,
    /// Number of receive queues in use; from the table where the device does not report it.
    pub queues: u32,
}

/// Reads the table, in the network namespace of the socket.
///
/// # Errors
/// `EOPNOTSUPP` where the device has no table, `ENODEV` without such an interface.
pub fn indirection(socket: BorrowedFd<'_>, interface: &str) -> io::Result<Indirection> {
    read(|words| request(socket, interface, words))
}

/// Sets the table; without entries, the driver's own, which then follows the number of queues.
///
/// # Errors
/// As [`indirection`]; `EINVAL` for an unused queue or another number of entries, `EPERM`.
pub fn set_indirection(socket: BorrowedFd<'_>, interface: &str, entries: &[u32]) -> io::Result<()> {
    write(entries, |words| request(socket, interface, words))
}

fn read(mut ask: impl FnMut(&mut [u32]) -> io::Result<()>) -> io::Result<Indirection> {
    // `struct ethtool_rxfh_indir`: command, number of entries, entries. With a number of zero the
    // kernel writes only the number (the two words exist); otherwise it writes as many entries as
    // announced.
    let mut size = [READ, 0];
    ask(&mut size)?;
    let count = size[1];
    if count == 0 || count > MOST_ENTRIES {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let mut table = vec![0; 2 + count as usize];
    (table[0], table[1]) = (READ, count);
    ask(&mut table)?;
    // `struct ethtool_rxnfc`: command, flow type, 64 bits of data, more.
    let mut rings = [0; RXNFC_WORDS];
    rings[0] = RINGS;
    let told = ask(&mut rings);
    let entries = table.split_off(2);
    // A device that does not report its queues has at least those that the table names. With fewer,
    // the driver's own table would look like a custom one and be fixed when written back.
    let named = entries
        .iter()
        .max()
        .map_or(0, |most| most.saturating_add(1));
    Ok(Indirection {
        queues: told.map_or(named, |()| data_of(&rings)),
        entries,
    })
}

/// Returns the 64 bits of data of an `ethtool_rxnfc` as a number, saturating.
pub(super) fn data_of(words: &[u32]) -> u32 {
    let (first, second) = (words[2].to_ne_bytes(), words[3].to_ne_bytes());
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first);
    bytes[4..].copy_from_slice(&second);
    u32::try_from(u64::from_ne_bytes(bytes)).unwrap_or(u32::MAX)
}

fn write(entries: &[u32], mut ask: impl FnMut(&mut [u32]) -> io::Result<()>) -> io::Result<()> {
    let count = u32::try_from(entries.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // The kernel reads as many words as the second one states; zero selects the driver's own table.
    let mut change = vec![WRITE, count];
    change.extend(entries);
    ask(&mut change)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    /// Simulated kernel with a device of four entries and two queues; logs each request, word by
    /// word.
    fn device(asked: &mut Vec<Vec<u32>>) -> impl FnMut(&mut [u32]) -> io::Result<()> {
        |words| {
            let length = if words[0] == RINGS { 4 } else { words.len() };
            asked.push(words[..length].to_vec());
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
        let mut asked = Vec::new();
        let found = read(device(&mut asked)).unwrap();
        let want = Indirection {
            entries: vec![0, 1, 0, 1],
            queues: 2,
        };
        assert_eq!(found, want);
        write(&[1, 1, 0, 1], device(&mut asked)).unwrap();
        write(&[], device(&mut asked)).unwrap();
        assert!(write(&[0, 1], device(&mut asked)).is_err());
        let want: [&[u32]; 6] = [
            &[0x38, 0],
            &[0x38, 4, 0, 0, 0, 0],
            &[0x2d, 0, 0, 0],
            &[0x39, 4, 1, 1, 0, 1],
            &[0x39, 0],
            &[0x39, 2, 0, 1],
        ];
        assert_eq!(asked, want);
    }

    #[test]
    fn a_device_that_does_not_tell_its_queues_has_those_of_its_table() {
        let mut asked = Vec::new();
        let mut device = device(&mut asked);
        let found = read(|words| match words[0] {
            RINGS => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
            _ => device(words),
        });
        assert_eq!(found.unwrap().queues, 2);
    }

    #[test]
    fn a_table_of_no_size_is_none() {
        for claimed in [0, u32::MAX] {
            let error = read(|words| {
                words[1] = claimed;
                Ok(())
            });
            let error = error.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{claimed}");
        }
    }

    #[test]
    fn loopback_spreads_nothing() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let error = indirection(socket.as_fd(), "lo").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP), "{error}");
        let error = set_indirection(socket.as_fd(), "no-such0", &[]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{error}");
    }
}
