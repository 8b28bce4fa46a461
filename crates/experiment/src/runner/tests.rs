use std::sync::atomic::AtomicBool;

use super::*;
use crate::file::ExperimentLab;

#[test]
fn every_host_of_a_network_has_an_address_before_it_is_up() {
    let text = crate::builtin::builtin_text("udp-hops").unwrap();
    let mut experiment = Experiment::from_toml(text).unwrap();
    let mut topology = Topology::hops(1);
    topology
        .hosts
        .push(("router".to_owned(), Default::default()));
    experiment.lab = Some(ExperimentLab {
        hops: None,
        topology: Some(topology),
    });
    let options = RunOptions {
        id: "1".to_owned(),
        experiment_arg: "small.toml".to_owned(),
        started: jiff::Timestamp::UNIX_EPOCH,
        completed: &[],
        quick: true,
        location: RunLocation::Lab,
        at_points: KnobValues::new(),
        repeats: None,
        label: None,
        read_table: &|| None,
        results_dir: PathBuf::from("results"),
        program: PathBuf::from("linerate"),
        cores: 1,
        measure_distance: || None,
        stop: &AtomicBool::new(false),
        listener: None,
    };
    let runner = PointRunner::new(&experiment, &options, true).unwrap();
    let names = runner.name_values(&KnobValues::new(), None, "1");
    let filled = names.replace_all("{client} {server} {router}").unwrap();
    assert_eq!(filled, "127.0.0.1 127.0.0.1 127.0.0.1");
}

#[test]
fn failed_commands_are_reported_with_a_next_step() {
    let document = serde_json::json!({"error": {
        "situation": "refused",
        "object": "far",
        "next_step": format!("start it{RETRY_HINT}"),
    }});
    assert_eq!(
        failure_report(&document, &ProgramResult::default(), "x").next_step,
        "start it"
    );
    let report_of =
        |result: ProgramResult| failure_report(&Value::Null, &result, "linerate x").to_string();
    for (result, expected) in [
        (
            ProgramResult {
                signal: Some(9),
                ..ProgramResult::default()
            },
            "`linerate x`: it was killed by SIGKILL",
        ),
        (
            ProgramResult {
                signal: Some(34),
                ..ProgramResult::default()
            },
            "killed by signal 34",
        ),
        (
            ProgramResult {
                code: Some(130),
                timed_out: true,
                ..ProgramResult::default()
            },
            "took more than 180 s",
        ),
        (
            ProgramResult {
                code: Some(1),
                stderr: "\nno room\nat all".to_owned(),
                ..ProgramResult::default()
            },
            "no room",
        ),
    ] {
        let document = report_of(result);
        assert!(document.contains(expected), "{document}");
    }
}

#[test]
fn missing_requirements_are_reported_with_a_next_step_and_exit_code() {
    let point = |knobs: &[(&str, &str)]| -> KnobValues {
        let knobs = knobs.iter();
        let assignments = knobs.map(|(knob, value)| ((*knob).to_owned(), (*value).to_owned()));
        assignments.collect()
    };
    let exclusion_of = |name: &str, knobs: &[(&str, &str)], cores: usize, rootless: bool| {
        let text = crate::builtin::builtin_text(name).unwrap();
        let skips = Experiment::from_toml(text).unwrap().skip;
        PointExclusion::find(&skips, &point(knobs), cores, rootless)
    };
    let real_time = [("responder", "kernel-rr"), ("load", "idle")];
    assert_eq!(exclusion_of("udp-response", &real_time, 2, false), None);
    let out = exclusion_of("udp-response", &real_time, 2, true).unwrap();
    assert_eq!(out.exit_code, exit_codes::MISSING);
    assert_eq!(out.reason, "real-time scheduling (needs root)");
    assert!(out.next_step.starts_with("run it as root"), "{out:?}");
    let four = [("place", "processes"), ("threads", "2"), ("tx_first", "1")];
    let out = exclusion_of("pmd-threads", &four, 2, false).unwrap();
    assert_eq!(out.exit_code, exit_codes::MISSING);
    assert!(out.reason.contains("needs 4 CPUs, this machine has 2"));
    // A point that is never measured does not depend on the machine.
    let excluded = [
        ("workload", "udp-send-fragments"),
        ("setup", "no-fragments"),
    ];
    let out = exclusion_of("stack-tuning", &excluded, 64, false).unwrap();
    assert_eq!(out.exit_code, exit_codes::USAGE);
}

#[test]
fn addresses_of_its_own_network_are_found_in_commands() {
    let addresses_of = |name: &str, only: &[(&str, &str)]| {
        let text = crate::builtin::builtin_text(name).unwrap();
        let only = only.iter();
        let only = only.map(|(knob, value)| ((*knob).to_owned(), (*value).to_owned()));
        let experiment = Experiment::from_toml(text).unwrap();
        let addresses = experiment.literal_addresses(true, &only.collect()).unwrap();
        addresses
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(addresses_of("udp-hops", &[]), [""; 0]);
    assert_eq!(addresses_of("stack-tuning", &[]), ["10.77.0.9"]);
    assert_eq!(
        addresses_of("stack-tuning", &[("setup", "kernel")]),
        [""; 0]
    );
    assert_eq!(
        addresses_of("udp-response", &[("responder", "our-stack")]),
        ["10.77.0.9"]
    );
    assert_eq!(
        addresses_of("udp-response", &[("responder", "kernel")]),
        [""; 0]
    );
}

#[test]
fn output_files_are_found_wherever_they_are_named() {
    let text = crate::builtin::builtin_text("ttcp-calls").unwrap();
    let mut experiment = Experiment::from_toml(text).unwrap();
    let files_of = |experiment: &Experiment, only: &[(&str, &str)]| {
        let only = only.iter();
        let only = only.map(|(knob, value)| ((*knob).to_owned(), (*value).to_owned()));
        experiment.output_files(true, &only.collect()).unwrap()
    };
    let all = files_of(&experiment, &[]);
    assert!(all.len() > 1 && all.iter().all(|file| file.ends_with(".pftrace")));
    let receive_only = [("direction", "receive")];
    let one = files_of(&experiment, &receive_only);
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
        command.linerate_args = run.map(str::to_owned);
        command.command_line = exec.map(str::to_owned);
        assert_eq!(
            files_of(&experiment, &receive_only),
            files,
            "{run:?} {exec:?}"
        );
    }
}

#[test]
fn switches_are_in_path_order() {
    let topology = Topology::hops(3);
    let between = switches_between(&topology, "client", "server");
    assert_eq!(between.len(), 3, "{between:?}");
    let mut reversed = switches_between(&topology, "server", "client");
    reversed.reverse();
    assert_eq!(reversed, between);
    assert!(switches_between(&topology, "client", "nobody").is_empty());
    assert!(switches_between(&Topology::hops(0), "client", "server").is_empty());
}
