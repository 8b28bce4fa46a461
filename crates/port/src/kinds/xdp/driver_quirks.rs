//! Notes about known problems of drivers and virtual links, given before they occur.

use std::ops::RangeInclusive;

use linerate_sys::af_xdp::bpf::XdpHook;
use linerate_sys::af_xdp::netlink_xdp::XdpLinkInfo;
use linerate_sys::af_xdp::xsk_socket::KERNEL_HEADROOM_BYTES;

/// Properties of an interface and port that the notes depend on.
#[derive(Clone, Debug)]
pub(super) struct QuirkContext<'a> {
    pub link: &'a XdpLinkInfo,
    /// Receive queues that the port uses.
    pub queues: RangeInclusive<u32>,
    /// Receive queues in use, if the driver reports them.
    pub queues_in_use: Option<u32>,
    /// Other end of a veth pair, if it is visible.
    pub peer: Option<&'a XdpLinkInfo>,
    /// True if the other end's sockets leave checksums to the device; none if that is not visible.
    pub peer_offloads_checksums: Option<bool>,
    /// True if VLAN tags are not in the frame data when the program runs: removed by the device, or
    /// not inserted by a veth's other end; none if that is not visible.
    pub tags_out_of_band: Option<bool>,
    pub hook: XdpHook,
    pub zero_copy: bool,
    /// Longest frame that fits a buffer behind the kernel's headroom, in bytes.
    pub max_received_bytes: usize,
}

/// Notes that readers of the results need.
pub(super) fn notes(context: &QuirkContext<'_>) -> Vec<String> {
    let mut notes = vec![
        if context.zero_copy {
            "zero-copy: the device reads and writes the frame memory; frames that it loses for lack of a buffer are in its own counters"
        } else {
            "copy: the kernel copies each frame"
        }
        .to_owned(),
    ];
    let (first, last) = (context.queues.start(), context.queues.end());
    let all = context.queues_in_use.unwrap_or(context.link.rx_queues);
    if all > last - first + 1 {
        let count_text = match context.queues_in_use {
            Some(_) => "has {} in use",
            None => "was made with {}",
        }
        .replace("{}", &all.to_string());
        notes.push(format!(
            "only frames of the receive queues {first}-{last} are received here, the others go to the kernel's stack: the interface {count_text} (`q=0-{}` uses all of them, `channels=set` disables the others while the port is open, `rss=set` directs no traffic to the others, and `steer=udp:PORT` directs the traffic of one port here)",
            all - 1
        ));
    }
    let needed = context.link.mtu as usize + usize::from(crate::port_url::FRAME_OVERHEAD_BYTES);
    if needed > context.max_received_bytes {
        notes.push(format!(
            "frames longer than {} bytes are lost as too long, and the interface's MTU is {}: the kernel uses {} bytes of each buffer; a larger `mtu=` gives larger buffers, up to a page",
            context.max_received_bytes, context.link.mtu, KERNEL_HEADROOM_BYTES
        ));
    }
    if context.link.kind.as_deref() == Some("veth") {
        notes.extend(veth_notes(context));
    } else if context.tags_out_of_band == Some(true) {
        notes.push(format!(
            "VLAN tags are missing, because the device removes them from the frames: `ethtool -K {} rxvlan off`",
            context.link.name
        ));
    }
    notes
}

