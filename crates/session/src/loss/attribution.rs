//! Attribution of lost datagrams to loss points, within the bounds of their counters.

use linerate_record::ids::LossPoint;

/// Bounds of the losses at one loss point, in datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossBounds {
    pub point: LossPoint,
    /// Lower bound.
    pub least: u64,
    /// Upper bound; `u64::MAX` for none.
    pub most: u64,
    /// The counter covers only this run's datagrams, no other packets.
    pub run_only: bool,
}

/// Losses attributed to one loss point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossShare {
    pub point: LossPoint,
    /// Datagrams; the sum over all points is the total loss.
    pub packets: u64,
    /// Lower bound.
    pub least: u64,
    /// Upper bound.
    pub most: u64,
}

/// Splits `lost` datagrams among loss points.
///
/// With a fully visible path (`closed`), losses are distributed in proportion to the bounds, and
/// the remainder goes to [`LossPoint::Path`]. Otherwise the counters are upper bounds, used up in
/// the order of the path, and [`LossPoint::Path`] gets the rest. The shares always add up to
/// `lost`.
#[must_use]
pub fn attribute_losses(lost: u64, candidates: &[LossBounds], closed: bool) -> Vec<LossShare> {
    let mut points: Vec<LossBounds> = candidates
        .iter()
        .map(|candidate| LossBounds {
            least: candidate.least.min(candidate.most),
            ..*candidate
        })
        .collect();
    // Wide: an upper bound may be `u64::MAX`.
    let sum = |points: &[LossBounds], value: fn(&LossBounds) -> u64| {
        points
            .iter()
            .map(|point| u128::from(value(point)))
            .sum::<u128>()
    };
    let all = u128::from(lost);
    // Remainder of all losses; at most `lost`, so it fits.
    let remainder = |used: u128| u64::try_from(all.saturating_sub(used)).unwrap_or(lost);
    let run_only: Vec<_> = points
        .iter()
        .copied()
        .filter(|point| point.run_only)
        .collect();
    // Other packets, such as the control connection's, were counted too.
    let other_packets = sum(&points, |point| point.least).saturating_sub(all);
    let other_packets = u64::try_from(other_packets).unwrap_or(u64::MAX);
    for point in points.iter_mut().filter(|point| !point.run_only) {
        point.least = point.least.saturating_sub(other_packets);
    }
    let unexplained = remainder(sum(&points, |point| point.most));
    let path = match closed {
        true => (unexplained, unexplained),
        // The path has no counter: it can have all but what is certain elsewhere.
        false => (unexplained, remainder(sum(&run_only, |point| point.least))),
    };
    points.push(LossBounds {
        point: LossPoint::Path,
        least: path.0,
        most: path.1,
        run_only: false,
    });
    let (all_least, all_most) = (
        sum(&points, |point| point.least),
        sum(&points, |point| point.most),
    );
    let mut shares: Vec<LossShare> = points
        .iter()
        .map(|point| {
            // Bounds of the other points also bound this one.
            let most = point
                .most
                .min(remainder(all_least - u128::from(point.least)));
            let least = point
                .least
                .max(remainder(all_most - u128::from(point.most)));
            let least = least.min(most);
            LossShare {
                point: point.point,
                packets: least,
                least,
                most,
            }
        })
        .collect();
    distribute_rest(lost, &mut shares, closed);
    shares.retain(|share| share.packets > 0 || share.most > 0);
    shares
}

