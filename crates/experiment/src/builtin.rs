//! Experiments built into the program.

/// Name and text of each built-in experiment, in display order.
pub const SHIPPED: &[(&str, &str)] = &[
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
pub fn shipped(name: &str) -> Option<&'static str> {
    let found = SHIPPED.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Experiment;

    #[test]
    fn the_one_of_the_page_is_sound() {
        let page = include_str!("../../../docs/EXPERIMENTS.md");
        let file = page.split("```toml").nth(1).expect("it shows one");
        let file = file.split("```").next().unwrap_or_default();
        Experiment::from_toml(file).unwrap();
    }

    #[test]
    fn all_of_them_are_sound() {
        for (name, text) in SHIPPED {
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
    fn benched(row: &str) -> f64 {
        let text = include_str!("../../../docs/BENCHMARKS.md");
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("| {row} |")));
        let ratio = line.and_then(|line| line.split('|').nth(5));
        let median = ratio.and_then(|ratio| ratio.split_whitespace().next());
        median.and_then(|median| median.parse().ok()).expect(row)
    }

    #[test]
    fn no_shape_asks_for_more_than_the_benchmarks_have() {
        let experiment = Experiment::from_toml(shipped("udp-response").unwrap()).unwrap();
        let (answer, by) = ("p50[answer=kernel,load=idle] >= ", " * p50[answer=");
        let mut asked = 0;
        for shape in &experiment.shapes {
            let Some((times, _)) = shape
                .rule
                .strip_prefix(answer)
                .and_then(|r| r.split_once(by))
            else {
                continue;
            };
            let times: f64 = times.parse().unwrap();
            for row in ["forward/xdp/echo/blocking", "stack/echo/tap/blocking_found"] {
                assert!(times <= 1.0 / benched(row), "{row}: {}", shape.rule);
            }
            asked += 1;
        }
        assert_eq!(asked, 6);
    }
}
