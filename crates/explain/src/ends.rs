//! What the ends of a run are called in its counters.

use linerate_metric::record::Record;

/// What the hosts of both ends are called: in a lab by its file, else `client` and `server`.
pub(crate) fn places(record: &Record) -> [String; 2] {
    // What hosts count as a whole is read at the client first, then at the server.
    let mut hosts: Vec<&str> = Vec::new();
    for counter in record
        .counters
        .iter()
        .filter(|counter| counter.interface.is_none())
    {
        if !hosts.contains(&counter.host.as_str()) {
            hosts.push(&counter.host);
        }
    }
    // Our own stack's counters stand under its part beside those of the lab's hosts.
    let of_lab = |host: &&&str| !["client", "server"].contains(*host);
    let of_lab: Vec<&str> = hosts.iter().filter(of_lab).copied().collect();
    let ends = if of_lab.len() >= 2 { of_lab } else { hosts };
    match ends[..] {
        [near, far, ..] => [near.to_owned(), far.to_owned()],
        _ => ["client".to_owned(), "server".to_owned()],
    }
}

/// The record with the counters of both ends under what the ends are in it, `client` and `server`: within a lab
/// they stand under the names of its hosts. `None` where they do so already.
pub(crate) fn by_their_parts(record: &Record, [near, far]: &[String; 2]) -> Option<Record> {
    if (near.as_str(), far.as_str()) == ("client", "server") {
        return None;
    }
    let mut named = record.clone();
    for counter in &mut named.counters {
        if counter.host == *near {
            "client".clone_into(&mut counter.host);
        } else if counter.host == *far {
            "server".clone_into(&mut counter.host);
        }
    }
    Some(named)
}
