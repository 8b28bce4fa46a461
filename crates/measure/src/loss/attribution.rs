//! Attribution of lost datagrams to loss points, within the bounds of their counters.

/// Bounds of the losses at one loss point, in datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Name in records.
    pub place: &'static str,
    /// Lower bound.
    pub least: u64,
    /// Upper bound; `u64::MAX` for none.
    pub most: u64,
    /// The counter covers only this run's datagrams, no other packets.
    pub own: bool,
}

/// Losses attributed to one loss point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub place: &'static str,
    /// Datagrams; the sum over all points is the total loss.
    pub packets: u64,
    /// Lower bound.
    pub least: u64,
    /// Upper bound.
    pub most: u64,
}

/// Loss point without counters, and remainder that no counter explains.
pub const PATH: &str = "path";

/// Splits `lost` datagrams among loss points.
///
/// With a fully visible path (`closed`), losses are distributed in proportion to the bounds, and
/// the remainder goes to [`PATH`]. Otherwise the counters are upper bounds, used up in the order of
/// the path, and [`PATH`] gets the rest. The shares always add up to `lost`.
#[must_use]
pub fn explain(lost: u64, candidates: &[Candidate], closed: bool) -> Vec<Part> {
    let mut places: Vec<Candidate> = candidates
        .iter()
        .map(|candidate| Candidate {
            least: candidate.least.min(candidate.most),
            ..*candidate
        })
        .collect();
    // Wide: an upper bound may be `u64::MAX`.
    let sum = |places: &[Candidate], value: fn(&Candidate) -> u64| {
        places
            .iter()
            .map(|place| u128::from(value(place)))
            .sum::<u128>()
    };
    let all = u128::from(lost);
    // Remainder of all losses; at most `lost`, so it fits.
    let left = |taken: u128| u64::try_from(all.saturating_sub(taken)).unwrap_or(lost);
    let own: Vec<_> = places.iter().copied().filter(|place| place.own).collect();
    // Other packets, such as the control connection's, were counted too.
    let foreign = sum(&places, |place| place.least).saturating_sub(all);
    let foreign = u64::try_from(foreign).unwrap_or(u64::MAX);
    for place in places.iter_mut().filter(|place| !place.own) {
        place.least = place.least.saturating_sub(foreign);
    }
    let beyond = left(sum(&places, |place| place.most));
    let path = match closed {
        true => (beyond, beyond),
        // The path has no counter: it can have all but what is certain elsewhere.
        false => (beyond, left(sum(&own, |place| place.least))),
    };
    places.push(Candidate {
        place: PATH,
        least: path.0,
        most: path.1,
        own: false,
    });
    let (all_least, all_most) = (
        sum(&places, |place| place.least),
        sum(&places, |place| place.most),
    );
    let mut parts: Vec<Part> = places
        .iter()
        .map(|place| {
            // Bounds of the other points also bound this one.
            let most = place.most.min(left(all_least - u128::from(place.least)));
            let least = place.least.max(left(all_most - u128::from(place.most)));
            let least = least.min(most);
            Part {
                place: place.place,
                packets: least,
                least,
                most,
            }
        })
        .collect();
    share_out(lost, &mut parts, closed);
    parts.retain(|part| part.packets > 0 || part.most > 0);
    parts
}

