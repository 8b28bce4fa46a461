//! How large the segments may be that GSO builds and GRO merges at an interface that is there already.

use crate::error::LabError;
use crate::netlink::Netlink;

/// Bytes at most: GSO, GRO, and the same for IPv4, as `gso_max_size`, `gro_max_size`, `gso_ipv4_max_size`
/// and `gro_ipv4_max_size` of `ip link`. Reads them in the calling thread's network namespace.
///
/// # Errors
/// [`LabError`] without such an interface, or where the kernel (before 6.3) does not tell all four.
pub fn segment_sizes(interface: &str) -> Result<[u32; 4], LabError> {
    let link = Netlink::open()?.link(interface)?;
    let known = (link.gso, link.gro, link.gso_ipv4, link.gro_ipv4);
    let (Some(gso), Some(gro), Some(gso_ipv4), Some(gro_ipv4)) = known else {
        return Err(LabError::system(
            format!("read the segment sizes of {interface}"),
            std::io::Error::from(std::io::ErrorKind::Unsupported),
        ));
    };
    Ok([gso, gro, gso_ipv4, gro_ipv4])
}

/// Sets them, in the order of [`segment_sizes`].
///
/// # Errors
/// What the kernel refuses.
pub fn set_segment_sizes(interface: &str, sizes: [u32; 4]) -> Result<(), LabError> {
    let mut netlink = Netlink::open()?;
    let index = netlink.link(interface)?.index;
    netlink.set_segment_sizes(index, sizes)
}
