//! Our statistics against those of another library, on samples from fixed seeds.

use linerate_stats::power::{normal_quantile, normal_tail, student_quantile};
use linerate_stats::rank_tests::{
    hodges_lehmann_center, hodges_lehmann_shift, mann_whitney, signed_rank,
};
use linerate_stats::statistics::{bootstrap_interval, median};
use statrs::distribution::{ContinuousCDF, Normal, StudentsT};
use statrs::statistics::{Data, OrderStatistics, Statistics};
use statrs::stats_tests::Alternative;
use statrs::stats_tests::mannwhitneyu::{MannWhitneyUMethod, mannwhitneyu};

fn normal() -> Normal {
    Normal::new(0.0, 1.0).unwrap()
}

/// Returns a sample of a normal distribution: its quantiles at uniform random numbers.
fn sample(count: usize, middle: f64, seed: u64) -> Vec<f64> {
    let mut random = fastrand::Rng::with_seed(seed);
    let draws = (0..count).map(|_| random.f64().clamp(1e-9, 1.0 - 1e-9));
    draws
        .map(|draw| middle + normal().inverse_cdf(draw))
        .collect()
}

fn assert_close(actual: f64, reference: f64, error: f64, case: &str) {
    assert!(
        (actual - reference).abs() <= error,
        "{case}: {actual}, not {reference}"
    );
}

/// Returns the exact two-sided p-value by enumeration. The library's exact tails exclude the
/// observed value itself.
fn exhaustive_p_value(a: &[f64], b: &[f64]) -> f64 {
    let all: Vec<f64> = a.iter().chain(b).copied().collect();
    let below = |first: &[bool]| {
        let pairs = all.iter().zip(first).filter(|(_, is_first)| **is_first);
        pairs
            .map(|(x, _)| {
                let second_sample = all.iter().zip(first).filter(|(_, is_first)| !**is_first);
                second_sample.filter(|(y, _)| *y < x).count()
            })
            .sum::<usize>()
    };
    let chosen =
        |mask: u32| -> Vec<bool> { (0..all.len()).map(|at| mask >> at & 1 == 1).collect() };
    let observed = below(&chosen((1 << a.len()) - 1));
    let (mut low, mut high, mut draws) = (0, 0, 0);
    for mask in (0..1_u32 << all.len()).filter(|mask| mask.count_ones() as usize == a.len()) {
        let count = below(&chosen(mask));
        low += u32::from(count <= observed);
        high += u32::from(count >= observed);
        draws += 1;
    }
    (2.0 * f64::from(low.min(high)) / f64::from(draws)).min(1.0)
}

#[test]
fn mann_whitney_is_exact_without_ties() {
    for (seed, (a, b)) in [(3, 4), (5, 5), (6, 7), (4, 9), (10, 3)]
        .into_iter()
        .enumerate()
    {
        for middle in [0.0, 0.7, 2.0] {
            let a = sample(a, 0.0, seed as u64);
            let b = sample(b, middle, 100 + seed as u64);
            let actual = mann_whitney(&a, &b).unwrap();
            assert_close(
                actual,
                exhaustive_p_value(&a, &b),
                1e-9,
                &format!("{a:?} {b:?}"),
            );
        }
    }
}

#[test]
fn mann_whitney_of_many_values_with_ties() {
    for seed in 0..4 {
        let rounded = |values: Vec<f64>| -> Vec<f64> {
            values.iter().map(|value| (value * 4.0).round()).collect()
        };
        let a = rounded(sample(80, 0.0, seed));
        let b = rounded(sample(70, 0.3, 50 + seed));
        let method = MannWhitneyUMethod::AsymptoticInclContinuityCorrection;
        let (_, reference) = mannwhitneyu(&a, &b, method, Alternative::TwoSided).unwrap();
        assert_close(mann_whitney(&a, &b).unwrap(), reference, 5e-3, "with ties");
    }
}

