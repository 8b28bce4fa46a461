use std::sync::atomic::AtomicBool;

use super::*;
use crate::file::LabOf;

#[test]
fn every_host_of_a_network_has_an_address_before_it_is_up() {
    let text = crate::builtin::shipped("udp-hops").unwrap();
    let mut experiment = Experiment::from_toml(text).unwrap();
    let mut topology = Topology::hops(1);
    topology
        .hosts
        .push(("router".to_owned(), Default::default()));
    experiment.lab = Some(LabOf {
        hops: None,
        topology: Some(topology),
    });
    let options = Options {
        id: "1".to_owned(),
        file: "small.toml".to_owned(),
        started: jiff::Timestamp::UNIX_EPOCH,
        done: &[],
        quick: true,
        place: Place::Lab,
        only: Setting::new(),
        repeats: None,
        label: None,
        before: &|| None,
        dir: PathBuf::from("results"),
        program: PathBuf::from("linerate"),
        cores: 1,
        distance: || None,
        stop: &AtomicBool::new(false),
        listener: None,
    };
    let runner = Runner::new(&experiment, &options, true).unwrap();
    let names = runner.names(&Setting::new(), None, "1");
    let filled = names.fill("{client} {server} {router}").unwrap();
    assert_eq!(filled, "127.0.0.1 127.0.0.1 127.0.0.1");
}

#[test]
fn what_ended_a_command_is_told_with_what_to_do() {
    let said = serde_json::json!({"error": {
        "situation": "refused",
        "object": "far",
        "next_step": format!("start it{WAIT_FOR_IT}"),
    }});
    assert_eq!(why(&said, &Ended::default(), "x").next_step, "start it");
    let told = |ended: Ended| why(&Value::Null, &ended, "linerate x").to_string();
    for (ended, words) in [
        (
            Ended {
                signal: Some(9),
                ..Ended::default()
            },
            "`linerate x`: it was killed by SIGKILL",
        ),
        (
            Ended {
                signal: Some(34),
                ..Ended::default()
            },
            "killed by signal 34",
        ),
        (
            Ended {
                code: Some(130),
                late: true,
                ..Ended::default()
            },
            "took more than 180 s",
        ),
        (
            Ended {
                code: Some(1),
                stderr: "\nno room\nat all".to_owned(),
                ..Ended::default()
            },
            "no room",
        ),
    ] {
        let said = told(ended);
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn what_a_point_lacks_is_told_with_what_to_do_and_the_exit_code_of_its_kind() {
    let point = |knobs: &[(&str, &str)]| -> Setting {
        let knobs = knobs.iter();
        let named = knobs.map(|(knob, value)| ((*knob).to_owned(), (*value).to_owned()));
        named.collect()
    };
    let left_out = |name: &str, knobs: &[(&str, &str)], cores: usize, rootless: bool| {
        let text = crate::builtin::shipped(name).unwrap();
        let skips = Experiment::from_toml(text).unwrap().skip;
        LeftOut::of(&skips, &point(knobs), cores, rootless)
    };
    let real_time = [("answer", "kernel-rr"), ("load", "idle")];
    assert_eq!(left_out("udp-response", &real_time, 2, false), None);
    let out = left_out("udp-response", &real_time, 2, true).unwrap();
    assert_eq!(out.code, exit::MISSING);
    assert_eq!(out.because, "real-time scheduling (needs root)");
    assert!(out.next_step.starts_with("run it as root"), "{out:?}");
    let four = [("place", "processes"), ("threads", "2"), ("tx_first", "1")];
    let out = left_out("pmd-threads", &four, 2, false).unwrap();
    assert_eq!(out.code, exit::MISSING);
    assert!(
        out.because
            .contains("needs 4 processors, this machine has 2")
    );
    // A point that is never measured does not depend on the machine.
    let never = [
        ("workload", "udp-send-fragments"),
        ("setup", "no-fragments"),
    ];
    let out = left_out("stack-tuning", &never, 64, false).unwrap();
    assert_eq!(out.code, exit::USAGE);
}

#[test]
fn addresses_of_its_own_network_are_found_in_commands() {
    let own = |name: &str, only: &[(&str, &str)]| {
        let text = crate::builtin::shipped(name).unwrap();
        let only = only.iter();
        let only = only.map(|(knob, value)| ((*knob).to_owned(), (*value).to_owned()));
        let experiment = Experiment::from_toml(text).unwrap();
        let found = experiment.own_addresses(true, &only.collect()).unwrap();
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(own("udp-hops", &[]), [""; 0]);
    assert_eq!(own("stack-tuning", &[]), ["10.77.0.9"]);
    assert_eq!(own("stack-tuning", &[("setup", "kernel")]), [""; 0]);
    assert_eq!(
        own("udp-response", &[("answer", "our-stack")]),
        ["10.77.0.9"]
    );
    assert_eq!(own("udp-response", &[("answer", "kernel")]), [""; 0]);
}

#[test]
fn files_that_commands_leave_are_found_wherever_they_are_named() {
    let text = crate::builtin::shipped("ttcp-calls").unwrap();
    let mut experiment = Experiment::from_toml(text).unwrap();
    let left = |experiment: &Experiment, only: &[(&str, &str)]| {
        let only = only.iter();
        let only = only.map(|(knob, value)| ((*knob).to_owned(), (*value).to_owned()));
        experiment.files_left(true, &only.collect()).unwrap()
    };
    let all = left(&experiment, &[]);
    assert!(all.len() > 1 && all.iter().all(|file| file.ends_with(".pftrace")));
    let way = [("way", "receive")];
    let one = left(&experiment, &way);
    assert!(one.len() < all.len() && one.iter().all(|file| file.contains("receive")));
    experiment.measure.truncate(1);
    for (run, exec, files) in [
        (Some("latency {server}"), None, &[][..]),
        // Files in the current directory do not count.
        (Some("latency {server} -o ./a.json"), None, &[]),
        (
            Some("latency {server} --trace={dir}/a.json"),
            None,
            &["a.json"],
        ),
        (
            Some("generate --dev pcap:rx=/b.pcap,tx={dir}/a.pcap,mtu=9000 -o {dir}/a.json"),
            None,
            &["a.json", "a.pcap"],
        ),
        (
            None,
            Some("sh -c 'tcpdump -w {dir}/a.pcap; true'"),
            &["a.pcap"],
        ),
        (Some("run {dir}"), None, &[]),
    ] {
        let command = &mut experiment.measure[0];
        command.run = run.map(str::to_owned);
        command.exec = exec.map(str::to_owned);
        assert_eq!(left(&experiment, &way), files, "{run:?} {exec:?}");
    }
}

#[test]
fn switches_stand_in_the_order_of_the_way() {
    let topology = Topology::hops(3);
    let between = switches_between(&topology, "client", "server");
    assert_eq!(between.len(), 3, "{between:?}");
    let mut back = switches_between(&topology, "server", "client");
    back.reverse();
    assert_eq!(back, between);
    assert!(switches_between(&topology, "client", "nobody").is_empty());
    assert!(switches_between(&Topology::hops(0), "client", "server").is_empty());
}
