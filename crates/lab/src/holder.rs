//! Labs that outlive a command: each is held by a process of its own.
//!
//! The holder is process 1 of a PID namespace that `lab exec` joins. When it ends, even by `kill
//! -9`, the kernel kills everything that runs inside; the networks go with the last process and
//! descriptor. The holder stays in the network namespace of its starter, where its socket is found.
//!
//! ```text
//! lab up ── lab-holder start ── lab-holder keep
//!           new session, new     process 1 inside: builds, checks, reports through
//!           namespaces, ends     its standard output, then waits
//! ```
//!
//! Both steps run this program again through `/proc/self/exe`: a process can enter a user namespace
//! only while it has one thread, and it is in a PID namespace only when created there.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use linerate_record::event::ErrorReport;
use linerate_sys::namespace;
use linerate_sys::namespace::{BlockedSignals, NamespaceKind};
use rustix::fs::MemfdFlags;
use rustix::process::{Signal, WaitOptions};
use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::exec;
use crate::holder_command::{ENTER_STEP, KEEP_STEP, START_STEP, this_program};
use crate::info::LabInfo;
use crate::lab::{Lab, LabHost};
use crate::link_emulator::REPLY_TIMEOUT;
use crate::privilege::{become_root, privileged};
use crate::registry::{self, LabRegistration};
use crate::topology::Topology;

/// Request to the holder: the lab to build.
#[derive(Serialize, Deserialize)]
struct LabRequest {
    name: Option<String>,
    uid: u32,
    /// Lab file in TOML: its numbers read back exactly, which JSON does not guarantee.
    file: String,
    rootless: bool,
}

/// Report of the holder: one line of JSON.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum HolderReport {
    Up(String),
    Failed {
        problem: ErrorReport,
        missing_privilege: bool,
    },
    #[serde(rename = "taken")]
    NameInUse(String),
}

/// Starts a lab that stays up until [`crate::down`], and returns once every host reaches every
/// other. Without a name it is called `lab1`, or the next free name of that form.
///
/// The program must pass its arguments after [`crate::HOLDER_COMMAND`] to [`hold`] when it is
/// started with that subcommand.
///
/// # Errors
/// As [`Lab::up`], and [`LabError::NameInUse`].
pub fn up(topology: &Topology, name: Option<&str>) -> Result<LabInfo, LabError> {
    topology.validate()?;
    if let Some(name) = name {
        registry::check_name(name)?;
    }
    let request = LabRequest {
        name: name.map(str::to_owned),
        uid: rustix::process::geteuid().as_raw(),
        file: toml::to_string(topology)
            .map_err(|error| LabError::system("write the lab file", io::Error::other(error)))?,
        rootless: !privileged(),
    };
    let output = start_holder(&request)
        .map_err(|error: io::Error| LabError::system("start the lab's holder", error))?;
    let report = output
        .lines()
        .find_map(|line| serde_json::from_str(line).ok());
    match report {
        Some(HolderReport::Up(name)) => {
            registry::find_lab(Some(&name)).map(|lab| lab.registration.info)
        }
        Some(HolderReport::NameInUse(name)) => Err(LabError::NameInUse { name }),
        Some(HolderReport::Failed {
            problem,
            missing_privilege,
        }) => Err(LabError::Holder {
            problem,
            missing_privilege,
        }),
        None => Err(LabError::HolderExited {
            output: Some(output.trim().to_owned()).filter(|text| !text.is_empty()),
        }),
    }
}

/// Runs the first step and returns the output of both steps, up to when the holder closes it.
fn start_holder(request: &LabRequest) -> io::Result<String> {
    // A memory file rather than a pipe: where SIGPIPE has its default action, writing to a pipe
    // whose reader failed would end this program.
    let mut input = File::from(rustix::fs::memfd_create(
        "linerate-order",
        MemfdFlags::CLOEXEC,
    )?);
    serde_json::to_writer(&input, request)?;
    input.rewind()?;
    let (mut reader, writer) = io::pipe()?;
    let mut first = this_program(START_STEP)
        .stdin(Stdio::from(input))
        .stdout(Stdio::from(writer.try_clone()?))
        .stderr(Stdio::from(writer))
        .spawn()?;
    // The `Command` and its copies of the pipe are dropped by now, so end of file means that the
    // holder closed its end.
    let mut output = Vec::new();
    reader.read_to_end(&mut output)?;
    first.wait()?;
    Ok(String::from_utf8_lossy(&output).into_owned())
}

