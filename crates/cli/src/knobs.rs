//! Knobs that a measuring command has on this host, and permission to change settings.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use linerate_host::netlink::find_route_interface;
use linerate_port::with_lower_devices;
use linerate_record::event::ErrorReport;
use linerate_record::plan::DEFAULT_PORT;
use linerate_session::dial::{AddressFamily, SourceBinding, resolve_host};
use linerate_sys::cpu;
use linerate_tune::knob::{self, DEFAULT_VALUE, Knob, KnobContext, KnobTarget};
use linerate_tune::sweep_axis::SweepAxis;

use crate::args::KnobArgs;
use crate::failure::CommandFailure;
use crate::server_name::ServerName;
use crate::shell_words;
use crate::tunable_hosts::TunableHosts;

/// Hosts whose settings may be changed, and knobs of the user.
pub struct AvailableKnobs {
    /// The lab that runs this program, or this host; commands of the user run through it too.
    pub hosts: TunableHosts,
    /// Settings of these hosts may be changed.
    pub may_change: bool,
    /// Knobs of the knob file.
    pub user_knobs: Vec<Knob>,
    /// Facts about the host that decide which knobs apply.
    pub context: KnobContext,
    args: KnobArgs,
}

fn reject<T>(object: &str, situation: &str, next_step: &str) -> Result<T, CommandFailure> {
    Err(CommandFailure::usage(ErrorReport::new(
        situation, object, next_step,
    )))
}

impl AvailableKnobs {
    /// Collects the knobs for a measuring command; `command_line` starts with its name.
    pub fn collect(args: &KnobArgs, command_line: &[String]) -> Result<Self, CommandFailure> {
        let lab = TunableHosts::lab_hosts();
        let may_change = lab.is_some() || args.try_host;
        if lab.is_none() {
            check_interfaces(args, command_line)?;
        }
        let hosts = lab_or_this_host(lab, &args.try_interface)?;
        let user_knobs = read_knob_file(args)?;
        let sets_host = |knob: &Knob| matches!(knob.target, KnobTarget::HostSetting { .. });
        if !may_change && user_knobs.iter().any(sets_host) {
            return reject(
                "a knob with sysctl",
                "settings of this host must not be changed",
                "add --try-host, or run the command in a lab",
            );
        }
        let context = knob_context(args, command_line, &hosts, may_change);
        Ok(Self {
            hosts,
            may_change,
            user_knobs,
            context,
            args: args.clone(),
        })
    }

    /// Returns what is needed for knobs that only run commands and change no setting of a host.
    pub fn for_commands() -> Result<Self, CommandFailure> {
        Ok(Self {
            hosts: lab_or_this_host(TunableHosts::lab_hosts(), &[])?,
            may_change: false,
            user_knobs: Vec::new(),
            context: KnobContext::default(),
            args: KnobArgs::default(),
        })
    }

    /// Returns all knobs that apply: the built-in ones, and those of the file, which replace
    /// built-in ones of the same name.
    pub fn all(&self) -> Vec<Knob> {
        let mut all = knob::applicable_knobs(&self.context);
        all.retain(|knob| {
            self.user_knobs
                .iter()
                .all(|user_knob| user_knob.name != knob.name)
        });
        all.extend(self.user_knobs.iter().cloned());
        for limit in &self.args.limit {
            for knob in all.iter_mut().filter(|knob| knob.name == limit.name) {
                limit.apply(knob);
            }
        }
        all.retain(|knob| knob.values.len() > 1);
        all
    }

    /// Rejects a limit that leaves a selected knob without a choice.
    pub fn check_remaining_values(
        &self,
        all: &[Knob],
        only: &[String],
    ) -> Result<(), CommandFailure> {
        let applicable = knob::applicable_knobs(&self.context);
        let is_available = |name: &String| {
            applicable
                .iter()
                .chain(&self.user_knobs)
                .any(|knob| knob.name == *name)
        };
        let is_missing = |name: &String| all.iter().all(|knob| knob.name != *name);
        let mut limited = self.args.limit.iter().map(|limit| &limit.name);
        match limited.find(|name| only.contains(name) && is_available(name) && is_missing(name)) {
            None => Ok(()),
            Some(name) => reject(
                &format!("--limit {name}"),
                "the limit excludes all values of the knob but its start",
                "widen it, or list other values in a --knob-file",
            ),
        }
    }

    /// Returns the names of all knobs, applicable or not.
    pub fn names(&self) -> Vec<String> {
        let user_names = self.user_knobs.iter().map(|knob| knob.name.clone());
        let builtin = knob::knob_names().into_iter().map(str::to_owned);
        user_names.chain(builtin).collect()
    }

