//! Report pages in a real browser: no console message, and working scripts.
//!
//! Chromium is driven over its debugging protocol through a pair of pipes
//! (`--remote-debugging-pipe`). A message is a line of JSON that ends with a zero byte, so no
//! library and no port is needed. A missing browser fails where `CI` is set and is a skip
//! elsewhere.

mod common;

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use common::{Room, is_root, skip};
use serde_json::{Value, json};

/// Program names of the browser.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Time limit of every step: a busy machine takes long to start a browser.
const PATIENCE: Duration = Duration::from_secs(90);

/// Returns the program name of the browser; `None` without one. CI must have one.
fn browser() -> Option<&'static str> {
    let runs = |name: &&str| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    };
    let found = BROWSERS.into_iter().find(|name| runs(name));
    let in_ci = std::env::var("CI").is_ok_and(|ci| !ci.is_empty() && ci != "false");
    assert!(
        found.is_some() || !in_ci,
        "CI has no browser: tests/setup installs chromium"
    );
    found
}

/// Browser with one page.
struct Page {
    child: Child,
    to: File,
    from: Receiver<Value>,
    session: Option<String>,
    number: u64,
    /// Console messages and script errors.
    console: Vec<String>,
    loaded: bool,
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Page {
    fn open(room: &Room, browser: &str) -> Self {
        let (there, back) = (room.path().join("to"), room.path().join("from"));
        for pipe in [&there, &back] {
            let made = Command::new("mkfifo").arg(pipe).status();
            assert!(made.is_ok_and(|status| status.success()), "mkfifo");
        }
        // Opened for both directions, so that neither end blocks in `open` until the other has
        // opened it.
        let both = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
        let (to, from) = (both(&there).unwrap(), both(&back).unwrap());
        let profile = room.path().join("profile");
        let sandbox = if is_root() { "--no-sandbox" } else { "" };
        let words = format!(
            "exec \"$0\" --headless --disable-gpu {sandbox} --no-first-run --disable-background-networking \
             --disable-component-update --disable-sync --remote-debugging-pipe \"--user-data-dir=$1\" \
             3<\"$2\" 4>\"$3\""
        );
        let child = room
            .command("sh", ["-c", words.as_str(), browser])
            .args([&profile, &there, &back])
            // Outside its profile the browser makes directories that survive a kill.
            .env("TMPDIR", room.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the browser starts");
        let (said, heard) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(from).split(0).map_while(Result::ok) {
                let value = serde_json::from_slice(&message);
                if value.is_ok_and(|value| said.send(value).is_err()) {
                    return;
                }
            }
        });
        let mut page = Self {
            child,
            to,
            from: heard,
            session: None,
            number: 0,
            console: Vec::new(),
            loaded: false,
        };
        let target = page.ask("Target.createTarget", &json!({"url": "about:blank"}));
        let target = &target["targetId"];
        let words = json!({"targetId": target, "flatten": true});
        let session = page.ask("Target.attachToTarget", &words);
        page.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log"] {
            page.ask(&format!("{domain}.enable"), &json!({}));
        }
        page
    }

    /// Sends a command and returns its result; events are recorded meanwhile.
    fn ask(&mut self, method: &str, parameters: &Value) -> Value {
        self.number += 1;
        let mut message =
            json!({"id": self.number, "method": method, "params": parameters.clone()});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).expect("the browser reads");
        let number = self.number;
        let answer = self.hear(method, |message| message["id"] == number);
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// Receives messages until one satisfies the condition.
    fn hear(&mut self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let message = match self.from.recv_timeout(left) {
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
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            &json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": phone}),
        );
        self.loaded = false;
        let url = format!("file://{}", page.display());
        self.ask("Page.navigate", &json!({"url": url}));
        if !self.loaded {
            self.hear("the page", |message| {
                message["method"] == "Page.loadEventFired"
            });
        }
    }

    /// Returns the value of an expression in the page.
    fn value(&mut self, expression: &str) -> Value {
        let answer = self.ask(
            "Runtime.evaluate",
            &json!({"expression": expression, "returnByValue": true}),
        );
        assert!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].clone()
    }

    fn text(&mut self, expression: &str) -> String {
        self.value(expression).as_str().unwrap_or("").to_owned()
    }

    /// Scrolls to an element and returns a position in it, given as fractions of its box.
    fn place(&mut self, element: &str, (x, y): (f64, f64)) -> (f64, f64) {
        let rectangle = self.value(&format!(
            "(() => {{ const e = {element}; e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; }})()"
        ));
        let number = |at: usize| rectangle[at].as_f64().expect("a box");
        (number(0) + x * number(2), number(1) + y * number(3))
    }

    fn mouse(&mut self, kind: &str, (x, y): (f64, f64), down: bool) {
        let mut words = json!({"type": kind, "x": x, "y": y, "buttons": u32::from(down)});
        if kind != "mouseMoved" {
            words["button"] = json!("left");
            words["clickCount"] = json!(1);
        }
        self.ask("Input.dispatchMouseEvent", &words);
    }
}

