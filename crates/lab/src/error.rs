//! Errors of building, finding and entering a lab.

use std::ffi::OsString;
use std::io;

use linerate_metric::event::Problem;

use crate::check::CheckResult;
use crate::topology::TopologyError;

/// Error of a lab; each text gives the situation and the next step.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each text names the situation and its fields")]
pub enum LabError {
    #[error(transparent)]
    Topology(#[from] TopologyError),
    #[error(
        "building networks needs CAP_SYS_ADMIN and CAP_NET_ADMIN: run as root, or enter a user namespace first"
    )]
    NotPrivileged,
    #[error(
        "this user may not make user namespaces, and networks without root need one: run as root, or allow them with {allow}"
    )]
    UserNamespaceForbidden {
        allow: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "a user namespace can only be entered by a process with a single thread, and this one has {threads}: enter it first thing in main"
    )]
    ThreadsRunning { threads: usize },
    #[error("the kernel did not {action}{}", message_suffix(kernel_says.as_deref()))]
    Kernel {
        action: String,
        kernel_says: Option<String>,
        #[source]
        source: io::Error,
    },
    #[error("this kernel has no {feature}, which link {link} needs for {wanted}: {remedy}")]
    MissingFeature {
        feature: &'static str,
        link: String,
        wanted: String,
        remedy: &'static str,
    },
    #[error(
        "this kernel has no netem (CONFIG_NET_SCH_NETEM) for the delay, jitter, loss or reordering of link {link}, and it cannot be emulated ({why}): use `linerate lab`, remove them from the link, or use a kernel that has it"
    )]
    NotEmulated { link: String, why: String },
    #[error(
        "link {link}: this kernel has no offload `{name}` on veth: choose one that `ethtool -k` lists there"
    )]
    UnknownOffload { link: String, name: String },
    #[error(
        "link {link} is down: the process that emulates it exited ({why}): {}",
        restart_advice(lab)
    )]
    LinkEnded {
        link: String,
        /// Empty for a lab of this process.
        lab: String,
        why: String,
    },
    #[error("the lab was built, but {}", failed_list(failed))]
    CheckFailed { failed: Vec<CheckResult> },
    #[error("could not {action}")]
    System {
        action: String,
        #[source]
        source: io::Error,
    },
    #[error("the lab has no host `{host}`: choose one of {known}")]
    UnknownHost { host: String, known: String },
    #[error("no lab is up: start one with `linerate lab up --hops 1`")]
    NoLab,
    #[error("no lab `{name}` is up: {}", running_labs(known))]
    UnknownLab { name: String, known: Vec<String> },
    #[error("several labs are up ({}): name one", known.join(", "))]
    WhichLab { known: Vec<String> },
    #[error(
        "a lab `{name}` is up already: choose another --name, or end it with `linerate lab down {name}`"
    )]
    NameTaken { name: String },
    #[error("`{name}` cannot name a lab: use 1 to 48 letters, digits, `-`, `_` and `.`")]
    BadLabName { name: String },
    #[error("{}: {}; {}", problem.object, problem.situation, problem.next_step)]
    Holder {
        /// Error reported by the holder process.
        problem: Problem,
        /// Set when a privilege or a kernel feature is missing.
        missing_privilege: bool,
    },
    #[error("the lab's holder exited without a report{}", message_suffix(output.as_deref()))]
    HolderVanished { output: Option<String> },
    #[error("`{}` was not found inside the lab: give its path or set PATH", command.display())]
    CommandNotFound { command: OsString },
    #[error("`{}` cannot be run", command.display())]
    CommandFailed {
        command: OsString,
        #[source]
        source: io::Error,
    },
    #[error("`lab-holder` is an internal command: start labs with `linerate lab up`")]
    HolderArguments,
}

impl LabError {
    /// Returns whether a privilege or a kernel feature is missing; commands then end with exit
    /// code 4.
    #[must_use]
    pub fn is_missing_privilege(&self) -> bool {
        match self {
            Self::NotPrivileged
            | Self::UserNamespaceForbidden { .. }
            | Self::MissingFeature { .. }
            | Self::NotEmulated { .. }
            | Self::UnknownOffload { .. } => true,
            Self::Holder {
                missing_privilege, ..
            } => *missing_privilege,
            Self::Kernel { source, .. } | Self::System { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported
            ),
            _ => false,
        }
    }

    /// Returns the shell's exit code for a command that could not be started inside a lab: 127 when
    /// it was not found, 126 when it could not be run. `None` for every other error.
    #[must_use]
    pub fn command_exit_code(&self) -> Option<u8> {
        match self {
            Self::CommandNotFound { .. } => Some(127),
            Self::CommandFailed { .. } => Some(126),
            _ => None,
        }
    }

