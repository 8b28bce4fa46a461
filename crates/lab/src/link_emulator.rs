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

use linerate_host::sys::readiness::{Ready, poll};
use linerate_metric::units::{written_duration, written_share};
use rustix::net::{SendFlags, send};

use crate::error::LabError;
use crate::holder::this_program;
use crate::namespace::Namespace;
use crate::netlink::Netlink;
use crate::qdisc::Netem;
use crate::topology::Link;

/// Subcommand step that emulates a link; two interface names and the mode follow.
pub const LINK: &str = "link";
/// Line that the step prints once frames pass, and as the reply to a status request while they do.
pub const PASSING: &str = "passing";
/// Time allowed for a status reply. A process that gets no CPU for that long counts as running.
pub(crate) const ANSWERS: Duration = Duration::from_secs(1);

/// Offloads that create frames larger than the link's MTU; the emulator would have to split them.
pub(crate) const LARGE_SENDS: [&str; 3] = ["tso", "gso", "tx-udp-segmentation"];

/// Smallest number of in-flight frames that an emulated link holds.
const LEAST_FRAMES: u64 = 4096;
/// Largest number of in-flight frames; 2 KB each.
const MOST_FRAMES: u64 = 131_072;
/// Full frames per second of delay when the link has no rate: 1 Gb/s.
const FRAMES_PER_SECOND: u64 = 81_274;

