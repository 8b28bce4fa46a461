//! Report pages in a real browser: no console message, and working scripts.
//!
//! Chromium is driven over its debugging protocol through a pair of pipes
//! (`--remote-debugging-pipe`). A message is a line of JSON that ends with a zero byte, so no
//! library and no port is needed. A missing browser fails where `CI` is set and is a skip
//! elsewhere.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::common::{TestDir, is_root, skip};
use serde_json::{Value, json};

/// Program names of the browser.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Time limit of every step: a busy machine takes long to start a browser.
const STEP_TIMEOUT: Duration = Duration::from_secs(90);

/// Returns the program name of the browser; `None` without one. CI must have one.
fn find_browser() -> Option<&'static str> {
    let runs = |name: &&str| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    };
    let program = BROWSERS.into_iter().find(|name| runs(name));
    let in_ci = std::env::var("CI").is_ok_and(|ci| !ci.is_empty() && ci != "false");
    assert!(
        program.is_some() || !in_ci,
        "CI has no browser: tests/setup installs chromium"
    );
    program
}

/// Browser with one page.
struct BrowserPage {
    child: Child,
    command_pipe: File,
    messages: Receiver<Value>,
    session: Option<String>,
    number: u64,
    /// Console messages and script errors.
    console: Vec<String>,
    loaded: bool,
}

impl Drop for BrowserPage {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl BrowserPage {
    fn open(dir: &TestDir, browser: &str) -> Self {
        let (there, back) = (dir.path().join("to"), dir.path().join("from"));
        for pipe in [&there, &back] {
            let created = Command::new("mkfifo").arg(pipe).status();
            assert!(created.is_ok_and(|status| status.success()), "mkfifo");
        }
        // Opened for both directions, so that neither end blocks in `open` until the other has
        // opened it.
        let open_both_ways = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
        let (to, from) = (
            open_both_ways(&there).unwrap(),
            open_both_ways(&back).unwrap(),
        );
        let profile = dir.path().join("profile");
        let sandbox = if is_root() { "--no-sandbox" } else { "" };
        let args = format!(
            "exec \"$0\" --headless --disable-gpu {sandbox} --no-first-run --disable-background-networking \
             --disable-component-update --disable-sync --remote-debugging-pipe \"--user-data-dir=$1\" \
             3<\"$2\" 4>\"$3\""
        );
        let child = dir
            .command("sh", ["-c", args.as_str(), browser])
            .args([&profile, &there, &back])
            // Outside its profile the browser makes directories that survive a kill.
            .env("TMPDIR", dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the browser starts");
        let (message_sender, message_receiver) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(from).split(0).map_while(Result::ok) {
                let value = serde_json::from_slice(&message);
                if value.is_ok_and(|value| message_sender.send(value).is_err()) {
                    return;
                }
            }
        });
        let mut page = Self {
            child,
            command_pipe: to,
            messages: message_receiver,
            session: None,
            number: 0,
            console: Vec::new(),
            loaded: false,
        };
        let target = page.send_command("Target.createTarget", &json!({"url": "about:blank"}));
        let target = &target["targetId"];
        let args = json!({"targetId": target, "flatten": true});
        let session = page.send_command("Target.attachToTarget", &args);
        page.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log"] {
            page.send_command(&format!("{domain}.enable"), &json!({}));
        }
        page
    }

    /// Sends a command and returns its result; events are recorded meanwhile.
    fn send_command(&mut self, method: &str, parameters: &Value) -> Value {
        self.number += 1;
        let mut message =
            json!({"id": self.number, "method": method, "params": parameters.clone()});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.command_pipe
            .write_all(&bytes)
            .expect("the browser reads");
        let number = self.number;
        let reply = self.receive(method, |message| message["id"] == number);
        assert!(reply["error"].is_null(), "{method}: {reply}");
        reply["result"].clone()
    }

    /// Receives messages until one satisfies the condition.
    fn receive(&mut self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + STEP_TIMEOUT;
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            let message = match self.messages.recv_timeout(remaining) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => panic!("no reply to {what}"),
                Err(RecvTimeoutError::Disconnected) => panic!("the browser is gone: {what}"),
            };
            match message["method"].as_str() {
                Some("Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded") => {
                    self.console.push(message["params"].to_string())
                }
                Some("Page.loadEventFired") => self.loaded = true,
                _ => {}
            }
            if fits(&message) {
                return message;
            }
        }
    }

    /// Loads a file at a viewport width.
    fn load(&mut self, page: &Path, width: u32) {
        let phone = width < 640;
        self.send_command(
            "Emulation.setDeviceMetricsOverride",
            &json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": phone}),
        );
        self.loaded = false;
        let url = format!("file://{}", page.display());
        self.send_command("Page.navigate", &json!({"url": url}));
        if !self.loaded {
            self.receive("the page", |message| {
                message["method"] == "Page.loadEventFired"
            });
        }
    }

    /// Returns the value of an expression in the page.
    fn evaluate(&mut self, expression: &str) -> Value {
        let reply = self.send_command(
            "Runtime.evaluate",
            &json!({"expression": expression, "returnByValue": true}),
        );
        assert!(reply["exceptionDetails"].is_null(), "{expression}: {reply}");
        reply["result"]["value"].clone()
    }

    fn evaluate_text(&mut self, expression: &str) -> String {
        self.evaluate(expression).as_str().unwrap_or("").to_owned()
    }

    /// Scrolls to an element and returns a position in it, given as fractions of its box.
    fn position(&mut self, element: &str, (x, y): (f64, f64)) -> (f64, f64) {
        let rectangle = self.evaluate(&format!(
            "(() => {{ const e = {element}; e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; }})()"
        ));
        let number = |at: usize| rectangle[at].as_f64().expect("a box");
        (number(0) + x * number(2), number(1) + y * number(3))
    }

    fn send_mouse_event(&mut self, kind: &str, (x, y): (f64, f64), down: bool) {
        let mut parameters = json!({"type": kind, "x": x, "y": y, "buttons": u32::from(down)});
        if kind != "mouseMoved" {
            parameters["button"] = json!("left");
            parameters["clickCount"] = json!(1);
        }
        self.send_command("Input.dispatchMouseEvent", &parameters);
    }
}

