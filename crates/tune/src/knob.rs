//! What can be turned: options of a measurement, settings of hosts, and commands of the user's.

use std::path::Path;

use serde::Deserialize;

use crate::TuneError;
use crate::guard::Kind;

/// The value that leaves an option out and a setting as it is.
pub const DEFAULT: &str = "default";

/// How a knob is turned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Set {
    /// An option of the measuring command, by its long name.
    Option(String),
    /// A setting of all hosts that may be changed.
    Host {
        /// What kind of setting.
        kind: Kind,
        /// Which one; for interfaces empty: all of the lab's links.
        name: String,
    },
    /// A shell command in which `{}` stands for the value; it runs when the value changes.
    Command(String),
}

/// Something that can be turned. Its first value is the start.
#[derive(Clone, Debug, PartialEq)]
pub struct Knob {
    /// Its name.
    pub name: String,
    /// Its values.
    pub values: Vec<String>,
    /// How it is turned.
    pub set: Set,
    /// Whether its values are in an order.
    pub ordered: bool,
    /// Bytes that a unit of its value takes, for knobs of the user's that say so.
    pub memory: Option<f64>,
}

/// What is known before a search: which knobs make sense.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ground {
    /// Round trips rather than throughput.
    pub latency: bool,
    /// UDP rather than TCP.
    pub udp: bool,
    /// Processors that may be used.
    pub processors: Vec<u32>,
    /// Congestion controls that sockets may ask for.
    pub congestion: Vec<String>,
    /// Whether settings of hosts may be changed.
    pub hosts: bool,
    /// Whether there are links whose segment sizes may be changed.
    pub links: bool,
}

/// A knob of the table: its name, whether its values are in an order, how it is turned, and its values on
/// this ground; none where it makes no sense.
struct Line {
    name: &'static str,
    ordered: bool,
    set: fn() -> Set,
    values: fn(&Ground) -> Vec<String>,
}

fn list(values: &[&str]) -> Vec<String> {
    values.iter().map(|&value| value.to_owned()).collect()
}

fn when(holds: bool, values: &[&str]) -> Vec<String> {
    if holds { list(values) } else { Vec::new() }
}

fn option(name: &str) -> Set {
    Set::Option(name.to_owned())
}

fn sysctl(name: &str) -> Set {
    Set::Host {
        kind: Kind::Sysctl,
        name: name.to_owned(),
    }
}

fn bulk(ground: &Ground) -> bool {
    !ground.latency
}

/// Every knob that comes along, in the order in which `--knobs` lists them: what a process decides for
/// itself first, what changes a host last.
const KNOBS: &[Line] = &[
    Line {
        name: "congestion",
        ordered: false,
        set: || option("congestion"),
        values: |ground| match ground.udp {
            true => Vec::new(),
            false => ground.congestion.clone(),
        },
    },
    Line {
        name: "wait",
        ordered: false,
        set: || option("wait"),
        values: |ground| match ground.latency {
            true => list(&["block", "spin", "busy-poll", "epoll"]),
            false => list(&["block", "spin", "block/spin"]),
        },
    },
    Line {
        name: "write-size",
        ordered: true,
        set: || option("length"),
        values: |ground| {
            when(
                bulk(ground) && !ground.udp,
                &["16K", "64K", "128K", "256K", "1M"],
            )
        },
    },
    Line {
        name: "cpu",
        ordered: false,
        set: || option("cpu"),
        values: |ground| match ground.processors.as_slice() {
            &[first, second, ..] => vec![format!("{first}/{second}"), format!("{first}/{first}")],
            _ => Vec::new(),
        },
    },
    Line {
        name: "sndbuf",
        ordered: true,
        set: || option("sndbuf"),
        values: |ground| when(bulk(ground), &["16K", "64K", "256K", "1M", "4M"]),
    },
    Line {
        name: "rcvbuf",
        ordered: true,
        set: || option("rcvbuf"),
        values: |ground| when(bulk(ground), &["16K", "64K", "256K", "1M", "4M"]),
    },
    Line {
        name: "rcvlowat",
        ordered: true,
        set: || option("rcvlowat"),
        values: |ground| when(bulk(ground) && !ground.udp, &["64K", "256K"]),
    },
    Line {
        name: "streams",
        ordered: true,
        set: || option("parallel"),
        values: |ground| when(bulk(ground), &["2", "4"]),
    },
    Line {
        name: "offload",
        ordered: false,
        set: || option("offload"),
        values: |ground| when(bulk(ground) && ground.udp, &["gso,gro", "gso", "none"]),
    },
    Line {
        name: "no-delay",
        ordered: false,
        set: || option("no-delay"),
        values: |ground| when(!ground.udp, &["on"]),
    },
    Line {
        name: "hold-latency",
        ordered: false,
        set: || option("hold-latency"),
        values: |_| list(&["on"]),
    },
    Line {
        name: "sched",
        ordered: false,
        set: || option("sched"),
        values: |_| list(&["nice:-20", "fifo:50"]),
    },
    Line {
        name: "gso-size",
        ordered: true,
        set: || Set::Host {
            kind: Kind::SegmentSizes,
            name: String::new(),
        },
        // The kernel's largest is 524280.
        values: |ground| {
            when(
                ground.links && bulk(ground),
                &["131072", "262144", "524280"],
            )
        },
    },
    Line {
        name: "tcp-rmem",
        ordered: true,
        set: || sysctl("net.ipv4.tcp_rmem"),
        values: |ground| {
            when(
                ground.hosts && bulk(ground) && !ground.udp,
                &["4096 131072 4194304", "4096 1048576 33554432"],
            )
        },
    },
    Line {
        name: "tcp-wmem",
        ordered: true,
        set: || sysctl("net.ipv4.tcp_wmem"),
        values: |ground| {
            when(
                ground.hosts && bulk(ground) && !ground.udp,
                &["4096 131072 16777216", "4096 1048576 33554432"],
            )
        },
    },
    Line {
        name: "tcp-limit-output",
        ordered: true,
        set: || sysctl("net.ipv4.tcp_limit_output_bytes"),
        values: |ground| {
            when(
                ground.hosts && bulk(ground) && !ground.udp,
                &["1048576", "16777216"],
            )
        },
    },
];

