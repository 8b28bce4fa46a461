//! Grants of a server that this process cannot honour: tried once at the start.

use std::io;

use linerate_host::settings::idle_hold::hold_idle_states;
use linerate_record::ids::CaveatId;
use linerate_record::record::Caveat;
use linerate_sys::perf_events::{Tracepoint, TracepointRecorder, find_tracepoint_ids};
use linerate_sys::{cpu, scheduling, socket};
use socket2::{Domain, Socket, Type};

use crate::options::{GRANTS, Grant};

/// Returns a warning for each grant that this process cannot honour, with the privilege it lacks.
pub fn unprivileged(grants: &[Grant]) -> Vec<Caveat> {
    unprivileged_by(grants, probe)
}

fn unprivileged_by(grants: &[Grant], honours: impl Fn(Grant) -> io::Result<()>) -> Vec<Caveat> {
    GRANTS
        .iter()
        .filter(|(_, grant)| grants.contains(grant))
        .filter_map(|&(name, grant)| {
            let error = honours(grant).err()?;
            Some(Caveat::new(
                CaveatId::GrantWithoutPrivilege,
                format!(
                    "--grant {name} cannot be honoured ({error}): it needs {}; clients that request \
                     it run without it, or are rejected",
                    required_privilege(grant)
                ),
            ))
        })
        .collect()
}

/// Returns the privilege that a grant needs, in the kernel's terms.
fn required_privilege(grant: Grant) -> &'static str {
    match grant {
        Grant::Idle => "root, or write access to /dev/cpu_dma_latency",
        Grant::Sched => "CAP_SYS_NICE, or limits for it (`ulimit -r`, `ulimit -e`)",
        Grant::Buffers | Grant::Socket | Grant::Tune => "CAP_NET_ADMIN",
        Grant::Trace => "CAP_PERFMON and a readable tracefs",
        Grant::Load | Grant::Multicast => "nothing",
    }
}

/// Tries what a grant allows, and releases it at once.
fn probe(grant: Grant) -> io::Result<()> {
    match grant {
        Grant::Idle => hold_idle_states().map(drop),
        // In a thread of its own, so that this one keeps its scheduling.
        Grant::Sched => std::thread::spawn(|| scheduling::set_fifo(1))
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the probe thread panicked"))),
        // One privilege covers both.
        Grant::Buffers | Grant::Socket => {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
            socket::force_send_buffer(&socket, 1 << 16)
        }
        Grant::Trace => {
            let ids = find_tracepoint_ids(&["sched/sched_waking"])?;
            let tracepoints: Vec<_> = (ids.into_iter())
                .map(|id| Tracepoint {
                    id,
                    filter: String::new(),
                })
                .collect();
            let first = cpu::list_usable()?.into_iter().take(1).collect::<Vec<_>>();
            TracepointRecorder::start(&tracepoints, &first).map(drop)
        }
        // Writes the current value back.
        Grant::Tune => {
            let file = "/proc/sys/net/ipv4/tcp_rmem";
            std::fs::write(file, std::fs::read(file)?)
        }
        // Needs no privilege.
        Grant::Load | Grant::Multicast => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unprivileged_grant_is_named_with_its_privilege() {
        let denied_by_kernel = |_| Err(io::ErrorKind::PermissionDenied.into());
        assert!(unprivileged_by(&[], denied_by_kernel).is_empty());
        let warnings = unprivileged_by(&[Grant::Buffers, Grant::Sched], denied_by_kernel);
        let reasons: Vec<_> = warnings
            .iter()
            .map(|caveat| caveat.reason.as_str())
            .collect();
        assert_eq!(reasons.len(), 2);
        assert!(reasons[0].contains("--grant sched") && reasons[0].contains("CAP_SYS_NICE"));
        assert!(reasons[1].contains("--grant buffers") && reasons[1].contains("CAP_NET_ADMIN"));
        assert!(unprivileged_by(&[Grant::Idle], |_| Ok(())).is_empty());
        // Grants without a privilege.
        assert!(unprivileged(&[Grant::Load, Grant::Multicast]).is_empty());
    }
}