/// The distribution of ranks against an enumeration of all signs.
#[test]
fn signed_ranks_are_counted_out() {
    for seed in 0..6 {
        let differences = sample(12, 0.5, seed);
        let mut order: Vec<usize> = (0..differences.len()).collect();
        order.sort_by(|&a, &b| differences[a].abs().total_cmp(&differences[b].abs()));
        let mut rank = vec![0; differences.len()];
        for (position, &at) in order.iter().enumerate() {
            rank[at] = position + 1;
        }
        let all: usize = rank.iter().sum();
        let observed: usize = (0..rank.len())
            .filter(|&at| differences[at] > 0.0)
            .map(|at| rank[at])
            .sum();
        let extreme = observed.min(all - observed);
        let as_extreme = (0..1u32 << rank.len()).filter(|signs| {
            let sum: usize = (0..rank.len())
                .filter(|at| signs >> at & 1 == 1)
                .map(|at| rank[at])
                .sum();
            sum.min(all - sum) <= extreme
        });
        let reference = as_extreme.count() as f64 / f64::from(1u32 << rank.len());
        assert_close(
            signed_rank(&differences).unwrap(),
            reference,
            1e-9,
            "signed ranks",
        );
    }
}

#[test]
fn centre_and_shift_are_medians_of_all_pairs() {
    for seed in 0..6 {
        let (a, b) = (sample(9, 0.0, seed), sample(14, 1.0, 30 + seed));
        let differences = a.iter().flat_map(|a| b.iter().map(move |b| b - a));
        let reference = Data::new(differences.collect::<Vec<f64>>()).median();
        assert_close(
            hodges_lehmann_shift(&a, &b).unwrap(),
            reference,
            1e-12,
            "shift",
        );
        let means = (0..b.len()).flat_map(|i| (i..b.len()).map(move |j| (i, j)));
        let means = means.map(|(i, j)| (b[i] + b[j]) / 2.0);
        let reference = Data::new(means.collect::<Vec<f64>>()).median();
        assert_close(
            hodges_lehmann_center(&b).unwrap(),
            reference,
            1e-12,
            "centre",
        );
        assert_close(
            median(&b).unwrap(),
            Data::new(b.clone()).median(),
            1e-12,
            "median",
        );
    }
}

#[test]
fn tails_and_quantiles() {
    for z in [0.0, 0.5, 1.0, 1.96, 2.9, 3.1, 5.0] {
        assert_close(normal_tail(z), normal().sf(z), 1e-9, "normal tail");
    }
    for tail in [0.4, 0.1, 0.025, 0.006, 0.0025] {
        let reference = normal().inverse_cdf(1.0 - tail);
        assert_close(normal_quantile(tail), reference, 1e-4, "normal quantile");
        for freedom in [3, 7, 12, 30, 100] {
            let student = StudentsT::new(0.0, 1.0, f64::from(freedom)).unwrap();
            let reference = student.inverse_cdf(1.0 - tail);
            let actual = student_quantile(tail, freedom);
            assert_close(
                actual,
                reference,
                2e-3 * reference.max(1.0),
                &format!("t {tail} {freedom}"),
            );
        }
    }
}

/// For normal noise, the bootstrap interval of a mean is close to that of Student's t, which is
/// exact.
#[test]
fn a_bootstrap_interval_is_as_wide_as_theory_says() {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    for seed in 0..6 {
        let values = sample(30, 5.0, seed);
        let actual =
            bootstrap_interval(&[&values], 0.95, |samples| Some(mean(&samples[0]))).unwrap();
        let student = StudentsT::new(0.0, 1.0, 29.0).unwrap();
        let deviation = (&values).std_dev();
        let half_width = student.inverse_cdf(0.975) * deviation / 30f64.sqrt();
        assert_close(actual.median, mean(&values), 1e-12, "the figure itself");
        let width = (actual.high - actual.low) / (2.0 * half_width);
        assert!(
            (0.8..1.2).contains(&width),
            "seed {seed}: {width} of the width of t"
        );
    }
}
