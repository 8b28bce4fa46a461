//! Validation of an experiment file before anything is measured.

use std::collections::BTreeSet;

use linerate_lab::Topology;
use linerate_metric::experiment::{PlotOf, Setting, TableOf, number};
use linerate_metric::json_pointer;
use linerate_metric::units::{ByteSize, parse_seconds};

use crate::ExperimentError;
use crate::file::{Experiment, FigureFrom, ShapeOf};
use crate::point::{Names, names_in, settings};
use crate::rule::Rule;

/// Maximum number of switches in a row, as in `lab up`: the IP time to live has 8 bits.
const MOST_HOPS: usize = 255;

/// Maximum number of repeats: at one second per run, twenty points take a night.
pub const MOST_REPEATS: u32 = 1_000;

fn wrong<T>(
    place: impl Into<String>,
    situation: impl Into<String>,
    next_step: impl Into<String>,
) -> Result<T, ExperimentError> {
    Err(ExperimentError::content(place, situation, next_step))
}

/// Returns whether `text` may be the name of an experiment or a table; directories are named after
/// them.
#[must_use]
pub fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && (text.chars()).all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

impl Experiment {
    /// Validates the file, above all that everything referred to is defined.
    pub(crate) fn check(&self) -> Result<(), ExperimentError> {
        if !is_name(&self.name) {
            return wrong(
                "name",
                format!("`{}` cannot be the name of a directory", self.name),
                "use letters, digits, `-` and `_`",
            );
        }
        for (key, repeats) in [
            ("`repeats`", self.repeats),
            ("`quick_repeats`", self.quick_repeats),
        ] {
            if !(1..=MOST_REPEATS).contains(&repeats) {
                return wrong(
                    key,
                    format!("{repeats} rounds over all points are out of range"),
                    format!("give 1 to {MOST_REPEATS}"),
                );
            }
        }
        self.check_knobs()?;
        self.check_commands()?;
        self.check_names()?;
        self.check_hops()?;
        self.figures
            .iter()
            .try_for_each(|one| self.check_from(one))?;
        self.tables
            .iter()
            .try_for_each(|one| self.check_table(one))?;
        self.plots.iter().try_for_each(|one| self.check_plot(one))?;
        for published in &self.published {
            self.check_figure("a published figure", &published.figure)?;
            self.check_setting("a published figure", &published.setting)?;
            self.value_of(published)?;
        }
        for skip in &self.skip {
            self.check_setting("a point that is skipped", &skip.setting)?;
        }
        self.shapes.iter().try_for_each(|one| self.check_shape(one))
    }

    /// Validates the JSON pointers of a figure against the record format.
    fn check_from(&self, figure: &FigureFrom) -> Result<(), ExperimentError> {
        let place = format!("figure `{}`", figure.name);
        if figure.from.is_empty() {
            return wrong(
                place,
                "has no source",
                "name a number of the record in `from`",
            );
        }
        for from in &figure.from {
            if let Err((why, next)) = json_pointer::check(from) {
                return wrong(place, format!("`{from}` {why}"), next);
            }
        }
        self.check_setting(&place, &figure.when)
    }

    /// Validates the number of switches at every point.
    fn check_hops(&self) -> Result<(), ExperimentError> {
        let Some(hops) = self.lab.as_ref().and_then(|lab| lab.hops.as_ref()) else {
            return Ok(());
        };
        for setting in settings(self, false, &Setting::new())? {
            let filled = Names::at(self, &setting, false, &[], "1").fill(hops)?;
            let count: Option<usize> = filled.parse().ok();
            let Some(count) = count.filter(|count| *count <= MOST_HOPS) else {
                return wrong(
                    "[lab] `hops`",
                    format!("`{filled}` is not a valid number of switches"),
                    format!("give 0 to {MOST_HOPS}, or a knob with such numbers"),
                );
            };
            if let Err(error) = Topology::hops(count).validate() {
                return wrong("[lab] `hops`", error.to_string(), "give fewer switches");
            }
        }
        Ok(())
    }

