//! Why a lab could not be built, found or entered.

use std::ffi::OsString;
use std::io;

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
        "link {link}: this kernel has no offload `{name}` on veth: choose one that `ethtool -k` lists there"
    )]
    UnknownOffload { link: String, name: String },
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
    #[error("{reason}")]
    Holder {
        /// The text of the error in the process that holds the lab.
        reason: String,
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