/// Runs `lab-holder ARGUMENTS`. Call it before any thread exists.
///
/// # Errors
/// [`LabError::HolderArguments`] when started by hand, and [`LabError::CommandNotFound`] or
/// [`LabError::CommandFailed`] for a command of `lab exec`: print them and exit with
/// [`LabError::command_exit_code`].
pub fn hold(arguments: impl IntoIterator<Item = OsString>) -> Result<(), LabError> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let (step, rest) = arguments.split_first().ok_or(LabError::HolderArguments)?;
    match step.to_str() {
        Some(START_STEP) if rest.is_empty() => report_failure(detach()),
        Some(KEEP_STEP) if rest.is_empty() => report_failure(run_holder()),
        Some(ENTER_STEP) if !rest.is_empty() => exec::exec_inside(rest),
        _ => Err(LabError::HolderArguments),
    }
}

/// Sends an error to the starter, which prints it.
fn report_failure(result: Result<(), LabError>) -> Result<(), LabError> {
    let report = match result {
        Ok(()) => return Ok(()),
        Err(LabError::NameInUse { name }) => HolderReport::NameInUse(name),
        Err(error) => HolderReport::Failed {
            problem: error.to_report(),
            missing_privilege: error.is_missing_privilege(),
        },
    };
    send_report(&report)
}

fn send_report(report: &HolderReport) -> Result<(), LabError> {
    let write = || {
        let mut line = serde_json::to_vec(report)?;
        line.push(b'\n');
        io::stdout().write_all(&line)?;
        io::stdout().flush()
    };
    write().map_err(|error: io::Error| LabError::system("report to `lab up`", error))
}

/// Runs the first step: leaves the terminal and the directory, makes the namespaces, starts the
/// holder.
fn detach() -> Result<(), LabError> {
    // Fails only for a session leader, which has left the terminal already.
    let _ = rustix::process::setsid();
    rustix::process::chdir("/").map_err(|error| LabError::system("change to /", error))?;
    // Best effort: without it (before Linux 5.11) the holder keeps its starter's open descriptors.
    let _ = namespace::close_descriptors_at_exec();
    if !privileged() {
        become_root()?;
    }
    namespace::unshare(NamespaceKind::Pid)
        .map_err(|error| LabError::system("make a PID namespace", error))?;
    this_program(KEEP_STEP)
        .spawn()
        .map(drop)
        .map_err(|error| LabError::system("start the lab's holder", error))
}

/// Runs the second step, as process 1 of its namespace: builds the lab and holds it until SIGTERM.
fn run_holder() -> Result<(), LabError> {
    let mut request = String::new();
    io::stdin()
        .read_to_string(&mut request)
        .map_err(|error| LabError::system("read the lab to build", error))?;
    let request: LabRequest =
        serde_json::from_str(&request).map_err(|_| LabError::HolderArguments)?;
    // Process 1 ignores every signal without a handler, SIGHUP and SIGINT among them, but receives
    // those it blocks. Blocked before the first thread, so that no thread takes them.
    let signals = BlockedSignals::new(&[Signal::TERM.as_raw(), Signal::CHILD.as_raw()]);
    signals
        .block()
        .map_err(|error| LabError::system("block signals", error))?;
    let (name, socket) = bind_free_name(&request)?;
    let topology = Topology::from_toml(&request.file)?;
    let lab = Lab::up(&topology)?;
    let held_lab = Arc::new(Mutex::new(HeldLab::new(lab, &name, &request)?));
    serve_socket(socket, Arc::clone(&held_lab))?;
    send_report(&HolderReport::Up(name))?;
    close_standard_streams()?;
    // The reaped process may have been a link's. Its output is closed then, so no status request is
    // needed.
    reap_until_term(&signals, || refresh_held_lab(&held_lab, Duration::ZERO));
    Ok(())
}

