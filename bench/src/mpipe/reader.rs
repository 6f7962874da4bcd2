//! A consumer: this program again, told by its arguments what it is, with a socket as its standard
//! input over which it gets its descriptor and its orders.

use buffer::stream::Input;
use iolite::mpipe;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};

/// What it reads from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An end of our pipe.
    End,
    /// An end of a ring that overwrites: the last block says that it is the last one.
    LossyEnd,
    /// A pipe of Linux.
    Pipe,
}

impl Kind {
    const fn word(self) -> &'static str {
        match self {
            Self::End => "mpipe-end",
            Self::LossyEnd => "mpipe-lossy",
            Self::Pipe => "mpipe-pipe",
        }
    }
}

/// The other process, as its parent sees it.
pub(super) struct Reader {
    process: Child,
    orders: OwnedFd,
    reads: bool,
}

impl Reader {
    /// Starts it on a processor and hands it what it reads from. One that does not read opens its
    /// end and does nothing.
    pub(super) fn start(
        kind: Kind,
        processor: usize,
        block: usize,
        end: &OwnedFd,
        reads: bool,
    ) -> Result<Self, String> {
        let (orders, theirs) = sys::descriptor::pair().map_err(|why| why.to_string())?;
        let itself = std::env::current_exe().map_err(|why| why.to_string())?;
        let process = Command::new(itself)
            .args(["--reader", kind.word(), &processor.to_string(), &block.to_string()])
            .stdin(Stdio::from(theirs))
            .spawn()
            .map_err(|why| why.to_string())?;
        sys::descriptor::send(&orders, b"this", &[end.as_fd()]).map_err(|why| why.to_string())?;
        Ok(Self { process, orders, reads })
    }

    /// Tells it how many bytes come.
    pub(super) fn expect(&mut self, bytes: u64) -> Result<(), String> {
        if !self.reads {
            return Ok(());
        }
        sys::descriptor::send(&self.orders, &bytes.to_le_bytes(), &[])
            .map_err(|why| why.to_string())
    }

    /// Waits until it has them.
    pub(super) fn done(&mut self) -> Result<(), String> {
        if !self.reads {
            return Ok(());
        }
        match sys::descriptor::receive(&self.orders, &mut [0; 8]) {
            Ok((length, _)) if length > 0 => Ok(()),
            Ok(_) => Err("a consumer has ended".to_owned()),
            Err(why) => Err(why.to_string()),
        }
    }
}

impl Drop for Reader {
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
    let end = received.map_err(|why| why.to_string())?.1.into_iter().next().ok_or("no end")?;
    let open = |end| -> Result<Box<Input>, String> {
        let input = mpipe::open_read(end).map_err(|why| why.to_string())?;
        let mut input = input.ok_or("nobody writes")?;
        // Several consumers share this processor: who finds nothing lets the others on.
        input.spin(0);
        Ok(Box::new(input))
    };
    let mut from = match kind.as_str() {
        "mpipe-end" => From::End(open(end)?),
        "mpipe-lossy" => From::Lossy(open(end)?),
        _ => From::Pipe(File::from(end)),
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
            left = from.read(&mut out, left)?;
            std::hint::black_box(&mut out);
        }
        sys::descriptor::send(orders.as_fd(), b"done", &[]).map_err(|why| why.to_string())?;
    }
}

enum From {
    End(Box<Input>),
    Lossy(Box<Input>),
    Pipe(File),
}

impl From {
    /// Reads, and answers how many bytes are left.
    #[inline]
    fn read(&mut self, out: &mut [u8], left: u64) -> Result<u64, String> {
        let count = match self {
            Self::End(input) => input.read(out).map_err(|why| why.to_string())?,
            Self::Lossy(input) => {
                let count = input.read(out).map_err(|why| why.to_string())?;
                if out.first() == Some(&1) {
                    return Ok(0);
                }
                if count == 0 {
                    return Err("the stream has ended".to_owned());
                }
                return Ok(left);
            }
            Self::Pipe(pipe) => pipe.read(out).map_err(|why| why.to_string())?,
        };
        if count == 0 {
            return Err("the stream has ended".to_owned());
        }
        Ok(left.saturating_sub(count as u64))
    }
}
