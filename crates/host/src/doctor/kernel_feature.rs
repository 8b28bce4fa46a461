//! Detection of kernel features without loading their modules.

use super::inputs::Ground;

/// A kernel feature and the names that reveal it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Feature {
    pub(super) module: &'static str,
    /// Build option.
    pub(super) option: &'static str,
    /// Name of one of its functions in /proc/kallsyms.
    pub(super) function: &'static str,
}

/// Qdisc that delays, drops and reorders.
pub(super) const NETEM: Feature = Feature {
    module: "sch_netem",
    option: "CONFIG_NET_SCH_NETEM",
    function: "netem_enqueue",
};

/// Qdisc that paces.
pub(super) const FQ: Feature = Feature {
    module: "sch_fq",
    option: "CONFIG_NET_SCH_FQ",
    function: "fq_enqueue",
};

/// TUN and TAP devices.
pub(super) const TUN: Feature = Feature {
    module: "tun",
    option: "CONFIG_TUN",
    function: "tun_chr_open",
};

/// Presence of a kernel feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// Built in or loaded.
    Ready,
    /// Module on disk; the kernel loads it on first use.
    Loadable,
    Absent,
    /// No source of this machine shows it.
    Unknown,
}

impl Feature {
    /// Searches the loaded modules, modules on disk, build options and function names of the
    /// kernel.
    pub(super) fn presence(self, ground: &Ground) -> Presence {
        let files = &ground.files;
        let loaded = files.text("/proc/modules");
        if loaded.as_deref().is_some_and(|text| self.is_loaded(text)) {
            return Presence::Ready;
        }

        let release = ground.host.kernel.clone().unwrap_or_default();
        let on_disk = |file: &str| {
            files
                .text(&format!("/lib/modules/{release}/{file}"))
                .map(|text| self.is_listed(&text))
        };
        let (built_in, module) = (on_disk("modules.builtin"), on_disk("modules.dep"));
        if built_in == Some(true) {
            return Presence::Ready;
        }
        if module == Some(true) {
            return Presence::Loadable;
        }

        let options = [
            format!("/boot/config-{release}"),
            format!("/lib/modules/{release}/config"),
        ];
        match options
            .iter()
            .find_map(|path| self.in_options(&files.text(path)?))
        {
            Some('y') => return Presence::Ready,
            // The module file may exist on the host of a container, invisible from inside.
            Some('m') if module.is_none() => return Presence::Loadable,
            Some(_) => return Presence::Absent,
            None => {}
        }

        let function = ground.symbols().map(|symbols| self.is_a_symbol(symbols));
        match function {
            Some(true) => Presence::Ready,
            // A kernel without /proc/modules cannot load modules: what is not built in stays
            // missing.
            Some(false) if loaded.is_none() && files.exists("/proc/self") => Presence::Absent,
            _ if built_in.is_some() && module.is_some() => Presence::Absent,
            _ => Presence::Unknown,
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
    fn in_options(self, options: &str) -> Option<char> {
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

    fn is_a_symbol(self, symbols: &str) -> bool {
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
    fn each_source_tells() {
        let release = rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned();
        let builtin = format!("/lib/modules/{release}/modules.builtin");
        let dep = format!("/lib/modules/{release}/modules.dep");
        let config = format!("/boot/config-{release}");
        let table: Vec<(Vec<(&str, &str)>, Presence)> = vec![
            (vec![], Presence::Unknown),
            (
                vec![("/proc/modules", "sch_netem 16384 0 - Live 0x0\n")],
                Presence::Ready,
            ),
            (
                vec![
                    ("/proc/modules", "x 1 0 - Live 0x0\n"),
                    (&dep, "kernel/net/sched/sch-netem.ko.zst: kernel/lib/x.ko\n"),
                ],
                Presence::Loadable,
            ),
            (
                vec![(&builtin, "kernel/net/sched/sch_netem.ko\n")],
                Presence::Ready,
            ),
            (
                vec![
                    (&builtin, "kernel/a.ko\n"),
                    (&dep, "kernel/b.ko: kernel/sch_netem.ko\n"),
                ],
                Presence::Absent,
            ),
            (vec![(&config, "CONFIG_NET_SCH_NETEM=y\n")], Presence::Ready),
            (
                vec![(&config, "CONFIG_NET_SCH_NETEM=m\n")],
                Presence::Loadable,
            ),
            (
                vec![(
                    &config,
                    "CONFIG_NET_SCH_NETEM_X=y\n# CONFIG_NET_SCH_NETEM is not set\n",
                )],
                Presence::Absent,
            ),
            (
                vec![("/proc/kallsyms", "0000 t netem_enqueue\n")],
                Presence::Ready,
            ),
            (
                vec![
                    ("/proc/kallsyms", "0000 t netem_enqueue_x\n"),
                    ("/proc/self/stat", "1"),
                ],
                Presence::Absent,
            ),
            (
                vec![
                    ("/proc/kallsyms", "0000 t other\n"),
                    ("/proc/self/stat", "1"),
                    ("/proc/modules", "x 1 0 - Live 0x0\n"),
                ],
                Presence::Unknown,
            ),
        ];
        for (number, (layout, expected)) in table.into_iter().enumerate() {
            let (_directory, files) = tree(&layout);
            assert_eq!(
                NETEM.presence(&Ground::on(files)),
                expected,
                "row {number}: {layout:?}"
            );
        }
    }
}