/// Lab of this process and its published registration.
struct HeldLab {
    lab: Lab,
    registration: LabRegistration,
    /// Memory file with the registration; published while it is open.
    _published: OwnedFd,
    /// Number of failed links in the registration.
    failed_links: usize,
}

impl HeldLab {
    fn new(lab: Lab, name: &str, request: &LabRequest) -> Result<Self, LabError> {
        let handle = |host: &LabHost| (host.name().to_owned(), host.handle().as_raw_fd());
        let registration = LabRegistration {
            // The reader fills in the process id: process 1 does not see its id outside.
            info: LabInfo {
                rootless: request.rootless,
                ..lab.info(name, 0, request.uid)
            },
            namespaces: lab.hosts().iter().map(handle).collect(),
            switches: lab.switches().map(|space| space.as_fd().as_raw_fd()),
        };
        Ok(Self {
            _published: registry::publish(&registration)?,
            registration,
            lab,
            failed_links: 0,
        })
    }

    /// Checks the links and publishes a new registration when one has failed. With a non-zero time
    /// the emulators are polled and have that long to reply.
    fn refresh_links(&mut self, time: Duration) {
        let failed_links = self.lab.disconnect_failed_links(time);
        if failed_links == self.failed_links {
            return;
        }
        let info = &self.registration.info;
        self.registration.info = LabInfo {
            rootless: info.rootless,
            ..self.lab.info(&info.name, 0, info.uid)
        };
        if let Ok(published) = registry::publish(&self.registration) {
            (self.failed_links, self._published) = (failed_links, published);
        }
    }
}

fn refresh_held_lab(held_lab: &Mutex<HeldLab>, time: Duration) {
    let mut held_lab = held_lab.lock().unwrap_or_else(PoisonError::into_inner);
    held_lab.refresh_links(time);
}

/// Takes the requested name, or the first free one of `lab1`, `lab2`, ...
fn bind_free_name(request: &LabRequest) -> Result<(String, OwnedFd), LabError> {
    let candidates: Box<dyn Iterator<Item = String>> = match &request.name {
        Some(name) => Box::new(std::iter::once(name.clone())),
        None => Box::new((1..=9999).map(|number| format!("lab{number}"))),
    };
    for name in candidates {
        if let Some(socket) = registry::bind_name(request.uid, &name)? {
            return Ok((name, socket));
        }
    }
    Err(LabError::NameInUse {
        name: request.name.clone().unwrap_or_else(|| "lab1".to_owned()),
    })
}

/// Listens, so that the lab can be found, and serves connections on a thread. A client learns the
/// process from the peer credentials and everything else from `/proc`; connections carry no data.
/// Every connection triggers a check of the links and is closed when the check is done.
fn serve_socket(socket: OwnedFd, held_lab: Arc<Mutex<HeldLab>>) -> Result<(), LabError> {
    rustix::net::listen(&socket, 64)
        .map_err(|error| LabError::system("listen on the lab's socket", error))?;
    let listener = UnixListener::from(socket);
    thread::Builder::new()
        .name("lab-socket".to_owned())
        .spawn(move || {
            loop {
                match listener.accept() {
                    Ok(_connection) => refresh_held_lab(&held_lab, REPLY_TIMEOUT),
                    // Out of descriptors, for example: never spin on it.
                    Err(_) => thread::sleep(Duration::from_millis(100)),
                }
            }
        })
        .map(drop)
        .map_err(|error| LabError::system("start a thread", error))
}

/// Redirects the standard streams to /dev/null; the starter reads the end of file as "lab is up".
fn close_standard_streams() -> Result<(), LabError> {
    let redirect = || {
        let null = File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        Ok(())
    };
    redirect().map_err(|error: io::Error| LabError::system("open /dev/null", error))
}

/// Reaps orphaned processes until SIGTERM; checks the links after each.
fn reap_until_term(signals: &BlockedSignals, mut refresh: impl FnMut()) {
    while let Ok(arrived) = signals.wait() {
        if arrived.signal == Signal::TERM.as_raw() {
            return;
        }
        while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
        refresh();
    }
}
