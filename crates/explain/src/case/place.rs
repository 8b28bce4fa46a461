//! Where a command has to run that changes a host: in a lab its interfaces and settings are those of a namespace,
//! and the machine around it may have an interface of the same name.

use linerate_metric::command_line::quoted;
use linerate_metric::facts::Role;
use linerate_metric::units::parse_duration;

use super::Case;

/// What a shell does not take for a part of one plain command.
const JOINS: &[char] = &[';', '|', '>', '<', '&', '$', '*'];

impl Case<'_> {
    /// A command of an end's host; in a lab by way of `lab exec LAB/HOST --`, as the run itself.
    #[must_use]
    pub fn at(&self, role: Role, command: &str) -> String {
        let [near, far] = &self.places;
        self.at_host(if role == Role::Client { near } else { far }, command)
    }

    /// The ends whose kernels have a setting switched off; our own stack has none of them.
    #[must_use]
    pub fn off_at(&self, name: &str) -> Vec<Role> {
        let ends = [Role::Client, Role::Server].into_iter();
        ends.filter(|&role| !self.is_own_stack(role) && self.sysctl(role, name) == Some(0))
            .collect()
    }

    /// The command that switches a setting on at these ends; two on one host are told once.
    #[must_use]
    pub fn switched_on(&self, ends: &[Role], name: &str) -> String {
        let command = format!("sysctl -w {name}=1");
        let mut each: Vec<String> = ends.iter().map(|&role| self.at(role, &command)).collect();
        each.dedup();
        each.join("; ")
    }

    /// The same of a host by the name that counters have it under.
    #[must_use]
    pub fn at_host(&self, host: &str, command: &str) -> String {
        let host = match (host, &self.places) {
            ("client", [near, _]) => near,
            ("server", [_, far]) => far,
            _ => host,
        };
        let through = self
            .record
            .command
            .as_ref()
            .map_or(&[][..], |typed| &typed.through);
        let exec = through
            .windows(2)
            .position(|words| words == ["lab", "exec"]);
        // Its target is the first word that is no option.
        let target =
            exec.and_then(|at| (at + 2..through.len()).find(|&at| !through[at].starts_with('-')));
        let Some(target) = target else {
            return command.to_owned();
        };
        let mut words: Vec<String> = through.iter().map(|word| quoted(word)).collect();
        words[target] = quoted(&match through[target].split_once('/') {
            Some((lab, _)) => format!("{lab}/{host}"),
            None => host.to_owned(),
        });
        match command.contains(JOINS) {
            true => format!("{} sh -c {}", words.join(" "), quoted(command)),
            false => format!("{} {command}", words.join(" ")),
        }
    }

    /// How long our own stack at an end sleeps between two looks at its port; none where it never does.
    #[must_use]
    pub fn poll_interval_ns(&self, role: Role) -> Option<f64> {
        let stack = self
            .host(role)?
            .stack
            .as_ref()
            .filter(|_| self.is_own_stack(role))?;
        let interval = parse_duration(stack.configuration.get("poll.interval")?).ok()?;
        Some(interval.as_nanos() as f64).filter(|&interval| interval > 0.0)
    }

    /// The command that raises the last number of a setting of an end's kernel; none where it is as high already.
    ///
    /// The numbers before it stay as they are.
    #[must_use]
    pub fn raise(&self, role: Role, name: &str, least: u64) -> Option<String> {
        let setting = self.raised(role, name, least)?;
        Some(self.at(role, &format!("sysctl -w {setting}")))
    }

    /// `name='4096 131072 33554432'` or `name=8388608`, as `sysctl -w` takes it.
    #[must_use]
    pub fn raised(&self, role: Role, name: &str, least: u64) -> Option<String> {
        let now = self.host(role).and_then(|host| host.sysctls.get(name));
        let Some(now) = now else {
            let [low, middle] = DEFAULTS
                .iter()
                .find(|(known, _)| *known == name)
                .map_or(["", ""], |(_, low)| *low);
            return Some(match low {
                "" => format!("{name}={least}"),
                low => format!("{name}='{low} {middle} {least}'"),
            });
        };
        let mut numbers: Vec<&str> = now.split_whitespace().collect();
        if numbers.last()?.parse::<u64>().is_ok_and(|now| now >= least) {
            return None;
        }
        let least = least.to_string();
        *numbers.last_mut()? = &least;
        Some(match &numbers[..] {
            [one] => format!("{name}={one}"),
            more => format!("{name}='{}'", more.join(" ")),
        })
    }
}

/// What stands before the last number of a setting where a host did not tell.
const DEFAULTS: &[(&str, [&str; 2])] = &[
    ("net.ipv4.tcp_rmem", ["4096", "131072"]),
    ("net.ipv4.tcp_wmem", ["4096", "16384"]),
];