/// Returns an expression for the drawing of a figure that is visible at this width.
fn visible_svg(figure: &str) -> String {
    format!(
        "[...document.querySelectorAll('{figure} svg')].find(svg => svg.getBoundingClientRect().width > 0)"
    )
}

/// Measures for a second with these options to `page.html`, and opens a browser for it.
fn measure_and_open(dir: &TestDir, browser: &str, options: &str) -> BrowserPage {
    let server = dir.server("-q");
    let port = server.port;
    dir.run(&format!(
        "throughput 127.0.0.1 -p {port} -t 1 {options} --html page.html -q"
    ))
    .expect(0);
    BrowserPage::open(dir, browser)
}

#[test]
fn pages_render_without_console_messages() {
    let Some(browser) = find_browser() else {
        skip!("no browser (chromium)");
    };
    let dir = TestDir::new();
    let server = dir.server("-q");
    let port = server.port;
    dir.run(&format!(
        "latency 127.0.0.1 -u -p {port} -t 1 -i 0.1 --html latency.html -q"
    ))
    .expect(0);
    dir.run(&format!(
        "throughput 127.0.0.1 -p {port} -t 1 -i 0.1 --html throughput.html -q"
    ))
    .expect(0);
    dir.run("report last last~1 --html both.html").expect(0);
    dir.run("forward --dev ring:0 --dev ring:1 -t 0.5 --html forward.html -q")
        .expect(0);
    dir.write_series("week", 48);
    dir.run("report week --html week.html").expect(0);
    dir.run("demo -t 0.1 --loopback --dir demo -q").expect(0);
    let mut chromium = BrowserPage::open(&dir, browser);
    // On a phone the charts of a demo begin within five screens.
    chromium.load(&dir.path().join("demo/report.html"), 390);
    let chart = "[...document.querySelectorAll('figure:not(.path)')]\
        .find(figure => figure.checkVisibility()).getBoundingClientRect().top";
    let top = chromium.evaluate(chart);
    assert!(top.as_f64() < Some(5.0 * 844.0), "{top}");
    for name in [
        "week.html",
        "demo/report.html",
        "latency.html",
        "throughput.html",
        "both.html",
        "forward.html",
    ] {
        for width in [1280, 390] {
            chromium.load(&dir.path().join(name), width);
            assert_eq!(chromium.console, Vec::<String>::new(), "{name} at {width}");
            let drawn = chromium.evaluate("document.querySelectorAll('svg').length");
            assert!(drawn.as_u64() > Some(0), "{name} at {width}");
            // A table wider than the page scrolls in a box of its own.
            let wide = chromium.evaluate("document.documentElement.scrollWidth");
            assert!(
                wide.as_u64() <= Some(u64::from(width)),
                "{name} at {width}: {wide}"
            );
        }
    }
}

