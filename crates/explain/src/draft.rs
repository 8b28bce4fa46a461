//! How rules write their findings.

use linerate_metric::finding::{End, Evidence, Finding, FindingKind, Value};
use linerate_metric::plan::Direction;

/// A finding in the making.
#[derive(Clone, Debug)]
pub struct Draft(Finding);

impl Draft {
    fn new(kind: FindingKind, id: &str, end: impl Into<End>) -> Self {
        Self(Finding {
            kind,
            cause: id.to_owned(),
            end: end.into(),
            direction: None,
            cost: 0.0,
            follows_from: None,
            what: String::new(),
            evidence: Vec::new(),
            remedy: String::new(),
            command: None,
            tried: Vec::new(),
            gain: None,
            gain_formula: None,
        })
    }

    /// Something that can be changed.
    #[must_use]
    pub fn cause(id: &str, end: impl Into<End>) -> Self {
        Self::new(FindingKind::Cause, id, end)
    }

    /// Something that the run came up against.
    #[must_use]
    pub fn limit(id: &str, end: impl Into<End>) -> Self {
        Self::new(FindingKind::Limit, id, end)
    }

    /// Something that could not be decided.
    #[must_use]
    pub fn unknown(id: &str, end: impl Into<End>) -> Self {
        Self::new(FindingKind::Unknown, id, end)
    }

    /// A cause or, where `limit` holds, a limit.
    #[must_use]
    pub fn limit_if(limit: bool, id: &str, end: impl Into<End>) -> Self {
        match limit {
            true => Self::limit(id, end),
            false => Self::cause(id, end),
        }
    }

    /// The direction that it concerns.
    #[must_use]
    pub fn way(mut self, direction: Direction) -> Self {
        self.0.direction = Some(direction);
        self
    }

    /// What it costs, as a share; cut to 0 to 1.
    #[must_use]
    pub fn cost(mut self, share: f64) -> Self {
        self.0.cost = match share.is_finite() {
            true => (share.clamp(0.0, 1.0) * 1e4).round() / 1e4,
            false => 0.0,
        };
        self
    }

    /// What happened, as a sentence.
    #[must_use]
    pub fn says(mut self, what: impl Into<String>) -> Self {
        self.0.what = what.into();
        self
    }

    /// A reading.
    #[must_use]
    pub fn seen(
        mut self,
        counter: &str,
        value: impl IntoValue,
        unit: &str,
        read: impl Into<String>,
    ) -> Self {
        self.0.evidence.push(Evidence {
            counter: counter.to_owned(),
            value: Some(value.into_value()),
            unit: unit.to_owned(),
            read: read.into(),
            missing: None,
        });
        self
    }

    /// A reading, where there is one.
    #[must_use]
    pub fn seen_if<V: IntoValue>(
        self,
        counter: &str,
        value: Option<V>,
        unit: &str,
        read: impl Into<String>,
    ) -> Self {
        match value {
            Some(value) => self.seen(counter, value, unit, read),
            None => self,
        }
    }

    /// A reading that could not be made, and why.
    #[must_use]
    pub fn missing(mut self, counter: &str, read: &str, why: impl Into<String>) -> Self {
        self.0.evidence.push(Evidence {
            counter: counter.to_owned(),
            value: None,
            unit: String::new(),
            read: read.to_owned(),
            missing: Some(why.into()),
        });
        self
    }

    /// What to do, as a sentence.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.0.remedy = remedy.into();
        self
    }

    /// The exact command or setting; an empty text is none.
    #[must_use]
    pub fn command(mut self, command: impl Into<String>) -> Self {
        let command = command.into();
        if !command.is_empty() {
            self.0.command = Some(command);
        }
        self
    }

    /// Something of this kind that the run had already.
    #[must_use]
    pub fn tried(mut self, what: Option<String>) -> Self {
        self.0.tried.extend(what);
        self
    }

    /// What the remedy gives: the figure after over the figure before. Left out when that is no gain.
    #[must_use]
    pub fn gain(mut self, factor: Option<f64>, formula: impl Into<String>) -> Self {
        let factor = factor.map(|factor| (factor * 1e3).round() / 1e3);
        if let Some(factor) = factor.filter(|factor| factor.is_finite() && *factor > 1.0) {
            self.0.gain = Some(factor);
            self.0.gain_formula = Some(formula.into());
        }
        self
    }

    /// The finding; none without evidence, whatever a rule wants.
    #[must_use]
    pub fn found(self) -> Option<Finding> {
        (!self.0.evidence.is_empty()).then_some(self.0)
    }
}

/// What can stand as the value of a reading.
pub trait IntoValue {
    /// The same as a value.
    fn into_value(self) -> Value;
}

impl IntoValue for u64 {
    fn into_value(self) -> Value {
        Value::Count(self)
    }
}

impl IntoValue for u32 {
    fn into_value(self) -> Value {
        Value::Count(self.into())
    }
}

impl IntoValue for f64 {
    /// Four digits behind the point, and whole numbers as such from a million on.
    fn into_value(self) -> Value {
        match self.abs() {
            large if (1e6..9e15).contains(&large) && self > 0.0 => {
                Value::Count(self.round() as u64)
            }
            _ => Value::Number((self * 1e4).round() / 1e4),
        }
    }
}

impl IntoValue for &str {
    fn into_value(self) -> Value {
        Value::Word(self.to_owned())
    }
}

impl IntoValue for String {
    fn into_value(self) -> Value {
        Value::Word(self)
    }
}
