//! Rate limits of ICMP messages.

use crate::Nanos;

/// Limits of errors sent: at once, and per second (Linux's defaults of net.ipv4.icmp_msgs_burst and
/// icmp_msgs_per_sec).
const ERROR_BURST: u32 = 50;
const ERRORS_PER_SECOND: u64 = 1_000;
const SECOND: Nanos = 1_000_000_000;

/// Limits of accepted Packet Too Big messages about datagrams and echo replies, at once and per
/// second. An attacker who makes the stack send long packets to many hosts can forge such messages;
/// within these limits they evict few remembered paths and invalidate few headers.
const PATH_MTU_BURST: u32 = 16;
const PATH_MTU_PER_SECOND: u64 = 10;

/// Rate limiter: a token bucket that fills with time (for errors: RFC 1812, section 4.3.2.8; RFC
/// 4443, section 2.4).
pub(crate) struct RateLimit {
    burst: u32,
    /// Time in which one token is added.
    token_ns: Nanos,
    tokens: u32,
    /// Time up to which tokens were added.
    filled_at: Nanos,
}

impl RateLimit {
    /// Returns the limiter of ICMP errors sent.
    pub(crate) const fn for_errors() -> Self {
        Self::new(ERROR_BURST, ERRORS_PER_SECOND)
    }

    /// Returns the limiter of accepted path MTU messages.
    pub(crate) const fn for_path_mtus() -> Self {
        Self::new(PATH_MTU_BURST, PATH_MTU_PER_SECOND)
    }

    const fn new(burst: u32, per_second: u64) -> Self {
        assert!(SECOND.is_multiple_of(per_second));
        Self {
            burst,
            token_ns: SECOND / per_second,
            tokens: burst,
            filled_at: 0,
        }
    }

    /// Adds the tokens of the elapsed time and returns whether there is one.
    pub(crate) fn has_token(&mut self, now: Nanos) -> bool {
        let new_tokens = now.saturating_sub(self.filled_at) / self.token_ns;
        self.filled_at += new_tokens * self.token_ns;
        let tokens = u64::from(self.tokens).saturating_add(new_tokens);
        self.tokens = tokens.min(self.burst.into()) as u32;
        self.tokens > 0
    }

    /// Takes a token; false if there is none.
    pub(crate) fn take_token(&mut self, now: Nanos) -> bool {
        let has_one = self.has_token(now);
        self.tokens -= u32::from(has_one);
        has_one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_limited() {
        let mut limit = RateLimit::for_errors();
        let mut taken_tokens = |now, times| (0..times).filter(|_| limit.take_token(now)).count();
        let start = 77 * SECOND + 5;
        assert_eq!(taken_tokens(start, 200), 50);
        assert_eq!(taken_tokens(start + SECOND / 100, 200), 10);
        assert_eq!(taken_tokens(start + SECOND / 100 + 999_000, 200), 0);
        // A steady stream: a thousand per second.
        let after = start + SECOND / 100;
        let sent: usize = (1..=10_000)
            .map(|step| taken_tokens(after + step * SECOND / 10_000, 1))
            .sum();
        assert_eq!(sent, 1_000);
        assert_eq!(taken_tokens(start + 60 * SECOND, 200), 50);
    }

    #[test]
    fn few_paths_are_believed_at_a_time() {
        let mut limit = RateLimit::for_path_mtus();
        let mut taken_tokens = |now, times| (0..times).filter(|_| limit.take_token(now)).count();
        // Fewer than are remembered, so that one burst leaves most of the known paths.
        assert_eq!(taken_tokens(7 * SECOND, 1_000), 16);
        assert_eq!(taken_tokens(7 * SECOND + SECOND / 2, 1_000), 5);
        assert_eq!(taken_tokens(60 * SECOND, 1_000), 16);
    }
}
