//! The process that reads: this program again, told by its arguments what it is, with a socket as
//! its standard input over which it gets its descriptors and its orders.

use buffer::dbuf::fixed;
use buffer::stream::{Input, Offer};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};

/// What the other process reads from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Stream,
    Slots,
    Pipe,
}

impl Kind {
    const fn word(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Slots => "slots",
            Self::Pipe => "pipe",
        }
    }
}

/// The other process, as its parent sees it.
pub(super) struct Other {
    process: Child,
    orders: OwnedFd,
}

impl Other {
    /// Starts it on a processor and hands it what it reads from.
    pub(super) fn start(
        kind: Kind,
        processor: usize,
        block: usize,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Self, String> {
        let (orders, theirs) = sys::descriptor::pair().map_err(|why| why.to_string())?;
        let itself = std::env::current_exe().map_err(|why| why.to_string())?;
        let process = Command::new(itself)
            .args(["--reader", kind.word(), &processor.to_string(), &block.to_string()])
            .stdin(Stdio::from(theirs))
            .spawn()
            .map_err(|why| why.to_string())?;
        sys::descriptor::send(&orders, b"these", descriptors).map_err(|why| why.to_string())?;
        Ok(Self { process, orders })
    }

    /// Tells it how many bytes come.
    pub(super) fn expect(&mut self, bytes: u64) -> Result<(), String> {
        sys::descriptor::send(&self.orders, &bytes.to_le_bytes(), &[])
            .map_err(|why| why.to_string())
    }

    /// Waits until it has them.
    pub(super) fn done(&mut self) -> Result<(), String> {
        let mut answer = [0; 8];
        match sys::descriptor::receive(&self.orders, &mut answer) {
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

/// The life of the other process: `--reader KIND PROCESSOR BLOCK`.
pub(crate) fn serve(words: &[String]) -> Result<(), String> {
    let [kind, processor, block] = words else { return Err("three words".to_owned()) };
    let number = |word: &String| word.parse::<usize>().map_err(|why| why.to_string());
    let (processor, block) = (number(processor)?, number(block)?);
    sys::process::pin_to(processor).map_err(|why| why.to_string())?;
    let orders = std::io::stdin();
    let received = sys::descriptor::receive(orders.as_fd(), &mut [0; 8]);
    let (_, descriptors) = received.map_err(|why| why.to_string())?;
    let mut from = match kind.as_str() {
        "stream" => {
            let offer = Offer::from_descriptors(descriptors).map_err(|why| why.to_string())?;
            let mut input = offer.open().map_err(|why| why.to_string())?;
            if processor == 0 {
                input.spin(0);
            }
            From::Stream(Box::new(input))
        }
        "slots" => {
            let offer = fixed::stream::Offer::from_descriptors(descriptors);
            let opened = offer.map(fixed::stream::Offer::open).map_err(|why| why.to_string())?;
            let mut input = opened.map_err(|why| why.to_string())?;
            if processor == 0 {
                input.spin(0);
            }
            From::Slots(Box::new(input))
        }
        _ => From::Pipe(File::from(descriptors.into_iter().next().ok_or("no pipe")?)),
    };
    let mut out = vec![0; block];
    let mut order = [0; 8];
    loop {
        let got = sys::descriptor::receive(orders.as_fd(), &mut order);
        if got.map_err(|why| why.to_string())?.0 == 0 {
            return Ok(());
        }
        let mut left = u64::from_le_bytes(order);
        while left > 0 {
            left = left.saturating_sub(from.read(&mut out)? as u64);
            std::hint::black_box(&mut out);
        }
        sys::descriptor::send(orders.as_fd(), b"done", &[]).map_err(|why| why.to_string())?;
    }
}

enum From {
    Stream(Box<Input>),
    Slots(Box<fixed::stream::Input>),
    Pipe(File),
}

impl From {
    #[inline]
    fn read(&mut self, out: &mut [u8]) -> Result<usize, String> {
        let count = match self {
            Self::Stream(input) => input.read(out).map_err(|why| why.to_string())?,
            Self::Slots(input) => {
                input.read(out).map_err(|why| why.to_string())?.unwrap_or_default()
            }
            Self::Pipe(pipe) => pipe.read(out).map_err(|why| why.to_string())?,
        };
        if count == 0 { Err("the stream has ended".to_owned()) } else { Ok(count) }
    }
}