fn veth_notes(context: &QuirkContext<'_>) -> Vec<String> {
    let peer = context.peer.map_or("FAR", |peer| peer.name.as_str());
    let mut notes = Vec::new();
    if context.peer_offloads_checksums != Some(false) {
        notes.push(format!(
            "frames from the remote end's own sockets may have partial checksums, and a host that receives them back drops them: `ethtool -K {peer} tx off` at that end"
        ));
        if context.hook == XdpHook::Generic {
            notes.push(format!(
                "generic XDP gets the remote end's segments as large as its sockets make them, and those longer than a frame are lost: also `ethtool -K {peer} tx off`, or `mode=native`"
            ));
        }
    }
    if context.hook == XdpHook::Native {
        notes.push(format!(
            "frames from sockets at the remote end are received faster by `mode=generic` (1.1 times as fast where it was measured), which needs `ethtool -K {peer} tx off` there"
        ));
    } else {
        notes.push(
            "frames that other XDP programs redirect to this veth (XDP_TX, bpf_redirect, live frames) do not pass the generic hook: `mode=native` for those"
                .to_owned(),
        );
    }
    if context.peer.is_none_or(|peer| peer.program.is_none()) {
        notes.push(format!(
            "XDP programs that redirect frames through this veth lose them unless its remote end has an XDP program or GRO (`ethtool -K {peer} gro on`); this port's own frames need neither"
        ));
    }
    if context.tags_out_of_band != Some(false) {
        notes.push(format!(
            "VLAN tags of the remote end's own VLANs are missing, because they are not in the frame data: `ethtool -K {peer} txvlan off` at that end"
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use linerate_sys::af_xdp::netlink_xdp::{AttachPoint, AttachedProgram};

    use super::*;

    fn peer(program: bool) -> XdpLinkInfo {
        XdpLinkInfo {
            name: "vb".to_owned(),
            program: program.then_some(AttachedProgram {
                id: 1,
                attach_point: AttachPoint::Native,
            }),
            ..XdpLinkInfo::default()
        }
    }

    #[test]
    fn each_quirk_is_noted_where_it_applies_only() {
        let link = |kind: Option<&str>, mtu| XdpLinkInfo {
            mtu,
            rx_queues: 2,
            kind: kind.map(str::to_owned),
            ..XdpLinkInfo::default()
        };
        let (veth, device, jumbo) = (link(Some("veth"), 1500), link(None, 1500), link(None, 9000));
        let (unprogrammed, programmed) = (peer(false), peer(true));
        let plain = QuirkContext {
            link: &device,
            queues: 0..=1,
            queues_in_use: None,
            peer: None,
            peer_offloads_checksums: None,
            tags_out_of_band: None,
            hook: XdpHook::Native,
            zero_copy: false,
            max_received_bytes: 1792,
        };
        let on_veth = QuirkContext {
            link: &veth,
            peer: Some(&unprogrammed),
            ..plain.clone()
        };
        let texts = [
            "copy: the kernel",
            "zero-copy:",
            "too long",
            "partial checksums",
            "generic XDP gets",
            "do not pass the generic hook",
            "lose them unless",
            "received faster by `mode=generic`",
            "only frames of the receive queues 0-0",
            "VLAN tags",
        ];
        for (name, context, expected) in [
            ("device", plain.clone(), vec![0]),
            (
                "one queue of two",
                QuirkContext {
                    queues: 0..=0,
                    ..plain.clone()
                },
                vec![0, 8],
            ),
            (
                "the one queue that is in use",
                QuirkContext {
                    queues: 0..=0,
                    queues_in_use: Some(1),
                    ..plain.clone()
                },
                vec![0],
            ),
            (
                "zero-copy",
                QuirkContext {
                    zero_copy: true,
                    ..plain.clone()
                },
                vec![1],
            ),
            (
                "jumbo frames",
                QuirkContext {
                    link: &jumbo,
                    ..plain.clone()
                },
                vec![0, 2],
            ),
            (
                "a device that takes tags out",
                QuirkContext {
                    tags_out_of_band: Some(true),
                    ..plain.clone()
                },
                vec![0, 9],
            ),
            ("native veth", on_veth.clone(), vec![0, 3, 7, 6, 9]),
            (
                "generic veth, remote end not visible",
                QuirkContext {
                    peer: None,
                    hook: XdpHook::Generic,
                    ..on_veth.clone()
                },
                vec![0, 3, 4, 5, 6, 9],
            ),
            (
                "both ends have programs, checksums are made and tags put in",
                QuirkContext {
                    peer: Some(&programmed),
                    peer_offloads_checksums: Some(false),
                    tags_out_of_band: Some(false),
                    ..on_veth.clone()
                },
                vec![0, 7],
            ),
        ] {
            let notes = notes(&context);
            let indices: Vec<usize> = notes
                .iter()
                .map(|note| {
                    texts
                        .iter()
                        .position(|text| note.contains(text))
                        .unwrap_or(usize::MAX)
                })
                .collect();
            assert_eq!(indices, expected, "{name}: {notes:#?}");
        }
    }
}
