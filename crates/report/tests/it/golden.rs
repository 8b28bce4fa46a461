//! Snapshots of all texts. To accept a change: `INSTA_UPDATE=always cargo test -p linerate-report
//! --test it golden`.

use crate::samples;
use insta::assert_snapshot;
use linerate_record::event::{ErrorReport, Event, EventKind};
use linerate_record::expect::Expectation;
use linerate_record::finding::Finding;
use linerate_record::ids::{CaveatId, StoredId};
use linerate_record::plan::Direction;
use linerate_record::record::{Caveat, Record, ServedClient};
use linerate_report::lines::LiveLines;
use linerate_report::{TextStyle, html, json_stream, text};

const UNICODE: TextStyle = TextStyle {
    unicode: true,
    ..TextStyle::PLAIN
};

const COLOR: TextStyle = TextStyle {
    color: true,
    ..UNICODE
};

const SMALL: TextStyle = TextStyle {
    width: 64,
    ..TextStyle::PLAIN
};

/// Returns the events that the engine emits for a run.
fn events(test: u32, record: &Record) -> Vec<Event> {
    let mut kinds = vec![
        EventKind::Connected {
            peer: "10.77.0.2:5201".to_owned(),
            agent: "linerate 0.1.0".to_owned(),
            accepted: false,
        },
        EventKind::Started {
            plan: Box::new(record.plan.clone()),
            wait: record.plan.wait.clone().unwrap_or_else(samples::block_spin),
            cpu: record.plan.cpu.clone(),
            wait_reason: None,
        },
    ];
    kinds.extend(record.intervals.iter().map(|interval| EventKind::Interval {
        interval: Box::new(interval.clone()),
    }));
    kinds.extend(
        record
            .validity
            .iter()
            .map(|caveat| EventKind::CaveatRaised {
                caveat: caveat.clone(),
            }),
    );
    kinds.push(EventKind::Finished {
        record: Box::new(record.clone()),
    });
    kinds.into_iter().map(|kind| Event { test, kind }).collect()
}

fn render_lines(mut lines: LiveLines, events: &[Event]) -> String {
    let lines: Vec<_> = events
        .iter()
        .filter_map(|event| lines.render_event(event))
        .collect();
    let text = lines.join("\n");
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "too long: {line}");
        assert_eq!(line, line.trim_end(), "blank at the end");
    }
    text
}

#[test]
fn live_lines_of_a_client() {
    let client = || LiveLines::new(TextStyle::PLAIN);
    assert_snapshot!(
        "lines_tcp",
        render_lines(client(), &events(1, &samples::tcp_send()))
    );
    assert_snapshot!(
        "lines_udp_both",
        render_lines(client(), &events(1, &samples::udp_bidirectional()))
    );
    assert_snapshot!(
        "lines_latency",
        render_lines(client(), &events(1, &samples::latency_spinning()))
    );
    assert_snapshot!(
        "lines_far_unknown",
        render_lines(client(), &events(1, &samples::server_unknown()))
    );
}

#[test]
fn live_lines_have_one_for_each_stream_on_request() {
    let mut all = events(1, &samples::ten_streams());
    all.truncate(4);
    let live = LiveLines::new(TextStyle::PLAIN).with_per_stream(true);
    insta::assert_snapshot!("lines_per_stream", render_lines(live, &all));
}

#[test]
fn live_lines_of_a_server_carry_the_test() {
    let tcp = events(3, &samples::tcp_send());
    let udp = events(4, &samples::udp_bidirectional());
    let mut all = vec![Event {
        test: 0,
        kind: EventKind::Ready {
            port: 5201,
            addresses: vec!["0.0.0.0".to_owned(), "::".to_owned()],
            other_ports: Vec::new(),
        },
    }];
    // Two concurrent tests: the header is repeated when the columns change.
    all.extend(tcp[..5].iter().cloned());
    all.extend(udp[..6].iter().cloned());
    all.extend(tcp[11..].iter().cloned());
    all.push(Event {
        test: 4,
        kind: EventKind::Failed {
            problem: ErrorReport::new(
                "no data for 10 s",
                "10.77.0.1:40522",
                "check whether the client is still running",
            ),
        },
    });
    assert_snapshot!(
        "lines_server",
        render_lines(LiveLines::for_server(TextStyle::PLAIN), &all)
    );
}

