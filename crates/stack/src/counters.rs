//! Counters of the stack, with the names of the SNMP MIBs where these have one.

macro_rules! counters {
    ($($(#[$group_doc:meta])* $group:ident $Group:ident { $($(#[$doc:meta])* $name:ident,)* })*) => {
        $(
            $(#[$group_doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct $Group {
                $($(#[$doc])* pub $name: u64,)*
            }
        )*

        /// Counters since the stack was created.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$group_doc])* pub $group: $Group,)*
        }

        impl Counters {
            /// Returns protocol, name and value of each counter.
            #[must_use]
            pub fn entries(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$($((stringify!($group), stringify!($name), self.$group.$name),)*)*]
            }

            /// Returns the difference to an earlier snapshot.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self {
                    $($group: $Group {
                        $($name: self.$group.$name.saturating_sub(earlier.$group.$name),)*
                    },)*
                }
            }
        }
    };
}

counters! {
    /// Link layer: frames and neighbours.
    link Link {
        /// Frames received from the port.
        in_frames,
        /// Frames that the port sent.
        out_frames,
        /// Frames received for other Ethernet addresses.
        in_not_ours,
        /// Frames of protocols that the stack does not support.
        in_unknown_protocols,
        /// Frames shorter than their headers.
        in_errors,
        /// Frames that the port dropped because its ring was full.
        port_ring_full,
        /// Frames that the port dropped because no buffer was free.
        port_no_buffer,
        /// Frames that the port dropped because they are longer than it takes.
        port_too_long,
        /// Frames that the port dropped because they are malformed or truncated.
        port_bad,
        /// Frames that the port took and did not send: too long for its interface, or rejected by
        /// it.
        port_out_dropped,
        /// Frames that were not made because no buffer was free.
        out_no_buffer,
        /// Replies dropped because the transmit ring was full.
        out_ring_full,
        /// Replies dropped because replies had used their share of the poll's frames: echo replies,
        /// neighbour replies, resets and ICMP errors. Also fragmented echo replies dropped while
        /// another datagram leaves in fragments.
        out_answers_limited,
        /// Frames whose neighbour was not resolved, or that found the waiting queue full.
        out_unresolved,
        /// ARP requests and neighbour solicitations received.
        in_neighbor_requests,
        /// ARP replies and neighbour advertisements received.
        in_neighbor_replies,
        /// ARP requests and neighbour solicitations sent.
        out_neighbor_requests,
        /// ARP replies and neighbour advertisements sent in reply.
        out_neighbor_replies,
        /// Unsolicited announcements of the stack's addresses sent (ARP and neighbour discovery).
        out_announcements,
        /// ARP and neighbour discovery messages that claim an address of the stack for another
        /// Ethernet address.
        in_address_conflicts,
    }
    /// IPv4 and IPv6 together (ipSystemStatsTable of RFC 4293).
    ip Ip {
        /// Packets received.
        in_receives,
        /// Packets with an invalid header, wrong checksum included.
        in_header_errors,
        /// Packets to addresses that the stack does not have.
        in_address_errors,
        /// Packets of protocols that the stack does not support.
        in_unknown_protocols,
        /// Packets with an invalid source: multicast, broadcast or loopback.
        in_source_errors,
        /// Fragmented TCP segments, or segments behind IPv6 extension headers, for which no buffer
        /// was free.
        in_no_buffer,
        /// Fragmented TCP segments, or segments behind IPv6 extension headers, longer than a frame.
        in_too_long,
        /// Packets delivered to a protocol.
        in_delivers,
        /// Packets sent by UDP, TCP and ICMP; a fragmented packet counts once.
        out_requests,
        /// Packets dropped without a route.
        out_no_routes,
        /// Fragments received.
        reassembly_required,
        /// Datagrams reassembled.
        reassembly_ok,
        /// Datagrams dropped because a fragment did not arrive in time.
        reassembly_timeouts,
        /// Incomplete datagrams dropped to free their buffer for newer ones.
        reassembly_evicted,
        /// Fragments dropped because all buffers hold complete datagrams that were not read yet.
        reassembly_no_buffer,
        /// Fragments of datagrams that were completed or dropped shortly before: duplicates, and
        /// the rest of a lost datagram.
        reassembly_late,
        /// Fragments of datagrams longer than a reassembly buffer.
        reassembly_too_long,
        /// Fragments that contradict others, or arrive while reassembly is off.
        reassembly_errors,
        /// Datagrams sent in fragments.
        fragmented_ok,
        /// Datagrams that needed fragmentation and could not be fragmented.
        fragmented_fails,
        /// Fragments sent.
        fragments_created,
        /// Packet Too Big messages about IPv6 datagrams or echo replies that reduced the path MTU
        /// of their destination.
        path_mtu_reported,
    }
    /// ICMP and ICMPv6.
    icmp Icmp {
        /// Messages received.
        in_messages,
        /// Truncated or malformed messages received.
        in_errors,
        /// Messages received with a wrong checksum.
        in_checksum_errors,
        /// Echo requests received.
        in_echos,
        /// Echo requests to an IPv4 broadcast or multicast address, or from the unspecified
        /// address, which are ignored.
        in_echos_ignored,
        /// Messages sent, neighbour discovery included.
        out_messages,
        /// Errors not sent because of the rate limit.
        out_limited,
        /// Echo replies sent.
        out_echo_replies,
        /// Port Unreachable errors sent.
        out_port_unreachables,
        /// Parameter Problem errors sent (IPv6).
        out_parameter_problems,
        /// Port Unreachable errors received.
        in_port_unreachables,
    }
    /// UDP (RFC 4113).
    udp Udp {
        /// Datagrams put into a socket's queue.
        in_datagrams,
        /// Datagrams sent.
        out_datagrams,
        /// Datagrams to a port without a socket.
        no_ports,
        /// Datagrams received with a wrong checksum.
        in_checksum_errors,
        /// Datagrams with a partial checksum (left to an offload device that does not exist),
        /// accepted: their path lies within this machine.
        in_open_checksums,
        /// Datagrams with a partial checksum, dropped: their integrity cannot be verified.
        open_checksum_drops,
        /// Truncated or malformed datagrams received.
        in_errors,
        /// Datagrams dropped because the socket's queue was full.
        receive_queue_full,
        /// Datagrams dropped because no packet buffer was left (`udp.buffers`).
        no_buffer,
    }
    /// TCP (RFC 4022).
    tcp Tcp {
        /// Connections opened by this end.
        active_opens,
        /// Connections opened by peers.
        passive_opens,
        /// Connections that failed before they were established.
        attempt_fails,
        /// Established connections that were reset.
        established_resets,
        /// Segments received.
        in_segments,
        /// Segments sent.
        out_segments,
        /// Segments sent whose payload was sent before.
        retransmitted_segments,
        /// Truncated or malformed segments received.
        in_errors,
        /// Segments received with a wrong checksum.
        in_checksum_errors,
        /// Segments with a partial checksum (left to an offload device that does not exist),
        /// accepted: their path lies within this machine.
        in_open_checksums,
        /// Segments with a partial checksum, dropped: their integrity cannot be verified.
        open_checksum_drops,
        /// Resets sent.
        out_resets,
        /// Challenge ACKs sent (RFC 5961): for a SYN or a reset on an established connection, or
        /// for an acknowledgement of data not sent.
        out_challenges,
        /// Packet Too Big or Fragmentation Needed messages that reduced the segment size of a
        /// connection.
        path_mtu_reported,
        /// Reductions of the segment size after repeated timeouts of one segment: long packets are
        /// dropped without an ICMP message (path MTU black hole).
        path_mtu_guesses,
        /// SYNs dropped because the listener's queue was full.
        listen_overflows,
        /// SYNs dropped because all TCP sockets were in use.
        no_sockets,
        /// Times that a connection was processed; idle connections are not.
        connection_steps,
        /// Segments to a port without a listener that belong to no connection.
        no_ports,
    }
}
