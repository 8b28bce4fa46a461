//! Interleaved pairs, and the selection of those that can be compared.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use linerate_host::doctor::cache_line::{NEAR_LIMIT, measure_cache_line};
use linerate_host::settings::idle_hold::{self, IdleHold};
use linerate_host::steal::StealTicks;
use linerate_stats::statistics::median;
use serde::Serialize;

use crate::bench_env::BenchEnv;
use crate::error::BenchError;
use crate::row::{BenchPeer, BenchRow};

/// Pairs tried per required pair before the machine counts as too unstable.
const MAX_TRIES_PER_PAIR: usize = 3;

/// Failed runs of a row that are tolerated.
const MAX_FAILED_RUNS: usize = 2;

/// Machine state: whether the two cores share a cache at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheLineState {
    /// The round trip of a cache line takes at most 250 ns.
    Near,
    /// The round trip takes longer.
    Far,
}

impl CacheLineState {
    fn from_line_rtt(line_ns: u64) -> Self {
        if u128::from(line_ns) <= NEAR_LIMIT.as_nanos() {
            Self::Near
        } else {
            Self::Far
        }
    }
}

/// Two runs, one right after the other.
#[derive(Clone, Copy, Debug)]
pub struct FigurePair {
    /// Figure of linerate, in the row's unit.
    pub ours: f64,
    /// Figure of the program compared with.
    pub theirs: f64,
    /// Cache-line round trip before, between and after the runs, ns; `None` if it was not measured.
    pub line_rtt_ns: Option<[u64; 3]>,
}

impl FigurePair {
    /// State of the machine; `None` if it changed during the pair.
    fn state(&self) -> Option<CacheLineState> {
        let [before, between, after] = self.line_rtt_ns?.map(CacheLineState::from_line_rtt);
        (before == between && between == after).then_some(before)
    }
}

/// Measurement of a row.
#[derive(Debug)]
pub struct RowMeasurement {
    /// Valid pairs, all of one state.
    pub pairs: Vec<FigurePair>,
    /// State of these pairs; `None` for a row that is not about speed.
    pub state: Option<CacheLineState>,
    /// Number of pairs run.
    pub pairs_tried: usize,
    /// Share of CPU time stolen by the hypervisor, 0 to 1.
    pub steal: Option<f64>,
    /// True if the machine was in the state that the row needs.
    pub is_suitable: bool,
    /// Name of the peer compared with, if there are several.
    pub peer: &'static str,
}

