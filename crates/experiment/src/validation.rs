//! Reading and validation of an experiment file before anything is measured.

use std::collections::BTreeSet;

use linerate_lab::Topology;
use linerate_record::experiment::{KnobValues, PlotSpec, TableSpec, parse_number};
use linerate_record::json_pointer;
use linerate_stats::units::{ByteSize, parse_seconds};

use crate::ExperimentError;
use crate::conclusion::ConclusionSentence;
use crate::file::{Experiment, FigureSource, ShapeAssertion};
use crate::point::{NameValues, find_names, selected_settings};
use crate::rule::AssertionRule;

/// Maximum number of switches in a row, as in `lab up`: the IP time to live has 8 bits.
const MAX_HOPS: usize = 255;

/// Maximum number of repeats: at one second per run, twenty points take a night.
pub const MAX_REPEATS: u32 = 1_000;

fn invalid<T>(
    section: impl Into<String>,
    situation: impl Into<String>,
    next_step: impl Into<String>,
) -> Result<T, ExperimentError> {
    Err(ExperimentError::invalid_content(
        section, situation, next_step,
    ))
}

/// Returns whether `text` may be the name of an experiment or a table; directories are named after
/// them.
#[must_use]
pub fn is_valid_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && (text.chars()).all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

impl Experiment {
    /// Parses an experiment and validates it completely.
    ///
    /// # Errors
    /// [`ExperimentError::Syntax`], [`ExperimentError::InvalidContent`].
    pub fn from_toml(text: &str) -> Result<Self, ExperimentError> {
        let mut experiment: Self = toml::from_str(text).map_err(|error| {
            let text_before = error.span().and_then(|span| text.get(..span.start));
            ExperimentError::Syntax {
                line: text_before.unwrap_or_default().matches('\n').count() + 1,
                error: Box::new(error),
            }
        })?;
        experiment.replace_earlier_keys();
        match experiment.validate() {
            Err(ExperimentError::InvalidContent {
                section,
                situation,
                next_step,
                ..
            }) => Err(ExperimentError::InvalidContent {
                line: find_line(text, &situation, &section),
                section,
                situation,
                next_step,
            }),
            result => result.map(|()| experiment),
        }
    }

    /// Writes present keys of the record in place of earlier ones. Wrong pointers stay as they are.
    fn replace_earlier_keys(&mut self) {
        let figures = self.figures.iter_mut();
        for pointer in figures.flat_map(|figure| &mut figure.pointers) {
            if let Ok(present) = json_pointer::resolve_number(pointer) {
                *pointer = present;
            }
        }
    }

    /// Validates the file, above all that everything referred to is defined.
    fn validate(&self) -> Result<(), ExperimentError> {
        if !is_valid_name(&self.name) {
            return invalid(
                "name",
                format!("`{}` cannot be the name of a directory", self.name),
                "use letters, digits, `-` and `_`",
            );
        }
        for (key, repeats) in [
            ("`repeats`", self.repeats),
            ("`quick_repeats`", self.quick_repeats),
        ] {
            if !(1..=MAX_REPEATS).contains(&repeats) {
                return invalid(
                    key,
                    format!("{repeats} rounds over all points are out of range"),
                    format!("give 1 to {MAX_REPEATS}"),
                );
            }
        }
        self.check_knobs()?;
        self.check_commands()?;
        self.check_names()?;
        self.check_hops()?;
        self.figures
            .iter()
            .try_for_each(|one| self.check_pointers(one))?;
        self.tables
            .iter()
            .try_for_each(|one| self.check_table(one))?;
        self.plots.iter().try_for_each(|one| self.check_plot(one))?;
        for published in &self.published {
            self.check_figure("a published figure", &published.figure)?;
            self.check_setting("a published figure", &published.setting)?;
            self.published_value(published)?;
        }
        for skip in &self.skip {
            self.check_setting("a point that is skipped", &skip.setting)?;
        }
        self.shapes.iter().try_for_each(|one| self.check_shape(one))
    }

