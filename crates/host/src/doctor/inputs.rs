//! Inputs that the checks share, read once.

use std::cell::OnceCell;
use std::time::Instant;

use linerate_record::facts::HostFacts;

use super::capability::EffectiveCapabilities;
use crate::snapshot::{self, SystemFiles};
use crate::steal::StealTicks;

/// State of the machine under examination.
#[derive(Debug)]
pub(super) struct DoctorInputs {
    pub(super) files: SystemFiles,
    pub(super) host: HostFacts,
    pub(super) capabilities: EffectiveCapabilities,
    /// Processor time at the start of the examination.
    pub(super) start_ticks: Option<StealTicks>,
    pub(super) started_at: Instant,
    kernel_symbols: OnceCell<Option<String>>,
}

impl DoctorInputs {
    pub(super) fn of_machine() -> Self {
        Self::from_files(SystemFiles::of_machine())
    }

    pub(super) fn from_files(files: SystemFiles) -> Self {
        let start_ticks = StealTicks::read();
        let started_at = Instant::now();
        Self {
            host: snapshot::host_on(&files),
            capabilities: EffectiveCapabilities::read(&files),
            start_ticks,
            started_at,
            kernel_symbols: OnceCell::new(),
            files,
        }
    }

    /// Returns a sysctl value by name.
    pub(super) fn sysctl(&self, name: &str) -> Option<String> {
        match self.host.sysctls.get(name) {
            Some(value) => Some(value.clone()),
            None => snapshot::sysctl(&self.files, name),
        }
    }

    /// Returns a sysctl value that is one number.
    pub(super) fn sysctl_number(&self, name: &str) -> Option<i64> {
        self.sysctl(name)?.parse().ok()
    }

    /// Returns the names of the kernel's functions (/proc/kallsyms, without addresses for ordinary
    /// users).
    ///
    /// The kernel generates several megabytes for each read, hence at most one read.
    pub(super) fn kernel_symbols(&self) -> Option<&str> {
        self.kernel_symbols
            .get_or_init(|| self.files.read_text("/proc/kallsyms"))
            .as_deref()
    }
}
