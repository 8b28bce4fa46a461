//! `linerate runs`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use jiff::{SignedDuration, Timestamp, ToSpan};
use linerate_record::expect::Expectation;
use linerate_stats::units::parse_duration;

use super::heading;

/// `linerate runs`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  linerate runs list                              the latest 20
  linerate runs list --kind latency --since 7d --where 'p99>100us'
  linerate runs show last                         the latest; last~1 is the one before it
  linerate runs tag last baseline
  linerate runs trend goodput --host 10.77.0.2    when goodput changed
  linerate runs export --format csv -o runs.csv

`linerate server` stores a copy of each run whose client stores the record; commands use copies only with --all.

An ID is one that the list shows, a unique start or end of one, or last, last~1, ...
Records are files in $XDG_DATA_HOME/linerate/runs; tags and notes are in the directory marks next to it. A
missing index is rebuilt from them.")]
pub struct RunsArgs {
    /// Action on stored records
    #[command(subcommand)]
    pub action: RunsAction,
}

#[derive(Debug, Subcommand)]
pub enum RunsAction {
    /// List records, newest last
    #[command(after_help = "\
Examples:
  linerate runs list
  linerate runs list --tag baseline --json
  linerate runs list --where 'goodput<9G' --where 'loss>0' --limit 100")]
    List {
        /// Maximum number of records; 0 for all
        #[arg(
            long,
            value_name = "N",
            default_value_t = 20,
            env = "LINERATE_LIMIT_RUNS"
        )]
        limit: usize,
        /// Print one JSON document
        #[arg(long, env = "LINERATE_JSON")]
        json: bool,
        #[command(flatten)]
        selection: RecordSelection,
    },
    /// Print a record as its command printed it, with its tags and notes
    #[command(after_help = "\
Examples:
  linerate runs show last
  linerate runs show 3f9a1c --json")]
    Show {
        /// Record: an id, or last
        id: String,
        /// Print one JSON document
        #[arg(long, env = "LINERATE_JSON")]
        json: bool,
    },
    /// Restore records that `runs rm` removed within a day, with their tags and notes
    #[command(after_help = "\
Examples:
  linerate runs restore                           all that were removed within a day
  linerate runs restore 20261128T014811Z-13e150")]
    Restore {
        /// Records: complete ids, as `runs rm` printed them [default: all]
        #[arg(value_name = "ID")]
        ids: Vec<String>,
        /// Print one JSON document
        #[arg(long, env = "LINERATE_JSON")]
        json: bool,
    },
    /// Remove records, their tags and notes; runs of a set stay; `runs restore` undoes it
    #[command(after_help = "\
Examples:
  linerate runs rm 3f9a1c last
  linerate runs rm --until 90d --all")]
    Rm {
        /// Records: ids, or last
        #[arg(value_name = "ID", required_unless_present_any = ["kind", "host", "tag", "label", "since", "until", "like", "threshold"])]
        ids: Vec<String>,
        /// Only list what would be removed
        #[arg(long, env = "LINERATE_DRY_RUN")]
        dry_run: bool,
        /// Print one JSON document
        #[arg(long, env = "LINERATE_JSON")]
        json: bool,
        #[command(flatten)]
        selection: RecordSelection,
    },
    /// Add tags to a record, or remove them
    #[command(after_help = "\
Examples:
  linerate runs tag last baseline mtu9000
  linerate runs tag last --remove baseline")]
    Tag {
        /// Record: an id, or last
        id: String,
        /// Tags: letters, digits, `-`, `_`, `.`, `:`, `=`, `/`
        #[arg(value_name = "TAG", value_parser = tag, required_unless_present = "remove")]
        tags: Vec<String>,
        /// Tags to remove
        #[arg(
            long,
            value_name = "TAG",
            value_delimiter = ',',
            env = "LINERATE_REMOVE"
        )]
        remove: Vec<String>,
        /// Print one JSON document
        #[arg(long, env = "LINERATE_JSON")]
        json: bool,
    },
    /// Add a note to a record
    #[command(after_help = "\
