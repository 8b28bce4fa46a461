//! Values of device settings that the URL of a port requests.

use std::ops::RangeInclusive;

use linerate_host::settings::rss::DEFAULT;
use linerate_tune::guard::Kind;

/// Returns the channels to set for `count` queues, or `None` if there are as many already. Drivers
/// with combined and single-direction queues use combined ones.
pub(super) fn channels_of(now: &str, count: u32) -> Option<String> {
    let words: Vec<(&str, &str)> = now
        .split_whitespace()
        .filter_map(|word| word.split_once('='))
        .collect();
    let both = words
        .iter()
        .any(|(name, value)| *name == "combined" && *value != "0");
    let only = words.iter().all(|(name, _)| *name == "combined");
    let is_meant = |name: &str| (name == "combined") == (both || only);
    let wanted = |(name, value): &(&str, &str)| {
        let wanted = match is_meant(name) {
            true => count,
            false => 0,
        };
        // No request for a kind of queue that the driver does not have.
        (*value != wanted.to_string()).then(|| format!("{name}={wanted}"))
    };
    let changes: Vec<String> = words.iter().filter_map(wanted).collect();
    (!changes.is_empty() || words.is_empty()).then(|| match words.is_empty() {
        true => format!("combined={count}"),
        false => changes.join(" "),
    })
}

/// Returns whether more than `count` queues of a kind are in use.
pub(super) fn is_more(now: &str, count: u32) -> bool {
    let counts = now
        .split_whitespace()
        .filter_map(|word| word.split_once('='));
    let mut counts = counts.filter_map(|(_, value)| value.parse::<u32>().ok());
    counts.any(|now| now > count)
}

/// Returns the RSS table over the queues in use; `None` if it is set already.
pub(super) fn rss_of(
    now: &str,
    channels: Option<u32>,
    taken: RangeInclusive<u32>,
) -> Option<String> {
    let queues: Vec<String> = taken.map(|queue| queue.to_string()).collect();
    // The driver's default spreads over all queues, which are these if their number is set.
    let all = now == DEFAULT && channels.is_some_and(|count| count as usize == queues.len());
    let want = queues.join(" ");
    (!all && now != want).then_some(want)
}

/// Returns the next step after a setting failed.
pub(super) fn next_step(kind: Kind, word: &str, interface: &str) -> String {
    let (first, shows) = match kind {
        Kind::Flow => {
            let root = "run as root (CAP_NET_ADMIN)";
            let filters =
                format!("{root}, and switch filters on (`ethtool -K {interface} ntuple on`)");
            // Drivers with rules for IPv4 only reject the IPv6 half of `udp` and `tcp`.
            match word.split_once("6:") {
                None => (filters, "-n"),
                Some((kind, port)) => (
                    format!("{filters}; if the driver has no IPv6 rules, use `{kind}4:{port}`"),
                    "-n",
                ),
            }
        }
        Kind::Rss => ("run as root (CAP_NET_ADMIN)".to_owned(), "-x"),
        _ => ("run as root (CAP_NET_ADMIN)".to_owned(), "-l"),
    };
    format!(
        "{first}; if the driver does not support it, leave out `{word}`, and see its settings with `ethtool {shows} {interface}`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_changed_where_it_names_others() {
        for (now, channels, taken, want) in [
            ("default", Some(2), 0..=1, None),
            ("default", None, 0..=1, Some("0 1")),
            ("default", Some(4), 2..=3, Some("2 3")),
            ("0 1", Some(2), 0..=1, None),
            ("0 3", Some(2), 0..=1, Some("0 1")),
        ] {
            let found = rss_of(now, channels, taken.clone());
            assert_eq!(found, want.map(str::to_owned), "{now} {taken:?}");
        }
        for (now, count, want) in [
            ("rx=4 tx=1", 2, true),
            ("combined=2", 2, false),
            ("combined=2", 4, false),
            ("", 1, false),
        ] {
            assert_eq!(is_more(now, count), want, "{now} {count}");
        }
    }

    #[test]
    fn channels_are_changed_where_they_are_others() {
        for (now, count, want) in [
            ("rx=4 tx=4", 2, Some("rx=2 tx=2")),
            ("rx=2 tx=4", 2, Some("tx=2")),
            ("rx=2 tx=2", 2, None),
            ("combined=8", 2, Some("combined=2")),
            ("combined=2", 2, None),
            // Drivers with both kinds use one of them.
            ("rx=0 tx=0 combined=8", 4, Some("combined=4")),
            ("rx=0 tx=0 combined=4", 4, None),
            ("rx=8 tx=8 combined=0", 4, Some("rx=4 tx=4")),
            // Queues for one direction would be numbered after the combined ones.
            ("rx=2 tx=0 combined=4", 4, Some("rx=0")),
            // A driver that reports nothing gets the request anyway and reports the reason.
            ("", 2, Some("combined=2")),
        ] {
            assert_eq!(
                channels_of(now, count),
                want.map(str::to_owned),
                "{now} {count}"
            );
        }
    }
}
