//! Quota of processor time that cgroups set for this process, and how often it was used up.
//!
//! Version 2 has `cpu.max`, version 1 `cpu.cfs_quota_us` and `cpu.cfs_period_us`. The quota of each
//! cgroup above the process applies, so the smallest one limits it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::LazyLock;

use linerate_record::facts::CpuQuota;
use linerate_record::throttling::CpuThrottling;
use linerate_sys::namespace::mount_detached;

use super::SystemFiles;

/// Mount of a hierarchy of cgroups that has the processor controller.
struct CgroupMount {
    is_v2: bool,
    /// Part of the hierarchy that the mount shows.
    root: String,
    mount_point: String,
    /// Path by which this process reaches the mount.
    access: String,
}

impl CgroupMount {
    /// Reads a line of mountinfo (proc_pid_mountinfo(5)): fields 4 and 5 are the root of the mount
    /// and the mount point; after the separator come the type, the source and the options.
    fn parse(line: &str) -> Option<Self> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, mount_point) = (mount.next()?, mount.next()?);
        let mut file_system = file_system.split(' ');
        let (kind, options) = (file_system.next()?, file_system.nth(1)?);
        let is_v2 = kind == "cgroup2";
        (is_v2 || kind == "cgroup" && lists_cpu(options)).then(|| Self {
            is_v2,
            root: root.trim_end_matches('/').to_owned(),
            mount_point: mount_point.to_owned(),
            access: mount_point.to_owned(),
        })
    }

    /// Returns the mounts that this process sees, at most one of each version.
    fn of_process(files: &SystemFiles) -> Vec<Self> {
        let mounts = files.read_text("/proc/thread-self/mountinfo");
        let mounts = mounts.unwrap_or_default();
        let find = |is_v2| {
            let mut mounts = mounts.lines().filter_map(Self::parse);
            mounts.find(|mount| mount.is_v2 == is_v2)
        };
        [true, false].into_iter().filter_map(find).collect()
    }

    /// Returns the mounts of this machine. Where they are hidden, as by `ip netns exec`, the first
    /// call mounts the hierarchy and keeps it open. That takes CAP_SYS_ADMIN, which a server drops
    /// after its start.
    fn of_machine() -> &'static [Self] {
        static MOUNTS: LazyLock<(Vec<CgroupMount>, Option<OwnedFd>)> = LazyLock::new(|| {
            let files = SystemFiles::of_machine();
            let visible = CgroupMount::of_process(&files);
            let (true, Some(memberships)) = (visible.is_empty(), read_memberships(&files)) else {
                return (visible, None);
            };
            let mut lists = memberships
                .lines()
                .filter_map(|line| line.split(':').nth(1));
            let controllers = lists.find(|list| lists_cpu(list));
            let (kind, options, name) = match controllers {
                Some(list) => ("cgroup", list.split(',').collect(), format!("/{list}")),
                None => ("cgroup2", Vec::new(), String::new()),
            };
            let Ok(directory) = mount_detached(kind, &options) else {
                return (Vec::new(), None);
            };
            let mount = CgroupMount {
                is_v2: controllers.is_none(),
                root: String::new(),
                mount_point: format!("/sys/fs/cgroup{name}"),
                access: format!("/proc/self/fd/{}", directory.as_raw_fd()),
            };
            (vec![mount], Some(directory))
        });
        &MOUNTS.0
    }

    /// Returns the path of this process's cgroup below the mount; `None` if it has none there.
    fn path_of(&self, memberships: &str) -> Option<String> {
        // `0::/path` for version 2, `4:cpu,cpuacct:/path` for version 1.
        let path = memberships.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let is_member = match self.is_v2 {
                true => number == "0" && controllers.is_empty(),
                false => lists_cpu(controllers),
            };
            is_member.then_some(path)
        })?;
        // In a container, the mount shows its own part of the hierarchy, or the path lies outside.
        let below = path.strip_prefix(self.root.as_str());
        let below = below.filter(|below| below.starts_with('/') && !below.starts_with("/.."));
        Some(below.unwrap_or_default().trim_end_matches('/').to_owned())
    }
}

/// Reads the cgroups of this process, one a line for each hierarchy.
fn read_memberships(files: &SystemFiles) -> Option<String> {
    files.read_text("/proc/thread-self/cgroup")
}

/// Returns whether a list of controllers or of mount options has the processor controller.
fn lists_cpu(list: &str) -> bool {
    list.split(',').any(|name| name == "cpu")
}

/// Cgroups of this process that the processor controller may limit.
struct CpuHierarchy {
    is_v2: bool,
    mount_point: String,
    access: String,
    /// Path of the process below the mount point, without a slash at its end.
    path: String,
}

