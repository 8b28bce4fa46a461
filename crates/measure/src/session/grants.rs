//! Grants of a server that this process cannot honour: tried once at the start.

use std::io;

use linerate_host::settings::idle_hold::idle_hold;
use linerate_host::sys::perf_events::{Tracepoint, Tracepoints, tracepoint_ids};
use linerate_host::sys::{cpu, scheduling, socket};
use linerate_metric::record::Doubt;
use socket2::{Domain, Socket, Type};

use super::server::{GRANTS, Grant};

/// Returns a warning for each grant that this process cannot honour, with the privilege it lacks.
pub fn lacking(grants: &[Grant]) -> Vec<Doubt> {
    lacking_by(grants, try_it)
}

fn lacking_by(grants: &[Grant], honours: impl Fn(Grant) -> io::Result<()>) -> Vec<Doubt> {
    GRANTS
        .iter()
        .filter(|(_, grant)| grants.contains(grant))
        .filter_map(|&(name, grant)| {
            let error = honours(grant).err()?;
            Some(Doubt::new(
                "grant-without-privilege",
                format!(
                    "--grant {name} cannot be honoured ({error}): it needs {}; clients that request \
                     it run without it, or are rejected",
                    needs(grant)
                ),
            ))
        })
        .collect()
}

/// Returns the privilege that a grant needs, in the kernel's terms.
fn needs(grant: Grant) -> &'static str {
    match grant {
        Grant::Idle => "root, or write access to /dev/cpu_dma_latency",
        Grant::Sched => "CAP_SYS_NICE, or limits for it (`ulimit -r`, `ulimit -e`)",
        Grant::Buffers | Grant::Socket | Grant::Tune => "CAP_NET_ADMIN",
        Grant::Trace => "CAP_PERFMON and a readable tracefs",
        Grant::Load | Grant::Multicast => "nothing",
    }
}

/// Tries what a grant allows, and releases it at once.
fn try_it(grant: Grant) -> io::Result<()> {
    match grant {
        Grant::Idle => idle_hold().map(drop),
        // In a thread of its own, so that this one keeps its scheduling.
        Grant::Sched => std::thread::spawn(|| scheduling::fifo(1))
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the probe thread panicked"))),
        // One privilege covers both.
        Grant::Buffers | Grant::Socket => {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
            socket::force_send_buffer(&socket, 1 << 16)
        }
        Grant::Trace => {
            let ids = tracepoint_ids(&["sched/sched_waking"])?;
            let wanted: Vec<_> = (ids.into_iter())
                .map(|id| Tracepoint {
                    id,
                    filter: String::new(),
                })
                .collect();
            let first = cpu::usable()?.into_iter().take(1).collect::<Vec<_>>();
            Tracepoints::open(&wanted, &first).map(drop)
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
    fn what_cannot_be_honoured_is_named_with_what_it_needs() {
        let refused = |_| Err(io::ErrorKind::PermissionDenied.into());
        assert!(lacking_by(&[], refused).is_empty());
        let said = lacking_by(&[Grant::Buffers, Grant::Sched], refused);
        let whys: Vec<_> = said.iter().map(|doubt| doubt.why.as_str()).collect();
        assert_eq!(whys.len(), 2);
        assert!(whys[0].contains("--grant sched") && whys[0].contains("CAP_SYS_NICE"));
        assert!(whys[1].contains("--grant buffers") && whys[1].contains("CAP_NET_ADMIN"));
        assert!(lacking_by(&[Grant::Idle], |_| Ok(())).is_empty());
        // Grants without a privilege.
        assert!(lacking(&[Grant::Load, Grant::Multicast]).is_empty());
    }
}
