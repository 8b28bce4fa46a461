//! Reduction of points without visible change: each pixel column keeps its extremes.

/// Keeps at most four points per column: first, lowest, highest and last, in their order.
///
/// `points` ascend in x. A line through the result covers the same pixels as one through all
/// points.
pub(crate) fn reduce_line(points: &[(f64, f64)], columns: usize) -> Vec<(f64, f64)> {
    if points.len() <= columns * 2 {
        return points.to_vec();
    }
    let mut reduced = Vec::with_capacity(columns * 4);
    for column_points in by_column(points, columns, |point| point.0) {
        let lowest = position_of_extreme(column_points, |a, b| a < b);
        let highest = position_of_extreme(column_points, |a, b| a > b);
        let mut positions = [0, lowest, highest, column_points.len() - 1];
        positions.sort_unstable();
        let mut last = usize::MAX;
        for position in positions {
            if position != last {
                reduced.push(column_points[position]);
            }
            last = position;
        }
    }
    reduced
}

/// Reduces spans to lowest, mean and highest value per column.
pub(crate) fn reduce_spans(
    values: &[(f64, f64, f64)],
    columns: usize,
) -> Vec<(f64, f64, f64, f64)> {
    by_column(values, columns, |span| span.0)
        .map(|column_points| {
            let (first, last) = (column_points[0], column_points[column_points.len() - 1]);
            let mean =
                column_points.iter().map(|span| span.2).sum::<f64>() / column_points.len() as f64;
            let lowest = column_points
                .iter()
                .map(|span| span.2)
                .fold(f64::INFINITY, f64::min);
            let highest = column_points
                .iter()
                .map(|span| span.2)
                .fold(f64::NEG_INFINITY, f64::max);
            (f64::midpoint(first.0, last.1), lowest, mean, highest)
        })
        .collect()
}

/// Splits points by column; empty columns are left out.
fn by_column<T>(
    points: &[T],
    columns: usize,
    x: impl Fn(&T) -> f64 + Copy,
) -> impl Iterator<Item = &[T]> {
    let low = points.first().map_or(0.0, x);
    let high = points.last().map_or(0.0, x);
    let width = ((high - low) / columns as f64).max(f64::MIN_POSITIVE);
    let column = move |point: &T| ((x(point) - low) / width).floor() as usize;
    points.chunk_by(move |a, b| column(a).min(columns - 1) == column(b).min(columns - 1))
}

fn position_of_extreme(column_points: &[(f64, f64)], better: impl Fn(f64, f64) -> bool) -> usize {
    let mut best = 0;
    for (position, point) in column_points.iter().enumerate() {
        if better(point.1, column_points[best].1) {
            best = position;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_million_points_become_few_and_keep_their_spike() {
        let mut points: Vec<_> = (0..1_000_000).map(|n| (f64::from(n), 1.0)).collect();
        points[654_321].1 = 99.0;
        let reduced = reduce_line(&points, 800);
        assert!(reduced.len() <= 3_200, "{}", reduced.len());
        assert!(reduced.contains(&(654_321.0, 99.0)));
    }

    proptest! {
        #[test]
        fn extremes_and_order_are_kept(values in prop::collection::vec(-1e6f64..1e6, 1..3_000), columns in 1usize..50) {
            let points: Vec<_> = values.iter().enumerate().map(|(n, &v)| (n as f64, v)).collect();
            let kept = reduce_line(&points, columns);
            let extremes = |points: &[(f64, f64)]| {
                points.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), point| {
                    (low.min(point.1), high.max(point.1))
                })
            };
            prop_assert_eq!(extremes(&kept), extremes(&points));
            prop_assert!(kept.windows(2).all(|pair| pair[0].0 < pair[1].0));
            prop_assert!(kept.len() <= points.len());
            prop_assert_eq!(kept.last(), points.last());
        }
    }
}
