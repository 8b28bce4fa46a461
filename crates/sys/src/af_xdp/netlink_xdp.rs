//! XDP state of an interface from rtnetlink: attached program and its hook, number of queues, and
//! the other end of a veth pair.
//!
//! A parser of our own: attributes that a newer kernel changes must not make the whole reply
//! unreadable. Attribute numbers are those of linux/if_link.h.

use std::io;
use std::time::Duration;

use rustix::io::{read, write};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Attributes of an interface that matter for XDP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XdpLinkInfo {
    /// Interface index.
    pub index: u32,
    /// Interface name.
    pub name: String,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Maximum number of receive queues.
    pub rx_queues: u32,
    /// Kind of a virtual interface (`veth`, `bridge`).
    pub kind: Option<String>,
    /// Index of the interface it is linked to: a veth's other end.
    pub peer: Option<u32>,
    /// Namespace id of `peer`; none if it is in this namespace.
    pub peer_namespace: Option<i32>,
    /// Attached XDP program, if there is one.
    pub program: Option<AttachedProgram>,
}

impl XdpLinkInfo {
    /// Other end of a veth pair, if this process may query it.
    pub fn veth_peer(&self) -> Option<Self> {
        if self.kind.as_deref() != Some("veth") {
            return None;
        }
        link_by_index(self.peer?, self.peer_namespace).ok()
    }
}

/// XDP program attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachedProgram {
    /// Program id as shown by `bpftool` and `ip`.
    pub id: u32,
    /// Hook that it is attached to.
    pub attach_point: AttachPoint,
}

/// Hook of an attached program (`XDP_ATTACHED_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachPoint {
    /// In the driver.
    Native,
    /// In the kernel's common receive path.
    Generic,
    /// Offloaded to the device.
    Device,
    /// More than one hook.
    Multiple,
}

impl AttachPoint {
    /// Name as in `mode=` and `ip link`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Device => "offloaded",
            Self::Multiple => "several hooks",
        }
    }
}

const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const ERROR: u16 = 2;
const REQUEST: u16 = 1;
const HEADER_BYTES: usize = 16;
const IFINFOMSG_BYTES: usize = 16;

const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_TARGET_NETNSID: u16 = 46;

/// Queries the interface of this name in the calling thread's network namespace.
///
/// # Errors
/// `ENODEV` if there is none.
pub fn link_by_name(name: &str) -> io::Result<XdpLinkInfo> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    let mut value = name.as_bytes().to_vec();
    value.push(0);
    query_link(&link_request(0, &[(IFLA_IFNAME, &value)]))
}

/// Queries the interface with this index, here or in the network namespace with this id.
///
/// # Errors
/// `ENODEV` if there is none, `EPERM` without privileges in the other namespace.
pub fn link_by_index(index: u32, namespace: Option<i32>) -> io::Result<XdpLinkInfo> {
    match namespace {
        None => query_link(&link_request(index, &[])),
        Some(id) => query_link(&link_request(
            index,
            &[(IFLA_TARGET_NETNSID, &id.to_ne_bytes())],
        )),
    }
}

/// An `RTM_GETLINK` request: header, struct ifinfomsg, attributes.
fn link_request(index: u32, attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut message = vec![0_u8; HEADER_BYTES + IFINFOMSG_BYTES];
    message[4..6].copy_from_slice(&GET_LINK.to_ne_bytes());
    message[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    message[HEADER_BYTES + 4..HEADER_BYTES + 8].copy_from_slice(&index.to_ne_bytes());
    for (kind, value) in attributes {
        let length = u16::try_from(4 + value.len()).expect("attributes of requests are short");
        message.extend(length.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(*value);
        message.resize(message.len().next_multiple_of(4), 0);
    }
    let length = u32::try_from(message.len()).expect("requests are short");
    message[..4].copy_from_slice(&length.to_ne_bytes());
    message
}

fn query_link(request: &[u8]) -> io::Result<XdpLinkInfo> {
    /// Buffer for one link of a few KiB; virtual functions, of which there may be hundreds, are not
    /// requested.
    const REPLY_BYTES: usize = 64 * 1024;
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        // The routing family is number 0, the default.
        None,
    )?;
    // The kernel replies within the call to send; the timeout only prevents a hang after a kernel
    // defect.
    set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(1)))?;
    write(&socket, request)?;
    let mut reply = vec![0_u8; REPLY_BYTES];
    let length = read(&socket, &mut reply)?;
    parse_reply(&reply[..length])
}