/// In print nothing is folded away, nothing overlaps, and the background is white.
#[test]
fn pages_are_readable_when_printed() {
    let Some(browser) = find_browser() else {
        skip!("no browser (chromium)");
    };
    let dir = TestDir::new();
    let mut chromium = measure_and_open(&dir, browser, "-i 0.1");
    // A4 has 718 px between margins of 1 cm.
    chromium.load(&dir.path().join("page.html"), 718);
    let visible = "[...document.querySelectorAll('.hosts, .hosts dl, section.run > details table')]\
        .map(table => table.checkVisibility())";
    let folded = chromium.evaluate(visible);
    let folded = folded.as_array().expect("tables");
    assert!(
        folded.len() > 3 && folded.iter().all(|seen| seen == false),
        "{folded:?}"
    );
    chromium.send_command(
        "Emulation.setEmulatedMedia",
        &json!({"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]}),
    );
    assert_eq!(
        chromium.evaluate_text("getComputedStyle(document.body).backgroundColor"),
        "rgb(255, 255, 255)"
    );
    let unfolded = chromium.evaluate(visible);
    let mut unfolded = unfolded.as_array().expect("tables").iter();
    assert!(unfolded.all(|seen| seen == true), "{unfolded:?}");
    // An element after a table begins below it.
    let over = chromium.evaluate(
        "(() => { const footer = document.querySelector('footer').getBoundingClientRect().top;\
         return [...document.querySelectorAll('section table')]\
         .filter(table => table.getBoundingClientRect().bottom > footer).length; })()",
    );
    assert_eq!(over, 0);
    let wide = chromium.evaluate("document.documentElement.scrollWidth");
    assert!(wide.as_u64() <= Some(718), "{wide}");
}

/// Printed steps of a search would fill a sheet a trial; they are printed only where the reader
/// opened them.
#[test]
fn steps_of_a_search_are_printed_when_opened() {
    let Some(browser) = find_browser() else {
        skip!("no browser (chromium)");
    };
    let dir = TestDir::new();
    dir.run("capacity --dev ring:0 --sizes 64 --trial 100ms --drain 10ms --resolution 20% --html page.html -q --no-store")
        .expect(0);
    let mut chromium = BrowserPage::open(&dir, browser);
    for width in [1280, 390] {
        chromium.load(&dir.path().join("page.html"), width);
        let wide = chromium.evaluate("document.documentElement.scrollWidth");
        assert!(wide.as_u64() <= Some(u64::from(width)), "{width}: {wide}");
        assert_eq!(chromium.console, Vec::<String>::new(), "at {width}");
    }
    chromium.load(&dir.path().join("page.html"), 718);
    chromium.send_command("Emulation.setEmulatedMedia", &json!({"media": "print"}));
    let steps = "document.querySelector('details.steps')";
    assert_eq!(
        chromium.evaluate(&format!("{steps}.checkVisibility()")),
        false
    );
    chromium.evaluate(&format!("{steps}.open = true"));
    assert_eq!(
        chromium.evaluate(&format!("{steps}.checkVisibility()")),
        true
    );
    // A name with a long value stays on one line.
    let names = chromium.evaluate(
        "[...document.querySelectorAll('.steps th code')].map(name => name.getClientRects().length)",
    );
    let names = names.as_array().expect("names of options");
    assert!(names.len() > 20, "{}", names.len());
    assert!(names.iter().all(|lines| lines == 1), "{names:?}");
}

#[test]
fn a_chart_shows_the_figures_under_the_pointer() {
    let Some(browser) = find_browser() else {
        skip!("no browser (chromium)");
    };
    let dir = TestDir::new();
    let mut chromium = measure_and_open(&dir, browser, "-i 0.1");
    chromium.load(&dir.path().join("page.html"), 1280);
    let tip = "document.querySelector('figure.chart .tip')";
    assert_eq!(chromium.evaluate(&format!("{tip}.hidden")), true);
    let middle = chromium.position(&visible_svg("figure.chart"), (0.5, 0.5));
    chromium.send_mouse_event("mouseMoved", middle, false);
    assert_eq!(chromium.evaluate(&format!("{tip}.hidden")), false);
    let tip_text = chromium.evaluate_text(&format!("{tip}.textContent"));
    assert!(tip_text.contains("b/s"), "{tip_text}");
    chromium.send_mouse_event("mouseMoved", (1.0, 1.0), false);
    assert_eq!(chromium.evaluate(&format!("{tip}.hidden")), true);
    assert_eq!(chromium.console, Vec::<String>::new());
}

#[test]
fn the_timeline_is_zoomed_and_shows_the_slice_under_the_pointer() {
    let Some(browser) = find_browser() else {
        skip!("no browser (chromium)");
    };
    let dir = TestDir::new();
    let mut chromium = measure_and_open(&dir, browser, "--calls --trace calls.json");
    for width in [1280, 390] {
        chromium.load(&dir.path().join("page.html"), width);
        let figure = "document.querySelector('figure.timeline')";
        let span = |chromium: &mut BrowserPage| {
            let shown =
                chromium.evaluate_text(&format!("{figure}.dataset.shown || {figure}.dataset.view"));
            let bounds: Vec<f64> = shown.split(' ').map(|end| end.parse().unwrap()).collect();
            bounds[1] - bounds[0]
        };
        let svg = visible_svg("figure.timeline");
        let before = span(&mut chromium);

        // Hover: in the middle of the widest bar of the first track.
        let bar = format!(
            "[...{svg}.querySelectorAll('.slices rect')].sort((a, b) => b.getBBox().width - a.getBBox().width)[0]"
        );
        let inside = chromium.position(&bar, (0.5, 0.5));
        chromium.send_mouse_event("mouseMoved", inside, false);
        let tip = format!("{figure}.querySelector('.tip')");
        assert_eq!(
            chromium.evaluate(&format!("{tip}.hidden")),
            false,
            "at {width}"
        );
        let tip_text = chromium.evaluate_text(&format!("{tip}.textContent"));
        assert!(
            tip_text.contains("thread") && tip_text.contains("from"),
            "{tip_text}"
        );

        // Zoom: by the button, by dragging over a part, and back.
        chromium.evaluate(&format!("{figure}.querySelector('[data-do=in]').click()"));
        let nearer = span(&mut chromium);
        assert!(nearer < before * 0.6, "at {width}: {before} to {nearer}");
        let from = chromium.position(&svg, (0.25, 0.4));
        let to = chromium.position(&svg, (0.5, 0.4));
        chromium.send_mouse_event("mouseMoved", from, false);
        chromium.send_mouse_event("mousePressed", from, true);
        chromium.send_mouse_event("mouseMoved", to, true);
        chromium.send_mouse_event("mouseReleased", to, false);
        let part = span(&mut chromium);
        assert!(part < nearer * 0.5, "at {width}: {nearer} to {part}");
        chromium.evaluate(&format!(
            "{figure}.querySelector('[data-do=reset]').click()"
        ));
        assert!((span(&mut chromium) - before).abs() < 1.0);
        chromium.evaluate(&format!("{figure}.querySelector('[data-do=all]').click()"));
        assert!(span(&mut chromium) >= before);
        assert_eq!(chromium.console, Vec::<String>::new(), "at {width}");
    }
}

/// The tests above can fail: an error of a script is detected.
#[test]
fn a_broken_page_is_detected() {
    let Some(browser) = find_browser() else {
        skip!("no browser (chromium)");
    };
    let dir = TestDir::new();
    let page = dir.path().join("wrong.html");
    std::fs::write(&page, "<!doctype html><script>nothing.there();</script>").unwrap();
    let mut chromium = BrowserPage::open(&dir, browser);
    chromium.load(&page, 800);
    // The message may arrive after the load event.
    if chromium.console.is_empty() {
        chromium.receive("the console", |message| {
            message["method"] == "Runtime.exceptionThrown"
        });
    }
    let console_text = chromium.console.join("\n");
    assert!(
        console_text.contains("nothing is not defined"),
        "{console_text}"
    );
}
