//! Rules of assertions: `tcp[setup=tuned] >= 20 * tcp[setup=default]`.
//!
//! A rule compares two sums. A term is a number (`0`, `10us`, `5%`), a figure at a setting
//! (`p50[hops=0]`), or an aggregate of a figure over a knob (`slope(p50 over hops)`), with an
//! optional
//! factor. Knobs that a term leaves open belong to the rule: it must hold for each combination.

use linerate_metric::experiment::Setting;
use linerate_metric::units::{parse_duration, parse_fraction};

/// Comparison of two sums.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub(crate) left: Sum,
    pub(crate) sign: Sign,
    pub(crate) right: Sum,
}

/// Comparison operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    Less,
    LessOrEqual,
    MoreOrEqual,
    More,
}

impl Sign {
    pub(crate) fn holds(self, left: f64, right: f64) -> bool {
        match self {
            Self::Less => left < right,
            Self::LessOrEqual => left <= right,
            Self::MoreOrEqual => left >= right,
            Self::More => left > right,
        }
    }

    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Less => "less than",
            Self::LessOrEqual => "at most",
            Self::MoreOrEqual => "at least",
            Self::More => "more than",
        }
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::MoreOrEqual => ">=",
            Self::More => ">",
        }
    }
}

/// Sum of numbers and figures with their factors.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sum {
    pub(crate) constant: f64,
    pub(crate) terms: Vec<Term>,
}

/// Figure in a rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    pub factor: f64,
    pub figure: String,
    /// Knob values that the rule fixes for it.
    pub setting: Setting,
    /// Aggregate over a knob.
    pub over: Option<(Along, String)>,
}

/// Aggregate of a figure over the values of a knob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Along {
    /// Median of the slopes between all pairs of runs (Theil-Sen), per unit of the knob.
    Slope,
    Max,
    Min,
    /// Value at the first measured value of the knob.
    First,
    /// Value at the last measured value of the knob.
    Last,
}

const ALONG: &[(&str, Along)] = &[
    ("slope", Along::Slope),
    ("max", Along::Max),
    ("min", Along::Min),
    ("first", Along::First),
    ("last", Along::Last),
];

fn functions() -> String {
    let names: Vec<&str> = ALONG.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

impl Rule {
    /// Parses a rule.
    ///
    /// # Errors
    /// The error as a sentence fragment.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut reader = Reader { rest: text };
        let left = reader.sum()?;
        let sign = reader.sign()?;
        let right = reader.sum()?;
        reader.space();
        if !reader.rest.is_empty() {
            return Err(format!("unexpected `{}` at the end", reader.rest));
        }
        if left.terms.is_empty() && right.terms.is_empty() {
            return Err("it compares numbers only".to_owned());
        }
        Ok(Self { left, sign, right })
    }

    /// Figures in the rule.
    pub fn terms(&self) -> impl Iterator<Item = &Term> {
        self.left.terms.iter().chain(&self.right.terms)
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn take(&mut self, text: &str) -> bool {
        self.space();
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

    fn sign(&mut self) -> Result<Sign, String> {
        for (text, sign) in [
            ("<=", Sign::LessOrEqual),
            (">=", Sign::MoreOrEqual),
            ("<", Sign::Less),
            (">", Sign::More),
        ] {
            if self.take(text) {
                return Ok(sign);
            }
        }
        Err(match self.rest {
            "" => "the comparison is missing".to_owned(),
            rest => format!("no comparison before `{rest}`"),
        })
    }

    fn word(&mut self) -> &'a str {
        self.space();
        let in_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '%');
        let end = self.rest.find(|c| !in_word(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn sum(&mut self) -> Result<Sum, String> {
        let mut sum = Sum::default();
        let mut factor = 1.0;
        if self.take("-") {
            factor = -1.0;
        }
        loop {
            self.product(factor, &mut sum)?;
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
    fn product(&mut self, mut factor: f64, sum: &mut Sum) -> Result<(), String> {
        let mut word = self.word();
        if let Some(value) = value(word) {
            if !self.take("*") {
                sum.constant += factor * value;
                return Ok(());
            }
            factor *= value;
            word = self.word();
        }
        if word.is_empty() {
            return Err(match self.rest {
                "" => "a figure is missing at the end".to_owned(),
                rest => format!("a figure is missing before `{rest}`"),
            });
        }
        let along = ALONG.iter().find(|(name, _)| *name == word);
        let term = match along {
            Some((_, along)) if self.take("(") => {
                let figure = self.word();
                let mut term = self.figure(factor, figure)?;
                self.expect("over")?;
                let knob = self.word();
                self.expect(")")?;
                term.over = Some((*along, knob.to_owned()));
                term
            }
            None if self.rest.starts_with('(') => {
                return Err(format!(
                    "unknown function `{word}(`: use one of {}",
                    functions()
                ));
            }
            _ => self.figure(factor, word)?,
        };
        sum.terms.push(term);
        Ok(())
    }

    fn figure(&mut self, factor: f64, name: &str) -> Result<Term, String> {
        let mut setting = Setting::new();
        if self.take("[") {
            loop {
                let knob = self.word();
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
        Ok(Term {
            factor,
            figure: name.to_owned(),
            setting,
            over: None,
        })
    }
}

/// Parses a number, a time (in nanoseconds), or a share in percent.
fn value(word: &str) -> Option<f64> {
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
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rules_are_read() {
        let rule =
            Rule::parse("tcp[setup=tuned, way=send] >= 20 * tcp[setup=default] + 5").unwrap();
        assert_eq!(rule.sign, Sign::MoreOrEqual);
        assert_eq!(rule.left.terms[0].setting["way"], "send");
        assert_eq!(
            (rule.right.terms[0].factor, rule.right.constant),
            (20.0, 5.0)
        );
        let rule = Rule::parse("slope(p50[size=32K] over hops) > 0").unwrap();
        let term = &rule.left.terms[0];
        assert_eq!(term.over, Some((Along::Slope, "hops".to_owned())));
        assert_eq!(term.setting["size"], "32K");
        let rule = Rule::parse("a - b < 10us - 5%").unwrap();
        assert_eq!(rule.left.terms[1].factor, -1.0);
        assert_eq!(rule.right.constant, 10_000.0 - 0.05);
    }

    #[test]
    fn nonsense_is_told() {
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
            assert!(Rule::parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = Rule::parse(&text);
        }
    }
}
