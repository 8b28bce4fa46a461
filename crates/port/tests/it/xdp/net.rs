//! Network namespace for a test, with veth pairs between AF_XDP ports.
//!
//! The pairs have no addresses and no IPv6, so that only the test sends on them.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;

use linerate_port::{AnyPort, PortError, PortUrl, memory_plan};
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::namespace;
use linerate_sys::namespace::NamespaceKind;

/// Runs a test in a new network namespace, on a thread that ends with it; if that is impossible,
/// prints what is missing and returns.
pub fn in_namespace(test: impl FnOnce() + Send + 'static) {
    if Command::new("ip")
        .arg("-V")
        .stdout(Stdio::null())
        .status()
        .is_err()
    {
        println!("skipped: there is no `ip` (package iproute2) to create veth pairs with");
        return;
    }
    let running = thread::spawn(move || {
        if let Err(error) = namespace::unshare(NamespaceKind::Net) {
            println!("skipped: no network namespace ({error}): run as root");
            return;
        }
        for family in ["all", "default"] {
            // Absent if the kernel has no IPv6.
            let _ = fs::write(
                format!("/proc/sys/net/ipv6/conf/{family}/disable_ipv6"),
                "1",
            );
        }
        test();
    });
    if let Err(panic) = running.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs `ip` in the calling thread's namespace.
pub fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .expect("ip runs");
    assert!(
        output.status.success(),
        "ip {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Output of `ip link` for an interface.
pub fn ip_link(interface: &str) -> String {
    let output = Command::new("ip")
        .args(["-d", "link", "show", interface])
        .output()
        .expect("ip runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Creates a veth pair `va` and `vb` with this many queues in each direction, both up.
pub fn pair(queues: u32) {
    let many = format!("numrxqueues {queues} numtxqueues {queues}");
    ip(&format!("link add va {many} type veth peer name vb {many}"));
    for name in ["va", "vb"] {
        ip(&format!("link set {name} up"));
    }
}

/// Creates the memory for these ports.
pub fn memory(urls: &[&str]) -> FrameRegion {
    let urls: Vec<PortUrl> = urls.iter().map(|url| url.parse().unwrap()).collect();
    FrameRegion::new(memory_plan(&urls)).unwrap()
}

/// Opens a port, or prints what is missing.
pub fn open(url: &str, memory: &FrameRegion) -> Option<Vec<AnyPort>> {
    match try_open(url, memory) {
        Ok(ports) => Some(ports),
        Err(error) if error.is_missing_privilege() => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Opens a port.
pub fn try_open(url: &str, memory: &FrameRegion) -> Result<Vec<AnyPort>, PortError> {
    linerate_port::open(&url.parse()?, memory)
}