fn parse_reply(bytes: &[u8]) -> io::Result<XdpLinkInfo> {
    let truncated = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let header = bytes.first_chunk::<HEADER_BYTES>().ok_or_else(truncated)?;
    let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
    let body = bytes.get(HEADER_BYTES..length).ok_or_else(truncated)?;
    match u16::from_ne_bytes([header[4], header[5]]) {
        NEW_LINK => parse_link(body).ok_or_else(truncated),
        ERROR => {
            let code = body
                .first_chunk()
                .map_or(0, |code| i32::from_ne_bytes(*code));
            Err(io::Error::from_raw_os_error(code.saturating_neg()))
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn parse_link(body: &[u8]) -> Option<XdpLinkInfo> {
    let header = body.first_chunk::<IFINFOMSG_BYTES>()?;
    let index = i32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
    let mut link = XdpLinkInfo {
        index: u32::try_from(index).ok()?,
        ..XdpLinkInfo::default()
    };
    for (kind, value) in attributes(&body[IFINFOMSG_BYTES..]) {
        match kind {
            IFLA_IFNAME => link.name = text(value),
            IFLA_MTU => link.mtu = number(value)?,
            IFLA_NUM_RX_QUEUES => link.rx_queues = number(value)?,
            IFLA_LINK => link.peer = number(value).filter(|peer| *peer != 0),
            IFLA_LINK_NETNSID => link.peer_namespace = number(value).map(u32::cast_signed),
            IFLA_LINKINFO => {
                link.kind = attributes(value)
                    .into_iter()
                    .find(|(kind, _)| *kind == IFLA_INFO_KIND)
                    .map(|(_, value)| text(value));
            }
            IFLA_XDP => link.program = parse_program(value),
            _ => {}
        }
    }
    (!link.name.is_empty()).then_some(link)
}

fn parse_program(value: &[u8]) -> Option<AttachedProgram> {
    let list = attributes(value);
    let find = |wanted| list.iter().find(|(kind, _)| *kind == wanted);
    let (_, attach_point) = find(IFLA_XDP_ATTACHED)?;
    let attach_point = match attach_point.first()? {
        1 => AttachPoint::Native,
        2 => AttachPoint::Generic,
        3 => AttachPoint::Device,
        4 => AttachPoint::Multiple,
        _ => return None,
    };
    let id = find(IFLA_XDP_PROG_ID).and_then(|(_, value)| number(value));
    Some(AttachedProgram {
        id: id.unwrap_or(0),
        attach_point,
    })
}

/// Attributes as type (without flag bits) and value; stops at the first truncated one.
fn attributes(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    const FLAG_BITS: u16 = 0xc000;
    let mut list = Vec::new();
    while let Some(header) = bytes.first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & !FLAG_BITS;
        if length < 4 || length > bytes.len() {
            break;
        }
        list.push((kind, &bytes[4..length]));
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
    }
    list
}

fn number(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|value| u32::from_ne_bytes(*value))
}

fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&byte| byte == 0);
    String::from_utf8_lossy(&value[..end.unwrap_or(value.len())]).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![0_u8; IFINFOMSG_BYTES];
        body[4..8].copy_from_slice(&7_i32.to_ne_bytes());
        body.extend(attributes.concat());
        let mut bytes = ((HEADER_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(body);
        bytes
    }

    #[test]
    fn a_veth_with_a_program_is_read_in_full() {
        let program = [
            attribute(IFLA_XDP_ATTACHED, &[2]),
            attribute(IFLA_XDP_PROG_ID, &9_u32.to_ne_bytes()),
        ]
        .concat();
        let info = attribute(IFLA_INFO_KIND, b"veth\0");
        let bytes = message(
            NEW_LINK,
            &[
                attribute(IFLA_IFNAME, b"va\0"),
                attribute(IFLA_MTU, &1500_u32.to_ne_bytes()),
                attribute(IFLA_NUM_RX_QUEUES, &2_u32.to_ne_bytes()),
                attribute(IFLA_LINK, &8_u32.to_ne_bytes()),
                attribute(IFLA_LINK_NETNSID, &0_u32.to_ne_bytes()),
                attribute(IFLA_LINKINFO, &info),
                attribute(IFLA_XDP | 0x8000, &program),
            ],
        );
        let expected = XdpLinkInfo {
            index: 7,
            name: "va".to_owned(),
            mtu: 1500,
            rx_queues: 2,
            kind: Some("veth".to_owned()),
            peer: Some(8),
            peer_namespace: Some(0),
            program: Some(AttachedProgram {
                id: 9,
                attach_point: AttachPoint::Generic,
            }),
        };
        assert_eq!(parse_reply(&bytes).unwrap(), expected);
    }

    #[test]
    fn loopback_has_no_program_and_a_missing_link_says_so() {
        let lo = link_by_name("lo").unwrap();
        assert_eq!((lo.index, lo.name.as_str(), lo.program), (1, "lo", None));
        assert_eq!(link_by_index(lo.index, None).unwrap(), lo);
        for name in ["", "no-such-link", "longer-than-any-name"] {
            let error = link_by_name(name).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{name}");
        }
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_reply(&bytes);
        }

        #[test]
        fn no_cut_or_changed_answer_makes_it_panic(cut in 0_usize..80, at in 0_usize..80, value: u8) {
            let mut bytes = message(NEW_LINK, &[
                attribute(IFLA_IFNAME, b"va\0"),
                attribute(IFLA_XDP, &attribute(IFLA_XDP_ATTACHED, &[1])),
                attribute(IFLA_MTU, &[1, 2]),
            ]);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
            bytes.truncate(bytes.len().saturating_sub(cut));
            let _ = parse_reply(&bytes);
        }
    }
}
