//! Notes about known problems of drivers and virtual links, given before they occur.

use std::ops::RangeInclusive;

use crate::sys::bpf::Hook;
use crate::sys::netlink_xdp::Link;
use crate::sys::xsk_socket::KERNEL_HEADROOM_BYTES;

/// Properties of an interface and port that the notes depend on.
#[derive(Clone, Debug)]
pub(super) struct Situation<'a> {
    pub link: &'a Link,
    /// Receive queues that the port uses.
    pub queues: RangeInclusive<u32>,
    /// Receive queues in use, if the driver reports them.
    pub in_use: Option<u32>,
    /// Other end of a veth pair, if it is visible.
    pub far: Option<&'a Link>,
    /// True if the other end's sockets leave checksums to the device; none if that is not visible.
    pub far_leaves_checksums: Option<bool>,
    /// True if VLAN tags are not in the frame data when the program runs: removed by the device, or
    /// not inserted by a veth's other end; none if that is not visible.
    pub tags_apart: Option<bool>,
    pub hook: Hook,
    pub zero_copy: bool,
    /// Longest frame that fits a buffer behind the kernel's headroom, in bytes.
    pub longest_received: usize,
}

/// Notes that readers of the results need.
pub(super) fn notes(situation: &Situation<'_>) -> Vec<String> {
    let mut notes = vec![
        if situation.zero_copy {
            "zero-copy: the device reads and writes the frame memory; frames that it loses for lack of a buffer are in its own counters"
        } else {
            "copy: the kernel copies each frame"
        }
        .to_owned(),
    ];
    let (first, last) = (situation.queues.start(), situation.queues.end());
    let all = situation.in_use.unwrap_or(situation.link.rx_queues);
    if all > last - first + 1 {
        let there = match situation.in_use {
            Some(_) => "has {} in use",
            None => "was made with {}",
        }
        .replace("{}", &all.to_string());
        notes.push(format!(
            "only frames of the receive queues {first}-{last} are received here, the others go to the kernel's stack: the interface {there} (`q=0-{}` uses all of them, `channels=set` disables the others while the port is open, `rss=set` directs no traffic to the others, and `steer=udp:PORT` directs the traffic of one port here)",
            all - 1
        ));
    }
    let needed = situation.link.mtu as usize + usize::from(crate::port_url::ETHERNET_BYTES);
    if needed > situation.longest_received {
        notes.push(format!(
            "frames longer than {} bytes are lost as too long, and the interface's MTU is {}: the kernel uses {} bytes of each buffer; a larger `mtu=` gives larger buffers, up to a page",
            situation.longest_received, situation.link.mtu, KERNEL_HEADROOM_BYTES
        ));
    }
    if situation.link.kind.as_deref() == Some("veth") {
        notes.extend(veth_notes(situation));
    } else if situation.tags_apart == Some(true) {
        notes.push(format!(
            "VLAN tags are missing, because the device removes them from the frames: `ethtool -K {} rxvlan off`",
            situation.link.name
        ));
    }
    notes
}

fn veth_notes(situation: &Situation<'_>) -> Vec<String> {
    let far = situation.far.map_or("FAR", |far| far.name.as_str());
    let mut notes = Vec::new();
    if situation.far_leaves_checksums != Some(false) {
        notes.push(format!(
            "frames from the remote end's own sockets may have partial checksums, and a host that receives them back drops them: `ethtool -K {far} tx off` at that end"
        ));
        if situation.hook == Hook::Generic {
            notes.push(format!(
                "generic XDP gets the remote end's segments as large as its sockets make them, and those longer than a frame are lost: also `ethtool -K {far} tx off`, or `mode=native`"
            ));
        }
    }
    if situation.hook == Hook::Native {
        notes.push(format!(
            "frames from sockets at the remote end are received faster by `mode=generic` (1.1 times as fast where it was measured), which needs `ethtool -K {far} tx off` there"
        ));
    } else {
        notes.push(
            "frames that other XDP programs redirect to this veth (XDP_TX, bpf_redirect, live frames) do not pass the generic hook: `mode=native` for those"
                .to_owned(),
        );
    }
    if situation.far.is_none_or(|far| far.program.is_none()) {
        notes.push(format!(
            "XDP programs that redirect frames through this veth lose them unless its remote end has an XDP program or GRO (`ethtool -K {far} gro on`); this port's own frames need neither"
        ));
    }
    if situation.tags_apart != Some(false) {
        notes.push(format!(
            "VLAN tags of the remote end's own VLANs are missing, because they are not in the frame data: `ethtool -K {far} txvlan off` at that end"
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::netlink_xdp::{Attached, Place};

    fn far(program: bool) -> Link {
        Link {
            name: "vb".to_owned(),
            program: program.then_some(Attached {
                id: 1,
                place: Place::Native,
            }),
            ..Link::default()
        }
    }

    #[test]
    fn each_trap_is_named_where_it_lies_and_nowhere_else() {
        let link = |kind: Option<&str>, mtu| Link {
            mtu,
            rx_queues: 2,
            kind: kind.map(str::to_owned),
            ..Link::default()
        };
        let (veth, device, jumbo) = (link(Some("veth"), 1500), link(None, 1500), link(None, 9000));
        let (bare, programmed) = (far(false), far(true));
        let plain = Situation {
            link: &device,
            queues: 0..=1,
            in_use: None,
            far: None,
            far_leaves_checksums: None,
            tags_apart: None,
            hook: Hook::Native,
            zero_copy: false,
            longest_received: 1792,
        };
        let on_veth = Situation {
            link: &veth,
            far: Some(&bare),
            ..plain.clone()
        };
        let words = [
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
        for (name, situation, want) in [
            ("device", plain.clone(), vec![0]),
            (
                "one queue of two",
                Situation {
                    queues: 0..=0,
                    ..plain.clone()
                },
                vec![0, 8],
            ),
            (
                "the one queue that is in use",
                Situation {
                    queues: 0..=0,
                    in_use: Some(1),
                    ..plain.clone()
                },
                vec![0],
            ),
            (
                "zero-copy",
                Situation {
                    zero_copy: true,
                    ..plain.clone()
                },
                vec![1],
            ),
            (
                "jumbo frames",
                Situation {
                    link: &jumbo,
                    ..plain.clone()
                },
                vec![0, 2],
            ),
            (
                "a device that takes tags out",
                Situation {
                    tags_apart: Some(true),
                    ..plain.clone()
                },
                vec![0, 9],
            ),
            ("native veth", on_veth.clone(), vec![0, 3, 7, 6, 9]),
            (
                "generic veth, remote end not visible",
                Situation {
                    far: None,
                    hook: Hook::Generic,
                    ..on_veth.clone()
                },
                vec![0, 3, 4, 5, 6, 9],
            ),
            (
                "both ends have programs, checksums are made and tags put in",
                Situation {
                    far: Some(&programmed),
                    far_leaves_checksums: Some(false),
                    tags_apart: Some(false),
                    ..on_veth.clone()
                },
                vec![0, 7],
            ),
        ] {
            let notes = notes(&situation);
            let found: Vec<usize> = notes
                .iter()
                .map(|note| {
                    words
                        .iter()
                        .position(|word| note.contains(word))
                        .unwrap_or(usize::MAX)
                })
                .collect();
            assert_eq!(found, want, "{name}: {notes:#?}");
        }
    }
}