    /// Validates the JSON pointers of a figure against the record format.
    fn check_pointers(&self, figure: &FigureSource) -> Result<(), ExperimentError> {
        let section = format!("figure `{}`", figure.name);
        if figure.pointers.is_empty() {
            return invalid(
                section,
                "has no source",
                "name a number of the record in `from`",
            );
        }
        for from in &figure.pointers {
            if let Err((reason, next)) = json_pointer::resolve_number(from) {
                return invalid(section, format!("`{from}` {reason}"), next);
            }
        }
        self.check_setting(&section, &figure.at_points)
    }

    /// Validates the number of switches at every point.
    fn check_hops(&self) -> Result<(), ExperimentError> {
        let Some(hops) = self.lab.as_ref().and_then(|lab| lab.hops.as_ref()) else {
            return Ok(());
        };
        for setting in selected_settings(self, false, &KnobValues::new())? {
            let filled = NameValues::at_point(self, &setting, false, &[], "1").replace_all(hops)?;
            let count: Option<usize> = filled.parse().ok();
            let Some(count) = count.filter(|count| *count <= MAX_HOPS) else {
                return invalid(
                    "[lab] `hops`",
                    format!("`{filled}` is not a valid number of switches"),
                    format!("give 0 to {MAX_HOPS}, or a knob with such numbers"),
                );
            };
            if let Err(error) = Topology::hops(count).validate() {
                return invalid("[lab] `hops`", error.to_string(), "give fewer switches");
            }
        }
        Ok(())
    }

    fn check_figure(&self, section: &str, name: &str) -> Result<(), ExperimentError> {
        match self.figures.iter().any(|figure| figure.name == name) {
            true => Ok(()),
            false => invalid(
                section,
                format!("there is no figure `{name}`"),
                "add it to [[figures]]",
            ),
        }
    }

    fn check_table(&self, table: &TableSpec) -> Result<(), ExperimentError> {
        let section = format!("table `{}`", table.title);
        let mut figures = table.figures.iter();
        figures.try_for_each(|name| self.check_figure(&section, name))?;
        for knob in table.rows.iter().chain(&table.columns) {
            self.check_knob(&section, knob)?;
        }
        let is_placed = |name: &String| {
            table.at.contains_key(name) || table.rows.contains(name) || table.columns.contains(name)
        };
        if let Some(knob) = self.knobs.iter().find(|knob| !is_placed(&knob.name)) {
            return invalid(
                section,
                format!(
                    "the knob `{}` is neither a row, nor a column, nor fixed",
                    knob.name
                ),
                "name every knob in `rows`, `columns` or `at`",
            );
        }
        self.check_setting(&section, &table.at)?;
        if let Some(against) = &table.against {
            let [knob] = &table.rows[..] else {
                return invalid(
                    section,
                    "`against` needs exactly one row knob",
                    "name one in `rows`",
                );
            };
            self.check_setting(&section, &[(knob.clone(), against.clone())].into())?;
        }
        if table.steps && table.rows.len() != 1 {
            return invalid(
                section,
                "steps need exactly one row knob",
                "name one in `rows`",
            );
        }
        Ok(())
    }

    fn check_plot(&self, plot: &PlotSpec) -> Result<(), ExperimentError> {
        let section = format!("plot `{}`", plot.title);
        self.check_figure(&section, &plot.figure)?;
        self.check_knob(&section, &plot.x)?;
        let mut series = plot.series.iter();
        series.try_for_each(|knob| self.check_knob(&section, knob))?;
        // Of points that differ in another knob only one would be drawn, without showing which.
        let is_placed = |name: &String| plot.x == *name || plot.series.contains(name);
        let mut unplaced = self.knobs.iter().filter(|knob| !is_placed(&knob.name));
        if let Some(knob) = unplaced.find(|knob| knob.values.len() > 1) {
            return invalid(
                section,
                format!("the knob {} is neither its x nor in its series", knob.name),
                "name every knob that has several values in `x` or `series`",
            );
        }
        let values = self.knob(&plot.x).map_or(&[][..], |knob| &knob.values);
        let text_value = values.iter().find(|value| parse_number(value).is_none());
        if let Some(value) = text_value.filter(|_| plot.log_x) {
            return invalid(
                section,
                format!("`{value}` on the x axis is not a number"),
                "leave out `log_x`: text values are drawn as bars",
            );
        }
        Ok(())
    }

