//! Rules of assertions: `tcp[setup=tuned] >= 20 * tcp[setup=default]`.
//!
//! A rule compares two sums. A term is a number (`0`, `10us`, `5%`), a figure at a setting
//! (`p50[hops=0]`), or an aggregate of a figure over a knob (`slope(p50 over hops)`), with an
//! optional factor. Knobs that a term leaves open belong to the rule: it must hold for each
//! combination.

use linerate_record::experiment::KnobValues;
use linerate_stats::units::{parse_duration, parse_fraction};

/// Comparison of two sums.
#[derive(Clone, Debug, PartialEq)]
pub struct AssertionRule {
    pub(crate) left: RuleSum,
    pub(crate) comparison: RuleOperator,
    pub(crate) right: RuleSum,
}

/// Comparison operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleOperator {
    Less,
    LessOrEqual,
    GreaterOrEqual,
    Greater,
}

impl RuleOperator {
    pub(crate) fn holds(self, left: f64, right: f64) -> bool {
        match self {
            Self::Less => left < right,
            Self::LessOrEqual => left <= right,
            Self::GreaterOrEqual => left >= right,
            Self::Greater => left > right,
        }
    }

    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Less => "less than",
            Self::LessOrEqual => "at most",
            Self::GreaterOrEqual => "at least",
            Self::Greater => "more than",
        }
    }

    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::GreaterOrEqual => ">=",
            Self::Greater => ">",
        }
    }
}

/// Sum of numbers and figures with their factors.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RuleSum {
    pub(crate) constant: f64,
    pub(crate) terms: Vec<RuleTerm>,
}

/// Figure in a rule.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleTerm {
    pub factor: f64,
    pub figure: String,
    /// Knob values that the rule fixes for it.
    pub setting: KnobValues,
    /// Aggregate over a knob.
    pub over: Option<(Aggregate, String)>,
}

/// Aggregate of a figure over the values of a knob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregate {
    /// Median of the slopes between all pairs of runs (Theil-Sen), per unit of the knob.
    Slope,
    Max,
    Min,
    /// Value at the first measured value of the knob.
    First,
    /// Value at the last measured value of the knob.
    Last,
}

const AGGREGATES: &[(&str, Aggregate)] = &[
    ("slope", Aggregate::Slope),
    ("max", Aggregate::Max),
    ("min", Aggregate::Min),
    ("first", Aggregate::First),
    ("last", Aggregate::Last),
];

fn aggregate_names() -> String {
    let names: Vec<&str> = AGGREGATES.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

impl AssertionRule {
    /// Parses a rule.
    ///
    /// # Errors
    /// The error as a sentence fragment.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parser = RuleParser { rest: text };
        let left = parser.parse_sum()?;
        let comparison = parser.parse_comparison()?;
        let right = parser.parse_sum()?;
        parser.skip_space();
        if !parser.rest.is_empty() {
            return Err(format!("unexpected `{}` at the end", parser.rest));
        }
        if left.terms.is_empty() && right.terms.is_empty() {
            return Err("it compares numbers only".to_owned());
        }
        Ok(Self {
            left,
            comparison,
            right,
        })
    }

    /// Parses a sum, or two of them with `/` in between: `a - b`, `a / b`. Returns them as the two
    /// sides of a rule, and whether there are two.
    ///
    /// # Errors
    /// The error as a sentence fragment.
    pub(crate) fn parse_sums(text: &str) -> Result<(Self, bool), String> {
        let mut parser = RuleParser { rest: text };
        let left = parser.parse_sum()?;
        let is_ratio = parser.take("/");
        let right = match is_ratio {
            true => parser.parse_sum()?,
            false => RuleSum::default(),
        };
        parser.skip_space();
        if !parser.rest.is_empty() {
            return Err(format!("unexpected `{}` at the end", parser.rest));
        }
        if left.terms.is_empty() {
            return Err("it has no figure".to_owned());
        }
        let comparison = RuleOperator::GreaterOrEqual;
        Ok((
            Self {
                left,
                comparison,
                right,
            },
            is_ratio,
        ))
    }

    /// Figures in the rule.
    pub fn terms(&self) -> impl Iterator<Item = &RuleTerm> {
        self.left.terms.iter().chain(&self.right.terms)
    }
}

struct RuleParser<'a> {
    rest: &'a str,
}

