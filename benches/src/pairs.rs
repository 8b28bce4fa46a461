//! Interleaved pairs, and the selection of those that can be compared.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use linerate_host::doctor::cache_line::{NEAR_BELOW, cache_line_round_trip};
use linerate_host::settings::idle_hold::{IdleHold, idle_hold};
use linerate_host::steal::Ticks;
use linerate_metric::statistics::median;
use serde::Serialize;

use crate::bench_env::Ground;
use crate::error::Trouble;
use crate::row::{Peer, Row};

/// Pairs tried per required pair before the machine counts as too unstable.
const PATIENCE: usize = 3;

/// Failed runs of a row that are tolerated.
const FAILURES: usize = 2;

/// Machine state: whether the two cores share a cache at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The round trip of a cache line takes at most 250 ns.
    Near,
    /// The round trip takes longer.
    Far,
}

impl State {
    fn of(line_ns: u64) -> Self {
        if u128::from(line_ns) <= NEAR_BELOW.as_nanos() {
            Self::Near
        } else {
            Self::Far
        }
    }
}

/// Two runs, one right after the other.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// Figure of linerate, in the row's unit.
    pub ours: f64,
    /// Figure of the program compared with.
    pub theirs: f64,
    /// Cache-line round trip before, between and after the runs, ns; `None` if it was not measured.
    pub line_ns: Option<[u64; 3]>,
}

impl Pair {
    /// State of the machine; `None` if it changed during the pair.
    fn state(&self) -> Option<State> {
        let [before, between, after] = self.line_ns?.map(State::of);
        (before == between && between == after).then_some(before)
    }
}

/// Measurement of a row.
#[derive(Debug)]
pub struct Measured {
    /// Valid pairs, all of one state.
    pub pairs: Vec<Pair>,
    /// State of these pairs; `None` for a row that is not about speed.
    pub state: Option<State>,
    /// Number of pairs run.
    pub tried: usize,
    /// Share of CPU time stolen by the hypervisor, 0 to 1.
    pub steal: Option<f64>,
    /// True if the machine was in the state that the row needs.
    pub fit: bool,
    /// Name of the peer compared with, if there are several.
    pub peer: &'static str,
}

impl Measured {
    /// Prints the valid pairs.
    pub fn print_pairs(&self) {
        for Pair {
            ours,
            theirs,
            line_ns,
        } in &self.pairs
        {
            println!(
                "  {ours:>10.3} / {theirs:>10.3} = {:.3}  {:?}",
                ours / theirs,
                line_ns.unwrap_or_default(),
            );
        }
    }
}

/// Measures a row until there are enough pairs of one state.
pub fn run(row: &Row, ground: &Ground, wanted: usize) -> Result<Measured, Trouble> {
    (row.needs)(ground)?;
    ground.default_to(row.control)?;
    let hold = row.held.then(|| hold(ground)).flatten();
    let peer = best(row, ground)?;
    let ticks = Ticks::now();
    let (mut pairs, mut failures) = (Vec::new(), 0);
    if row.speed {
        show(row, "warming up");
        (row.ours)(ground)?;
        (peer.run)(ground)?;
    }
    let mut before = line(row, ground);
    while pairs.len() < wanted * PATIENCE && largest(&pairs, row).1 < wanted {
        if row.near {
            before = near_line(row, ground, before);
        }
        show(row, &format!("pair {}", pairs.len() + 1));
        match pair(row, peer, ground, pairs.len(), before) {
            Ok(pair) => {
                before = pair.line_ns.map(|[_, _, after]| after);
                pairs.push(pair);
            }
            // A single failed run is not significant on a busy machine.
            Err(error @ Trouble::Program { .. }) if failures < FAILURES => {
                failures += 1;
                ground.note(format!("repeated a pair: {error}"));
                before = line(row, ground);
            }
            Err(error) => return Err(error),
        }
    }
    show(row, "");
    let tried = pairs.len();
    let (mut state, counted) = largest(&pairs, row);
    let mut fit = hold.is_some() || !row.held;
    if row.near && counted == 0 {
        (state, fit) = (Some(State::Far), false);
        ground.note(format!(
            "{} is not judged: its mark applies to the near state, which none of {tried} pairs reached",
            row.name
        ));
    }
    if row.speed {
        pairs.retain(|pair| pair.state().is_some() && pair.state() == state);
    }
    let steal = Ticks::now()
        .zip(ticks)
        .and_then(|(now, before)| now.stolen_since(&before));
    if pairs.is_empty() {
        return Err(Trouble::program(
            "this machine",
            format!("its state changed within each of {tried} pairs: try again"),
        ));
    }
    Ok(Measured {
        pairs,
        state,
        tried,
        steal,
        fit,
        peer: peer.name,
    })
}

