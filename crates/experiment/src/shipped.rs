//! The experiments that come with the program.

/// Name and text of each, in the order lists show them.
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

/// The text of a shipped experiment.
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
}