    fn check_figure(&self, place: &str, name: &str) -> Result<(), ExperimentError> {
        match self.figures.iter().any(|figure| figure.name == name) {
            true => Ok(()),
            false => wrong(
                place,
                format!("there is no figure `{name}`"),
                "add it to [[figures]]",
            ),
        }
    }

    fn check_table(&self, table: &TableOf) -> Result<(), ExperimentError> {
        let place = format!("table `{}`", table.title);
        let mut figures = table.figures.iter();
        figures.try_for_each(|name| self.check_figure(&place, name))?;
        for knob in table.rows.iter().chain(&table.columns) {
            self.check_knob(&place, knob)?;
        }
        let stands = |name: &String| {
            table.at.contains_key(name) || table.rows.contains(name) || table.columns.contains(name)
        };
        if let Some(knob) = self.knobs.iter().find(|knob| !stands(&knob.name)) {
            return wrong(
                place,
                format!(
                    "the knob `{}` is neither a row, nor a column, nor fixed",
                    knob.name
                ),
                "name every knob in `rows`, `columns` or `at`",
            );
        }
        self.check_setting(&place, &table.at)?;
        if let Some(against) = &table.against {
            let [knob] = &table.rows[..] else {
                return wrong(
                    place,
                    "`against` needs exactly one row knob",
                    "name one in `rows`",
                );
            };
            self.check_setting(&place, &[(knob.clone(), against.clone())].into())?;
        }
        if table.steps && table.rows.len() != 1 {
            return wrong(
                place,
                "steps need exactly one row knob",
                "name one in `rows`",
            );
        }
        Ok(())
    }

    fn check_plot(&self, plot: &PlotOf) -> Result<(), ExperimentError> {
        let place = format!("plot `{}`", plot.title);
        self.check_figure(&place, &plot.figure)?;
        self.check_knob(&place, &plot.x)?;
        let mut series = plot.series.iter();
        series.try_for_each(|knob| self.check_knob(&place, knob))?;
        // Of points that differ in another knob only one would be drawn, without showing which.
        let stands = |name: &String| plot.x == *name || plot.series.contains(name);
        let mut open = self.knobs.iter().filter(|knob| !stands(&knob.name));
        if let Some(knob) = open.find(|knob| knob.values.len() > 1) {
            return wrong(
                place,
                format!("the knob {} is neither its x nor in its series", knob.name),
                "name every knob that has several values in `x` or `series`",
            );
        }
        let values = self.knob(&plot.x).map_or(&[][..], |knob| &knob.values);
        let word = values.iter().find(|value| number(value).is_none());
        if let Some(value) = word.filter(|_| plot.log_x) {
            return wrong(
                place,
                format!("`{value}` on the x axis is not a number"),
                "leave out `log_x`: text values are drawn as bars",
            );
        }
        Ok(())
    }

    fn check_shape(&self, shape: &ShapeOf) -> Result<(), ExperimentError> {
        let place = format!("shape `{}`", shape.says);
        let rule = Rule::parse(&shape.rule).or_else(|why| {
            let situation = format!("{why}, in `{}`", shape.rule);
            wrong(&place, situation, "write it as `slope(p50 over hops) > 0`")
        })?;
        for term in rule.terms() {
            self.check_figure(&place, &term.figure)?;
            self.check_setting(&place, &term.setting)?;
            if let Some((_, knob)) = &term.over {
                self.check_knob(&place, knob)?;
            }
        }
        Ok(())
    }

