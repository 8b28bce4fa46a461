//! What a server may still do once its ports are open: what its grants need, and little more.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use linerate_measure::Grant;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs,
};

/// What decides what a server keeps.
pub struct Needs<'a> {
    /// What far clients may have.
    pub grants: &'a [Grant],
    /// The lowest port that it listens on: each flow of datagrams gets a socket there.
    pub lowest_port: u16,
    /// Whether it looks into the other hosts of a lab.
    pub in_lab: bool,
    /// Where records go.
    pub folders: &'a [PathBuf],
}

impl Needs<'_> {
    /// The capabilities that go on being needed.
    fn kept(&self) -> CapabilitySet {
        // It lets this process look at its own threads and packets, and change nothing. Clients of this
        // machine need no grant for that.
        let mut kept = CapabilitySet::PERFMON;
        for grant in self.grants {
            kept |= match grant {
                Grant::Sched => CapabilitySet::SYS_NICE,
                Grant::Buffers | Grant::Socket | Grant::Tune => CapabilitySet::NET_ADMIN,
                Grant::Trace => CapabilitySet::PERFMON,
                // The device belongs to root; processors and groups are for everybody.
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

/// Whether a folder, or the nearest one above it that is there, belongs to somebody else.
fn is_of_another_user(folder: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let there = folder.ancestors().find_map(|folder| folder.metadata().ok());
    there.is_some_and(|folder| folder.uid() != own)
}

/// Gives up everything else, for the calling thread and all that it starts from now on, for good.
///
/// # Errors
/// What the kernel says; then it is not known what was given up, and nobody may be served.
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
    // Nothing that it starts gets anything back.
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
        // Of a thread of its own: the others of this test go on as they are.
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
