//! Capabilities that a server keeps once its ports are open: those that its grants need.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use linerate_server::options::Grant;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs,
};

/// Inputs that decide which capabilities a server keeps.
pub struct PrivilegeNeeds<'a> {
    /// Permissions of clients.
    pub grants: &'a [Grant],
    /// Lowest port that it listens on: each UDP flow gets a socket there.
    pub lowest_port: u16,
    /// True if it reads counters of the other hosts of a lab.
    pub in_lab: bool,
    /// Directories of records.
    pub record_dirs: &'a [PathBuf],
}

impl PrivilegeNeeds<'_> {
    /// Returns the capabilities to keep.
    fn capabilities_to_keep(&self) -> CapabilitySet {
        // Read access to this process's own threads and packets. Clients on this machine need no
        // grant for that.
        let mut keep = CapabilitySet::PERFMON;
        for grant in self.grants {
            keep |= match grant {
                Grant::Sched => CapabilitySet::SYS_NICE,
                Grant::Buffers | Grant::Socket | Grant::Tune => CapabilitySet::NET_ADMIN,
                Grant::Trace => CapabilitySet::PERFMON,
                // The device belongs to root; processors and groups need no privilege.
                Grant::Idle | Grant::Load | Grant::Multicast => CapabilitySet::empty(),
            };
        }
        if self.lowest_port < 1024 {
            keep |= CapabilitySet::NET_BIND_SERVICE;
        }
        if self.in_lab {
            keep |= CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
        }
        if self.record_dirs.iter().any(|dir| is_of_another_user(dir)) {
            keep |= CapabilitySet::DAC_OVERRIDE;
        }
        keep
    }
}

/// Returns whether a directory, or its nearest existing parent, belongs to another user.
fn is_of_another_user(dir: &Path) -> bool {
    let uid = rustix::process::geteuid().as_raw();
    let existing = dir.ancestors().find_map(|dir| dir.metadata().ok());
    existing.is_some_and(|dir| dir.uid() != uid)
}

/// Drops all other capabilities for the calling thread and all threads and processes that it
/// starts.
///
/// # Errors
/// Returns the kernel's error; the server must not serve then, because the state is unknown.
pub fn drop_privileges(needs: &PrivilegeNeeds<'_>) -> std::io::Result<()> {
    let has = capabilities(None)?;
    let keep = needs.capabilities_to_keep();
    set_capabilities(
        None,
        CapabilitySets {
            effective: has.effective & keep,
            permitted: has.permitted & keep,
            inheritable: has.inheritable & keep,
        },
    )?;
    // Programs that it executes regain no privileges either.
    set_no_new_privs(true)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept_capabilities(grants: &[Grant], lowest_port: u16) -> CapabilitySet {
        let needs = PrivilegeNeeds {
            grants,
            lowest_port,
            in_lab: false,
            record_dirs: &[],
        };
        needs.capabilities_to_keep()
    }

    #[test]
    fn only_what_is_granted_is_kept() {
        let observe = CapabilitySet::PERFMON;
        assert_eq!(kept_capabilities(&[], 5201), observe);
        assert_eq!(
            kept_capabilities(&[Grant::Idle, Grant::Load], 5201),
            observe
        );
        assert_eq!(
            kept_capabilities(&[Grant::Sched], 5201),
            observe | CapabilitySet::SYS_NICE
        );
        assert_eq!(
            kept_capabilities(&[], 7),
            observe | CapabilitySet::NET_BIND_SERVICE
        );
        assert_eq!(
            kept_capabilities(&[Grant::Buffers], 5201),
            observe | CapabilitySet::NET_ADMIN
        );
    }

    #[test]
    fn a_thread_that_gave_up_has_nothing_else() {
        // On a thread of its own: the other threads of this test keep their capabilities.
        let result = std::thread::spawn(|| {
            let needs = PrivilegeNeeds {
                grants: &[],
                lowest_port: 5201,
                in_lab: false,
                record_dirs: &[],
            };
            let had = capabilities(None).unwrap().permitted;
            if CapabilitySet::PERFMON.contains(had) {
                println!("skipped: this user has no capability to give up");
            }
            drop_privileges(&needs).unwrap();
            let after = capabilities(None).unwrap();
            let child = std::thread::spawn(|| capabilities(None).unwrap())
                .join()
                .unwrap();
            (after, child)
        });
        let (after, child) = result.join().unwrap();
        for sets in [after, child] {
            assert!(CapabilitySet::PERFMON.contains(sets.effective | sets.permitted));
        }
    }
}
