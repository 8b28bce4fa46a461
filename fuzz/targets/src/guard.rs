//! Anti-amplification limit.

use std::net::{IpAddr, Ipv4Addr};

use linerate_dialect::guard::{Guard, Network, PROOF_NS, Rules};

/// Guard: each 4 bytes are an event; an unvalidated address never receives more than it sent.
pub fn guard(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(network) = text.parse::<Network>()
    {
        let again = network.to_string().parse::<Network>();
        assert_eq!(again.as_ref(), Ok(&network));
    }
    let mut guard = Guard::with_addresses(
        Rules {
            allowed: vec![Network::new(Ipv4Addr::from_bits(0).into(), 30)],
            address_bytes_per_second: 1 << 20,
            total_bytes_per_second: 1 << 21,
            ..Rules::default()
        },
        4,
    );
    let mut now = 0u64;
    let mut account = [(0u64, 0u64, None); 16];
    for act in data.chunks_exact(4) {
        let [what, who, size, passed] = act else {
            continue;
        };
        now += u64::from(*passed) << 20;
        let who = who % 16;
        let plain = Ipv4Addr::from_bits(u32::from(who));
        // The same address in both representations.
        let address: IpAddr = match what & 4 {
            0 => plain.into(),
            _ => plain.to_ipv6_mapped().into(),
        };
        let bytes = u64::from(*size) << (what >> 4);
        let (came, left, proved_at) = &mut account[usize::from(who)];
        // Validation expires, and bytes sent under it are no debt afterwards. Bytes received
        // meanwhile may be credit: other addresses may have evicted the validation earlier.
        if proved_at.is_some_and(|at| now - at > PROOF_NS) {
            (*left, *proved_at) = (0, None);
        }
        let proved = proved_at.is_some();
        match what & 3 {
            0 | 1 => {
                guard.received(now, address, bytes);
                *came += bytes;
            }
            2 if size % 16 == 0 => {
                guard.prove(now, address);
                *proved_at = Some(now);
            }
            _ => {
                if guard.send(now, address, bytes).is_ok() {
                    *left += bytes;
                    assert!(proved || who < 4, "{who} is not a neighbour");
                }
            }
        }
        assert!(proved || left <= came, "{account:?}");
        let (strangers, known) = guard.remembered();
        assert!(strangers <= 4 && known <= 4);
    }
}