/// Number of runs per peer in the round that selects the best one.
const CHOOSING: usize = 3;

/// Selects the best of the row's peers in a separate round.
fn best(row: &Row, ground: &Ground) -> Result<&'static Peer, Trouble> {
    let mut able = Vec::new();
    let mut why = None;
    for peer in row.theirs {
        match (peer.needs)(ground) {
            Ok(()) => able.push((peer, Vec::new())),
            Err(Trouble::Skip { why: lacking }) => {
                ground.note(format!("without {}: {lacking}", peer.name));
                why.get_or_insert(lacking);
            }
            Err(error) => return Err(error),
        }
    }
    if let [(only, _)] = able[..] {
        return Ok(only);
    }
    for _ in 0..CHOOSING {
        for (peer, values) in &mut able {
            show(row, &format!("selecting the best peer: {}", peer.name));
            match (peer.run)(ground) {
                Ok(value) => values.push(value),
                Err(error @ Trouble::Program { .. }) => {
                    ground.note(format!("{}: {error}", peer.name))
                }
                Err(error) => return Err(error),
            }
        }
    }
    let mut measured: Vec<(f64, &'static Peer)> = able
        .iter()
        .filter_map(|(peer, values)| Some((median(values)?, *peer)))
        .collect();
    measured.sort_by(|a, b| a.0.total_cmp(&b.0));
    if row.mark.more_is_better() {
        measured.reverse();
    }
    let Some(&(_, best)) = measured.first() else {
        return Err(Trouble::skip(
            why.unwrap_or_else(|| "no peer could be measured".to_owned()),
        ));
    };
    let words: Vec<String> = measured
        .iter()
        .map(|(value, peer)| format!("{} {value:.3}", peer.name))
        .collect();
    ground.note(format!("best of: {} {}", words.join(", "), row.unit));
    Ok(best)
}

/// Runs a pair; the order alternates, so that a drift favors neither side.
fn pair(
    row: &Row,
    peer: &Peer,
    ground: &Ground,
    number: usize,
    before: Option<u64>,
) -> Result<Pair, Trouble> {
    let mut slices = Vec::with_capacity(row.slices);
    let mut between = None;
    for slice in 0..row.slices {
        let ours_first = (number + slice).is_multiple_of(2);
        let (first, second) = if ours_first {
            (row.ours, peer.run)
        } else {
            (peer.run, row.ours)
        };
        let one = first(ground)?;
        if slice == row.slices / 2 {
            between = line(row, ground);
        }
        let last = second(ground)?;
        let both = if ours_first { [one, last] } else { [last, one] };
        check(row, peer, both)?;
        slices.push(both);
    }
    let after = line(row, ground);
    let [ours, theirs] = geometric_means(&slices);
    Ok(Pair {
        ours,
        theirs,
        line_ns: match (before, between, after) {
            (Some(before), Some(between), Some(after)) => Some([before, between, after]),
            _ => None,
        },
    })
}

/// Rejects figures of zero, with which there is no ratio.
fn check(row: &Row, peer: &Peer, [ours, theirs]: [f64; 2]) -> Result<(), Trouble> {
    // A single peer has no name.
    let other = match peer.name {
        "" => row.against,
        name => name,
    };
    for (side, figure) in [("linerate", ours), (other, theirs)] {
        if !(figure.is_finite() && figure > 0.0) {
            let what = format!(
                "transferred nothing in {}: see the pairs with DETAIL=1",
                row.name
            );
            return Err(Trouble::program(side, what));
        }
    }
    Ok(())
}

