//! Names of both ends' hosts in the counters of a record.

use linerate_metric::record::Record;

/// Returns the host names of client and server: in a lab those of its file, else `client` and
/// `server`.
pub(crate) fn places(record: &Record) -> [String; 2] {
    // Host-wide counters are recorded for the client first, then for the server.
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
    // Counters of our stack are listed under the role, next to those of the lab's hosts.
    let of_lab = |host: &&&str| !["client", "server"].contains(*host);
    let of_lab: Vec<&str> = hosts.iter().filter(of_lab).copied().collect();
    let ends = if of_lab.len() >= 2 { of_lab } else { hosts };
    match ends[..] {
        [near, far, ..] => [near.to_owned(), far.to_owned()],
        _ => ["client".to_owned(), "server".to_owned()],
    }
}

/// Returns the record with the counters of both ends under `client` and `server`. In a lab they
/// have the names of its hosts. `None` if no renaming is necessary.
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
