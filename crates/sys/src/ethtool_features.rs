//! Offload settings of an interface, read and written through `SIOCETHTOOL`.
//!
//! The network namespace is that of the socket, independent of the calling thread. Two families of
//! calls exist. The six classic switches ([`OffloadSwitch`]) stand for groups of features:
//! `ethtool -K eth0 tso off` turns off every kind of TCP segmentation. Newer features have names of
//! the kernel ([`read_features`]).

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Most bytes of an interface name with its terminating zero.
const NAME_BYTES: usize = libc::IFNAMSIZ;
/// `SIOCETHTOOL` of linux/sockios.h.
const SIOCETHTOOL: u32 = 0x8946;
/// `ETH_SS_FEATURES` of linux/ethtool.h: the set of feature names.
const ETH_SS_FEATURES: u32 = 4;
/// `ETH_GSTRING_LEN`: bytes of one name.
pub(super) const ETH_GSTRING_LEN: usize = 32;
/// Limit of the number of features, far above that of any kernel.
const MAX_FEATURES: usize = 4096;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;

/// Classic switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OffloadSwitch {
    /// Device verifies receive checksums.
    RxChecksum,
    /// Device computes transmit checksums.
    TxChecksum,
    /// Frames may consist of several memory segments.
    ScatterGather,
    /// Device segments TCP.
    Tso,
    /// Kernel segments just before the driver.
    Gso,
    /// Kernel merges received segments.
    Gro,
}

impl OffloadSwitch {
    /// `ETHTOOL_G…` and `ETHTOOL_S…` of linux/ethtool.h; both take `struct ethtool_value`.
    fn commands(self) -> (u32, u32) {
        match self {
            Self::RxChecksum => (0x14, 0x15),
            Self::TxChecksum => (0x16, 0x17),
            Self::ScatterGather => (0x18, 0x19),
            Self::Tso => (0x1e, 0x1f),
            Self::Gso => (0x23, 0x24),
            Self::Gro => (0x2b, 0x2c),
        }
    }
}

