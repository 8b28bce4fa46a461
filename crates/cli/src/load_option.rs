//! `-b`: an offered load, or the search for the highest one.

use std::str::FromStr;

use linerate_record::pace::PaceBurst;
use linerate_stats::units::{BitRate, parse_count, parse_fraction};

/// Value of `-b`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LoadOption {
    /// `RATE[/BURST]`.
    Rate {
        /// Payload bits per second; 0 for unlimited.
        bps: u64,
        /// Payload sent back to back.
        burst: Option<PaceBurst>,
    },
    /// `max[:LOSS]`.
    Max {
        /// Accepted fraction of lost datagrams, 0 to 1.
        loss: f64,
    },
}

impl FromStr for LoadOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(rest) = text.strip_prefix("max") {
            let loss = match rest.strip_prefix(':') {
                None if rest.is_empty() => 0.0,
                None => return Err(format!("`{text}` is not a load: write max, or max:0.1%")),
                Some(share) => parse_fraction(share).map_err(|error| error.to_string())?,
            };
            if !(0.0..1.0).contains(&loss) {
                let hint = match rest.ends_with('%') {
                    true => String::new(),
                    false => format!(": `{text}` lacks a `%`"),
                };
                return Err(format!(
                    "the accepted loss must be from 0 to below 100 %{hint}"
                ));
            }
            return Ok(Self::Max { loss });
        }
        let (rate, burst) = match text.rsplit_once('/') {
            // `10Mbit/s` has a unit, and no burst.
            Some((_, "s" | "sec")) | None => (text, None),
            Some((rate, burst)) => (rate, Some(burst.parse()?)),
        };
        let rate: BitRate = rate
            .parse()
            .map_err(|error: linerate_stats::units::UnitError| error.to_string())?;
        Ok(Self::Rate { bps: rate.0, burst })
    }
}

/// Value of `--pps`: `N[/BURST]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketRateOption {
    /// Datagrams per second.
    pub count: u64,
    /// Payload sent back to back.
    pub burst: Option<PaceBurst>,
}

impl FromStr for PacketRateOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (count, burst) = match text.split_once('/') {
            Some((count, burst)) => (count, Some(burst.parse()?)),
            None => (text, None),
        };
        let count = parse_count(count).map_err(|error| error.to_string())?;
        if count == 0 {
            return Err("0 sends nothing: give 1 or more".to_owned());
        }
        Ok(Self { count, burst })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_per_second_are_counts() {
        let read = |text: &str| {
            text.parse::<PacketRateOption>()
                .map(|pps| (pps.count, pps.burst))
        };
        assert_eq!(read("10k"), Ok((10_000, None)));
        assert_eq!(read("500/4"), Ok((500, Some(PaceBurst::Payloads(4)))));
        for text in ["0", "", "-1", "1/0", "x"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn loads_are_rates_with_bursts_or_a_search() {
        for (text, expected) in [
            (
                "100M",
                LoadOption::Rate {
                    bps: 100_000_000,
                    burst: None,
                },
            ),
            (
                "100Mbit/s",
                LoadOption::Rate {
                    bps: 100_000_000,
                    burst: None,
                },
            ),
            (
                "100M/16",
                LoadOption::Rate {
                    bps: 100_000_000,
                    burst: Some(PaceBurst::Payloads(16)),
                },
            ),
            (
                "1G/64K",
                LoadOption::Rate {
                    bps: 1_000_000_000,
                    burst: Some(PaceBurst::Bytes(65_536)),
                },
            ),
            (
                "0",
                LoadOption::Rate {
                    bps: 0,
                    burst: None,
                },
            ),
            ("max", LoadOption::Max { loss: 0.0 }),
            ("max:0.1%", LoadOption::Max { loss: 0.001 }),
            ("max:0.5", LoadOption::Max { loss: 0.5 }),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in [
            "", "maximum", "max:", "max:1", "max:-1%", "10M/", "10M/0", "/5", "10M/x",
        ] {
            assert!(text.parse::<LoadOption>().is_err(), "{text}");
        }
        let limits = "the accepted loss must be from 0 to below 100 %";
        for (text, why) in [
            ("max:5", format!("{limits}: `max:5` lacks a `%`")),
            ("max:150%", limits.to_owned()),
        ] {
            assert_eq!(text.parse::<LoadOption>(), Err(why));
        }
    }
}
