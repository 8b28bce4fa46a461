//! Which networks of this machine live: what was set in one that is gone went with it.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Inode number of the machine's first process-number namespace (PROC_PID_INIT_INO of linux/proc_ns.h): seen from
/// there `/proc` has every process.
const FIRST_PROCESSES: u64 = 0xEFFF_FFFC;

/// What became of a network.
#[derive(Debug)]
pub enum Network {
    /// Somebody holds it; a handle on it.
    Lives(File),
    /// Nobody on this machine holds it.
    Gone,
    /// Not everybody who could hold it can be seen from here.
    Unknown,
}

/// Looks for the network with this inode number. From a container, and from a host of a lab, not all processes are
/// to be seen; those of other users hold no network that this user changes.
#[must_use]
pub fn network(inode: u64) -> Network {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let own = rustix::process::geteuid().as_raw();
    let found = held_at(Path::new("/proc"), &mounts, inode, own);
    if let Some(file) = found.path.and_then(|path| File::open(path).ok()) {
        return Network::Lives(file);
    }
    let first = fs::metadata("/proc/self/ns/pid").is_ok_and(|facts| facts.ino() == FIRST_PROCESSES);
    match first && !found.hidden {
        true => Network::Gone,
        false => Network::Unknown,
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Held {
    /// Where there is a handle on it.
    path: Option<PathBuf>,
    /// Whether somebody could hold it who may not be looked at.
    hidden: bool,
}

/// Goes through what threads are in, what processes hold open, and what is mounted.
fn held_at(proc: &Path, mounts: &str, inode: u64, user: u32) -> Held {
    let name = PathBuf::from(format!("net:[{inode}]"));
    let mut held = Held {
        path: mounted(mounts, &name),
        hidden: false,
    };
    let is_number = |path: &PathBuf| {
        let last = path.file_name().and_then(|last| last.to_str());
        last.is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let mut processes = entries(proc).unwrap_or_default();
    processes.retain(is_number);
    for process in processes {
        if held.path.is_some() {
            break;
        }
        match of_process(&process, &name) {
            Ok(path) => held.path = path,
            // It may have ended meanwhile.
            Err(error) if error.kind() != ErrorKind::PermissionDenied => {}
            Err(_) => {
                let owner = fs::metadata(&process).map(|facts| facts.uid());
                held.hidden |= user == 0 || owner.is_ok_and(|owner| owner == user);
            }
        }
    }
    held
}

fn of_process(process: &Path, name: &Path) -> io::Result<Option<PathBuf>> {
    for thread in entries(&process.join("task"))? {
        let path = thread.join("ns/net");
        match fs::read_link(&path) {
            Ok(target) if target == name => return Ok(Some(path)),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return Err(error),
            _ => {}
        }
    }
    let open = entries(&process.join("fd"))?;
    let is_it = |path: &PathBuf| fs::read_link(path).is_ok_and(|target| target == name);
    Ok(open.into_iter().find(is_it))
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?.flatten();
    Ok(entries.map(|entry| entry.path()).collect())
}

/// Where a namespace is mounted, as `ip netns` does it (proc_pid_mountinfo(5): the root is the fourth field, the place
/// the fifth).
fn mounted(mounts: &str, name: &Path) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(3);
        let (root, place) = (fields.next()?, fields.next()?);
        (Path::new(root) == name).then(|| PathBuf::from(place))
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
        // No process, and a process that has just ended.
        link("sys/task/1/ns/net", "net:[104]");
        fs::create_dir(proc.join("10")).unwrap();
        let mounts = "36 35 0:4 net:[103] /run/netns/blue rw shared:9 - nsfs nsfs rw\n\
                      37 35 0:5 / /proc rw - proc proc rw\n";
        for (inode, place) in [
            (100, Some("7/task/7/ns/net")),
            (101, Some("7/task/8/ns/net")),
            (102, Some("9/fd/4")),
            (103, Some("/run/netns/blue")),
            (104, None),
            (10, None),
        ] {
            let held = held_at(proc, mounts, inode, 1000);
            let want = place.map(|place| proc.join(place));
            // Which of several is found first does not matter.
            let same = inode == 100 && held.path.is_some();
            assert!(same || held.path == want, "{inode}: {held:?}");
            assert!(!held.hidden, "{inode}");
        }
    }

    #[test]
    fn our_own_network_lives() {
        let own = fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
        let Network::Lives(file) = network(own) else {
            panic!("this process is in it");
        };
        assert_eq!(file.metadata().unwrap().ino(), own);
        // Inode numbers of namespaces begin far above it (PROC_DYNAMIC_FIRST of linux/proc_ns.h).
        assert!(!matches!(network(1), Network::Lives(_)));
    }
}