/// Passes `words` to the kernel as the structure that its first word (the command) selects.
///
/// Private to this directory: sound only for a buffer at least as long as the kernel expects from
/// the command and the counts inside. Each caller states why that holds.
pub(super) fn ethtool_ioctl(
    socket: BorrowedFd<'_>,
    interface: &str,
    words: &mut [u32],
) -> io::Result<()> {
    /// `struct ifreq` as far as this call reads it, padded beyond its size on any architecture.
    #[repr(C)]
    struct InterfaceRequest {
        name: [u8; NAME_BYTES],
        data: *mut c_void,
        rest: [u8; 32],
    }
    let bytes = interface.as_bytes();
    if bytes.len() >= NAME_BYTES || bytes.contains(&0) {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    let mut name = [0; NAME_BYTES];
    name[..bytes.len()].copy_from_slice(bytes);
    let mut request = InterfaceRequest {
        name,
        data: words.as_mut_ptr().cast(),
        rest: [0; 32],
    };
    // SAFETY: `request` is at least as large as `struct ifreq`, its name ends in a zero, and
    // `data` points to `words`, exclusively borrowed and long enough as each caller assures.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Reads a classic switch.
///
/// # Errors
/// `ENODEV` for an unknown interface, `EOPNOTSUPP` where the driver lacks it.
pub fn read_switch(
    socket: BorrowedFd<'_>,
    interface: &str,
    switch: OffloadSwitch,
) -> io::Result<bool> {
    // `struct ethtool_value` is two words: command and data.
    let mut value = [switch.commands().0, 0];
    ethtool_ioctl(socket, interface, &mut value)?;
    Ok(value[1] != 0)
}

/// Sets a classic switch. The kernel adapts dependent features (no TSO without transmit checksums),
/// and some drivers ignore the request silently: read it back.
///
/// # Errors
/// As [`read_switch`], and `EPERM` without `CAP_NET_ADMIN`.
pub fn set_switch(
    socket: BorrowedFd<'_>,
    interface: &str,
    switch: OffloadSwitch,
    on: bool,
) -> io::Result<()> {
    let mut value = [switch.commands().1, u32::from(on)];
    ethtool_ioctl(socket, interface, &mut value)
}

/// Feature with the kernel's own name, such as `tx-udp-segmentation`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFeature {
    /// Name; its position in the list is its number.
    pub name: String,
    pub is_active: bool,
    /// True if it can be changed; otherwise `ethtool -k` prints `[fixed]`.
    pub is_changeable: bool,
}

/// Returns the number of feature names that the kernel has; `Unsupported` if it reports no sensible
/// one.
fn read_feature_count(socket: BorrowedFd<'_>, interface: &str) -> io::Result<usize> {
    // `struct ethtool_sset_info`: command, reserved, a 64-bit mask, one word per set bit: one.
    let mut info = [ETHTOOL_GSSET_INFO, 0, 0, 0, 0];
    let mask = (1_u64 << ETH_SS_FEATURES).to_ne_bytes();
    for (word, bytes) in info[2..4].iter_mut().zip(mask.chunks_exact(4)) {
        *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    ethtool_ioctl(socket, interface, &mut info)?;
    match info[4] as usize {
        0 | MAX_FEATURES.. => Err(io::ErrorKind::Unsupported.into()),
        count => Ok(count),
    }
}

/// Reads every feature and its state.
///
/// # Errors
/// As [`read_switch`].
pub fn read_features(socket: BorrowedFd<'_>, interface: &str) -> io::Result<Vec<NamedFeature>> {
    const NAME_WORDS: usize = ETH_GSTRING_LEN / 4;
    let count = read_feature_count(socket, interface)?;
    // `struct ethtool_gstrings`: command, set, count, names. The kernel writes as many names as it
    // has for this set: the count it just returned, which is constant while it runs.
    let mut names = vec![0; 3 + count * NAME_WORDS];
    names[0] = ETHTOOL_GSTRINGS;
    names[1] = ETH_SS_FEATURES;
    names[2] = count as u32;
    ethtool_ioctl(socket, interface, &mut names)?;
    // `struct ethtool_gfeatures`: command, blocks, then four words per block of 32. The kernel
    // writes at most as many blocks as requested.
    let blocks = count.div_ceil(32);
    let mut states = vec![0; 2 + blocks * 4];
    states[0] = ETHTOOL_GFEATURES;
    states[1] = blocks as u32;
    ethtool_ioctl(socket, interface, &mut states)?;
    Ok((0..count)
        .map(|number| {
            let text: Vec<u8> = names[3 + number * NAME_WORDS..][..NAME_WORDS]
                .iter()
                .flat_map(|word| word.to_ne_bytes())
                .take_while(|&byte| byte != 0)
                .collect();
            let block = &states[2 + number / 32 * 4..][..4];
            let bit = 1 << (number % 32);
            NamedFeature {
                name: String::from_utf8_lossy(&text).into_owned(),
                // available, requested, active, never changed
                is_active: block[2] & bit != 0,
                is_changeable: block[0] & bit != 0 && block[3] & bit == 0,
            }
        })
        .collect())
}

/// Sets a feature by name.
///
/// # Errors
/// `ENOENT` for a name the kernel does not have; otherwise as [`set_switch`].
pub fn set_feature(
    socket: BorrowedFd<'_>,
    interface: &str,
    name: &str,
    on: bool,
) -> io::Result<()> {
    let all = read_features(socket, interface)?;
    let number = all
        .iter()
        .position(|feature| feature.name == name)
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
    // `struct ethtool_sfeatures`: command, blocks, then (valid, requested) per block. The kernel
    // requires its exact number of blocks.
    let blocks = all.len().div_ceil(32);
    let mut change = vec![0; 2 + blocks * 2];
    change[0] = ETHTOOL_SFEATURES;
    change[1] = blocks as u32;
    let bit = 1 << (number % 32);
    change[2 + number / 32 * 2] = bit;
    change[3 + number / 32 * 2] = if on { bit } else { 0 };
    ethtool_ioctl(socket, interface, &mut change)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn socket() -> std::net::UdpSocket {
        std::net::UdpSocket::bind("127.0.0.1:0").unwrap()
    }

    #[test]
    fn loopback_features_are_listed() {
        let socket = socket();
        let all = match read_features(socket.as_fd(), "lo") {
            Ok(all) => all,
            Err(error) => {
                println!("skipped: no ethtool calls here: {error}");
                return;
            }
        };
        assert!(all.len() > 30, "{all:?}");
        assert!(
            all.iter()
                .any(|feature| feature.name == "tx-tcp-segmentation")
        );
        let gso = read_switch(socket.as_fd(), "lo", OffloadSwitch::Gso).unwrap();
        let by_name = all.iter().find(|f| f.name == "tx-generic-segmentation");
        assert_eq!(by_name.map(|feature| feature.is_active), Some(gso));
    }

    #[test]
    fn invalid_interface_names_are_rejected() {
        let socket = socket();
        for name in ["a-name-much-too-long", "nul\0", "nosuch0"] {
            let error = read_switch(socket.as_fd(), name, OffloadSwitch::Tso).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{name:?}");
        }
    }
}
