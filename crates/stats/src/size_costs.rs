//! Cost of a round trip by message size: a fixed part, a part per byte, and a part per fragment.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::statistics::median;

/// Bootstrap resamples: with more, the bounds change by less than the third digit.
const RESAMPLES: usize = 1_000;

/// Measured medians of round trips of one size.
#[derive(Clone, Debug, PartialEq)]
pub struct SizePoint {
    /// Payload bytes of the request.
    pub bytes: u64,
    /// IP packets of a request of this size.
    pub fragments: u64,
    /// Medians of the parts of the measurement, in ns: their variation gives the error of the fit.
    pub medians: Vec<f64>,
}

/// A cost with its 95 % bootstrap interval.
///
/// The interval comes from the variation between the medians of the parts of a run. It is absent if
/// a run has fewer than three parts: then the error is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CostEstimate {
    /// Cost in ns; never negative.
    pub ns: f64,
    /// Lower bound of the interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low_ns: Option<f64>,
    /// Upper bound of the interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high_ns: Option<f64>,
}

/// Round-trip time as a function of size, by weighted non-negative least squares on the medians.
///
/// Formula: `rtt = fixed + per_byte * bytes + per_fragment * (fragments - 1)`; each median is
/// weighted by its relative error. A request and its response have the same size, so each cost
/// covers both directions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SizeCosts {
    /// Cost of the smallest round trip.
    pub fixed: CostEstimate,
    /// Cost of each payload byte.
    pub per_byte: CostEstimate,
    /// Cost of each IP fragment after the first; absent if the sizes, or the error, do not separate
    /// it from the cost of bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_fragment: Option<CostEstimate>,
    /// True if some sizes have fragments and their cost is included in `per_byte`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fragments_in_bytes: bool,
    /// Root mean square of the residuals, in ns; absent with as many sizes as costs, where the fit
    /// is always exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residual_ns: Option<f64>,
}

/// Returns the IP packets of a UDP payload on a path with this MTU.
///
/// RFC 791: all fragments but the last carry a multiple of 8 bytes after the IP header; IPv6 has a
/// fragment header of 8 bytes in each (RFC 8200 section 4.5).
#[must_use]
pub fn fragment_count(payload_bytes: u64, mtu: u64, ipv6: bool) -> u64 {
    const UDP_HEADER: u64 = 8;
    let (header, fragment_header) = if ipv6 { (40, 8) } else { (20, 0) };
    let packet = payload_bytes + UDP_HEADER;
    if mtu <= header + fragment_header + 8 || packet + header <= mtu {
        return 1;
    }
    let each = (mtu - header - fragment_header) / 8 * 8;
    packet.div_ceil(each)
}

/// Fewest medians of a point that give a spread.
const MIN_MEDIANS_FOR_SPREAD: usize = 3;

/// Smallest relative error of a median: the resolution of the histograms.
const MIN_RELATIVE_ERROR: f64 = 0.001;

/// Standard errors within which a model without fragments is accepted.
const MAX_STANDARD_ERRORS: f64 = 2.0;

/// Fits the costs; `None` with fewer than two sizes, or if a size has no median.
#[must_use]
pub fn size_costs(points: &[SizePoint]) -> Option<SizeCosts> {
    let medians: Vec<f64> = points
        .iter()
        .map(|point| median(&point.medians))
        .collect::<Option<_>>()?;
    let has_spread = points
        .iter()
        .all(|point| point.medians.len() >= MIN_MEDIANS_FOR_SPREAD);
    let errors: Vec<f64> = points.iter().zip(&medians).map(relative_error).collect();
    let line = |medians: &[f64], columns| CostModel::fit(points, medians, &errors, columns);
    let bytes_alone = line(&medians, BYTE_COLUMNS)?;
    let mut best = line(&medians, FRAGMENT_COLUMNS)
        .filter(|line| line.costs[2] > 0.0)
        .filter(|_| !(has_spread && bytes_alone.fits(points, &medians, &errors)))
        .unwrap_or_else(|| bytes_alone.clone());
    let mut drawn = resample(points, &errors, best.columns);
    if has_spread
        && best.columns == FRAGMENT_COLUMNS
        && bootstrap_bounds(&drawn[2], best.costs[2]).0 <= 0.0
    {
        // The interval includes zero: the cost of fragments is not significant.
        best = bytes_alone;
        drawn = resample(points, &errors, best.columns);
    }
    let cost = |column: usize| {
        let ns = best.costs[column];
        let (low, high) = bootstrap_bounds(&drawn[column], ns);
        CostEstimate {
            ns,
            low_ns: has_spread.then_some(low),
            high_ns: has_spread.then_some(high),
        }
    };
    let used = best.costs[..best.columns]
        .iter()
        .filter(|&&cost| cost > 0.0);
    let squares = points
        .iter()
        .zip(&medians)
        .map(|(point, ns)| (ns - best.predict(point)).powi(2));
    let residual_ns = (squares.sum::<f64>() / points.len() as f64).sqrt();
    let fragments = best.columns == FRAGMENT_COLUMNS;
    Some(SizeCosts {
        fixed: cost(0),
        per_byte: cost(1),
        per_fragment: fragments.then(|| cost(2)),
        fragments_in_bytes: !fragments && points.iter().any(|point| point.fragments > 1),
        residual_ns: (points.len() > used.count())
            // Below a picosecond it is rounding error.
            .then_some(if residual_ns < 1e-3 { 0.0 } else { residual_ns }),
    })
}

