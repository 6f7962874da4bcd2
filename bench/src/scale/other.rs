//! The process that reads: this program again, with a socket as its standard input over which it
//! gets its stream and its orders.

use super::BLOCK;
use buffer::stream::Offer;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};

/// The other process, as its parent sees it.
pub(super) struct Other {
    process: Child,
    orders: OwnedFd,
}

impl Other {
    /// Starts it on a processor and hands it the stream.
    pub(super) fn start(processor: usize, offer: &Offer) -> Result<Self, String> {
        let (orders, theirs) = sys::descriptor::pair().map_err(|why| why.to_string())?;
        let itself = std::env::current_exe().map_err(|why| why.to_string())?;
        let process = Command::new(itself)
            .args(["--reader", "scale", &processor.to_string(), "0"])
            .stdin(Stdio::from(theirs))
            .spawn()
            .map_err(|why| why.to_string())?;
        let sent = sys::descriptor::send(&orders, b"these", &offer.descriptors());
        sent.map_err(|why| why.to_string())?;
        Ok(Self { process, orders })
    }

    /// Tells it how many bytes come.
    pub(super) fn expect(&mut self, bytes: u64) -> Result<(), String> {
        let sent = sys::descriptor::send(&self.orders, &bytes.to_le_bytes(), &[]);
        sent.map_err(|why| why.to_string())
    }

    /// Waits until it has them.
    pub(super) fn done(&mut self) -> Result<(), String> {
        match sys::descriptor::receive(&self.orders, &mut [0; 8]) {
            Ok((length, _)) if length > 0 => Ok(()),
            Ok(_) => Err("the reading process has ended".to_owned()),
            Err(why) => Err(why.to_string()),
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It may be in the middle of waiting; nothing of it is needed any more.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The life of the other process: `--reader scale PROCESSOR 0`.
pub(crate) fn serve(words: &[String]) -> Result<(), String> {
    let processor = words.get(1).and_then(|word| word.parse().ok()).ok_or("no processor")?;
    sys::process::pin_to(processor).map_err(|why| why.to_string())?;
    let orders = std::io::stdin();
    let received = sys::descriptor::receive(orders.as_fd(), &mut [0; 8]);
    let (_, descriptors) = received.map_err(|why| why.to_string())?;
    let offer = Offer::from_descriptors(descriptors).map_err(|why| why.to_string())?;
    let mut input = offer.open().map_err(|why| why.to_string())?;
    if processor == 0 {
        input.spin(0);
    }
    let (mut out, mut order) = (vec![0; BLOCK], [0; 8]);
    loop {
        let got = sys::descriptor::receive(orders.as_fd(), &mut order);
        if got.map_err(|why| why.to_string())?.0 == 0 {
            return Ok(());
        }
        let mut left = u64::from_le_bytes(order);
        while left > 0 {
            match input.read(&mut out).map_err(|why| why.to_string())? {
                0 => return Err("the stream has ended".to_owned()),
                count => left = left.saturating_sub(count as u64),
            }
            std::hint::black_box(&mut out);
        }
        sys::descriptor::send(orders.as_fd(), b"done", &[]).map_err(|why| why.to_string())?;
    }
}
