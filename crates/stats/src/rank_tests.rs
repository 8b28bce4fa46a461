//! Rank tests and shifts, which are robust against outliers in one run of ten.
//!
//! Both tests are exact, ties included, up to [`EXACT_VALUES`] values: the distribution is counted
//! over the actual ranks. Beyond that, the normal approximation is used with corrections for ties
//! and for continuity.

use crate::power::normal_tail;

/// Most values for which the distribution of ranks is counted. Beyond it the normal approximation
/// differs by less than the third digit of a p-value.
pub const EXACT_VALUES: usize = 60;

/// Mann-Whitney test of two independent samples: the two-sided probability of ranks at least as
/// uneven if both come from one distribution.
///
/// `None` if a sample is empty. The caller must remove NaN. Source: Mann and Whitney 1947; ties as
/// in Lehmann, Nonparametrics, section 1.4.
#[must_use]
pub fn mann_whitney(a: &[f64], b: &[f64]) -> Option<f64> {
    if a.is_empty() || b.is_empty() {
        return None;
    }
    let all: Vec<f64> = a.iter().chain(b).copied().collect();
    let ranks = doubled_ranks(&all);
    let sum: usize = ranks[..a.len()].iter().sum();
    if all.len() <= EXACT_VALUES {
        let counts = count_sums_of_size(&ranks, a.len());
        return Some(two_sided_probability(&counts, sum));
    }
    let (n, m) = (a.len() as f64, b.len() as f64);
    let total = n + m;
    let mean = n * (total + 1.0) / 2.0;
    let variance = n * m / 12.0 * (total + 1.0 - tie_correction(&ranks) / (total * (total - 1.0)));
    Some(normal_approximation(sum as f64 / 2.0 - mean, variance))
}

/// Wilcoxon's signed-rank test of differences within pairs: the two-sided probability of
/// differences at least as one-sided if both signs are equally likely.
///
/// Differences of zero are skipped; the result is 1 if all are zero. `None` without differences.
/// Source: Wilcoxon 1945. It is the permutation test over all signs, on ranks.
#[must_use]
pub fn signed_rank(differences: &[f64]) -> Option<f64> {
    if differences.is_empty() {
        return None;
    }
    let nonzero: Vec<f64> = differences.iter().copied().filter(|&d| d != 0.0).collect();
    if nonzero.is_empty() {
        return Some(1.0);
    }
    let sizes: Vec<f64> = nonzero.iter().map(|d| d.abs()).collect();
    let ranks = doubled_ranks(&sizes);
    let positive = (ranks.iter().zip(&nonzero)).filter(|(_, difference)| **difference > 0.0);
    let sum: usize = positive.map(|(rank, _)| rank).sum();
    if nonzero.len() <= EXACT_VALUES {
        return Some(two_sided_probability(&count_sums(&ranks), sum));
    }
    let n = nonzero.len() as f64;
    let mean = n * (n + 1.0) / 4.0;
    let variance = n * (n + 1.0) * (2.0 * n + 1.0) / 24.0 - tie_correction(&ranks) / 48.0;
    Some(normal_approximation(sum as f64 / 2.0 - mean, variance))
}

/// Returns Hodges and Lehmann's center of differences within pairs: the median of the pairwise
/// means, each value paired with itself included.
#[must_use]
pub fn hodges_lehmann_center(differences: &[f64]) -> Option<f64> {
    median_in_place(&mut pairwise_means(differences))
}

/// Returns Hodges and Lehmann's shift from `a` to `b`: the median of all differences between their
/// values.
#[must_use]
pub fn hodges_lehmann_shift(a: &[f64], b: &[f64]) -> Option<f64> {
    let mut differences: Vec<f64> = b
        .iter()
        .flat_map(|b| a.iter().map(move |a| b - a))
        .collect();
    median_in_place(&mut differences)
}

/// Returns the median without a full sort.
fn median_in_place(values: &mut [f64]) -> Option<f64> {
    let half = values.len() / 2;
    if values.is_empty() {
        return None;
    }
    let upper = *values.select_nth_unstable_by(half, f64::total_cmp).1;
    match values.len() % 2 {
        1 => Some(upper),
        _ => {
            let lower = values[..half].iter().copied().fold(f64::MIN, f64::max);
            Some(f64::midpoint(lower, upper))
        }
    }
}

