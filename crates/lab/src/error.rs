//! Errors of building, finding and entering a lab.

use std::ffi::OsString;
use std::io;

use linerate_record::event::ErrorReport;

use crate::check_result::CheckResult;
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
    #[error("the kernel did not {action}{}", message_suffix(kernel_message.as_deref()))]
    Kernel {
        action: String,
        kernel_message: Option<String>,
        #[source]
        source: io::Error,
    },
    #[error("this kernel has no {feature}, which link {link} needs for {needed_for}: {remedy}")]
    MissingFeature {
        feature: &'static str,
        link: String,
        needed_for: String,
        remedy: &'static str,
    },
    #[error(
        "this kernel has no netem (CONFIG_NET_SCH_NETEM) for the delay, jitter, loss or reordering of link {link}, and it cannot be emulated ({reason}): use `linerate lab`, remove them from the link, or use a kernel that has it"
    )]
    NotEmulated { link: String, reason: String },
    #[error(
        "link {link}: this kernel has no offload `{name}` on veth: choose one that `ethtool -k` lists there"
    )]
    UnknownOffload { link: String, name: String },
    #[error(
        "link {link} is down: the process that emulates it exited ({reason}): {}",
        restart_advice(lab)
    )]
    LinkFailed {
        link: String,
        /// Empty for a lab of this process.
        lab: String,
        reason: String,
    },
    #[error("the lab was built, but {}", failed_list(failed))]
    CheckFailed { failed: Vec<CheckResult> },
    #[error("could not {action}")]
    System {
        action: String,
        #[source]
        source: io::Error,
    },
    #[error("the lab has no host `{host}`: choose one of {available}")]
    UnknownHost { host: String, available: String },
    #[error("no lab is up: start one with `linerate lab up --hops 1`")]
    NoLab,
    #[error("no lab `{name}` is up: {}", running_labs(available))]
    UnknownLab {
        name: String,
        available: Vec<String>,
    },
    #[error("several labs are up ({}): name one", available.join(", "))]
    AmbiguousLab { available: Vec<String> },
    #[error(
        "a lab `{name}` is up already: choose another --name, or end it with `linerate lab down {name}`"
    )]
    NameInUse { name: String },
    #[error("`{name}` cannot name a lab: use 1 to 48 letters, digits, `-`, `_` and `.`")]
    BadLabName { name: String },
    #[error("{}: {}; {}", problem.object, problem.situation, problem.next_step)]
    Holder {
        /// Error reported by the holder process.
        problem: ErrorReport,
        /// Set when a privilege or a kernel feature is missing.
        missing_privilege: bool,
    },
    #[error("the lab's holder exited without a report{}", message_suffix(output.as_deref()))]
    HolderExited { output: Option<String> },
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
    pub fn to_report(&self) -> ErrorReport {
        const DOCTOR: &str = "`linerate doctor` shows what this machine can do";
        let retry = |source: &io::Error| match source.kind() {
            io::ErrorKind::PermissionDenied => "run as root, or see `linerate doctor`",
            _ => DOCTOR,
        };
        match self {
            Self::Topology(error) => topology_problem(error),
            Self::NotPrivileged => ErrorReport::new(
                "building networks needs CAP_SYS_ADMIN and CAP_NET_ADMIN",
                "lab",
                "run as root, or enter a user namespace first",
            ),
            Self::UserNamespaceForbidden { allow, source } => ErrorReport::new(
                format!(
                    "this user may not make user namespaces, and networks without root need one \
                     ({source})"
                ),
                "lab",
                format!("run as root, or allow them with {allow}"),
            ),
            Self::ThreadsRunning { threads } => ErrorReport::new(
                format!(
                    "a user namespace is entered with a single thread, and there are {threads}"
                ),
                "this process",
                "enter it first thing in main",
            ),
            Self::Kernel { source, .. } => {
                ErrorReport::new(format!("{self} ({source})"), "lab", retry(source))
            }
            Self::MissingFeature {
                feature,
                link,
                needed_for,
                remedy,
            } => ErrorReport::new(
                format!("this kernel has no {feature}, which the link needs for {needed_for}"),
                format!("link {link}"),
                *remedy,
            ),
            Self::NotEmulated { link, reason } => ErrorReport::new(
                format!(
                    "this kernel has no netem for its delay, jitter, loss or reordering, and it cannot be \
                     emulated ({reason})"
                ),
                format!("link {link}"),
                "use `linerate lab`, remove them from the link, or use a kernel that has netem",
            ),
            Self::UnknownOffload { link, name } => ErrorReport::new(
                format!("this kernel has no offload `{name}` on veth"),
                format!("link {link}"),
                "choose one that `ethtool -k` lists there",
            ),
            Self::LinkFailed { link, lab, reason } => ErrorReport::new(
                format!(
                    "it is down because the process that emulates it exited ({reason}): results measured \
                     over it are invalid"
                ),
                match lab.as_str() {
                    "" => format!("link {link}"),
                    lab => format!("link {link} of lab {lab}"),
                },
                restart_advice(lab),
            ),
            Self::CheckFailed { .. } => ErrorReport::new(self.to_string(), "lab", DOCTOR),
            Self::System { source, .. } => {
                ErrorReport::new(format!("{self} ({source})"), "lab", retry(source))
            }
            Self::UnknownHost { host, available } => ErrorReport::new(
                "the lab has no such host",
                format!("host {host}"),
                format!("choose one of {available}"),
            ),
            Self::NoLab => ErrorReport::new(
                "no lab is up",
                "lab",
                "start one with `linerate lab up --hops 1`",
            ),
            Self::UnknownLab { name, available } => ErrorReport::new(
                "no such lab is up",
                format!("lab {name}"),
                if available.is_empty() {
                    "`linerate lab list` shows the labs that are up; `linerate lab up --hops 1` starts one"
                        .to_owned()
                } else {
                    format!("choose one of {}", available.join(", "))
                },
            ),
            Self::AmbiguousLab { available } => ErrorReport::new(
                format!("several labs are up ({})", available.join(", ")),
                "lab",
                "name one",
            ),
            Self::NameInUse { name } => ErrorReport::new(
                "a lab of this name is up already",
                format!("lab {name}"),
                format!("choose another --name, or end it with `linerate lab down {name}`"),
            ),
            Self::BadLabName { name } => ErrorReport::new(
                "cannot name a lab",
                format!("`{name}`"),
                "use 1 to 48 letters, digits, `-`, `_` and `.`",
            ),
            Self::Holder { problem, .. } => problem.clone(),
            Self::HolderExited { .. } => ErrorReport::new(self.to_string(), "lab", DOCTOR),
            Self::CommandNotFound { command } => ErrorReport::new(
                "not found inside the lab",
                format!("`{}`", command.display()),
                "give its path, or set PATH",
            ),
            Self::CommandFailed { command, source } => ErrorReport::new(
                format!("cannot be run ({source})"),
                format!("`{}`", command.display()),
                "check that it is a program that this user may run",
            ),
            Self::HolderArguments => ErrorReport::new(
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
fn topology_problem(error: &TopologyError) -> ErrorReport {
    let text = error.to_string();
    match (error, text.rsplit_once(": ")) {
        (TopologyError::Syntax(parser_text), _) => ErrorReport::new(
            parser_text.trim_end(),
            "lab file",
            "`linerate lab --help` shows one that works",
        ),
        (_, Some((situation, next_step))) => ErrorReport::new(situation, "lab file", next_step),
        (_, None) => ErrorReport::new(text, "lab file", "correct it there"),
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

fn running_labs(available: &[String]) -> String {
    if available.is_empty() {
        "start one with `linerate lab up`".to_owned()
    } else {
        format!("choose one of {}", available.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `lab down` with a wrong name needs the list of names, not the advice to start a lab.
    #[test]
    fn an_unknown_lab_gets_the_list_of_names() {
        for (available, expected) in [
            (
                vec![],
                "`linerate lab list` shows the labs that are up; `linerate lab up --hops 1` starts one",
            ),
            (vec!["one", "two"], "choose one of one, two"),
        ] {
            let error = LabError::UnknownLab {
                name: "onee".to_owned(),
                available: available.into_iter().map(str::to_owned).collect(),
            };
            assert_eq!(error.to_report().next_step, expected);
        }
    }
}
