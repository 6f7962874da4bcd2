//! The reading process of `bench moderation`: another instance of this program, which receives
//! descriptors and requests over a socket on its standard input.

use super::NotificationMode;
use crate::child::BenchChild;
use crate::processes::context_switches;
use buffer::stream::{Input, Offer, WaitResult};
use std::os::fd::AsFd;
use std::time::Duration;

/// Timeout of a wait for a notification, in the mode that arms a timer for each wait.
pub(super) const WAIT_TIMEOUT: Duration = Duration::from_millis(1);

/// The writer's handle to the reading process.
pub(super) struct ModerationReader(BenchChild);

impl ModerationReader {
    /// Starts the reader on a processor, and waits until it has opened its end. Fails with the
    /// reader's error.
    pub(super) fn start(
        mode: NotificationMode,
        processor: usize,
        block: usize,
        offer: &Offer,
    ) -> Result<Self, String> {
        let words = ["events", mode.name(), &format!("{processor} {block}")];
        let child = BenchChild::start(words, &offer.descriptors())?;
        child.wait_until_received()?;
        Ok(Self(child))
    }

    /// Sends the number of bytes that the reader must receive next.
    pub(super) fn announce_bytes(&self, bytes: u64) -> Result<(), String> {
        self.0.announce_bytes(bytes)
    }

    /// Blocks until the reader has received the number of bytes that [`Self::announce_bytes`] has
    /// sent.
    pub(super) fn wait_until_received(&self) -> Result<(), String> {
        self.0.wait_until_received()
    }

    /// Returns the reader's number of waits so far.
    pub(super) fn wait_count(&self) -> u64 {
        context_switches(&self.0.process_id().to_string())[0]
    }

    /// Returns the reader's processor time so far, in ns.
    pub(super) fn processor_ns(&self) -> Result<u64, String> {
        let path = format!("/proc/{}/schedstat", self.0.process_id());
        let text = std::fs::read_to_string(&path).map_err(|why| format!("{path}: {why}"))?;
        let first = text.split_whitespace().next().and_then(|word| word.parse().ok());
        first.ok_or_else(|| format!("{path}: no number"))
    }
}

/// Runs the reading process, which the bench starts with the arguments
/// `--reader events MODE "PROCESSOR BLOCK"`.
pub(crate) fn serve(words: &[String]) -> Result<(), String> {
    let [_, mode, numbers] = words else { return Err("three words".to_owned()) };
    let mode = NotificationMode::from_name(mode).ok_or("no mode is called so")?;
    let mut numbers = numbers.split(' ').map(str::parse::<usize>);
    let (Some(Ok(processor)), Some(Ok(block))) = (numbers.next(), numbers.next()) else {
        return Err("two numbers".to_owned());
    };
    let socket = std::io::stdin();
    let received = sys::descriptor::receive(socket.as_fd(), &mut [0; 8]);
    let (_, descriptors) = received.map_err(|why| why.to_string())?;
    let ready = || -> Result<Input, String> {
        sys::process::pin_to_processor(processor).map_err(|why| why.to_string())?;
        if mode == NotificationMode::Strict {
            sys::process::set_real_time_priority().map_err(|why| why.to_string())?;
        }
        let offer = Offer::from_descriptors(descriptors).map_err(|why| why.to_string())?;
        let mut input = offer.open().map_err(|why| why.to_string())?;
        if processor == 0 {
            input.set_spin_limit(0);
        }
        Ok(input)
    };
    let mut input = match ready() {
        Ok(input) => input,
        Err(why) => {
            let sent = sys::descriptor::send(socket.as_fd(), why.as_bytes(), &[]);
            return sent.map_err(|why| why.to_string());
        }
    };
    let mut out = vec![0; block];
    let mut request = [0; 8];
    loop {
        sys::descriptor::send(socket.as_fd(), b"done", &[]).map_err(|why| why.to_string())?;
        let got = sys::descriptor::receive(socket.as_fd(), &mut request);
        if got.map_err(|why| why.to_string())?.0 == 0 {
            return Ok(());
        }
        let mut left = u64::from_le_bytes(request);
        while left > 0 {
            left = left.saturating_sub(read_in_mode(&mut input, mode, &mut out)? as u64);
            std::hint::black_box(&mut out);
        }
    }
}

#[inline]
fn read_in_mode(
    input: &mut Input,
    mode: NotificationMode,
    out: &mut [u8],
) -> Result<usize, String> {
    if mode != NotificationMode::Timed {
        return input.read(out).map_err(|why| why.to_string());
    }
    loop {
        match input.try_read(out).map_err(|why| why.to_string())? {
            Some(count) => return Ok(count),
            None => {
                input.release();
                while input.wait(Some(WAIT_TIMEOUT)).map_err(|why| why.to_string())?
                    == WaitResult::NotReady
                {}
            }
        }
    }
}
