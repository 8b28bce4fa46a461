//! Who holds payload back until its time at this end, and whether anybody does.

use linerate_host::snapshot::netlink;
use linerate_host::sys::pacing::{DepartureClock, DepartureTimes, set_max_rate};
use linerate_metric::facts::Host;
use linerate_metric::pace::Pacing;
use linerate_metric::plan::{Plan, Protocol};
use linerate_metric::record::Doubt;

use super::checks::probe_socket;
use crate::error::MeasureError;
use crate::flow::Part;
use crate::transport::FlowOptions;

/// Bytes that a discipline counts beside a datagram's payload: Ethernet 14, IPv4 20, UDP 8.
const HEADERS: u64 = 42;

/// The same over IPv6.
const HEADERS_V6: u64 = 62;

/// The disciplines of the interface towards the other end; empty where they cannot be known.
#[must_use]
pub fn disciplines(host: &Host) -> Vec<String> {
    let name = host.interface.as_ref().map(|interface| &interface.name);
    let link = name.and_then(|name| netlink::link(name).ok());
    link.and_then(|link| netlink::qdisc_kinds(link.index).ok())
        .unwrap_or_default()
}

/// Sets a source's options up as the plan has it.
pub fn apply(
    options: &mut FlowOptions,
    plan: &Plan,
    part: Part,
    disciplines: &[String],
    ipv6: bool,
) {
    let Some(rate) = plan.rate_bps.filter(|_| part == Part::Source) else {
        return;
    };
    let is_udp = plan.protocol == Protocol::Udp;
    match plan.pace.by {
        Pacing::User => options.paced = is_udp,
        Pacing::Socket => {
            let payload = plan.payload_bytes.max(1);
            // TCP counts payload, a discipline what leaves.
            let whole = match (is_udp, ipv6) {
                (false, _) => payload,
                (true, false) => payload + HEADERS,
                (true, true) => payload + HEADERS_V6,
            };
            let bytes = u128::from(rate / 8) * u128::from(whole) / u128::from(payload);
            options.max_rate = Some(u64::try_from(bytes).unwrap_or(u64::MAX).max(1));
        }
        Pacing::Txtime => {
            options.paced = true;
            options.departure_clock = Some(clock(disciplines));
        }
    }
}

/// The clock in which the discipline there reads departures.
fn clock(disciplines: &[String]) -> DepartureClock {
    let is_tai = |kind: &String| matches!(kind.as_str(), "etf" | "taprio");
    match disciplines.iter().any(is_tai) {
        true => DepartureClock::Tai,
        false => DepartureClock::Monotonic,
    }
}

/// Refuses what this kernel does not do, before any traffic; says so when nothing will honour it.
///
/// # Errors
/// [`MeasureError::OptionRefused`].
pub fn check(plan: &Plan, part: Part, host: &Host) -> Result<Option<Doubt>, MeasureError> {
    if plan.rate_bps.is_none() || part != Part::Source || plan.pace.by == Pacing::User {
        return Ok(None);
    }
    let disciplines = disciplines(host);
    let socket = probe_socket(plan.protocol)?;
    let tried = match plan.pace.by {
        Pacing::Txtime => DepartureTimes::enable(&socket, clock(&disciplines)).map(drop),
        _ => set_max_rate(&socket, u64::MAX),
    };
    tried.map_err(|error| MeasureError::OptionRefused {
        option: format!("--pacing {}", plan.pace.by),
        why: format!("the kernel refuses it ({error})"),
        next_step: match plan.pace.by {
            Pacing::Txtime => {
                "it needs Linux 4.19, and root where the interface has `etf`: use --pacing user"
            }
            _ => "use --pacing user",
        }
        .to_owned(),
    })?;
    Ok(unhonoured(plan, &disciplines, host))
}

fn unhonoured(plan: &Plan, disciplines: &[String], host: &Host) -> Option<Doubt> {
    let honours = |kind: &String| match plan.pace.by {
        Pacing::Txtime => matches!(kind.as_str(), "fq" | "etf" | "taprio"),
        _ => kind == "fq",
    };
    // TCP keeps the rate by itself.
    let by_itself = plan.pace.by == Pacing::Socket && plan.protocol == Protocol::Tcp;
    if by_itself || disciplines.iter().any(honours) {
        return None;
    }
    let interface = host.interface.as_ref();
    let name = interface.map_or("the interface", |interface| interface.name.as_str());
    let has = match disciplines.is_empty() {
        true => "no discipline that is known".to_owned(),
        false => format!("`{}`", disciplines.join("`, `")),
    };
    let command = format!("tc qdisc replace dev {name} root fq");
    Some(Doubt::new(
        "pacing-not-honoured",
        match plan.pace.by {
            Pacing::Txtime => format!(
                "{name} has {has}: nothing holds datagrams back until the time that they are given \
                 (`{command}` would)"
            ),
            _ => format!(
                "{name} has {has}: nothing keeps the socket's rate, and UDP leaves as fast as it can \
                 (`{command}` would keep it)"
            ),
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::setup::flow_options;
    use linerate_metric::plan::Kind;

    fn plan(protocol: Protocol, by: Pacing) -> Plan {
        let mut plan = Plan::new(Kind::Throughput, protocol, "host");
        plan.payload_bytes = 1000;
        plan.rate_bps = Some(8_000_000);
        plan.pace.by = by;
        plan
    }

    #[test]
    fn it_is_said_when_nothing_honours_it() {
        use Pacing::{Socket, Txtime};
        use Protocol::{Tcp, Udp};
        for (protocol, by, kinds, honoured) in [
            (Tcp, Socket, &["noqueue"][..], true),
            (Udp, Socket, &["noqueue"], false),
            (Udp, Socket, &["mq", "fq", "fq"], true),
            (Udp, Socket, &["etf"], false),
            (Udp, Txtime, &["pfifo_fast"], false),
            (Udp, Txtime, &["mqprio", "etf"], true),
            (Udp, Txtime, &["fq"], true),
            (Udp, Txtime, &[], false),
        ] {
            let kinds: Vec<_> = kinds.iter().map(|&kind| kind.to_owned()).collect();
            let doubt = unhonoured(&plan(protocol, by), &kinds, &Host::default());
            assert_eq!(doubt.is_none(), honoured, "{protocol} {by} {kinds:?}");
        }
    }

    #[test]
    fn sockets_are_told_in_the_units_of_whoever_keeps_the_rate() {
        let options = |plan: &Plan, part, ipv6| {
            let mut options = flow_options(plan, part);
            apply(&mut options, plan, part, &["etf".to_owned()], ipv6);
            options
        };
        let tcp = plan(Protocol::Tcp, Pacing::Socket);
        let udp = plan(Protocol::Udp, Pacing::Socket);
        assert_eq!(options(&tcp, Part::Source, false).max_rate, Some(1_000_000));
        assert_eq!(options(&udp, Part::Source, false).max_rate, Some(1_042_000));
        assert_eq!(options(&udp, Part::Source, true).max_rate, Some(1_062_000));
        assert_eq!(options(&udp, Part::Sink, true).max_rate, None);
        let timed = options(&plan(Protocol::Udp, Pacing::Txtime), Part::Source, false);
        assert_eq!(timed.departure_clock, Some(DepartureClock::Tai));
    }
}
