//! Tests of the interactive screen of `top` on a terminal, which `script` of util-linux provides.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::{Folder, Guard};
use std::io::{Read as _, Write as _};
use std::process::{ChildStdin, Stdio};
use std::sync::{Arc, Mutex};
use testkit::{need, wait_until};

/// A running `top` on a terminal of 100 columns and 30 rows.
struct Screen {
    process: Guard,
    keys: ChildStdin,
    /// All output so far.
    output: Arc<Mutex<String>>,
}

impl Screen {
    /// Starts `top` for a path, or returns `None` with a reported skip.
    fn start(folder: &Folder, path: &str) -> Option<Self> {
        let script = need::require_command("script")?;
        let mut command = folder.shell("exec \"$@\"");
        let typed = format!("stty columns 100 rows 30; exec streamline top --every=200ms {path}");
        command.arg("sh").arg(script).args(["-qec", &typed, "/dev/null"]).env("TERM", "xterm");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (keys, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let output = Arc::new(Mutex::new(String::new()));
        let seen = Arc::clone(&output);
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(length @ 1..) = screen.read(&mut part) {
                seen.lock().unwrap().push_str(&String::from_utf8_lossy(&part[..length]));
            }
        });
        Some(Self { process: Guard(child), keys, output })
    }

    /// Presses keys, and waits until a text appears that was printed after them.
    fn press(&mut self, keys: &str, expected: &str) {
        let before = self.output.lock().unwrap().len();
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
        wait_until(&format!("`{expected}` appears"), || {
            self.output.lock().unwrap().get(before..).is_some_and(|new| new.contains(expected))
        });
    }
}

#[test]
fn top_helps_sorts_filters_and_opens_nodes_by_keys() {
    let folder = Folder::new();
    let _daemon = folder.daemon();
    let _path = folder.spawn_named("web", "generate rate=1000 | udp | count");
    let Some(mut screen) = Screen::start(&folder, "web") else { return };
    screen.press("", "? help, q quits");
    screen.press("?", "select a node");
    screen.press("?", "generate");
    screen.press("s", "blocks/s▾");
    screen.press("/", "/_");
    screen.press("ud\r", "clears)");
    // Blank cells are skipped, so single words are expected.
    screen.press("\r", "thread0:");
    assert!(!screen.output.lock().unwrap().contains("\x1b[31m"), "NO_COLOR is set");
    screen.keys.write_all(b"q").unwrap();
    let status = screen.process.0.wait().unwrap();
    assert_eq!(status.code(), Some(0));
}
