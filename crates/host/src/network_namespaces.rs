//! Existing network namespaces of this machine. Settings in a removed namespace are gone with it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Inode number of the initial PID namespace (PROC_PID_INIT_INO of linux/proc_ns.h). Only from
/// there `/proc` shows every process.
const INIT_PID_NAMESPACE_INODE: u64 = 0xEFFF_FFFC;

/// State of a network namespace.
#[derive(Debug)]
pub enum NamespaceState {
    /// The namespace exists; an open file refers to it.
    Exists(File),
    /// No process or mount of this machine holds the namespace.
    Removed,
    /// Not found, but some processes that could hold it are not visible.
    Unknown,
}

/// Searches for the network namespace with this inode number.
///
/// From a container or a lab host not all processes are visible. Processes of other users do not
/// count as hidden: they hold no namespace whose settings this user changes.
#[must_use]
pub fn find_namespace(inode: u64) -> NamespaceState {
    let mut found_path = None;
    let hidden = visit_namespaces(
        Path::new("/proc"),
        &read_mounts(),
        effective_user(),
        |candidate, path| {
            if candidate != inode {
                return ControlFlow::Continue(());
            }
            found_path = Some(path);
            ControlFlow::Break(())
        },
    );
    if let Some(file) = found_path.and_then(|path| File::open(path).ok()) {
        return NamespaceState::Exists(file);
    }
    let in_init_namespace = fs::metadata("/proc/self/ns/pid")
        .is_ok_and(|facts| facts.ino() == INIT_PID_NAMESPACE_INODE);
    match in_init_namespace && !hidden {
        true => NamespaceState::Removed,
        false => NamespaceState::Unknown,
    }
}

/// Returns the inode number and an open file of every visible network namespace.
#[must_use]
pub fn list_namespaces() -> Vec<(u64, File)> {
    let mut paths: BTreeMap<u64, PathBuf> = BTreeMap::new();
    visit_namespaces(
        Path::new("/proc"),
        &read_mounts(),
        effective_user(),
        |inode, path| {
            paths.entry(inode).or_insert(path);
            ControlFlow::Continue(())
        },
    );
    let opened = paths.into_iter().filter_map(|(inode, path)| {
        let file = File::open(path).ok()?;
        // The process behind the path may have changed its namespace meanwhile.
        let is_same = file.metadata().is_ok_and(|facts| facts.ino() == inode);
        is_same.then_some((inode, file))
    });
    opened.collect()
}

fn read_mounts() -> String {
    fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()
}

fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Visits the network namespaces of mounts, threads and open files until `on_namespace` breaks.
/// Returns true if a process that may hold a namespace could not be read.
fn visit_namespaces(
    proc: &Path,
    mounts: &str,
    user: u32,
    mut on_namespace: impl FnMut(u64, PathBuf) -> ControlFlow<()>,
) -> bool {
    for (inode, path) in mounted_namespaces(mounts) {
        if on_namespace(inode, path).is_break() {
            return false;
        }
    }
    let is_number = |path: &PathBuf| {
        let last = path.file_name().and_then(|last| last.to_str());
        last.is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let mut processes = list_dir(proc).unwrap_or_default();
    processes.retain(is_number);
    let mut hidden = false;
    for process in processes {
        match visit_process(&process, &mut on_namespace) {
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

fn visit_process(
    process: &Path,
    on_namespace: &mut impl FnMut(u64, PathBuf) -> ControlFlow<()>,
) -> io::Result<ControlFlow<()>> {
    let mut visit = |target: &Path, path| match inode_of_link(target) {
        Some(inode) => on_namespace(inode, path),
        None => ControlFlow::Continue(()),
    };
    for thread in list_dir(&process.join("task"))? {
        let path = thread.join("ns/net");
        let target = match fs::read_link(&path) {
            Ok(target) => target,
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return Err(error),
            Err(_) => continue,
        };
        if visit(&target, path).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    for path in list_dir(&process.join("fd"))? {
        let target = fs::read_link(&path);
        if target.is_ok_and(|target| visit(&target, path).is_break()) {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Returns the inode number in a link such as `net:[4026531840]`.
fn inode_of_link(target: &Path) -> Option<u64> {
    let name = target.to_str()?.strip_prefix("net:[")?;
    name.strip_suffix(']')?.parse().ok()
}

fn list_dir(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir)?.flatten();
    Ok(entries.map(|entry| entry.path()).collect())
}

/// Lists mounted namespaces (`ip netns`). In proc_pid_mountinfo(5) the root is field 4 and the
/// mount point field 5.
fn mounted_namespaces(mounts: &str) -> impl Iterator<Item = (u64, PathBuf)> {
    mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(3);
        let (root, mount_point) = (fields.next()?, fields.next()?);
        Some((inode_of_link(Path::new(root))?, PathBuf::from(mount_point)))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn holders_of_a_namespace_are_visited() {
        let dir = tempfile::tempdir().unwrap();
        let proc = dir.path();
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
        let hidden = visit_namespaces(proc, mounts, 1000, |number, path| {
            all.entry(number).or_default().push(path);
            ControlFlow::Continue(())
        });
        assert!(!hidden);
        let paths_of = |number| all.get(&number).map_or(&[][..], Vec::as_slice);
        assert_eq!(all.len(), 4, "{all:?}");
        // The order of several paths of one namespace does not matter.
        assert_eq!(paths_of(100).len(), 2);
        for (number, relative_path) in [
            (101, "7/task/8/ns/net"),
            (102, "9/fd/4"),
            (103, "/run/netns/blue"),
        ] {
            assert_eq!(paths_of(number), [proc.join(relative_path)]);
        }
        // A break ends the visit.
        let mut visits = 0;
        visit_namespaces(proc, mounts, 1000, |_, _| {
            visits += 1;
            ControlFlow::Break(())
        });
        assert_eq!(visits, 1);
    }

    #[test]
    fn the_current_namespace_exists() {
        let inode = fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
        let NamespaceState::Exists(file) = find_namespace(inode) else {
            panic!("this process is in it");
        };
        assert_eq!(file.metadata().unwrap().ino(), inode);
        let all = list_namespaces();
        assert_eq!(all.iter().filter(|(number, _)| *number == inode).count(), 1);
        // Inode numbers of namespaces start far above 1 (PROC_DYNAMIC_FIRST of linux/proc_ns.h).
        assert!(!matches!(find_namespace(1), NamespaceState::Exists(_)));
    }
}
