//! `linerate runs`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use jiff::{SignedDuration, Timestamp, ToSpan};
use linerate_metric::expect::Expectation;
use linerate_metric::units::parse_duration;

/// `linerate runs`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  linerate runs list                              the latest 20
  linerate runs list --kind latency --since 7d --where 'p99>100us'
  linerate runs show last                         the latest; last~1 is the one before
  linerate runs tag last baseline
  linerate runs trend goodput --host 10.77.0.2    since when is it slower?
  linerate runs export --format csv -o runs.csv

What `linerate server` keeps of a run is its copy, the client has the record: copies are left out
everywhere but with --all.

An ID is one that the list shows, enough of its beginning or end, or last, last~1, ...
Records are files in $XDG_DATA_HOME/linerate/runs, tags and notes in marks beside it; the index is made
from them whenever it is missing.")]
pub struct RunsArgs {
    /// What to do with stored records
    #[command(subcommand)]
    pub action: RunsAction,
}

/// The actions on stored records.
#[derive(Debug, Subcommand)]
pub enum RunsAction {
    /// List records, the newest last
    #[command(after_help = "\
Examples:
  linerate runs list
  linerate runs list --tag baseline --json
  linerate runs list --where 'goodput<9G' --where 'loss>0' --limit 100")]
    List {
        /// Which
        #[command(flatten)]
        selection: Selection,
        /// The newest N; 0 for all
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
    },
    /// Print a record as the command that made it did, with its tags and notes
    #[command(after_help = "\
Examples:
  linerate runs show last
  linerate runs show 3f9a1c --json")]
    Show {
        /// Which
        id: String,
        /// Print one JSON document
        #[arg(long, env = "LINERATE_JSON")]
        json: bool,
    },
    /// Remove records with their tags and notes; the runs of a set stay
    #[command(after_help = "\
Examples:
  linerate runs rm 3f9a1c last
  linerate runs rm --until 90d --all")]
    Rm {
        /// Which
        #[arg(value_name = "ID", required_unless_present_any = ["kind", "host", "tag", "label", "since", "until", "like", "threshold"])]
        ids: Vec<String>,
        /// Which
        #[command(flatten)]
        selection: Selection,
        /// Only say which
        #[arg(long, env = "LINERATE_DRY_RUN")]
        dry_run: bool,
        /// Print one JSON document
        #[arg(long, env = "LINERATE_JSON")]
        json: bool,
    },
    /// Give records tags, or take tags away
    #[command(after_help = "\
Examples:
  linerate runs tag last baseline mtu9000
  linerate runs tag last --remove baseline")]
    Tag {
        /// Which
        id: String,
        /// Tags: letters, digits, `-`, `_`, `.`, `:`, `=`, `/`
        #[arg(value_name = "TAG", value_parser = tag, required_unless_present = "remove")]
        tags: Vec<String>,
        /// Tags to take away
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
        /// Which
        id: String,
        /// The note
        #[arg(required_unless_present = "clear")]
        text: Option<String>,
        /// Take its notes away
        #[arg(long, env = "LINERATE_CLEAR")]
        clear: bool,
        /// Print one JSON document
        #[arg(long, env = "LINERATE_JSON")]
        json: bool,
    },
    /// Follow a figure over time: its levels, and where they changed
    #[command(after_help = "\
Examples:
  linerate runs trend p99 --host db1 --since 30d
  linerate runs trend goodput --like last         only runs with the plan of the latest
  linerate runs trend goodput --like last --fail-on-change
  linerate runs trend 'hops=4 size=1024 socket=reused trip'")]
    Trend {
        /// A figure as --expect names it: goodput, p50, p99, pps, loss, ...; or, in quotes, one of an
        /// experiment's point: KNOB=VALUE, of each knob, and its name
        figure: String,
        /// Which
        #[command(flatten)]
        selection: Selection,
        /// Exit code 3 when the latest level is not the first; 1 if no run fits
        #[arg(long, env = "LINERATE_FAIL_ON_CHANGE")]
        fail_on_change: bool,
        /// Print one JSON document
        #[arg(long, env = "LINERATE_JSON")]
        json: bool,
    },
    /// Write records to a file: whole as JSON, or a row each as CSV or Parquet
    #[command(after_help = "\
Examples:
  linerate runs export -o all.json                what `runs import` takes
  linerate runs export last last~1 -o two.json
  linerate runs export --format csv --kind latency -o -
  linerate runs export --format parquet -o runs.parquet")]
    Export {
        /// Which; all without any
        #[arg(value_name = "ID")]
        ids: Vec<String>,
        /// Which
        #[command(flatten)]
        selection: Selection,
        /// json, csv or parquet
        #[arg(
            long,
            value_name = "FORM",
            default_value = "json",
            env = "LINERATE_FORMAT"
        )]
        format: ExportForm,
        /// The file; - for standard output
        #[arg(short, long, value_name = "FILE", env = "LINERATE_OUTPUT")]
        output: PathBuf,
    },
    /// Take records of other machines: files of --json, -o, export, or folders of them
    #[command(after_help = "\
