//! Builder of findings.

use linerate_record::finding::{Evidence, EvidenceValue, Finding, FindingKind, FindingLocation};
use linerate_record::ids::CauseId;
use linerate_record::plan::Direction;

/// A finding under construction.
#[derive(Clone, Debug)]
pub struct FindingBuilder(Finding);

impl FindingBuilder {
    fn new(kind: FindingKind, id: CauseId, end: impl Into<FindingLocation>) -> Self {
        Self(Finding {
            kind,
            cause: id.into(),
            end: end.into(),
            direction: None,
            cost: 0.0,
            follows_from: None,
            summary: String::new(),
            evidence: Vec::new(),
            remedy: String::new(),
            command: None,
            needs_our_server: false,
            tried: Vec::new(),
            gain: None,
            gain_is_estimate: false,
            gain_formula: None,
        })
    }

    /// Starts a finding of a cause, which can be changed.
    #[must_use]
    pub fn cause(id: CauseId, end: impl Into<FindingLocation>) -> Self {
        Self::new(FindingKind::Cause, id, end)
    }

    /// Starts a finding of a limit that the run reached.
    #[must_use]
    pub fn limit(id: CauseId, end: impl Into<FindingLocation>) -> Self {
        Self::new(FindingKind::Limit, id, end)
    }

    /// Starts a finding of something that could not be decided.
    #[must_use]
    pub fn unknown(id: CauseId, end: impl Into<FindingLocation>) -> Self {
        Self::new(FindingKind::Unknown, id, end)
    }

    /// Starts a limit if `limit` is true, else a cause.
    #[must_use]
    pub fn limit_if(limit: bool, id: CauseId, end: impl Into<FindingLocation>) -> Self {
        match limit {
            true => Self::limit(id, end),
            false => Self::cause(id, end),
        }
    }

    /// Sets the direction.
    #[must_use]
    pub fn direction(mut self, direction: Direction) -> Self {
        self.0.direction = Some(direction);
        self
    }

    /// Sets the cost as a share, clamped to 0 to 1.
    #[must_use]
    pub fn cost(mut self, share: f64) -> Self {
        self.0.cost = match share.is_finite() {
            true => (share.clamp(0.0, 1.0) * 1e6).round() / 1e6,
            false => 0.0,
        };
        self
    }

    /// Sets the sentence that states the cause.
    #[must_use]
    pub fn summary(mut self, summary: impl Into<String>) -> Self {
        self.0.summary = summary.into();
        self
    }

    /// Adds an evidence.
    #[must_use]
    pub fn evidence(
        mut self,
        counter: &str,
        value: impl IntoEvidenceValue,
        unit: &str,
        source: impl Into<String>,
    ) -> Self {
        self.0.evidence.push(Evidence {
            counter: counter.to_owned(),
            value: Some(value.into_value()),
            unit: unit.to_owned(),
            source: source.into(),
            missing: None,
        });
        self
    }

    /// Adds an evidence if there is a value.
    #[must_use]
    pub fn evidence_if<V: IntoEvidenceValue>(
        self,
        counter: &str,
        value: Option<V>,
        unit: &str,
        source: impl Into<String>,
    ) -> Self {
        match value {
            Some(value) => self.evidence(counter, value, unit, source),
            None => self,
        }
    }

    /// Adds an evidence that could not be read, with the reason.
    #[must_use]
    pub fn missing_evidence(mut self, counter: &str, source: &str, why: impl Into<String>) -> Self {
        self.0.evidence.push(Evidence {
            counter: counter.to_owned(),
            value: None,
            unit: String::new(),
            source: source.to_owned(),
            missing: Some(why.into()),
        });
        self
    }

    /// Sets the sentence that states the remedy.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.0.remedy = remedy.into();
        self
    }

    /// Sets the exact command or setting; an empty text sets none.
    #[must_use]
    pub fn command(mut self, command: impl Into<String>) -> Self {
        let command = command.into();
        if !command.is_empty() {
            self.0.command = Some(command);
        }
        self
    }

    /// Adds a similar remedy that the run already used.
    #[must_use]
    pub fn tried(mut self, attempt: Option<String>) -> Self {
        self.0.tried.extend(attempt);
        self
    }

    /// Sets the largest gain, figure after over figure before; ignored unless it exceeds 1.
    #[must_use]
    pub fn gain(mut self, factor: Option<f64>, formula: impl Into<String>) -> Self {
        let factor = factor.map(|factor| (factor * 1e3).round() / 1e3);
        if let Some(factor) = factor.filter(|factor| factor.is_finite() && *factor > 1.0) {
            self.0.gain = Some(factor);
            self.0.gain_formula = Some(formula.into());
        }
        self
    }

    /// Sets a gain as [`Self::gain`] does that is no upper bound: the remedy may change more than the
    /// formula knows, such as the cost of each byte.
    #[must_use]
    pub fn estimated_gain(mut self, factor: Option<f64>, formula: impl Into<String>) -> Self {
        self = self.gain(factor, formula);
        self.0.gain_is_estimate = self.0.gain.is_some();
        self
    }

    /// Returns the finding; `None` without evidence.
    #[must_use]
    pub fn build(self) -> Option<Finding> {
        (!self.0.evidence.is_empty()).then_some(self.0)
    }
}

/// Types that can be the value of an evidence.
pub trait IntoEvidenceValue {
    /// Converts to an evidence value.
    fn into_value(self) -> EvidenceValue;
}

impl IntoEvidenceValue for u64 {
    fn into_value(self) -> EvidenceValue {
        EvidenceValue::Count(self)
    }
}

impl IntoEvidenceValue for u32 {
    fn into_value(self) -> EvidenceValue {
        EvidenceValue::Count(self.into())
    }
}

impl IntoEvidenceValue for f64 {
    /// Rounds to four decimals; from a million on to an integer.
    fn into_value(self) -> EvidenceValue {
        match self.abs() {
            large if (1e6..9e15).contains(&large) && self > 0.0 => {
                EvidenceValue::Count(self.round() as u64)
            }
            _ => EvidenceValue::Number((self * 1e4).round() / 1e4),
        }
    }
}

impl IntoEvidenceValue for &str {
    fn into_value(self) -> EvidenceValue {
        EvidenceValue::Text(self.to_owned())
    }
}

impl IntoEvidenceValue for String {
    fn into_value(self) -> EvidenceValue {
        EvidenceValue::Text(self)
    }
}
