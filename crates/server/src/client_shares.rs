//! Shares of what clients use up: an address never gets all of it.
//!
//! An address is a client's IPv4 address, or the first 64 bits of its IPv6 address: one host can
//! choose any address of such a network.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};

use linerate_sys::clock::Nanos;

use crate::limits::{SESSION_PERMIT_LIMIT, STALLED_SESSION_NS, UNPROVED_SESSIONS_PER_ADDRESS};

/// Tests of one address at a time that find a place whatever other addresses do.
const TESTS_WITHIN_RESERVE: usize = 4;

/// Part of all tests that is reserved for addresses with fewer than [`TESTS_WITHIN_RESERVE`].
const RESERVED_PART: usize = 4;

/// Returns the address that a client's shares are counted for.
#[must_use]
pub fn owner_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        address => address,
    }
}

/// Reason why a test is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTest {
    /// All tests run.
    Full,
    /// The remaining tests are reserved for other addresses.
    Reserved { own: usize },
}

/// Numbers of running tests of each address.
#[derive(Default)]
pub struct TestShares {
    total: usize,
    by_owner: HashMap<IpAddr, usize>,
    /// Tests that may be ended while they are silent, the oldest first.
    endable: Vec<EndableTest>,
    last_id: u64,
}

/// Ends a test if it is silent at a time; returns whether it was.
pub type EndIfSilent = Box<dyn Fn(Nanos) -> bool + Send>;

struct EndableTest {
    id: u64,
    owner: IpAddr,
    end_if_silent: EndIfSilent,
}

impl TestShares {
    /// Adds a test of a client, unless `limit` tests run or the rest is reserved for others.
    ///
    /// # Errors
    /// The reason.
    pub fn add(&mut self, client: IpAddr, limit: usize) -> Result<(), NoTest> {
        let owner = owner_of(client);
        let own = self.by_owner.get(&owner).copied().unwrap_or(0);
        if self.total >= limit {
            return Err(NoTest::Full);
        }
        if own >= TESTS_WITHIN_RESERVE && self.total >= limit - limit / RESERVED_PART {
            return Err(NoTest::Reserved { own });
        }
        self.total += 1;
        self.by_owner.insert(owner, own + 1);
        Ok(())
    }

    /// Adds a test that may be ended while it is silent, and returns its number.
    pub fn add_endable(&mut self, client: IpAddr, end_if_silent: EndIfSilent) -> u64 {
        self.last_id += 1;
        self.endable.push(EndableTest {
            id: self.last_id,
            owner: owner_of(client),
            end_if_silent,
        });
        self.last_id
    }

    /// Removes the test with this number from those that may be ended.
    pub fn remove_endable(&mut self, id: u64) {
        self.endable.retain(|test| test.id != id);
    }

    /// Ends the oldest silent test, whose place another test of this client needs: of the same
    /// address if that has used up its share, otherwise of an address that has more tests.
    pub fn end_silent(&mut self, now: Nanos, client: IpAddr, reason: NoTest) {
        let owner = owner_of(client);
        let tests = |owner| self.by_owner.get(&owner).copied().unwrap_or(0);
        let own = tests(owner);
        let ended = self.endable.iter().position(|test| {
            let is_candidate = match reason {
                NoTest::Reserved { .. } => test.owner == owner,
                NoTest::Full => tests(test.owner) > own + 1,
            };
            is_candidate && (test.end_if_silent)(now)
        });
        if let Some(position) = ended {
            self.endable.remove(position);
        }
    }

    /// Removes a test of a client.
    pub fn remove(&mut self, client: IpAddr) {
        let owner = owner_of(client);
        self.total -= 1;
        if let Some(own) = self.by_owner.get_mut(&owner) {
            *own -= 1;
            if *own == 0 {
                self.by_owner.remove(&owner);
            }
        }
    }
}

/// Control connections that have a thread and no test yet.
///
/// One that has not proved the server's key has its address's share. It loses its place when it is
/// stalled and another connection needs it: of the same address first.
#[derive(Debug, Default)]
pub struct SessionShares(Mutex<SessionTable>);

