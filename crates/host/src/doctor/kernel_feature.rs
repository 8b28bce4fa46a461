//! Detection of kernel features without loading their modules.

use super::inputs::DoctorInputs;

/// A kernel feature and the names that reveal it.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelFeature {
    pub(super) module: &'static str,
    /// Build option.
    pub(super) option: &'static str,
    /// Name of one of its functions in /proc/kallsyms.
    pub(super) function: &'static str,
}

/// Qdisc that delays, drops and reorders.
pub(super) const NETEM: KernelFeature = KernelFeature {
    module: "sch_netem",
    option: "CONFIG_NET_SCH_NETEM",
    function: "netem_enqueue",
};

/// Qdisc that paces.
pub(super) const FQ: KernelFeature = KernelFeature {
    module: "sch_fq",
    option: "CONFIG_NET_SCH_FQ",
    function: "fq_enqueue",
};

/// TUN and TAP devices.
pub(super) const TUN: KernelFeature = KernelFeature {
    module: "tun",
    option: "CONFIG_TUN",
    function: "tun_chr_open",
};

/// Presence of a kernel feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FeaturePresence {
    /// Built in or loaded.
    Ready,
    /// Module on disk; the kernel loads it on first use.
    Loadable,
    Absent,
    /// No source of this machine shows it.
    Unknown,
}

impl KernelFeature {
    /// Searches the loaded modules, modules on disk, build options and function names of the
    /// kernel.
    pub(super) fn detect(self, inputs: &DoctorInputs) -> FeaturePresence {
        let files = &inputs.files;
        let loaded = files.read_text("/proc/modules");
        if loaded.as_deref().is_some_and(|text| self.is_loaded(text)) {
            return FeaturePresence::Ready;
        }

        let release = inputs.host.kernel.clone().unwrap_or_default();
        let on_disk = |file: &str| {
            files
                .read_text(&format!("/lib/modules/{release}/{file}"))
                .map(|text| self.is_listed(&text))
        };
        let (built_in, module) = (on_disk("modules.builtin"), on_disk("modules.dep"));
        if built_in == Some(true) {
            return FeaturePresence::Ready;
        }
        if module == Some(true) {
            return FeaturePresence::Loadable;
        }

        let config_paths = [
            format!("/boot/config-{release}"),
            format!("/lib/modules/{release}/config"),
        ];
        match config_paths
            .iter()
            .find_map(|path| self.config_value(&files.read_text(path)?))
        {
            Some('y') => return FeaturePresence::Ready,
            // The module file may exist on the host of a container, invisible from inside.
            Some('m') if module.is_none() => return FeaturePresence::Loadable,
            Some(_) => return FeaturePresence::Absent,
            None => {}
        }

        let function = inputs
            .kernel_symbols()
            .map(|symbols| self.has_symbol(symbols));
        match function {
            Some(true) => FeaturePresence::Ready,
            // A kernel without /proc/modules cannot load modules: what is not built in stays
            // missing.
            Some(false) if loaded.is_none() && files.exists("/proc/self") => {
                FeaturePresence::Absent
            }
            _ if built_in.is_some() && module.is_some() => FeaturePresence::Absent,
            _ => FeaturePresence::Unknown,
        }
    }

    fn is_loaded(self, modules: &str) -> bool {
        modules
            .lines()
            .any(|line| line.split_whitespace().next() == Some(self.module))
    }

    /// Returns whether a depmod(8) file lists the module: `kernel/net/sched/sch_netem.ko.zst: …`.
    fn is_listed(self, list: &str) -> bool {
        list.lines().any(|line| {
            let path = line.split(':').next().unwrap_or_default().trim();
            let name = path.rsplit('/').next().unwrap_or_default();
            // File names may have `-` where the module name has `_`.
            name.split_once(".ko")
                .is_some_and(|(name, _)| name.replace('-', "_") == self.module)
        })
    }

    /// Returns `y`, `m` or `n` from the kernel's build options.
    fn config_value(self, options: &str) -> Option<char> {
        options.lines().find_map(|line| {
            if let Some(rest) = line.strip_prefix("# ") {
                return (rest.strip_prefix(self.option)? == " is not set").then_some('n');
            }
            line.strip_prefix(self.option)?
                .strip_prefix('=')?
                .chars()
                .next()
        })
    }

    fn has_symbol(self, symbols: &str) -> bool {
        // Columns: address, kind, name, and `[module]` for functions of modules.
        symbols
            .lines()
            .any(|line| line.split_whitespace().nth(2) == Some(self.function))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::tree;

    #[test]
    fn every_source_is_used() {
        let release = rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned();
        let builtin = format!("/lib/modules/{release}/modules.builtin");
        let dep = format!("/lib/modules/{release}/modules.dep");
        let config = format!("/boot/config-{release}");
        let table: Vec<(Vec<(&str, &str)>, FeaturePresence)> = vec![
            (vec![], FeaturePresence::Unknown),
            (
                vec![("/proc/modules", "sch_netem 16384 0 - Live 0x0\n")],
                FeaturePresence::Ready,
            ),
            (
                vec![
                    ("/proc/modules", "x 1 0 - Live 0x0\n"),
                    (&dep, "kernel/net/sched/sch-netem.ko.zst: kernel/lib/x.ko\n"),
                ],
                FeaturePresence::Loadable,
            ),
            (
                vec![(&builtin, "kernel/net/sched/sch_netem.ko\n")],
                FeaturePresence::Ready,
            ),
            (
                vec![
                    (&builtin, "kernel/a.ko\n"),
                    (&dep, "kernel/b.ko: kernel/sch_netem.ko\n"),
                ],
                FeaturePresence::Absent,
            ),
            (
                vec![(&config, "CONFIG_NET_SCH_NETEM=y\n")],
                FeaturePresence::Ready,
            ),
            (
                vec![(&config, "CONFIG_NET_SCH_NETEM=m\n")],
                FeaturePresence::Loadable,
            ),
            (
                vec![(
                    &config,
                    "CONFIG_NET_SCH_NETEM_X=y\n# CONFIG_NET_SCH_NETEM is not set\n",
                )],
                FeaturePresence::Absent,
            ),
            (
                vec![("/proc/kallsyms", "0000 t netem_enqueue\n")],
                FeaturePresence::Ready,
            ),
            (
                vec![
                    ("/proc/kallsyms", "0000 t netem_enqueue_x\n"),
                    ("/proc/self/stat", "1"),
                ],
                FeaturePresence::Absent,
            ),
            (
                vec![
                    ("/proc/kallsyms", "0000 t other\n"),
                    ("/proc/self/stat", "1"),
                    ("/proc/modules", "x 1 0 - Live 0x0\n"),
                ],
                FeaturePresence::Unknown,
            ),
        ];
        for (number, (layout, expected)) in table.into_iter().enumerate() {
            let (_directory, files) = tree(&layout);
            assert_eq!(
                NETEM.detect(&DoctorInputs::from_files(files)),
                expected,
                "row {number}: {layout:?}"
            );
        }
    }
}
