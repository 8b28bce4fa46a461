//! The kernel's GSO packets are smaller than possible.

use linerate_record::facts::Role;
use linerate_record::finding::Finding;
use linerate_record::ids::CauseId;
use linerate_record::plan::TransportProtocol;
use linerate_stats::units::format_bytes;

use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, size};
use crate::run_view::{DirectionView, RunView};

/// Default maximum of an interface.
const DEFAULT_GSO_BYTES: u32 = 65_536;

/// Largest maximum that the kernel permits (GSO_MAX_SIZE of linux/netdevice.h, eight times 65535).
const MAX_GSO_BYTES: u32 = 524_280;

/// Most segments of a packet (GSO_MAX_SEGS of linux/netdevice.h).
const MAX_GSO_SEGMENTS: u32 = 65_535;

/// Difference from the default up to which a size counts as the default, in bytes.
const DEFAULT_MARGIN_BYTES: u32 = 1024;

/// Largest packet that is worth a finding, and smallest call that fills packets, in bytes.
const MAX_RELEVANT_BYTES: u32 = 2 * DEFAULT_GSO_BYTES;
const MIN_CALL_BYTES: u64 = 32 << 10;

/// Relative time per byte as a function of the packet size: `a + b / size`. Fitted to 94.6 Gb/s
/// with 64 KiB and 180.5 with 512 KiB on veth (docs/method/defaults.md#constants-of-estimates); the
/// unit cancels.
const PER_BYTE: f64 = 0.00485;
const PER_PACKET: f64 = 0.3635;

/// Returns the largest packet size that an interface can be set to: its driver's limit; for
/// hardware at most the default.
fn max_gso_bytes(run: &RunView<'_>, role: Role) -> u32 {
    let driver_limit = run
        .interface(role)
        .and_then(|interface| interface.tso_max_bytes)
        .unwrap_or(MAX_GSO_BYTES);
    driver_limit.min(if run.device(role).is_some() {
        DEFAULT_GSO_BYTES
    } else {
        MAX_GSO_BYTES
    })
}

/// Returns the new size and the command that sets it; `None` if the interface already permits it.
/// Up to the default the IPv4 limit follows the common one; above it has a separate attribute,
/// which `ip` supports since 6.3.
pub(super) fn larger_gso_command(
    run: &RunView<'_>,
    role: Role,
    link: &str,
    now: u32,
) -> Option<(u32, String)> {
    let most = max_gso_bytes(run, role);
    let (aim, arguments) = match now < DEFAULT_GSO_BYTES - DEFAULT_MARGIN_BYTES {
        true => (
            DEFAULT_GSO_BYTES.min(most),
            format!("gso_max_size {}", DEFAULT_GSO_BYTES.min(most)),
        ),
        false => (
            most,
            match run.is_ipv6() {
                true => format!("gso_max_size {most} gro_max_size {most}"),
                false => {
                    format!("gso_max_size {most} gso_ipv4_max_size {most} gro_ipv4_max_size {most}")
                }
            },
        ),
    };
    (now < aim).then(|| {
        (
            aim,
            run.command_at(role, &format!("ip link set dev {link} {arguments}")),
        )
    })
}

/// See docs/CAUSES.md#gso-size.
pub struct GsoSize;

impl Rule for GsoSize {
    fn id(&self) -> CauseId {
        CauseId::GsoSize
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "The kernel's GSO packets are smaller than the interface could accept.",
            shown_when: vec![detection(
                "TCP",
                [
                    format!(
                        "`gso_ipv4_max_size` (over IPv6 `gso_max_size`), or `gso_max_segs` in \
                         segments, permits {} at most",
                        size(MAX_RELEVANT_BYTES.into())
                    ),
                    "the segments count if they are fewer than the driver accepts (`tso_max_segs`)"
                        .into(),
                    format!("TSO is on, and calls have {} or more", size(MIN_CALL_BYTES)),
                    "an end is saturated".into(),
                ],
            )],
            limit_when: vec![format!(
                "packets have about {} already: then larger ones are possible on virtual links",
                size(DEFAULT_GSO_BYTES.into())
            )],
            not_when: vec![
                "a rate was requested".into(),
                "the path is full".into(),
                "the user-space stack receives".into(),
                format!(
                    "packets have about {} on hardware, or both ends share a CPU",
                    size(DEFAULT_GSO_BYTES.into())
                ),
                "the driver accepts no larger ones (`tso_max_size`)".into(),
            ],
            evidence: &[
                ("gso_ipv4_max_size", "B"),
                ("gso_max_size", "B"),
                ("gso_max_segs", "segments"),
                ("tso_max_size", "B"),
                ("goodput_bps", "bit/s"),
            ],
            cost: vec![format!(
                "Share of a byte's time that packets of {MAX_GSO_BYTES} B would save."
            )],
            remedy: vec![
                format!(
                    "Below {} raise it at both ends, as far as the driver permits: `ip link set dev \
                     IF gso_max_size {DEFAULT_GSO_BYTES}`. IPv4's own limit follows.",
                    size(DEFAULT_GSO_BYTES.into())
                ),
                "Raise `gso_max_segs` if segments are few.".into(),
                format!(
                    "Above that, on virtual links: `gso_max_size {MAX_GSO_BYTES} gso_ipv4_max_size \
                     {MAX_GSO_BYTES} gro_ipv4_max_size {MAX_GSO_BYTES}` (iproute2 6.3); over IPv6 \
                     `gso_max_size {MAX_GSO_BYTES} gro_max_size {MAX_GSO_BYTES}`."
                ),
                "An older `ip` cannot: use `linerate tune --try-host --knobs gso-size`.".into(),
            ],
            wrong_when: vec![format!(
                "a device behind the virtual link accepts no more than {}",
                size(DEFAULT_GSO_BYTES.into())
            )],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        let directions = run.throughput_directions(TransportProtocol::Tcp);
        directions
            .filter_map(|direction| self.evaluate_direction(run, direction))
            .collect()
    }
}

