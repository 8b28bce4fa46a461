//! Loss counters on the path of the current run, as far as this process can read them.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use linerate_measure::{Lookout, SeenPlace};
use linerate_metric::event::{Event, What};
use linerate_metric::plan::Kind;

use crate::lab_network;
use crate::ui_update::Scene;

/// Time between two polls: often enough for a reader.
const EVERY: Duration = Duration::from_secs(1);

/// Loss counters of each run, from its start to its end.
#[derive(Default)]
pub(super) struct Sight {
    /// Runs use hosts of a lab, whose counters are not read here.
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
                let network = through_kernel.then(lab_network::around).flatten();
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

    /// Returns the packets lost at each loss point since the run began, at most once per interval,
    /// and whether the counters include other traffic of this host.
    pub(super) fn look(&mut self) -> Option<(Vec<SeenPlace>, bool)> {
        let lookout = self.lookout.as_ref()?;
        if self.looked.is_some_and(|last| last.elapsed() < EVERY) {
            return None;
        }
        self.looked = Some(Instant::now());
        Some((lookout.look(), lookout.is_shared()))
    }
}
