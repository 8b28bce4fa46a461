//! Rejections of clients, and their log events.

use std::net::{IpAddr, SocketAddr};

use linerate_protocol::amplification_guard;
use linerate_protocol::amplification_guard::{ReturnedReply, SendCredit, SendRejection};
use linerate_record::event::{ErrorReport, Event, EventKind};
use linerate_session::error::split_situation;
use linerate_sys::clock;
use linerate_sys::clock::Nanos;

use super::lock;
use crate::interop_state::{InteropState, RejectionKey, canonical};
use crate::limits::SESSION_PERMIT_LIMIT;
use crate::test_rejection::TestRejection;

impl InteropState {
    /// Returns whether `response_bytes` bytes may be sent to an unvalidated address that has sent
    /// `received_bytes` more bytes since the last call (anti-amplification limit, RFC 9000 section
    /// 8).
    ///
    /// Uses the flow's own credit `credit` first, which takes no lock. A rejection is logged.
    pub fn may_respond(
        &self,
        credit: &mut SendCredit,
        now: Nanos,
        (protocol, client): (&'static str, SocketAddr),
        received_bytes: u64,
        response_bytes: u64,
    ) -> bool {
        if credit.try_consume(now, received_bytes, response_bytes) {
            return true;
        }
        let new_bytes = credit.take_unreported();
        let granted = lock(&self.guard).grant_credit(now, client.ip(), new_bytes, response_bytes);
        let rejection = match granted {
            Ok(new_credit) => {
                *credit = new_credit;
                return true;
            }
            Err(rejection) => rejection,
        };
        if matches!(rejection, SendRejection::NotNeighbour { .. }) {
            self.refresh_networks();
        }
        self.reject_response(protocol, client, rejection);
        false
    }

    /// Decides about the response to a datagram that repeats a recent response: the sender may be a
    /// service that responds to every datagram, with a forged request between both. A rejection is
    /// logged.
    pub fn count_returned(
        &self,
        protocol: &'static str,
        now: Nanos,
        from: SocketAddr,
    ) -> ReturnedReply {
        let decision = lock(&self.guard).count_returned(now, from.ip());
        if decision == ReturnedReply::Reject {
            let address = from.ip().to_canonical();
            self.reject_response(protocol, from, SendRejection::ReturnedReplies { address });
        }
        decision
    }

    /// Records that a sender of such datagrams responded to a check.
    pub fn mark_service(&self, now: Nanos, address: IpAddr) {
        lock(&self.guard).mark_service(now, address);
    }

    /// Logs that a client gets no response over UDP.
    pub fn reject_response(
        &self,
        protocol: &'static str,
        from: SocketAddr,
        rejection: SendRejection,
    ) {
        let (reason, address) = match rejection {
            SendRejection::NotNeighbour { address } => ("neighbour", address),
            SendRejection::MoreThanReceived { address, .. }
            | SendRejection::Unvalidated { address } => ("proof", address),
            SendRejection::ReturnedReplies { address } => ("returned", address),
            SendRejection::AddressRate { address } => ("address-rate", address),
            SendRejection::TotalRate { address } => ("total-rate", address),
        };
        let key = RejectionKey {
            reason,
            protocol,
            from,
        };
        self.log_rejection(key, || {
            let next = match rejection.option() {
                _ if reason == "returned" => "no option allows this".to_owned(),
                Some(option) if reason == "proof" => format!(
                    "{option} {address} (that address alone), or let it run a test over TCP first, \
                     which validates its address"
                ),
                Some(amplification_guard::OPTION_NETWORK) => {
                    format!("{} {address}", amplification_guard::OPTION_NETWORK)
                }
                Some(option) => format!("start the server with a higher {option}"),
                None => "let it run a test over TCP first, which validates its address".to_owned(),
            };
            // The part of the text after the colon names the option, which `next` already has.
            let text = rejection.to_string();
            let (situation, _) = split_situation(&text);
            ErrorReport::new(situation, format!("a response over UDP ({protocol})"), next)
        });
    }

    /// Returns whether the server may connect to a port of a client. The client's address is
    /// validated, but the port is not: an address shared by many hosts must be in a connected
    /// network. A rejection is logged.
    ///
    /// `alternative` is the client's alternative, for the log.
    pub fn may_connect_back(
        &self,
        protocol: &'static str,
        client: SocketAddr,
        port: u16,
        alternative: &str,
    ) -> bool {
        let address = client.ip();
        if self.is_in_trusted_network(address) {
            return true;
        }
        let key = RejectionKey {
            reason: "connect-back",
            protocol,
            from: client,
        };
        self.log_rejection(key, || {
            ErrorReport::new(
                format!(
                    "{address} is in no directly connected network, and several hosts may share \
                     the address"
                ),
                format!("a connection back to port {port} of a client ({protocol})"),
                format!("--allow {address}, or {alternative}"),
            )
        });
        false
    }

    /// Logs that the server does not serve a protocol.
    pub fn reject_protocol(&self, protocol: &'static str, from: SocketAddr) {
        let key = RejectionKey {
            reason: "dialect",
            protocol,
            from,
        };
        self.log_rejection(key, || {
            ErrorReport::new(
                match self.has_key {
                    true => format!(
                        "{} uses {protocol}, which cannot prove a shared key",
                        canonical(from)
                    ),
                    false => format!(
                        "{} uses {protocol}, which --allow-dialect does not list",
                        canonical(from)
                    ),
                },
                "a test",
                format!("start the server with --allow-dialect {protocol}"),
            )
        });
    }

    /// Logs that the server has no capacity for a test, with the reason.
    pub fn reject_test(&self, protocol: &'static str, from: SocketAddr, rejection: &TestRejection) {
        let key = RejectionKey {
            reason: "test",
            protocol,
            from,
        };
        self.log_rejection(key, || {
            let reason = &rejection.reply.problem.situation;
            let situation = format!("rejected for {}: {reason}", canonical(from));
            ErrorReport::new(
                situation,
                format!("a test ({protocol})"),
                rejection.remedy.as_str(),
            )
        });
    }

    /// Logs a connection on which no test started. `reason` is the reason, with the next step after
    /// a colon.
    pub fn log_no_test_started(&self, protocol: &'static str, from: SocketAddr, reason: &str) {
        self.log_rejection(RejectionKey::no_test_started(protocol, from), || {
            let (reason, next) = split_situation(reason);
            ErrorReport::new(
                format!("none started for {}: {reason}", canonical(from)),
                format!("a test ({protocol})"),
                next.unwrap_or("see the client's own messages"),
            )
        });
    }

    /// Logs a request of a client that the server cannot fulfil, with an alternative.
    pub fn reject_request(&self, protocol: &'static str, from: SocketAddr, request: &ErrorReport) {
        let key = RejectionKey {
            reason: "test",
            protocol,
            from,
        };
        self.log_rejection(key, || {
            ErrorReport::new(
                format!(
                    "{} requests {}: {}",
                    canonical(from),
                    request.object,
                    request.situation
                ),
                format!("a test ({protocol})"),
                request.next_step.clone(),
            )
        });
    }

    /// Logs that a client and this server do not have the same key.
    pub fn reject_key(&self, protocol: &'static str, from: SocketAddr, reason: &str) {
        let key = RejectionKey {
            reason: "key",
            protocol,
            from,
        };
        self.log_rejection(key, || {
            let (reason, next) = split_situation(reason);
            ErrorReport::new(
                format!("rejected for {}: {reason}", canonical(from)),
                format!("a test ({protocol})"),
                next.unwrap_or_default(),
            )
        });
    }

    /// Logs a client of another protocol on a port that belongs to one protocol.
    pub fn reject_wrong_protocol(
        &self,
        protocol: &'static str,
        from: SocketAddr,
        (port, owner): (u16, &'static str),
    ) {
        let key = RejectionKey {
            reason: "misplaced",
            protocol,
            from,
        };
        self.log_rejection(key, || {
            let main_port = self.ports.first().copied().unwrap_or_default();
            ErrorReport::new(
                format!(
                    "{} uses {protocol} on port {port}, which serves {owner} only",
                    canonical(from)
                ),
                format!("a test ({protocol})"),
                format!(
                    "use --also {port} without ={owner}, or let the client use port {main_port}"
                ),
            )
        });
    }

    /// Logs a connection that timed out while it waited for a permit.
    pub fn log_permit_timeout(&self, from: SocketAddr) {
        let key = RejectionKey {
            reason: "waiting",
            protocol: "any",
            from,
        };
        self.log_rejection(key, || {
            ErrorReport::new(
                format!(
                    "{} waited for {} s while other connections without a test held all {SESSION_PERMIT_LIMIT} permits",
                    canonical(from),
                    self.timeouts().classify.as_secs_f64()
                ),
                "a control connection",
                "try again later",
            )
        });
    }

    /// Logs a connection whose first bytes belong to an unrelated protocol.
    pub fn reject_unrelated_protocol(&self, protocol: &'static str, from: SocketAddr) {
        let key = RejectionKey {
            reason: "stray",
            protocol,
            from,
        };
        self.log_rejection(key, || {
            let situation = format!("{protocol} is not a test protocol",);
            ErrorReport::new(situation, canonical(from).to_string(), "")
        });
    }

    /// Logs that the limit of tests of unvalidated clients is reached.
    pub fn reject_unvalidated_client(&self, protocol: &'static str, from: SocketAddr) {
        let key = RejectionKey {
            reason: "stranger",
            protocol,
            from,
        };
        self.log_rejection(key, || {
            ErrorReport::new(
                format!(
                    "{} is not validated, and other such clients have all the tests available to them",
                    canonical(from)
                ),
                format!("a test ({protocol})"),
                "try again later; for UDP, let it run a test over TCP first, which validates its address",
            )
        });
    }

    /// Logs payload without a header that was too short for a test.
    pub fn log_short_flow(&self, from: SocketAddr, description: &str) {
        let key = RejectionKey {
            reason: "crumbs",
            protocol: "plain",
            from,
        };
        self.log_rejection(key, || {
            let situation = format!(
                "{} sent {description}: too little to measure",
                canonical(from)
            );
            ErrorReport::new(situation, "no test", "")
        });
    }

    /// Emits a rejection, unless the log has one for this client already.
    pub fn log_rejection(&self, key: RejectionKey, problem: impl FnOnce() -> ErrorReport) {
        let Some(emit) = &self.emit else {
            return;
        };
        let key = RejectionKey {
            from: canonical(key.from),
            ..key
        };
        let Some(suppressed) = lock(&self.rejection_log).report(clock::now(), key) else {
            return;
        };
        let mut problem = problem();
        if suppressed > 0 {
            problem.situation += &format!(" (and {suppressed} more before)");
        }
        emit(Event {
            test: 0,
            kind: EventKind::Refused { problem },
        });
    }
}
