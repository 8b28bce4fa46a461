//! The kernel's GSO packets are smaller than possible.

use linerate_metric::facts::Role;
use linerate_metric::finding::Finding;
use linerate_metric::plan::Protocol;
use linerate_metric::units::format_bytes;

use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way, name};

/// Default maximum of an interface.
const DEFAULT: u32 = 65_536;

/// Largest maximum that the kernel permits (GSO_MAX_SIZE of linux/netdevice.h, eight times 65535).
const LARGEST: u32 = 524_280;

/// Most segments of a packet (GSO_MAX_SEGS of linux/netdevice.h).
const MOST_SEGMENTS: u32 = 65_535;

/// Relative time per byte as a function of the packet size: `a + b / size`. Fitted to 94.6 Gb/s
/// with 64 KiB and 180.5 with 512 KiB on veth (docs/method/defaults.md#constants-of-estimates); the
/// unit cancels.
const PER_BYTE: f64 = 0.00485;
const PER_PACKET: f64 = 0.3635;

/// Returns the largest packet size that an interface can be set to: its driver's limit; for
/// hardware at most the default.
fn most_bytes(case: &Case<'_>, role: Role) -> u32 {
    let known = case
        .interface(role)
        .and_then(|interface| interface.tso_max_bytes)
        .unwrap_or(LARGEST);
    known.min(if case.device(role).is_some() {
        DEFAULT
    } else {
        LARGEST
    })
}

/// Returns the new size and the command that sets it; `None` if the interface already permits it.
/// Up to the default the IPv4 limit follows the common one; above it has a separate attribute,
/// which `ip` supports since 6.3.
pub(super) fn larger(case: &Case<'_>, role: Role, link: &str, now: u32) -> Option<(u32, String)> {
    let most = most_bytes(case, role);
    let (aim, words) = match now < DEFAULT - 1024 {
        true => (
            DEFAULT.min(most),
            format!("gso_max_size {}", DEFAULT.min(most)),
        ),
        false => (
            most,
            format!("gso_max_size {most} gso_ipv4_max_size {most} gro_ipv4_max_size {most}"),
        ),
    };
    (now < aim).then(|| {
        (
            aim,
            case.at(role, &format!("ip link set dev {link} {words}")),
        )
    })
}

/// See docs/CAUSES.md#gso-size.
pub struct GsoSize;

impl Rule for GsoSize {
    fn id(&self) -> &'static str {
        "gso-size"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        let ways = case.throughput(Protocol::Tcp);
        ways.filter_map(|way| self.of(case, way)).collect()
    }
}

fn time(bytes: u32) -> f64 {
    PER_BYTE + PER_PACKET / (f64::from(bytes) / 1024.0).max(1.0)
}

impl GsoSize {
    fn of(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        if way.fills_path()
            || way.is_own_stack(way.receiver)
            || !super::is_saturated(way)
            || super::is_paced(case)
        {
            return None;
        }
        let interface = way.sends_by()?;
        let bytes = interface.gso_ipv4_max_bytes?;
        // A limit on the segments makes packets small as well. The driver's own segment limit
        // cannot be raised; for hardware that does not report it, the current one may be it.
        let most_segments = interface
            .tso_max_segments
            .or(case.device(way.sender).is_none().then_some(MOST_SEGMENTS));
        let segments = interface
            .gso_max_segments
            .filter(|&now| most_segments.is_some_and(|most| now < most));
        let of_segments =
            |segments: u32| f64::from(segments) * way.tcp().map_or(1448.0, |tcp| tcp.mss);
        let held = segments.map(of_segments);
        let largest = held.map_or(bytes, |held| bytes.min(held as u32));
        let by_segments = largest < bytes;
        let cuts = interface.offloads.get("tx-tcp-segmentation") == Some(&true);
        if largest > 2 * DEFAULT || !cuts || case.plan.payload_bytes < 32 << 10 {
            return None;
        }
        let share = 1.0 - time(LARGEST) / time(largest);
        let small = largest < DEFAULT - 1024;
        // Hardware segments packets of 64 KiB by itself; larger ones are for links without
        // hardware.
        if !small && case.device(way.sender).is_some() {
            return None;
        }
        // The gain of larger packets was measured with one processor per end.
        if !small && super::shared_core::is_one(case) {
            return None;
        }
        let (role, link) = (way.sender, &interface.name);
        let (aim, command) = match by_segments && small {
            true => {
                let (most, size) = (
                    most_segments.unwrap_or(MOST_SEGMENTS),
                    DEFAULT.min(most_bytes(case, role)),
                );
                let more = if bytes < size.saturating_sub(1024) {
                    format!(" gso_max_size {size}")
                } else {
                    String::new()
                };
                let command = format!("ip link set dev {link} gso_max_segs {most}{more}");
                (
                    bytes.max(size).min(DEFAULT).min(of_segments(most) as u32),
                    case.at(role, &command),
                )
            }
            false => larger(case, role, link, largest)?,
        };
        Draft::limit_if(!small, self.id(), role)
            .way(way.direction)
            .cost(share)
            .says(format!(
                "{link} of the {} accepts GSO packets of at most {}{}",
                name(role),
                format_bytes(largest.into()),
                match small {
                    true => ", less than the kernel's default",
                    false => ": the kernel's default, which can be raised",
                }
            ))
            .seen(
                "gso_ipv4_max_size",
                bytes,
                "B",
                format!("{} {link} IFLA_GSO_IPV4_MAX_SIZE", name(role)),
            )
            .seen_if(
                "gso_max_segs",
                segments.filter(|_| by_segments),
                "segments",
                format!("{} {link} IFLA_GSO_MAX_SEGS", name(role)),
            )
            .seen_if(
                "tso_max_size",
                interface.tso_max_bytes,
                "B",
                format!("{} {link} IFLA_TSO_MAX_SIZE", name(role)),
            )
            .seen("goodput_bps", way.goodput()?, "bit/s", "receiver")
            .remedy(match small {
                true => "raise the GSO size at both ends of the link to the kernel's default",
                false => {
                    "raise the GSO size at both ends of the link; `ip` before 6.3 cannot set that \
                     of IPv4, `linerate tune --try-host --knobs gso-size` can"
                }
            })
            .command(command)
            .gain(
                Some(time(largest) / time(aim)),
                "time per byte = a + b / packet size, with a and b from runs of 64 KiB and 512 \
                 KiB on veth",
            )
            .found()
    }
}
