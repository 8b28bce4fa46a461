//! What was asked for: the measuring command, and the knobs that may be turned.

use linerate_tune::knob::{Knob, Set};

use super::refuse;
use crate::args::TuneArgs;
use crate::failure::Failure;
use crate::knobs::Knobs;
use crate::words;

/// The measuring command of the start.
pub fn words_of(args: &TuneArgs) -> Result<Vec<String>, Failure> {
    let round_trips = matches!(args.goal.figure(), "p50" | "p99");
    let Some(host) = &args.host else {
        return refuse(
            "tune",
            "there is no far end",
            "name the host where `linerate server` runs",
        );
    };
    if args.goal.figure() == "pps" && !args.udp {
        return refuse(
            "--goal pps",
            "TCP has no datagrams",
            "add -u, or take another goal",
        );
    }
    let name = if round_trips { "latency" } else { "throughput" };
    let mut words = vec![name.to_owned(), host.clone()];
    if let Some(port) = args.port {
        words.extend(["-p".to_owned(), port.to_string()]);
    }
    if args.udp {
        words.push("-u".to_owned());
    }
    words.extend([
        "-t".to_owned(),
        format!("{}ms", args.time.as_millis().max(1)),
    ]);
    words::add(&mut words, &args.options);
    Ok(words)
}

/// The knobs that are searched.
pub fn knobs_of(args: &TuneArgs, words: &[String], known: &Knobs) -> Result<Vec<Knob>, Failure> {
    known.check_limits()?;
    let mut all = known.all();
    // What is said on the command line is not for us to turn.
    all.retain(|knob| match &knob.set {
        Set::Option(option) => !words::names(words, option),
        Set::StackKey(key) => !words.iter().any(|word| says_key(word, key)),
        _ => true,
    });
    if !args.only.is_empty() {
        let names = known.names();
        if let Some(name) = args.only.iter().find(|name| !names.contains(name)) {
            return refuse(
                &format!("--knobs {name}"),
                "no such knob",
                &format!("choose from {}", names.join(", ")),
            );
        }
        all.retain(|knob| args.only.contains(&knob.name));
    }
    match all.is_empty() {
        true => refuse(
            "--knobs",
            "none of these can be turned here",
            "settings of hosts need a lab or --try-host; options that are given stay as they are",
        ),
        false => Ok(all),
    }
}

/// Whether a word of `--set` is about a key.
fn says_key(word: &str, key: &str) -> bool {
    let word = word.strip_prefix("--set=").unwrap_or(word);
    (word.split(';')).any(|part| part.split_once('=').is_some_and(|(name, _)| name == key))
}