#[derive(Debug, Default)]
struct SessionTable {
    sessions: Vec<Beginning>,
    last_id: u64,
}

/// Session without a test.
#[derive(Debug)]
struct Beginning {
    id: u64,
    owner: IpAddr,
    since_ns: Nanos,
    /// It has proved that it has the server's key.
    is_proved: bool,
    /// Its connection, shut down to take its place; `None` of a connection that cannot be, and
    /// once it is.
    stream: Option<TcpStream>,
}

impl SessionShares {
    fn lock(&self) -> MutexGuard<'_, SessionTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a session of a client and returns its number; `None` if there is no place yet. Then a
    /// stalled session is ended, if any, and its place is free a moment later.
    pub fn add(
        &self,
        now: Nanos,
        client: IpAddr,
        stream: impl FnOnce() -> Option<TcpStream>,
    ) -> Option<u64> {
        let mut table = self.lock();
        let owner = owner_of(client);
        let own = table.unproved(owner);
        let has_share = own < UNPROVED_SESSIONS_PER_ADDRESS;
        if !has_share || table.sessions.len() >= SESSION_PERMIT_LIMIT {
            table.end_stalled(now, owner, own, has_share);
            return None;
        }
        table.last_id += 1;
        let id = table.last_id;
        table.sessions.push(Beginning {
            id,
            owner,
            since_ns: now,
            is_proved: false,
            stream: stream(),
        });
        Some(id)
    }

    /// Records that a session's client has proved the key.
    pub fn prove(&self, id: u64) {
        let mut table = self.lock();
        if let Some(session) = table.sessions.iter_mut().find(|session| session.id == id) {
            (session.is_proved, session.stream) = (true, None);
        }
    }

    /// Removes a session that has a test or has ended.
    pub fn remove(&self, id: u64) {
        self.lock().sessions.retain(|session| session.id != id);
    }
}

impl SessionTable {
    fn unproved(&self, owner: IpAddr) -> usize {
        let of_owner = |session: &&Beginning| session.owner == owner && !session.is_proved;
        self.sessions.iter().filter(of_owner).count()
    }

    /// Ends the oldest stalled session: of the same address if that has used up its share,
    /// otherwise of an address that has more than this one.
    fn end_stalled(&mut self, now: Nanos, owner: IpAddr, own: usize, has_share: bool) {
        let is_candidate = |session: &Beginning| match has_share {
            false => session.owner == owner,
            true => session.owner != owner && self.unproved(session.owner) > own + 1,
        };
        let stalled = self.sessions.iter().position(|session| {
            session.stream.is_some()
                && now.saturating_sub(session.since_ns) >= STALLED_SESSION_NS
                && is_candidate(session)
        });
        if let Some(position) = stalled
            && let Some(stream) = self.sessions[position].stream.take()
        {
            // Its thread reads the end of the connection.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_host_has_one_owner() {
        for (a, b, same) in [
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "::ffff:10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("2001:db8::1", "2001:db8::ffff:1:2:3", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
        ] {
            assert_eq!(owner_of(ip(a)) == owner_of(ip(b)), same, "{a} {b}");
        }
    }

    #[test]
    fn one_address_leaves_tests_for_others() {
        for limit in [1, 2, 8, 256] {
            let mut shares = TestShares::default();
            let mut own = 0;
            while shares.add(ip("2001:db8::1"), limit).is_ok() {
                own += 1;
            }
            assert_eq!(own, (limit - limit / 4).max(4.min(limit)), "{limit}");
            for other in own..limit {
                let address = IpAddr::from([10, 0, 0, other as u8]);
                shares.add(address, limit).unwrap();
            }
            assert_eq!(shares.add(ip("10.0.1.2"), limit), Err(NoTest::Full));
            shares.remove(ip("2001:db8::1"));
            shares.add(ip("10.0.1.2"), limit).unwrap();
        }
    }

    fn stream() -> (TcpStream, TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().unwrap().0, client)
    }