/// Returns the relative standard error of a point's median, from the variation of its parts.
///
/// Formula: standard deviation of the parts over the square root of their number. A median of
/// normal noise has 1.25 of that, the same factor for all points.
fn relative_error((point, median): (&SizePoint, &f64)) -> f64 {
    let count = point.medians.len() as f64;
    let squares = point.medians.iter().map(|ns| (ns - median).powi(2));
    let deviation = (squares.sum::<f64>() / (count - 1.0).max(1.0)).sqrt();
    (deviation / count.sqrt() / median.max(f64::MIN_POSITIVE)).max(MIN_RELATIVE_ERROR)
}

/// Returns the costs fitted to bootstrap resamples, each list sorted.
fn resample(points: &[SizePoint], errors: &[f64], columns: usize) -> [Vec<f64>; 3] {
    let mut random = fastrand::Rng::with_seed(0x6c69_6e65_7261_7465);
    let mut drawn: [Vec<f64>; 3] = Default::default();
    for _ in 0..RESAMPLES {
        let resampled_medians: Vec<f64> = points
            .iter()
            .map(|point| {
                let parts: Vec<f64> = (0..point.medians.len())
                    .map(|_| point.medians[random.usize(..point.medians.len())])
                    .collect();
                median(&parts).expect("each point has a median")
            })
            .collect();
        let Some(line) = CostModel::fit(points, &resampled_medians, errors, columns) else {
            continue;
        };
        for (all, cost) in drawn.iter_mut().zip(line.costs) {
            all.push(cost);
        }
    }
    for all in &mut drawn {
        all.sort_by(f64::total_cmp);
    }
    drawn
}

/// Returns the 95 % bounds of the resampled costs, extended to include the cost itself.
fn bootstrap_bounds(drawn: &[f64], ns: f64) -> (f64, f64) {
    let at = |share: f64| {
        let index = (drawn.len().saturating_sub(1) as f64 * share).round() as usize;
        drawn.get(index).copied().unwrap_or(ns)
    };
    (at(0.025).min(ns), at(0.975).max(ns))
}

/// Number of costs in a model: without and with fragments.
const BYTE_COLUMNS: usize = 2;
const FRAGMENT_COLUMNS: usize = 3;

fn design_row(point: &SizePoint) -> [f64; 3] {
    [
        1.0,
        point.bytes as f64,
        point.fragments.saturating_sub(1) as f64,
    ]
}

/// A linear cost model.
#[derive(Clone, Debug)]
struct CostModel {
    costs: [f64; 3],
    columns: usize,
}

impl CostModel {
    /// Non-negative least squares; `None` if the sizes do not determine the costs.
    ///
    /// The best non-negative fit is the best unconstrained fit of those costs that are above zero
    /// in it. With three costs, all subsets are tried (conditions: Lawson and Hanson, Solving Least
    /// Squares Problems, chapter 23).
    fn fit(points: &[SizePoint], medians: &[f64], errors: &[f64], columns: usize) -> Option<Self> {
        let weights: Vec<f64> = medians
            .iter()
            .zip(errors)
            .map(|(ns, error)| 1.0 / (ns * error).max(f64::MIN_POSITIVE))
            .collect();
        let all_columns = (1u8 << columns) - 1;
        // Sizes that do not determine all costs are rejected, even if a subset could be fitted.
        solve_weighted(points, medians, &weights, all_columns)?;
        let of = |chosen: u8| {
            let costs = solve_weighted(points, medians, &weights, chosen)?;
            let line = Self { costs, columns };
            costs
                .iter()
                .all(|&cost| cost >= 0.0)
                .then(|| (line.squared_residuals(points, medians, &weights), line))
        };
        let lines = (1..=all_columns).filter_map(of);
        lines
            .min_by(|(a, _), (b, _)| a.total_cmp(b))
            .map(|(_, line)| line)
    }

