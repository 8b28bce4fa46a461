//! Protocol numbers of IP headers (IANA registry, RFC 5237).

pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMPV6: u8 = 58;
