//! Errors of opening and using ports.

use std::io;
use std::path::PathBuf;

use linerate_record::event::{ErrorReport, Retryable};
use linerate_record::exit_codes;
use linerate_sys::frames::FrameRegionError;

/// Error of a port: the text names the situation, the port and the next step.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each text names the situation and its fields")]
pub enum PortError {
    #[error("`{url}` has no kind: write KIND:NAME, where KIND is one of {kinds}")]
    NoKind { url: String, kinds: String },
    #[error("there is no port kind `{kind}`: use one of {kinds}")]
    UnknownKind {
        url: String,
        kind: String,
        kinds: String,
    },
    #[error(
        "`{kind}:` is not in this build: build with `--features {feature}`, or use another port"
    )]
    NotBuilt { kind: String, feature: &'static str },
    #[error("`{url}` names no {name_kind}: write it like `{example}`")]
    NoName {
        url: String,
        name_kind: &'static str,
        example: &'static str,
    },
    #[error("`{kind}:` takes no name, but `{url}` gives `{name}`: write it like `{example}`")]
    UnexpectedName {
        url: String,
        kind: &'static str,
        name: String,
        example: &'static str,
    },
    #[error("`{kind}:` has no key `{key}` (in `{url}`): use {accepted}")]
    UnknownKey {
        url: String,
        kind: &'static str,
        key: String,
        accepted: String,
    },
    #[error("`{key}` is given twice in `{url}`: give it once")]
    DuplicateKey { url: String, key: String },
    #[error("`{key}={value}` in `{url}` is not {expected}: give one like `{key}={example}`")]
    BadValue {
        url: String,
        key: String,
        value: String,
        expected: String,
        example: String,
    },
    #[error(transparent)]
    FrameRegion(#[from] FrameRegionError),
    #[error(
        "`{port}` needs frames of {needed} bytes and the memory has {has}: give every port the same `mtu=`, or open this one with the others"
    )]
    MemoryTooSmall {
        port: String,
        needed: usize,
        has: usize,
    },
    #[error(
        "there is no interface `{interface}` here: `ip link` lists those of this network namespace"
    )]
    NoInterface { interface: String },
    #[error(
        "`{interface}` carries {traffic}, which a port on it may interrupt: use another interface, or pass `--force` (`,force` after the port name where a command has no such option)"
    )]
    InterfaceInUse {
        interface: String,
        traffic: &'static str,
    },
    #[error("`{interface}` is down: set it up with `ip link set {interface} up`")]
    InterfaceDown { interface: String },
    #[error(
        "`{port}` needs CAP_BPF and CAP_NET_ADMIN of the initial user namespace for its XDP program, so a lab of an ordinary user cannot use it: run as root, or use the port `packet:` there"
    )]
    NoBpf {
        port: String,
        #[source]
        source: io::Error,
    },
    #[error("`{port}` needs {privilege}: run as root, or inside a lab (`linerate lab exec`)")]
    NotPrivileged {
        port: String,
        privilege: &'static str,
        #[source]
        source: io::Error,
    },
    #[error(
        "`{port}` must lock {needed} bytes of memory, and the limit is {limit}: raise the limit (`ulimit -l unlimited`, `LimitMEMLOCK=` of a unit), use smaller rings with `rxd=` and `txd=`, or run as root"
    )]
    LockedMemory {
        port: String,
        needed: u64,
        limit: String,
        #[source]
        source: io::Error,
    },
    #[error("this kernel has no {feature}, which `{port}` needs: {remedy}")]
    MissingFeature {
        port: String,
        feature: &'static str,
        remedy: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("`{port}` is in use: {remedy}")]
    InUse { port: String, remedy: String },
    #[error(
        "`{port}`: the peer is incompatible: {reason}; give both sides the same version and keys"
    )]
    PeerMismatch { port: String, reason: String },
    #[error("{}: {situation}; {next_step}", path.display())]
    File {
        path: PathBuf,
        situation: String,
        next_step: &'static str,
        #[source]
        source: Option<io::Error>,
    },
    #[error("`{port}` stopped: {reason}; open it again after that is resolved")]
    Stopped { port: String, reason: String },
    #[error(
        "`{port}`: the process at its other end is gone: check the last output of that process, and start it again"
    )]
    PeerGone { port: String },
    #[error(
        "`{port}`: no process of this user connected to its other end within {timeout_s} s: check the name, and start the process for the other end"
    )]
    NoPeer { port: String, timeout_s: u64 },
    #[error(
        "`{port}` stopped: a bug in this program ended the thread that polled it; report the text on standard error"
    )]
    Fault { port: String },
    #[error("the kernel did not {action} for `{port}`: check the cause, and run `linerate doctor`")]
    Kernel {
        port: String,
        action: &'static str,
        #[source]
        source: io::Error,
    },
}

impl PortError {
    /// Returns whether the error stays in a rerun, where that is certain.
    #[must_use]
    pub const fn retryable(&self) -> Option<Retryable> {
        match self {
            Self::NoPeer { .. } | Self::PeerGone { .. } => Some(Retryable::Transient),
            Self::NoInterface { .. }
            | Self::InterfaceInUse { .. }
            | Self::NotPrivileged { .. }
            | Self::NoBpf { .. } => Some(Retryable::PermanentForObject),
            _ => None,
        }
    }