Examples:
  linerate runs note last 'with the new driver'
  linerate runs note last --clear")]
    Note {
        /// Record: an id, or last
        id: String,
        /// Text of the note
        #[arg(required_unless_present = "clear")]
        text: Option<String>,
        /// Remove the notes of the record
        #[arg(long, env = "LINERATE_CLEAR")]
        clear: bool,
        /// Print one JSON document
        #[arg(long, env = "LINERATE_JSON")]
        json: bool,
    },
    /// Show a figure over time: its levels and where they changed
    #[command(after_help = "\
Examples:
  linerate runs trend p99 --host db1 --since 30d
  linerate runs trend goodput --like last         only runs with the plan of the latest
  linerate runs trend goodput --like last --fail-on-change
  linerate runs trend goodput --html trend.html
  linerate runs trend 'hops=4 size=1024 socket=reused trip'")]
    Trend {
        /// Figure as in --expect: goodput, p50, p99, pps, loss, ...; or, quoted, a figure of an
        /// experiment point: KNOB=VALUE for each knob, and the figure's name
        figure: String,
        /// End with exit code 3 if the latest level differs from the first, 1 if no run matches
        #[arg(long, env = "LINERATE_FAIL_ON_CHANGE")]
        fail_on_change: bool,
        /// Write a page with a chart to FILE
        #[arg(long, value_name = "FILE", env = "LINERATE_HTML")]
        html: Option<PathBuf>,
        /// Print one JSON document
        #[arg(long, env = "LINERATE_JSON")]
        json: bool,
        #[command(flatten)]
        selection: RecordSelection,
    },
    /// Export records: complete as JSON, or one row each as CSV or Parquet
    #[command(after_help = "\
Examples:
  linerate runs export -o all.json                for `runs import`
  linerate runs export last last~1 -o two.json
  linerate runs export --format csv --kind latency -o -
  linerate runs export --format parquet -o runs.parquet")]
    Export {
        /// Records: ids, or last [default: all]
        #[arg(value_name = "ID")]
        ids: Vec<String>,
        /// Format: json, csv or parquet
        #[arg(
            long,
            value_name = "FORMAT",
            default_value = "json",
            env = "LINERATE_FORMAT"
        )]
        format: ExportFormat,
        /// File to write; - for standard output
        #[arg(short, long, value_name = "FILE", env = "LINERATE_OUTPUT")]
        output: PathBuf,
        #[command(flatten)]
        selection: RecordSelection,
    },
    /// Import records of other machines: files of --json, -o or export, or directories of them
    #[command(after_help = "\
Examples:
  linerate runs import all.json
  linerate runs import /mnt/other/linerate/runs --tag other")]
    Import {
        /// Files and directories
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Replace records that exist under the same id
        #[arg(long, env = "LINERATE_REPLACE")]
        replace: bool,
        /// Tags to add to imported records
        #[arg(long, value_name = "TAG", value_delimiter = ',', value_parser = tag, env = "LINERATE_TAG")]
        tag: Vec<String>,
        /// Print one JSON document
        #[arg(long, env = "LINERATE_JSON")]
        json: bool,
    },
}

/// Formats of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// Complete documents with tags and notes
    Json,
    /// One row for each document
    Csv,
    /// Typed, compressed columns with one row for each document
    #[cfg(feature = "parquet")]
    Parquet,
}

