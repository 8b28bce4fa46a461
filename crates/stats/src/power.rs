//! Statistical power: pairs needed to detect a difference in the presence of noise.

use std::f64::consts::PI;

/// Returns the probability of a standard normal value above `z`, for `z >= 0`.
///
/// By the series of the distribution below 3, above by its continued fraction (Abramowitz and
/// Stegun, 26.2.11 and 26.2.14). Error: below 1e-12.
#[must_use]
pub fn normal_tail(z: f64) -> f64 {
    let density = (-z * z / 2.0).exp() / (2.0 * PI).sqrt();
    if z < 3.0 {
        let (mut term, mut sum, mut k) = (z, z, 1.0);
        while term > 1e-17 {
            k += 2.0;
            term *= z * z / k;
            sum += term;
        }
        return (0.5 - density * sum).max(0.0);
    }
    let mut fraction = z;
    for k in (1..=60).rev() {
        fraction = z + f64::from(k) / fraction;
    }
    density / fraction
}

/// Returns the probability of a value of Student's distribution above `t`, for `t >= 0`.
///
/// Closed forms for integer degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4).
fn student_tail(t: f64, degrees: u32) -> f64 {
    let nu = f64::from(degrees);
    let angle = (t / nu.sqrt()).atan();
    let (sine, cosine) = angle.sin_cos();
    let odd = degrees % 2 == 1;
    let mut term = if odd { cosine } else { 1.0 };
    let mut sum = if odd && degrees == 1 { 0.0 } else { term };
    let mut k = if odd { 2.0 } else { 1.0 };
    // Terms up to cosⁿ⁻² of the angle.
    while k + 1.0 < nu {
        term *= cosine * cosine * k / (k + 1.0);
        sum += term;
        k += 2.0;
    }
    let inside = match odd {
        true => 2.0 / PI * (angle + sine * sum),
        false => sine * sum,
    };
    ((1.0 - inside) / 2.0).max(0.0)
}

/// Returns the value that Student's distribution exceeds with probability `tail`, up to one half.
///
/// Degrees of freedom above 300 count as 300, where it equals the normal distribution to the third
/// digit.
#[must_use]
pub fn student_quantile(tail: f64, degrees: u32) -> f64 {
    let degrees = degrees.clamp(1, 300);
    invert_decreasing(tail, |t| student_tail(t, degrees))
}

/// Returns the value that the standard normal distribution exceeds with probability `tail`, up to
/// one half.
#[must_use]
pub fn normal_quantile(tail: f64) -> f64 {
    invert_decreasing(tail, normal_tail)
}

/// Returns the point at which a decreasing function equals `tail`, by bisection.
fn invert_decreasing(tail: f64, decreasing: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while decreasing(high) > tail && high < 1e6 {
        high *= 2.0;
    }
    for _ in 0..80 {
        let middle = f64::midpoint(low, high);
        match decreasing(middle) > tail {
            true => low = middle,
            false => high = middle,
        }
    }
    f64::midpoint(low, high)
}

/// Returns the number of pairs with which a two-sided test at `significance` detects a true
/// difference of `effect` with probability `power`, if differences within pairs have the standard
/// deviation `spread` (in the unit of `effect`).
///
/// n ≥ (t(significance / 2) + t(1 − power))² (spread / effect)², with Student's t for n − 1 degrees
/// of freedom because the spread is itself an estimate. `None` for more than a million pairs, or an
/// effect that is not above zero.
#[must_use]
pub fn pairs_needed(spread: f64, effect: f64, significance: f64, power: f64) -> Option<u64> {
    if !spread.is_finite() || effect <= 0.0 || spread < 0.0 {
        return None;
    }
    // With fewer pairs no result is significant: all signs agree by chance with probability 2 / 2ⁿ.
    let fewest = (2.0 / significance).log2().ceil().max(2.0) as u64;
    let enough = |n: u64| {
        let degrees = u32::try_from(n - 1).unwrap_or(u32::MAX);
        let t =
            student_quantile(significance / 2.0, degrees) + student_quantile(1.0 - power, degrees);
        n as f64 >= t * t * (spread / effect) * (spread / effect)
    };
    let (mut low, mut high) = (fewest, fewest);
    while !enough(high) {
        if high > 1_000_000 {
            return None;
        }
        low = high;
        high *= 2;
    }
    while low < high {
        let middle = u64::midpoint(low, high);
        match enough(middle) {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    Some(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_as_in_tables() {
        for (tail, expected) in [
            (0.5, 0.0),
            (0.025, 1.959_964),
            (0.005, 2.575_829),
            (1e-6, 4.753_424),
        ] {
            let got = normal_quantile(tail);
            assert!((got - expected).abs() < 1e-5, "normal {tail}: {got}");
        }
        for (tail, degrees, expected) in [
            (0.025, 1, 12.7062),
            (0.025, 2, 4.3027),
            (0.025, 3, 3.1824),
            (0.025, 7, 2.3646),
            (0.005, 7, 3.4995),
            (0.025, 10, 2.2281),
            (0.005, 29, 2.7564),
            (0.05, 120, 1.6577),
        ] {
            let got = student_quantile(tail, degrees);
            assert!((got - expected).abs() < 1e-4, "t {tail} {degrees}: {got}");
        }
    }

    #[test]
    fn tails_join_where_the_formula_changes() {
        let (below, above) = (normal_tail(3.0 - 1e-9), normal_tail(3.0));
        assert!((below - above).abs() < 1e-9, "{below} {above}");
        assert!((normal_tail(6.0) - 9.865_9e-10).abs() < 1e-13);
    }

    #[test]
    fn pairs_for_an_effect() {
        // Tables of the paired t test at 5 % and 80 %: an effect of one deviation needs 10 pairs,
        // of half a deviation 34.
        for (spread, expected) in [(1.0, 10..=11), (2.0, 33..=34)] {
            let got = pairs_needed(spread, 1.0, 0.05, 0.8).unwrap();
            assert!(expected.contains(&got), "{spread}: {got}");
        }
        assert_eq!(pairs_needed(0.0, 0.05, 0.01, 0.9), Some(8));
        assert_eq!(pairs_needed(1.0, 0.0, 0.01, 0.9), None);
        assert_eq!(pairs_needed(1.0, 1e-6, 0.01, 0.9), None);
    }
}
