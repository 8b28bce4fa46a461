//! Labs of the bench with their knobs, and the commands run in them.

use serde_json::Value;

/// Lab with a search problem.
pub struct LabCase {
    /// Name as used by `ONLY`.
    pub name: &'static str,
    /// Lab file.
    pub topology: &'static str,
    /// Arguments of `linerate` on the server host.
    pub server_args: &'static str,
    /// Goal of the search.
    pub goal: &'static str,
    /// Options of every run.
    options: &'static str,
    /// Duration of a run.
    pub time: &'static str,
    /// Knobs with their values, the start first; a name that `linerate tune` does not define is an
    /// option.
    knobs: &'static [(&'static str, &'static [&'static str])],
    /// Maximum memory of a setting, bytes.
    pub memory_limit: Option<f64>,
}

const DIRECT: &str =
    "[hosts.client]\n[hosts.server]\n[[links]]\nbetween = [\"client\", \"server\"]\n";

/// Labs in the order of the table.
pub const LABS: &[LabCase] = &[
    // Window and bandwidth-delay product: only the buffers of both ends matter.
    LabCase {
        name: "long-path",
        topology: "[hosts.client]\n[hosts.server]\n[[links]]\nbetween = [\"client\", \"server\"]\n\
                   rate = \"200M\"\ndelay = \"2ms\"\n",
        server_args: "server -q",
        goal: "goodput",
        options: "-C cubic",
        time: "300ms",
        knobs: &[
            ("sndbuf", &["8K", "16K", "32K", "64K", "256K", "1M"]),
            ("rcvbuf", &["8K", "16K", "32K", "64K", "256K", "1M"]),
            ("length", &["1K", "4K", "16K", "64K"]),
            ("no-delay", &["off", "on"]),
        ],
        memory_limit: None,
    },
    // Sizes of a small stack with a limit on its total memory: the largest values are out of reach.
    LabCase {
        name: "embedded",
        topology: DIRECT,
        server_args: "server -q",
        goal: "goodput",
        options: "--dev packet:eth0 --ip 10.77.0.3/24 --profile embedded-default",
        time: "200ms",
        knobs: &[
            ("stack-sndbuf", &["1K", "2K", "4K", "8K", "16K", "32K"]),
            ("stack-rx", &["4", "8", "18", "32"]),
            ("stack-tx", &["4", "8", "18", "32"]),
            ("stack-nagle", &["on", "off"]),
            ("stack-psh", &["buffer-empty", "always"]),
        ],
        memory_limit: Some(1536.0 * 1024.0),
    },
    // Segmentation offload and sizes, whose effects multiply.
    LabCase {
        name: "datagrams",
        topology: DIRECT,
        server_args: "server -q",
        goal: "goodput",
        options: "-u",
        time: "200ms",
        knobs: &[
            ("length", &["64", "256", "700", "1400"]),
            ("offload", &["none", "gso", "gro", "gso,gro"]),
            ("sndbuf", &["16K", "64K", "256K", "1M"]),
            ("rcvbuf", &["64K", "256K", "1M", "4M"]),
        ],
        memory_limit: None,
    },
    // Wait modes, together with knobs of almost no effect.
    LabCase {
        name: "round-trips",
        topology: DIRECT,
        server_args: "server -q --grant sched,idle",
        goal: "p50",
        options: "-u",
        time: "150ms",
        knobs: &[
            ("wait", &["block", "spin", "epoll"]),
            ("hold-latency", &["off", "on"]),
            ("sched", &["default", "nice:-20", "fifo:50"]),
            ("length", &["64", "16", "256"]),
            ("rcvbuf", &["64K", "256K", "1M"]),
            ("sndbuf", &["64K", "256K"]),
        ],
        memory_limit: None,
    },
    // Settings of the hosts: segment sizes, offloads, MTU, and the write size.
    LabCase {
        name: "hosts",
        topology: DIRECT,
        server_args: "server -q",
        goal: "goodput",
        options: "-C cubic",
        time: "200ms",
        knobs: &[
            // Built-in knobs with all their values.
            ("gso-size", &[]),
            ("offloads", &[]),
            ("mtu", &[]),
            ("length", &["1K", "8K", "64K", "256K"]),
            ("rcvlowat", &["default", "64K"]),
            ("no-delay", &["off", "on"]),
        ],
        memory_limit: None,
    },
];

/// Knobs with the values to search.
pub type SearchedKnobs = Vec<(&'static str, Vec<&'static str>)>;

impl LabCase {
    pub fn lower_is_better(&self) -> bool {
        self.goal.starts_with('p') && self.goal != "pps"
    }

    /// Knobs and values; in quick mode three knobs with two values each.
    pub fn selected_knobs(&self, quick: bool) -> SearchedKnobs {
        let values = |values: &[&'static str]| match (quick, values.last()) {
            (true, Some(last)) if values.len() > 2 => vec![values[0], last],
            _ => values.to_vec(),
        };
        let args = self
            .knobs
            .iter()
            .map(|(name, all_values)| (*name, values(all_values)));
        args.take(if quick { 3 } else { usize::MAX }).collect()
    }

