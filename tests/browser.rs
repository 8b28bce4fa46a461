//! The page as a browser has it: headless Chromium must render it without a word on its console.
//!
//! The browser is driven from outside, by its own options: it prints the document after scripts ran, and
//! its console to standard error. A missing browser is a skip, which CI counts as a failure.

mod common;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{Room, is_root, skip};

/// Names that the browser has.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

fn browser() -> Option<&'static str> {
    let runs = |name: &&str| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    };
    BROWSERS.into_iter().find(|name| runs(name))
}

/// The document after its scripts ran, and what the browser's console said.
fn render(room: &Room, browser: &str, page: &Path, width: u32) -> (String, String) {
    let profile = room.path().join(format!("profile-{width}"));
    let mut words = vec![
        "--headless".to_owned(),
        "--disable-gpu".to_owned(),
        "--disable-quic".to_owned(),
        "--disable-background-networking".to_owned(),
        "--disable-component-update".to_owned(),
        "--disable-sync".to_owned(),
        "--no-first-run".to_owned(),
        "--enable-logging=stderr".to_owned(),
        "--dump-dom".to_owned(),
        format!("--window-size={width},900"),
        format!("--user-data-dir={}", profile.display()),
        format!("file://{}", page.display()),
    ];
    if is_root() {
        words.insert(0, "--no-sandbox".to_owned());
    }
    let limit = Duration::from_secs(80).as_secs().to_string();
    let mut command = room.command("timeout", [limit.as_str(), browser]);
    let output = command.args(&words).output().expect("the browser starts");
    let console: Vec<_> = String::from_utf8_lossy(&output.stderr)
        .lines()
        .filter(|line| line.contains(":CONSOLE"))
        .map(str::to_owned)
        .collect();
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        console.join("\n"),
    )
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
    for page in ["latency.html", "throughput.html", "both.html"] {
        for width in [1280, 390] {
            let path = room.path().join(page);
            let (document, console) = render(&room, browser, &path, width);
            assert_eq!(console, "", "{page} at {width}");
            assert!(
                document.contains("</main>") && document.contains("<svg"),
                "{page} at {width}"
            );
        }
    }
}

/// That the test above can fail: an error of a script is seen.
#[test]
fn a_wrong_page_is_seen() {
    let Some(browser) = browser() else {
        skip!("no browser (chromium)");
    };
    let room = Room::new();
    let page = room.path().join("wrong.html");
    std::fs::write(&page, "<!doctype html><script>nothing.there();</script>").unwrap();
    let (_, console) = render(&room, browser, &page, 800);
    assert!(console.contains("nothing is not defined"), "{console}");
}
