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

/// What all rows share.
pub struct Ground {
    lab: Lab,
    /// Core of the client and core of the server.
    pub cpus: [u32; 2],
    /// Congestion control that both sides of a TCP row are given.
    pub congestion_control: &'static str,
    /// The program that is measured.
    pub linerate: PathBuf,
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
            linerate: linerate()?,
            iperf3: version_of("iperf3"),
            ten_minutes: OnceCell::new(),
            bare: OnceCell::new(),
            folder: TempDir::new().map_err(Trouble::system("make a temporary folder"))?,
            notes: RefCell::default(),
        })
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
    let text = String::from_utf8_lossy(&output.stdout);
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

/// cubic, the kernel's own default, where this process may ask for it.
fn allowed_congestion_control() -> Result<&'static str, Trouble> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)
        .map_err(Trouble::system("open a TCP socket"))?;
    let allowed = |name: &&str| socket.set_tcp_congestion(name.as_bytes()).is_ok();
    ["cubic", "reno"].into_iter().find(allowed).ok_or_else(|| {
        Trouble::usage("neither cubic nor reno may be used here: see `sysctl net.ipv4.tcp_allowed_congestion_control`")
    })
}
