//! Loss counters on the path of the current run, as far as this process can read them.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use linerate_record::event::{Event, EventKind};
use linerate_record::plan::RunKind;
use linerate_session::loss::{LiveLoss, LiveLossView};

use crate::lab_network;
use crate::ui_update::UiUpdate;

/// Time between two polls: often enough for a reader.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Loss counters of each run, from its start to its end.
#[derive(Default)]
pub(super) struct LiveCounters {
    /// Runs use hosts of a lab, whose counters are not read here.
    on_lab_hosts: bool,
    server: Option<IpAddr>,
    view: Option<LiveLossView>,
    polled_at: Option<Instant>,
}

impl LiveCounters {
    pub(super) fn on_event(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Connected { peer, .. } => {
                let peer = peer.parse::<SocketAddr>().ok();
                self.server = peer.map(|peer| peer.ip());
            }
            EventKind::Started { plan, .. } => {
                let server = self.server.or_else(|| plan.host.parse().ok());
                let through_kernel = matches!(plan.kind, RunKind::Throughput | RunKind::Latency)
                    && plan.client_stack.is_none()
                    && !self.on_lab_hosts;
                let network = through_kernel.then(lab_network::lab_network).flatten();
                self.view = server
                    .filter(|_| through_kernel)
                    .map(|server| LiveLossView::open(network.as_ref(), server, plan));
                self.polled_at = None;
            }
            EventKind::Finished { .. } => self.view = None,
            _ => {}
        }
    }

    pub(super) fn apply_update(&mut self, update: &UiUpdate) {
        self.on_lab_hosts |= matches!(update, UiUpdate::LabHosts);
    }

    /// Returns the packets lost at each loss point since the run began, at most once per interval,
    /// and whether the counters include other traffic of this host.
    pub(super) fn poll(&mut self) -> Option<(Vec<LiveLoss>, bool)> {
        let view = self.view.as_ref()?;
        if self
            .polled_at
            .is_some_and(|last| last.elapsed() < POLL_INTERVAL)
        {
            return None;
        }
        self.polled_at = Some(Instant::now());
        Some((view.read(), view.is_shared()))
    }
}
