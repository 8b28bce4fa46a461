//! Export of timelines to trace viewers.

mod chrome;
mod perfetto;

use linerate_record::facts::Role;
use linerate_record::timeline::{TimelineSlice, TimelineTrack};

pub use chrome::chrome;
pub use perfetto::perfetto;

/// Row in a viewer: a track of one host, split by CPU where the CPU is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ViewerTrack {
    role: Role,
    track: TimelineTrack,
    cpu: Option<u32>,
    thread: Option<u32>,
}

impl ViewerTrack {
    fn of_slice(slice: &TimelineSlice) -> Self {
        Self {
            role: slice.role,
            track: slice.track,
            cpu: slice.cpu,
            thread: slice.thread,
        }
    }

    fn name(self) -> String {
        match (self.track, self.cpu) {
            (TimelineTrack::Thread, _) => match self.thread {
                Some(thread) => format!("measuring thread {}", thread + 1),
                None => "measuring thread".to_owned(),
            },
            // The kernel's network stack or the user-space stack.
            (TimelineTrack::Kernel, _) => "packets in the stack".to_owned(),
            (TimelineTrack::Driver, Some(cpu)) => format!("receive work, cpu {cpu}"),
            (TimelineTrack::Driver, None) => "receive work".to_owned(),
        }
    }
}

/// Returns process id and name of a host in the trace.
fn process_of_role(role: Role) -> (u32, &'static str) {
    let id = match role {
        Role::Client => 1,
        Role::Server => 2,
    };
    (id, role.as_str())
}

#[cfg(test)]
pub(crate) fn sample() -> linerate_record::timeline::Timeline {
    let slice = |role, track, name: &str, start_ns, end_ns, round_trip| TimelineSlice {
        role,
        track,
        name: name.to_owned(),
        start_ns,
        end_ns,
        round_trip,
        cpu: (track == TimelineTrack::Driver).then_some(1),
        thread: None,
    };
    linerate_record::timeline::Timeline {
        slices: vec![
            slice(
                Role::Client,
                TimelineTrack::Thread,
                "send",
                100,
                400,
                Some(7),
            ),
            slice(
                Role::Client,
                TimelineTrack::Kernel,
                "stack-out",
                100,
                250,
                Some(7),
            ),
            slice(
                Role::Client,
                TimelineTrack::Kernel,
                "qdisc",
                250,
                300,
                Some(7),
            ),
            slice(
                Role::Server,
                TimelineTrack::Driver,
                "net-rx",
                320,
                360,
                None,
            ),
            slice(
                Role::Server,
                TimelineTrack::Thread,
                "receive",
                330,
                900,
                Some(7),
            ),
            slice(
                Role::Client,
                TimelineTrack::Thread,
                "receive",
                400,
                2_500_000_000,
                Some(7),
            ),
        ],
        ..Default::default()
    }
}
