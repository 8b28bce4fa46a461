//! Knobs that a measuring command has on this host, and permission to change settings.

use std::fs;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;

use linerate_host::snapshot::netlink::route_interface;
use linerate_host::sys::cpu;
use linerate_metric::event::Problem;
use linerate_metric::plan::DEFAULT_PORT;
use linerate_port::with_lower;
use linerate_tune::knob::{self, DEFAULT, Ground, Knob, Set};
use linerate_tune::sweep_axis::Over;

use crate::args::KnobArgs;
use crate::failure::Failure;
use crate::shell_words;
use crate::tunable_hosts::Hosts;

/// Hosts whose settings may be changed, and knobs of the user.
pub struct Knobs {
    /// The lab that runs this program, or this host; commands of the user run through it too.
    pub hosts: Hosts,
    /// Settings of these hosts may be changed.
    pub may_change: bool,
    /// Knobs of the knob file.
    pub own: Vec<Knob>,
    /// Facts about the host that decide which knobs apply.
    pub ground: Ground,
    args: KnobArgs,
}

fn refuse<T>(object: &str, situation: &str, next_step: &str) -> Result<T, Failure> {
    Err(Failure::usage(Problem::new(situation, object, next_step)))
}

impl Knobs {
    /// Collects the knobs for a measuring command; `words` start with its name.
    pub fn of(args: &KnobArgs, words: &[String]) -> Result<Self, Failure> {
        let lab = Hosts::of_lab();
        let may_change = lab.is_some() || args.try_host;
        if lab.is_none() {
            check_interfaces(args, words)?;
        }
        let hosts = own_hosts(lab, &args.try_interface)?;
        let own = own(args)?;
        let turns_hosts = |knob: &Knob| matches!(knob.set, Set::Host { .. });
        if !may_change && own.iter().any(turns_hosts) {
            return refuse(
                "a knob with sysctl",
                "settings of this host must not be changed",
                "add --try-host, or run the command in a lab",
            );
        }
        let ground = ground(args, words, &hosts, may_change);
        Ok(Self {
            hosts,
            may_change,
            own,
            ground,
            args: args.clone(),
        })
    }

    /// Returns what is needed for knobs that only run commands and change no setting of a host.
    pub fn of_commands() -> Result<Self, Failure> {
        Ok(Self {
            hosts: own_hosts(Hosts::of_lab(), &[])?,
            may_change: false,
            own: Vec::new(),
            ground: Ground::default(),
            args: KnobArgs::default(),
        })
    }

    /// Returns all knobs that apply: the built-in ones, and those of the file, which replace
    /// built-in ones of the same name.
    pub fn all(&self) -> Vec<Knob> {
        let mut all = knob::knobs(&self.ground);
        all.retain(|knob| self.own.iter().all(|own| own.name != knob.name));
        all.extend(self.own.iter().cloned());
        for limit in &self.args.limit {
            for knob in all.iter_mut().filter(|knob| knob.name == limit.name) {
                limit.apply(knob);
            }
        }
        all.retain(|knob| knob.values.len() > 1);
        all
    }

    /// Rejects a limit that leaves a selected knob without a choice.
    pub fn check_left(&self, all: &[Knob], only: &[String]) -> Result<(), Failure> {
        let here = knob::knobs(&self.ground);
        let could = |name: &String| here.iter().chain(&self.own).any(|knob| knob.name == *name);
        let gone = |name: &String| all.iter().all(|knob| knob.name != *name);
        let mut limited = self.args.limit.iter().map(|limit| &limit.name);
        match limited.find(|name| only.contains(name) && could(name) && gone(name)) {
            None => Ok(()),
            Some(name) => refuse(
                &format!("--limit {name}"),
                "the limit excludes all values of the knob but its start",
                "widen it, or list other values in a --knob-file",
            ),
        }
    }

    /// Returns the names of all knobs, applicable or not.
    pub fn names(&self) -> Vec<String> {
        let own = self.own.iter().map(|knob| knob.name.clone());
        let known = knob::names().into_iter().map(str::to_owned);
        own.chain(known).collect()
    }

