//! The sending application offers less than the path can carry.

use linerate_record::finding::Finding;
use linerate_record::ids::CauseId;
use linerate_record::plan::{RunKind, TransportProtocol};
use linerate_record::record::FlowEnd;
use linerate_stats::units::{format_bit_rate, format_share};

use super::{is_paced, schedstat_source, tcp_info_source};
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent, size};
use crate::run_view::{DirectionView, RunView};

/// Send buffer from which a sender does not wait for space unless it is full.
const LARGE_BUFFER_BYTES: u64 = 256 << 10;

/// Smallest received share of a requested rate, and largest loss share of it.
const MIN_RECEIVED_SHARE: f64 = 0.95;
const MAX_LOSS_SHARE: f64 = 0.005;

/// Smallest call whose bytes cost more than the call, in bytes, and largest loss share without
/// losses.
const MIN_CALL_BYTES: u64 = 4096;
const MAX_IDLE_LOSS_SHARE: f64 = 0.001;

/// Smallest share of the time without data to send that matters.
const MIN_RELEVANT_SHARE: f64 = 0.35;

/// See docs/CAUSES.md#slow-sender-application.
pub struct SlowSenderApplication;

impl Rule for SlowSenderApplication {
    fn id(&self) -> CauseId {
        CauseId::SlowSenderApplication
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "The sending program offers less than the path can carry.",
            shown_when: vec![detection(
                "TCP",
                [
                    format!(
                        "the sender has no data in flight and idle time for {} of the time or more",
                        percent(MIN_RELEVANT_SHARE)
                    ),
                    format!(
                        "the send buffer has {} or more, and calls have {} or more",
                        size(LARGE_BUFFER_BYTES),
                        size(MIN_CALL_BYTES)
                    ),
                ],
            )],
            limit_when: vec![format!(
                "a rate was requested, {} of it was received, and {} at most was lost; over UDP the \
                 loss must be known",
                percent(MIN_RECEIVED_SHARE),
                percent(MAX_LOSS_SHARE)
            )],
            not_when: vec![
                "the path is full".into(),
                "`bbr` is in use: pacing by the kernel looks the same".into(),
                format!(
                    "more than {} of the segments are lost",
                    percent(MAX_IDLE_LOSS_SHARE)
                ),
                "a single burst of the requested rate is most of the run".into(),
            ],
            evidence: &[
                ("requested rate", "bit/s"),
                ("goodput_bps", "bit/s"),
                ("tcpi_busy_time", "share"),
                ("idle time of the sending threads", "share"),
                ("SO_SNDBUF", "B"),
            ],
            cost: vec!["That share; all of it for a rate that was received.".into()],
            remedy: vec![
                "Request a higher rate.".into(),
                "Check what the program waits for (`--calls`).".into(),
            ],
            wrong_when: vec!["the kernel paces for the program".into()],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        if run.plan.kind != RunKind::Throughput {
            return Vec::new();
        }
        let directions = run.directions.iter();
        let of = |direction| match is_paced(run) {
            true => self.evaluate_requested_rate(run, direction),
            false => self.evaluate_idle_sender(run, direction),
        };
        directions.filter_map(of).collect()
    }
}

/// Describes the received share; datagrams without sequence numbers give only the received rate.
fn describe_received(
    requested: f64,
    protocol: TransportProtocol,
    loss: Option<f64>,
    goodput: f64,
) -> String {
    let requested = format!("the requested {}", format_bit_rate(requested));
    match (protocol, loss) {
        (TransportProtocol::Udp, None) => {
            format!("of {requested}, {} were received", format_bit_rate(goodput))
        }
        (TransportProtocol::Udp, Some(loss)) if loss > 0.0 => {
            format!("{requested} were received but for {}", format_share(loss))
        }
        _ => format!("{requested} were received"),
    }
}

