//! Counters of the way of the run that goes on, as far as this process can see them.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use linerate_measure::{Lookout, SeenPlace};
use linerate_metric::event::{Event, What};
use linerate_metric::plan::Kind;

use crate::network;
use crate::scene::Scene;

/// Time between two looks: counters of places move no faster than eyes.
const EVERY: Duration = Duration::from_secs(1);

/// Looks at the way of each run from its start to its end.
#[derive(Default)]
pub(super) struct Sight {
    /// Runs are on hosts of a lab, which are not looked into.
    elsewhere: bool,
    far: Option<IpAddr>,
    lookout: Option<Lookout>,
    looked: Option<Instant>,
}

impl Sight {
    pub(super) fn take(&mut self, event: &Event) {
        match &event.what {
            What::Connected { peer, .. } => {
                let peer = peer.parse::<SocketAddr>().ok();
                self.far = peer.map(|peer| peer.ip());
            }
            What::Started { plan, .. } => {
                let far = self.far.or_else(|| plan.host.parse().ok());
                let through_kernel = matches!(plan.kind, Kind::Throughput | Kind::Latency)
                    && plan.near_stack.is_none()
                    && !self.elsewhere;
                let network = through_kernel.then(network::around).flatten();
                self.lookout = far
                    .filter(|_| through_kernel)
                    .map(|far| Lookout::open(network.as_ref(), far, plan));
                self.looked = None;
            }
            What::Finished { .. } => self.lookout = None,
            _ => {}
        }
    }

    pub(super) fn scene(&mut self, scene: &Scene) {
        self.elsewhere |= matches!(scene, Scene::Elsewhere);
    }

    /// What the places lost since the run began, where it is time to look and there is something to see; and
    /// whether whatever else this host does is counted with it.
    pub(super) fn look(&mut self) -> Option<(Vec<SeenPlace>, bool)> {
        let lookout = self.lookout.as_ref()?;
        if self.looked.is_some_and(|last| last.elapsed() < EVERY) {
            return None;
        }
        self.looked = Some(Instant::now());
        Some((lookout.look(), lookout.is_shared()))
    }
}
