//! A lab as a program on one of its hosts sees it: all of the network around it.
//!
//! The holder of a lab is process 1 of the lab's process-number namespace, so whoever was started by
//! `lab exec` finds it without asking: its registration and the namespaces it holds are in `/proc/1/fd`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::info::LabInfo;
use crate::lab::{Lab, LabHost};
use crate::registry;

/// The lab around this program, with a handle on every network namespace of it.
#[derive(Debug)]
pub struct Inside {
    /// What it consists of.
    pub info: LabInfo,
    /// The network namespaces of its hosts, by name.
    pub hosts: BTreeMap<String, OwnedFd>,
    /// The network namespace of its switches; absent without one.
    pub switches: Option<OwnedFd>,
    /// The host whose network this program has; absent where the lab is this process's own.
    pub own: Option<String>,
}

/// The lab that this process was started in by `lab exec`; `None` elsewhere, and where `/proc` does
/// not show it.
#[must_use]
pub fn inside() -> Option<Inside> {
    let registration = registry::registration_of(Path::new("/proc/1/fd")).ok()??;
    let open = |number: i32| -> Option<OwnedFd> {
        let path = format!("/proc/1/fd/{number}");
        Some(registry::open(Path::new(&path)).ok()?.into())
    };
    let mut hosts = BTreeMap::new();
    for (name, &number) in &registration.namespaces {
        hosts.insert(name.clone(), open(number)?);
    }
    let switches = match registration.switches {
        Some(number) => Some(open(number)?),
        None => None,
    };
    // Somebody may have entered the lab's processes and another network.
    let own = identity(&File::open("/proc/thread-self/ns/net").ok()?).ok()?;
    let is_own = |file: &OwnedFd| {
        let file = file.try_clone().map(File::from);
        file.and_then(|file| identity(&file))
            .is_ok_and(|it| it == own)
    };
    let (own, _) = hosts.iter().find(|(_, file)| is_own(file))?;
    Some(Inside {
        info: registration.info,
        own: Some(own.clone()),
        hosts,
        switches,
    })
}

fn identity(file: &File) -> io::Result<(u64, u64)> {
    let facts: fs::Metadata = file.metadata()?;
    Ok((facts.dev(), facts.ino()))
}

impl Lab {
    /// The same for a lab of this process, whose hosts' threads are inside it.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn inside(&self) -> io::Result<Inside> {
        let own = |host: &LabHost| {
            let handle = host.handle().try_clone_to_owned()?;
            Ok((host.name().to_owned(), handle))
        };
        let switches = self.switches();
        Ok(Inside {
            info: self.info("", std::process::id(), rustix::process::geteuid().as_raw()),
            hosts: self.hosts().iter().map(own).collect::<io::Result<_>>()?,
            switches: switches
                .map(|space| space.as_fd().try_clone_to_owned())
                .transpose()?,
            own: None,
        })
    }
}