impl RowMeasurement {
    /// Prints the valid pairs.
    pub fn print_pairs(&self) {
        for FigurePair {
            ours,
            theirs,
            line_rtt_ns: line_ns,
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
pub fn measure_row(
    row: &BenchRow,
    env: &BenchEnv,
    wanted_pairs: usize,
) -> Result<RowMeasurement, BenchError> {
    (row.check_requirements)(env)?;
    env.set_default_congestion(row.default_congestion)?;
    let idle_hold = row
        .holds_idle_states
        .then(|| hold_idle_states(env))
        .flatten();
    let peer = select_best_peer(row, env)?;
    let ticks = StealTicks::read();
    let (mut pairs, mut failures) = (Vec::new(), 0);
    if row.is_speed {
        show_progress(row, "warming up");
        (row.measure)(env)?;
        (peer.measure)(env)?;
    }
    let mut line_before = measure_line_rtt(row, env);
    while pairs.len() < wanted_pairs * MAX_TRIES_PER_PAIR
        && dominant_state(&pairs, row).1 < wanted_pairs
    {
        if row.needs_near_state {
            line_before = wait_for_near(row, env, line_before);
        }
        show_progress(row, &format!("pair {}", pairs.len() + 1));
        match run_pair(row, peer, env, pairs.len(), line_before) {
            Ok(pair) => {
                line_before = pair.line_rtt_ns.map(|[_, _, after]| after);
                pairs.push(pair);
            }
            // A single failed run is not significant on a busy machine.
            Err(error @ BenchError::ProgramFailed { .. }) if failures < MAX_FAILED_RUNS => {
                failures += 1;
                env.add_note(format!("repeated a pair: {error}"));
                line_before = measure_line_rtt(row, env);
            }
            Err(error) => return Err(error),
        }
    }
    show_progress(row, "");
    let tried = pairs.len();
    let (mut state, valid_pairs) = dominant_state(&pairs, row);
    let mut is_suitable = idle_hold.is_some() || !row.holds_idle_states;
    if row.needs_near_state && valid_pairs == 0 {
        (state, is_suitable) = (Some(CacheLineState::Far), false);
        env.add_note(format!(
            "{} is not judged: its mark applies to the near state, which none of {tried} pairs reached",
            row.name
        ));
    }
    if row.is_speed {
        pairs.retain(|pair| pair.state().is_some() && pair.state() == state);
    }
    let steal = StealTicks::read()
        .zip(ticks)
        .and_then(|(now, line_before)| now.stolen_fraction_since(&line_before));
    if pairs.is_empty() {
        return Err(BenchError::program_failed(
            "this machine",
            format!("its state changed within each of {tried} pairs: try again"),
        ));
    }
    Ok(RowMeasurement {
        pairs,
        state,
        pairs_tried: tried,
        steal,
        is_suitable,
        peer: peer.name,
    })
}

/// Number of runs per peer in the round that selects the best one.
const RUNS_PER_PEER: usize = 3;

/// Selects the best of the row's peers in a separate round.
fn select_best_peer(row: &BenchRow, env: &BenchEnv) -> Result<&'static BenchPeer, BenchError> {
    let mut available = Vec::new();
    let mut first_reason = None;
    for peer in row.peers {
        match (peer.check_requirements)(env) {
            Ok(()) => available.push((peer, Vec::new())),
            Err(BenchError::Skip { reason }) => {
                env.add_note(format!("without {}: {reason}", peer.name));
                first_reason.get_or_insert(reason);
            }
            Err(error) => return Err(error),
        }
    }
    if let [(single, _)] = available[..] {
        return Ok(single);
    }
    for _ in 0..RUNS_PER_PEER {
        for (peer, values) in &mut available {
            show_progress(row, &format!("selecting the best peer: {}", peer.name));
            match (peer.measure)(env) {
                Ok(value) => values.push(value),
                Err(error @ BenchError::ProgramFailed { .. }) => {
                    env.add_note(format!("{}: {error}", peer.name))
                }
                Err(error) => return Err(error),
            }
        }
    }
    let mut measured: Vec<(f64, &'static BenchPeer)> = available
        .iter()
        .filter_map(|(peer, values)| Some((median(values)?, *peer)))
        .collect();
    measured.sort_by(|a, b| a.0.total_cmp(&b.0));
    if row.mark.more_is_better() {
        measured.reverse();
    }
    let Some(&(_, best)) = measured.first() else {
        return Err(BenchError::skip(
            first_reason.unwrap_or_else(|| "no peer could be measured".to_owned()),
        ));
    };
    let entries: Vec<String> = measured
        .iter()
        .map(|(value, peer)| format!("{} {value:.3}", peer.name))
        .collect();
    env.add_note(format!("best of: {} {}", entries.join(", "), row.unit));
    Ok(best)
}

/// Runs a pair; the order alternates, so that a drift favors neither side.
fn run_pair(
    row: &BenchRow,
    peer: &BenchPeer,
    env: &BenchEnv,
    number: usize,
    before: Option<u64>,
) -> Result<FigurePair, BenchError> {
    let mut slices = Vec::with_capacity(row.slices_per_pair);
    let mut between = None;
    for slice in 0..row.slices_per_pair {
        let ours_first = (number + slice).is_multiple_of(2);
        let (first, second) = if ours_first {
            (row.measure, peer.measure)
        } else {
            (peer.measure, row.measure)
        };
        let first_figure = first(env)?;
        if slice == row.slices_per_pair / 2 {
            between = measure_line_rtt(row, env);
        }
        let second_figure = second(env)?;
        let figures = if ours_first {
            [first_figure, second_figure]
        } else {
            [second_figure, first_figure]
        };
        check_figures(row, peer, figures)?;
        slices.push(figures);
    }
    let after = measure_line_rtt(row, env);
    let [ours, theirs] = side_means(&slices);
    Ok(FigurePair {
        ours,
        theirs,
        line_rtt_ns: match (before, between, after) {
            (Some(before), Some(between), Some(after)) => Some([before, between, after]),
            _ => None,
        },
    })
}

/// Rejects figures of zero, with which there is no ratio.
fn check_figures(
    row: &BenchRow,
    peer: &BenchPeer,
    [ours, theirs]: [f64; 2],
) -> Result<(), BenchError> {
    // A single peer has no name.
    let peer_name = match peer.name {
        "" => row.against,
        name => name,
    };
    for (side, figure) in [("linerate", ours), (peer_name, theirs)] {
        if !(figure.is_finite() && figure > 0.0) {
            let description = format!(
                "transferred nothing in {}: see the pairs with DETAIL=1",
                row.name
            );
            return Err(BenchError::program_failed(side, description));
        }
    }
    Ok(())
}

/// Geometric means of both sides, whose ratio is the mean of the slices' ratios.
fn side_means(slices: &[[f64; 2]]) -> [f64; 2] {
    if let [single] = slices {
        return *single;
    }
    [0, 1].map(|side| {
        let logs = slices.iter().map(|figures| figures[side].ln());
        (logs.sum::<f64>() / slices.len() as f64).exp()
    })
}

fn measure_line_rtt(row: &BenchRow, env: &BenchEnv) -> Option<u64> {
    let [client_cpu, server_cpu] = env.cpus;
    let time = row
        .is_speed
        .then(|| measure_cache_line(client_cpu, server_cpu))
        .flatten()?;
    u64::try_from(time.as_nanos()).ok()
}

fn hold_idle_states(env: &BenchEnv) -> Option<IdleHold> {
    match idle_hold::hold_idle_states() {
        Ok(hold) => Some(hold),
        Err(error) => {
            env.add_note(format!(
                "not judged, because idle states could not be disabled: {error}"
            ));
            None
        }
    }
}

/// Maximum wait before each pair for the near state, in tries of one second.
const MAX_NEAR_WAITS: u32 = 10;

/// Waits for the near state; returns the last round trip of a cache line.
fn wait_for_near(row: &BenchRow, env: &BenchEnv, mut line_rtt: Option<u64>) -> Option<u64> {
    let is_near = |line: u64| u128::from(line) < NEAR_LIMIT.as_nanos();
    for _ in 0..MAX_NEAR_WAITS {
        if line_rtt.is_none_or(is_near) {
            break;
        }
        show_progress(row, "waiting for the near state");
        std::thread::sleep(Duration::from_secs(1));
        line_rtt = measure_line_rtt(row, env);
    }
    line_rtt
}

/// State with the most pairs, or the state required by the mark, with its number of pairs.
fn dominant_state(pairs: &[FigurePair], row: &BenchRow) -> (Option<CacheLineState>, usize) {
    if !row.is_speed {
        return (None, pairs.len());
    }
    let count = |state| {
        let pairs_in_state = pairs.iter().filter(|pair| pair.state() == Some(state));
        pairs_in_state.count()
    };
    let (near, far) = (count(CacheLineState::Near), count(CacheLineState::Far));
    if row.needs_near_state || near >= far {
        (Some(CacheLineState::Near), near)
    } else {
        (Some(CacheLineState::Far), far)
    }
}

/// Shows progress on a terminal, between runs only.
fn show_progress(row: &BenchRow, text: &str) {
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

    fn pair_with(line_ns: [u64; 3]) -> FigurePair {
        FigurePair {
            ours: 1.0,
            theirs: 1.0,
            line_rtt_ns: Some(line_ns),
        }
    }

    #[test]
    fn a_pair_has_a_state_only_when_it_never_changed() {
        for (line_ns, expected) in [
            ([110, 120, 250], Some(CacheLineState::Near)),
            ([500, 480, 251], Some(CacheLineState::Far)),
            ([110, 500, 110], None),
            ([110, 110, 500], None),
        ] {
            assert_eq!(pair_with(line_ns).state(), expected, "{line_ns:?}");
        }
        let unknown = FigurePair {
            line_rtt_ns: None,
            ..pair_with([0; 3])
        };
        assert_eq!(unknown.state(), None);
    }

    #[test]
    fn slices_have_their_mean_ratio() {
        assert_eq!(side_means(&[[0.1, 0.3]]), [0.1, 0.3]);
        // Ratios of 0.5 and 2.
        let [ours, theirs] = side_means(&[[1.0, 2.0], [8.0, 4.0]]);
        assert!((ours / theirs - 1.0).abs() < 1e-12, "{ours} {theirs}");
        assert!((ours - 8f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn the_state_with_most_pairs_is_dominant() {
        let (near, far, both) = (
            pair_with([110; 3]),
            pair_with([500; 3]),
            pair_with([110, 500, 500]),
        );
        let row = |speed, near| BenchRow {
            is_speed: speed,
            needs_near_state: near,
            ..forward::BASE_ROW
        };
        assert_eq!(
            dominant_state(&[near, far, far, both], &row(true, false)),
            (Some(CacheLineState::Far), 2)
        );
        assert_eq!(
            dominant_state(&[near, far, both], &row(true, false)),
            (Some(CacheLineState::Near), 1)
        );
        assert_eq!(
            dominant_state(&[near, far, far], &row(true, true)),
            (Some(CacheLineState::Near), 1)
        );
        assert_eq!(
            dominant_state(&[far], &row(true, true)),
            (Some(CacheLineState::Near), 0)
        );
        assert_eq!(
            dominant_state(&[near, far, both], &row(false, false)),
            (None, 3)
        );
    }
}