impl CpuHierarchy {
    fn find(files: &SystemFiles, mounts: &[CgroupMount]) -> Vec<Self> {
        let memberships = read_memberships(files).unwrap_or_default();
        let below = |mount: &CgroupMount| {
            Some(Self {
                is_v2: mount.is_v2,
                mount_point: mount.mount_point.clone(),
                access: mount.access.clone(),
                path: mount.path_of(&memberships)?,
            })
        };
        mounts.iter().filter_map(below).collect()
    }

    /// Returns the hierarchies of this process on the machine.
    fn of_machine() -> Vec<Self> {
        Self::find(&SystemFiles::of_machine(), CgroupMount::of_machine())
    }

    /// Returns the hierarchies that this process sees.
    fn of_process(files: &SystemFiles) -> Vec<Self> {
        Self::find(files, &CgroupMount::of_process(files))
    }

    /// Returns the paths of the process's cgroup and of those above it, below the mount point.
    fn paths(&self) -> impl Iterator<Item = &str> {
        std::iter::successors(Some(self.path.as_str()), |path| {
            path.rsplit_once('/').map(|(parent, _)| parent)
        })
    }

    /// Reads a file of a cgroup.
    fn read(&self, files: &SystemFiles, path: &str, file: &str) -> Option<String> {
        files.read_text(&format!("{}{path}/{file}", self.access))
    }

    /// Reads the quota of one cgroup; `None` without a limit.
    fn read_quota(&self, files: &SystemFiles, path: &str) -> Option<CpuQuota> {
        let (quota, period, file) = match self.is_v2 {
            true => {
                let text = self.read(files, path, "cpu.max")?;
                let (quota, period) = text.split_once(' ')?;
                (quota.to_owned(), period.to_owned(), "cpu.max")
            }
            false => {
                let quota = self.read(files, path, "cpu.cfs_quota_us")?;
                let period = self.read(files, path, "cpu.cfs_period_us")?;
                (quota, period, "cpu.cfs_quota_us")
            }
        };
        // Without a limit the quota is `max` or -1.
        let ns = |text: String| {
            let us: u64 = text.trim().parse().ok()?;
            us.checked_mul(1_000).filter(|&ns| ns > 0)
        };
        Some(CpuQuota {
            quota_ns: ns(quota)?,
            period_ns: ns(period)?,
            file: format!("{}{path}/{file}", self.mount_point),
        })
    }

    /// Reads how often the quota of one cgroup was used up, since its creation.
    fn read_throttling(&self, files: &SystemFiles, path: &str) -> Option<CpuThrottling> {
        let text = self.read(files, path, "cpu.stat")?;
        let value = |name: &str| -> Option<u64> {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            lines.find(|(key, _)| *key == name)?.1.trim().parse().ok()
        };
        Some(CpuThrottling {
            periods: value("nr_periods")?,
            throttled_periods: value("nr_throttled")?,
            throttled_ns: match self.is_v2 {
                true => value("throttled_usec")?.saturating_mul(1_000),
                false => value("throttled_time")?,
            },
        })
    }
}

/// Reads the smallest quota of the cgroups of this process; `None` without a limit.
#[must_use]
pub fn read_cpu_quota() -> Option<CpuQuota> {
    smallest_quota(&SystemFiles::of_machine(), &CpuHierarchy::of_machine())
}

/// Reads the smallest quota in a tree of files.
pub(crate) fn read_cpu_quota_from(files: &SystemFiles) -> Option<CpuQuota> {
    match files.is_machine() {
        true => read_cpu_quota(),
        false => smallest_quota(files, &CpuHierarchy::of_process(files)),
    }
}

fn smallest_quota(files: &SystemFiles, hierarchies: &[CpuHierarchy]) -> Option<CpuQuota> {
    let quotas = hierarchies.iter().flat_map(|hierarchy| {
        let paths = hierarchy.paths();
        paths.filter_map(|path| hierarchy.read_quota(files, path))
    });
    quotas.min_by(|a, b| a.cpus().total_cmp(&b.cpus()))
}

/// Reads how often the quotas of this process's cgroups were used up, since their creation; `None`
/// without a quota.
#[must_use]
pub fn read_cpu_throttling() -> Option<CpuThrottling> {
    sum_throttling(&SystemFiles::of_machine(), &CpuHierarchy::of_machine())
}

