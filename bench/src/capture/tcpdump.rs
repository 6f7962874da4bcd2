//! tcpdump, several of it at one device: what it is called with, what it says that it lost.

use crate::processes::{end, number_before, text};
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use testkit::net::{Pair, SERVER_DEVICE, until};

/// Instances that run.
pub(super) struct Tcpdumps(Vec<Child>);

impl Tcpdumps {
    /// Starts so many on the second processor, and waits until each sees frames. Each has
    /// a ring of so many bytes, keeps so many of a frame, and writes them to nowhere.
    pub(super) fn start(
        pair: &Pair,
        folder: &Path,
        count: usize,
        (ring, keep): (u32, u32),
    ) -> Result<Self, String> {
        let mut all = Self(Vec::new());
        for number in 0..count {
            let told = File::create(folder.join(number.to_string())).map_err(|w| w.to_string())?;
            let words =
                format!("-n -Z root -B {} -s {keep} -w /dev/null -i {SERVER_DEVICE}", ring >> 10);
            let mut command = Command::new("tcpdump");
            command.args(words.split(' ')).stdin(Stdio::null()).stderr(told);
            all.0.push(pair.server.enter(|| {
                // Where there is only one, it is shared.
                let _ = sys::process::pin_to(1);
                command.spawn().map_err(|why| format!("tcpdump: {why}"))
            })?);
        }
        for number in 0..count {
            let file = folder.join(number.to_string());
            until("tcpdump listens", || text(&file).contains("listening on"));
        }
        Ok(all)
    }

    /// The numbers of the processes.
    pub(super) fn processes(&self) -> Vec<u32> {
        self.0.iter().map(Child::id).collect()
    }

    /// Ends all; answers how many frames they lost together. Frames of a block that is not full
    /// are lost to nobody: they would have come in a second.
    pub(super) fn end(mut self, folder: &Path) -> Result<u64, String> {
        let mut lost = 0_u64;
        for (number, child) in std::mem::take(&mut self.0).into_iter().enumerate() {
            end(child, "tcpdump")?;
            let told = text(&folder.join(number.to_string()));
            lost = lost.saturating_add(number_before(&told, " packets dropped by kernel"));
        }
        Ok(lost)
    }
}

impl Drop for Tcpdumps {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Only where something else failed before.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
