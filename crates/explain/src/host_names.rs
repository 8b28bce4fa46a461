//! Names of both ends' hosts in the counters of a record.

use linerate_record::record::Record;

/// Returns the host names of client and server: in a lab those of its file, else `client` and
/// `server`.
pub(crate) fn host_names(record: &Record) -> [String; 2] {
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
    let lab_hosts = |host: &&&str| !["client", "server"].contains(*host);
    let lab_hosts: Vec<&str> = hosts.iter().filter(lab_hosts).copied().collect();
    let names = if lab_hosts.len() >= 2 {
        lab_hosts
    } else {
        hosts
    };
    match names[..] {
        [client, server, ..] => [client.to_owned(), server.to_owned()],
        _ => ["client".to_owned(), "server".to_owned()],
    }
}

/// Returns the record with the counters of both ends under `client` and `server`. In a lab they
/// have the names of its hosts. `None` if no renaming is necessary.
pub(crate) fn with_role_names(record: &Record, [client, server]: &[String; 2]) -> Option<Record> {
    if (client.as_str(), server.as_str()) == ("client", "server") {
        return None;
    }
    let mut renamed = record.clone();
    for counter in &mut renamed.counters {
        if counter.host == *client {
            "client".clone_into(&mut counter.host);
        } else if counter.host == *server {
            "server".clone_into(&mut counter.host);
        }
    }
    Some(renamed)
}