impl SlowSenderApplication {
    /// The user requested this rate.
    fn evaluate_requested_rate(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let flows = direction.streams().len().max(1) as f64;
        let rate = run.plan.rate_bps.map(|rate| rate as f64).or_else(|| {
            let packets = run.plan.pace.packets_per_second? as f64;
            Some(packets * run.plan.payload_bytes as f64 * 8.0)
        })? * flows;
        let goodput = direction.goodput()?;
        // Over UDP, a byte count without a datagram count does not prove that all arrived.
        let loss = direction.summary().loss_fraction;
        let lost = match run.plan.protocol {
            TransportProtocol::Udp => loss.is_none_or(|loss| loss > MAX_LOSS_SHARE),
            TransportProtocol::Tcp => loss.is_some_and(|loss| loss > MAX_LOSS_SHARE),
        };
        if goodput < MIN_RECEIVED_SHARE * rate
            || lost
            || direction.fills_path()
            || run.is_rate_too_coarse()
        {
            return None;
        }
        FindingBuilder::limit(self.id(), direction.sender)
            .direction(direction.direction)
            .cost(1.0)
            .summary(format!(
                "{}; no other limit was reached",
                describe_received(
                    rate,
                    run.plan.protocol,
                    direction.summary().loss_fraction,
                    goodput
                )
            ))
            .evidence("requested rate", rate, "bit/s", "plan")
            .evidence("goodput_bps", goodput, "bit/s", "receiver")
            .remedy("request a higher rate to find the limit")
            .command(match run.plan.protocol {
                TransportProtocol::Udp => run.rerun_slower(2.0 * rate / flows),
                TransportProtocol::Tcp => run.rerun_without(&["bitrate", "pps", "pacing"], ""),
            })
            .build()
    }

    /// The sender had time and buffer space, and did not send.
    fn evaluate_idle_sender(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        if run.plan.protocol != TransportProtocol::Tcp || direction.fills_path() {
            return None;
        }
        let tcp = direction.tcp()?;
        let busy = tcp.busy_share?;
        let time = direction.thread_time(FlowEnd::Sender)?;
        let buffer_bytes = direction.send_buffer()?;
        let idle = (1.0 - busy).min(time.free_share());
        if idle < MIN_RELEVANT_SHARE
            || buffer_bytes < LARGE_BUFFER_BYTES
            || run.plan.payload_bytes < MIN_CALL_BYTES
        {
            return None;
        }
        // A sender that waits for the receiver or the congestion window counts as busy. Pacing by
        // the kernel looks the same as an idle sender.
        if direction
            .congestion_control()
            .is_some_and(|name| name.starts_with("bbr"))
            || tcp.loss_share() > MAX_IDLE_LOSS_SHARE
        {
            return None;
        }
        let role = direction.sender;
        FindingBuilder::cause(self.id(), role)
            .direction(direction.direction)
            .cost(idle)
            .summary(format!(
                "the {}'s application had no data in flight for {} of the time, with space in its \
                 socket buffer and an idle CPU",
                role.as_str(),
                format_share(idle)
            ))
            .evidence("tcpi_busy_time", busy, "share", tcp_info_source(role))
            .evidence(
                "idle time of the sending threads",
                time.free_share(),
                "share",
                schedstat_source(role),
            )
            .evidence(
                "SO_SNDBUF",
                buffer_bytes,
                "B",
                format!("{} socket", role.as_str()),
            )
            .remedy(
                "check what the sending application waits for: a disk, another peer, a timer, a \
                 debugger",
            )
            .command(run.rerun_with_calls())
            .estimated_gain(
                Some(1.0 / (1.0 - idle).max(0.05)),
                "1 / (1 - share of the time without data to send)",
            )
            .build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_counted_data_is_reported_as_received() {
        for (protocol, loss, expected) in [
            (
                TransportProtocol::Tcp,
                None,
                "the requested 10.0 Mb/s were received",
            ),
            (
                TransportProtocol::Udp,
                Some(0.0),
                "the requested 10.0 Mb/s were received",
            ),
            (
                TransportProtocol::Udp,
                Some(0.004),
                "the requested 10.0 Mb/s were received but for 0.40 %",
            ),
            (
                TransportProtocol::Udp,
                None,
                "of the requested 10.0 Mb/s, 9.90 Mb/s were received",
            ),
        ] {
            assert_eq!(
                describe_received(10e6, protocol, loss, 9.9e6),
                expected,
                "{protocol} {loss:?}"
            );
        }
    }
}
