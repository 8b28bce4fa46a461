//! Environment of the bench: two hosts connected by a veth pair, two cores, and the installed
//! programs.

use std::cell::{OnceCell, RefCell};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use linerate_host::sys::cpu;
use linerate_lab::{Lab, LabHost, Topology};
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

use crate::error::Trouble;
use crate::peer::bare_loops::Bare;
use crate::rows::memory::TenMinutes;

/// CPU placement of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinned {
    /// One core for the client and one for the server.
    Yes,
    /// Placement by the scheduler.
    No,
}

impl Pinned {
    /// Core of the client and core of the server.
    pub fn cpus(self, ground: &Ground) -> (Option<u32>, Option<u32>) {
        match self {
            Self::Yes => (Some(ground.cpus[0]), Some(ground.cpus[1])),
            Self::No => (None, None),
        }
    }
}

/// Congestion control of programs that request none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Cubic (or reno): the algorithm that both sides request if they can.
    Cubic,
    /// The default of this machine.
    Found,
}

/// Environment shared by all rows.
pub struct Ground {
    lab: Lab,
    /// Core of the client and core of the server.
    pub cpus: [u32; 2],
    /// Congestion control for both sides of a TCP row.
    pub congestion_control: &'static str,
    /// Default congestion control of this machine.
    pub found_control: String,
    /// Path of the program under test.
    pub linerate: PathBuf,
    /// Path of the build with `dpdk:` ports, or of the normal build if there is none.
    pub linerate_dpdk: PathBuf,
    /// First line of `iperf3 --version`; `None` if it is not installed.
    pub iperf3: Option<String>,
    /// Result of a run shared by all rows that read it.
    pub ten_minutes: OnceCell<TenMinutes>,
    bare: OnceCell<Bare>,
    folder: TempDir,
    notes: RefCell<Vec<String>>,
}

impl Ground {
    /// Builds the lab and finds the installed programs.
    pub fn build() -> Result<Self, Trouble> {
        let usable = cpu::usable().map_err(Trouble::system("read the affinity"))?;
        let [near, far, ..] = usable[..] else {
            return Err(Trouble::usage(
                "one processor is not enough: client and server need one each",
            ));
        };
        let lab = Lab::up(&Topology::hops(0))?;
        let congestion_control = lab.host("client")?.run(allowed_congestion_control)??;
        Ok(Self {
            lab,
            cpus: [near, far],
            congestion_control,
            found_control: std::fs::read_to_string(DEFAULT_CONTROL)
                .map(|name| name.trim().to_owned())
                .map_err(Trouble::system("read the congestion control"))?,
            linerate: linerate()?,
            linerate_dpdk: with_dpdk(linerate()?),
            iperf3: version_of("iperf3"),
            ten_minutes: OnceCell::new(),
            bare: OnceCell::new(),
            folder: TempDir::new().map_err(Trouble::system("create a temporary directory"))?,
            notes: RefCell::default(),
        })
    }

    /// Sets the default congestion control of both hosts; returns false if that is not permitted.
    pub fn default_to(&self, control: Control) -> Result<bool, Trouble> {
        let name = match control {
            Control::Cubic => self.congestion_control,
            Control::Found => self.found_control.as_str(),
        };
        for host in [self.client()?, self.server()?] {
            // The file belongs to the network namespace of the writing thread.
            let write = || std::fs::write(DEFAULT_CONTROL, name);
            if host.run(write)?.is_ok() {
                continue;
            }
            let Ok(_allowed) = Allowed::with(name) else {
                return Ok(false);
            };
            if host.run(write)?.is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub fn client(&self) -> Result<&LabHost, Trouble> {
        Ok(self.lab.host("client")?)
    }

    pub fn server(&self) -> Result<&LabHost, Trouble> {
        Ok(self.lab.host("server")?)
    }

    /// Address of the server host.
    pub fn far(&self) -> Result<Ipv4Addr, Trouble> {
        Ok(self.server()?.address())
    }

    /// Bare loops, compiled on first use.
    pub fn bare(&self) -> Result<&Bare, Trouble> {
        if let Some(bare) = self.bare.get() {
            return Ok(bare);
        }
        let bare = Bare::compile(self.folder())?;
        Ok(self.bare.get_or_init(|| bare))
    }

    /// Adds a note to print below the row.
    pub fn note(&self, text: String) {
        let mut notes = self.notes.borrow_mut();
        if !notes.contains(&text) {
            notes.push(text);
        }
    }

    /// Takes the notes to print.
    pub fn take_notes(&self) -> Vec<String> {
        self.notes.take()
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// First line of the output of `program --version`; `None` if it is not installed.
pub fn version_of(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    // Some programs print it to standard error.
    let said = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&said);
    text.lines().next().map(|line| line.trim().to_owned())
}

/// Path of the binary in the directory of this program, where cargo puts both.
fn linerate() -> Result<PathBuf, Trouble> {
    let own = std::env::current_exe().map_err(Trouble::system("find this program's directory"))?;
    let path = own.with_file_name("linerate");
    if path.is_file() {
        return Ok(path);
    }
    Err(Trouble::usage(format!(
        "{} does not exist: build it with `cargo build --release`",
        path.display()
    )))
}

/// Path of the build with `dpdk:` ports, or `linerate` itself if there is none.
fn with_dpdk(linerate: PathBuf) -> PathBuf {
    let path = linerate.with_file_name("linerate-dpdk");
    if path.is_file() { path } else { linerate }
}

/// Cubic, the kernel's default, or reno, whichever this process may use.
fn allowed_congestion_control() -> Result<&'static str, Trouble> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)
        .map_err(Trouble::system("open a TCP socket"))?;
    let allowed = |name: &&str| socket.set_tcp_congestion(name.as_bytes()).is_ok();
    ["cubic", "reno"].into_iter().find(allowed).ok_or_else(|| {
        Trouble::usage("neither cubic nor reno is permitted here: see `sysctl net.ipv4.tcp_allowed_congestion_control`")
    })
}

const DEFAULT_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// Extends the list of permitted algorithms for a few milliseconds; restores it on drop.
///
/// Other network namespaces may only default to an algorithm that the initial one permits.
struct Allowed {
    before: String,
}

impl Allowed {
    const LIST: &'static str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

    fn with(name: &str) -> std::io::Result<Self> {
        let before = std::fs::read_to_string(Self::LIST)?;
        std::fs::write(Self::LIST, format!("{} {name}", before.trim()))?;
        Ok(Self { before })
    }
}

impl Drop for Allowed {
    fn drop(&mut self) {
        // The write succeeded a moment ago.
        let _ = std::fs::write(Self::LIST, self.before.trim());
    }
}