/// Filters that select stored records.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = heading::SELECTION)]
pub struct RecordSelection {
    /// Kind of record: throughput, latency, forward, generate, stack, set, or set:KIND (set:sweep,
    /// set:repeat)
    #[arg(
        long,
        value_name = "KIND",
        value_delimiter = ',',
        env = "LINERATE_KIND"
    )]
    pub kind: Vec<String>,
    /// Server as named on the command line, or the name of any host of the run
    #[arg(
        long,
        value_name = "HOST",
        value_delimiter = ',',
        env = "LINERATE_OF_HOST"
    )]
    pub host: Vec<String>,
    /// Records with all of these tags
    #[arg(
        long,
        value_name = "TAG",
        value_delimiter = ',',
        env = "LINERATE_WITH_TAG"
    )]
    pub tag: Vec<String>,
    /// Records with this text in their label
    #[arg(long, value_name = "TEXT", env = "LINERATE_LABEL")]
    pub label: Option<String>,
    /// Records started at this time or later: 7d, 2h, 2026-11-01, or an RFC 3339 time
    #[arg(long, value_name = "WHEN", value_parser = past_time, env = "LINERATE_SINCE")]
    pub since: Option<Timestamp>,
    /// Records started before this time
    #[arg(long, value_name = "WHEN", value_parser = past_time, env = "LINERATE_UNTIL")]
    pub until: Option<Timestamp>,
    /// Records with the same plan as this one
    #[arg(long, value_name = "ID", env = "LINERATE_LIKE")]
    pub like: Option<String>,
    /// Records whose figures meet this ('p99>100us', 'goodput<9G'); repeatable
    #[arg(
        long = "where",
        id = "threshold",
        value_name = "FIGURE<VALUE",
        env = "LINERATE_WHERE"
    )]
    pub threshold: Vec<Expectation>,
    /// Include runs that belong to a set, and a server's copies of runs that their clients stored
    #[arg(long, env = "LINERATE_ALL")]
    pub all: bool,
}

fn tag(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_alphanumeric() || "-_.:=/".contains(c);
    match !text.is_empty() && text.len() <= 64 && text.chars().all(fits) {
        true => Ok(text.to_owned()),
        false => {
            Err("a tag has 1 to 64 letters, digits, `-`, `_`, `.`, `:`, `=` or `/`".to_owned())
        }
    }
}

/// Parses a past time: an age, a day, or an RFC 3339 time.
fn past_time(text: &str) -> Result<Timestamp, String> {
    past_time_at(text, Timestamp::now())
}

fn past_time_at(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    let error =
        || format!("`{text}` is not a time: write 7d, 2h, 2026-11-01 or 2026-11-01T12:00:00Z");
    if let Some(days) = text.strip_suffix('d').or(text.strip_suffix('w')) {
        let days: i64 = days.parse().map_err(|_| error())?;
        let days = if text.ends_with('w') {
            days.saturating_mul(7)
        } else {
            days
        };
        let hours = days.checked_mul(24).ok_or_else(error)?;
        let age = (0..=24 * 365 * 100)
            .contains(&hours)
            .then(|| hours.hours())
            .ok_or_else(error)?;
        return now.checked_sub(age).map_err(|_| error());
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    if let Ok(day) = text.parse::<jiff::civil::Date>() {
        let midnight = day.to_zoned(jiff::tz::TimeZone::system());
        return midnight.map(|time| time.timestamp()).map_err(|_| error());
    }
    let ago = match text.strip_suffix('h').map(str::parse::<i64>) {
        Some(hours) => SignedDuration::from_hours(hours.map_err(|_| error())?),
        None => SignedDuration::try_from(parse_duration(text).map_err(|_| error())?)
            .map_err(|_| error())?,
    };
    now.checked_sub(ago).map_err(|_| error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_past() {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        for (text, expected) in [
            ("7d", "2026-11-14T12:00:00Z"),
            ("1w", "2026-11-14T12:00:00Z"),
            ("2h", "2026-11-21T10:00:00Z"),
            ("30m", "2026-11-21T11:30:00Z"),
            ("2026-11-01T05:00:00Z", "2026-11-01T05:00:00Z"),
        ] {
            assert_eq!(
                past_time_at(text, now),
                Ok(expected.parse().unwrap()),
                "{text}"
            );
        }
        assert!(past_time_at("2026-11-01", now).is_ok());
        for text in ["", "d", "-3d", "yesterday", "99999999999999d", "9999999d"] {
            assert!(past_time_at(text, now).is_err(), "{text}");
        }
        assert!(tag("a-b_c.1:2=3/4").is_ok());
        assert!(tag("a b").is_err() && tag("").is_err());
    }
}