/// Distributes losses above the lower bounds: in proportion to the upper bounds, or to the first
/// point with capacity left.
fn share_out(lost: u64, parts: &mut [Part], closed: bool) {
    let mut given = 0;
    for part in parts.iter_mut() {
        // Contradicting bounds must not exceed the total.
        part.packets = part.packets.min(lost - given);
        given += part.packets;
    }
    let mut rest = lost - given;
    let mut room: u128 = parts
        .iter()
        .map(|part| u128::from(part.most.saturating_sub(part.packets)))
        .sum();
    for part in parts.iter_mut() {
        let own = part.most.saturating_sub(part.packets);
        let share = if room == 0 {
            0
        } else if closed {
            (u128::from(rest) * u128::from(own) / room) as u64
        } else {
            own.min(rest)
        };
        part.packets += share;
        rest -= share;
        room -= u128::from(own);
    }
    // No known point can have the rest.
    if let Some(path) = parts.last_mut() {
        path.packets += rest;
        path.most = path.most.max(path.packets);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(place: &'static str, least: u64, most: u64) -> Candidate {
        Candidate {
            place,
            least,
            most,
            own: false,
        }
    }

    fn own(name: &'static str, packets: u64) -> Candidate {
        Candidate {
            own: true,
            ..place(name, packets, packets)
        }
    }

    /// Returns `(point, packets, exact)` of points with losses.
    fn split(lost: u64, candidates: &[Candidate], closed: bool) -> Vec<(&'static str, u64, bool)> {
        explain(lost, candidates, closed)
            .into_iter()
            .filter(|part| part.packets > 0)
            .map(|part| (part.place, part.packets, part.least == part.most))
            .collect()
    }

    #[test]
    fn with_the_whole_way_in_view_everything_is_exact() {
        for (lost, candidates, want) in [
            (0, vec![place("qdisc", 0, 0)], vec![]),
            (
                12,
                vec![place("qdisc", 5, 5), own("udp-receive-queue", 7)],
                vec![("qdisc", 5, true), ("udp-receive-queue", 7, true)],
            ),
            // Two packets of the control connection were dropped, too.
            (
                12,
                vec![place("qdisc", 7, 7), own("udp-receive-queue", 7)],
                vec![("qdisc", 5, true), ("udp-receive-queue", 7, true)],
            ),
            // Super-datagrams of up to 44: the total determines the factor.
            (
                100,
                vec![place("qdisc", 3, 132), own("udp-receive-queue", 7)],
                vec![("qdisc", 93, true), ("udp-receive-queue", 7, true)],
            ),
            // Two points with super-datagrams: only the sum is certain.
            (
                100,
                vec![place("qdisc", 10, 100), place("softnet-backlog", 10, 100)],
                vec![("qdisc", 50, false), ("softnet-backlog", 50, false)],
            ),
            // No point can have lost so many.
            (
                50,
                vec![place("qdisc", 10, 10)],
                vec![("qdisc", 10, true), (PATH, 40, true)],
            ),
        ] {
            assert_eq!(
                split(lost, &candidates, true),
                want,
                "{lost} {candidates:?}"
            );
        }
    }

    #[test]
    fn elsewhere_shared_counters_are_upper_bounds() {
        for (lost, candidates, want) in [
            (
                100,
                vec![own("udp-receive-queue", 60)],
                vec![("udp-receive-queue", 60, true), (PATH, 40, true)],
            ),
            (
                100,
                vec![place("qdisc", 0, 10), own("udp-receive-queue", 60)],
                vec![
                    ("qdisc", 10, false),
                    ("udp-receive-queue", 60, true),
                    (PATH, 30, false),
                ],
            ),
            // Other packets, more than our losses: the count of our own socket is exact.
            (
                100,
                vec![place("qdisc", 0, 5000), own("udp-receive-queue", 60)],
                vec![("qdisc", 40, false), ("udp-receive-queue", 60, true)],
            ),
            (
                30,
                vec![place("qdisc", 0, 20), place("interface-rx", 0, 20)],
                vec![("qdisc", 20, false), ("interface-rx", 10, false)],
            ),
        ] {
            assert_eq!(
                split(lost, &candidates, false),
                want,
                "{lost} {candidates:?}"
            );
        }
    }

    fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
        let one = (any::<bool>(), 0u64..2_000, 0u64..2_000, any::<bool>()).prop_map(
            |(huge, least, more, own)| Candidate {
                place: "qdisc",
                least,
                most: if huge { u64::MAX } else { least + more },
                own,
            },
        );
        prop::collection::vec(one, 0..6)
    }

    proptest! {
        #[test]
        fn the_parts_add_up_and_stay_within_their_bounds(
            lost in 0u64..3_000, candidates in candidates(), closed in any::<bool>(),
        ) {
            let parts = explain(lost, &candidates, closed);
            prop_assert_eq!(parts.iter().map(|part| part.packets).sum::<u64>(), lost);
            let contradicts = candidates.iter().filter(|c| c.own).map(|c| c.least).sum::<u64>() > lost;
            for part in parts.iter().filter(|_| !contradicts) {
                prop_assert!(part.least <= part.packets && part.packets <= part.most, "{part:?}");
            }
        }

        #[test]
        fn what_really_happened_is_never_excluded(
            truth in prop::collection::vec((0u64..500, 0u64..100, 0u64..100), 1..6),
            path in 0u64..100,
        ) {
            let lost = truth.iter().map(|(packets, ..)| packets).sum::<u64>();
            let candidates: Vec<_> = truth
                .iter()
                .map(|&(packets, below, above)| {
                    place("qdisc", packets.saturating_sub(below), packets + above)
                })
                .collect();
            let closed = explain(lost, &candidates, true);
            let kept = |parts: &[Part]| parts.iter().filter(|part| part.place != PATH).copied().collect::<Vec<_>>();
            let possible: Vec<_> = truth.iter().zip(&candidates).filter(|(_, c)| c.most > 0).collect();
            for (part, ((packets, ..), _)) in kept(&closed).iter().zip(&possible) {
                prop_assert!(part.least <= *packets && *packets <= part.most, "{part:?} {packets}");
            }
            let bounds: Vec<_> = candidates.iter().map(|c| Candidate { least: 0, ..*c }).collect();
            let open = explain(lost + path, &bounds, false);
            let rest = open.iter().find(|part| part.place == PATH).map_or((0, 0), |part| (part.least, part.most));
            prop_assert!(rest.0 <= path && path <= rest.1, "{rest:?} {path}");
        }
    }
}
