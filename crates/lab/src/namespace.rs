//! Network namespace without a name: held by a file descriptor and gone with it, however the
//! process ends.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;

use linerate_sys::namespace;
use linerate_sys::namespace::NamespaceKind;

use crate::error::LabError;
use crate::netlink::NetlinkSocket;

/// Network namespace.
#[derive(Debug)]
pub(crate) struct NetNamespace {
    handle: OwnedFd,
}

impl NetNamespace {
    /// Makes a namespace and runs `prepare` in it, while `lo` is its only interface; then sets `lo`
    /// up.
    pub fn new(prepare: impl FnOnce() + Send) -> Result<Self, LabError> {
        thread::scope(|scope| {
            let join_handle = thread::Builder::new()
                .name("lab-namespace".to_owned())
                .spawn_scoped(scope, || {
                    namespace::unshare(NamespaceKind::Net).map_err(|error| match error.kind() {
                        io::ErrorKind::PermissionDenied => LabError::NotPrivileged,
                        _ => LabError::system("make a network namespace", error),
                    })?;
                    let handle = File::open("/proc/thread-self/ns/net").map_err(|error| {
                        LabError::system("open /proc/thread-self/ns/net (is /proc mounted?)", error)
                    })?;
                    prepare();
                    let mut netlink = NetlinkSocket::open()?;
                    let loopback = netlink.link("lo")?;
                    netlink.set_up(loopback.index)?;
                    Ok(Self {
                        handle: handle.into(),
                    })
                })
                .map_err(|error| LabError::system("start a thread", error))?;
            resume_panic(join_handle.join())
        })
    }

    /// Runs `f` on a new thread inside; threads and sockets that it creates are inside as well.
    pub fn run<R: Send>(&self, f: impl FnOnce() -> R + Send) -> Result<R, LabError> {
        thread::scope(|scope| {
            let join_handle = thread::Builder::new()
                .name("lab-host".to_owned())
                .spawn_scoped(scope, || {
                    namespace::enter(self.handle.as_fd(), NamespaceKind::Net).map_err(|error| {
                        LabError::system("enter a host's network namespace", error)
                    })?;
                    Ok(f())
                })
                .map_err(|error| LabError::system("start a thread", error))?;
            resume_panic(join_handle.join())
        })
    }
}

impl AsFd for NetNamespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// Resumes a panic of the other thread in this one.
fn resume_panic<R>(result: thread::Result<R>) -> R {
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
