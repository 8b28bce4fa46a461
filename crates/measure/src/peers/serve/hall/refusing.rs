//! Who is not served, and how that is told.

use std::net::SocketAddr;

use linerate_dialect::guard::{self, Leave, Refusal};
use linerate_host::sys::clock::{self, Nanos};
use linerate_metric::event::{Event, Problem, What};

use super::{Hall, lock};
use crate::error::two_parts;
use crate::peers::serve::refusals::Refused;
use crate::session::house::Denied;
use crate::session::limits::{GREETING_PATIENCE, TALK_LIMIT};
use crate::session::lobby::canonical;

impl Hall {
    /// Whether somebody who proved nothing, and who sent so many bytes more than when he was asked
    /// about last, may have an answer of this size now. What is refused is told. `leave` is its flow's: it
    /// answers for most datagrams without the lock that all flows share.
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

    /// Tells that somebody is not answered.
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
                    "{option} {address}, which names that address alone, or let it do a test over TCP \
                     first: that shows where it is"
                ),
                Some(guard::OPTION_NETWORK) => format!("{} {address}", guard::OPTION_NETWORK),
                Some(option) => format!("start the server with a higher {option}"),
                None => "let it do a test over TCP first: that shows where it is".to_owned(),
            };
            // What would allow it is said behind it.
            let text = refusal.to_string();
            let (situation, _) = two_parts(&text);
            Problem::new(situation, format!("an answer over UDP ({dialect})"), next)
        });
    }

    /// Whether a port of a client may be connected to. That the client is at its address is proved, that
    /// it has that port there is not: an address that many share must be a neighbour's. What is refused
    /// is told, with what its client can do instead.
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
                    "{address} is in no directly connected network, and others may share its \
                     address"
                ),
                format!("a connection back to port {port} of a client ({dialect})"),
                format!("--allow {address}, or {otherwise}"),
            )
        });
        false
    }

    /// Tells that a dialect is not spoken here.
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
                        "{} speaks {dialect}, which cannot prove who it is",
                        canonical(from)
                    ),
                    false => format!(
                        "{} speaks {dialect}, which is not among those of --allow-dialect",
                        canonical(from)
                    ),
                },
                "a test",
                format!("start the server with --allow-dialect {dialect}"),
            )
        });
    }

    /// Tells that there is no room for a test of somebody, and why.
    pub fn refuse_test(&self, dialect: &'static str, from: SocketAddr, denied: &Denied) {
        let refused = Refused {
            why: "test",
            dialect,
            from,
        };
        self.refuse(refused, || {
            let why = &denied.refuse.problem.situation;
            let situation = format!("{} came for one, and {why}", canonical(from));
            Problem::new(
                situation,
                format!("a test ({dialect})"),
                denied.remedy.as_str(),
            )
        });
    }

    /// Tells of a connection that began as one of a dialect and came to no test: `how`, and what to do now
    /// behind a colon.
    pub fn refuse_fruitless(&self, dialect: &'static str, from: SocketAddr, how: &str) {
        self.refuse(Refused::fruitless(dialect, from), || {
            let (how, next) = two_parts(how);
            Problem::new(
                format!("{} came for one, and {how}", canonical(from)),
                format!("a test ({dialect})"),
                next.unwrap_or("look at the client's own messages"),
            )
        });
    }

    /// Tells that what a client wants is not to be had, and what it can do instead.
    pub fn refuse_wish(&self, dialect: &'static str, from: SocketAddr, wish: &Problem) {
        let refused = Refused {
            why: "wish",
            dialect,
            from,
        };
        self.refuse(refused, || {
            Problem::new(
                format!(
                    "{} asks for {}: {}",
                    canonical(from),
                    wish.object,
                    wish.situation
                ),
                format!("a test ({dialect})"),
                wish.next_step.clone(),
            )
        });
    }

    /// Tells that a client and this server do not have the same key.
    pub fn refuse_key(&self, dialect: &'static str, from: SocketAddr, why: &str) {
        let refused = Refused {
            why: "key",
            dialect,
            from,
        };
        self.refuse(refused, || {
            let (why, next) = two_parts(why);
            Problem::new(
                format!("{} came for one, and {why}", canonical(from)),
                format!("a test ({dialect})"),
                next.unwrap_or_default(),
            )
        });
    }

    /// Tells that a port which was given to one dialect takes none of another.
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
                    "{} speaks {dialect} to port {port}, which takes {owner} alone",
                    canonical(from)
                ),
                format!("a test ({dialect})"),
                format!("--also {port} without ={owner}, or let it come to port {own}"),
            )
        });
    }

    /// Tells that somebody has waited for his turn in vain.
    pub fn refuse_waiting(&self, from: SocketAddr) {
        let refused = Refused {
            why: "waiting",
            dialect: "any",
            from,
        };
        self.refuse(refused, || {
            Problem::new(
                format!(
                    "{} waited for {} s, and others who come to no test have all {TALK_LIMIT} places",
                    canonical(from),
                    GREETING_PATIENCE.as_secs()
                ),
                "a conversation",
                "try again later",
            )
        });
    }

    /// Tells of a connection that is no test by what it begins with.
    pub fn refuse_stray(&self, protocol: &'static str, from: SocketAddr) {
        let refused = Refused {
            why: "stray",
            dialect: protocol,
            from,
        };
        self.refuse(refused, || {
            let situation = format!("{} speaks {protocol}, which is no test", canonical(from));
            Problem::new(situation, "a connection", "")
        });
    }

    /// Tells that there are too many tests of addresses that proved nothing.
    pub fn refuse_stranger(&self, dialect: &'static str, from: SocketAddr) {
        let refused = Refused {
            why: "stranger",
            dialect,
            from,
        };
        self.refuse(refused, || {
            Problem::new(
                format!(
                    "{} is unknown, and others who are have all the tests that the unknown may have",
                    canonical(from)
                ),
                format!("a test ({dialect})"),
                "try again later; over UDP, let it do a test over TCP first: that shows where it is",
            )
        });
    }

    /// Tells of payload without a header that was too little for a test.
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

    /// Tells of something that was refused, once for each client.
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
