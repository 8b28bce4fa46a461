//! Why a lab could not be built, found or entered.

use std::ffi::OsString;
use std::io;

use linerate_metric::event::Problem;

use crate::check::CheckResult;
use crate::topology::TopologyError;

/// What went wrong, and what to do next.
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
    #[error("the kernel did not {action}{}", said(kernel_says.as_deref()))]
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
        "this kernel has no netem (CONFIG_NET_SCH_NETEM) for the delay, jitter, loss or reordering of link {link}, and no program stands in for it ({why}): use `linerate lab`, remove them from the link, or take a kernel that has it"
    )]
    NotEmulated { link: String, why: String },
    #[error(
        "link {link}: this kernel has no offload `{name}` on veth: choose one that `ethtool -k` lists there"
    )]
    UnknownOffload { link: String, name: String },
    #[error(
        "link {link} carries nothing any more: the program that made it has ended ({why}): {}",
        begin_again(lab)
    )]
    LinkEnded {
        link: String,
        /// Empty where it is this process's own.
        lab: String,
        why: String,
    },
    #[error("the lab was built, but {}", missing(failed))]
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
    #[error("no lab `{name}` is up: {}", known_labs(known))]
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
        /// What the process that was to hold the lab says of it.
        problem: Problem,
        /// It was a privilege or a kernel feature that is missing.
        missing_privilege: bool,
    },
    #[error("the lab's holder ended without a word{}", said(output.as_deref()))]
    HolderVanished { output: Option<String> },
    #[error("`{}` was not found inside the lab: give its path or set PATH", command.display())]
    CommandNotFound { command: OsString },
    #[error("`{}` cannot be run", command.display())]
    CommandFailed {
        command: OsString,
        #[source]
        source: io::Error,
    },
    #[error("`lab-holder` is for linerate's own use: start labs with `linerate lab up`")]
    HolderArguments,
}

impl LabError {
    /// Whether a privilege or a kernel feature is missing, rather than something asked wrongly or
    /// gone wrong: commands then end with exit code 4.
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

    /// Shells' exit code for a command inside a lab that could not be started: 127 when it was not
    /// found, 126 when it could not be run. `None` for every other error.
    #[must_use]
    pub fn command_exit_code(&self) -> Option<u8> {
        match self {
            Self::CommandNotFound { .. } => Some(127),
            Self::CommandFailed { .. } => Some(126),
            _ => None,
        }
    }

    /// The situation, the object and the next step.
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
                    "this kernel has no netem for its delay, jitter, loss or reordering, and no program \
                     stands in for it ({why})"
                ),
                format!("link {link}"),
                "use `linerate lab`, remove them from the link, or take a kernel that has netem",
            ),
            Self::UnknownOffload { link, name } => Problem::new(
                format!("this kernel has no offload `{name}` on veth"),
                format!("link {link}"),
                "choose one that `ethtool -k` lists there",
            ),
            Self::LinkEnded { link, lab, why } => Problem::new(
                format!(
                    "it carries nothing any more, because the program that made it has ended ({why}): what is measured \
                     over it says nothing of a network"
                ),
                match lab.as_str() {
                    "" => format!("link {link}"),
                    lab => format!("link {link} of lab {lab}"),
                },
                begin_again(lab),
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
                "none is up",
                "lab",
                "start one with `linerate lab up --hops 1`",
            ),
            Self::UnknownLab { name, known } => Problem::new(
                "no such lab is up",
                format!("lab {name}"),
                if known.is_empty() {
                    "`linerate lab list` shows those that are; `linerate lab up --hops 1` starts one"
                        .to_owned()
                } else {
                    format!("choose one of {}", known.join(", "))
                },
            ),
            Self::WhichLab { known } => Problem::new(
                format!("several are up ({})", known.join(", ")),
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
                "for linerate's own use",
                "`lab-holder`",
                "start labs with `linerate lab up`",
            ),
        }
    }

    /// The text with every cause behind it, for where only text can be handed on.
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

/// What is wrong with a lab file. Its texts end with the next step after their last colon, which no
/// name that stands behind it can hold; only the parser's own text is not ours.
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

/// What to do about a lab that is not what it was.
fn begin_again(lab: &str) -> String {
    match lab {
        "" => "run it again, on a new one".to_owned(),
        lab => format!("end the lab with `linerate lab down {lab}`, and start it anew"),
    }
}

fn said(text: Option<&str>) -> String {
    text.map_or_else(String::new, |text| format!(" (it says: {text})"))
}

fn missing(failed: &[CheckResult]) -> String {
    /// The first ones tell; a broken switch would fill pages.
    const SHOWN: usize = 4;
    let mut texts: Vec<String> = failed.iter().take(SHOWN).map(ToString::to_string).collect();
    if failed.len() > SHOWN {
        texts.push(format!("and {} more like these", failed.len() - SHOWN));
    }
    texts.join("; ")
}

fn known_labs(known: &[String]) -> String {
    if known.is_empty() {
        "none is; start one with `linerate lab up`".to_owned()
    } else {
        format!("there is {}", known.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who ends a lab by a wrong name wants to see names, not to start one.
    #[test]
    fn an_unknown_lab_is_told_with_what_shows_the_known_ones() {
        for (known, want) in [
            (
                vec![],
                "`linerate lab list` shows those that are; `linerate lab up --hops 1` starts one",
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