/// Returns an expression for the drawing of a figure that is visible at this width.
fn drawing(figure: &str) -> String {
    format!(
        "[...document.querySelectorAll('{figure} svg')].find(svg => svg.getBoundingClientRect().width > 0)"
    )
}

/// Measures for a second with these options to `page.html`, and opens a browser for it.
fn throughput(room: &Room, browser: &str, options: &str) -> Page {
    let server = room.server("-q");
    let port = server.port;
    room.run(&format!(
        "throughput 127.0.0.1 -p {port} -t 1 {options} --html page.html -q"
    ))
    .expect(0);
    Page::open(room, browser)
}

#[test]
fn pages_render_without_a_word_on_the_console() {
    let Some(browser) = browser() else {
        skip!("no browser (chromium)");
    };
    let room = Room::new();
    let server = room.server("-q");
    let port = server.port;
    room.run(&format!(
        "latency 127.0.0.1 -u -p {port} -t 1 -i 0.1 --html latency.html -q"
    ))
    .expect(0);
    room.run(&format!(
        "throughput 127.0.0.1 -p {port} -t 1 -i 0.1 --html throughput.html -q"
    ))
    .expect(0);
    room.run("report last last~1 --html both.html").expect(0);
    room.run("forward --dev ring:0 --dev ring:1 -t 0.5 --html forward.html -q")
        .expect(0);
    let mut chromium = Page::open(&room, browser);
    for name in [
        "latency.html",
        "throughput.html",
        "both.html",
        "forward.html",
    ] {
        for width in [1280, 390] {
            chromium.load(&room.path().join(name), width);
            assert_eq!(chromium.console, Vec::<String>::new(), "{name} at {width}");
            let drawn = chromium.value("document.querySelectorAll('svg').length");
            assert!(drawn.as_u64() > Some(0), "{name} at {width}");
            // A table wider than the page scrolls in a box of its own.
            let wide = chromium.value("document.documentElement.scrollWidth");
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
    let Some(browser) = browser() else {
        skip!("no browser (chromium)");
    };
    let room = Room::new();
    let mut chromium = throughput(&room, browser, "-i 0.1");
    // A4 has 718 px between margins of 1 cm.
    chromium.load(&room.path().join("page.html"), 718);
    let seen = "[...document.querySelectorAll('.hosts, .hosts dl, section.run > details table')]\
        .map(table => table.checkVisibility())";
    let folded = chromium.value(seen);
    let folded = folded.as_array().expect("tables");
    assert!(
        folded.len() > 3 && folded.iter().all(|seen| seen == false),
        "{folded:?}"
    );
    chromium.ask(
        "Emulation.setEmulatedMedia",
        &json!({"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]}),
    );
    assert_eq!(
        chromium.text("getComputedStyle(document.body).backgroundColor"),
        "rgb(255, 255, 255)"
    );
    let unfolded = chromium.value(seen);
    let mut unfolded = unfolded.as_array().expect("tables").iter();
    assert!(unfolded.all(|seen| seen == true), "{unfolded:?}");
    // An element after a table begins below it.
    let over = chromium.value(
        "(() => { const footer = document.querySelector('footer').getBoundingClientRect().top;\
         return [...document.querySelectorAll('section table')]\
         .filter(table => table.getBoundingClientRect().bottom > footer).length; })()",
    );
    assert_eq!(over, 0);
    let wide = chromium.value("document.documentElement.scrollWidth");
    assert!(wide.as_u64() <= Some(718), "{wide}");
}

/// Printed steps of a search would fill a sheet a trial; they are printed only where the reader
/// opened them.
#[test]
fn steps_of_a_search_are_printed_for_who_opens_them() {
    let Some(browser) = browser() else {
        skip!("no browser (chromium)");
    };
    let room = Room::new();
    room.run("capacity --dev ring:0 --sizes 64 --trial 100ms --drain 10ms --resolution 20% --html page.html -q --no-store")
        .expect(0);
    let mut chromium = Page::open(&room, browser);
    for width in [1280, 390] {
        chromium.load(&room.path().join("page.html"), width);
        let wide = chromium.value("document.documentElement.scrollWidth");
        assert!(wide.as_u64() <= Some(u64::from(width)), "{width}: {wide}");
        assert_eq!(chromium.console, Vec::<String>::new(), "at {width}");
    }
    chromium.load(&room.path().join("page.html"), 718);
    chromium.ask("Emulation.setEmulatedMedia", &json!({"media": "print"}));
    let steps = "document.querySelector('details.steps')";
    assert_eq!(chromium.value(&format!("{steps}.checkVisibility()")), false);
    chromium.value(&format!("{steps}.open = true"));
    assert_eq!(chromium.value(&format!("{steps}.checkVisibility()")), true);
    // A name with a long value stays on one line.
    let names = chromium.value(
        "[...document.querySelectorAll('.steps th code')].map(name => name.getClientRects().length)",
    );
    let names = names.as_array().expect("names of options");
    assert!(names.len() > 20, "{}", names.len());
    assert!(names.iter().all(|lines| lines == 1), "{names:?}");
}

#[test]
fn a_chart_tells_the_figures_under_the_pointer() {
    let Some(browser) = browser() else {
        skip!("no browser (chromium)");
    };
    let room = Room::new();
    let mut chromium = throughput(&room, browser, "-i 0.1");
    chromium.load(&room.path().join("page.html"), 1280);
    let tip = "document.querySelector('figure.chart .tip')";
    assert_eq!(chromium.value(&format!("{tip}.hidden")), true);
    let middle = chromium.place(&drawing("figure.chart"), (0.5, 0.5));
    chromium.mouse("mouseMoved", middle, false);
    assert_eq!(chromium.value(&format!("{tip}.hidden")), false);
    let told = chromium.text(&format!("{tip}.textContent"));
    assert!(told.contains("b/s"), "{told}");
    chromium.mouse("mouseMoved", (1.0, 1.0), false);
    assert_eq!(chromium.value(&format!("{tip}.hidden")), true);
    assert_eq!(chromium.console, Vec::<String>::new());
}

#[test]
fn the_timeline_is_zoomed_and_tells_what_is_under_the_pointer() {
    let Some(browser) = browser() else {
        skip!("no browser (chromium)");
    };
    let room = Room::new();
    let mut chromium = throughput(&room, browser, "--calls --trace calls.json");
    for width in [1280, 390] {
        chromium.load(&room.path().join("page.html"), width);
        let figure = "document.querySelector('figure.timeline')";
        let span = |chromium: &mut Page| {
            let shown = chromium.text(&format!("{figure}.dataset.shown || {figure}.dataset.view"));
            let ends: Vec<f64> = shown.split(' ').map(|end| end.parse().unwrap()).collect();
            ends[1] - ends[0]
        };
        let svg = drawing("figure.timeline");
        let before = span(&mut chromium);

        // Hover: in the middle of the widest bar of the first track.
        let bar = format!(
            "[...{svg}.querySelectorAll('.slices rect')].sort((a, b) => b.getBBox().width - a.getBBox().width)[0]"
        );
        let inside = chromium.place(&bar, (0.5, 0.5));
        chromium.mouse("mouseMoved", inside, false);
        let tip = format!("{figure}.querySelector('.tip')");
        assert_eq!(
            chromium.value(&format!("{tip}.hidden")),
            false,
            "at {width}"
        );
        let told = chromium.text(&format!("{tip}.textContent"));
        assert!(told.contains("thread") && told.contains("from"), "{told}");

        // Zoom: by the button, by dragging over a part, and back.
        chromium.value(&format!("{figure}.querySelector('[data-do=in]').click()"));
        let nearer = span(&mut chromium);
        assert!(nearer < before * 0.6, "at {width}: {before} to {nearer}");
        let from = chromium.place(&svg, (0.25, 0.4));
        let to = chromium.place(&svg, (0.5, 0.4));
        chromium.mouse("mouseMoved", from, false);
        chromium.mouse("mousePressed", from, true);
        chromium.mouse("mouseMoved", to, true);
        chromium.mouse("mouseReleased", to, false);
        let part = span(&mut chromium);
        assert!(part < nearer * 0.5, "at {width}: {nearer} to {part}");
        chromium.value(&format!(
            "{figure}.querySelector('[data-do=reset]').click()"
        ));
        assert!((span(&mut chromium) - before).abs() < 1.0);
        chromium.value(&format!("{figure}.querySelector('[data-do=all]').click()"));
        assert!(span(&mut chromium) >= before);
        assert_eq!(chromium.console, Vec::<String>::new(), "at {width}");
    }
}

/// The tests above can fail: an error of a script is detected.
#[test]
fn a_wrong_page_is_seen() {
    let Some(browser) = browser() else {
        skip!("no browser (chromium)");
    };
    let room = Room::new();
    let page = room.path().join("wrong.html");
    std::fs::write(&page, "<!doctype html><script>nothing.there();</script>").unwrap();
    let mut chromium = Page::open(&room, browser);
    chromium.load(&page, 800);
    // The message may arrive after the load event.
    if chromium.console.is_empty() {
        chromium.hear("the console", |message| {
            message["method"] == "Runtime.exceptionThrown"
        });
    }
    let said = chromium.console.join("\n");
    assert!(said.contains("nothing is not defined"), "{said}");
}
