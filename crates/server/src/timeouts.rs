//! Silence limits of a server: the times after which it gives up a peer that sends nothing.

use std::time::Duration;

use linerate_session::control_connection::{CLIENT_SILENCE_TIMEOUT, HANDSHAKE_STATE_TIMEOUT};

/// Factor between [`Timeouts::DEFAULT`] and [`Timeouts::short`]: the shortest limit stays longer
/// than a process waits for a busy processor.
const SHORT_FACTOR: u32 = 5;

/// Silence limits of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Time after which a connection that is not classified is closed.
    pub classify: Duration,
    /// Longest time in one state of the handshake, even while heartbeats arrive.
    pub handshake: Duration,
    /// Silence after which the client of a control connection counts as gone.
    pub client_silence: Duration,
    /// Longest wait for the next flow of an accepted test.
    pub attach: Duration,
    /// Time for the request that starts a test of another tool: the first bytes without a
    /// recognised protocol, the cookie of iperf3, the parameters of nuttcp.
    pub request: Duration,
    /// Time for the header of iperf2.
    pub header: Duration,
    /// Time for a client to accept a connection of the server, or to open its data connections.
    pub data_connect: Duration,
    /// Time of one connection attempt to a client: a lost SYN is sent again after 1 s.
    pub connect_attempt: Duration,
    /// Time without payload after which a client of a running test counts as gone.
    pub idle: Duration,
    /// Idle timeout of protocols without a control channel.
    pub plain_idle: Duration,
    /// Silence that ends a flow of datagrams without an end marker. It outlasts a client that is
    /// stopped for ten seconds, in a debugger or with its virtual machine.
    pub flow_silence: Duration,
}

impl Timeouts {
    /// Limits of a server in use.
    pub const DEFAULT: Self = Self {
        classify: Duration::from_secs(10),
        handshake: HANDSHAKE_STATE_TIMEOUT,
        client_silence: CLIENT_SILENCE_TIMEOUT,
        attach: Duration::from_secs(10),
        request: Duration::from_secs(10),
        header: Duration::from_secs(5),
        data_connect: Duration::from_secs(5),
        connect_attempt: Duration::from_secs(2),
        idle: Duration::from_secs(30),
        plain_idle: Duration::from_secs(10),
        flow_silence: Duration::from_secs(12),
    };

    /// Returns limits for tests that wait for silence: a fifth of [`Self::DEFAULT`] each, so that
    /// their ratios stay.
    #[must_use]
    pub fn short() -> Self {
        let shorten = |timeout: Duration| timeout / SHORT_FACTOR;
        let Self {
            classify,
            handshake,
            client_silence,
            attach,
            request,
            header,
            data_connect,
            connect_attempt,
            idle,
            plain_idle,
            flow_silence,
        } = Self::DEFAULT;
        Self {
            classify: shorten(classify),
            handshake: shorten(handshake),
            client_silence: shorten(client_silence),
            attach: shorten(attach),
            request: shorten(request),
            header: shorten(header),
            data_connect: shorten(data_connect),
            connect_attempt: shorten(connect_attempt),
            idle: shorten(idle),
            plain_idle: shorten(plain_idle),
            flow_silence: shorten(flow_silence),
        }
    }

    /// Returns the longest wait for all flows of a test: that for the first, then 100 flows a
    /// second.
    #[must_use]
    pub fn attach_all(&self, flows: usize) -> Duration {
        self.attach + Duration::from_millis(10) * u32::try_from(flows).unwrap_or(u32::MAX)
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_stopped_for_ten_seconds_is_kept() {
        let stopped = Duration::from_secs(10);
        let timeouts = Timeouts::DEFAULT;
        for timeout in [
            timeouts.client_silence,
            timeouts.flow_silence,
            timeouts.idle,
        ] {
            assert!(timeout > stopped, "{timeout:?}");
        }
    }

    #[test]
    fn short_limits_have_the_same_ratios() {
        let (real, short) = (Timeouts::DEFAULT, Timeouts::short());
        assert_eq!(short.flow_silence * SHORT_FACTOR, real.flow_silence);
        assert!(short.handshake < short.client_silence);
        assert!(short.connect_attempt < short.data_connect);
    }
}
