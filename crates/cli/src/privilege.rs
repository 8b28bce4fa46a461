//! Capabilities that a server keeps once its ports are open: those that its grants need.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use linerate_measure::Grant;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs,
};

/// Inputs that decide which capabilities a server keeps.
pub struct Needs<'a> {
    /// Permissions of clients.
    pub grants: &'a [Grant],
    /// Lowest port that it listens on: each UDP flow gets a socket there.
    pub lowest_port: u16,
    /// True if it reads counters of the other hosts of a lab.
    pub in_lab: bool,
    /// Directories of records.
    pub folders: &'a [PathBuf],
}

impl Needs<'_> {
    /// Returns the capabilities to keep.
    fn kept(&self) -> CapabilitySet {
        // Read access to this process's own threads and packets. Clients on this machine need no
        // grant for that.
        let mut kept = CapabilitySet::PERFMON;
        for grant in self.grants {
            kept |= match grant {
                Grant::Sched => CapabilitySet::SYS_NICE,
                Grant::Buffers | Grant::Socket | Grant::Tune => CapabilitySet::NET_ADMIN,
                Grant::Trace => CapabilitySet::PERFMON,
                // The device belongs to root; processors and groups need no privilege.
                Grant::Idle | Grant::Load | Grant::Multicast => CapabilitySet::empty(),
            };
        }
        if self.lowest_port < 1024 {
            kept |= CapabilitySet::NET_BIND_SERVICE;
        }
        if self.in_lab {
            kept |= CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
        }
        if self.folders.iter().any(|folder| is_of_another_user(folder)) {
            kept |= CapabilitySet::DAC_OVERRIDE;
        }
        kept
    }
}

/// Returns whether a directory, or its nearest existing parent, belongs to another user.
fn is_of_another_user(folder: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let there = folder.ancestors().find_map(|folder| folder.metadata().ok());
    there.is_some_and(|folder| folder.uid() != own)
}

/// Drops all other capabilities for the calling thread and all threads and processes that it
/// starts.
///
/// # Errors
/// Returns the kernel's error; the server must not serve then, because the state is unknown.
pub fn give_up(needs: &Needs<'_>) -> std::io::Result<()> {
    let has = capabilities(None)?;
    let kept = needs.kept();
    set_capabilities(
        None,
        CapabilitySets {
            effective: has.effective & kept,
            permitted: has.permitted & kept,
            inheritable: has.inheritable & kept,
        },
    )?;
    // Programs that it executes regain no privileges either.
    set_no_new_privs(true)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(grants: &[Grant], lowest_port: u16) -> CapabilitySet {
        let needs = Needs {
            grants,
            lowest_port,
            in_lab: false,
            folders: &[],
        };
        needs.kept()
    }

    #[test]
    fn only_what_is_granted_is_kept() {
        let look = CapabilitySet::PERFMON;
        assert_eq!(needs(&[], 5201), look);
        assert_eq!(needs(&[Grant::Idle, Grant::Load], 5201), look);
        assert_eq!(needs(&[Grant::Sched], 5201), look | CapabilitySet::SYS_NICE);
        assert_eq!(needs(&[], 7), look | CapabilitySet::NET_BIND_SERVICE);
        assert_eq!(
            needs(&[Grant::Buffers], 5201),
            look | CapabilitySet::NET_ADMIN
        );
    }

    #[test]
    fn a_thread_that_gave_up_has_nothing_else() {
        // On a thread of its own: the other threads of this test keep their capabilities.
        let left = std::thread::spawn(|| {
            let needs = Needs {
                grants: &[],
                lowest_port: 5201,
                in_lab: false,
                folders: &[],
            };
            let had = capabilities(None).unwrap().permitted;
            if CapabilitySet::PERFMON.contains(had) {
                println!("skipped: this user has no capability to give up");
            }
            give_up(&needs).unwrap();
            let own = capabilities(None).unwrap();
            let child = std::thread::spawn(|| capabilities(None).unwrap())
                .join()
                .unwrap();
            (own, child)
        });
        let (own, child) = left.join().unwrap();
        for sets in [own, child] {
            assert!(CapabilitySet::PERFMON.contains(sets.effective | sets.permitted));
        }
    }
}
