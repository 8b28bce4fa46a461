//! Existing network namespaces of this machine. Settings in a removed namespace are gone with it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Inode number of the initial PID namespace (PROC_PID_INIT_INO of linux/proc_ns.h). Only from
/// there `/proc` shows every process.
const FIRST_PROCESSES: u64 = 0xEFFF_FFFC;

/// State of a network namespace.
#[derive(Debug)]
pub enum Network {
    /// The namespace exists; an open file refers to it.
    Lives(File),
    /// No process or mount of this machine holds the namespace.
    Gone,
    /// Not found, but some processes that could hold it are not visible.
    Unknown,
}

/// Searches for the network namespace with this inode number.
///
/// From a container or a lab host not all processes are visible. Processes of other users do not
/// count as hidden: they hold no namespace whose settings this user changes.
#[must_use]
pub fn network(inode: u64) -> Network {
    let mut found = None;
    let hidden = visit(Path::new("/proc"), &mounts(), own_user(), |number, path| {
        if number != inode {
            return ControlFlow::Continue(());
        }
        found = Some(path);
        ControlFlow::Break(())
    });
    if let Some(file) = found.and_then(|path| File::open(path).ok()) {
        return Network::Lives(file);
    }
    let first = fs::metadata("/proc/self/ns/pid").is_ok_and(|facts| facts.ino() == FIRST_PROCESSES);
    match first && !hidden {
        true => Network::Gone,
        false => Network::Unknown,
    }
}

/// Returns the inode number and an open file of every visible network namespace.
#[must_use]
pub fn networks() -> Vec<(u64, File)> {
    let mut found: BTreeMap<u64, PathBuf> = BTreeMap::new();
    visit(Path::new("/proc"), &mounts(), own_user(), |number, path| {
        found.entry(number).or_insert(path);
        ControlFlow::Continue(())
    });
    let opened = found.into_iter().filter_map(|(number, path)| {
        let file = File::open(path).ok()?;
        // The process behind the path may have changed its namespace meanwhile.
        let is_it = file.metadata().is_ok_and(|facts| facts.ino() == number);
        is_it.then_some((number, file))
    });
    opened.collect()
}

fn mounts() -> String {
    fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Visits the network namespaces of mounts, threads and open files until `look` breaks. Returns
/// true if a process that may hold a namespace could not be read.
fn visit(
    proc: &Path,
    mounts: &str,
    user: u32,
    mut look: impl FnMut(u64, PathBuf) -> ControlFlow<()>,
) -> bool {
    for (number, path) in mounted(mounts) {
        if look(number, path).is_break() {
            return false;
        }
    }
    let is_number = |path: &PathBuf| {
        let last = path.file_name().and_then(|last| last.to_str());
        last.is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let mut processes = entries(proc).unwrap_or_default();
    processes.retain(is_number);
    let mut hidden = false;
    for process in processes {
        match of_process(&process, &mut look) {
            Ok(ControlFlow::Break(())) => break,
            Ok(ControlFlow::Continue(())) => {}
            // The process may have ended meanwhile.
            Err(error) if error.kind() != ErrorKind::PermissionDenied => {}
            Err(_) => {
                let owner = fs::metadata(&process).map(|facts| facts.uid());
                hidden |= user == 0 || owner.is_ok_and(|owner| owner == user);
            }
        }
    }
    hidden
}

fn of_process(
    process: &Path,
    look: &mut impl FnMut(u64, PathBuf) -> ControlFlow<()>,
) -> io::Result<ControlFlow<()>> {
    let mut seen = |target: &Path, path| match number_of(target) {
        Some(number) => look(number, path),
        None => ControlFlow::Continue(()),
    };
    for thread in entries(&process.join("task"))? {
        let path = thread.join("ns/net");
        let target = match fs::read_link(&path) {
            Ok(target) => target,
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return Err(error),
            Err(_) => continue,
        };
        if seen(&target, path).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    for path in entries(&process.join("fd"))? {
        let target = fs::read_link(&path);
        if target.is_ok_and(|target| seen(&target, path).is_break()) {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Returns the inode number in a link such as `net:[4026531840]`.
fn number_of(target: &Path) -> Option<u64> {
    let name = target.to_str()?.strip_prefix("net:[")?;
    name.strip_suffix(']')?.parse().ok()
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?.flatten();
    Ok(entries.map(|entry| entry.path()).collect())
}

/// Lists mounted namespaces (`ip netns`). In proc_pid_mountinfo(5) the root is field 4 and the
/// mount point field 5.
fn mounted(mounts: &str) -> impl Iterator<Item = (u64, PathBuf)> {
    mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(3);
        let (root, place) = (fields.next()?, fields.next()?);
        Some((number_of(Path::new(root))?, PathBuf::from(place)))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn whoever_holds_a_network_keeps_it_alive() {
        let room = tempfile::tempdir().unwrap();
        let proc = room.path();
        let link = |path: &str, target: &str| {
            let path = proc.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(target, path).unwrap();
        };
        link("7/task/7/ns/net", "net:[100]");
        link("7/task/8/ns/net", "net:[101]");
        link("7/fd/0", "/dev/null");
        link("9/task/9/ns/net", "net:[100]");
        link("9/fd/4", "net:[102]");
        // An entry that is no process, and a process that has just ended.
        link("sys/task/1/ns/net", "net:[104]");
        fs::create_dir(proc.join("10")).unwrap();
        let mounts = "36 35 0:4 net:[103] /run/netns/blue rw shared:9 - nsfs nsfs rw\n\
                      37 35 0:5 / /proc rw - proc proc rw\n";
        let mut all: BTreeMap<u64, Vec<PathBuf>> = BTreeMap::new();
        let hidden = visit(proc, mounts, 1000, |number, path| {
            all.entry(number).or_default().push(path);
            ControlFlow::Continue(())
        });
        assert!(!hidden);
        let of = |number| all.get(&number).map_or(&[][..], Vec::as_slice);
        assert_eq!(all.len(), 4, "{all:?}");
        // The order of several paths of one namespace does not matter.
        assert_eq!(of(100).len(), 2);
        for (number, place) in [
            (101, "7/task/8/ns/net"),
            (102, "9/fd/4"),
            (103, "/run/netns/blue"),
        ] {
            assert_eq!(of(number), [proc.join(place)]);
        }
        // A break ends the visit.
        let mut looks = 0;
        visit(proc, mounts, 1000, |_, _| {
            looks += 1;
            ControlFlow::Break(())
        });
        assert_eq!(looks, 1);
    }

    #[test]
    fn our_own_network_lives() {
        let own = fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
        let Network::Lives(file) = network(own) else {
            panic!("this process is in it");
        };
        assert_eq!(file.metadata().unwrap().ino(), own);
        let all = networks();
        assert_eq!(all.iter().filter(|(number, _)| *number == own).count(), 1);
        // Inode numbers of namespaces start far above 1 (PROC_DYNAMIC_FIRST of linux/proc_ns.h).
        assert!(!matches!(network(1), Network::Lives(_)));
    }
}
