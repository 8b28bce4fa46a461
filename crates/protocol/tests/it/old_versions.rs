//! Compatibility with the frames of earlier versions.

use linerate_protocol::control::{ControlCodec, FlowToken, Frame, Hello};
use linerate_record::plan::{Direction, RunKind, WaitMode};

fn bytes_of(hex: &str) -> Vec<u8> {
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}

#[test]
fn frames_of_version_1() {
    let mut server = ControlCodec::server(Hello::new("server")).unwrap();
    let mut frames = Vec::new();
    for line in include_str!("../fixtures/frames-1.hex")
        .lines()
        .filter(|line| !line.starts_with('#'))
    {
        let (name, hex) = line.split_once(' ').unwrap();
        server.receive(&bytes_of(hex)).unwrap();
        let frame = server.next_frame().unwrap().expect(name);
        assert_eq!(frame.name(), name);
        frames.push(frame);
    }
    assert_eq!(frames.len(), 16);

    // One field of each nested type, the flattened ones too, so that no default hides a failure.
    for frame in &frames {
        match frame {
            Frame::Hello(hello) => assert_eq!(hello.features, ["text 2"]),
            Frame::Reject(reject) => assert_eq!(reject.problem.next_step, "text 6"),
            Frame::Propose(propose) => {
                assert_eq!(propose.plan.kind, RunKind::Latency);
                assert_eq!(propose.plan.wait.as_ref().unwrap().server, WaitMode::Spin);
                assert!(propose.host.interface.as_ref().unwrap().mtu.is_some());
            }
            Frame::Accept(accept) => {
                assert_eq!(accept.flows[0].direction, Direction::Receive);
                assert_ne!(accept.flows[0].token, FlowToken([0; 16]));
                assert_eq!(accept.cpus.0.len(), 1);
            }
            Frame::Interval(ended) => assert!(ended.interval.rtt_ns.unwrap().p99_99 > 0),
            Frame::Sent(sent) => assert!(sent.flows[0].packets.is_some()),
            Frame::Stop(stop) => assert!(stop.reason.starts_with("text")),
            Frame::Results(results) => {
                let stream = &results.streams[0].stream;
                assert!(stream.summary.goodput_bps.is_some());
                assert!(stream.summary.rtt_ns.unwrap().standard_deviation > 0.0);
                assert_eq!(stream.summary.cpu.len(), 1);
                let socket = stream.receiver.as_ref().unwrap();
                assert!(socket.tcp.as_ref().unwrap().busy_ns.is_some());
                let (_, histogram) = results.histograms.first_key_value().unwrap();
                assert_eq!(histogram.buckets.len(), 1);
                assert!(results.losses[0].exact && results.interrupted);
            }
            Frame::Settings(settings) => assert_eq!(settings.requested.len(), 1),
            Frame::SettingsReply(reply) => assert_eq!(reply.rejected.len(), 1),
            Frame::ClockRequest(request) => assert!(request.t1_ns > 0),
            Frame::ClockReply(reply) => assert!(reply.t3_ns > reply.t2_ns),
            Frame::Attached(_) | Frame::Start(_) | Frame::Heartbeat(_) | Frame::Bye(_) => {}
            // Not in the first release with version 1.
            Frame::Figures(_) | Frame::Timestamps(_) => panic!("newer than the fixture: {frame:?}"),
        }
    }
}
