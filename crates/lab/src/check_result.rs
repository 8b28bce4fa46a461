//! Result of a check: one property of a lab, as requested and as read back from the kernel.

use std::fmt;

/// Requested and actual value of one property of a lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckResult {
    /// Item checked: `link client-s1, interface eth0 of client`.
    pub subject: String,
    /// `mtu`, `rate`, `gso`, `offload tso`, `reaches server`, ...
    pub property: String,
    /// Requested value.
    pub requested: String,
    /// Actual value; `None` when the property is missing.
    pub actual: Option<String>,
}

impl CheckResult {
    /// Returns whether the actual value is the requested one.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.actual.as_ref() == Some(&self.requested)
    }
}

impl fmt::Display for CheckResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            subject,
            property,
            requested,
            actual,
        } = self;
        match actual {
            Some(actual) if self.holds() => write!(f, "{subject}: {property} is {actual}"),
            Some(actual) => write!(
                f,
                "{subject}: {property} is {actual} instead of {requested}"
            ),
            None => write!(
                f,
                "{subject}: {property} is missing (requested: {requested})"
            ),
        }
    }
}