    /// Measuring command with the options common to all runs.
    pub fn measure_args(&self, time: &str) -> Vec<String> {
        let name = if self.lower_is_better() {
            "latency"
        } else {
            "throughput"
        };
        split_args(&format!("{name} 10.77.0.2 -t {time} {}", self.options))
    }

    pub fn sweep_args(
        &self,
        knobs: &SearchedKnobs,
        command: &[String],
        repeats: u32,
    ) -> Vec<String> {
        let mut args = split_args(&format!(
            "sweep --json --figure {} --seed 1 --repeats {repeats} --knob-file {}",
            self.goal,
            self.knob_file_name()
        ));
        // Knobs take their values from the file, or are built in.
        for (name, _) in knobs {
            args.extend(["--over".to_owned(), (*name).to_owned()]);
        }
        args.push("--".to_owned());
        args.extend_from_slice(command);
        args
    }

    /// Sweep that resumes from a journal.
    pub fn resume_args(journal: &std::path::Path) -> Vec<String> {
        let mut args = split_args("sweep --json --resume");
        args.push(journal.display().to_string());
        args
    }

    pub fn tune_args(
        &self,
        knobs: &SearchedKnobs,
        time: &str,
        seed: u64,
        exhaustive: u64,
    ) -> Vec<String> {
        // The search gets less than half of the allowed runs; the rest is for the proof.
        let runs = (exhaustive / 12).max(12);
        let mut args = split_args(&format!(
            "tune 10.77.0.2 --json --goal {} --seed {seed} --time {time} --runs {runs} --max-pairs 10 --knob-file {}",
            self.goal,
            self.knob_file_name()
        ));
        let names: Vec<_> = knobs.iter().map(|(name, _)| *name).collect();
        args.extend(["--knobs".to_owned(), names.join(",")]);
        if let Some(limit) = self.memory_limit {
            args.extend(["--under".to_owned(), format!("memory={limit}")]);
        }
        if self.options.split(' ').any(|arg| arg == "-u") {
            args.push("-u".to_owned());
        }
        args.push("--".to_owned());
        args.extend(
            split_args(self.options)
                .into_iter()
                .filter(|arg| arg != "-u"),
        );
        args
    }

    pub fn compare_args(
        &self,
        command: &[String],
        best: &[(String, String)],
        tuned: &[(String, String)],
    ) -> Vec<String> {
        let mut args = split_args(&format!(
            "compare --json --figure {} --pairs 30 --knob-file {}",
            self.goal,
            self.knob_file_name()
        ));
        for (side, setting) in [("--knob-a", best), ("--knob-b", tuned)] {
            for (name, value) in setting {
                args.extend([side.to_owned(), format!("{name}={value}")]);
            }
        }
        args.push("--".to_owned());
        args.extend_from_slice(command);
        args
    }

    /// Name of the file with [`Self::knob_file_text`], in the directory of the lab.
    pub fn knob_file_name(&self) -> String {
        format!("{}.knobs.toml", self.name)
    }

    /// Knob file for `linerate tune`, with the values and the start of the sweep.
    pub fn knob_file_text(&self, knobs: &SearchedKnobs) -> String {
        let line = |(name, values): &(&str, Vec<&str>)| {
            let (target_kind, target_name) = knob_target(name);
            let values: Vec<_> = values.iter().map(|value| format!("{value:?}")).collect();
            let ordered = values.len() > 2 && !["wait", "sched", "offload"].contains(name);
            format!(
                "[[knob]]\nname = {name:?}\nvalues = [{}]\n{target_kind} = {target_name:?}\nordered = {ordered}\n",
                values.join(", ")
            )
        };
        (knobs.iter().filter(|(name, _)| !is_builtin(name)))
            .map(line)
            .collect()
    }

    /// Complete setting of a tuning result: its changes, and the start of all other knobs.
    pub fn tuned_setting(&self, tuning: &Value) -> Vec<(String, String)> {
        let knobs = tuning["knobs"].as_array().into_iter().flatten();
        let changes = || tuning["changes"].as_array().into_iter().flatten();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut args: Vec<(String, String)> = knobs
            .map(|knob| {
                let changed = changes().find(|change| change["knob"] == knob["name"]);
                let value = changed.map_or(&knob["values"][0], |change| &change["to"]);
                (text(&knob["name"]), text(value))
            })
            .collect();
        args.sort();
        args
    }

    /// Setting of a record in the same form.
    pub fn point_setting(&self, setting: &Value) -> Vec<(String, String)> {
        let args = setting.as_object().into_iter().flatten();
        args.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()))
            .collect()
    }
}

/// Returns whether a knob is built into `linerate tune`; it starts at the host's own value.
fn is_builtin(name: &str) -> bool {
    ["gso-size", "offloads", "mtu"].contains(&name)
}

/// Kind and name of the target of a knob in the file.
fn knob_target(name: &str) -> (&'static str, &str) {
    match name {
        "stack-sndbuf" => ("stack", "tcp.send_buffer"),
        "stack-rx" => ("stack", "rx_descriptors"),
        "stack-tx" => ("stack", "tx_descriptors"),
        "stack-nagle" => ("stack", "tcp.nagle"),
        "stack-psh" => ("stack", "tcp.psh"),
        option => ("option", option),
    }
}

fn split_args(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
