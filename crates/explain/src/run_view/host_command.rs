//! Location of a command that changes a host: in a lab it must run in the host's namespace, because
//! the machine around it may have an interface of the same name.

use linerate_record::command_line::shell_quote;
use linerate_record::facts::Role;
use linerate_stats::units::parse_duration;

use super::RunView;

/// Characters that make a command need a shell.
const SHELL_OPERATORS: &[char] = &[';', '|', '>', '<', '&', '$', '*'];

impl RunView<'_> {
    /// Returns the command for an end's host; in a lab wrapped in `lab exec LAB/HOST --`, as the
    /// run itself.
    #[must_use]
    pub fn command_at(&self, role: Role, command: &str) -> String {
        let [client, server] = &self.host_names;
        self.command_at_host(if role == Role::Client { client } else { server }, command)
    }

    /// Returns the ends whose kernel has a setting disabled; our stack has no such settings.
    #[must_use]
    pub fn ends_without(&self, name: &str) -> Vec<Role> {
        let roles = [Role::Client, Role::Server].into_iter();
        roles
            .filter(|&role| !self.uses_netstack(role) && self.sysctl(role, name) == Some(0))
            .collect()
    }

    /// Returns the command that enables a setting at these ends; one command if both are one host.
    #[must_use]
    pub fn enable_command(&self, roles: &[Role], name: &str) -> String {
        let command = format!("sysctl -w {name}=1");
        let mut each: Vec<String> = roles
            .iter()
            .map(|&role| self.command_at(role, &command))
            .collect();
        each.dedup();
        each.join("; ")
    }

    /// Returns the command for a host, by its name in the counters.
    #[must_use]
    pub fn command_at_host(&self, host: &str, command: &str) -> String {
        let host = match (host, &self.host_names) {
            ("client", [client, _]) => client,
            ("server", [_, server]) => server,
            _ => host,
        };
        let wrapper = self
            .record
            .command
            .as_ref()
            .map_or(&[][..], |typed| &typed.wrapper);
        let exec = wrapper
            .windows(2)
            .position(|tokens| tokens == ["lab", "exec"]);
        // The target is the first argument that is not an option.
        let target =
            exec.and_then(|at| (at + 2..wrapper.len()).find(|&at| !wrapper[at].starts_with('-')));
        let Some(target) = target else {
            return command.to_owned();
        };
        let mut tokens: Vec<String> = wrapper.iter().map(|token| shell_quote(token)).collect();
        tokens[target] = shell_quote(&match wrapper[target].split_once('/') {
            Some((lab, _)) => format!("{lab}/{host}"),
            None => host.to_owned(),
        });
        match command.contains(SHELL_OPERATORS) {
            true => format!("{} sh -c {}", tokens.join(" "), shell_quote(command)),
            false => format!("{} {command}", tokens.join(" ")),
        }
    }

    /// Returns the poll interval of our stack at an end; `None` if it polls all the time.
    #[must_use]
    pub fn poll_interval_ns(&self, role: Role) -> Option<f64> {
        let stack = self
            .host(role)?
            .stack
            .as_ref()
            .filter(|_| self.uses_netstack(role))?;
        let interval = parse_duration(stack.configuration.get("poll.interval")?).ok()?;
        Some(interval.as_nanos() as f64).filter(|&interval| interval > 0.0)
    }

    /// Returns the command that raises the last number of a sysctl; `None` if it is high enough.
    /// The other numbers stay.
    #[must_use]
    pub fn raise_command(&self, role: Role, name: &str, least: u64) -> Option<String> {
        let setting = self.raised_setting(role, name, least)?;
        Some(self.command_at(role, &format!("sysctl -w {setting}")))
    }

    /// Returns the setting for `sysctl -w`: `name='4096 131072 33554432'` or `name=8388608`.
    #[must_use]
    pub fn raised_setting(&self, role: Role, name: &str, least: u64) -> Option<String> {
        let now = self.host(role).and_then(|host| host.sysctls.get(name));
        let Some(now) = now else {
            let [low, middle] = DEFAULT_LOW_VALUES
                .iter()
                .find(|(known_name, _)| *known_name == name)
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
const DEFAULT_LOW_VALUES: &[(&str, [&str; 2])] = &[
    ("net.ipv4.tcp_rmem", ["4096", "131072"]),
    ("net.ipv4.tcp_wmem", ["4096", "16384"]),
];
