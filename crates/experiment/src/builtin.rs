//! Experiments built into the program.

/// Name and text of each built-in experiment, in display order.
pub const BUILTIN_EXPERIMENTS: &[(&str, &str)] = &[
    (
        "stack-tuning",
        include_str!("../../../experiments/stack-tuning.toml"),
    ),
    (
        "pmd-threads",
        include_str!("../../../experiments/pmd-threads.toml"),
    ),
    (
        "ttcp-calls",
        include_str!("../../../experiments/ttcp-calls.toml"),
    ),
    (
        "udp-response",
        include_str!("../../../experiments/udp-response.toml"),
    ),
    (
        "udp-hops",
        include_str!("../../../experiments/udp-hops.toml"),
    ),
];

/// Text of the built-in experiment `name`.
#[must_use]
pub fn builtin_text(name: &str) -> Option<&'static str> {
    let entry = BUILTIN_EXPERIMENTS
        .iter()
        .find(|(builtin_name, _)| *builtin_name == name);
    entry.map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Experiment;

    #[test]
    fn the_documented_example_is_valid() {
        let page = include_str!("../../../docs/EXPERIMENTS.md");
        let file = page.split("```toml").nth(1).expect("it shows one");
        let file = file.split("```").next().unwrap_or_default();
        Experiment::from_toml(file).unwrap();
    }

    #[test]
    fn builtin_experiments_are_valid() {
        for (name, text) in BUILTIN_EXPERIMENTS {
            let experiment =
                Experiment::from_toml(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(experiment.name, *name);
            assert!(
                !experiment.shapes.is_empty() && !experiment.tables.is_empty(),
                "{name}"
            );
        }
    }

    /// Ratio of a benchmark row: this program over the other one.
    fn benchmark_ratio(row: &str) -> f64 {
        let text = include_str!("../../../docs/BENCHMARKS.md");
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("| {row} |")));
        let ratio = line.and_then(|line| line.split('|').nth(5));
        let median = ratio.and_then(|ratio| ratio.split_whitespace().next());
        median.and_then(|median| median.parse().ok()).expect(row)
    }

    #[test]
    fn no_assertion_exceeds_the_benchmarks() {
        let experiment = Experiment::from_toml(builtin_text("udp-response").unwrap()).unwrap();
        let (prefix, separator) = ("p50[responder=kernel,load=idle] >= ", " * p50[responder=");
        let mut checked = 0;
        for shape in &experiment.shapes {
            let Some((factor, _)) = shape
                .rule
                .strip_prefix(prefix)
                .and_then(|r| r.split_once(separator))
            else {
                continue;
            };
            let factor: f64 = factor.parse().unwrap();
            for row in ["forward/xdp/echo/blocking", "stack/echo/tap/blocking_found"] {
                assert!(
                    factor <= 1.0 / benchmark_ratio(row),
                    "{row}: {}",
                    shape.rule
                );
            }
            checked += 1;
        }
        assert_eq!(checked, 6);
    }
}