    /// Rejects limits of unknown knobs.
    pub fn check_limits(&self) -> Result<(), Failure> {
        let names = self.names();
        let unknown = (self.args.limit.iter()).find(|limit| !names.contains(&limit.name));
        match unknown {
            None => Ok(()),
            Some(limit) => refuse(
                &format!("--limit {}", limit.name),
                "no such knob",
                &format!("choose from {}", names.join(", ")),
            ),
        }
    }

    /// Returns the knob that a name and values describe for a measuring command: a knob of the
    /// user, an option, or a built-in knob.
    pub fn named(&self, over: &Over, words: &[String]) -> Result<Knob, Failure> {
        let object = format!("--over {}", over.name);
        let known = |all: &[Knob]| all.iter().find(|knob| knob.name == over.name).cloned();
        let within = |knob: Knob| {
            let mut limits = self
                .args
                .limit
                .iter()
                .filter(|limit| limit.name == knob.name);
            let beyond =
                limits.find_map(|limit| knob.values.iter().find(|value| !limit.holds(value)));
            match beyond {
                Some(value) => refuse(
                    &object,
                    &format!("{value} is outside its --limit"),
                    "leave it out, or change the limit",
                ),
                None => Ok(knob),
            }
        };
        let with = |mut knob: Knob| {
            if !over.values.is_empty() {
                knob.values.clone_from(&over.values);
            }
            knob
        };
        if let Some(own) = known(&self.own) {
            let mut knob = with(own.clone());
            // The values to vary may not include the start, which the knob is restored to.
            if let Set::Command { restore, .. } = &mut knob.set {
                *restore = own
                    .values
                    .first()
                    .and_then(|start| own.lines(start))
                    .map(|(_, back)| back);
            }
            return within(knob);
        }
        if shell_words::has_option(words, &over.name) {
            if !over.values.is_empty() {
                return within(Knob::option(&over.name, over.values.clone()));
            }
            // Values that `tune` would try.
            return known(&knob::knobs(&self.ground)).map_or_else(
                || {
                    refuse(
                        &object,
                        "it has no values",
                        "write NAME=VALUE,VALUE or NAME=FROM..TO:x2",
                    )
                },
                within,
            );
        }
        if let Some(knob) = known(&knob::knobs(&self.ground)) {
            return within(with(knob));
        }
        if knob::names().contains(&over.name.as_str()) {
            return refuse(
                &object,
                "this knob cannot be set here",
                "settings of hosts need a lab or --try-host (of interfaces --try-interface, of the server's host --try-far)",
            );
        }
        let command = words.first().map_or("", String::as_str);
        refuse(
            &object,
            &format!("`linerate {command}` has no such option, and no knob has this name"),
            &format!(
                "`linerate {command} --help` lists options; knobs are {}",
                self.names().join(", ")
            ),
        )
    }

    /// Returns the initial value of a knob.
    pub fn start(&self, knob: &Knob) -> String {
        let own = self.own.iter().find(|own| own.name == knob.name);
        let first = own.and_then(|own| own.values.first());
        first.map_or_else(|| DEFAULT.to_owned(), String::clone)
    }

    /// Returns the server address of a measuring command.
    pub fn far(words: &[String]) -> Option<SocketAddr> {
        // An experiment has its own servers.
        if words.first().is_some_and(|name| name == "run") {
            return None;
        }
        let host = shell_words::argument_of(words, "host")?;
        let port = shell_words::value_of(words, "port").and_then(|port| port.parse().ok());
        let port = port.unwrap_or(DEFAULT_PORT);
        (host.as_str(), port).to_socket_addrs().ok()?.next()
    }
}

/// Returns the lab, or else this host.
fn own_hosts(lab: Option<Hosts>, interfaces: &[String]) -> Result<Hosts, Failure> {
    lab.or_else(|| Hosts::own(interfaces)).ok_or_else(|| {
        Failure::failed(Problem::new(
            "cannot be read",
            "the network namespace of this process",
            "mount /proc",
        ))
    })
}

