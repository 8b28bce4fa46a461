//! Links with delay, jitter, loss or reordering on kernels without netem: a process of this program
//! forwards their frames.
//!
//! ```text
//! host A                one namespace for all such links            host B
//! eth0 ── veth ── w0a ── lab-holder link w0a w0b ── w0b ── veth ── eth0
//! ```
//!
//! The process has a socket as its standard input and exits when that closes, so it never outlives
//! the lab. Its standard output reports its state: end of file when the process is gone, and the
//! last line is the reason. A byte on its standard input requests a check of whether frames pass.
//! The process also checks periodically by itself; the request gives a result at once.

use std::fs::File;
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use linerate_stats::units::{format_exact_duration, format_exact_share};
use linerate_sys::readiness::{Readiness, poll};
use rustix::net::{SendFlags, send};

use crate::error::LabError;
use crate::holder_command::{LINK_STEP, this_program};
use crate::namespace::NetNamespace;
use crate::netlink::NetlinkSocket;
use crate::qdisc::Netem;
use crate::topology::LinkSpec;

/// Line that the step prints once frames pass, and as the reply to a status request while they do.
pub const PASSING_REPLY: &str = "passing";
/// Time allowed for a status reply. A process that gets no CPU for that long counts as running.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// Offloads that create frames larger than the link's MTU; the emulator would have to split them.
pub(crate) const SEGMENTATION_OFFLOADS: [&str; 3] = ["tso", "gso", "tx-udp-segmentation"];

/// Smallest number of in-flight frames that an emulated link holds.
const MIN_FRAMES: u64 = 4096;
/// Largest number of in-flight frames; 2 KB each.
const MAX_FRAMES: u64 = 131_072;
/// Full frames per second of delay when the link has no rate: 1 Gb/s.
const DEFAULT_FRAMES_PER_SECOND: u64 = 81_274;