Examples:
  linerate runs import all.json
  linerate runs import /mnt/other/linerate/runs --tag other")]
    Import {
        /// The files and folders
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Replace what is here under the same id
        #[arg(long, env = "LINERATE_REPLACE")]
        replace: bool,
        /// Tags for what is taken
        #[arg(long, value_name = "TAG", value_delimiter = ',', value_parser = tag, env = "LINERATE_TAG")]
        tag: Vec<String>,
        /// Print one JSON document
        #[arg(long, env = "LINERATE_JSON")]
        json: bool,
    },
}

/// Forms of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportForm {
    /// Whole documents with tags and notes
    Json,
    /// A row a document
    Csv,
    /// The same with types, compressed
    #[cfg(feature = "parquet")]
    Parquet,
}

/// Which records are meant.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Which")]
pub struct Selection {
    /// throughput, latency, forward, generate, stack, set, or set:KIND (set:sweep, set:repeat)
    #[arg(
        long,
        value_name = "KIND",
        value_delimiter = ',',
        env = "LINERATE_KIND"
    )]
    pub kind: Vec<String>,
    /// The far end as it was named, or the name of a host that took part
    #[arg(
        long,
        value_name = "HOST",
        value_delimiter = ',',
        env = "LINERATE_OF_HOST"
    )]
    pub host: Vec<String>,
    /// Those with all of these tags
    #[arg(
        long,
        value_name = "TAG",
        value_delimiter = ',',
        env = "LINERATE_WITH_TAG"
    )]
    pub tag: Vec<String>,
    /// Those with this in their label
    #[arg(long, value_name = "TEXT", env = "LINERATE_LABEL")]
    pub label: Option<String>,
    /// Started then or later: 7d, 2h, 2026-11-01, or a time of RFC 3339
    #[arg(long, value_name = "WHEN", value_parser = when, env = "LINERATE_SINCE")]
    pub since: Option<Timestamp>,
    /// Started before
    #[arg(long, value_name = "WHEN", value_parser = when, env = "LINERATE_UNTIL")]
    pub until: Option<Timestamp>,
    /// Run with the same plan as this one
    #[arg(long, value_name = "ID", env = "LINERATE_LIKE")]
    pub like: Option<String>,
    /// Those whose figures keep to this ('p99>100us', 'goodput<9G'); repeatable
    #[arg(
        long = "where",
        id = "threshold",
        value_name = "FIGURE<VALUE",
        env = "LINERATE_WHERE"
    )]
    pub threshold: Vec<Expectation>,
    /// Those that belong to a set, and what a server here kept of runs whose clients have their own, too
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

/// A time of the past: how long ago, a day, or a time of RFC 3339.
fn when(text: &str) -> Result<Timestamp, String> {
    at(text, Timestamp::now())
}

fn at(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    let wrong = || format!("`{text}` is no time: write 7d, 2h, 2026-11-01 or 2026-11-01T12:00:00Z");
    if let Some(days) = text.strip_suffix('d').or(text.strip_suffix('w')) {
        let days: i64 = days.parse().map_err(|_| wrong())?;
        let days = if text.ends_with('w') {
            days.saturating_mul(7)
        } else {
            days
        };
        let hours = days.checked_mul(24).ok_or_else(wrong)?;
        let span = (0..=24 * 365 * 100)
            .contains(&hours)
            .then(|| hours.hours())
            .ok_or_else(wrong)?;
        return now.checked_sub(span).map_err(|_| wrong());
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    if let Ok(day) = text.parse::<jiff::civil::Date>() {
        let midnight = day.to_zoned(jiff::tz::TimeZone::system());
        return midnight.map(|time| time.timestamp()).map_err(|_| wrong());
    }
    let ago = match text.strip_suffix('h').map(str::parse::<i64>) {
        Some(hours) => SignedDuration::from_hours(hours.map_err(|_| wrong())?),
        None => SignedDuration::try_from(parse_duration(text).map_err(|_| wrong())?)
            .map_err(|_| wrong())?,
    };
    now.checked_sub(ago).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_past() {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        for (text, want) in [
            ("7d", "2026-11-14T12:00:00Z"),
            ("1w", "2026-11-14T12:00:00Z"),
            ("2h", "2026-11-21T10:00:00Z"),
            ("30m", "2026-11-21T11:30:00Z"),
            ("2026-11-01T05:00:00Z", "2026-11-01T05:00:00Z"),
        ] {
            assert_eq!(at(text, now), Ok(want.parse().unwrap()), "{text}");
        }
        assert!(at("2026-11-01", now).is_ok());
        for text in ["", "d", "-3d", "yesterday", "99999999999999d", "9999999d"] {
            assert!(at(text, now).is_err(), "{text}");
        }
        assert!(tag("a-b_c.1:2=3/4").is_ok());
        assert!(tag("a b").is_err() && tag("").is_err());
    }
}