    #[test]
    fn a_silent_test_is_ended_for_another_of_its_address() {
        let (attacker, other) = (ip("10.0.0.1"), ip("10.0.0.2"));
        let mut shares = TestShares::default();
        let ended = Arc::new(Mutex::new(Vec::new()));
        // The first is never silent, the others from the time of their number on.
        for number in 0..6_u64 {
            shares.add(attacker, 8).unwrap();
            let ended = Arc::clone(&ended);
            let end_if_silent = move |now| {
                let is_silent = number > 0 && now >= number;
                if is_silent {
                    ended.lock().unwrap().push(number);
                }
                is_silent
            };
            shares.add_endable(attacker, Box::new(end_if_silent));
        }
        let reserved = NoTest::Reserved { own: 6 };
        shares.end_silent(0, attacker, reserved);
        shares.end_silent(9, other, reserved);
        assert!(
            ended.lock().unwrap().is_empty(),
            "too early, or of another address"
        );
        shares.end_silent(9, attacker, reserved);
        shares.end_silent(9, other, NoTest::Full);
        assert_eq!(*ended.lock().unwrap(), [1, 2]);
    }

    #[test]
    fn an_address_without_proof_has_a_share_and_pays_for_more() {
        let (shares, attacker, honest) = (SessionShares::default(), ip("10.0.0.1"), ip("10.0.0.2"));
        let (server_side, client_side) = stream();
        let first = shares.add(0, attacker, || Some(server_side)).unwrap();
        for _ in 1..UNPROVED_SESSIONS_PER_ADDRESS {
            shares.add(1, attacker, || None).unwrap();
        }
        // The first is not stalled yet.
        assert_eq!(shares.add(STALLED_SESSION_NS - 1, attacker, || None), None);
        shares
            .add(2, honest, || None)
            .expect("others have their own share");
        client_side.set_nonblocking(true).unwrap();
        let closed =
            |mut stream: &TcpStream| matches!(std::io::Read::read(&mut stream, &mut [0]), Ok(0));
        assert!(!closed(&client_side));
        assert_eq!(shares.add(STALLED_SESSION_NS, attacker, || None), None);
        client_side.set_nonblocking(false).unwrap();
        assert!(
            closed(&client_side),
            "the oldest session of the address is ended"
        );
        shares.remove(first);
        shares.add(STALLED_SESSION_NS, attacker, || None).unwrap();
    }

    #[test]
    fn proved_sessions_use_no_share_and_are_not_ended() {
        let (shares, address) = (SessionShares::default(), ip("10.0.0.1"));
        let (server_side, client_side) = stream();
        let handle = server_side.try_clone().unwrap();
        let proved = shares.add(0, address, || Some(handle)).unwrap();
        shares.prove(proved);
        for _ in 0..UNPROVED_SESSIONS_PER_ADDRESS {
            shares.add(0, address, || None).unwrap();
        }
        assert_eq!(shares.add(10 * STALLED_SESSION_NS, address, || None), None);
        client_side.set_nonblocking(true).unwrap();
        let read = std::io::Read::read(&mut (&client_side), &mut [0]);
        assert!(read.is_err(), "it is open: {read:?}");
    }

    #[test]
    fn all_places_are_shared_by_addresses() {
        let shares = SessionShares::default();
        let mut clients = Vec::new();
        for number in 0..SESSION_PERMIT_LIMIT {
            let (server_side, client_side) = stream();
            let address = IpAddr::from([10, 0, 0, (number % 2) as u8]);
            shares
                .add(number as u64, address, || Some(server_side))
                .unwrap();
            clients.push(client_side);
        }
        let late = 10 * STALLED_SESSION_NS;
        assert_eq!(shares.add(late, ip("10.0.0.9"), || None), None);
        assert_eq!(
            std::io::Read::read(&mut (&clients[0]), &mut [0]).unwrap(),
            0
        );
    }
}