    fn predict(&self, point: &SizePoint) -> f64 {
        design_row(point)
            .iter()
            .zip(self.costs)
            .map(|(x, cost)| x * cost)
            .sum()
    }

    /// Returns the sum of squared residuals, in units of the errors.
    fn squared_residuals(&self, points: &[SizePoint], medians: &[f64], weights: &[f64]) -> f64 {
        let each = points.iter().zip(medians).zip(weights);
        each.map(|((point, ns), weight)| ((ns - self.predict(point)) * weight).powi(2))
            .sum()
    }

    /// Returns true if no median deviates from the model by more than its error allows.
    fn fits(&self, points: &[SizePoint], medians: &[f64], errors: &[f64]) -> bool {
        let each = points.iter().zip(medians).zip(errors);
        each.into_iter().all(|((point, ns), error)| {
            (ns - self.predict(point)).abs() <= MAX_STANDARD_ERRORS * error * ns
        })
    }
}

/// Weighted least squares for the chosen costs (one bit each; the others are zero) through the
/// normal equations. Columns are scaled to one for good conditioning. `None` if the sizes do not
/// determine the costs.
fn solve_weighted(
    points: &[SizePoint],
    medians: &[f64],
    weights: &[f64],
    chosen: u8,
) -> Option<[f64; 3]> {
    let columns: Vec<usize> = (0..3).filter(|column| chosen >> column & 1 == 1).collect();
    let heaviest = weights.iter().copied().fold(0.0, f64::max);
    let rows: Vec<([f64; 3], f64)> = (points.iter().zip(medians).zip(weights))
        .map(|((point, ns), weight)| {
            let weight = weight / heaviest;
            (design_row(point).map(|x| x * weight), ns * weight)
        })
        .collect();
    let mut scale = [1.0; 3];
    for &column in &columns {
        scale[column] = rows.iter().map(|(row, _)| row[column]).fold(0.0, f64::max);
        if scale[column] == 0.0 {
            return None;
        }
    }
    let mut system = [[0.0; 4]; 3];
    for (row, ns) in &rows {
        for (i, &a) in columns.iter().enumerate() {
            for (j, &b) in columns.iter().enumerate() {
                system[i][j] += row[a] / scale[a] * row[b] / scale[b];
            }
            system[i][3] += row[a] / scale[a] * ns;
        }
    }
    // Gaussian elimination with pivoting; a pivot this small means that two columns are
    // proportional.
    const SINGULAR: f64 = 1e-9;
    let count = columns.len();
    for pivot in 0..count {
        let best = (pivot..count)
            .max_by(|&a, &b| system[a][pivot].abs().total_cmp(&system[b][pivot].abs()))?;
        system.swap(pivot, best);
        if system[pivot][pivot].abs() < SINGULAR {
            return None;
        }
        for other_row in 0..count {
            if other_row == pivot {
                continue;
            }
            let factor = system[other_row][pivot] / system[pivot][pivot];
            let from = system[pivot];
            for (cell, from) in system[other_row].iter_mut().zip(from) {
                *cell -= factor * from;
            }
        }
    }
    let mut costs = [0.0; 3];
    for (i, &column) in columns.iter().enumerate() {
        let cost = system[i][3] / system[i][i] / scale[column];
        // A result within rounding error of zero is zero.
        let noise = 1e-9 * medians.iter().copied().fold(0.0, f64::max) / scale[column];
        costs[column] = if cost.abs() < noise { 0.0 } else { cost };
    }
    Some(costs)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fragment_counts() {
        for (bytes, mtu, ipv6, expected) in [
            (14, 1500, false, 1),
            (1472, 1500, false, 1),
            (1473, 1500, false, 2),
            (5888, 1500, false, 4),
            (5912, 1500, false, 4),
            (5913, 1500, false, 5),
            (65_507, 1500, false, 45),
            (65_507, 65_536, false, 1),
            (32_768, 1500, false, 23),
            (1452, 1500, true, 1),
            (1453, 1500, true, 2),
            (32_768, 1500, true, 23),
            (65_507, 65_535, false, 1),
            (65_507, 20, false, 1),
        ] {
            assert_eq!(
                fragment_count(bytes, mtu, ipv6),
                expected,
                "{bytes} {mtu} {ipv6}"
            );
        }
    }

    fn points(
        costs: [f64; 3],
        sizes: &[u64],
        noise: f64,
        random: &mut fastrand::Rng,
    ) -> Vec<SizePoint> {
        sizes
            .iter()
            .map(|&bytes| {
                let fragments = fragment_count(bytes, 1500, false);
                let exact = costs[0] + costs[1] * bytes as f64 + costs[2] * (fragments - 1) as f64;
                SizePoint {
                    bytes,
                    fragments,
                    medians: (0..10)
                        .map(|_| exact * (1.0 + noise * (random.f64() - 0.5)))
                        .collect(),
                }
            })
            .collect()
    }

    #[test]
    fn costs_that_made_the_data_are_found_again() {
        let mut random = fastrand::Rng::with_seed(3);
        let truth = [10_000.0, 0.25, 1_500.0];
        let costs =
            size_costs(&points(truth, &[64, 1024, 4096, 32_768], 0.02, &mut random)).unwrap();
        let fragment = costs.per_fragment.unwrap();
        for (cost, truth, within) in [
            (costs.fixed, truth[0], 0.03),
            (costs.per_byte, truth[1], 1.0),
            (fragment, truth[2], 0.1),
        ] {
            assert!(
                (cost.ns - truth).abs() <= truth * within,
                "{cost:?} for {truth}"
            );
            assert!(cost.low_ns.unwrap() <= cost.ns && cost.ns <= cost.high_ns.unwrap());
        }
        assert!(costs.residual_ns.unwrap() < 500.0, "{costs:?}");
        assert!(!costs.fragments_in_bytes);
    }

    #[test]
    fn intervals_hold_the_truth_about_as_often_as_they_say() {
        let mut random = fastrand::Rng::with_seed(11);
        let truth = [10_000.0, 0.5, 1_500.0];
        let sizes = [64, 512, 1024, 4096, 16_384, 32_768];
        let covered = (0..60)
            .filter(|_| {
                let costs = size_costs(&points(truth, &sizes, 0.04, &mut random)).unwrap();
                let bounds = costs.fixed.low_ns.unwrap()..=costs.fixed.high_ns.unwrap();
                bounds.contains(&truth[0])
            })
            .count();
        assert!(covered >= 50, "{covered} of 60");
    }

    #[test]
    fn undetermined_costs_are_absent() {
        let mut random = fastrand::Rng::with_seed(5);
        // All sizes fit one packet: the cost of fragments is undetermined.
        let costs =
            size_costs(&points([9_000.0, 1.0, 7.0], &[64, 1024], 0.0, &mut random)).unwrap();
        assert_eq!(
            (costs.per_fragment, costs.fragments_in_bytes),
            (None, false)
        );
        assert_eq!(costs.residual_ns, None, "two sizes, two costs");
        assert!((costs.fixed.ns - 9_000.0).abs() < 1e-3 && (costs.per_byte.ns - 1.0).abs() < 1e-6);
        // Two sizes, one of them fragmented: the columns of bytes and fragments are proportional.
        let two = points([9_000.0, 1.0, 0.0], &[64, 32_768], 0.0, &mut random);
        let costs = size_costs(&two).unwrap();
        assert_eq!((costs.per_fragment, costs.fragments_in_bytes), (None, true));
        assert!(size_costs(&two[..1]).is_none());
        assert!(size_costs(&[]).is_none());
        let mut empty = two;
        empty[0].medians.clear();
        assert!(size_costs(&empty).is_none());
    }

    fn measured(bytes: u64, medians: &[f64]) -> SizePoint {
        SizePoint {
            bytes,
            fragments: fragment_count(bytes, 1500, false),
            medians: medians.to_vec(),
        }
    }

    #[test]
    fn noise_makes_no_cost_negative() {
        // Noise of a lab: plain least squares gives 32.5 ns a byte and -43 us a fragment.
        let costs = size_costs(&[
            measured(64, &[9_000.0, 10_000.0, 30_000.0]),
            measured(1024, &[15_000.0, 41_200.0, 60_000.0]),
            measured(32_768, &[90_000.0, 118_000.0, 140_000.0]),
        ])
        .unwrap();
        assert_eq!(costs.per_fragment, None);
        assert!(costs.fragments_in_bytes);
        assert!((1.0..6.0).contains(&costs.per_byte.ns), "{costs:?}");
        assert!(costs.residual_ns.unwrap() > 1_000.0, "it is no line");
        assert!(costs.per_byte.high_ns > costs.per_byte.low_ns);
    }

    #[test]
    fn one_median_a_size_has_no_error() {
        let costs = size_costs(&[
            measured(64, &[10_800.0]),
            measured(1024, &[11_100.0]),
            measured(32_768, &[60_000.0]),
        ])
        .unwrap();
        for cost in [costs.fixed, costs.per_byte, costs.per_fragment.unwrap()] {
            assert_eq!((cost.low_ns, cost.high_ns), (None, None));
        }
        assert_eq!(costs.residual_ns, None, "three sizes, three costs");
    }

    #[test]
    fn noisier_medians_weigh_less() {
        let steady = [10_000.0, 10_010.0, 9_990.0, 10_000.0];
        let wild = [5_000.0, 14_000.0, 30_000.0, 50_000.0];
        let costs = size_costs(&[
            measured(64, &steady),
            measured(256, &wild),
            measured(1024, &[10_100.0, 10_110.0, 10_090.0, 10_100.0]),
        ])
        .unwrap();
        assert!((costs.fixed.ns - 10_000.0).abs() < 50.0, "{costs:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn noisy_data_gives_costs_that_make_sense(
            fixed in 1e3f64..1e6,
            byte in 0.0f64..10.0,
            fragment in 0.0f64..1e4,
            noise in 0.0f64..1.5,
            seed in any::<u64>(),
            sizes in prop::sample::subsequence(vec![14u64, 64, 512, 1024, 1473, 4096, 32_768, 65_507], 2..=6),
        ) {
            let mut random = fastrand::Rng::with_seed(seed);
            let points = points([fixed, byte, fragment], &sizes, noise, &mut random);
            let found = size_costs(&points).unwrap();
            let mut costs = 2;
            for cost in [Some(found.fixed), Some(found.per_byte), found.per_fragment].into_iter().flatten() {
                prop_assert!(cost.ns >= 0.0 && cost.ns.is_finite(), "{:?}", cost);
                let (low, high) = (cost.low_ns.unwrap(), cost.high_ns.unwrap());
                prop_assert!(0.0 <= low && low <= cost.ns && cost.ns <= high, "{:?}", cost);
            }
            if let Some(fragment) = found.per_fragment {
                costs = 3;
                prop_assert!(fragment.low_ns.unwrap() > 0.0 && sizes.len() > 2, "{:?}", fragment);
            }
            prop_assert!(found.residual_ns.is_some() || sizes.len() <= costs);
            prop_assert!(found.residual_ns.is_none() || sizes.len() > 2 || found.per_byte.ns == 0.0 || found.fixed.ns == 0.0);
            prop_assert_eq!(
                found.fragments_in_bytes,
                found.per_fragment.is_none() && sizes.iter().any(|&bytes| bytes > 1472)
            );
        }

        #[test]
        fn exact_data_gives_exact_costs(fixed in 1e3f64..1e6, byte in 0.0f64..10.0, fragment in 0.0f64..1e4) {
            let mut random = fastrand::Rng::with_seed(1);
            let truth = [fixed, byte, fragment];
            let found = size_costs(&points(truth, &[14, 1024, 8192, 65_507], 0.0, &mut random)).unwrap();
            match found.per_fragment {
                Some(cost) => {
                    prop_assert!((found.fixed.ns - fixed).abs() <= fixed * 1e-6 + 1e-3);
                    prop_assert!((found.per_byte.ns - byte).abs() <= 1e-5);
                    prop_assert!((cost.ns - fragment).abs() <= 2e-2);
                }
                // Fragments may cost the same as their bytes, or almost nothing: the model must fit
                // all the same.
                None => for bytes in [14u64, 1024, 8192, 65_507] {
                    let more = fragment_count(bytes, 1500, false) - 1;
                    let exact = fixed + byte * bytes as f64 + fragment * more as f64;
                    let line = found.fixed.ns + found.per_byte.ns * bytes as f64;
                    prop_assert!((line - exact).abs() <= 0.0021 * exact, "{line} {exact}");
                },
            }
        }
    }
}