    fn check_knobs(&self) -> Result<(), ExperimentError> {
        let mut seen = BTreeSet::new();
        for knob in &self.knobs {
            let place = format!("knob `{}`", knob.name);
            if knob.values.is_empty() || !seen.insert(&knob.name) {
                return wrong(
                    place,
                    "has no value, or is defined twice",
                    "give each knob its values once",
                );
            }
            for (key, values) in [("values", &knob.values), ("quick", &knob.quick)] {
                let mut known = BTreeSet::new();
                if let Some(value) = values.iter().find(|value| !known.insert(*value)) {
                    return wrong(
                        place,
                        format!("{value} occurs twice in its {key}"),
                        "leave one out: each value is a point, measured `repeats` times",
                    );
                }
            }
            if let Some(value) = knob.quick.iter().find(|value| !knob.values.contains(value)) {
                return wrong(
                    place,
                    format!("`{value}` is only in `quick`"),
                    "add it to `values`",
                );
            }
            if knob.set.as_ref().is_some_and(|line| !line.contains("{}")) {
                return wrong(place, "its `set` has no {} for the value", "write it there");
            }
            if knob.restore.is_some() && knob.set.is_none() {
                return wrong(
                    place,
                    "`restore` without `set`",
                    "leave it out, or add `set`",
                );
            }
            if let Some(time) = &knob.within
                && (knob.set.is_none() || parse_seconds(time).is_none())
            {
                return wrong(
                    place,
                    "`within` is not a time of at least a second, or there is no `set`",
                    "write within = \"30m\" next to `set`",
                );
            }
            let is_size = |value: &String| value.parse::<ByteSize>().is_ok();
            if let (Some(_), Some(value)) = (
                knob.memory,
                knob.values.iter().find(|value| !is_size(value)),
            ) {
                return wrong(
                    place,
                    format!(
                        "it has memory (bytes per unit of the value), but `{value}` is not a number"
                    ),
                    "leave `memory` out, or give sizes",
                );
            }
            let Some(words) = self.words.get(&knob.name) else {
                continue;
            };
            if let Some(value) = knob.values.iter().find(|value| !words.contains_key(*value)) {
                return wrong(
                    place,
                    format!("there are no words for `{value}`"),
                    "add them to [words]",
                );
            }
            if let Some(value) = words.keys().find(|value| !knob.values.contains(value)) {
                return wrong(
                    format!("[words.{}]", knob.name),
                    format!("`{value}` is not a value of `{}`", knob.name),
                    format!("use one of {}", knob.values.join(", ")),
                );
            }
        }
        match self.words.keys().find(|name| self.knob(name).is_none()) {
            Some(name) => wrong(
                "[words]",
                format!("there is no knob `{name}`"),
                "name a knob",
            ),
            None => Ok(()),
        }
    }

    fn check_commands(&self) -> Result<(), ExperimentError> {
        if self.measure.is_empty() {
            return wrong("[[measure]]", "nothing is measured", "add a command");
        }
        if let Some(lab) = &self.lab
            && lab.hops.is_some() == lab.topology.is_some()
        {
            return wrong(
                "[lab]",
                "neither `hops` nor `topology`, or both",
                "give one of them",
            );
        }
        let topology = self.lab.as_ref().and_then(|lab| lab.topology.as_ref());
        if let Some(Err(error)) = topology.map(Topology::validate) {
            return wrong("[lab.topology]", error.to_string(), "fix the network");
        }
        let hosts = self.hosts();
        for command in self.measure.iter().chain(&self.far) {
            if command.run.is_some() == command.exec.is_some() {
                return wrong(
                    "a command",
                    "neither `run` nor `exec`, or both",
                    "give one of them",
                );
            }
            if !hosts.contains(&command.host) {
                return wrong(
                    "a command",
                    format!("there is no host `{}`", command.host),
                    format!("use one of {}", hosts.join(", ")),
                );
            }
            self.check_setting("a command", &command.when)?;
        }
        if self.measure.iter().any(|command| command.run.is_none()) {
            return wrong("[[measure]]", "only linerate gives a record", "use `run`");
        }
        Ok(())
    }

    /// Validates that every `{name}` in a command or text is defined.
    fn check_names(&self) -> Result<(), ExperimentError> {
        let hosts = self.hosts();
        let known = |name: &&str| {
            matches!(*name, "id" | "dir" | "point")
                || self.amounts.contains_key(*name)
                || self.knob(name).is_some()
                || hosts.iter().any(|host| host == name)
        };
        let commands = self.measure.iter().chain(&self.far);
        let commands = commands.flat_map(|command| command.run.iter().chain(&command.exec));
        let words = self.words.values().flat_map(|words| words.values());
        let amounts = self.amounts.values().flatten();
        let hops = self.lab.iter().filter_map(|lab| lab.hops.as_ref());
        for text in commands.chain(words).chain(amounts).chain(hops) {
            let unknown = match names_in(text) {
                Ok(names) => names.into_iter().find(|name| !known(name)),
                Err(open) => {
                    return wrong(
                        format!("`{text}`"),
                        format!("`{open}` has no `}}`"),
                        "close it",
                    );
                }
            };
            if let Some(name) = unknown {
                return wrong(
                    format!("`{text}`"),
                    format!("unknown name `{{{name}}}`"),
                    "name a knob, an amount, a host of the lab, id, dir or point",
                );
            }
        }
        Ok(())
    }