    /// Rejects limits of unknown knobs.
    pub fn check_limits(&self) -> Result<(), CommandFailure> {
        let names = self.names();
        let unknown = (self.args.limit.iter()).find(|limit| !names.contains(&limit.name));
        match unknown {
            None => Ok(()),
            Some(limit) => reject(
                &format!("--limit {}", limit.name),
                "no such knob",
                &format!("choose from {}", names.join(", ")),
            ),
        }
    }

    /// Returns the knob that a name and values describe for a measuring command: a knob of the
    /// user, an option, or a built-in knob.
    pub fn resolve(
        &self,
        over: &SweepAxis,
        command_line: &[String],
    ) -> Result<Knob, CommandFailure> {
        let object = format!("--over {}", over.name);
        let find = |all: &[Knob]| all.iter().find(|knob| knob.name == over.name).cloned();
        let check_limit = |knob: Knob| {
            let mut limits = self
                .args
                .limit
                .iter()
                .filter(|limit| limit.name == knob.name);
            let outside =
                limits.find_map(|limit| knob.values.iter().find(|value| !limit.contains(value)));
            match outside {
                Some(value) => reject(
                    &object,
                    &format!("{value} is outside its --limit"),
                    "leave it out, or change the limit",
                ),
                None => Ok(knob),
            }
        };
        let with_values = |mut knob: Knob| {
            if !over.values.is_empty() {
                knob.values.clone_from(&over.values);
            }
            knob
        };
        if let Some(user_knob) = find(&self.user_knobs) {
            let mut knob = with_values(user_knob.clone());
            // The values to vary may not include the start, which the knob is restored to.
            if let KnobTarget::Command { restore, .. } = &mut knob.target {
                *restore = user_knob
                    .values
                    .first()
                    .and_then(|start| user_knob.commands_for(start))
                    .map(|(_, back)| back);
            }
            return check_limit(knob);
        }
        if shell_words::has_option(command_line, &over.name) {
            if !over.values.is_empty() {
                return check_limit(Knob::option(&over.name, over.values.clone()));
            }
            // Values that `tune` would try.
            return find(&knob::applicable_knobs(&self.context)).map_or_else(
                || {
                    reject(
                        &object,
                        "it has no values",
                        "write NAME=VALUE,VALUE or NAME=FROM..TO:x2",
                    )
                },
                check_limit,
            );
        }
        if let Some(knob) = find(&knob::applicable_knobs(&self.context)) {
            return check_limit(with_values(knob));
        }
        if knob::knob_names().contains(&over.name.as_str()) {
            return reject(
                &object,
                "this knob cannot be set here",
                "settings of hosts need a lab or --try-host (of interfaces --try-interface, of the server's host --try-far)",
            );
        }
        let command = command_line.first().map_or("", String::as_str);
        reject(
            &object,
            &format!("`linerate {command}` has no such option, and no knob has this name"),
            &format!(
                "`linerate {command} --help` lists options; knobs are {}",
                self.names().join(", ")
            ),
        )
    }

    /// Returns the initial value of a knob.
    pub fn initial_value(&self, knob: &Knob) -> String {
        let user_knob = self
            .user_knobs
            .iter()
            .find(|user_knob| user_knob.name == knob.name);
        let first = user_knob.and_then(|user_knob| user_knob.values.first());
        first.map_or_else(|| DEFAULT_VALUE.to_owned(), String::clone)
    }

    /// Returns the server addresses of a measuring command, in the order in which it tries them; none
    /// if it names no server.
    pub fn server_addresses(command_line: &[String]) -> Vec<SocketAddr> {
        // An experiment has its own servers.
        if command_line.first().is_some_and(|name| name == "run") {
            return Vec::new();
        }
        let sets = |option| shell_words::sets_option(command_line, option);
        let family = match (sets("ipv4"), sets("ipv6")) {
            (true, _) => AddressFamily::V4,
            (_, true) => AddressFamily::V6,
            _ => AddressFamily::Any,
        };
        let name = shell_words::positional_value(command_line, "host");
        let Some(ServerName { host, port }) = name.and_then(|name| name.parse().ok()) else {
            return Vec::new();
        };
        let option = shell_words::value_of(command_line, "port").and_then(|port| port.parse().ok());
        let port = port.or(option).unwrap_or(DEFAULT_PORT);
        let local = shell_words::value_of(command_line, "bind");
        let local = SourceBinding::parse(local.as_deref()).unwrap_or_default();
        resolve_host(&host, port, family, &local, true).unwrap_or_default()
    }
}

/// Returns the lab, or else this host.
fn lab_or_this_host(
    lab: Option<TunableHosts>,
    interfaces: &[String],
) -> Result<TunableHosts, CommandFailure> {
    lab.or_else(|| TunableHosts::this_host(interfaces))
        .ok_or_else(|| {
            CommandFailure::failed(ErrorReport::new(
                "cannot be read",
                "the network namespace of this process",
                "mount /proc",
            ))
        })
}

