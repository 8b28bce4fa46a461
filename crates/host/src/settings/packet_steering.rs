//! Software packet steering: the processors that handle a receive queue (RPS) or use a transmit
//! queue (XPS).
//!
//! Both are sysfs files, and sysfs shows the network namespace in which it was *mounted*. So each
//! call mounts a detached sysfs of its own, which shows the calling thread's namespace and ends
//! with the call.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use rustix::fd::OwnedFd;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Direction of packet steering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketSteering {
    /// Received packets: `rps_cpus` of each receive queue.
    Rps,
    /// Sent packets: `xps_cpus` of each transmit queue.
    Xps,
}

impl PacketSteering {
    fn name_parts(self) -> (&'static str, &'static str) {
        match self {
            Self::Rps => ("rx-", "rps_cpus"),
            Self::Xps => ("tx-", "xps_cpus"),
        }
    }
}

/// Reads the masks of an interface's queues: one mask if all are equal, else one per queue.
///
/// # Errors
/// `EPERM` where sysfs may not be mounted, `ENOENT` without such an interface or such queues.
pub fn read_steering(interface: &str, kind: PacketSteering) -> io::Result<String> {
    let queues = QueueFiles::open(interface, kind)?;
    let masks: Vec<String> = (queues.files.iter())
        .map(|file| fs::read_to_string(file).map(|text| text.trim().to_owned()))
        .collect::<io::Result<_>>()?;
    Ok(match masks.split_first() {
        Some((first, rest)) if rest.iter().all(|mask| mask == first) => first.clone(),
        _ => masks.join(" "),
    })
}

/// Sets one mask for all queues, or one mask per queue.
///
/// # Errors
/// As [`read_steering`]; `InvalidInput` for another number of masks.
pub fn set_steering(interface: &str, kind: PacketSteering, text: &str) -> io::Result<()> {
    let queues = QueueFiles::open(interface, kind)?;
    let masks: Vec<&str> = text.split_whitespace().collect();
    if masks.len() != 1 && masks.len() != queues.files.len() {
        let problem = format!("`{text}` is neither one mask nor one mask per queue");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    for (number, file) in queues.files.iter().enumerate() {
        fs::write(file, masks[number % masks.len()])?;
    }
    Ok(())
}

/// Files of an interface's queues; the sysfs mount ends with the value.
struct QueueFiles {
    files: Vec<PathBuf>,
    _mount: OwnedFd,
}

impl QueueFiles {
    fn open(interface: &str, kind: PacketSteering) -> io::Result<Self> {
        if interface.is_empty() || interface.contains('/') || interface.starts_with('.') {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        let mount = fsmount(
            &context,
            FsMountFlags::FSMOUNT_CLOEXEC,
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV,
        )?;
        let (prefix, file) = kind.name_parts();
        let queues_dir = format!(
            "/proc/self/fd/{}/class/net/{interface}/queues",
            mount.as_raw_fd()
        );
        let mut queues: Vec<(u32, PathBuf)> = Vec::new();
        for entry in fs::read_dir(queues_dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let number = (name.to_str()).and_then(|name| name.strip_prefix(prefix)?.parse().ok());
            queues.extend(number.map(|number| (number, entry.path().join(file))));
        }
        if queues.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        queues.sort_unstable();
        Ok(Self {
            files: queues.into_iter().map(|(_, file)| file).collect(),
            _mount: mount,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_traversal_in_names_is_rejected() {
        for name in ["", "..", "a/b", "../../kernel"] {
            let error = read_steering(name, PacketSteering::Rps).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{name}");
        }
    }

    #[test]
    fn loopback_has_a_receive_queue() {
        match read_steering("lo", PacketSteering::Rps) {
            Ok(mask) => assert!(
                mask.chars().all(|c| c.is_ascii_hexdigit() || c == ','),
                "{mask}"
            ),
            Err(error) => println!("skipped: sysfs cannot be mounted here: {error}"),
        }
    }
}
