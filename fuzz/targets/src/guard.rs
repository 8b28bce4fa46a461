//! Anti-amplification limit.

use std::net::{IpAddr, Ipv4Addr};

use linerate_protocol::amplification_guard::{AmplificationGuard, GuardRules, IpNetwork, VALIDATION_LIFETIME_NS};

/// Guard: each 4 bytes are an event; an unvalidated address never receives more than it sent.
pub fn guard(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(network) = text.parse::<IpNetwork>()
    {
        let reparsed = network.to_string().parse::<IpNetwork>();
        assert_eq!(reparsed.as_ref(), Ok(&network));
    }
    let mut guard = AmplificationGuard::with_addresses(
        GuardRules {
            allowed: vec![IpNetwork::new(Ipv4Addr::from_bits(0).into(), 30)],
            address_bytes_per_second: 1 << 20,
            total_bytes_per_second: 1 << 21,
            ..GuardRules::default()
        },
        4,
    );
    let mut now = 0u64;
    let mut accounts = [(0u64, 0u64, None); 16];
    for act in data.chunks_exact(4) {
        let [action, host, size, elapsed] = act else {
            continue;
        };
        now += u64::from(*elapsed) << 20;
        let host = host % 16;
        let plain = Ipv4Addr::from_bits(u32::from(host));
        // The same address in both representations.
        let address: IpAddr = match action & 4 {
            0 => plain.into(),
            _ => plain.to_ipv6_mapped().into(),
        };
        let bytes = u64::from(*size) << (action >> 4);
        let (received_bytes, sent_bytes, validated_at) = &mut accounts[usize::from(host)];
        // Validation expires, and bytes sent under it are no debt afterwards. Bytes received
        // meanwhile may be credit: other addresses may have evicted the validation earlier.
        if validated_at.is_some_and(|at| now - at > VALIDATION_LIFETIME_NS) {
            (*sent_bytes, *validated_at) = (0, None);
        }
        let is_validated = validated_at.is_some();
        match action & 3 {
            0 | 1 => {
                guard.add_received(now, address, bytes);
                *received_bytes += bytes;
            }
            2 if size % 16 == 0 => {
                guard.validate(now, address);
                *validated_at = Some(now);
            }
            _ => {
                if guard.authorize_send(now, address, bytes).is_ok() {
                    *sent_bytes += bytes;
                    assert!(is_validated || host < 4, "{host} is not a neighbour");
                }
            }
        }
        assert!(is_validated || sent_bytes <= received_bytes, "{accounts:?}");
        let (unvalidated, validated) = guard.address_counts();
        assert!(unvalidated <= 4 && validated <= 4);
    }
}