fn sum_throttling(files: &SystemFiles, hierarchies: &[CpuHierarchy]) -> Option<CpuThrottling> {
    let counts = hierarchies.iter().flat_map(|hierarchy| {
        let limited =
            (hierarchy.paths()).filter(|path| hierarchy.read_quota(files, path).is_some());
        limited.filter_map(|path| hierarchy.read_throttling(files, path))
    });
    // The counters of a cgroup do not include those above it.
    counts.reduce(|sum, next| CpuThrottling {
        periods: sum.periods.max(next.periods),
        throttled_periods: sum.throttled_periods + next.throttled_periods,
        throttled_ns: sum.throttled_ns + next.throttled_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::super::system_files::tree;
    use super::*;

    const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate";
    const V1_MOUNT: &str =
        "33 25 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:8 - cgroup cgroup rw,cpu,cpuacct";

    fn read_cpu_throttling_from(files: &SystemFiles) -> Option<CpuThrottling> {
        sum_throttling(files, &CpuHierarchy::of_process(files))
    }

    /// Quota in processors and its file.
    fn quota_of(files: &SystemFiles) -> Option<(f64, String)> {
        read_cpu_quota_from(files).map(|quota| (quota.cpus(), quota.file))
    }

    #[test]
    fn the_smallest_quota_above_the_process_counts() {
        let (_directory, files) = tree(&[
            ("/proc/thread-self/cgroup", "0::/box/inner\n"),
            ("/proc/thread-self/mountinfo", V2_MOUNT),
            ("/sys/fs/cgroup/cpu.max", "max 100000\n"),
            ("/sys/fs/cgroup/box/cpu.max", "30000 100000\n"),
            (
                "/sys/fs/cgroup/box/cpu.stat",
                "usage_usec 9\nnr_periods 20\nnr_throttled 7\nthrottled_usec 1500\n",
            ),
            ("/sys/fs/cgroup/box/inner/cpu.max", "150000 100000\n"),
            (
                "/sys/fs/cgroup/box/inner/cpu.stat",
                "nr_periods 19\nnr_throttled 1\nthrottled_usec 2\n",
            ),
        ]);
        let file = "/sys/fs/cgroup/box/cpu.max".to_owned();
        assert_eq!(quota_of(&files), Some((0.3, file)));
        assert_eq!(
            read_cpu_throttling_from(&files),
            Some(CpuThrottling {
                periods: 20,
                throttled_periods: 8,
                throttled_ns: 1_502_000,
            })
        );
    }

    /// Version 1 beside a version 2 without the controller, as systemd's hybrid mode has it.
    #[test]
    fn version_1_has_its_own_files() {
        let mounts = format!("{V2_MOUNT}\n{V1_MOUNT}\n").replace(
            "/sys/fs/cgroup rw,nosuid",
            "/sys/fs/cgroup/unified rw,nosuid",
        );
        let at = |file: &str| format!("/sys/fs/cgroup/cpu,cpuacct/box/{file}");
        for (quota, expected) in [("50000\n", Some(0.5)), ("-1\n", None)] {
            let (_directory, files) = tree(&[
                (
                    "/proc/thread-self/cgroup",
                    "9:memory:/else\n4:cpu,cpuacct:/box\n3:cpuset:/x\n0::/\n",
                ),
                ("/proc/thread-self/mountinfo", &mounts),
                (&at("cpu.cfs_quota_us"), quota),
                (&at("cpu.cfs_period_us"), "100000\n"),
                (
                    &at("cpu.stat"),
                    "nr_periods 9\nnr_throttled 3\nthrottled_time 4000000\n",
                ),
            ]);
            assert_eq!(quota_of(&files).map(|(cpus, _)| cpus), expected);
            let throttled = read_cpu_throttling_from(&files);
            assert_eq!(
                throttled.map(|counts| counts.throttled_ns),
                expected.map(|_| 4_000_000)
            );
        }
    }

    /// A container sees its own part of the hierarchy at the mount point, or its path as the root.
    #[test]
    fn the_quota_of_a_container_is_found() {
        for (membership, root) in [
            ("0::/docker/4f", "/docker/4f"),
            ("0::/", "/"),
            ("0::/../other", "/"),
            ("0::/docker/4f/inner", "/docker/4f"),
        ] {
            let mount = V2_MOUNT.replace(" / /sys", &format!(" {root} /sys"));
            let (_directory, files) = tree(&[
                ("/proc/thread-self/cgroup", membership),
                ("/proc/thread-self/mountinfo", &mount),
                ("/sys/fs/cgroup/cpu.max", "200000 100000"),
            ]);
            assert_eq!(
                quota_of(&files).map(|(cpus, _)| cpus),
                Some(2.0),
                "{membership}"
            );
        }
        let (_directory, none) = tree(&[("/proc/thread-self/cgroup", "0::/")]);
        assert_eq!(quota_of(&none), None);
        assert_eq!(read_cpu_throttling_from(&none), None);
    }
}