/// Returns whether this kernel has netem, tried in a temporary namespace.
pub(crate) fn has_netem() -> Result<bool, LabError> {
    let space = NetNamespace::new(|| {})?;
    space.run(|| {
        let mut netlink = NetlinkSocket::open()?;
        let index = netlink.link("lo")?.index;
        let plain = Netem {
            delay_ns: 0,
            jitter_ns: 0,
            loss: 0.0,
            reorder: 0.0,
            limit_packets: 1000,
        };
        match netlink.add_qdisc(index, "netem", 1, None, plain.encode()) {
            Ok(()) => Ok(true),
            Err(LabError::Kernel { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                Ok(false)
            }
            Err(other) => Err(other),
        }
    })?
}

/// Returns the forwarder's mode for a link: `link:delay=10ms,loss=1%,limit=16384`.
fn link_mode(link: &LinkSpec) -> Option<String> {
    let netem = Netem::from_link(link)?;
    let time = |ns: i64| format_exact_duration(u64::try_from(ns).unwrap_or(0));
    let mut options = vec![
        format!("delay={}", time(netem.delay_ns)),
        format!("jitter={}", time(netem.jitter_ns)),
    ];
    for (name, share) in [("loss", netem.loss), ("reorder", netem.reorder)] {
        if share > 0.0 {
            options.push(format!("{name}={}", format_exact_share(share)));
        }
    }
    options.push(format!("limit={}", frame_limit(link)));
    Some(format!("link:{}", options.join(",")))
}

/// Returns the limit of in-flight frames: twice the product of rate and delay.
fn frame_limit(link: &LinkSpec) -> u64 {
    let seconds = [link.delay, link.jitter].into_iter().flatten();
    let seconds: f64 = seconds.map(|time| time.as_secs_f64()).sum();
    let per_second = link.rate.map_or(DEFAULT_FRAMES_PER_SECOND, |rate| {
        rate.0 / 8 / u64::from(link.mtu().max(64))
    });
    ((seconds * per_second as f64 * 2.0) as u64).clamp(MIN_FRAMES, MAX_FRAMES)
}

/// Process that forwards the frames of one link.
#[derive(Debug)]
pub(crate) struct LinkEmulator {
    child: Child,
    /// Peer of the process's standard input.
    status_socket: UnixStream,
    /// Read end of the process's standard output.
    output: File,
    /// Reason for the exit, set once it was read.
    exit_reason: OnceLock<String>,
    /// Set once the veth interfaces were taken down after the exit.
    disconnected: AtomicBool,
}

/// Longest line read from the process.
const MAX_LINE_BYTES: usize = 4096;

/// Reads the next line, or the rest of the output at its end.
fn read_line(mut output: &File) -> String {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while line.len() < MAX_LINE_BYTES && matches!(output.read(&mut byte), Ok(1)) {
        if byte == *b"\n" {
            break;
        }
        line.push(byte[0]);
    }
    String::from_utf8_lossy(&line).trim().to_owned()
}

impl LinkEmulator {
    /// Starts the process between two interfaces of a namespace and waits until frames pass.
    pub(crate) fn start(
        space: &NetNamespace,
        link: &LinkSpec,
        interfaces: [&str; 2],
    ) -> Result<Self, LabError> {
        let not_emulated = |reason: String| LabError::NotEmulated {
            link: link.label(),
            reason,
        };
        let Some(mode) = link_mode(link) else {
            return Err(not_emulated("the link has nothing to emulate".to_owned()));
        };
        // A process is created in the namespace of the thread that starts it.
        let spawned = space.run(|| {
            let mut program = this_program(LINK_STEP);
            program
                .args(interfaces)
                .args([mode, link.mtu().to_string()])
                .stderr(Stdio::null());
            Self::spawn(program)
        })?;
        let emulator =
            spawned.map_err(|error| LabError::system("start a link's process", error))?;
        match read_line(&emulator.output).as_str() {
            PASSING_REPLY => Ok(emulator),
            // Another program (a test, an example) does not know the step and prints nothing.
            "" => Err(not_emulated("this program has no link emulator".to_owned())),
            reason => Err(not_emulated(reason.to_owned())),
        }
    }

    fn spawn(mut program: Command) -> io::Result<Self> {
        let (local, remote) = UnixStream::pair()?;
        program.stdin(OwnedFd::from(remote)).stdout(Stdio::piped());
        let mut child = program.spawn()?;
        let out = child.stdout.take().expect("it is piped");
        Ok(Self {
            child,
            status_socket: local,
            output: OwnedFd::from(out).into(),
            exit_reason: OnceLock::new(),
            disconnected: AtomicBool::new(false),
        })
    }

    /// Requests a status reply; [`LinkEmulator::wait_exit_reason`] reads it.
    pub(crate) fn request_status(&self) {
        // Discards replies to earlier requests.
        let _ = self.exit_reason();
        // Errors are ignored: an exited process closes its output, and a stopped one never drains
        // it.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = send(&self.status_socket, b"?", flags);
    }

    /// Returns the reason why frames no longer pass, as far as it was reported; `None` while they
    /// do.
    pub(crate) fn exit_reason(&self) -> Option<&str> {
        self.wait_exit_reason(Instant::now())
    }

    /// Returns the same after a status request; waits for the reply until the deadline.
    ///
    /// Only the output counts, not the process id: a lab's holder has a PID namespace of its own
    /// while `/proc` may show another one, and a parent that reaps all children may have reaped
    /// this one.
    pub(crate) fn wait_exit_reason(&self, mut deadline: Instant) -> Option<&str> {
        while self.exit_reason.get().is_none() && self.is_readable(deadline) {
            let reason = match read_line(&self.output) {
                reply if reply == PASSING_REPLY => {
                    // Lines printed before the reply are there already.
                    deadline = Instant::now();
                    continue;
                }
                end_of_output if end_of_output.is_empty() => "it was killed".to_owned(),
                message => message,
            };
            let _ = self.exit_reason.set(reason);
        }
        self.exit_reason.get().map(String::as_str)
    }

    /// Returns whether the output is readable or closed by the deadline.
    fn is_readable(&self, deadline: Instant) -> bool {
        let time = deadline.saturating_duration_since(Instant::now());
        poll(&self.output, Readiness::Receive, time).unwrap_or(false)
    }

    /// Marks the interfaces as taken down; returns true on the first call only.
    pub(crate) fn mark_disconnected(&self) -> bool {
        !self.disconnected.swap(true, Relaxed)
    }
}

impl Drop for LinkEmulator {
    fn drop(&mut self) {
        // The process would exit with its input anyway; killing it saves the wait. It may have been
        // reaped already.
        let _ = self.status_socket.shutdown(Shutdown::Both);
        if self.exit_reason().is_none() {
            // Not after its exit: the process id may belong to another process by now.
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_of_a_link_is_written_for_the_forwarder() {
        let link = LinkSpec {
            delay: Some(Duration::from_millis(10)),
            jitter: Some(Duration::from_micros(500)),
            loss: Some(0.001),
            reorder: Some(0.25),
            ..LinkSpec::between("a", "b")
        };
        assert_eq!(
            link_mode(&link).as_deref(),
            Some("link:delay=10ms,jitter=500us,loss=0.1%,reorder=25%,limit=4096")
        );
        assert_eq!(link_mode(&LinkSpec::between("a", "b")), None);
        let long = LinkSpec {
            delay: Some(Duration::from_millis(300)),
            ..LinkSpec::between("a", "b")
        };
        assert_eq!(frame_limit(&long), 48_764);
    }

    /// Starts a shell command in place of a link's process.
    fn shell_emulator(line: &str) -> LinkEmulator {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]);
        LinkEmulator::spawn(command).expect("there is a shell")
    }

    /// Polls until the process has reported its end.
    fn wait_for_exit(emulator: &LinkEmulator) -> &str {
        loop {
            match emulator.exit_reason() {
                Some(reason) => return reason,
                None => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn the_end_of_a_link_is_seen_after_its_process_was_reaped() {
        let mut killed = shell_emulator("read line");
        assert_eq!(killed.exit_reason(), None);
        killed.child.kill().unwrap();
        killed.child.wait().unwrap();
        assert_eq!(wait_for_exit(&killed), "it was killed");

        let mut faulty = shell_emulator("read line; echo its interface went away; read line");
        assert_eq!(faulty.exit_reason(), None);
        std::io::Write::write_all(&mut faulty.status_socket, b"go on\n").unwrap();
        // The reported reason counts even before the process exits.
        assert_eq!(wait_for_exit(&faulty), "its interface went away");
        assert_eq!(faulty.exit_reason(), Some("its interface went away"));
    }

    /// Without a request the process would report some time later.
    #[test]
    fn a_link_replies_to_a_status_request_at_once() {
        // One byte at a time, as no line end follows.
        let read_byte = "dd bs=1 count=1 2> /dev/null > /dev/null";
        let line =
            format!("{read_byte}; echo passing; {read_byte}; echo its threads ended; {read_byte}");
        let running = shell_emulator(&line);
        let now = || {
            running.request_status();
            running.wait_exit_reason(Instant::now() + Duration::from_secs(60))
        };
        assert_eq!(now(), None);
        assert_eq!(running.exit_reason(), None, "a reply is not a reason");
        assert_eq!(now(), Some("its threads ended"));

        let mut killed = shell_emulator(read_byte);
        killed.child.kill().unwrap();
        killed.request_status();
        let ended = killed.wait_exit_reason(Instant::now() + Duration::from_secs(60));
        assert_eq!(ended, Some("it was killed"));
        killed.child.wait().unwrap();
        // The peer is gone: the send must not raise SIGPIPE.
        killed.request_status();
    }
}
