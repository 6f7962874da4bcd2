//! The process that reads, for `bench moderation`: this program again, with a socket as its
//! standard input over which it gets its descriptors and its orders.

use super::Mode;
use crate::processes::switches;
use buffer::stream::{Input, Offer, Ready};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long a wait lasts at most where waits are timed.
pub(super) const LIMIT: Duration = Duration::from_millis(1);

/// The reader, as the writer sees it.
pub(super) struct Reader {
    process: Child,
    orders: OwnedFd,
}

impl Reader {
    /// Starts it on a processor, and waits until it has opened its end. The error says why it could
    /// not.
    pub(super) fn start(
        mode: Mode,
        processor: usize,
        block: usize,
        offer: &Offer,
    ) -> Result<Self, String> {
        let (orders, theirs) = sys::descriptor::pair().map_err(|why| why.to_string())?;
        let itself = std::env::current_exe().map_err(|why| why.to_string())?;
        let words = ["events", mode.word(), &format!("{processor} {block}")].map(str::to_owned);
        let process = Command::new(itself)
            .arg("--reader")
            .args(words)
            .stdin(Stdio::from(theirs))
            .spawn()
            .map_err(|why| why.to_string())?;
        sys::descriptor::send(&orders, b"these", &offer.descriptors())
            .map_err(|why| why.to_string())?;
        let mut reader = Self { process, orders };
        reader.done()?;
        Ok(reader)
    }

    /// Tells it how many bytes come.
    pub(super) fn expect(&mut self, bytes: u64) -> Result<(), String> {
        sys::descriptor::send(&self.orders, &bytes.to_le_bytes(), &[])
            .map_err(|why| why.to_string())
    }

    /// Waits until it has them.
    pub(super) fn done(&mut self) -> Result<(), String> {
        let mut answer = [0; 256];
        match sys::descriptor::receive(&self.orders, &mut answer) {
            Ok((4, _)) => Ok(()),
            Ok((length, _)) if length > 0 => {
                Err(String::from_utf8_lossy(&answer[..length]).into_owned())
            }
            Ok(_) => Err("the reading process has ended".to_owned()),
            Err(why) => Err(why.to_string()),
        }
    }

    /// How often it has waited so far.
    pub(super) fn waited(&self) -> u64 {
        switches(&self.process.id().to_string())[0]
    }

    /// Processor time that it has used so far, in ns.
    pub(super) fn used_ns(&self) -> Result<u64, String> {
        let path = format!("/proc/{}/schedstat", self.process.id());
        let text = std::fs::read_to_string(&path).map_err(|why| format!("{path}: {why}"))?;
        let first = text.split_whitespace().next().and_then(|word| word.parse().ok());
        first.ok_or_else(|| format!("{path}: no number"))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // It may be in the middle of waiting; nothing of it is needed any more.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The life of the reader: `--reader events MODE "PROCESSOR BLOCK"`.
pub(crate) fn serve(words: &[String]) -> Result<(), String> {
    let [_, mode, numbers] = words else { return Err("three words".to_owned()) };
    let mode = Mode::of(mode).ok_or("no mode is called so")?;
    let mut numbers = numbers.split(' ').map(str::parse::<usize>);
    let (Some(Ok(processor)), Some(Ok(block))) = (numbers.next(), numbers.next()) else {
        return Err("two numbers".to_owned());
    };
    let orders = std::io::stdin();
    let received = sys::descriptor::receive(orders.as_fd(), &mut [0; 8]);
    let (_, descriptors) = received.map_err(|why| why.to_string())?;
    let ready = || -> Result<Input, String> {
        sys::process::pin_to(processor).map_err(|why| why.to_string())?;
        if mode == Mode::Strict {
            sys::process::real_time().map_err(|why| why.to_string())?;
        }
        let offer = Offer::from_descriptors(descriptors).map_err(|why| why.to_string())?;
        let mut input = offer.open().map_err(|why| why.to_string())?;
        if processor == 0 {
            input.spin(0);
        }
        Ok(input)
    };
    let mut input = match ready() {
        Ok(input) => input,
        Err(why) => {
            let told = sys::descriptor::send(orders.as_fd(), why.as_bytes(), &[]);
            return told.map_err(|why| why.to_string());
        }
    };
    let mut out = vec![0; block];
    let mut order = [0; 8];
    loop {
        sys::descriptor::send(orders.as_fd(), b"done", &[]).map_err(|why| why.to_string())?;
        let got = sys::descriptor::receive(orders.as_fd(), &mut order);
        if got.map_err(|why| why.to_string())?.0 == 0 {
            return Ok(());
        }
        let mut left = u64::from_le_bytes(order);
        while left > 0 {
            left = left.saturating_sub(read(&mut input, mode, &mut out)? as u64);
            std::hint::black_box(&mut out);
        }
    }
}

#[inline]
fn read(input: &mut Input, mode: Mode, out: &mut [u8]) -> Result<usize, String> {
    if mode != Mode::Timed {
        return input.read(out).map_err(|why| why.to_string());
    }
    loop {
        match input.try_read(out).map_err(|why| why.to_string())? {
            Some(count) => return Ok(count),
            None => {
                input.give_back();
                while input.wait(Some(LIMIT)).map_err(|why| why.to_string())? == Ready::Nothing {}
            }
        }
    }
}
