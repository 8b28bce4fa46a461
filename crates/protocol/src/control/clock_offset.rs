//! Offset between the clocks of the two ends, from requests and replies on the control connection.
//!
//! The local clock gives t1 when the request leaves and t4 when the reply arrives; the remote clock
//! gives t2 when the request arrives and t3 when the reply leaves (RFC 5905 section 8):
//!
//! ```text
//! rtt    = (t4 - t1) - (t3 - t2)
//! offset = ((t2 - t1) + (t3 - t4)) / 2        remote clock = local clock + offset
//! error <= rtt / 2                            however asymmetric the path is
//! ```
//!
//! The bound holds because no direction can take less than zero time. Queues only increase a round
//! trip, so the sample with the smallest `rtt` has the tightest bound, and it alone is used. The
//! drift of the clocks after that sample is not in the bound: repeat the exchange at the end of a
//! long run.

/// Timestamps of one request and its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSample {
    /// Local clock when the request left, in ns.
    pub t1_ns: u64,
    /// Remote clock when the request arrived, in ns.
    pub t2_ns: u64,
    /// Remote clock when the reply left, in ns.
    pub t3_ns: u64,
    /// Local clock when the reply arrived, in ns.
    pub t4_ns: u64,
}

/// Offset of the remote clock from the local one, with its error bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetEstimate {
    /// Offset in ns: remote time minus local time.
    pub offset_ns: i64,
    /// Upper bound of the error in ns, at the time of the sample.
    pub error_ns: u64,
    /// Round-trip time of the sample in ns, without the remote end's processing time.
    pub rtt_ns: u64,
}

impl OffsetEstimate {
    /// Returns the offset of the sample with the smallest round trip.
    ///
    /// Samples that no path can produce are ignored, such as a reply before its request, or a
    /// remote processing time above the round trip: a clock was set meanwhile. `None` if no sample
    /// is left.
    #[must_use]
    pub fn from_samples(samples: &[ClockSample]) -> Option<Self> {
        samples
            .iter()
            .filter_map(|&sample| Self::from_sample(sample))
            .min_by_key(|offset| offset.rtt_ns)
    }

    fn from_sample(sample: ClockSample) -> Option<Self> {
        let local_ns = sample.t4_ns.checked_sub(sample.t1_ns)?;
        let remote_ns = sample.t3_ns.checked_sub(sample.t2_ns)?;
        let rtt_ns = local_ns.checked_sub(remote_ns)?;
        // The two clocks may have any epoch: 64 bits do not hold the sum.
        let outbound = i128::from(sample.t2_ns) - i128::from(sample.t1_ns);
        let inbound = i128::from(sample.t3_ns) - i128::from(sample.t4_ns);
        Some(Self {
            offset_ns: i64::try_from((outbound + inbound).div_euclid(2)).ok()?,
            // Rounded up, also for the half nanosecond that the division may have cut from the
            // offset: there + back is odd exactly when rtt is.
            error_ns: rtt_ns.div_ceil(2),
            rtt_ns,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(t1_ns: u64, t2_ns: u64, t3_ns: u64, t4_ns: u64) -> ClockSample {
        ClockSample {
            t1_ns,
            t2_ns,
            t3_ns,
            t4_ns,
        }
    }

    #[test]
    fn the_shortest_round_trip_decides() {
        let samples = [
            sample(1_000, 5_900, 5_910, 2_000),
            sample(3_000, 7_050, 7_060, 3_110),
            sample(4_000, 9_000, 9_010, 6_000),
        ];
        let offset = OffsetEstimate::from_samples(&samples).unwrap();
        assert_eq!(
            offset,
            OffsetEstimate {
                offset_ns: 4_000,
                error_ns: 50,
                rtt_ns: 100
            }
        );
    }

    #[test]
    fn a_clock_that_was_set_gives_no_offset() {
        for (invalid, reason) in [
            (
                sample(10, 5, 5, 9),
                "the reply arrived before the request left",
            ),
            (
                sample(0, 9, 5, 9),
                "the remote end replied before the request arrived",
            ),
            (
                sample(0, 0, 10, 9),
                "the processing time is above the round trip",
            ),
            (
                sample(0, u64::MAX, u64::MAX, 1),
                "the offset does not fit into 64 bits",
            ),
        ] {
            assert_eq!(OffsetEstimate::from_samples(&[invalid]), None, "{reason}");
        }
        assert_eq!(OffsetEstimate::from_samples(&[]), None);
    }

    proptest! {
        #[test]
        fn the_truth_is_within_the_bound(
            truth in -1_000_000_000_000i64..1_000_000_000_000,
            trips in prop::collection::vec(
                (2_000_000_000_000u64..1 << 62, 0u64..1_000_000, 0u64..1_000_000, 0u64..1_000_000),
                1..20,
            ),
        ) {
            let samples: Vec<_> = trips
                .iter()
                .map(|&(t1, there, answering, back)| {
                    let t2 = (t1 + there).checked_add_signed(truth).unwrap();
                    sample(t1, t2, t2 + answering, t1 + there + answering + back)
                })
                .collect();
            let offset = OffsetEstimate::from_samples(&samples).unwrap();
            prop_assert!(offset.offset_ns.abs_diff(truth) <= offset.error_ns, "{offset:?}");
            prop_assert_eq!(
                offset.rtt_ns,
                trips.iter().map(|&(_, there, _, back)| there + back).min().unwrap()
            );
        }

        #[test]
        fn no_times_panic(samples in prop::collection::vec(any::<[u64; 4]>(), 0..8)) {
            let samples: Vec<_> = samples.iter().map(|t| sample(t[0], t[1], t[2], t[3])).collect();
            let _ = OffsetEstimate::from_samples(&samples);
        }
    }
}
