//! Compatibility with the frames of earlier versions.

use linerate_dialect::control::{Connection, Frame, Hello, Token};
use linerate_metric::plan::{Direction, Kind, Wait};

fn bytes_of(hex: &str) -> Vec<u8> {
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}

#[test]
fn frames_of_version_1() {
    let mut server = Connection::server(Hello::new("server")).unwrap();
    let mut frames = Vec::new();
    for line in include_str!("fixtures/frames-1.hex")
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
            Frame::Refuse(refuse) => assert_eq!(refuse.problem.next_step, "text 6"),
            Frame::Propose(propose) => {
                assert_eq!(propose.plan.kind, Kind::Latency);
                assert_eq!(propose.plan.wait.as_ref().unwrap().far, Wait::Spin);
                assert!(propose.host.interface.as_ref().unwrap().mtu.is_some());
            }
            Frame::Accept(accept) => {
                assert_eq!(accept.flows[0].direction, Direction::Receive);
                assert_ne!(accept.flows[0].token, Token([0; 16]));
                assert_eq!(accept.cpus.0.len(), 1);
            }
            Frame::Interval(ended) => assert!(ended.interval.rtt_ns.unwrap().p99_99 > 0),
            Frame::Sent(sent) => assert!(sent.flows[0].packets.is_some()),
            Frame::Stop(stop) => assert!(stop.why.starts_with("text")),
            Frame::Outcome(outcome) => {
                let stream = &outcome.streams[0].stream;
                assert!(stream.summary.goodput_bps.is_some());
                assert!(stream.summary.rtt_ns.unwrap().standard_deviation > 0.0);
                assert_eq!(stream.summary.cpu.len(), 1);
                let socket = stream.receiver.as_ref().unwrap();
                assert!(socket.tcp.as_ref().unwrap().busy_ns.is_some());
                let (_, histogram) = outcome.histograms.first_key_value().unwrap();
                assert_eq!(histogram.buckets.len(), 1);
                assert!(outcome.losses[0].exact && outcome.interrupted);
            }
            Frame::Settings(settings) => assert_eq!(settings.wanted.len(), 1),
            Frame::SettingsAnswer(answer) => assert_eq!(answer.refused.len(), 1),
            Frame::ClockQuestion(question) => assert!(question.t1_ns > 0),
            Frame::ClockAnswer(answer) => assert!(answer.t3_ns > answer.t2_ns),
            Frame::Attached(_) | Frame::Start(_) | Frame::Heartbeat(_) | Frame::Bye(_) => {}
            // Not in the first release with version 1.
            Frame::Figures(_) | Frame::Stamps(_) => panic!("newer than the fixture: {frame:?}"),
        }
    }
}