/// Geometric means of both sides, whose ratio is the mean of the slices' ratios.
fn geometric_means(slices: &[[f64; 2]]) -> [f64; 2] {
    if let [only] = slices {
        return *only;
    }
    [0, 1].map(|side| {
        let logs = slices.iter().map(|both| both[side].ln());
        (logs.sum::<f64>() / slices.len() as f64).exp()
    })
}

fn line(row: &Row, ground: &Ground) -> Option<u64> {
    let [near, far] = ground.cpus;
    let time = row
        .speed
        .then(|| cache_line_round_trip(near, far))
        .flatten()?;
    u64::try_from(time.as_nanos()).ok()
}

fn hold(ground: &Ground) -> Option<IdleHold> {
    match idle_hold() {
        Ok(hold) => Some(hold),
        Err(error) => {
            ground.note(format!(
                "not judged, because idle states could not be disabled: {error}"
            ));
            None
        }
    }
}

/// Maximum wait before each pair for the near state, in tries of one second.
const NEAR_WAITS: u32 = 10;

/// Waits for the near state; returns the last round trip of a cache line.
fn near_line(row: &Row, ground: &Ground, mut now: Option<u64>) -> Option<u64> {
    let is_near = |line: u64| u128::from(line) < NEAR_BELOW.as_nanos();
    for _ in 0..NEAR_WAITS {
        if now.is_none_or(is_near) {
            break;
        }
        show(row, "waiting for the near state");
        std::thread::sleep(Duration::from_secs(1));
        now = line(row, ground);
    }
    now
}

/// State with the most pairs, or the state required by the mark, with its number of pairs.
fn largest(pairs: &[Pair], row: &Row) -> (Option<State>, usize) {
    if !row.speed {
        return (None, pairs.len());
    }
    let count = |state| {
        let of_it = pairs.iter().filter(|pair| pair.state() == Some(state));
        of_it.count()
    };
    let (near, far) = (count(State::Near), count(State::Far));
    if row.near || near >= far {
        (Some(State::Near), near)
    } else {
        (Some(State::Far), far)
    }
}

/// Shows progress on a terminal, between runs only.
fn show(row: &Row, text: &str) {
    let mut out = std::io::stderr();
    if out.is_terminal() {
        let line = if text.is_empty() {
            String::new()
        } else {
            format!("{}: {text}", row.name)
        };
        let _ = write!(out, "\r{line:<60}\r");
        let _ = out.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::forward;

    fn pair(line_ns: [u64; 3]) -> Pair {
        Pair {
            ours: 1.0,
            theirs: 1.0,
            line_ns: Some(line_ns),
        }
    }

    #[test]
    fn a_pair_has_a_state_only_when_it_never_changed() {
        for (line_ns, want) in [
            ([110, 120, 250], Some(State::Near)),
            ([500, 480, 251], Some(State::Far)),
            ([110, 500, 110], None),
            ([110, 110, 500], None),
        ] {
            assert_eq!(pair(line_ns).state(), want, "{line_ns:?}");
        }
        let unknown = Pair {
            line_ns: None,
            ..pair([0; 3])
        };
        assert_eq!(unknown.state(), None);
    }

    #[test]
    fn slices_come_to_their_mean_ratio() {
        assert_eq!(geometric_means(&[[0.1, 0.3]]), [0.1, 0.3]);
        // Ratios of 0.5 and 2.
        let [ours, theirs] = geometric_means(&[[1.0, 2.0], [8.0, 4.0]]);
        assert!((ours / theirs - 1.0).abs() < 1e-12, "{ours} {theirs}");
        assert!((ours - 8f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn the_state_with_most_pairs_is_told() {
        let (near, far, both) = (pair([110; 3]), pair([500; 3]), pair([110, 500, 500]));
        let row = |speed, near| Row {
            speed,
            near,
            ..forward::BASE
        };
        assert_eq!(
            largest(&[near, far, far, both], &row(true, false)),
            (Some(State::Far), 2)
        );
        assert_eq!(
            largest(&[near, far, both], &row(true, false)),
            (Some(State::Near), 1)
        );
        assert_eq!(
            largest(&[near, far, far], &row(true, true)),
            (Some(State::Near), 1)
        );
        assert_eq!(largest(&[far], &row(true, true)), (Some(State::Near), 0));
        assert_eq!(largest(&[near, far, both], &row(false, false)), (None, 3));
    }
}