fn relative_byte_time(bytes: u32) -> f64 {
    PER_BYTE + PER_PACKET / (f64::from(bytes) / 1024.0).max(1.0)
}

impl GsoSize {
    fn evaluate_direction(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        if direction.fills_path()
            || direction.uses_netstack(direction.receiver)
            || !super::is_saturated(direction)
            || super::is_paced(run)
        {
            return None;
        }
        let interface = direction.sender_interface()?;
        let bytes = interface.gso_bytes(direction.is_ipv6())?;
        // A limit on the segments makes packets small as well. The driver's own segment limit
        // cannot be raised; for hardware that does not report it, the current one may be it.
        let most_segments = interface.tso_max_segments.or(run
            .device(direction.sender)
            .is_none()
            .then_some(MAX_GSO_SEGMENTS));
        let segments = interface
            .gso_max_segments
            .filter(|&now| most_segments.is_some_and(|most| now < most));
        let of_segments = |segments: u32| {
            f64::from(segments) * direction.tcp().map_or(1448.0, |tcp| tcp.mss_bytes)
        };
        let segment_limit_bytes = segments.map(of_segments);
        let largest = segment_limit_bytes.map_or(bytes, |segment_limit_bytes| {
            bytes.min(segment_limit_bytes as u32)
        });
        let by_segments = largest < bytes;
        let has_tso = interface.offloads.get(direction.segmentation_offload()) == Some(&true);
        if largest > MAX_RELEVANT_BYTES || !has_tso || run.plan.payload_bytes < MIN_CALL_BYTES {
            return None;
        }
        let share = 1.0 - relative_byte_time(MAX_GSO_BYTES) / relative_byte_time(largest);
        let small = largest < DEFAULT_GSO_BYTES - DEFAULT_MARGIN_BYTES;
        // Hardware segments packets of 64 KiB by itself; larger ones are for links without
        // hardware.
        if !small && run.device(direction.sender).is_some() {
            return None;
        }
        // The gain of larger packets was measured with one processor per end.
        if !small && super::shared_core::is_single_core(run) {
            return None;
        }
        let (role, link) = (direction.sender, &interface.name);
        let (aim, command) = match by_segments && small {
            true => {
                let (most, size) = (
                    most_segments.unwrap_or(MAX_GSO_SEGMENTS),
                    DEFAULT_GSO_BYTES.min(max_gso_bytes(run, role)),
                );
                let more = if bytes < size.saturating_sub(DEFAULT_MARGIN_BYTES) {
                    format!(" gso_max_size {size}")
                } else {
                    String::new()
                };
                let command = format!("ip link set dev {link} gso_max_segs {most}{more}");
                (
                    bytes
                        .max(size)
                        .min(DEFAULT_GSO_BYTES)
                        .min(of_segments(most) as u32),
                    run.command_at(role, &command),
                )
            }
            false => larger_gso_command(run, role, link, largest)?,
        };
        FindingBuilder::limit_if(!small, self.id(), role)
            .direction(direction.direction)
            .cost(share)
            .summary(format!(
                "{link} of the {} accepts GSO packets of at most {}{}",
                role.as_str(),
                format_bytes(largest.into()),
                match small {
                    true => ", less than the kernel's default",
                    false => ": the kernel's default, which can be raised",
                }
            ))
            .evidence(
                run.family_setting(["gso_ipv4_max_size", "gso_max_size"]),
                bytes,
                "B",
                format!(
                    "{} {link} {}",
                    role.as_str(),
                    run.family_setting(["IFLA_GSO_IPV4_MAX_SIZE", "IFLA_GSO_MAX_SIZE"])
                ),
            )
            .evidence_if(
                "gso_max_segs",
                segments.filter(|_| by_segments),
                "segments",
                format!("{} {link} IFLA_GSO_MAX_SEGS", role.as_str()),
            )
            .evidence_if(
                "tso_max_size",
                interface.tso_max_bytes,
                "B",
                format!("{} {link} IFLA_TSO_MAX_SIZE", role.as_str()),
            )
            .evidence("goodput_bps", direction.goodput()?, "bit/s", "receiver")
            .remedy(match small {
                true => "raise the GSO size at both ends of the link to the kernel's default",
                false if run.is_ipv6() => "raise the GSO size at both ends of the link",
                false => {
                    "raise the GSO size at both ends of the link; `ip` before 6.3 cannot set that \
                     of IPv4, `linerate tune --try-host --knobs gso-size` can"
                }
            })
            .command(command)
            .estimated_gain(
                Some(relative_byte_time(largest) / relative_byte_time(aim)),
                "time per byte = a + b / packet size, with a and b from runs of 64 KiB and 512 \
                 KiB on veth",
            )
            .build()
    }
}
