//! The counters of places, read before and after a run.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use linerate_host::snapshot::places::{self, Count};
use linerate_host::sys::namespace::{self, Space};
use linerate_metric::record::PlaceCounter;

/// Something that counts.
#[derive(Clone, Debug)]
pub struct Spot {
    /// What its host is called in the record.
    pub host: String,
    /// Its network namespace; absent: the calling thread's.
    pub namespace: Option<Arc<OwnedFd>>,
    /// The interface; absent: the host as a whole.
    pub interface: Option<String>,
}

/// Spots and what they said when the ledger was opened.
#[derive(Debug)]
pub struct Ledger {
    ipv6: bool,
    spots: Vec<(Spot, Vec<Count>)>,
}

impl Ledger {
    /// Reads all spots. One that cannot be read is left out of the result.
    #[must_use]
    pub fn open(spots: Vec<Spot>, ipv6: bool) -> Self {
        let spots = spots
            .into_iter()
            .map(|spot| {
                let counts = read(&spot, ipv6).unwrap_or_default();
                (spot, counts)
            })
            .collect();
        Self { ipv6, spots }
    }

    /// Reads them again: every counter with both of its values.
    #[must_use]
    pub fn close(&self) -> Vec<PlaceCounter> {
        let mut counters = Vec::new();
        for (spot, before) in &self.spots {
            let after = read(spot, self.ipv6).unwrap_or_default();
            for &(name, before) in before {
                let Some(&(_, after)) = after.iter().find(|(other, _)| *other == name) else {
                    continue;
                };
                counters.push(PlaceCounter {
                    host: spot.host.clone(),
                    interface: spot.interface.clone(),
                    counter: name.to_owned(),
                    before,
                    after,
                });
            }
        }
        counters
    }
}

fn read(spot: &Spot, ipv6: bool) -> io::Result<Vec<Count>> {
    let counts = || match &spot.interface {
        Some(name) => places::interface(name),
        None => places::host(ipv6),
    };
    let Some(space) = &spot.namespace else {
        return Ok(counts());
    };
    // A namespace is a thread's: one of its own goes there, and this one stays where it is.
    std::thread::scope(|scope| {
        let reading = std::thread::Builder::new()
            .name("counters".to_owned())
            .spawn_scoped(scope, || {
                namespace::enter(space.as_fd(), Space::Net)?;
                Ok(counts())
            })?;
        reading
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