/// Parses `KNOB=VALUE`.
pub fn parse_knob_value(text: &str) -> Result<SweepAxis, CommandFailure> {
    let over: SweepAxis = (text.parse()).map_err(|error: linerate_tune::TuneError| {
        CommandFailure::usage(ErrorReport::new(
            error.to_string(),
            text,
            "write KNOB=VALUE",
        ))
    })?;
    match (over.values.len(), text.split_once('=')) {
        (1, _) => Ok(over),
        // A single value that contains commas, such as `offload=gso,gro`.
        (2.., Some((_, value))) if !value.contains("..") => Ok(SweepAxis {
            name: over.name,
            values: vec![value.trim().to_owned()],
        }),
        _ => reject(text, "needs one value", "write KNOB=VALUE"),
    }
}

fn read_knob_file(args: &KnobArgs) -> Result<Vec<Knob>, CommandFailure> {
    let Some(file) = &args.knob_file else {
        return Ok(Vec::new());
    };
    let invalid = |why: String| {
        CommandFailure::usage(ErrorReport::new(
            why,
            file.display().to_string(),
            "see `linerate tune --help`",
        ))
    };
    let text =
        fs::read_to_string(file).map_err(|error| invalid(format!("cannot be read ({error})")))?;
    knob::from_toml(file, &text).map_err(|error| invalid(error.to_string()))
}

fn knob_context(
    args: &KnobArgs,
    command_line: &[String],
    hosts: &TunableHosts,
    may_change: bool,
) -> KnobContext {
    let read = |name: &str| fs::read_to_string(name).unwrap_or_default();
    KnobContext {
        is_latency: command_line.first().is_some_and(|name| name == "latency"),
        is_udp: shell_words::sets_option(command_line, "udp"),
        uses_netstack: shell_words::sets_option(command_line, "dev"),
        cpus: cpu::list_usable().unwrap_or_default(),
        congestion_controls: read("/proc/sys/net/ipv4/tcp_available_congestion_control")
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
        host_settings: may_change,
        link_settings: may_change && hosts.has_links(),
        remote_settings: args.try_far,
    }
}

/// Checks interfaces to be changed outside a lab: each must exist, and must not carry the control
/// connection, because a setting that cuts it off could not be restored.
fn check_interfaces(args: &KnobArgs, command_line: &[String]) -> Result<(), CommandFailure> {
    let known = linerate_host::netlink::list_links().unwrap_or_default();
    for name in &args.try_interface {
        if !known.iter().any(|link| link.name == *name) {
            let names: Vec<_> = known.iter().map(|link| link.name.as_str()).collect();
            return reject(
                &format!("--try-interface {name}"),
                "no such interface",
                &format!("choose from {}", names.join(", ")),
            );
        }
    }
    if args.touch_control || args.try_interface.is_empty() {
        return Ok(());
    }
    let carriers = control_interface(command_line)
        .map(|name| with_lower_devices(Path::new("/sys/class/net"), &name))
        .unwrap_or_default();
    match carriers
        .into_iter()
        .find(|name| args.try_interface.contains(name))
    {
        None => Ok(()),
        Some(name) => reject(
            &format!("--try-interface {name}"),
            "carries the control connection: a setting that cuts it off would end the search early",
            "name another one, or add --touch-control",
        ),
    }
}

fn control_interface(command_line: &[String]) -> Option<String> {
    let servers = AvailableKnobs::server_addresses(command_line);
    find_route_interface(servers.first()?.ip()).ok()
}

/// Returns whether a value leaves a setting unchanged.
pub fn is_default(value: &str) -> bool {
    value == DEFAULT_VALUE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_may_have_commas_and_is_no_list() {
        for (text, value) in [
            ("rcvbuf=64K", Some("64K")),
            ("offload=gso,gro", Some("gso,gro")),
            ("rcvbuf=1k..64k:x2", None),
            ("rcvbuf", None),
        ] {
            let values = parse_knob_value(text).ok().map(|over| over.values);
            assert_eq!(values, value.map(|value| vec![value.to_owned()]), "{text}");
        }
    }

    #[test]
    fn a_knob_of_the_users_own_goes_back_to_its_start_whatever_is_varied() {
        let mut knobs = AvailableKnobs::for_commands().expect("/proc is mounted");
        let text =
            "[[knob]]\nname = \"window\"\nvalues = [1024, 4096]\nset = \"make flash WND={}\"\n";
        knobs.user_knobs = knob::from_toml(Path::new("knobs.toml"), text).expect("it is one");
        for over in ["window", "window=4096,65536"] {
            let over: SweepAxis = over.parse().expect("a range");
            let named = knobs
                .resolve(&over, &["throughput".to_owned()])
                .expect("it is known");
            let (_, back) = named.commands_for("4096").expect("a command turns it");
            assert_eq!(back, "make flash WND=1024", "{over:?}");
        }
    }
}
