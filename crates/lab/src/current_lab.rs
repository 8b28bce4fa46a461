//! The lab around a program that runs on one of its hosts.
//!
//! The holder of a lab is process 1 of the lab's PID namespace. So a program started by `lab exec`
//! finds it directly: its registration and the namespaces it holds are in `/proc/1/fd`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::info::LabInfo;
use crate::lab::{Lab, LabHost};
use crate::registry;

/// Lab around this program, with a handle on every network namespace of it.
#[derive(Debug)]
pub struct CurrentLab {
    /// Description of the lab.
    pub info: LabInfo,
    /// Network namespaces of the hosts, by name.
    pub hosts: BTreeMap<String, OwnedFd>,
    /// Network namespace of the switches; absent without a switch.
    pub switches: Option<OwnedFd>,
    /// Host whose network this program has; absent for a lab of this process.
    pub current_host: Option<String>,
}

/// Returns the lab in which `lab exec` started this process; `None` elsewhere, and where `/proc`
/// does not show it.
#[must_use]
pub fn current_lab() -> Option<CurrentLab> {
    let registration = registry::read_registration(Path::new("/proc/1/fd")).ok()??;
    let open = |number: i32| -> Option<OwnedFd> {
        let path = format!("/proc/1/fd/{number}");
        Some(registry::open_file(Path::new(&path)).ok()?.into())
    };
    let mut hosts = BTreeMap::new();
    for (name, &number) in &registration.namespaces {
        hosts.insert(name.clone(), open(number)?);
    }
    let switches = match registration.switches {
        Some(number) => Some(open(number)?),
        None => None,
    };
    // A process may have entered the lab's PID namespace and another network.
    let current_id = namespace_id(&File::open("/proc/thread-self/ns/net").ok()?).ok()?;
    let is_current = |file: &OwnedFd| {
        let file = file.try_clone().map(File::from);
        file.and_then(|file| namespace_id(&file))
            .is_ok_and(|it| it == current_id)
    };
    let (current_id, _) = hosts.iter().find(|(_, file)| is_current(file))?;
    Some(CurrentLab {
        info: registration.info,
        current_host: Some(current_id.clone()),
        hosts,
        switches,
    })
}

fn namespace_id(file: &File) -> io::Result<(u64, u64)> {
    let facts: fs::Metadata = file.metadata()?;
    Ok((facts.dev(), facts.ino()))
}

impl Lab {
    /// Returns the same view for a lab of this process, whose threads run on its hosts.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn current_lab(&self) -> io::Result<CurrentLab> {
        let current_id = |host: &LabHost| {
            let handle = host.handle().try_clone_to_owned()?;
            Ok((host.name().to_owned(), handle))
        };
        let switches = self.switches();
        Ok(CurrentLab {
            info: self.info("", std::process::id(), rustix::process::geteuid().as_raw()),
            hosts: self
                .hosts()
                .iter()
                .map(current_id)
                .collect::<io::Result<_>>()?,
            switches: switches
                .map(|space| space.as_fd().try_clone_to_owned())
                .transpose()?,
            current_host: None,
        })
    }
}
