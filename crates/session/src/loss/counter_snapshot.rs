//! Loss counters of hosts and interfaces, read before and after a run.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use linerate_host::snapshot::loss_counters::{self, CounterValue};
use linerate_host::snapshot::neighbour_watch::NeighbourWatch;
use linerate_record::record::CounterDelta;
use linerate_sys::namespace;
use linerate_sys::namespace::NamespaceKind;

/// Host or interface with counters.
#[derive(Clone, Debug)]
pub struct CounterLocation {
    /// Host name in the record.
    pub host: String,
    /// Network namespace; absent: that of the calling thread.
    pub namespace: Option<Arc<OwnedFd>>,
    /// Interface; absent: the counters of the host.
    pub interface: Option<String>,
}

/// Location with its first counter values, and the neighbour events since then.
#[derive(Debug)]
struct LocationSnapshot {
    location: CounterLocation,
    before: Vec<CounterValue>,
    neighbour_events: Option<NeighbourWatch>,
}

/// First counter values of several locations.
#[derive(Debug)]
pub struct CounterSnapshot {
    ipv6: bool,
    locations: Vec<LocationSnapshot>,
}

impl CounterSnapshot {
    /// Reads all locations; unreadable ones are left out of the result.
    #[must_use]
    pub fn read_first(locations: Vec<CounterLocation>, ipv6: bool) -> Self {
        let locations = locations
            .into_iter()
            .map(|location| {
                let (before, neighbours) = in_namespace(&location, || {
                    (
                        read_counters(&location, ipv6),
                        location.interface.is_none().then(NeighbourWatch::open),
                    )
                })
                .unwrap_or_default();
                LocationSnapshot {
                    before,
                    neighbour_events: neighbours.flatten(),
                    location,
                }
            })
            .collect();
        Self { ipv6, locations }
    }

    /// Reads them again; returns every counter with both values.
    #[must_use]
    pub fn read_again(&self) -> Vec<CounterDelta> {
        let mut counters = Vec::new();
        let ipv6 = self.ipv6;
        for first in &self.locations {
            let location = &first.location;
            let after =
                in_namespace(location, || read_counters(location, ipv6)).unwrap_or_default();
            let read = first.before.iter().filter_map(|&(name, before)| {
                let (_, after) = after.iter().find(|(last, _)| *last == name)?;
                Some((name, before, *after))
            });
            let events = first
                .neighbour_events
                .iter()
                .flat_map(NeighbourWatch::read_counts);
            let events = events.map(|(name, count)| (name, 0, count));
            counters.extend(
                read.chain(events)
                    .map(|(name, before, after)| CounterDelta {
                        host: location.host.clone(),
                        interface: location.interface.clone(),
                        counter: name.to_owned(),
                        before,
                        after,
                    }),
            );
        }
        counters
    }
}

fn read_counters(location: &CounterLocation, ipv6: bool) -> Vec<CounterValue> {
    match &location.interface {
        Some(name) => loss_counters::read_interface_counters(name),
        None => loss_counters::read_host_counters(ipv6),
    }
}

/// Runs `read` in the namespace of a location.
pub(super) fn in_namespace<T: Send>(
    location: &CounterLocation,
    read: impl FnOnce() -> T + Send,
) -> io::Result<T> {
    let Some(network_namespace) = &location.namespace else {
        return Ok(read());
    };
    // A namespace belongs to a thread: a helper thread enters it, this one stays.
    std::thread::scope(|scope| {
        let reader = std::thread::Builder::new()
            .name("counters".to_owned())
            .spawn_scoped(scope, || {
                namespace::enter(network_namespace.as_fd(), NamespaceKind::Net)?;
                Ok(read())
            })?;
        reader
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_two_values() {
        let location = |interface: Option<&str>| CounterLocation {
            host: "client".to_owned(),
            namespace: None,
            interface: interface.map(str::to_owned),
        };
        let locations = vec![
            location(Some("lo")),
            location(None),
            location(Some("none-such0")),
        ];
        let counters = CounterSnapshot::read_first(locations, false).read_again();
        assert!(
            counters
                .iter()
                .any(|c| c.interface.as_deref() == Some("lo"))
        );
        assert!(counters.iter().any(|c| c.interface.is_none()));
        assert!(
            counters
                .iter()
                .all(|c| c.after >= c.before || c.counter.ends_with("open"))
        );
    }
}