    fn check_shape(&self, shape: &ShapeAssertion) -> Result<(), ExperimentError> {
        let section = format!("shape `{}`", shape.description);
        let rule = AssertionRule::parse(&shape.rule).or_else(|reason| {
            let situation = format!("{reason}, in `{}`", shape.rule);
            invalid(
                &section,
                situation,
                "write it as `slope(p50 over hops) > 0`",
            )
        })?;
        let conclusion = ConclusionSentence::parse(&shape.conclusion).or_else(|reason| {
            let situation = format!("{reason}, in `{}`", shape.conclusion);
            invalid(
                &section,
                situation,
                "write it as `each hop adds {slope(p50 over hops)}`",
            )
        })?;
        for term in rule.terms().chain(conclusion.terms()) {
            self.check_figure(&section, &term.figure)?;
            self.check_setting(&section, &term.setting)?;
            if let Some((_, knob)) = &term.over {
                self.check_knob(&section, knob)?;
            }
        }
        Ok(())
    }

    fn check_knobs(&self) -> Result<(), ExperimentError> {
        let mut names = BTreeSet::new();
        for knob in &self.knobs {
            let section = format!("knob `{}`", knob.name);
            if knob.values.is_empty() || !names.insert(&knob.name) {
                return invalid(
                    section,
                    "has no value, or is defined twice",
                    "give each knob its values once",
                );
            }
            for (key, values) in [("values", &knob.values), ("quick", &knob.quick_values)] {
                let mut distinct = BTreeSet::new();
                if let Some(value) = values.iter().find(|value| !distinct.insert(*value)) {
                    return invalid(
                        section,
                        format!("{value} occurs twice in its {key}"),
                        "leave one out: each value is a point, measured `repeats` times",
                    );
                }
            }
            if let Some(value) = knob
                .quick_values
                .iter()
                .find(|value| !knob.values.contains(value))
            {
                return invalid(
                    section,
                    format!("`{value}` is only in `quick`"),
                    "add it to `values`",
                );
            }
            if knob
                .set_command
                .as_ref()
                .is_some_and(|command| !command.contains("{}"))
            {
                return invalid(
                    section,
                    "its `set` has no {} for the value",
                    "write it there",
                );
            }
            if knob.restore_command.is_some() && knob.set_command.is_none() {
                return invalid(
                    section,
                    "`restore` without `set`",
                    "leave it out, or add `set`",
                );
            }
            if let Some(time) = &knob.timeout
                && (knob.set_command.is_none() || parse_seconds(time).is_none())
            {
                return invalid(
                    section,
                    "`within` is not a time of at least a second, or there is no `set`",
                    "write within = \"30m\" next to `set`",
                );
            }
            let is_size = |value: &String| value.parse::<ByteSize>().is_ok();
            if let (Some(_), Some(value)) = (
                knob.bytes_per_unit,
                knob.values.iter().find(|value| !is_size(value)),
            ) {
                return invalid(
                    section,
                    format!(
                        "it has memory (bytes per unit of the value), but `{value}` is not a number"
                    ),
                    "leave `memory` out, or give sizes",
                );
            }
            let Some(replacement_texts) = self.words.get(&knob.name) else {
                continue;
            };
            if let Some(value) = knob
                .values
                .iter()
                .find(|value| !replacement_texts.contains_key(*value))
            {
                return invalid(
                    section,
                    format!("there are no words for `{value}`"),
                    "add them to [words]",
                );
            }
            if let Some(value) = replacement_texts
                .keys()
                .find(|value| !knob.values.contains(value))
            {
                return invalid(
                    format!("[words.{}]", knob.name),
                    format!("`{value}` is not a value of `{}`", knob.name),
                    format!("use one of {}", knob.values.join(", ")),
                );
            }
        }
        match self.words.keys().find(|name| self.knob(name).is_none()) {
            Some(name) => invalid(
                "[words]",
                format!("there is no knob `{name}`"),
                "name a knob",
            ),
            None => Ok(()),
        }
    }