/// Names of all knobs that come along.
#[must_use]
pub fn names() -> Vec<&'static str> {
    KNOBS.iter().map(|line| line.name).collect()
}

/// The knobs that make sense on this ground, each with the start as its first value.
#[must_use]
pub fn knobs(ground: &Ground) -> Vec<Knob> {
    KNOBS
        .iter()
        .filter_map(|line| {
            let values = (line.values)(ground);
            (!values.is_empty()).then(|| Knob {
                name: line.name.to_owned(),
                values: std::iter::once(DEFAULT.to_owned()).chain(values).collect(),
                set: (line.set)(),
                ordered: line.ordered,
                memory: None,
            })
        })
        .collect()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    knob: Vec<Own>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    name: String,
    values: Vec<toml::Value>,
    set: Option<String>,
    option: Option<String>,
    sysctl: Option<String>,
    #[serde(default)]
    ordered: bool,
    memory: Option<f64>,
}

/// Reads knobs of the user's: `[[knob]]` with `name`, `values` (the first is the start), and one of `set`
/// (a command with `{}`), `option` and `sysctl`.
///
/// # Errors
/// [`TuneError::Shape`], with what is wrong.
pub fn from_toml(path: &Path, text: &str) -> Result<Vec<Knob>, TuneError> {
    let shape = |why: String| TuneError::Knobs {
        path: path.to_owned(),
        why,
    };
    let file: File = toml::from_str(text).map_err(|error| shape(error.message().to_owned()))?;
    file.knob
        .into_iter()
        .map(|own| {
            let set = match (own.set, own.option, own.sysctl) {
                (Some(command), None, None) => Set::Command(command),
                (None, Some(name), None) => Set::Option(name),
                (None, None, Some(name)) => sysctl(&name),
                _ => {
                    return Err(shape(format!(
                        "`{}` needs one of set, option and sysctl",
                        own.name
                    )));
                }
            };
            if own.values.len() < 2 {
                return Err(shape(format!("`{}` has nothing to choose from", own.name)));
            }
            let value = |value: toml::Value| match value {
                toml::Value::String(text) => text,
                other => other.to_string(),
            };
            Ok(Knob {
                name: own.name,
                values: own.values.into_iter().map(value).collect(),
                set,
                ordered: own.ordered,
                memory: own.memory,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knobs_fit_the_ground() {
        let ground = Ground {
            processors: vec![0, 1],
            congestion: list(&["cubic"]),
            ..Ground::default()
        };
        let names = |ground: &Ground| -> Vec<String> {
            knobs(ground).into_iter().map(|knob| knob.name).collect()
        };
        let tcp = names(&ground);
        assert!(tcp.contains(&"write-size".to_owned()) && tcp.contains(&"congestion".to_owned()));
        assert!(!tcp.contains(&"gso-size".to_owned()), "{tcp:?}");
        let udp = names(&Ground {
            udp: true,
            latency: true,
            ..ground
        });
        assert!(
            udp.contains(&"wait".to_owned()) && !udp.contains(&"no-delay".to_owned()),
            "{udp:?}"
        );
        assert!(
            knobs(&Ground::default())
                .iter()
                .all(|knob| knob.values[0] == DEFAULT)
        );
    }

    #[test]
    fn knobs_of_the_users_own() {
        let path = Path::new("knobs.toml");
        let text = "[[knob]]\nname = \"window\"\nvalues = [1024, 4096]\nset = \"make flash WND={}\"\nmemory = 2\nordered = true\n";
        let knobs = from_toml(path, text).unwrap();
        assert_eq!(knobs[0].values, ["1024", "4096"]);
        assert_eq!(knobs[0].set, Set::Command("make flash WND={}".to_owned()));
        for (text, said) in [
            ("[[knob]]\nname = \"x\"\nvalues = [1, 2]\n", "one of set"),
            (
                "[[knob]]\nname = \"x\"\nvalues = [1]\nset = \"y\"\n",
                "nothing to choose",
            ),
            ("[[knob]]\nname = \"x\"\nvalue = 1\n", "value"),
        ] {
            let error = from_toml(path, text).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