/// The server does not know how much another program received.
#[test]
fn a_server_marks_what_it_sent() {
    let mut record = samples::server_unknown();
    record.plan.peer_protocol = Some("iperf3".to_owned());
    record.plan.directions = vec![Direction::Receive];
    for interval in &mut record.intervals {
        interval.direction = Direction::Receive;
    }
    for width in [100, 80] {
        let style = TextStyle {
            width,
            ..TextStyle::PLAIN
        };
        let text = render_lines(LiveLines::for_server(style), &events(3, &record)[..5]);
        let rows: Vec<&str> = text.lines().filter(|line| line.contains("Gb/s")).collect();
        assert_eq!(rows.len(), 3, "{text}");
        assert!(text.contains("(sent, omitted)"), "{text}");
        assert!(
            rows[1..].iter().all(|row| row.ends_with("(sent)")),
            "{text}"
        );
    }
}

fn cause_finding(cause: &str) -> Finding {
    let finding = serde_json::json!({
        "kind": "cause", "cause": cause, "end": "client", "cost": 0.1, "summary": "",
        "evidence": [], "remedy": "",
    });
    serde_json::from_value(finding).unwrap()
}

/// Several causes and several notes are listed once each, after their plural.
#[test]
fn a_line_of_a_server_lists_causes_and_notes() {
    let mut record = samples::tcp_send();
    record.findings = ["small-writes", "nagle"].map(cause_finding).into();
    record.validity = vec![
        Caveat::new(CaveatId::Steal, "a"),
        Caveat::new(CaveatId::Steal, "b"),
    ];
    let line = text::render_server_line(&record, "");
    assert!(
        line.ends_with("; causes small-writes, nagle; note steal"),
        "{line}"
    );
}

#[test]
fn a_record_of_a_server_is_shown_from_its_view() {
    let mut record = samples::tcp_send();
    record.plan.peer_protocol = Some("iperf3".to_owned());
    record.served_client = Some(ServedClient {
        address: "10.77.0.1:40000".to_owned(),
        agent: "iperf3 3.12".to_owned(),
    });
    let text = text::render_summary(&record, &TextStyle::PLAIN);
    let title = "TCP from 10.77.0.1:40000 (iperf3)";
    assert!(text.starts_with(title), "{text}");
    assert!(
        text.contains("\nin ") && !text.contains("\nsend "),
        "{text}"
    );
    assert!(text::render_explanation(&record, &TextStyle::PLAIN).starts_with(title));
    let page = html::render_report("x", std::slice::from_ref(&record), &[]);
    assert!(page.contains(title) && page.contains("TCP from 10.77.0.1 (iperf3)"));
    record.plan.directions = vec![Direction::Send, Direction::Receive];
    record.plan.sequential = true;
    let text = text::render_summary(&record, &TextStyle::PLAIN);
    assert!(text.starts_with("TCP one direction after the other with 10.77.0.1"));
}

#[test]
fn an_interval_without_its_start_event_is_shown() {
    let record = samples::udp_bidirectional();
    let interval = Event {
        test: 1,
        kind: EventKind::Interval {
            interval: Box::new(record.intervals[0].clone()),
        },
    };
    let text = render_lines(LiveLines::new(TextStyle::PLAIN), &[interval]);
    assert!(text.contains("packets/s"), "{text}");
}

#[test]
fn summaries() {
    for (name, record, style) in [
        ("summary_tcp", samples::tcp_send(), TextStyle::PLAIN),
        (
            "summary_udp_both",
            samples::udp_bidirectional(),
            TextStyle::PLAIN,
        ),
        (
            "summary_latency",
            samples::latency_blocking(),
            TextStyle::PLAIN,
        ),
        (
            "summary_latency_limit",
            samples::latency_limited(),
            TextStyle::PLAIN,
        ),
        (
            "summary_latency_reopened",
            samples::latency_reopened(),
            TextStyle::PLAIN,
        ),
        ("summary_many_streams", samples::ten_streams(), UNICODE),
        (
            "summary_interrupted",
            samples::interrupted(),
            TextStyle::PLAIN,
        ),
        (
            "summary_far_unknown",
            samples::server_unknown(),
            TextStyle::PLAIN,
        ),
        ("summary_color", samples::udp_bidirectional(), COLOR),
        ("summary_hostile", samples::hostile(), TextStyle::PLAIN),
    ] {
        assert_snapshot!(
            name,
            text::render_summary(&record, &style).replace('\x1b', "ESC")
        );
    }
}

#[test]
fn skipped_copies_are_named_with_every_goodput() {
    let record = samples::discarded();
    let summary = text::render_summary(&record, &TextStyle::PLAIN);
    assert_snapshot!("summary_discarded", summary);
    let live = render_lines(LiveLines::new(TextStyle::PLAIN), &events(1, &record));
    for line in live.lines().filter(|line| line.contains("b/s")) {
        assert!(line.contains("receive copy skipped"), "{line}");
    }
    let page = html::render_report("discarded", &[record], &[]);
    assert!(page.matches("receive copy skipped").count() >= 3);
}

