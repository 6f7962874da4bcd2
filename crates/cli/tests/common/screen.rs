//! A pseudoterminal for commands, provided by `script` of util-linux.

use super::{ChildGuard, Folder};
use std::io::{Read as _, Write as _};
use std::process::{ChildStdin, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use testkit::{need, wait_until};

/// A command that runs on a terminal of 100 columns and 30 rows.
pub(crate) struct Screen {
    process: ChildGuard,
    keys: ChildStdin,
    /// Text that the command has written to the terminal so far.
    output: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Screen {
    /// Starts the program with arguments that a shell splits into words. Reports a skip and returns
    /// `None` if `script` is not installed.
    pub(crate) fn start(folder: &Folder, words: &str) -> Option<Self> {
        Self::start_shell_command(folder, &format!("streamline {words}"))
    }

    /// Starts a shell command. Reports a skip and returns `None` if `script` is not installed.
    pub(crate) fn start_shell_command(folder: &Folder, words: &str) -> Option<Self> {
        let script = need::require_command("script")?;
        let mut command = folder.shell_command("exec \"$@\"");
        let typed = format!("stty columns 100 rows 30; exec {words}");
        command.arg("sh").arg(script).args(["-qec", &typed, "/dev/null"]).env("TERM", "xterm");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (keys, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let output = Arc::new(Mutex::new(String::new()));
        let shared_output = Arc::clone(&output);
        let reader = std::thread::spawn(move || {
            let (mut part, mut rest) = ([0; 4096], Vec::new());
            while let Ok(length @ 1..) = screen.read(&mut part) {
                // The bytes may end within a UTF-8 character.
                rest.extend_from_slice(&part[..length]);
                let valid = match std::str::from_utf8(&rest) {
                    Ok(text) => text.len(),
                    Err(error) => error.valid_up_to(),
                };
                let text: Vec<u8> = rest.drain(..valid).collect();
                shared_output.lock().unwrap().push_str(&String::from_utf8_lossy(&text));
            }
        });
        Some(Self { process: ChildGuard(child), keys, output, reader: Some(reader) })
    }

    /// Waits until the output contains a text.
    pub(crate) fn wait_for_text(&self, expected: &str) {
        wait_until(&format!("`{expected}` appears"), || self.output().contains(expected));
    }

    /// Types keys, and waits until the new output contains the text `expected`.
    pub(crate) fn press(&mut self, keys: &str, expected: &str) {
        let before = self.output().len();
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
        wait_until(&format!("`{expected}` appears"), || {
            self.output().get(before..).is_some_and(|new| new.contains(expected))
        });
    }

    /// Returns the text that the command has written to the terminal so far.
    pub(crate) fn output(&self) -> String {
        self.output.lock().unwrap().clone()
    }

    /// Types `q`, and waits until the command has exited. Returns the exit status.
    pub(crate) fn quit(&mut self) -> Option<i32> {
        self.keys.write_all(b"q").unwrap();
        self.wait_for_exit()
    }

    /// Waits until the command has exited and all its output has been read. Returns the exit
    /// status.
    pub(crate) fn wait_for_exit(&mut self) -> Option<i32> {
        let status = self.process.0.wait().unwrap();
        self.reader.take().into_iter().for_each(|reader| reader.join().unwrap());
        status.code()
    }
}
