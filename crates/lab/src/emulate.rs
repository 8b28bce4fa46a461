//! Links with delay, jitter, loss or reordering where the kernel has no netem: their frames pass
//! through a process of this program.
//!
//! ```text
//! host A                one namespace for all such links            host B
//! eth0 ── veth ── w0a ── lab-holder link w0a w0b ── w0b ── veth ── eth0
//! ```
//!
//! The process has a socket as its standard input and ends with it, so that it does not outlive the lab,
//! however that ends. Its standard output is the lab's way to see whether it is there: it ends with the
//! process, and what it says before is why. What comes in asks whether frames pass: it looks now and then by itself, and
//! whoever has to know at once cannot wait for that.

use std::fs::File;
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use linerate_host::sys::wait::{Ready, poll};
use linerate_metric::units::{written_duration, written_share};
use rustix::net::{SendFlags, send};

use crate::error::LabError;
use crate::holder::this_program;
use crate::namespace::Namespace;
use crate::netlink::Netlink;
use crate::shape::Netem;
use crate::topology::Link;

/// The step by which the program emulates a link: two interfaces and the mode follow.
pub const LINK: &str = "link";
/// What the step prints once frames pass, and as an answer while they do.
pub const PASSING: &str = "passing";
/// How long an answer may take: a process that gets no processor for so long is there all the same.
pub(crate) const ANSWERS: Duration = Duration::from_secs(1);

/// Offloads that make frames larger than the link's: a program in between would have to cut them.
pub(crate) const LARGE_SENDS: [&str; 3] = ["tso", "gso", "tx-udp-segmentation"];

/// Frames on their way that an emulated link has room for at least.
const LEAST_FRAMES: u64 = 4096;
/// And at most: 2 KB each.
const MOST_FRAMES: u64 = 131_072;
/// Frames on their way where the link's rate is not known, per second of delay: 1 Gb/s of full ones.
const FRAMES_PER_SECOND: u64 = 81_274;

/// Whether this kernel has netem, tried on a namespace of its own.
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

/// What the forwarder is told of a link: `link:delay=10ms,loss=1%,limit=16384`.
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

/// Frames that are on their way at most: those that its rate puts into its delay, twice.
fn frames(link: &Link) -> u64 {
    let seconds = [link.delay, link.jitter].into_iter().flatten();
    let seconds: f64 = seconds.map(|time| time.as_secs_f64()).sum();
    let per_second = link.rate.map_or(FRAMES_PER_SECOND, |rate| {
        rate.0 / 8 / u64::from(link.mtu().max(64))
    });
    ((seconds * per_second as f64 * 2.0) as u64).clamp(LEAST_FRAMES, MOST_FRAMES)
}

/// A link's process.
#[derive(Debug)]
pub(crate) struct Emulator {
    child: Child,
    /// The other end of its standard input.
    questions: UnixStream,
    /// Its standard output.
    said: File,
    /// Why it ended, once that was seen.
    why: OnceLock<String>,
    /// Whether its wire was taken away then.
    cut: AtomicBool,
}

/// What it says at most before it ends.
const LAST_WORDS_BYTES: usize = 4096;

/// The next line of a program, or what there is of it when its output ends.
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
    /// Starts it between two interfaces of a namespace, and waits until frames pass.
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
            return Err(refused("it asks for nothing that is emulated".to_owned()));
        };
        // Born into the namespace of the thread that starts it.
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
            // A program that is not the one that can (a test, an example) says something else.
            "" => Err(refused("this program cannot do it".to_owned())),
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

    /// Asks whether frames pass; [`Emulator::ended_by`] has the answer.
    pub(crate) fn ask(&self) {
        // What it said late answers no new question.
        let _ = self.ended();
        // One that has ended hears nothing, and its output says so; one that is stopped hears no more of them some day.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = send(&self.questions, b"?", flags);
    }

    /// Why frames pass no more, as far as it has said so; none while they do.
    pub(crate) fn ended(&self) -> Option<&str> {
        self.ended_by(Instant::now())
    }

    /// The same, of one that was asked: an answer is waited for until then.
    ///
    /// Told by its output alone. Its number tells nothing: a lab's holder is in a process-number namespace of its
    /// own, while `/proc` may be that of another one, and whoever reaps children may have reaped it.
    pub(crate) fn ended_by(&self, mut until: Instant) -> Option<&str> {
        while self.why.get().is_none() && self.speaks(until) {
            let why = match line(&self.said) {
                answer if answer == PASSING => {
                    // What else it has said is there already.
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

    /// Whether there is something to be read of it, or its end, by then.
    fn speaks(&self, until: Instant) -> bool {
        let time = until.saturating_duration_since(Instant::now());
        poll(&self.said, Ready::Receive, time).unwrap_or(false)
    }

    /// Whether nobody has asked for it before: its wire is taken away once.
    pub(crate) fn is_first_cut(&self) -> bool {
        !self.cut.swap(true, Relaxed)
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // It would end with its input anyway; this way nobody waits for it. Whoever reaps children of
        // this process may have done so already.
        let _ = self.questions.shutdown(Shutdown::Both);
        if self.ended().is_none() {
            // Not when it has ended: its number may be another's by now.
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

    /// A process in place of a link's, which says what it is told to.
    fn emulator(line: &str) -> Emulator {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]);
        Emulator::spawn(command).expect("there is a shell")
    }

    /// Until it has ended, which it does by itself.
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
        // What it said holds, also while it has yet to end.
        assert_eq!(why(&faulty), "its interface went away");
        assert_eq!(faulty.ended(), Some("its interface went away"));
    }

    /// It would notice by itself some time later.
    #[test]
    fn a_link_that_is_asked_says_at_once_how_it_is() {
        // A character at a time, as there is no end of a line.
        let hear = "dd bs=1 count=1 2> /dev/null > /dev/null";
        let line = format!("{hear}; echo passing; {hear}; echo its threads ended; {hear}");
        let asked = emulator(&line);
        let now = || {
            asked.ask();
            asked.ended_by(Instant::now() + Duration::from_secs(60))
        };
        assert_eq!(now(), None);
        assert_eq!(asked.ended(), None, "an answer is no last word");
        assert_eq!(now(), Some("its threads ended"));

        let mut killed = emulator(hear);
        killed.child.kill().unwrap();
        killed.ask();
        let ended = killed.ended_by(Instant::now() + Duration::from_secs(60));
        assert_eq!(ended, Some("it was killed"));
        killed.child.wait().unwrap();
        // Nobody hears it: that ends no program of ours.
        killed.ask();
    }
}