/// Distributes losses above the lower bounds: in proportion to the upper bounds, or to the first
/// point with capacity left.
fn distribute_rest(lost: u64, shares: &mut [LossShare], closed: bool) {
    let mut assigned = 0;
    for entry in shares.iter_mut() {
        // Contradicting bounds must not exceed the total.
        entry.packets = entry.packets.min(lost - assigned);
        assigned += entry.packets;
    }
    let mut rest = lost - assigned;
    let mut capacity: u128 = shares
        .iter()
        .map(|entry| u128::from(entry.most.saturating_sub(entry.packets)))
        .sum();
    for entry in shares.iter_mut() {
        let headroom = entry.most.saturating_sub(entry.packets);
        let assigned_now = if capacity == 0 {
            0
        } else if closed {
            (u128::from(rest) * u128::from(headroom) / capacity) as u64
        } else {
            headroom.min(rest)
        };
        entry.packets += assigned_now;
        rest -= assigned_now;
        capacity -= u128::from(headroom);
    }
    // No known point can have the rest.
    if let Some(path) = shares.last_mut() {
        path.packets += rest;
        path.most = path.most.max(path.packets);
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::ids::LossPoint;

    use super::*;
    use proptest::prelude::*;

    fn bounds(point: LossPoint, least: u64, most: u64) -> LossBounds {
        LossBounds {
            point,
            least,
            most,
            run_only: false,
        }
    }

    fn exact(point: LossPoint, packets: u64) -> LossBounds {
        LossBounds {
            run_only: true,
            ..bounds(point, packets, packets)
        }
    }

    /// Returns `(point, packets, exact)` of points with losses.
    fn shares(lost: u64, candidates: &[LossBounds], closed: bool) -> Vec<(LossPoint, u64, bool)> {
        attribute_losses(lost, candidates, closed)
            .into_iter()
            .filter(|share| share.packets > 0)
            .map(|share| (share.point, share.packets, share.least == share.most))
            .collect()
    }

    #[test]
    fn with_a_visible_path_everything_is_exact() {
        for (lost, candidates, expected) in [
            (0, vec![bounds(LossPoint::Qdisc, 0, 0)], vec![]),
            (
                12,
                vec![
                    bounds(LossPoint::Qdisc, 5, 5),
                    exact(LossPoint::UdpReceiveQueue, 7),
                ],
                vec![
                    (LossPoint::Qdisc, 5, true),
                    (LossPoint::UdpReceiveQueue, 7, true),
                ],
            ),
            // Two packets of the control connection were dropped, too.
            (
                12,
                vec![
                    bounds(LossPoint::Qdisc, 7, 7),
                    exact(LossPoint::UdpReceiveQueue, 7),
                ],
                vec![
                    (LossPoint::Qdisc, 5, true),
                    (LossPoint::UdpReceiveQueue, 7, true),
                ],
            ),
            // Super-datagrams of up to 44: the total determines the factor.
            (
                100,
                vec![
                    bounds(LossPoint::Qdisc, 3, 132),
                    exact(LossPoint::UdpReceiveQueue, 7),
                ],
                vec![
                    (LossPoint::Qdisc, 93, true),
                    (LossPoint::UdpReceiveQueue, 7, true),
                ],
            ),
            // Two points with super-datagrams: only the sum is certain.
            (
                100,
                vec![
                    bounds(LossPoint::Qdisc, 10, 100),
                    bounds(LossPoint::SoftnetBacklog, 10, 100),
                ],
                vec![
                    (LossPoint::Qdisc, 50, false),
                    (LossPoint::SoftnetBacklog, 50, false),
                ],
            ),
            // No point can have lost so many.
            (
                50,
                vec![bounds(LossPoint::Qdisc, 10, 10)],
                vec![(LossPoint::Qdisc, 10, true), (LossPoint::Path, 40, true)],
            ),
        ] {
            assert_eq!(
                shares(lost, &candidates, true),
                expected,
                "{lost} {candidates:?}"
            );
        }
    }

    #[test]
    fn elsewhere_shared_counters_are_upper_bounds() {
        for (lost, candidates, expected) in [
            (
                100,
                vec![exact(LossPoint::UdpReceiveQueue, 60)],
                vec![
                    (LossPoint::UdpReceiveQueue, 60, true),
                    (LossPoint::Path, 40, true),
                ],
            ),
            (
                100,
                vec![
                    bounds(LossPoint::Qdisc, 0, 10),
                    exact(LossPoint::UdpReceiveQueue, 60),
                ],
                vec![
                    (LossPoint::Qdisc, 10, false),
                    (LossPoint::UdpReceiveQueue, 60, true),
                    (LossPoint::Path, 30, false),
                ],
            ),
            // Other packets, more than our losses: the count of our own socket is exact.
            (
                100,
                vec![
                    bounds(LossPoint::Qdisc, 0, 5000),
                    exact(LossPoint::UdpReceiveQueue, 60),
                ],
                vec![
                    (LossPoint::Qdisc, 40, false),
                    (LossPoint::UdpReceiveQueue, 60, true),
                ],
            ),
            (
                30,
                vec![
                    bounds(LossPoint::Qdisc, 0, 20),
                    bounds(LossPoint::InterfaceRx, 0, 20),
                ],
                vec![
                    (LossPoint::Qdisc, 20, false),
                    (LossPoint::InterfaceRx, 10, false),
                ],
            ),
        ] {
            assert_eq!(
                shares(lost, &candidates, false),
                expected,
                "{lost} {candidates:?}"
            );
        }
    }

    fn candidates() -> impl Strategy<Value = Vec<LossBounds>> {
        let one = (any::<bool>(), 0u64..2_000, 0u64..2_000, any::<bool>()).prop_map(
            |(huge, least, more, run_only)| LossBounds {
                point: LossPoint::Qdisc,
                least,
                most: if huge { u64::MAX } else { least + more },
                run_only,
            },
        );
        prop::collection::vec(one, 0..6)
    }

    proptest! {
        #[test]
        fn the_parts_add_up_and_stay_within_their_bounds(
            lost in 0u64..3_000, candidates in candidates(), closed in any::<bool>(),
        ) {
            let parts = attribute_losses(lost, &candidates, closed);
            prop_assert_eq!(parts.iter().map(|part| part.packets).sum::<u64>(), lost);
            let contradicts = candidates.iter().filter(|c| c.run_only).map(|c| c.least).sum::<u64>() > lost;
            for part in parts.iter().filter(|_| !contradicts) {
                prop_assert!(part.least <= part.packets && part.packets <= part.most, "{part:?}");
            }
        }

        #[test]
        fn the_true_attribution_is_never_excluded(
            truth in prop::collection::vec((0u64..500, 0u64..100, 0u64..100), 1..6),
            path in 0u64..100,
        ) {
            let lost = truth.iter().map(|(packets, ..)| packets).sum::<u64>();
            let candidates: Vec<_> = truth
                .iter()
                .map(|&(packets, below, above)| {
                    bounds(LossPoint::Qdisc, packets.saturating_sub(below), packets + above)
                })
                .collect();
            let closed = attribute_losses(lost, &candidates, true);
            let kept = |parts: &[LossShare]| parts.iter().filter(|part| part.point != LossPoint::Path).copied().collect::<Vec<_>>();
            let possible: Vec<_> = truth.iter().zip(&candidates).filter(|(_, c)| c.most > 0).collect();
            for (part, ((packets, ..), _)) in kept(&closed).iter().zip(&possible) {
                prop_assert!(part.least <= *packets && *packets <= part.most, "{part:?} {packets}");
            }
            let bounds: Vec<_> = candidates.iter().map(|c| LossBounds { least: 0, ..*c }).collect();
            let open = attribute_losses(lost + path, &bounds, false);
            let rest = open.iter().find(|part| part.point == LossPoint::Path).map_or((0, 0), |part| (part.least, part.most));
            prop_assert!(rest.0 <= path && path <= rest.1, "{rest:?} {path}");
        }
    }
}