#[test]
fn corrupted_content_is_reported() {
    assert_snapshot!(
        "summary_corrupted",
        text::render_summary(&samples::corrupted(), &TextStyle::PLAIN)
    );
}

#[test]
fn calls_are_shown_by_result() {
    let mut record = samples::timed();
    assert_snapshot!(
        "summary_calls",
        text::render_summary(&record, &TextStyle::PLAIN)
    );
    let evil = record.calls.remove("sendto").unwrap();
    record.calls.insert("<b>\x1b".to_owned(), evil);
    let page = html::render_report("calls", &[record.clone()], &[]);
    tags(&page).unwrap_or_else(|error| panic!("{error}"));
    assert!(page.contains("System call times") && !page.contains("<b>\x1b"));
    assert!(!text::render_summary(&record, &TextStyle::PLAIN).contains('\x1b'));
}

#[test]
fn stages_of_a_round_trip_are_shown() {
    let mut record = samples::staged();
    assert_snapshot!(
        "summary_stages",
        text::render_summary(&record, &TextStyle::PLAIN)
    );
    assert_snapshot!(
        "summary_stages_small",
        text::render_summary(&record, &SMALL)
    );
    "<b>\x1b".clone_into(&mut record.stages[0].stage);
    record.stage_pass.as_mut().unwrap().notes = vec!["<i>\x1b".to_owned()];
    record.timeline.as_mut().unwrap().slices[0].name = "<u>\x1b".to_owned();
    let page = html::render_report("stages", &[record.clone()], &[]);
    tags(&page).unwrap_or_else(|error| panic!("{error}"));
    assert!(page.contains("Stages of a round trip"));
    assert!(!page.contains("<b>\x1b") && !page.contains("<i>\x1b") && !page.contains("<u>"));
    assert!(!text::render_summary(&record, &TextStyle::PLAIN).contains('\x1b'));
}

#[test]
fn sets() {
    assert_snapshot!(
        "set_demo",
        text::render_set(&samples::demo(), &TextStyle::PLAIN)
    );
    assert_snapshot!("set_demo_small", text::render_set(&samples::demo(), &SMALL));
    let set = samples::conclusions();
    assert_snapshot!("set_conclusions", text::render_set(&set, &TextStyle::PLAIN));
    let set = samples::waiting();
    assert_snapshot!("set_waiting", text::render_set(&set, &TextStyle::PLAIN));
    assert_snapshot!(
        "set_repeats",
        text::render_set(&samples::repeats(), &TextStyle::PLAIN)
    );
}

#[test]
fn runs_of_one_plan_under_several_names_are_not_mixed() {
    let mut set = samples::demo();
    let (mut idle, mut loaded) = (samples::latency_blocking(), samples::latency_blocking());
    idle.label = Some("idle".to_owned());
    loaded.label = Some("loaded".to_owned());
    set.runs = vec![idle, loaded];
    let text = text::render_set(&set, &TextStyle::PLAIN);
    assert!(!text.contains("median of"), "{text}");
    assert!(
        text.contains("Idle: UDP") && text.contains("Loaded:"),
        "{text}"
    );
}

#[test]
fn hosts() {
    let hosts = [samples::client(), samples::board()];
    assert_snapshot!("hosts", text::render_hosts(&hosts, &TextStyle::PLAIN));
}

#[test]
fn examinations() {
    let report = samples::doctor_report();
    assert_snapshot!(
        "examination",
        text::render_doctor_report(&report, &TextStyle::PLAIN)
    );
    assert_snapshot!(
        "examination_unicode",
        text::render_doctor_report(&report, &UNICODE)
    );
}

