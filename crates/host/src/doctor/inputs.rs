//! Inputs that the checks share, read once.

use std::cell::OnceCell;
use std::time::Instant;

use linerate_metric::facts::Host;

use super::capability::Capabilities;
use crate::snapshot::{self, Files};
use crate::steal::Ticks;

/// State of the machine under examination.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) files: Files,
    pub(super) host: Host,
    pub(super) capabilities: Capabilities,
    /// Processor time at the start of the examination.
    pub(super) ticks: Option<Ticks>,
    pub(super) began: Instant,
    symbols: OnceCell<Option<String>>,
}

impl Ground {
    pub(super) fn machine() -> Self {
        Self::on(Files::machine())
    }

    pub(super) fn on(files: Files) -> Self {
        let ticks = Ticks::now();
        let began = Instant::now();
        Self {
            host: snapshot::host_on(&files),
            capabilities: Capabilities::read(&files),
            ticks,
            began,
            symbols: OnceCell::new(),
            files,
        }
    }

    /// Returns a sysctl value by name.
    pub(super) fn setting(&self, name: &str) -> Option<String> {
        match self.host.sysctls.get(name) {
            Some(value) => Some(value.clone()),
            None => snapshot::sysctl(&self.files, name),
        }
    }

    /// Returns a sysctl value that is one number.
    pub(super) fn number(&self, name: &str) -> Option<i64> {
        self.setting(name)?.parse().ok()
    }

    /// Returns the names of the kernel's functions (/proc/kallsyms, without addresses for ordinary
    /// users).
    ///
    /// The kernel generates several megabytes for each read, hence at most one read.
    pub(super) fn symbols(&self) -> Option<&str> {
        self.symbols
            .get_or_init(|| self.files.text("/proc/kallsyms"))
            .as_deref()
    }
}