impl<'a> RuleParser<'a> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn take(&mut self, text: &str) -> bool {
        self.skip_space();
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, text: &str) -> Result<(), String> {
        match self.take(text) {
            true => Ok(()),
            false => Err(format!("`{text}` is missing before `{}`", self.rest)),
        }
    }

    fn parse_comparison(&mut self) -> Result<RuleOperator, String> {
        for (text, comparison) in [
            ("<=", RuleOperator::LessOrEqual),
            (">=", RuleOperator::GreaterOrEqual),
            ("<", RuleOperator::Less),
            (">", RuleOperator::Greater),
        ] {
            if self.take(text) {
                return Ok(comparison);
            }
        }
        Err(match self.rest {
            "" => "the comparison is missing".to_owned(),
            rest => format!("no comparison before `{rest}`"),
        })
    }

    fn parse_word(&mut self) -> &'a str {
        self.skip_space();
        let is_word_char = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '%');
        let end = self
            .rest
            .find(|c| !is_word_char(c))
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn parse_sum(&mut self) -> Result<RuleSum, String> {
        let mut sum = RuleSum::default();
        let mut factor = 1.0;
        if self.take("-") {
            factor = -1.0;
        }
        loop {
            self.parse_product(factor, &mut sum)?;
            factor = if self.take("+") {
                1.0
            } else if self.take("-") {
                -1.0
            } else {
                return Ok(sum);
            };
        }
    }

    /// Parses `20 * tcp[…]`, `tcp`, `10us` or `slope(p50 over hops)`.
    fn parse_product(&mut self, mut factor: f64, sum: &mut RuleSum) -> Result<(), String> {
        let mut word = self.parse_word();
        if let Some(value) = parse_number(word) {
            if !self.take("*") {
                sum.constant += factor * value;
                return Ok(());
            }
            factor *= value;
            word = self.parse_word();
        }
        if word.is_empty() {
            return Err(match self.rest {
                "" => "a figure is missing at the end".to_owned(),
                rest => format!("a figure is missing before `{rest}`"),
            });
        }
        let aggregate = AGGREGATES.iter().find(|(name, _)| *name == word);
        let term = match aggregate {
            Some((_, aggregate)) if self.take("(") => {
                let figure = self.parse_word();
                let mut term = self.parse_figure(factor, figure)?;
                self.expect("over")?;
                let knob = self.parse_word();
                self.expect(")")?;
                term.over = Some((*aggregate, knob.to_owned()));
                term
            }
            None if self.rest.starts_with('(') => {
                return Err(format!(
                    "unknown function `{word}(`: use one of {}",
                    aggregate_names()
                ));
            }
            _ => self.parse_figure(factor, word)?,
        };
        sum.terms.push(term);
        Ok(())
    }

    fn parse_figure(&mut self, factor: f64, name: &str) -> Result<RuleTerm, String> {
        let mut setting = KnobValues::new();
        if self.take("[") {
            loop {
                let knob = self.parse_word();
                self.expect("=")?;
                let end = self.rest.find([',', ']']);
                let end = end.ok_or_else(|| "`]` is missing".to_owned())?;
                let (value, rest) = self.rest.split_at(end);
                setting.insert(knob.to_owned(), value.trim().to_owned());
                self.rest = rest;
                if !self.take(",") {
                    break;
                }
            }
            self.expect("]")?;
        }
        Ok(RuleTerm {
            factor,
            figure: name.to_owned(),
            setting,
            over: None,
        })
    }
}

/// Parses a number, a time (in nanoseconds), or a share in percent.
fn parse_number(word: &str) -> Option<f64> {
    if !word.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if let Ok(number) = word.parse::<f64>() {
        return Some(number);
    }
    if word.ends_with('%') {
        return parse_fraction(word).ok();
    }
    parse_duration(word).ok().map(|time| time.as_nanos() as f64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rules_are_parsed() {
        let rule =
            AssertionRule::parse("tcp[setup=tuned, way=send] >= 20 * tcp[setup=default] + 5")
                .unwrap();
        assert_eq!(rule.comparison, RuleOperator::GreaterOrEqual);
        assert_eq!(rule.left.terms[0].setting["way"], "send");
        assert_eq!(
            (rule.right.terms[0].factor, rule.right.constant),
            (20.0, 5.0)
        );
        let rule = AssertionRule::parse("slope(p50[size=32K] over hops) > 0").unwrap();
        let term = &rule.left.terms[0];
        assert_eq!(term.over, Some((Aggregate::Slope, "hops".to_owned())));
        assert_eq!(term.setting["size"], "32K");
        let rule = AssertionRule::parse("a - b < 10us - 5%").unwrap();
        assert_eq!(rule.left.terms[1].factor, -1.0);
        assert_eq!(rule.right.constant, 10_000.0 - 0.05);
    }

    #[test]
    fn invalid_rules_are_rejected() {
        for text in [
            "",
            "p50",
            "p50 >",
            "1 > 0",
            "p50[ > 1",
            "p50[a=b > 1",
            "p50 > 1 2",
            "max(p50) > 1",
        ] {
            assert!(AssertionRule::parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = AssertionRule::parse(&text);
        }
    }
}