/// Returns whether this kernel has netem, tried in a temporary namespace.
pub(crate) fn has_netem() -> Result<bool, LabError> {
    let space = Namespace::new(|| {})?;
    space.run(|| {
        let mut netlink = Netlink::open()?;
        let index = netlink.link("lo")?.index;
        let plain = Netem {
            delay_ns: 0,
            jitter_ns: 0,
            loss: 0.0,
            reorder: 0.0,
            limit: 1000,
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
fn mode(link: &Link) -> Option<String> {
    let netem = Netem::of(link)?;
    let time = |ns: i64| written_duration(u64::try_from(ns).unwrap_or(0));
    let mut words = vec![
        format!("delay={}", time(netem.delay_ns)),
        format!("jitter={}", time(netem.jitter_ns)),
    ];
    for (name, share) in [("loss", netem.loss), ("reorder", netem.reorder)] {
        if share > 0.0 {
            words.push(format!("{name}={}", written_share(share)));
        }
    }
    words.push(format!("limit={}", frames(link)));
    Some(format!("link:{}", words.join(",")))
}

/// Returns the limit of in-flight frames: twice the product of rate and delay.
fn frames(link: &Link) -> u64 {
    let seconds = [link.delay, link.jitter].into_iter().flatten();
    let seconds: f64 = seconds.map(|time| time.as_secs_f64()).sum();
    let per_second = link.rate.map_or(FRAMES_PER_SECOND, |rate| {
        rate.0 / 8 / u64::from(link.mtu().max(64))
    });
    ((seconds * per_second as f64 * 2.0) as u64).clamp(LEAST_FRAMES, MOST_FRAMES)
}

/// Process that forwards the frames of one link.
#[derive(Debug)]
pub(crate) struct Emulator {
    child: Child,
    /// Peer of the process's standard input.
    questions: UnixStream,
    /// Read end of the process's standard output.
    said: File,
    /// Reason for the exit, set once it was read.
    why: OnceLock<String>,
    /// Set once the veth interfaces were taken down after the exit.
    cut: AtomicBool,
}

/// Longest line read from the process.
const LAST_WORDS_BYTES: usize = 4096;

/// Reads the next line, or the rest of the output at its end.
fn line(mut said: &File) -> String {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while line.len() < LAST_WORDS_BYTES && matches!(said.read(&mut byte), Ok(1)) {
        if byte == *b"\n" {
            break;
        }
        line.push(byte[0]);
    }
    String::from_utf8_lossy(&line).trim().to_owned()
}

impl Emulator {
    /// Starts the process between two interfaces of a namespace and waits until frames pass.
    pub(crate) fn start(
        space: &Namespace,
        link: &Link,
        interfaces: [&str; 2],
    ) -> Result<Self, LabError> {
        let refused = |why: String| LabError::NotEmulated {
            link: link.label(),
            why,
        };
        let Some(mode) = mode(link) else {
            return Err(refused("the link has nothing to emulate".to_owned()));
        };
        // A process is created in the namespace of the thread that starts it.
        let spawned = space.run(|| {
            let mut program = this_program(LINK);
            program
                .args(interfaces)
                .args([mode, link.mtu().to_string()])
                .stderr(Stdio::null());
            Self::spawn(program)
        })?;
        let emulator =
            spawned.map_err(|error| LabError::system("start a link's process", error))?;
        match line(&emulator.said).as_str() {
            PASSING => Ok(emulator),
            // Another program (a test, an example) does not know the step and prints nothing.
            "" => Err(refused("this program has no link emulator".to_owned())),
            why => Err(refused(why.to_owned())),
        }
    }

    fn spawn(mut program: Command) -> io::Result<Self> {
        let (near, far) = UnixStream::pair()?;
        program.stdin(OwnedFd::from(far)).stdout(Stdio::piped());
        let mut child = program.spawn()?;
        let out = child.stdout.take().expect("it is piped");
        Ok(Self {
            child,
            questions: near,
            said: OwnedFd::from(out).into(),
            why: OnceLock::new(),
            cut: AtomicBool::new(false),
        })
    }

    /// Requests a status reply; [`Emulator::ended_by`] reads it.
    pub(crate) fn ask(&self) {
        // Discards replies to earlier requests.
        let _ = self.ended();
        // Errors are ignored: an exited process closes its output, and a stopped one never drains
        // it.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = send(&self.questions, b"?", flags);
    }

    /// Returns the reason why frames no longer pass, as far as it was reported; `None` while they
    /// do.
    pub(crate) fn ended(&self) -> Option<&str> {
        self.ended_by(Instant::now())
    }

    /// Returns the same after a status request; waits for the reply until the deadline.
    ///
    /// Only the output counts, not the process id: a lab's holder has a PID namespace of its own
    /// while `/proc` may show another one, and a parent that reaps all children may have reaped
    /// this one.
    pub(crate) fn ended_by(&self, mut until: Instant) -> Option<&str> {
        while self.why.get().is_none() && self.speaks(until) {
            let why = match line(&self.said) {
                answer if answer == PASSING => {
                    // Lines printed before the reply are there already.
                    until = Instant::now();
                    continue;
                }
                silence if silence.is_empty() => "it was killed".to_owned(),
                words => words,
            };
            let _ = self.why.set(why);
        }
        self.why.get().map(String::as_str)
    }

    /// Returns whether the output is readable or closed by the deadline.
    fn speaks(&self, until: Instant) -> bool {
        let time = until.saturating_duration_since(Instant::now());
        poll(&self.said, Ready::Receive, time).unwrap_or(false)
    }

    /// Marks the interfaces as taken down; returns true on the first call only.
    pub(crate) fn is_first_cut(&self) -> bool {
        !self.cut.swap(true, Relaxed)
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // The process would exit with its input anyway; killing it saves the wait. It may have been
        // reaped already.
        let _ = self.questions.shutdown(Shutdown::Both);
        if self.ended().is_none() {
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
    fn a_link_as_the_forwarder_is_told() {
        let link = Link {
            delay: Some(Duration::from_millis(10)),
            jitter: Some(Duration::from_micros(500)),
            loss: Some(0.001),
            reorder: Some(0.25),
            ..Link::between("a", "b")
        };
        assert_eq!(
            mode(&link).as_deref(),
            Some("link:delay=10ms,jitter=500us,loss=0.1%,reorder=25%,limit=4096")
        );
        assert_eq!(mode(&Link::between("a", "b")), None);
        let long = Link {
            delay: Some(Duration::from_millis(300)),
            ..Link::between("a", "b")
        };
        assert_eq!(frames(&long), 48_764);
    }

    /// Starts a shell command in place of a link's process.
    fn emulator(line: &str) -> Emulator {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]);
        Emulator::spawn(command).expect("there is a shell")
    }

    /// Polls until the process has reported its end.
    fn why(emulator: &Emulator) -> &str {
        loop {
            match emulator.ended() {
                Some(why) => return why,
                None => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn the_end_of_a_link_is_seen_whoever_reaped_its_process() {
        let mut killed = emulator("read line");
        assert_eq!(killed.ended(), None);
        killed.child.kill().unwrap();
        killed.child.wait().unwrap();
        assert_eq!(why(&killed), "it was killed");

        let mut faulty = emulator("read line; echo its interface went away; read line");
        assert_eq!(faulty.ended(), None);
        std::io::Write::write_all(&mut faulty.questions, b"go on\n").unwrap();
        // The reported reason counts even before the process exits.
        assert_eq!(why(&faulty), "its interface went away");
        assert_eq!(faulty.ended(), Some("its interface went away"));
    }

    /// Without a request the process would report some time later.
    #[test]
    fn a_link_that_is_asked_says_at_once_how_it_is() {
        // One byte at a time, as no line end follows.
        let hear = "dd bs=1 count=1 2> /dev/null > /dev/null";
        let line = format!("{hear}; echo passing; {hear}; echo its threads ended; {hear}");
        let asked = emulator(&line);
        let now = || {
            asked.ask();
            asked.ended_by(Instant::now() + Duration::from_secs(60))
        };
        assert_eq!(now(), None);
        assert_eq!(asked.ended(), None, "a reply is not a reason");
        assert_eq!(now(), Some("its threads ended"));

        let mut killed = emulator(hear);
        killed.child.kill().unwrap();
        killed.ask();
        let ended = killed.ended_by(Instant::now() + Duration::from_secs(60));
        assert_eq!(ended, Some("it was killed"));
        killed.child.wait().unwrap();
        // The peer is gone: the send must not raise SIGPIPE.
        killed.ask();
    }
}
