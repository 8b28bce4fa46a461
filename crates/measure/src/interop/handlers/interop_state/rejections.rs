//! Rejections of clients, and their log events.

use std::net::SocketAddr;

use linerate_dialect::amplification_guard::{self, Leave, Refusal};
use linerate_host::sys::clock::{self, Nanos};
use linerate_metric::event::{Event, Problem, What};

use super::{Hall, lock};
use crate::error::two_parts;
use crate::interop::handlers::rejection_log::Refused;
use crate::session::acceptor::canonical;
use crate::session::limits::{GREETING_PATIENCE, TALK_LIMIT};
use crate::session::server_state::Denied;

impl Hall {
    /// Returns whether `response_bytes` bytes may be sent to an unvalidated address that has sent
    /// `received_bytes` more bytes since the last call (anti-amplification limit, RFC 9000 section
    /// 8).
    ///
    /// Uses the flow's own credit `credit` first, which takes no lock. A rejection is logged.
    pub fn may_answer(
        &self,
        leave: &mut Leave,
        now: Nanos,
        (dialect, client): (&'static str, SocketAddr),
        received: u64,
        answer: u64,
    ) -> bool {
        if leave.take(now, received, answer) {
            return true;
        }
        let came = leave.untold();
        let asked = lock(&self.guard).leave(now, client.ip(), came, answer);
        let refusal = match asked {
            Ok(more) => {
                *leave = more;
                return true;
            }
            Err(refusal) => refusal,
        };
        if matches!(refusal, Refusal::NotNeighbour { .. }) {
            self.refresh();
        }
        self.refuse_answer(dialect, client, refusal);
        false
    }

    /// Logs that a client gets no response over UDP.
    pub fn refuse_answer(&self, dialect: &'static str, from: SocketAddr, refusal: Refusal) {
        let (why, address) = match refusal {
            Refusal::NotNeighbour { address } => ("neighbour", address),
            Refusal::MoreThanReceived { address, .. } | Refusal::Unproved { address } => {
                ("proof", address)
            }
            Refusal::AddressRate { address } => ("address-rate", address),
            Refusal::TotalRate { address } => ("total-rate", address),
        };
        let refused = Refused { why, dialect, from };
        self.refuse(refused, || {
            let next = match refusal.option() {
                Some(option) if why == "proof" => format!(
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
            let text = refusal.to_string();
            let (situation, _) = two_parts(&text);
            Problem::new(situation, format!("a response over UDP ({dialect})"), next)
        });
    }

    /// Returns whether the server may connect to a port of a client. The client's address is
    /// validated, but the port is not: an address shared by many hosts must be in a connected
    /// network. A rejection is logged.
    ///
    /// `alternative` is the client's alternative, for the log.
    pub fn may_connect_back(
        &self,
        dialect: &'static str,
        client: SocketAddr,
        port: u16,
        otherwise: &str,
    ) -> bool {
        let address = client.ip();
        if self.is_near(address) {
            return true;
        }
        let refused = Refused {
            why: "connect-back",
            dialect,
            from: client,
        };
        self.refuse(refused, || {
            Problem::new(
                format!(
                    "{address} is in no directly connected network, and several hosts may share \
                     the address"
                ),
                format!("a connection back to port {port} of a client ({dialect})"),
                format!("--allow {address}, or {otherwise}"),
            )
        });
        false
    }

    /// Logs that the server does not serve a protocol.
    pub fn refuse_dialect(&self, dialect: &'static str, from: SocketAddr) {
        let refused = Refused {
            why: "dialect",
            dialect,
            from,
        };
        self.refuse(refused, || {
            Problem::new(
                match self.has_key {
                    true => format!(
                        "{} speaks {dialect}, which has no proof of a shared key",
                        canonical(from)
                    ),
                    false => format!(
                        "{} speaks {dialect}, which --allow-dialect does not list",
                        canonical(from)
                    ),
                },
                "a test",
                format!("start the server with --allow-dialect {dialect}"),
            )
        });
    }

    /// Logs that the server has no capacity for a test, with the reason.
    pub fn refuse_test(&self, dialect: &'static str, from: SocketAddr, denied: &Denied) {
        let refused = Refused {
            why: "test",
            dialect,
            from,
        };
        self.refuse(refused, || {
            let why = &denied.refuse.problem.situation;
            let situation = format!("rejected for {}: {why}", canonical(from));
            Problem::new(
                situation,
                format!("a test ({dialect})"),
                denied.remedy.as_str(),
            )
        });
    }

    /// Logs a connection on which no test started. `reason` is the reason, with the next step after
    /// a colon.
    pub fn refuse_fruitless(&self, dialect: &'static str, from: SocketAddr, how: &str) {
        self.refuse(Refused::fruitless(dialect, from), || {
            let (how, next) = two_parts(how);
            Problem::new(
                format!("none started for {}: {how}", canonical(from)),
                format!("a test ({dialect})"),
                next.unwrap_or("see the client's own messages"),
            )
        });
    }

    /// Logs a request of a client that the server cannot fulfil, with an alternative.
    pub fn refuse_wish(&self, dialect: &'static str, from: SocketAddr, wish: &Problem) {
        let refused = Refused {
            why: "wish",
            dialect,
            from,
        };
        self.refuse(refused, || {
            Problem::new(
                format!(
                    "{} requests {}: {}",
                    canonical(from),
                    wish.object,
                    wish.situation
                ),
                format!("a test ({dialect})"),
                wish.next_step.clone(),
            )
        });
    }

    /// Logs that a client and this server do not have the same key.
    pub fn refuse_key(&self, dialect: &'static str, from: SocketAddr, why: &str) {
        let refused = Refused {
            why: "key",
            dialect,
            from,
        };
        self.refuse(refused, || {
            let (why, next) = two_parts(why);
            Problem::new(
                format!("rejected for {}: {why}", canonical(from)),
                format!("a test ({dialect})"),
                next.unwrap_or_default(),
            )
        });
    }

    /// Logs a client of another protocol on a port that belongs to one protocol.
    pub fn refuse_misplaced(
        &self,
        dialect: &'static str,
        from: SocketAddr,
        (port, owner): (u16, &'static str),
    ) {
        let refused = Refused {
            why: "misplaced",
            dialect,
            from,
        };
        self.refuse(refused, || {
            let own = self.ports.first().copied().unwrap_or_default();
            Problem::new(
                format!(
                    "{} speaks {dialect} to port {port}, which serves {owner} only",
                    canonical(from)
                ),
                format!("a test ({dialect})"),
                format!("use --also {port} without ={owner}, or let the client use port {own}"),
            )
        });
    }

    /// Logs a connection that timed out while it waited for a permit.
    pub fn refuse_waiting(&self, from: SocketAddr) {
        let refused = Refused {
            why: "waiting",
            dialect: "any",
            from,
        };
        self.refuse(refused, || {
            Problem::new(
                format!(
                    "{} waited for {} s while other connections without a test held all {TALK_LIMIT} permits",
                    canonical(from),
                    GREETING_PATIENCE.as_secs()
                ),
                "a control connection",
                "try again later",
            )
        });
    }

    /// Logs a connection whose first bytes belong to an unrelated protocol.
    pub fn refuse_stray(&self, protocol: &'static str, from: SocketAddr) {
        let refused = Refused {
            why: "stray",
            dialect: protocol,
            from,
        };
        self.refuse(refused, || {
            let situation = format!(
                "{} speaks {protocol}, which is no test protocol",
                canonical(from)
            );
            Problem::new(situation, "a connection", "")
        });
    }

    /// Logs that the limit of tests of unvalidated clients is reached.
    pub fn refuse_stranger(&self, dialect: &'static str, from: SocketAddr) {
        let refused = Refused {
            why: "stranger",
            dialect,
            from,
        };
        self.refuse(refused, || {
            Problem::new(
                format!(
                    "{} is not validated, and other such clients have all the tests available to them",
                    canonical(from)
                ),
                format!("a test ({dialect})"),
                "try again later; for UDP, let it run a test over TCP first, which validates its address",
            )
        });
    }

    /// Logs payload without a header that was too short for a test.
    pub fn refuse_crumbs(&self, from: SocketAddr, crumbs: &str) {
        let refused = Refused {
            why: "crumbs",
            dialect: "plain",
            from,
        };
        self.refuse(refused, || {
            let situation = format!("{} sent {crumbs}: too little to measure", canonical(from));
            Problem::new(situation, "no test", "")
        });
    }

    /// Emits a rejection, unless the log has one for this client already.
    pub fn refuse(&self, refused: Refused, problem: impl FnOnce() -> Problem) {
        let Some(emit) = &self.emit else {
            return;
        };
        let refused = Refused {
            from: canonical(refused.from),
            ..refused
        };
        let Some(untold) = lock(&self.refusals).tell(clock::now(), refused) else {
            return;
        };
        let mut problem = problem();
        if untold > 0 {
            problem.situation += &format!(" (and {untold} more before)");
        }
        emit(Event {
            test: 0,
            what: What::Refused { problem },
        });
    }
}
