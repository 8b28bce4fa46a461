//! Location of a command that changes a host: in a lab it must run in the host's namespace, because
//! the machine around it may have an interface of the same name.

use linerate_metric::command_line::quoted;
use linerate_metric::facts::Role;
use linerate_metric::units::parse_duration;

use super::Case;

/// Characters that make a command need a shell.
const JOINS: &[char] = &[';', '|', '>', '<', '&', '$', '*'];

impl Case<'_> {
    /// Returns the command for an end's host; in a lab wrapped in `lab exec LAB/HOST --`, as the
    /// run itself.
    #[must_use]
    pub fn at(&self, role: Role, command: &str) -> String {
        let [near, far] = &self.places;
        self.at_host(if role == Role::Client { near } else { far }, command)
    }

    /// Returns the ends whose kernel has a setting disabled; our stack has no such settings.
    #[must_use]
    pub fn off_at(&self, name: &str) -> Vec<Role> {
        let ends = [Role::Client, Role::Server].into_iter();
        ends.filter(|&role| !self.is_own_stack(role) && self.sysctl(role, name) == Some(0))
            .collect()
    }

    /// Returns the command that enables a setting at these ends; one command if both are one host.
    #[must_use]
    pub fn switched_on(&self, ends: &[Role], name: &str) -> String {
        let command = format!("sysctl -w {name}=1");
        let mut each: Vec<String> = ends.iter().map(|&role| self.at(role, &command)).collect();
        each.dedup();
        each.join("; ")
    }

    /// Returns the command for a host, by its name in the counters.
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
        // The target is the first argument that is not an option.
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

    /// Returns the poll interval of our stack at an end; `None` if it polls all the time.
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

    /// Returns the command that raises the last number of a sysctl; `None` if it is high enough.
    /// The other numbers stay.
    #[must_use]
    pub fn raise(&self, role: Role, name: &str, least: u64) -> Option<String> {
        let setting = self.raised(role, name, least)?;
        Some(self.at(role, &format!("sysctl -w {setting}")))
    }

    /// Returns the setting for `sysctl -w`: `name='4096 131072 33554432'` or `name=8388608`.
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

/// Kernel defaults of the numbers before the last one, for hosts that did not report them.
const DEFAULTS: &[(&str, [&str; 2])] = &[
    ("net.ipv4.tcp_rmem", ["4096", "131072"]),
    ("net.ipv4.tcp_wmem", ["4096", "16384"]),
];