#[test]
fn verdicts() {
    let record = samples::latency_blocking();
    let verdicts: Vec<_> = ["p99<100us", "p50<10us", "p99.9>=1us"]
        .iter()
        .map(|text| {
            text.parse::<Expectation>()
                .unwrap()
                .evaluate(&record.summary)
        })
        .collect();
    assert_snapshot!(text::render_verdicts(&verdicts, &TextStyle::PLAIN), @r"
    met:     p99<100us   (measured 55.4 us)
    not met: p50<10us    (measured 48.5 us)
    met:     p99.9>=1us  (measured 140 us)
    ");
}

#[test]
fn problems() {
    let problem = ErrorReport::new(
        "connection refused",
        "10.77.0.2:5201",
        "start `linerate server` there",
    );
    assert_snapshot!(text::render_error(&problem, &TextStyle::PLAIN), @r"
    error: 10.77.0.2:5201: connection refused
    help:  start `linerate server` there
    ");
}

#[test]
fn every_event_is_one_line_of_json() {
    let now = "2026-11-21T14:40:43.5Z".parse().unwrap();
    let record = samples::latency_spinning();
    for event in events(1, &record) {
        let line = json_stream::event_line(&event, now);
        assert!(!line.contains('\n'));
        let back: Event = serde_json::from_str(&line).unwrap();
        assert_eq!(back, event);
    }
    let ready = Event {
        test: 0,
        kind: EventKind::Ready {
            port: 5201,
            addresses: vec!["::".to_owned()],
            other_ports: Vec::new(),
        },
    };
    assert_snapshot!(json_stream::event_line(&ready, now), @r#"{"schema":"linerate/event/1","time":"2026-11-21T14:40:43.5Z","test":0,"event":"ready","port":5201,"addresses":["::"]}"#);
    let raised = Event {
        test: 1,
        kind: EventKind::CaveatRaised {
            caveat: Caveat {
                id: StoredId::from_text("shared-cores".to_owned()),
                reason: "both ends share 2 cores".to_owned(),
            },
        },
    };
    assert_snapshot!(json_stream::event_line(&raised, now), @r#"{"schema":"linerate/event/1","time":"2026-11-21T14:40:43.5Z","test":1,"event":"caveat","caveat":{"doubt":"shared-cores","why":"both ends share 2 cores"}}"#);
}

/// Removes the long parts of a page: style, script, paths, rows of data.
fn skeleton(page: &str) -> String {
    let mut out = String::new();
    let mut rest = page;
    for (open, close) in [("<style>\n", "</style>"), ("<script>\n", "</script>")] {
        let (before, inside) = rest.split_once(open).unwrap();
        let (_, after) = inside.split_once(close).unwrap();
        out.push_str(before);
        out.push_str(open);
        out.push_str("...");
        out.push_str(close);
        rest = after;
    }
    out.push_str(rest);
    let mut lean = String::new();
    let mut rest = out.as_str();
    while let Some((before, inside)) = rest.split_once(" d=\"") {
        lean.push_str(before);
        lean.push_str(" d=\"...");
        rest = &inside[inside.find('"').unwrap()..];
    }
    lean.push_str(rest);
    lean.replace("><", ">\n<")
}

#[test]
fn a_series_of_runs_has_a_chart_of_the_varied_knob() {
    let run = samples::latency_blocking();
    let with = |change: &dyn Fn(usize, &mut linerate_record::record::Record)| {
        let runs = (0..4).map(|number| {
            let mut run = run.clone();
            change(number, &mut run);
            run
        });
        html::render_report("series", &runs.collect::<Vec<_>>(), &[])
    };
    let sizes = with(&|number, run| run.plan.payload_bytes = 64 << (2 * number));
    assert!(sizes.contains("<h4>Round-trip times by size</h4>"));
    assert!(sizes.contains(">4 KiB</th>") && sizes.contains("message, B"));
    let loads = with(&|number, run| {
        run.plan.round_trip.rate_per_second = Some(1_000 * (number as u64 + 1));
        run.summary.rtt_intended_ns = run.summary.rtt_ns;
    });
    assert!(loads.contains("<h4>Round-trip times by load</h4>"));
    assert!(loads.contains("p90 from scheduled") && loads.contains(">4,000/s</th>"));
    let rounds = with(&|number, run| {
        let name = ["blocking", "spinning"][number % 2];
        run.label = Some(name.to_owned());
    });
    assert!(
        !rounds.contains("Median of each round"),
        "two rounds are no curve"
    );
    let rounds = with(&|_, run| run.label = Some("blocking".to_owned()));
    assert!(rounds.contains("<h4>Median of each round</h4>"));
    assert!(rounds.contains(">round 4</th>"));
    for page in [sizes, loads, rounds] {
        assert!(tags(&page).is_ok());
        assert!(!page.contains("Median round trip (shorter is better)"));
    }
}

#[test]
fn a_page_of_a_set_has_its_conclusions() {
    let page = html::render_set("set", &samples::conclusions());
    assert!(tags(&page).is_ok());
    assert!(page.contains("<h2>Conclusions</h2>") && page.contains("per fragment"));
    assert!(page.contains("<td class=\"text short\">per byte</td>"));
    assert!(!page.contains("<pre>"), "no copy of the terminal");
    let page = html::render_set("set", &samples::repeats());
    assert!(!page.contains("Conclusions"));
}

#[test]
fn the_page() {
    let mut record = samples::udp_bidirectional();
    record.intervals.truncate(4);
    let page = html::render_report("UDP", &[record], &["one note".to_owned()]);
    assert_snapshot!("page", skeleton(&page));
}

/// Elements without an end tag.
const VOID: &[&str] = &["meta", "input", "path", "rect", "!doctype"];

/// Counts the elements of a page and checks that they are properly nested.
fn tags(page: &str) -> Result<usize, String> {
    let mut open = Vec::new();
    let mut count = 0;
    let mut rest = page;
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').ok_or("a tag without an end")?;
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        let name = tag.split(|c: char| c.is_whitespace()).next().unwrap_or("");
        if let Some(closed) = name.strip_prefix('/') {
            let opened = open.pop();
            if opened != Some(closed) {
                return Err(format!("</{closed}> closes {opened:?}"));
            }
        } else if !VOID.contains(&name.trim_end_matches('/')) {
            count += 1;
            open.push(name);
            if name == "script" || name == "style" {
                let close = format!("</{name}>");
                rest = &rest[rest.find(&close).ok_or("an open script")?..];
            }
        }
    }
    if open.is_empty() {
        Ok(count)
    } else {
        Err(format!("left open: {open:?}"))
    }
}

#[test]
fn pages_are_whole_load_nothing_and_escape_everything() {
    let demo = samples::demo();
    let odd = [
        samples::hostile(),
        samples::server_unknown(),
        samples::interrupted(),
        samples::ten_streams(),
    ];
    let evil = "<img src=x onerror=alert(1)>".to_owned();
    for page in [
        html::render_report("demo", &demo.runs, &demo.result.notes),
        html::render_report(&evil, &odd, std::slice::from_ref(&evil)),
        html::render_report("nothing", &[], &[]),
    ] {
        let tags = tags(&page).unwrap_or_else(|error| panic!("{error}"));
        assert!(tags > 10);
        assert!(!page.contains("alert(1)</script>"));
        assert!(!page.contains("<img"));
        assert!(!page.contains('\x1b'));
        assert_eq!(page.matches("<script>").count(), 1);
        assert!(page.contains("default-src 'none'"));
        for loads in ["src=\"", "href=\"http", "url(", "@import", "<link"] {
            assert!(!page.contains(loads), "{loads}");
        }
        assert!(
            !page.contains("NaN") && !page.contains("\"inf"),
            "a figure that is no number"
        );
        let drawings = page.matches("<svg").count();
        assert_eq!(page.matches("role=\"img\"").count(), drawings);
        assert_eq!(page.matches("<title>").count(), drawings + 1);
    }
}

#[test]
fn a_long_run_makes_a_small_page() {
    let mut record = samples::tcp_send();
    let one = record.intervals.pop().unwrap();
    record.intervals = (0..200_000)
        .map(|n| linerate_record::record::Interval {
            number: n,
            start_ns: n * 1_000_000,
            end_ns: (n + 1) * 1_000_000,
            bytes: if n == 154_321 {
                40_000_000
            } else {
                7_000_000 + n % 977
            },
            retransmits: Some(u64::from(n == 170_000)),
            ..one.clone()
        })
        .collect();
    let page = html::render_report("long", &[record], &[]);
    assert!(page.len() < 300_000, "{} bytes", page.len());
}

/// Rounds and points of a curve are not shown one by one.
#[test]
fn a_page_of_many_runs_shows_their_result() {
    let mut set = samples::waiting();
    set.runs = (0..3)
        .flat_map(|round| {
            ["blocking", "spinning"].map(|wait_mode| {
                let mut run = match wait_mode {
                    "blocking" => samples::latency_blocking(),
                    _ => samples::latency_spinning(),
                };
                run.id = format!("20261121T15200{round}Z-{wait_mode}");
                run.label = Some(wait_mode.to_owned());
                run
            })
        })
        .collect();
    let page = html::render_set("waiting", &set);
    assert_eq!(
        page.matches("class=\"run\"").count(),
        2,
        "one per wait mode"
    );
    assert!(page.contains("median of 3 runs") && page.contains("6 runs (2 shown)"));
    assert!(page.contains("Median of each round"), "of all of them");
    let mut set = samples::conclusions();
    let page = html::render_set("curve", &set);
    assert!(page.contains(" runs</summary>") && page.contains("<h2>Comparison</h2>"));
    set.result.load_curve = None;
    assert!(!html::render_set("sizes", &set).contains(" runs</summary>"));
}
