//! Environment of the bench: two hosts connected by a veth pair, two cores, and the installed
//! programs.

use std::cell::{OnceCell, RefCell};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use linerate_lab::{Lab, LabHost, Topology};
use linerate_sys::cpu;
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

use crate::error::BenchError;
use crate::peer::bare_loops::BareLoops;
use crate::rows::memory::TenMinuteRun;

/// CPU placement of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CorePinning {
    /// One core for the client and one for the server.
    Yes,
    /// Placement by the scheduler.
    No,
}

impl CorePinning {
    /// Core of the client and core of the server.
    pub fn cpus(self, env: &BenchEnv) -> (Option<u32>, Option<u32>) {
        match self {
            Self::Yes => (Some(env.cpus[0]), Some(env.cpus[1])),
            Self::No => (None, None),
        }
    }
}

/// Congestion control of programs that request none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultCongestion {
    /// Cubic (or reno): the algorithm that both sides request if they can.
    Cubic,
    /// The default of this machine.
    MachineDefault,
}

/// Environment shared by all rows.
pub struct BenchEnv {
    lab: Lab,
    /// Core of the client and core of the server.
    pub cpus: [u32; 2],
    /// Congestion control for both sides of a TCP row.
    pub congestion_control: &'static str,
    /// Default congestion control of this machine.
    pub machine_congestion_control: String,
    /// Path of the program under test.
    pub linerate: PathBuf,
    /// Path of the build with `dpdk:` ports, or of the normal build if there is none.
    pub linerate_dpdk: PathBuf,
    /// First line of `iperf3 --version`; `None` if it is not installed.
    pub iperf3: Option<String>,
    /// Result of a run shared by all rows that read it.
    pub ten_minutes: OnceCell<TenMinuteRun>,
    bare_loops: OnceCell<BareLoops>,
    temp_dir: TempDir,
    notes: RefCell<Vec<String>>,
}

impl BenchEnv {
    /// Builds the lab and finds the installed programs.
    pub fn build() -> Result<Self, BenchError> {
        let usable = cpu::list_usable().map_err(BenchError::system_call("read the affinity"))?;
        let [client_cpu, server_cpu, ..] = usable[..] else {
            return Err(BenchError::invalid_option(
                "one processor is not enough: client and server need one each",
            ));
        };
        let lab = Lab::up(&Topology::hops(0))?;
        let congestion_control = lab.host("client")?.run(permitted_congestion_control)??;
        Ok(Self {
            lab,
            cpus: [client_cpu, server_cpu],
            congestion_control,
            machine_congestion_control: std::fs::read_to_string(DEFAULT_CONTROL)
                .map(|name| name.trim().to_owned())
                .map_err(BenchError::system_call("read the congestion control"))?,
            linerate: find_linerate()?,
            linerate_dpdk: find_dpdk_build(find_linerate()?),
            iperf3: program_version("iperf3"),
            ten_minutes: OnceCell::new(),
            bare_loops: OnceCell::new(),
            temp_dir: TempDir::new()
                .map_err(BenchError::system_call("create a temporary directory"))?,
            notes: RefCell::default(),
        })
    }

    /// Sets the default congestion control of both hosts; returns false if that is not permitted.
    pub fn set_default_congestion(&self, control: DefaultCongestion) -> Result<bool, BenchError> {
        let name = match control {
            DefaultCongestion::Cubic => self.congestion_control,
            DefaultCongestion::MachineDefault => self.machine_congestion_control.as_str(),
        };
        for host in [self.client()?, self.server()?] {
            // The file belongs to the network namespace of the writing thread.
            let write = || std::fs::write(DEFAULT_CONTROL, name);
            if host.run(write)?.is_ok() {
                continue;
            }
            let Ok(_permitted) = PermittedCongestion::add(name) else {
                return Ok(false);
            };
            if host.run(write)?.is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub fn client(&self) -> Result<&LabHost, BenchError> {
        Ok(self.lab.host("client")?)
    }

    pub fn server(&self) -> Result<&LabHost, BenchError> {
        Ok(self.lab.host("server")?)
    }

    /// Address of the server host.
    pub fn server_address(&self) -> Result<Ipv4Addr, BenchError> {
        Ok(self.server()?.address())
    }

    /// Bare loops, compiled on first use.
    pub fn bare_loops(&self) -> Result<&BareLoops, BenchError> {
        if let Some(loops) = self.bare_loops.get() {
            return Ok(loops);
        }
        let loops = BareLoops::compile(self.temp_dir())?;
        Ok(self.bare_loops.get_or_init(|| loops))
    }

    /// Adds a note to print below the row.
    pub fn add_note(&self, text: String) {
        let mut notes = self.notes.borrow_mut();
        if !notes.contains(&text) {
            notes.push(text);
        }
    }

    /// Takes the notes to print.
    pub fn take_notes(&self) -> Vec<String> {
        self.notes.take()
    }

    fn temp_dir(&self) -> &Path {
        self.temp_dir.path()
    }
}

/// First line of the output of `program --version`; `None` if it is not installed.
pub fn program_version(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    // Some programs print it to standard error.
    let output_bytes = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&output_bytes);
    text.lines().next().map(|line| line.trim().to_owned())
}

/// Path of the binary in the directory of this program, where cargo puts both.
fn find_linerate() -> Result<PathBuf, BenchError> {
    let own_path = std::env::current_exe()
        .map_err(BenchError::system_call("find this program's directory"))?;
    let path = own_path.with_file_name("linerate");
    if path.is_file() {
        return Ok(path);
    }
    Err(BenchError::invalid_option(format!(
        "{} does not exist: build it with `cargo build --release`",
        path.display()
    )))
}

/// Path of the build with `dpdk:` ports, or `linerate` itself if there is none.
fn find_dpdk_build(linerate: PathBuf) -> PathBuf {
    let path = linerate.with_file_name("linerate-dpdk");
    if path.is_file() { path } else { linerate }
}

/// Cubic, the kernel's default, or reno, whichever this process may use.
fn permitted_congestion_control() -> Result<&'static str, BenchError> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)
        .map_err(BenchError::system_call("open a TCP socket"))?;
    let is_permitted = |name: &&str| socket.set_tcp_congestion(name.as_bytes()).is_ok();
    ["cubic", "reno"].into_iter().find(is_permitted).ok_or_else(|| {
        BenchError::invalid_option("neither cubic nor reno is permitted here: see `sysctl net.ipv4.tcp_allowed_congestion_control`")
    })
}

const DEFAULT_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// Extends the list of permitted algorithms for a few milliseconds; restores it on drop.
///
/// Other network namespaces may only default to an algorithm that the initial one permits.
struct PermittedCongestion {
    previous_list: String,
}

impl PermittedCongestion {
    const LIST_PATH: &'static str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

    fn add(name: &str) -> std::io::Result<Self> {
        let previous_list = std::fs::read_to_string(Self::LIST_PATH)?;
        std::fs::write(Self::LIST_PATH, format!("{} {name}", previous_list.trim()))?;
        Ok(Self { previous_list })
    }
}

impl Drop for PermittedCongestion {
    fn drop(&mut self) {
        // The write succeeded a moment ago.
        let _ = std::fs::write(Self::LIST_PATH, self.previous_list.trim());
    }
}
