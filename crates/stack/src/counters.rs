//! What the stack has counted, in the names of the MIBs where they have one.

macro_rules! counters {
    ($($(#[$group_doc:meta])* $group:ident $Group:ident { $($(#[$doc:meta])* $name:ident,)* })*) => {
        $(
            $(#[$group_doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct $Group {
                $($(#[$doc])* pub $name: u64,)*
            }
        )*

        /// Everything counted since the stack was made.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$group_doc])* pub $group: $Group,)*
        }

        impl Counters {
            /// Each counter: its protocol, its name, its value.
            #[must_use]
            pub fn rows(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$($((stringify!($group), stringify!($name), self.$group.$name),)*)*]
            }

            /// What was added since an earlier reading.
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
    /// Frames and neighbours.
    link Link {
        /// Frames taken from the port.
        in_frames,
        /// Frames that the port sent.
        out_frames,
        /// Frames to other Ethernet addresses, which the port showed us all the same.
        in_not_ours,
        /// Frames of protocols that the stack does not speak.
        in_unknown_protocols,
        /// Frames that end before their headers do.
        in_errors,
        /// Frames that the port dropped because its ring was full.
        port_ring_full,
        /// Frames that the port dropped because no buffer was free.
        port_no_buffer,
        /// Frames that the port dropped because they are longer than it takes.
        port_too_long,
        /// Frames that the port dropped because they are none, or cut off.
        port_bad,
        /// Frames that the port took and did not send: longer than its interface sends now, or refused by it.
        port_out_dropped,
        /// Frames that could not be made because no buffer was free.
        out_no_buffer,
        /// Answers that were given up because the transmit ring was full.
        out_ring_full,
        /// Answers that were given up because answers had their share of what a turn sends: to echo, to neighbours who
        /// ask, resets and errors; and to echo in fragments, while another datagram leaves in some.
        out_answers_limited,
        /// Frames that waited for a neighbour's address in vain, or found no place to wait.
        out_unresolved,
        /// ARP and neighbour discovery: questions that came.
        in_neighbor_requests,
        /// ARP and neighbour discovery: answers that came.
        in_neighbor_replies,
        /// ARP and neighbour discovery: questions asked.
        out_neighbor_requests,
        /// ARP and neighbour discovery: answers given.
        out_neighbor_replies,
        /// ARP and neighbour discovery: own addresses told to everybody without having been asked.
        out_announcements,
        /// ARP and neighbour discovery: messages in which another Ethernet address has an address of ours.
        in_address_conflicts,
    }
    /// IPv4 and IPv6 together (ipSystemStatsTable of RFC 4293).
    ip Ip {
        /// Packets that came.
        in_receives,
        /// Packets with a bad header, its checksum among it.
        in_header_errors,
        /// Packets to addresses that are not ours.
        in_address_errors,
        /// Packets of protocols that the stack does not speak.
        in_unknown_protocols,
        /// Packets from addresses that no host has: a group's, everybody's, loopback.
        in_source_errors,
        /// Segments of TCP in pieces or behind headers of IPv6, for which no buffer was free.
        in_no_buffer,
        /// The same, longer than a frame.
        in_too_long,
        /// Packets handed to a protocol.
        in_delivers,
        /// Packets that UDP, TCP and ICMP sent, those that left in fragments once each.
        out_requests,
        /// Packets without a route.
        out_no_routes,
        /// Fragments that came.
        reassembly_required,
        /// Datagrams put together.
        reassembly_ok,
        /// Datagrams given up because a fragment did not come in time.
        reassembly_timeouts,
        /// Datagrams given up because newer ones needed their buffer.
        reassembly_evicted,
        /// Fragments dropped because all buffers hold whole datagrams that were not fetched yet.
        reassembly_no_buffer,
        /// Fragments of datagrams that were whole or given up a short while before: duplicates, and what is left of a
        /// datagram that is lost.
        reassembly_late,
        /// Fragments of datagrams that no buffer is long enough for.
        reassembly_too_long,
        /// Fragments that contradict others, or come while reassembly is off.
        reassembly_errors,
        /// Datagrams that left in fragments.
        fragmented_ok,
        /// Datagrams that would have had to and could not.
        fragmented_fails,
        /// Fragments made.
        fragments_created,
        /// Times that a router on the way said of a datagram or an echo answer of IPv6 that it is too long, and shorter
        /// packets were sent there from then on.
        path_mtu_told,
    }
    /// ICMP and ICMPv6.
    icmp Icmp {
        /// Messages that came.
        in_messages,
        /// Messages cut short or of a bad form.
        in_errors,
        /// Messages with a bad checksum.
        in_checksum_errors,
        /// Echo requests.
        in_echos,
        /// Echo requests to everybody, or to a group of IPv4, which nobody has to answer.
        in_echos_ignored,
        /// Messages sent, those of neighbour discovery among them.
        out_messages,
        /// Errors that were not sent because too many had been.
        out_limited,
        /// Echo answers sent.
        out_echo_replies,
        /// Messages sent that a port is unreachable.
        out_port_unreachables,
        /// Messages sent that headers of IPv6 ask for what the stack does not do.
        out_parameter_problems,
        /// Messages received that a port is unreachable.
        in_port_unreachables,
    }
    /// UDP (RFC 4113).
    udp Udp {
        /// Datagrams put into a socket's queue.
        in_datagrams,
        /// Datagrams sent.
        out_datagrams,
        /// Datagrams to a port that nobody has.
        no_ports,
        /// Datagrams with a bad checksum.
        in_checksum_errors,
        /// Datagrams whose checksum their sender left to a device that is none, taken: their way lies
        /// within this machine.
        in_open_checksums,
        /// The same, dropped: whether they are whole cannot be known.
        open_checksum_drops,
        /// Datagrams cut short or of a bad form.
        in_errors,
        /// Datagrams that found their socket's queue full.
        receive_queue_full,
        /// Datagrams for which no packet buffer was left (`udp.buffers`).
        no_buffer,
    }
    /// TCP (RFC 4022).
    tcp Tcp {
        /// Connections asked for by this end.
        active_opens,
        /// Connections asked for by others.
        passive_opens,
        /// Connections that did not come about.
        attempt_fails,
        /// Connections that the far end broke off.
        established_resets,
        /// Segments that came.
        in_segments,
        /// Segments sent.
        out_segments,
        /// Segments sent that carry payload sent before.
        retransmitted_segments,
        /// Segments cut short or of a bad form.
        in_errors,
        /// Segments with a bad checksum.
        in_checksum_errors,
        /// Segments whose checksum their sender left to a device that is none, taken: their way lies within
        /// this machine.
        in_open_checksums,
        /// The same, dropped: whether they are whole cannot be known.
        open_checksum_drops,
        /// Resets sent.
        out_resets,
        /// Acknowledgements sent in answer to a request for a connection that stands, to a reset that may be another
        /// one's, or to an acknowledgement of what was not sent (RFC 5961).
        out_challenges,
        /// Times that a router on the way said that segments are too long, and shorter ones were sent from then on.
        path_mtu_told,
        /// Times that a segment was sent again in vain until shorter ones were sent: somebody drops long ones, and says
        /// nothing.
        path_mtu_guesses,
        /// Requests for a connection that found the listener's queue full.
        listen_overflows,
        /// Requests for a connection that found all sockets in use.
        no_sockets,
        /// Times that one connection was worked on; a connection that is idle is not.
        connection_steps,
        /// Segments to a port where nobody listens, of no connection.
        no_ports,
    }
}
