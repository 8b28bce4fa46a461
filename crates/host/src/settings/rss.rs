//! Receive-side scaling (RSS): the queues over which a device distributes received frames, as text.
//!
//! `default` is the driver's own table, which follows the number of queues. Any other text lists
//! queues in table order, repeated until the table is full: `0 1`, `2 3`.

use std::io;
use std::os::fd::AsFd;

use super::socket;
use crate::sys::rss_table::{Indirection, indirection, set_indirection};

/// Text for the driver's own table.
pub const DEFAULT: &str = "default";

/// Reads the RSS table of an interface of the calling thread's network namespace.
///
/// # Errors
/// `EOPNOTSUPP` without an RSS table, `ENODEV` without such an interface.
pub fn rss(interface: &str) -> io::Result<String> {
    Ok(text(&indirection(socket()?.as_fd(), interface)?))
}

/// Sets the RSS table.
///
/// # Errors
/// As [`rss`]; `EINVAL` for queues that are not in use, `InvalidInput` for a malformed text.
pub fn set_rss(interface: &str, text: &str) -> io::Result<()> {
    let socket = socket()?;
    if text == DEFAULT {
        return set_indirection(socket.as_fd(), interface, &[]);
    }
    let queues = queues(text)?;
    let size = indirection(socket.as_fd(), interface)?.entries.len();
    let entries: Vec<u32> = queues.into_iter().cycle().take(size).collect();
    set_indirection(socket.as_fd(), interface, &entries)
}

/// Returns the shortest sequence of queues whose repetition gives the table.
fn text(table: &Indirection) -> String {
    let entries = &table.entries;
    // Default table: `ethtool_rxfh_indir_default` of linux/ethtool.h.
    let own = entries.iter().zip(0_u32..);
    if table.queues > 0 && own.clone().all(|(queue, at)| *queue == at % table.queues) {
        return DEFAULT.to_owned();
    }
    let repeats = |length: &usize| {
        let (order, rest) = entries.split_at(*length);
        rest.iter().zip(order.iter().cycle()).all(|(a, b)| a == b)
    };
    let length = (1..=entries.len()).find(repeats).unwrap_or(0);
    let words: Vec<String> = entries[..length].iter().map(u32::to_string).collect();
    words.join(" ")
}

fn queues(text: &str) -> io::Result<Vec<u32>> {
    let queues: Option<Vec<u32>> = text
        .split_whitespace()
        .map(|word| word.parse().ok())
        .collect();
    queues.filter(|queues| !queues.is_empty()).ok_or_else(|| {
        let why = format!("`{text}` is not a list of queue numbers");
        io::Error::new(io::ErrorKind::InvalidInput, why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_told_by_what_repeats_in_it() {
        for (entries, queues, want) in [
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
            let table = Indirection {
                entries: entries.to_vec(),
                queues,
            };
            let told = text(&table);
            assert_eq!(told, want, "{entries:?}");
            if told != DEFAULT {
                let order = super::queues(&told).unwrap().into_iter().cycle();
                let again: Vec<u32> = order.take(entries.len()).collect();
                assert_eq!(again, entries, "{told}");
            }
        }
    }

    #[test]
    fn what_names_no_queue_is_refused_before_the_kernel_hears_of_it() {
        for text in ["", "all", "0,1", "-1"] {
            let error = set_rss("lo", text).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{text}");
        }
    }
}