/// Parses `KNOB=VALUE`.
pub fn pair(text: &str) -> Result<Over, Failure> {
    let over: Over = (text.parse()).map_err(|error: linerate_tune::TuneError| {
        Failure::usage(Problem::new(error.to_string(), text, "write KNOB=VALUE"))
    })?;
    match (over.values.len(), text.split_once('=')) {
        (1, _) => Ok(over),
        // A single value that contains commas, such as `offload=gso,gro`.
        (2.., Some((_, value))) if !value.contains("..") => Ok(Over {
            name: over.name,
            values: vec![value.trim().to_owned()],
        }),
        _ => refuse(text, "needs one value", "write KNOB=VALUE"),
    }
}

fn own(args: &KnobArgs) -> Result<Vec<Knob>, Failure> {
    let Some(file) = &args.knob_file else {
        return Ok(Vec::new());
    };
    let wrong = |why: String| {
        Failure::usage(Problem::new(
            why,
            file.display().to_string(),
            "see `linerate tune --help`",
        ))
    };
    let text =
        fs::read_to_string(file).map_err(|error| wrong(format!("cannot be read ({error})")))?;
    knob::from_toml(file, &text).map_err(|error| wrong(error.to_string()))
}

fn ground(args: &KnobArgs, words: &[String], hosts: &Hosts, may_change: bool) -> Ground {
    let read = |name: &str| fs::read_to_string(name).unwrap_or_default();
    Ground {
        latency: words.first().is_some_and(|name| name == "latency"),
        udp: shell_words::names(words, "udp"),
        own_stack: shell_words::names(words, "dev"),
        processors: cpu::usable().unwrap_or_default(),
        congestion: read("/proc/sys/net/ipv4/tcp_available_congestion_control")
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
        hosts: may_change,
        links: may_change && hosts.has_links(),
        far: args.try_far,
    }
}

/// Checks interfaces to be changed outside a lab: each must exist, and must not carry the control
/// connection, because a setting that cuts it off could not be restored.
fn check_interfaces(args: &KnobArgs, words: &[String]) -> Result<(), Failure> {
    let known = linerate_host::snapshot::netlink::links().unwrap_or_default();
    for name in &args.try_interface {
        if !known.iter().any(|link| link.name == *name) {
            let names: Vec<_> = known.iter().map(|link| link.name.as_str()).collect();
            return refuse(
                &format!("--try-interface {name}"),
                "no such interface",
                &format!("choose from {}", names.join(", ")),
            );
        }
    }
    if args.touch_control || args.try_interface.is_empty() {
        return Ok(());
    }
    let carries = control_interface(words)
        .map(|name| with_lower(Path::new("/sys/class/net"), &name))
        .unwrap_or_default();
    match carries
        .into_iter()
        .find(|name| args.try_interface.contains(name))
    {
        None => Ok(()),
        Some(name) => refuse(
            &format!("--try-interface {name}"),
            "carries the control connection: a setting that cuts it off would end the search early",
            "name another one, or add --touch-control",
        ),
    }
}

fn control_interface(words: &[String]) -> Option<String> {
    let far: IpAddr = Knobs::far(words)?.ip();
    route_interface(far).ok()
}

/// Returns whether a value leaves a setting unchanged.
pub fn is_default(value: &str) -> bool {
    value == DEFAULT
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
            let found = pair(text).ok().map(|over| over.values);
            assert_eq!(found, value.map(|value| vec![value.to_owned()]), "{text}");
        }
    }

    #[test]
    fn a_knob_of_the_users_own_goes_back_to_its_start_whatever_is_varied() {
        let mut known = Knobs::of_commands().expect("/proc is mounted");
        let text =
            "[[knob]]\nname = \"window\"\nvalues = [1024, 4096]\nset = \"make flash WND={}\"\n";
        known.own = knob::from_toml(Path::new("knobs.toml"), text).expect("it is one");
        for over in ["window", "window=4096,65536"] {
            let over: Over = over.parse().expect("a range");
            let named = known
                .named(&over, &["throughput".to_owned()])
                .expect("it is known");
            let (_, back) = named.lines("4096").expect("a command turns it");
            assert_eq!(back, "make flash WND=1024", "{over:?}");
        }
    }
}