/// Returns the spread of differences within pairs: the standard deviation of normal noise that
/// would give their center the same uncertainty.
///
/// From the 68 % interval of the signed-rank test for the center, so that a few outliers change it
/// little. `None` for fewer than four differences.
#[must_use]
pub fn center_spread(differences: &[f64]) -> Option<f64> {
    if differences.len() < 4 {
        return None;
    }
    let mut walsh = pairwise_means(differences);
    walsh.sort_by(f64::total_cmp);
    let n = differences.len() as f64;
    // Lehmann, Nonparametrics, section 4.3: the bounds are the Walsh averages at which the rank sum
    // is one standard deviation from its mean.
    let count = walsh.len() as f64;
    let deviation = (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt();
    let position = ((count / 2.0 - deviation).max(0.0)) as usize;
    let width = walsh[walsh.len() - 1 - position] - walsh[position];
    Some(width / 2.0 * n.sqrt())
}

/// Returns the means of all pairs of values, each value paired with itself included.
fn pairwise_means(values: &[f64]) -> Vec<f64> {
    let mut averages = Vec::with_capacity(values.len() * (values.len() + 1) / 2);
    for (position, &one) in values.iter().enumerate() {
        averages.extend(
            values[position..]
                .iter()
                .map(|&two| f64::midpoint(one, two)),
        );
    }
    averages
}

/// Returns twice the rank of each value, so that the mean rank of ties is an integer.
fn doubled_ranks(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0; values.len()];
    let mut first = 0;
    while first < order.len() {
        let value = values[order[first]];
        let mut next = first + 1;
        while next < order.len() && values[order[next]] == value {
            next += 1;
        }
        for &index in &order[first..next] {
            // Ranks first + 1 to next: their mean, doubled.
            ranks[index] = first + 1 + next;
        }
        first = next;
    }
    ranks
}

/// Returns Σ t³ − t over groups of t equal values.
fn tie_correction(doubled: &[usize]) -> f64 {
    let mut sorted = doubled.to_vec();
    sorted.sort_unstable();
    sorted
        .chunk_by(|a, b| a == b)
        .map(|group| {
            let t = group.len() as f64;
            t * t * t - t
        })
        .sum()
}

/// Returns, for each sum, the number of ways to choose `size` of the ranks.
fn count_sums_of_size(ranks: &[usize], size: usize) -> Vec<f64> {
    let most: usize = ranks.iter().sum();
    let mut counts = vec![vec![0.0; most + 1]; size + 1];
    counts[0][0] = 1.0;
    for &rank in ranks {
        for chosen in (1..=size).rev() {
            let (fewer, this) = counts.split_at_mut(chosen);
            let (fewer, this) = (&fewer[chosen - 1], &mut this[0]);
            for sum in rank..=most {
                this[sum] += fewer[sum - rank];
            }
        }
    }
    counts.swap_remove(size)
}

/// Returns, for each sum, the number of ways to choose any number of the ranks.
fn count_sums(ranks: &[usize]) -> Vec<f64> {
    let most: usize = ranks.iter().sum();
    let mut counts = vec![0.0; most + 1];
    counts[0] = 1.0;
    for &rank in ranks {
        for sum in (rank..=most).rev() {
            counts[sum] += counts[sum - rank];
        }
    }
    counts
}

fn two_sided_probability(counts: &[f64], sum: usize) -> f64 {
    let all: f64 = counts.iter().sum();
    let below: f64 = counts[..=sum].iter().sum();
    let above: f64 = counts[sum..].iter().sum();
    (2.0 * below.min(above) / all).min(1.0)
}