    /// Returns situation, object and next step.
    #[must_use]
    pub fn problem(&self) -> Problem {
        const DOCTOR: &str = "`linerate doctor` shows what this machine can do";
        let retry = |source: &io::Error| match source.kind() {
            io::ErrorKind::PermissionDenied => "run as root, or see `linerate doctor`",
            _ => DOCTOR,
        };
        match self {
            Self::Topology(error) => topology_problem(error),
            Self::NotPrivileged => Problem::new(
                "building networks needs CAP_SYS_ADMIN and CAP_NET_ADMIN",
                "lab",
                "run as root, or enter a user namespace first",
            ),
            Self::UserNamespaceForbidden { allow, source } => Problem::new(
                format!(
                    "this user may not make user namespaces, and networks without root need one \
                     ({source})"
                ),
                "lab",
                format!("run as root, or allow them with {allow}"),
            ),
            Self::ThreadsRunning { threads } => Problem::new(
                format!(
                    "a user namespace is entered with a single thread, and there are {threads}"
                ),
                "this process",
                "enter it first thing in main",
            ),
            Self::Kernel { source, .. } => {
                Problem::new(format!("{self} ({source})"), "lab", retry(source))
            }
            Self::MissingFeature {
                feature,
                link,
                wanted,
                remedy,
            } => Problem::new(
                format!("this kernel has no {feature}, which the link needs for {wanted}"),
                format!("link {link}"),
                *remedy,
            ),
            Self::NotEmulated { link, why } => Problem::new(
                format!(
                    "this kernel has no netem for its delay, jitter, loss or reordering, and it cannot be \
                     emulated ({why})"
                ),
                format!("link {link}"),
                "use `linerate lab`, remove them from the link, or use a kernel that has netem",
            ),
            Self::UnknownOffload { link, name } => Problem::new(
                format!("this kernel has no offload `{name}` on veth"),
                format!("link {link}"),
                "choose one that `ethtool -k` lists there",
            ),
            Self::LinkEnded { link, lab, why } => Problem::new(
                format!(
                    "it is down because the process that emulates it exited ({why}): results measured \
                     over it are invalid"
                ),
                match lab.as_str() {
                    "" => format!("link {link}"),
                    lab => format!("link {link} of lab {lab}"),
                },
                restart_advice(lab),
            ),
            Self::CheckFailed { .. } => Problem::new(self.to_string(), "lab", DOCTOR),
            Self::System { source, .. } => {
                Problem::new(format!("{self} ({source})"), "lab", retry(source))
            }
            Self::UnknownHost { host, known } => Problem::new(
                "the lab has no such host",
                format!("host {host}"),
                format!("choose one of {known}"),
            ),
            Self::NoLab => Problem::new(
                "no lab is up",
                "lab",
                "start one with `linerate lab up --hops 1`",
            ),
            Self::UnknownLab { name, known } => Problem::new(
                "no such lab is up",
                format!("lab {name}"),
                if known.is_empty() {
                    "`linerate lab list` shows the labs that are up; `linerate lab up --hops 1` starts one"
                        .to_owned()
                } else {
                    format!("choose one of {}", known.join(", "))
                },
            ),
            Self::WhichLab { known } => Problem::new(
                format!("several labs are up ({})", known.join(", ")),
                "lab",
                "name one",
            ),
            Self::NameTaken { name } => Problem::new(
                "a lab of this name is up already",
                format!("lab {name}"),
                format!("choose another --name, or end it with `linerate lab down {name}`"),
            ),
            Self::BadLabName { name } => Problem::new(
                "cannot name a lab",
                format!("`{name}`"),
                "use 1 to 48 letters, digits, `-`, `_` and `.`",
            ),
            Self::Holder { problem, .. } => problem.clone(),
            Self::HolderVanished { .. } => Problem::new(self.to_string(), "lab", DOCTOR),
            Self::CommandNotFound { command } => Problem::new(
                "not found inside the lab",
                format!("`{}`", command.display()),
                "give its path, or set PATH",
            ),
            Self::CommandFailed { command, source } => Problem::new(
                format!("cannot be run ({source})"),
                format!("`{}`", command.display()),
                "check that it is a program that this user may run",
            ),
            Self::HolderArguments => Problem::new(
                "internal command",
                "`lab-holder`",
                "start labs with `linerate lab up`",
            ),
        }
    }

    /// Returns the text with all its causes, for callers that can pass on text only.
    #[must_use]
    pub fn full_text(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(&format!(": {error}"));
            cause = error.source();
        }
        text
    }

    pub(crate) fn system(action: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System {
            action: action.into(),
            source: source.into(),
        }
    }
}

/// Splits the text of a lab file error into situation and next step. Each text has the next step
/// after its last colon, and names contain no colon; the parser's own text has no next step.
fn topology_problem(error: &TopologyError) -> Problem {
    let text = error.to_string();
    match (error, text.rsplit_once(": ")) {
        (TopologyError::Syntax(said), _) => Problem::new(
            said.trim_end(),
            "lab file",
            "`linerate lab --help` shows one that works",
        ),
        (_, Some((situation, next_step))) => Problem::new(situation, "lab file", next_step),
        (_, None) => Problem::new(text, "lab file", "correct it there"),
    }
}

/// Returns the next step for a lab with a failed link.
fn restart_advice(lab: &str) -> String {
    match lab {
        "" => "run it again with a new lab".to_owned(),
        lab => format!("end the lab with `linerate lab down {lab}`, and start it again"),
    }
}

fn message_suffix(text: Option<&str>) -> String {
    text.map_or_else(String::new, |text| format!(" (message: {text})"))
}

fn failed_list(failed: &[CheckResult]) -> String {
    /// Results shown: a broken switch would fill pages.
    const SHOWN: usize = 4;
    let mut texts: Vec<String> = failed.iter().take(SHOWN).map(ToString::to_string).collect();
    if failed.len() > SHOWN {
        texts.push(format!("and {} more like these", failed.len() - SHOWN));
    }
    texts.join("; ")
}

fn running_labs(known: &[String]) -> String {
    if known.is_empty() {
        "start one with `linerate lab up`".to_owned()
    } else {
        format!("choose one of {}", known.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `lab down` with a wrong name needs the list of names, not the advice to start a lab.
    #[test]
    fn an_unknown_lab_is_told_with_what_shows_the_known_ones() {
        for (known, want) in [
            (
                vec![],
                "`linerate lab list` shows the labs that are up; `linerate lab up --hops 1` starts one",
            ),
            (vec!["one", "two"], "choose one of one, two"),
        ] {
            let error = LabError::UnknownLab {
                name: "onee".to_owned(),
                known: known.into_iter().map(str::to_owned).collect(),
            };
            assert_eq!(error.problem().next_step, want);
        }
    }
}