    fn check_commands(&self) -> Result<(), ExperimentError> {
        if self.measure.is_empty() {
            return invalid("[[measure]]", "nothing is measured", "add a command");
        }
        if let Some(lab) = &self.lab
            && lab.hops.is_some() == lab.topology.is_some()
        {
            return invalid(
                "[lab]",
                "neither `hops` nor `topology`, or both",
                "give one of them",
            );
        }
        let topology = self.lab.as_ref().and_then(|lab| lab.topology.as_ref());
        if let Some(Err(error)) = topology.map(Topology::validate) {
            return invalid("[lab.topology]", error.to_string(), "fix the network");
        }
        let hosts = self.host_names();
        for command in self.measure.iter().chain(&self.remote_programs) {
            if command.linerate_args.is_some() == command.command_line.is_some() {
                return invalid(
                    "a command",
                    "neither `run` nor `exec`, or both",
                    "give one of them",
                );
            }
            if !hosts.contains(&command.host) {
                return invalid(
                    "a command",
                    format!("there is no host `{}`", command.host),
                    format!("use one of {}", hosts.join(", ")),
                );
            }
            self.check_setting("a command", &command.at_points)?;
        }
        if self
            .measure
            .iter()
            .any(|command| command.linerate_args.is_none())
        {
            return invalid("[[measure]]", "only linerate gives a record", "use `run`");
        }
        Ok(())
    }

    /// Validates that every `{name}` in a command or text is defined.
    fn check_names(&self) -> Result<(), ExperimentError> {
        let hosts = self.host_names();
        let is_known = |name: &&str| {
            matches!(*name, "id" | "dir" | "point")
                || self.amounts.contains_key(*name)
                || self.knob(name).is_some()
                || hosts.iter().any(|host| host == name)
        };
        let commands = self.measure.iter().chain(&self.remote_programs);
        let commands =
            commands.flat_map(|command| command.linerate_args.iter().chain(&command.command_line));
        let words = self.words.values().flat_map(|words| words.values());
        let amounts = self.amounts.values().flatten();
        let hops = self.lab.iter().filter_map(|lab| lab.hops.as_ref());
        for text in commands.chain(words).chain(amounts).chain(hops) {
            let unknown = match find_names(text) {
                Ok(names) => names.into_iter().find(|name| !is_known(name)),
                Err(unclosed) => {
                    return invalid(
                        format!("`{text}`"),
                        format!("`{unclosed}` has no `}}`"),
                        "close it",
                    );
                }
            };
            if let Some(name) = unknown {
                return invalid(
                    format!("`{text}`"),
                    format!("unknown name `{{{name}}}`"),
                    "name a knob, an amount, a host of the lab, id, dir or point",
                );
            }
        }
        Ok(())
    }

    fn check_knob(&self, section: &str, name: &str) -> Result<(), ExperimentError> {
        match self.knob(name) {
            Some(_) => Ok(()),
            None => invalid(
                section,
                format!("there is no knob `{name}`"),
                "add it to [[knobs]]",
            ),
        }
    }

    fn check_setting(&self, section: &str, setting: &KnobValues) -> Result<(), ExperimentError> {
        for (name, value) in setting {
            self.check_knob(section, name)?;
            let values = self.knob(name).map_or(&[][..], |knob| &knob.values);
            if !values.contains(value) {
                return invalid(
                    section,
                    format!("`{value}` is not a value of `{name}`"),
                    format!("use one of {}", values.join(", ")),
                );
            }
        }
        Ok(())
    }
}