    /// Returns true if a privilege or a kernel feature is missing (exit code 4).
    #[must_use]
    pub const fn is_missing_privilege(&self) -> bool {
        matches!(
            self,
            Self::NotPrivileged { .. }
                | Self::NoBpf { .. }
                | Self::LockedMemory { .. }
                | Self::MissingFeature { .. }
                | Self::NotBuilt { .. }
        )
    }

    /// Returns true if the port URL is wrong (exit code 2).
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::NoKind { .. }
                | Self::UnknownKind { .. }
                | Self::NoName { .. }
                | Self::UnexpectedName { .. }
                | Self::UnknownKey { .. }
                | Self::DuplicateKey { .. }
                | Self::BadValue { .. }
        )
    }

    /// Exit code of a command that ends with this error.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        if self.is_missing_privilege() {
            exit_codes::MISSING
        } else if self.is_usage() {
            exit_codes::USAGE
        } else if matches!(self, Self::PeerGone { .. } | Self::NoPeer { .. }) {
            exit_codes::PEER
        } else {
            exit_codes::FAILED
        }
    }

    /// Object, situation and next step, for display and for `--json`.
    #[must_use]
    pub fn to_report(&self) -> ErrorReport {
        let text = self.to_string();
        // Texts are "situation: next step" or "situation; next step": the last such mark separates
        // them.
        let (situation, next_step) =
            match text.rfind("; ").into_iter().chain(text.rfind(": ")).max() {
                Some(at) => (&text[..at], &text[at + 2..]),
                None => (text.as_str(), ""),
            };
        // The object is displayed in front of the situation, so it is removed from the text.
        let object = self.object();
        let names = [
            format!("`{object}`: "),
            format!("`{object}` "),
            format!("{object}: "),
        ];
        let stripped = names.iter().find_map(|name| situation.strip_prefix(name));
        let mut situation = stripped.unwrap_or(situation).to_owned();
        for mention in [format!(" in `{object}`"), format!(" (in `{object}`)")] {
            situation = situation.replace(&mention, "");
        }
        if matches!(self, Self::NoInterface { .. }) {
            situation = "there is no interface of that name here".to_owned();
        }
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            situation.push_str(&format!(" ({error})"));
            cause = error.source();
        }
        let object = match object.is_empty() {
            true => "''".to_owned(),
            false => object,
        };
        ErrorReport::new(situation, object, next_step)
    }

    fn object(&self) -> String {
        match self {
            Self::NoKind { url, .. }
            | Self::UnknownKind { url, .. }
            | Self::NoName { url, .. }
            | Self::UnexpectedName { url, .. }
            | Self::UnknownKey { url, .. }
            | Self::DuplicateKey { url, .. }
            // The display adds a colon after the object.
            | Self::BadValue { url, .. } => url.trim_end_matches(':').to_owned(),
            Self::NotBuilt { kind, .. } => kind.clone(),
            Self::FrameRegion(_) => "frame memory".to_owned(),
            Self::NoInterface { interface }
            | Self::InterfaceInUse { interface, .. }
            | Self::InterfaceDown { interface } => interface.clone(),
            Self::File { path, .. } => path.display().to_string(),
            Self::MemoryTooSmall { port, .. }
            | Self::NotPrivileged { port, .. }
            | Self::NoBpf { port, .. }
            | Self::LockedMemory { port, .. }
            | Self::MissingFeature { port, .. }
            | Self::InUse { port, .. }
            | Self::PeerMismatch { port, .. }
            | Self::Stopped { port, .. }
            | Self::Fault { port }
            | Self::PeerGone { port }
            | Self::NoPeer { port, .. }
            | Self::Kernel { port, .. } => port.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_three_parts() {
        let io = || io::Error::from_raw_os_error(libc::EPERM);
        for (error, object, next_step) in [
            (
                PortError::InterfaceInUse {
                    interface: "eth0".to_owned(),
                    traffic: "the default route",
                },
                "eth0",
                "use another interface, or pass `--force` (`,force` after the port name where a command has no such \
                 option)",
            ),
            (
                PortError::File {
                    path: "/x: y".into(),
                    situation: "it cannot be read".to_owned(),
                    next_step: "give another",
                    source: Some(io()),
                },
                "/x: y",
                "give another",
            ),
            (
                PortError::NotPrivileged {
                    port: "packet:eth0".to_owned(),
                    privilege: "CAP_NET_RAW",
                    source: io(),
                },
                "packet:eth0",
                "run as root, or inside a lab (`linerate lab exec`)",
            ),
            (
                // The reader may be inside a lab already.
                PortError::NoBpf {
                    port: "xdp:eth0".to_owned(),
                    source: io(),
                },
                "xdp:eth0",
                "run as root, or use the port `packet:` there",
            ),
            (
                PortError::BadValue {
                    url: "ring:x,end=q".to_owned(),
                    key: "end".to_owned(),
                    value: "q".to_owned(),
                    expected: "one of a, b".to_owned(),
                    example: "a".to_owned(),
                },
                "ring:x,end=q",
                "give one like `end=a`",
            ),
            (
                PortError::Stopped {
                    port: "tap:t0".to_owned(),
                    reason: "its interface went down or was removed".to_owned(),
                },
                "tap:t0",
                "open it again after that is resolved",
            ),
        ] {
            let problem = error.to_report();
            assert_eq!(problem.object, object);
            assert_eq!(problem.next_step, next_step);
            assert!(!problem.situation.is_empty());
            assert!(!problem.situation.contains(object), "{}", problem.situation);
            let caused = std::error::Error::source(&error).is_some();
            assert_eq!(problem.situation.contains("not permitted"), caused);
        }
    }
}
