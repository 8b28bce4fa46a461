//! What the ends of a run are called in its counters.

use linerate_metric::record::Record;

/// The record with the counters of both ends under what the ends are in it, `client` and `server`: within a lab
/// they stand under the names of its hosts. `None` where they do so already.
pub(crate) fn by_their_parts(record: &Record) -> Option<Record> {
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
    let [near, far, ..] = ends[..] else {
        return None;
    };
    if (near, far) == ("client", "server") {
        return None;
    }
    let (near, far) = (near.to_owned(), far.to_owned());
    let mut named = record.clone();
    for counter in &mut named.counters {
        if counter.host == near {
            "client".clone_into(&mut counter.host);
        } else if counter.host == far {
            "server".clone_into(&mut counter.host);
        }
    }
    Some(named)
}