fn normal_approximation(distance: f64, variance: f64) -> f64 {
    if variance <= 0.0 {
        return 1.0;
    }
    // Rank sums are discrete: half a step is the continuity correction.
    let z = (distance.abs() - 0.5).max(0.0) / variance.sqrt();
    (2.0 * normal_tail(z)).min(1.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn assert_close(got: Option<f64>, expected: f64, case: &str) {
        let got = got.unwrap_or(f64::NAN);
        assert!(
            (got - expected).abs() < 1e-4,
            "{case}: {got}, not {expected}"
        );
    }

    #[test]
    fn mann_whitney_as_in_tables() {
        // All of one sample below all of the other: 2 / C(n + m, n).
        assert_close(mann_whitney(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]), 0.1, "3/3");
        assert_close(
            mann_whitney(&[1.0, 2.0, 3.0, 4.0, 5.0], &[6.0, 7.0, 8.0, 9.0, 10.0]),
            2.0 / 252.0,
            "5/5",
        );
        // U = 2 of 5 and 5, the critical value of tables for 5 %: P(U <= 2) = 4 / 252.
        assert_close(
            mann_whitney(&[1.0, 2.0, 3.0, 4.0, 7.0], &[5.0, 6.0, 8.0, 9.0, 10.0]),
            8.0 / 252.0,
            "U = 2",
        );
        assert_close(mann_whitney(&[1.0; 4], &[1.0; 5]), 1.0, "all equal");
        assert_eq!(mann_whitney(&[], &[1.0]), None);
    }

    #[test]
    fn signed_rank_as_in_tables() {
        let ascending: Vec<f64> = (1..=8).map(f64::from).collect();
        assert_close(signed_rank(&ascending), 2.0 / 256.0, "eight of one sign");
        // W = 3 of 8 pairs, the critical value for 5 %: P(W <= 3) = 5 / 256.
        let mut three = ascending.clone();
        three[2] = -3.0;
        assert_close(signed_rank(&three), 10.0 / 256.0, "W = 3 of 8");
        // W = 8 of 10 pairs, the critical value for 5 %: 0.0488.
        let mut eight: Vec<f64> = (1..=10).map(f64::from).collect();
        eight[7] = -8.0;
        assert_close(signed_rank(&eight), 0.048_83, "W = 8 of 10");
        assert_close(signed_rank(&[0.0, 0.0]), 1.0, "no difference at all");
        assert_eq!(signed_rank(&[]), None);
    }

    #[test]
    fn the_approximation_joins_the_exact_counts() {
        let mut random = fastrand::Rng::with_seed(11);
        let values: Vec<f64> = (0..EXACT_VALUES).map(|_| random.f64() - 0.4).collect();
        let exact = signed_rank(&values).unwrap();
        let ranks = doubled_ranks(&values.iter().map(|v| v.abs()).collect::<Vec<_>>());
        let sum: usize = (ranks.iter().zip(&values))
            .filter(|(_, v)| **v > 0.0)
            .map(|(rank, _)| rank)
            .sum();
        let n = values.len() as f64;
        let variance = n * (n + 1.0) * (2.0 * n + 1.0) / 24.0;
        let approximated = normal_approximation(sum as f64 / 2.0 - n * (n + 1.0) / 4.0, variance);
        assert!(
            (exact - approximated).abs() < 2e-3,
            "{exact} {approximated}"
        );

        let (a, b) = (&values[..30], &values[30..]);
        let exact = mann_whitney(a, b).unwrap();
        let ranks = doubled_ranks(&values);
        let sum: usize = ranks[..30].iter().sum();
        let approximated = normal_approximation(
            sum as f64 / 2.0 - 30.0 * 61.0 / 2.0,
            30.0 * 30.0 / 12.0 * 61.0,
        );
        assert!(
            (exact - approximated).abs() < 2e-3,
            "{exact} {approximated}"
        );
    }

    #[test]
    fn centres_shifts_and_spreads() {
        // Walsh averages of 1, 2, 6: 1, 1.5, 2, 3.5, 4, 6.
        assert_eq!(hodges_lehmann_center(&[1.0, 2.0, 6.0]), Some(2.75));
        assert_eq!(hodges_lehmann_shift(&[1.0, 2.0], &[11.0, 13.0]), Some(10.5));
        let mut random = fastrand::Rng::with_seed(3);
        // The sum of twelve uniform numbers is close to normal, with standard deviation 1.
        let mut normal = || (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        let values: Vec<f64> = (0..400).map(|_| normal()).collect();
        let spread = center_spread(&values).unwrap();
        assert!((0.9..1.15).contains(&spread), "{spread}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_probability_is_one(a in prop::collection::vec(-5i8..5, 1..40), b in prop::collection::vec(-5i8..5, 1..40)) {
            let a: Vec<f64> = a.into_iter().map(f64::from).collect();
            let b: Vec<f64> = b.into_iter().map(f64::from).collect();
            for p in [mann_whitney(&a, &b), mann_whitney(&b, &a), signed_rank(&a)] {
                let p = p.unwrap();
                prop_assert!((0.0..=1.0).contains(&p), "{}", p);
            }
            let (one, other) = (mann_whitney(&a, &b).unwrap(), mann_whitney(&b, &a).unwrap());
            prop_assert!((one - other).abs() < 1e-9);
        }

        #[test]
        fn signs_counted_one_by_one(values in prop::collection::vec(-6i8..6, 1..9)) {
            let values: Vec<f64> = values.into_iter().map(f64::from).filter(|v| *v != 0.0).collect();
            prop_assume!(!values.is_empty());
            let ranks = doubled_ranks(&values.iter().map(|v| v.abs()).collect::<Vec<_>>());
            let sum_of = |signs: usize| -> usize {
                ranks.iter().enumerate().filter(|(n, _)| signs >> n & 1 == 1).map(|(_, r)| r).sum()
            };
            let own = values.iter().enumerate().map(|(n, v)| usize::from(*v > 0.0) << n).sum();
            let sum = sum_of(own);
            let all = 1usize << values.len();
            let below = (0..all).filter(|&signs| sum_of(signs) <= sum).count();
            let above = (0..all).filter(|&signs| sum_of(signs) >= sum).count();
            let want = (2.0 * below.min(above) as f64 / all as f64).min(1.0);
            prop_assert!((signed_rank(&values).unwrap() - want).abs() < 1e-9);
        }
    }
}
