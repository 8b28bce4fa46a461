//! Where everything runs: two hosts joined by a veth pair, two cores, and what is installed.

use std::cell::{OnceCell, RefCell};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use linerate_host::sys::cpu;
use linerate_lab::{Lab, LabHost, Topology};
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

use crate::peer::bare::Bare;
use crate::rows::memory::TenMinutes;
use crate::trouble::Trouble;

/// Whether programs are given the cores of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinned {
    /// Client and server have one each.
    Yes,
    /// The scheduler puts them where it likes.
    No,
}

impl Pinned {
    /// The client's core and the server's.
    pub fn cpus(self, ground: &Ground) -> (Option<u32>, Option<u32>) {
        match self {
            Self::Yes => (Some(ground.cpus[0]), Some(ground.cpus[1])),
            Self::No => (None, None),
        }
    }
}

/// The congestion control that programs get which ask for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Cubic (or reno): what both sides ask for where they can.
    Cubic,
    /// Whatever this machine comes with.
    Found,
}

/// What all rows share.
pub struct Ground {
    lab: Lab,
    /// Core of the client and core of the server.
    pub cpus: [u32; 2],
    /// Congestion control that both sides of a TCP row are given.
    pub congestion_control: &'static str,
    /// The one that this machine comes with.
    pub found_control: String,
    /// The program that is measured.
    pub linerate: PathBuf,
    /// The same with `dpdk:` ports, where there is such a build.
    pub linerate_dpdk: PathBuf,
    /// First line of `iperf3 --version`; `None` where it is not installed.
    pub iperf3: Option<String>,
    /// Run once for all rows that read it.
    pub ten_minutes: OnceCell<TenMinutes>,
    bare: OnceCell<Bare>,
    folder: TempDir,
    notes: RefCell<Vec<String>>,
}

impl Ground {
    /// Builds the lab and looks around.
    pub fn build() -> Result<Self, Trouble> {
        let usable = cpu::usable().map_err(Trouble::system("read the affinity"))?;
        let [near, far, ..] = usable[..] else {
            return Err(Trouble::usage(
                "one processor is too few: client and server need one each",
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
            folder: TempDir::new().map_err(Trouble::system("make a temporary folder"))?,
            notes: RefCell::default(),
        })
    }

    /// Makes a congestion control the default of both hosts; false where that is not allowed.
    pub fn default_to(&self, control: Control) -> Result<bool, Trouble> {
        let name = match control {
            Control::Cubic => self.congestion_control,
            Control::Found => self.found_control.as_str(),
        };
        for host in [self.client()?, self.server()?] {
            // The file is that of the network that the writing thread is in.
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

    /// The near host.
    pub fn client(&self) -> Result<&LabHost, Trouble> {
        Ok(self.lab.host("client")?)
    }

    /// The far host.
    pub fn server(&self) -> Result<&LabHost, Trouble> {
        Ok(self.lab.host("server")?)
    }

    /// Where the far host is reached.
    pub fn far(&self) -> Result<Ipv4Addr, Trouble> {
        Ok(self.server()?.address())
    }

    /// The bare loops, compiled when first asked for.
    pub fn bare(&self) -> Result<&Bare, Trouble> {
        if let Some(bare) = self.bare.get() {
            return Ok(bare);
        }
        let bare = Bare::compile(self.folder())?;
        Ok(self.bare.get_or_init(|| bare))
    }

    /// Keeps something to be said below the row.
    pub fn note(&self, text: String) {
        let mut notes = self.notes.borrow_mut();
        if !notes.contains(&text) {
            notes.push(text);
        }
    }

    /// Hands over what is to be said.
    pub fn take_notes(&self) -> Vec<String> {
        self.notes.take()
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// First line of what `program --version` says; `None` where it is not installed.
pub fn version_of(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    // Some say it on standard error.
    let said = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&said);
    text.lines().next().map(|line| line.trim().to_owned())
}

/// The binary beside this one: cargo puts both into the same folder.
fn linerate() -> Result<PathBuf, Trouble> {
    let own = std::env::current_exe().map_err(Trouble::system("find this program's folder"))?;
    let path = own.with_file_name("linerate");
    if path.is_file() {
        return Ok(path);
    }
    Err(Trouble::usage(format!(
        "{} is not there: build it with `cargo build --release`",
        path.display()
    )))
}

/// The build with `dpdk:` ports beside the other one, where there is one.
fn with_dpdk(linerate: PathBuf) -> PathBuf {
    let path = linerate.with_file_name("linerate-dpdk");
    if path.is_file() { path } else { linerate }
}

/// cubic, the kernel's own default, where this process may ask for it.
fn allowed_congestion_control() -> Result<&'static str, Trouble> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)
        .map_err(Trouble::system("open a TCP socket"))?;
    let allowed = |name: &&str| socket.set_tcp_congestion(name.as_bytes()).is_ok();
    ["cubic", "reno"].into_iter().find(allowed).ok_or_else(|| {
        Trouble::usage("neither cubic nor reno may be used here: see `sysctl net.ipv4.tcp_allowed_congestion_control`")
    })
}

const DEFAULT_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// Other networks may default to what the first one allows to everybody. The list is as before once
/// this is dropped, which is milliseconds later.
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
        // It could be written a moment ago.
        let _ = std::fs::write(Self::LIST, self.before.trim());
    }
}
