//! Export of timelines to trace viewers.

mod chrome;
mod perfetto;

pub use chrome::chrome;
pub use perfetto::perfetto;

use linerate_metric::facts::Role;
use linerate_metric::timeline::{Lane, Slice};

/// Row in a viewer: a lane of one host, split by CPU where the CPU is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Track {
    role: Role,
    lane: Lane,
    cpu: Option<u32>,
    thread: Option<u32>,
}

impl Track {
    fn of(slice: &Slice) -> Self {
        Self {
            role: slice.role,
            lane: slice.lane,
            cpu: slice.cpu,
            thread: slice.thread,
        }
    }

    fn name(self) -> String {
        match (self.lane, self.cpu) {
            (Lane::Thread, _) => match self.thread {
                Some(thread) => format!("measuring thread {}", thread + 1),
                None => "measuring thread".to_owned(),
            },
            // The kernel's network stack or the user-space stack.
            (Lane::Kernel, _) => "packets in the stack".to_owned(),
            (Lane::Driver, Some(cpu)) => format!("receive work, cpu {cpu}"),
            (Lane::Driver, None) => "receive work".to_owned(),
        }
    }
}

/// Returns process id and name of a host in the trace.
fn process(role: Role) -> (u32, &'static str) {
    match role {
        Role::Client => (1, "client"),
        Role::Server => (2, "server"),
    }
}

#[cfg(test)]
pub(crate) fn sample() -> linerate_metric::timeline::Timeline {
    let slice = |role, lane, name: &str, start_ns, end_ns, trip| Slice {
        role,
        lane,
        name: name.to_owned(),
        start_ns,
        end_ns,
        trip,
        cpu: (lane == Lane::Driver).then_some(1),
        thread: None,
    };
    linerate_metric::timeline::Timeline {
        slices: vec![
            slice(Role::Client, Lane::Thread, "send", 100, 400, Some(7)),
            slice(Role::Client, Lane::Kernel, "stack-out", 100, 250, Some(7)),
            slice(Role::Client, Lane::Kernel, "qdisc", 250, 300, Some(7)),
            slice(Role::Server, Lane::Driver, "net-rx", 320, 360, None),
            slice(Role::Server, Lane::Thread, "receive", 330, 900, Some(7)),
            slice(
                Role::Client,
                Lane::Thread,
                "receive",
                400,
                2_500_000_000,
                Some(7),
            ),
        ],
        ..Default::default()
    }
}
