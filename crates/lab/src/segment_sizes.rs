//! Largest segments that GSO builds and GRO merges at an existing interface.

use crate::error::LabError;
use crate::netlink::NetlinkSocket;

/// Returns the largest segments in bytes: `gso_max_size`, `gro_max_size`, `gso_ipv4_max_size` and
/// `gro_ipv4_max_size` of `ip link`, read in the calling thread's network namespace.
///
/// # Errors
/// [`LabError`] without such an interface, or where the kernel (before 6.3) does not report all
/// four.
pub fn segment_sizes(interface: &str) -> Result<[u32; 4], LabError> {
    let link = NetlinkSocket::open()?.link(interface)?;
    let sizes = (link.gso, link.gro, link.gso_ipv4, link.gro_ipv4);
    let (Some(gso), Some(gro), Some(gso_ipv4), Some(gro_ipv4)) = sizes else {
        return Err(LabError::system(
            format!("read the segment sizes of {interface}"),
            std::io::Error::from(std::io::ErrorKind::Unsupported),
        ));
    };
    Ok([gso, gro, gso_ipv4, gro_ipv4])
}

/// Sets the largest segments, in the order of [`segment_sizes`].
///
/// # Errors
/// [`LabError`] when the kernel rejects a size.
pub fn set_segment_sizes(interface: &str, sizes: [u32; 4]) -> Result<(), LabError> {
    let mut netlink = NetlinkSocket::open()?;
    let index = netlink.link(interface)?.index;
    netlink.set_segment_sizes(index, sizes)
}
