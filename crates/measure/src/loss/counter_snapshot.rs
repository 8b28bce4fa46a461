//! Loss counters of hosts and interfaces, read before and after a run.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use linerate_host::snapshot::loss_counters::{self, Count};
use linerate_host::snapshot::netlink::neighbour_watch::Watch;
use linerate_host::sys::namespace::{self, Space};
use linerate_metric::record::PlaceCounter;

/// Host or interface with counters.
#[derive(Clone, Debug)]
pub struct Spot {
    /// Host name in the record.
    pub host: String,
    /// Network namespace; absent: that of the calling thread.
    pub namespace: Option<Arc<OwnedFd>>,
    /// Interface; absent: the counters of the host.
    pub interface: Option<String>,
}

/// Location with its first counter values, and the neighbour events since then.
#[derive(Debug)]
struct Watched {
    spot: Spot,
    before: Vec<Count>,
    neighbours: Option<Watch>,
}

/// First counter values of several locations.
#[derive(Debug)]
pub struct Ledger {
    ipv6: bool,
    spots: Vec<Watched>,
}

impl Ledger {
    /// Reads all locations; unreadable ones are left out of the result.
    #[must_use]
    pub fn open(spots: Vec<Spot>, ipv6: bool) -> Self {
        let spots = spots
            .into_iter()
            .map(|spot| {
                let (before, neighbours) = within(&spot, || {
                    (
                        counts(&spot, ipv6),
                        spot.interface.is_none().then(Watch::open),
                    )
                })
                .unwrap_or_default();
                Watched {
                    before,
                    neighbours: neighbours.flatten(),
                    spot,
                }
            })
            .collect();
        Self { ipv6, spots }
    }

    /// Reads them again; returns every counter with both values.
    #[must_use]
    pub fn close(&self) -> Vec<PlaceCounter> {
        let mut counters = Vec::new();
        let ipv6 = self.ipv6;
        for watched in &self.spots {
            let spot = &watched.spot;
            let after = within(spot, || counts(spot, ipv6)).unwrap_or_default();
            let read = watched.before.iter().filter_map(|&(name, before)| {
                let (_, after) = after.iter().find(|(other, _)| *other == name)?;
                Some((name, before, *after))
            });
            let heard = watched.neighbours.iter().flat_map(Watch::counts);
            let heard = heard.map(|(name, count)| (name, 0, count));
            counters.extend(read.chain(heard).map(|(name, before, after)| PlaceCounter {
                host: spot.host.clone(),
                interface: spot.interface.clone(),
                counter: name.to_owned(),
                before,
                after,
            }));
        }
        counters
    }
}

fn counts(spot: &Spot, ipv6: bool) -> Vec<Count> {
    match &spot.interface {
        Some(name) => loss_counters::interface(name),
        None => loss_counters::host(ipv6),
    }
}

/// Runs `look` in the namespace of a location.
pub(super) fn within<T: Send>(spot: &Spot, look: impl FnOnce() -> T + Send) -> io::Result<T> {
    let Some(space) = &spot.namespace else {
        return Ok(look());
    };
    // A namespace belongs to a thread: a helper thread enters it, this one stays.
    std::thread::scope(|scope| {
        let looking = std::thread::Builder::new()
            .name("counters".to_owned())
            .spawn_scoped(scope, || {
                namespace::enter(space.as_fd(), Space::Net)?;
                Ok(look())
            })?;
        looking
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_come_in_pairs() {
        let spot = |interface: Option<&str>| Spot {
            host: "client".to_owned(),
            namespace: None,
            interface: interface.map(str::to_owned),
        };
        let spots = vec![spot(Some("lo")), spot(None), spot(Some("none-such0"))];
        let counters = Ledger::open(spots, false).close();
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
