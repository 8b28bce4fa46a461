//! Receive-side scaling (RSS): the queues over which a device distributes received frames, as text.
//!
//! `default` is the driver's own table, which follows the number of queues. Any other text lists
//! queues in table order, repeated until the table is full: `0 1`, `2 3`.

use std::io;
use std::os::fd::AsFd;

use linerate_sys::rss_table::{RssTable, read_rss_table, set_rss_table};

use super::open_socket;

/// Text for the driver's own table.
pub const DEFAULT_TABLE: &str = "default";

/// Reads the RSS table of an interface of the calling thread's network namespace.
///
/// # Errors
/// `EOPNOTSUPP` without an RSS table, `ENODEV` without such an interface.
pub fn read_rss(interface: &str) -> io::Result<String> {
    Ok(format_table(&read_rss_table(
        open_socket()?.as_fd(),
        interface,
    )?))
}

/// Sets the RSS table.
///
/// # Errors
/// As [`read_rss`]; `EINVAL` for queues that are not in use, `InvalidInput` for a malformed text.
pub fn set_rss(interface: &str, text: &str) -> io::Result<()> {
    let socket = open_socket()?;
    if text == DEFAULT_TABLE {
        return set_rss_table(socket.as_fd(), interface, &[]);
    }
    let queues = parse_queues(text)?;
    let size = read_rss_table(socket.as_fd(), interface)?.entries.len();
    let entries: Vec<u32> = queues.into_iter().cycle().take(size).collect();
    set_rss_table(socket.as_fd(), interface, &entries)
}

/// Returns the shortest sequence of queues whose repetition gives the table.
fn format_table(table: &RssTable) -> String {
    let entries = &table.entries;
    // Default table: `ethtool_rxfh_indir_default` of linux/ethtool.h.
    let default_entries = entries.iter().zip(0_u32..);
    if table.queues > 0
        && default_entries
            .clone()
            .all(|(queue, index)| *queue == index % table.queues)
    {
        return DEFAULT_TABLE.to_owned();
    }
    let is_period = |length: &usize| {
        let (order, rest) = entries.split_at(*length);
        rest.iter().zip(order.iter().cycle()).all(|(a, b)| a == b)
    };
    let length = (1..=entries.len()).find(is_period).unwrap_or(0);
    let order_text: Vec<String> = entries[..length].iter().map(u32::to_string).collect();
    order_text.join(" ")
}

fn parse_queues(text: &str) -> io::Result<Vec<u32>> {
    let queues: Option<Vec<u32>> = text
        .split_whitespace()
        .map(|number| number.parse().ok())
        .collect();
    queues.filter(|queues| !queues.is_empty()).ok_or_else(|| {
        let problem = format!("`{text}` is not a list of queue numbers");
        io::Error::new(io::ErrorKind::InvalidInput, problem)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_formatted_as_its_shortest_period() {
        for (entries, queues, expected) in [
            (&[0, 1, 0, 1, 0, 1, 0, 1][..], 2, "default"),
            (&[0, 1, 2, 0, 1, 2, 0, 1], 3, "default"),
            // Two of four queues.
            (&[0, 1, 0, 1, 0, 1, 0, 1], 4, "0 1"),
            (&[2, 3, 2, 3], 4, "2 3"),
            (&[1, 1, 1, 1], 2, "1"),
            (&[0, 0, 0, 0], 1, "default"),
            (&[0, 1, 2, 0], 4, "0 1 2"),
            (&[0, 1, 1, 0], 2, "0 1 1"),
            (&[0, 1, 1, 1], 2, "0 1 1 1"),
        ] {
            let table = RssTable {
                entries: entries.to_vec(),
                queues,
            };
            let formatted = format_table(&table);
            assert_eq!(formatted, expected, "{entries:?}");
            if formatted != DEFAULT_TABLE {
                let order = super::parse_queues(&formatted).unwrap().into_iter().cycle();
                let entries_again: Vec<u32> = order.take(entries.len()).collect();
                assert_eq!(entries_again, entries, "{formatted}");
            }
        }
    }

    #[test]
    fn malformed_queue_lists_are_rejected_before_the_system_call() {
        for text in ["", "all", "0,1", "-1"] {
            let error = set_rss("lo", text).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{text}");
        }
    }
}