    fn check_knob(&self, place: &str, name: &str) -> Result<(), ExperimentError> {
        match self.knob(name) {
            Some(_) => Ok(()),
            None => wrong(
                place,
                format!("there is no knob `{name}`"),
                "add it to [[knobs]]",
            ),
        }
    }

    fn check_setting(&self, place: &str, setting: &Setting) -> Result<(), ExperimentError> {
        for (name, value) in setting {
            self.check_knob(place, name)?;
            let known = self.knob(name).map_or(&[][..], |knob| &knob.values);
            if !known.contains(value) {
                return wrong(
                    place,
                    format!("`{value}` is not a value of `{name}`"),
                    format!("use one of {}", known.join(", ")),
                );
            }
        }
        Ok(())
    }
}

/// Line of the file, from 1, that an error refers to.
///
/// It is the first line with one of the texts that the error has in backquotes.
pub(crate) fn line_of(text: &str, situation: &str, place: &str) -> Option<usize> {
    let quoted = |complaint: &str| -> Vec<String> {
        let parts = complaint.split('`');
        parts.skip(1).step_by(2).map(str::to_owned).collect()
    };
    let lines: Vec<&str> = (text.lines())
        .map(|line| {
            if line.trim_start().starts_with('#') {
                ""
            } else {
                line
            }
        })
        .collect();
    let find = |sign: &str| lines.iter().position(|line| line.contains(sign));
    let mut words = quoted(situation);
    words.extend(quoted(place));
    let words = words.iter().filter(|word| !word.is_empty());
    let mut places = words.flat_map(|word| {
        [
            format!("\"{word}\""),
            format!("={word}]"),
            format!("={word},"),
            format!("{word} ="),
            word.clone(),
        ]
        .into_iter()
        .filter(|sign| sign.len() > 2)
    });
    places.find_map(|sign| find(&sign)).map(|line| line + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_folders() {
        for name in ["udp-hops", "mine_2", "v1.0"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "..", "../../evil", "a/b", ".hidden", "-x", "a b"] {
            assert!(!is_name(name), "{name}");
        }
    }

    /// Parses a valid experiment after replacing `from` by `to`.
    fn with(from: &str, to: &str) -> Result<Experiment, ExperimentError> {
        const WORKS: &str = r#"
name = "mine"
title = "Mine"
question = "What?"
without_root = "All of it."

[[knobs]]
name = "size"
values = ["64", "1K"]

[lab]
hops = "0"

[[far]]
host = "server"
run = "server -q"

[[measure]]
host = "client"
run = "latency {server} -l {size}"

[[figures]]
name = "p50"
from = ["/summary/rtt_ns/p50"]
unit = "nanos"
says = "median"

[[tables]]
title = "Median"
figures = ["p50"]
rows = ["size"]

[[shapes]]
says = "larger takes longer"
rule = "p50[size=1K] > p50[size=64]"
"#;
        assert!(WORKS.contains(from), "{from}");
        Experiment::from_toml(&WORKS.replacen(from, to, 1))
    }

    #[test]
    fn the_time_of_a_command_is_a_time() {
        let values = r#"values = ["64", "1K"]"#;
        let with_time = |lines: &str| with(values, &format!("{values}\n{lines}"));
        for (lines, works) in [
            ("set = \"make WND={}\"\nwithin = \"30m\"", true),
            ("set = \"make WND={}\"\nwithin = \"long\"", false),
            ("set = \"make WND={}\"\nwithin = \"10ms\"", false),
            ("within = \"30m\"", false),
        ] {
            assert_eq!(with_time(lines).is_ok(), works, "{lines}");
        }
    }

    #[test]
    fn memory_of_a_knob_is_that_of_units() {
        let values = r#"values = ["64", "1K"]"#;
        let with_memory = |values: &str| format!("{values}\nmemory = 2");
        let experiment = with(values, &with_memory(values)).expect("it works");
        assert_eq!(experiment.knobs[0].memory, Some(2));
        let words = r#"values = ["64", "1K", "many"]"#;
        let error = with(values, &with_memory(words)).expect_err("`many` is not a number");
        assert!(
            error.to_string().contains("`many` is not a number"),
            "{error}"
        );
    }

    #[test]
    fn keys_that_are_none_are_told_with_their_line() {
        for (from, to, line, key) in [
            ("rows = ", "row = [\"size\"]\nrows = ", 31, "row"),
            (
                "[[shapes]]",
                "[[plots]]\ntitle = \"x\"\nfigure = \"p50\"\nx = \"size\"\nlog = true\n\n[[shapes]]",
                37,
                "log",
            ),
            ("[[shapes]]", "[[shape]]", 33, "shape"),
        ] {
            let error = with(from, to).unwrap_err();
            let ExperimentError::Syntax { line: at, error } = &error else {
                panic!("{error}");
            };
            assert!(error.message().contains(&format!("`{key}`")), "{error}");
            assert_eq!(*at, line, "{to}: {error}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        assert!(with("mine", "mine").is_ok());
        for (from, to, line, situation) in [
            ("\"mine\"", "\"../x\"", 2, "cannot be the name"),
            // So many rounds are rejected before memory for them is allocated.
            (
                "\"mine\"",
                "\"mine\"\nrepeats = 4000000000",
                3,
                "4000000000 rounds over all points are out of range",
            ),
            (
                "\"mine\"",
                "\"mine\"\nquick_repeats = 0",
                3,
                "0 rounds over all points are out of range",
            ),
            ("{size}\"", "{sizee}\"", 20, "unknown name `{sizee}`"),
            ("{size}\"", "{size\"", 20, "has no `}`"),
            (
                "host = \"client\"",
                "host = \"clinet\"",
                19,
                "no host `clinet`",
            ),
            (
                "figures = [\"p50\"]",
                "figures = [\"p51\"]",
                30,
                "no figure `p51`",
            ),
            (
                "rows = [\"size\"]",
                "rows = [\"sise\"]",
                31,
                "no knob `sise`",
            ),
            ("p50[size=64]", "p50[size=65]", 35, "`65` is not a value"),
            ("p50[size=1K] >", "p50[size=1K]", 35, "no comparison"),
            (
                "p50[size=1K]",
                "slop(p50 over size)",
                35,
                "unknown function `slop(`",
            ),
            ("> p50[size=64]", ">", 35, "a figure is missing at the end"),
            (
                "\"64\", \"1K\"",
                "\"64\", \"1K\", \"64\"",
                8,
                "64 occurs twice",
            ),
            (
                "hops = \"0\"",
                "hops = \"-1\"",
                12,
                "`-1` is not a valid number of switches",
            ),
            (
                "hops = \"0\"",
                "hops = \"{size}\"",
                9,
                "`1K` is not a valid number of switches",
            ),
            ("rtt_ns/p50", "rtt_ns/p51", 24, "has no p51"),
            (
                "rows = [\"size\"]",
                "rows = [\"size\"]\nagainst = \"65\"",
                32,
                "`65` is not a value",
            ),
            (
                "rows = [\"size\"]",
                "rows = [\"size\", \"way\"]\n\n[[plots]]\ntitle = \"By size\"\nfigure = \"p50\"\nx = \"size\"\n\n[[knobs]]\nname = \"way\"\nvalues = [\"a\", \"b\"]",
                34,
                "the knob way is neither its x nor in its series",
            ),
            (
                "[lab]",
                "[words.size]\n64 = \"64\"\n1K = \"1024\"\n2K = \"2048\"\n\n[lab]",
                14,
                "`2K` is not a value of `size`",
            ),
        ] {
            let error = with(from, to).unwrap_err();
            let ExperimentError::Content {
                line: at,
                situation: told,
                ..
            } = &error
            else {
                panic!("{error}");
            };
            assert!(told.contains(situation), "{to}: {told}");
            assert_eq!(*at, Some(line), "{to}: {error}");
        }
    }
}
