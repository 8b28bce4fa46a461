//! State left by an AF_XDP port whose process is killed, and errors without privileges.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::xdp::end::TIMEOUT;
use crate::xdp::net::{in_namespace, ip, ip_link, memory, open, pair, try_open};
use linerate_port::PortError;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_keep_capabilities};

/// Variable with the request to the child: the bytes it may lock and its user, or anything else.
const CHILD: &str = "LINERATE_TEST_XDP_CHILD";

/// Rings small enough for any user's limit of locked memory.
const URL: &str = "xdp:va,rxd=64,txd=64";

/// Capabilities that an AF_XDP port needs.
const CAPABILITIES: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::BPF);

/// Child process of the tests below: opens a port, prints the result, and keeps it open.
#[test]
fn child() {
    let Ok(request) = std::env::var(CHILD) else {
        return;
    };
    if let Some((bytes, user)) = request.split_once(' ') {
        let limit = Some(bytes.parse().unwrap());
        setrlimit(
            Resource::Memlock,
            Rlimit {
                current: limit,
                maximum: limit,
            },
        )
        .unwrap();
        become_user(user.parse().unwrap());
    }
    let memory = memory(&[URL]);
    match try_open(URL, &memory) {
        Err(error) => println!("\nrefused {error}"),
        Ok(_port) => {
            println!("\nready");
            std::thread::sleep(10 * TIMEOUT);
        }
    }
}

/// Changes this thread to an ordinary user with the capabilities that a port needs.
fn become_user(user: u32) {
    set_keep_capabilities(true).unwrap();
    let user = rustix::process::Uid::from_raw(user);
    rustix::thread::set_thread_res_uid(user, user, user).unwrap();
    keep_capabilities(CAPABILITIES);
}

fn keep_capabilities(rights: CapabilitySet) {
    let sets = CapabilitySets {
        effective: rights,
        permitted: rights,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets).unwrap();
}

/// Starts the child in this thread's namespace; returns its line of output.
fn start(request: &str) -> (ChildGuard, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "xdp_kill::child", "--nocapture"])
        .env(CHILD, request)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let output = lines
        .map_while(Result::ok)
        .find(|line| line.starts_with("ready") || line.starts_with("refused"))
        .unwrap_or_default();
    (ChildGuard(child), output)
}

/// Child process that is killed on drop.
struct ChildGuard(Child);

impl ChildGuard {
    /// Kills it as `kill -9` does.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_until(condition: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < end, "{condition}: not within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_killed_process_leaves_no_program() {
    in_namespace(|| {
        pair(1);
        let memory = memory(&[URL]);
        // Skips the test if the port cannot be opened here at all.
        let Some(port) = open(URL, &memory) else {
            return;
        };
        drop(port);
        let (mut child, output) = start("hold");
        assert_eq!(output, "ready");
        assert!(ip_link("va").contains("prog/xdp"), "{}", ip_link("va"));
        assert!(ip_link("va").contains("promiscuity 1"), "{}", ip_link("va"));
        let error = try_open(URL, &memory).map(drop).unwrap_err();
        assert!(matches!(error, PortError::InUse { .. }), "{error}");
        let holder = format!("process {} (", child.0.id());
        assert!(error.to_string().contains(&holder), "{error}");
        child.kill();
        wait_until("the program is gone", || {
            !ip_link("va").contains("prog/xdp")
        });
        assert!(ip_link("va").contains("promiscuity 0"), "{}", ip_link("va"));
        assert!(!try_open(URL, &memory).unwrap().is_empty());
    });
}

/// Locked memory is counted per user: one that may lock as much as one port needs can open a second
/// port only when the memory of the first is free again.
#[test]
fn a_killed_process_leaves_no_locked_memory() {
    in_namespace(|| {
        pair(1);
        let memory = memory(&[URL]);
        let Some(port) = open(URL, &memory) else {
            return;
        };
        drop(port);
        let needed = u64::from(memory.frames()) * memory.slot_bytes() as u64;
        // A user of this test only: tests run in parallel.
        let user = 2_000_000 + std::process::id();
        let (mut child, output) = start(&format!("{needed} {user}"));
        assert_eq!(output, "ready");
        child.kill();
        wait_until("the program is gone", || {
            !ip_link("va").contains("prog/xdp")
        });
        wait_until("the memory may be locked again", || {
            let (_child, output) = start(&format!("{needed} {user}"));
            assert!(
                output == "ready" || output.contains("must lock"),
                "{output}"
            );
            output == "ready"
        });
        let (_child, output) = start(&format!("{} {user}", needed - 4096));
        let limit = format!(
            "must lock {needed} bytes of memory, and the limit is {} bytes",
            needed - 4096
        );
        assert!(
            output.contains(&limit) && output.contains("ulimit -l"),
            "{output}"
        );
    });
}

#[test]
fn missing_capabilities_are_named() {
    in_namespace(|| {
        pair(1);
        let memory = memory(&[URL]);
        let Some(port) = open(URL, &memory) else {
            return;
        };
        drop(port);
        for (missing, text) in [
            (CapabilitySet::BPF, "CAP_BPF and CAP_NET_ADMIN"),
            (CapabilitySet::NET_ADMIN, "CAP_BPF and CAP_NET_ADMIN"),
            (CapabilitySet::NET_RAW, "CAP_NET_RAW"),
        ] {
            let memory = &memory;
            let error = std::thread::scope(|scope| {
                let attempt = scope.spawn(move || {
                    keep_capabilities(CAPABILITIES.difference(missing));
                    try_open(URL, memory).map(drop).unwrap_err()
                });
                attempt.join().unwrap()
            });
            assert!(error.is_missing_privilege(), "{missing:?}: {error}");
            assert!(error.to_string().contains(text), "{missing:?}: {error}");
        }
        // The failed attempts left nothing on the interface.
        assert!(!ip_link("va").contains("prog/xdp"), "{}", ip_link("va"));
        drop(try_open(URL, &memory).unwrap());
    });
}

#[test]
fn a_remote_end_in_another_namespace_is_visible() {
    in_namespace(|| {
        pair(1);
        let memory = memory(&[URL]);
        let (sender, receiver) = std::sync::mpsc::channel();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let namespace_holder = std::thread::spawn(move || {
            use linerate_sys::namespace::{NamespaceKind, unshare};
            unshare(NamespaceKind::Net).unwrap();
            let thread = fs::read_link("/proc/thread-self").unwrap();
            sender
                .send(format!("/proc/{}/ns/net", thread.display()))
                .unwrap();
            let _ = stopped.recv();
        });
        ip(&format!("link set vb netns {}", receiver.recv().unwrap()));
        if let Some(ports) = open(URL, &memory) {
            let notes = ports[0].capabilities.notes.join("\n");
            assert!(notes.contains("`ethtool -K vb gro on`"), "{notes}");
            assert!(notes.contains("`ethtool -K vb tx off`"), "{notes}");
        }
        drop(stop);
        namespace_holder.join().unwrap();
    });
}