/// Line of the file, from 1, that an error refers to.
///
/// It is the first line with one of the texts that the error has in backquotes.
fn find_line(text: &str, situation: &str, section: &str) -> Option<usize> {
    let quoted_in = |complaint: &str| -> Vec<String> {
        let segments = complaint.split('`');
        segments.skip(1).step_by(2).map(str::to_owned).collect()
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
    let find_pattern = |pattern: &str| lines.iter().position(|line| line.contains(pattern));
    let mut quoted_texts = quoted_in(situation);
    quoted_texts.extend(quoted_in(section));
    let quoted_texts = quoted_texts.iter().filter(|quoted| !quoted.is_empty());
    let mut patterns = quoted_texts.flat_map(|quoted| {
        [
            format!("\"{quoted}\""),
            format!("={quoted}]"),
            format!("={quoted},"),
            format!("{quoted} ="),
            quoted.clone(),
        ]
        .into_iter()
        .filter(|pattern| pattern.len() > 2)
    });
    patterns
        .find_map(|pattern| find_pattern(&pattern))
        .map(|line| line + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_valid_directory_names() {
        for name in ["udp-hops", "mine_2", "v1.0"] {
            assert!(is_valid_name(name), "{name}");
        }
        for name in ["", "..", "../../evil", "a/b", ".hidden", "-x", "a b"] {
            assert!(!is_valid_name(name), "{name}");
        }
    }

    /// Parses a valid experiment after replacing `from` by `to`.
    fn parse_with(from: &str, to: &str) -> Result<Experiment, ExperimentError> {
        const VALID_FILE: &str = r#"
name = "mine"
title = "Mine"
question = "What?"
without_root = "All of it."

[[knobs]]
name = "size"
values = ["64", "1K"]

[lab]
hops = "0"

[[remote]]
host = "server"
run = "server -q"

[[measure]]
host = "client"
run = "latency {server} -l {size}"

[[figures]]
name = "p50"
from = ["/summary/rtt_ns/p50"]
unit = "nanos"
description = "median"

[[tables]]
title = "Median"
figures = ["p50"]
rows = ["size"]

[[shapes]]
description = "larger takes longer"
rule = "p50[size=1K] > p50[size=64]"
"#;
        assert!(VALID_FILE.contains(from), "{from}");
        Experiment::from_toml(&VALID_FILE.replacen(from, to, 1))
    }

    #[test]
    fn pointers_with_earlier_keys_are_read_with_the_present_ones() {
        let experiment = parse_with("/summary/rtt_ns/p50", "/stage_pass/asking_ns").unwrap();
        let pointers = &experiment.figures[0].pointers;
        assert_eq!(pointers[..], ["/stage_pass/timestamp_overhead_ns"]);
    }

    #[test]
    fn a_command_timeout_is_a_duration() {
        let values = r#"values = ["64", "1K"]"#;
        let with_time = |lines: &str| parse_with(values, &format!("{values}\n{lines}"));
        for (lines, is_valid) in [
            ("set = \"make WND={}\"\nwithin = \"30m\"", true),
            ("set = \"make WND={}\"\nwithin = \"long\"", false),
            ("set = \"make WND={}\"\nwithin = \"10ms\"", false),
            ("within = \"30m\"", false),
        ] {
            assert_eq!(with_time(lines).is_ok(), is_valid, "{lines}");
        }
    }

    #[test]
    fn memory_of_a_knob_needs_numeric_values() {
        let values = r#"values = ["64", "1K"]"#;
        let with_memory = |values: &str| format!("{values}\nmemory = 2");
        let experiment = parse_with(values, &with_memory(values)).expect("it works");
        assert_eq!(experiment.knobs[0].bytes_per_unit, Some(2));
        let text_values = r#"values = ["64", "1K", "many"]"#;
        let error =
            parse_with(values, &with_memory(text_values)).expect_err("`many` is not a number");
        assert!(
            error.to_string().contains("`many` is not a number"),
            "{error}"
        );
    }

    #[test]
    fn unknown_keys_are_reported_with_their_line() {
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
            let error = parse_with(from, to).unwrap_err();
            let ExperimentError::Syntax { line: at, error } = &error else {
                panic!("{error}");
            };
            assert!(error.message().contains(&format!("`{key}`")), "{error}");
            assert_eq!(*at, line, "{to}: {error}");
        }
    }

    #[test]
    fn errors_are_reported_with_their_line() {
        assert!(parse_with("mine", "mine").is_ok());
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
            let error = parse_with(from, to).unwrap_err();
            let ExperimentError::InvalidContent {
                line: at,
                situation: message,
                ..
            } = &error
            else {
                panic!("{error}");
            };
            assert!(message.contains(situation), "{to}: {message}");
            assert_eq!(*at, Some(line), "{to}: {error}");
        }
    }
}
