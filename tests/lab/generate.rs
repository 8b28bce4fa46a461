//! `linerate generate` and `linerate capacity`: records, sets, rejections, signals, and a kernel
//! bridge.

use crate::common::{
    RunningCommand, TestDir, TestLab, assert_record, check_command, finish, join_lines, lab, skip,
};
use serde_json::Value;

#[track_caller]
fn assert_valid(document: &Value, schema: &str) {
    let schema: Value = serde_json::from_str(schema).expect("a schema");
    let complaints = crate::schema::violations(&schema, document);
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn a_run_is_a_record() {
    let dir = TestDir::new();
    let done = dir
        .run("generate --dev ring:0 --count 300 --rate 10kpps --size imix --flows 3 --json --expect loss<1%")
        .expect(0);
    let record = done.json();
    assert_record(&record);
    assert_valid(&record, include_str!("../../docs/record.schema.json"));
    assert_eq!(record["kind"], "generate");
    assert_eq!(record["generate"]["sent"], 300);
    assert_eq!(record["generate"]["received"], 300);
    assert_eq!(record["summary"]["loss_fraction"], 0.0);
    assert_eq!(record["plan"]["generate"]["load"], "10000pps");
    assert_eq!(record["plan"]["generate"]["template"]["size"], "imix");
    assert_eq!(record["histograms"]["one_way_delay_ns"]["count"], 300);
    assert_eq!(dir.stored(), [record]);
    // Text output.
    let text = dir
        .run("generate --dev ring:0 --count 30 --no-store")
        .expect(0)
        .stdout;
    for expected_text in [
        "64 B frames from ring:0 and back",
        "one-way delay",
        "offered",
        "duplicates",
    ] {
        assert!(text.contains(expected_text), "{expected_text}: {text}");
    }
}

#[test]
fn a_failed_expectation_and_an_interrupt() {
    let dir = TestDir::new();
    dir.run("generate --dev null: --receive null:silent --count 10 --drain 10ms --expect loss<1%")
        .expect(3);
    let mut running = RunningCommand::start(
        &mut dir.linerate("generate --dev ring:0 --time 60 --json-stream -i 0.1"),
    );
    running.wait_started();
    running.wait_line(|line| line.contains(r#""event":"interval""#));
    running.interrupt();
    let done = running.wait().expect(130);
    let last: Value = done.json_lines().pop().expect("a line");
    assert_eq!(last["event"], "finished");
    assert_eq!(last["record"]["interrupted"], true);
}

/// Opening a port that writes a capture replaces the file: errors are found before.
#[test]
fn a_rejected_plan_keeps_an_older_capture() {
    let dir = TestDir::new();
    let file = dir.path().join("old.pcapng");
    for args in [
        "generate --no-receive -n 8 --source 1.2.3.4 --size 20",
        "generate --no-receive -n 8 --rate 50%",
        "capacity --line-rate 10G --sizes 128,64 --source 2001:2::1",
    ] {
        std::fs::write(&file, "older").unwrap();
        let args = format!("{args} --dev pcap:tx={}", file.display());
        assert_eq!(dir.run(&args).exit_code(), 2, "{args}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "older", "{args}");
    }
}

#[test]
fn invalid_plans_are_rejected() {
    let dir = TestDir::new();
    for (args, code, expected) in [
        ("generate --dev ring:0 --rate 1G", 2, "has no unit"),
        ("generate --dev ring:0 --rate 50%", 2, "--line-rate"),
        ("generate --dev ring:0 --source 1.2.3", 2, "1.2.3"),
        ("generate --dev ring:0 --size 9000", 2, "mtu="),
        (
            "generate --dev ring:0 --dev ring:1 --dev ring:2",
            2,
            "sending port first",
        ),
        (
            "generate --dev ring:0 --template nowhere.toml",
            2,
            "nowhere.toml",
        ),
        ("generate --dev nonsense:0", 2, "nonsense"),
        ("generate --dev ring:0 --expect goodput>1G", 2, "goodput"),
        (
            "capacity --dev ring:0 --loss 2",
            2,
            "not a fraction of frames",
        ),
        ("capacity --dev ring:0 --sizes 3", 2, "`3`"),
        ("capacity --dev ring:0 --trial 0", 2, "--trial"),
        // All sizes are checked before the first trial.
        (
            "capacity --dev ring:0 --sizes 64,9000 --trial 60",
            2,
            "mtu=",
        ),
        ("generate --dev ring:0 --count 0", 2, "send nothing"),
        ("generate --dev ring:0 --time 0", 2, "a time of 0"),
        (
            "generate --dev ring:0,mtu=9",
            2,
            "': `mtu=9` is not a number",
        ),
        (
            "generate --dev packet:no-such-if",
            1,
            "no-such-if: there is no interface of",
        ),
        ("generate --dev ring:0 --line-rate 0", 2, "must be above 0"),
        ("generate --dev ring:0 --size 64,63", 2, "64 to 65535"),
        (
            "generate --dev ring:0 --source-port 9-3",
            2,
            "descending range",
        ),
        ("generate --dev ring:0 --learn", 2, "needs a receiving port"),
        ("capacity --dev ring:0 --learn", 2, "needs a receiving port"),
        // Frames of a capture are sent unchanged.
        (
            "generate --dev ring:0 --pcap x --vlan 5",
            2,
            "cannot be used with",
        ),
        (
            "generate --dev ring:0 --pcap x --source 10.0.0.1",
            2,
            "cannot be used with",
        ),
        (
            "generate --dev ring:0 --pcap x --recorded-times --pps 10k",
            2,
            "cannot be used with",
        ),
    ] {
        let done = dir.run(args).expect(code);
        assert!(done.stderr.contains(expected), "{args}: {}", done.stderr);
    }
    let done = dir.run("generate --dev ring:0 --rate 50% --json").expect(2);
    assert!(
        !done.json()["error"]["next_step"]
            .as_str()
            .unwrap_or("")
            .is_empty()
    );
}

/// A missing peer is reported, and no other cause is named.
#[test]
fn a_missing_peer_is_reported() {
    let dir = TestDir::new();
    let args = |args: &str| format!("{args} --dev shm:alone --no-store --drain 10ms");
    let here = dir.path().join("run");
    std::fs::create_dir(&here).unwrap();
    let run = |text: &str| {
        finish(
            dir.linerate(&args(text))
                .env("XDG_RUNTIME_DIR", here.as_os_str()),
        )
    };
    let text = join_lines(&run("generate --time 200ms").expect(0).stdout);
    assert!(
        text.contains("no peer connected to the other end of"),
        "{text}"
    );
    for caveat_id in ["tool-limit", "nothing-arrived", "lateness"] {
        assert!(!text.contains(caveat_id), "{caveat_id}: {text}");
    }
    let text = join_lines(&run("capacity --sizes 64 --trial 100ms").expect(2).stderr);
    assert!(
        text.contains("no peer connected to its other end"),
        "{text}"
    );
    // Port names that end with a colon keep it.
    let silent = "generate --dev null:silent --count 10 --drain 10ms --no-store";
    let text = join_lines(&dir.run(silent).expect(0).stdout);
    assert!(
        text.contains("no frame arrived at port null:, of 10 sent: the device"),
        "{text}"
    );
    let silent =
        "capacity --dev null:silent --sizes 64 --trial 20ms --drain 1ms --trials 4 --no-store";
    let text = join_lines(&dir.run(silent).expect(0).stdout);
    assert!(text.contains(", nothing received"), "{text}");
}

#[test]
fn a_template_file_and_options() {
    let dir = TestDir::new();
    let file = dir.path().join("t.toml");
    std::fs::write(
        &file,
        "size = '128'\n[ipv4]\ndestination = '198.18.1.1-198.18.1.4'\n[udp]\n",
    )
    .unwrap();
    let done = dir
        .run("generate --dev ring:0 --template t.toml --source-port 7 --count 40 --json --no-store")
        .expect(0);
    let record = done.json();
    assert_eq!(record["plan"]["generate"]["flows"], 4);
    assert_eq!(record["plan"]["generate"]["frame_bytes"], 128.0);
    assert_eq!(record["plan"]["generate"]["template"]["udp"]["source"], "7");
    assert_eq!(
        record["generate"]["flows"].as_array().map(Vec::len),
        Some(4)
    );
}

/// IPv6 headers, number and timestamp do not fit 64 bytes; without a requested size frames are
/// longer, with a note.
#[test]
fn a_default_size_fits_the_headers() {
    let dir = TestDir::new();
    let args = "generate --dev ring:0 --source 2001:2::1 --pps 1k -n 40 --no-store";
    let record = dir.run(&format!("{args} --json")).expect(0).json();
    let plan = &record["plan"]["generate"];
    assert_eq!(plan["template"]["size"], "76");
    assert_eq!(plan["size_fitted"], true);
    assert_eq!(plan["load"], "1000pps");
    assert_eq!(record["generate"]["received"], 40);
    let text = join_lines(&dir.run(args).expect(0).stdout);
    for expected in [
        "76 B frames from ring:0",
        "no size requested: 76 B is the smallest",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    // A requested size is not changed.
    let rejected = dir.run(&format!("{args} --size 64")).expect(2);
    assert!(
        rejected.stderr.contains("use 66 or more"),
        "{}",
        rejected.stderr
    );
}

/// A variable that is set for other commands is named when its value is wrong here.
#[test]
fn a_variable_of_the_environment_is_named() {
    let dir = TestDir::new();
    for (variable, value, args, expected) in [
        (
            "LINERATE_CPU",
            "0/1",
            "generate --dev ring:0 -n 9",
            "LINERATE_CPU in the environment sets --cpu: unset it, or pass --cpu to this command",
        ),
        (
            "LINERATE_CPU",
            "0/1",
            "capacity --dev ring:0",
            "LINERATE_CPU in the environment sets --cpu",
        ),
        (
            "LINERATE_CPU",
            "0,1",
            "generate --dev ring:0 -n 9 --threads 1",
            "LINERATE_CPU=0-1: 2 CPUs are listed for 1 thread",
        ),
        (
            "LINERATE_CPU",
            "8000",
            "capacity --dev ring:0",
            "LINERATE_CPU in the environment sets --cpu: unset it, or pass --cpu",
        ),
        (
            "LINERATE_RATE",
            "10kpps",
            "generate --dev ring:0 -n 9 --pps 1k",
            "LINERATE_RATE in the environment sets --rate: unset it",
        ),
        // Common to all commands.
        (
            "LINERATE_TIME",
            "soon",
            "forward --dev ring:0",
            "LINERATE_TIME in the environment sets --time: unset it, or pass --time",
        ),
    ] {
        let mut command = dir.linerate(args);
        let done = finish(command.env(variable, value)).expect(2);
        let message = join_lines(&done.stderr);
        assert!(message.contains(expected), "{args}: {message}");
        let mut command = dir.linerate(&format!("{args} --json"));
        let document = finish(command.env(variable, value)).expect(2).json();
        assert!(document.to_string().contains(variable), "{document}");
    }
    // The command line wins and gets the error.
    let mut command = dir.linerate("generate --dev ring:0 -n 9 --cpu x");
    let done = finish(command.env("LINERATE_CPU", "0/1")).expect(2);
    assert!(!done.stderr.contains("LINERATE_CPU"), "{}", done.stderr);
}

/// A stream begins with the plan, as for every other command.
#[test]
fn streams_begin_with_what_is_measured() {
    let dir = TestDir::new();
    for (args, kind) in [
        ("generate --dev ring:0 -n 9", "generate"),
        (
            "capacity --dev ring:0 --sizes 64 --trial 50ms --drain 10ms --trials 2 --tests throughput",
            "generate",
        ),
    ] {
        let lines = dir
            .run(&format!("{args} --json-stream"))
            .expect(0)
            .json_lines();
        assert_eq!(lines[0]["event"], "started", "{args}");
        assert_eq!(lines[0]["plan"]["kind"], kind, "{args}");
        assert!(lines[0]["wait"].is_object() && lines[0]["cpu"].is_object());
    }
}

/// Short trials on a memory loop give a set.
#[test]
fn a_capacity_is_a_set() {
    let dir = TestDir::new();
    let done = dir
        .run(
            "capacity --dev ring:0 --line-rate 2M --sizes 64,imix --trial 0.2 --drain 50ms --resolution 10% \
             --loss 0,1% --latency-at 50% --tests throughput,latency,frame-loss,back-to-back \
             --burst-searches 1 --json",
        )
        .expect(0);
    let set = done.json();
    assert_eq!(set["schema"], "linerate/set/1");
    assert_eq!(set["kind"], "capacity");
    assert_valid(&set, include_str!("../../docs/set.schema.json"));
    let capacity = &set["result"]["capacity"];
    let sizes = capacity["sizes"].as_array().expect("sizes");
    assert_eq!(sizes.len(), 2);
    for size in sizes {
        assert_eq!(size["throughput"].as_array().map(Vec::len), Some(2));
        assert_eq!(size["throughput"][0]["name"], "ndr");
        assert!(
            size["throughput"][0]["fps"].as_f64().expect("a rate") > 0.0,
            "{size:#}"
        );
        assert_eq!(size["latency"].as_array().map(Vec::len), Some(1));
        assert!(size["back_to_back"]["frames"].is_number());
    }
    assert!(!set["runs"].as_array().expect("runs").is_empty());
}

/// A burst of one call has a rate, one that is sent slower than line rate is marked, and trials are
/// reported as they end.
#[test]
fn bursts_report_their_rate() {
    let dir = TestDir::new();
    let args = "capacity --dev ring:0 --sizes 64 --trial 20ms --drain 20ms --resolution 30% \
                 --tests back-to-back --burst-searches 1";
    let burst = |set: &Value| set["result"]["capacity"]["sizes"][0]["back_to_back"].clone();
    let set = dir.run(&format!("{args} --json")).expect(0).json();
    let result = burst(&set);
    assert!(
        result["at_line_rate"].is_null(),
        "no line is known: {result:#}"
    );
    // A frame cannot be made and sent within a nanosecond.
    assert!(
        result["burst_fps"].as_f64().expect("a rate") < 1e9,
        "{result:#}"
    );
    let trials = &set["result"]["capacity"]["sizes"][0]["trials"];
    for trial in trials.as_array().expect("trials") {
        assert!(
            trial["duration_ns"].as_u64().expect("a time") > 100,
            "{trial:#}"
        );
    }
    // Far beyond any processor's rate. Its first bursts are short: the longest takes at most 2 s.
    let done = dir
        .run(&format!("{args} --line-rate 400G --json-stream"))
        .expect(0);
    let lines = done.json_lines();
    assert!(lines.len() > 3, "a line a trial");
    assert_eq!(lines[0]["event"], "started");
    assert_eq!(lines[1]["event"], "capacity-trial");
    assert_eq!(lines[1]["trial"]["number"], 1);
    let set = lines.last().expect("a line");
    assert_eq!(burst(set)["at_line_rate"], false, "{set:#}");
}

/// A page has the content of the terminal, and charts of the trials.
#[test]
fn pages_have_tables_and_charts() {
    let dir = TestDir::new();
    let args = "capacity --dev ring:0 --line-rate 2M --sizes 64,512 --trial 0.1 --drain 20ms \
                 --resolution 20% --loss 0,1% --latency-at 30,60% --tests throughput,latency,frame-loss \
                 --html capacity.html --no-store";
    dir.run(args).expect(0);
    dir.run(
        "generate --dev ring:0 --rate 2kpps -t 1 -i 0.2 --flows 4 --html generate.html --no-store",
    )
    .expect(0);
    for (page, expected) in [
        (
            "capacity.html",
            &[
                "Without loss pass",
                "Throughput by loss goal",
                "PDR 1.00 %",
                "Received by offered load",
                "Median one-way delay by load",
                "Frame loss",
            ][..],
        ),
        (
            "generate.html",
            &[
                "Frames per second over time",
                "One-way delay by percentile",
                "One-way delay by flow",
                "out of order",
            ],
        ),
    ] {
        let text = std::fs::read_to_string(dir.path().join(page)).expect("a page");
        for expected_text in expected {
            assert!(
                text.contains(expected_text),
                "{page} has no `{expected_text}`"
            );
        }
        assert!(text.contains("<svg") && !text.contains("No run has a result"));
        assert!(!text.contains("facts of the server are missing"));
    }
}

/// Shortest frames with a VLAN tag, and frames that are never received.
#[test]
fn tagged_frames_and_lost_ones() {
    let dir = TestDir::new();
    for vlan in ["--vlan 5", "--vlan 5 --vlan 6"] {
        let args =
            format!("generate --dev ring:0 --count 200 --rate 20kpps --size imix {vlan} --json");
        let record = dir.run(&args).expect(0).json();
        assert_eq!(record["generate"]["out_of_order"], 0, "{record:#}");
        assert!(record["generate"]["one_way_delay_ns"]["p50"].is_u64());
        assert_eq!(record["generate"]["lost"], 0);
    }
    let args = "generate --dev null: --receive null:silent --count 10 --drain 10ms";
    let done = dir.run(args).expect(0);
    assert!(done.stdout.contains("[nothing-arrived]"), "{}", done.stdout);
}

/// A kernel bridge between two links of one host.
#[test]
fn through_a_kernel_bridge() {
    let dir = TestDir::new();
    if let Err(why) = check_command(&mut dir.command("ip", ["-V"])) {
        skip!("{why}");
    }
    let text = "[hosts.gen]\n[hosts.dut]\n[[links]]\nbetween = ['gen', 'dut']\n[[links]]\nbetween = ['gen', 'dut']\n";
    let lab = lab!(TestLab::from_text("generate-bridge", text));
    let bridge = "ip link add br0 type bridge && ip link set eth0 master br0 && ip link set eth1 master br0 \
                  && ip link set br0 up";
    lab.shell("dut", bridge).expect("a bridge");
    let run = |args: &str| finish(&mut lab.linerate("gen", args));
    let done = run("generate --dev packet:eth0 --dev packet:eth1 --learn --rate 500pps --count 100 --json --no-store").expect(0);
    let record = done.json();
    assert_eq!(record["generate"]["received"], 100, "{record:#}");
    assert_eq!(record["generate"]["out_of_order"], 0);
    let done = run(
        "capacity --dev packet:eth0 --dev packet:eth1 --learn --sizes 64 --trial 0.2 --drain 100ms --resolution 20% \
         --loss 0,5% --latency-at 50% --json --no-store",
    )
    .expect(0);
    let set = done.json();
    let result = &set["result"]["capacity"]["sizes"][0];
    assert_eq!(result["size"], "64");
    assert_eq!(
        result["throughput"].as_array().map(Vec::len),
        Some(2),
        "{result:#}"
    );
}
