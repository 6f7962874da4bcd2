//! Rings between two threads, from rtrb and ringbuf, which copy whole slices in and out.

use crate::{CAPACITY, Transfer, pin, wait};
use ringbuf::HeapRb;
use ringbuf::traits::{Consumer, Observer, Producer, Split};
use std::hint::black_box;
use std::sync::mpsc;

/// Creates the named ring, with its reader in another thread. Returns a function that transfers
/// blocks to the reader.
pub(crate) fn start(ring: &str, cores: usize, block: usize) -> Result<Transfer, String> {
    let slots = (CAPACITY / block).min(1 << 16);
    match (ring, block) {
        ("rtrb", 64) => Ok(rtrb_slot_transfer::<64>(cores, slots)),
        ("rtrb", 256) => Ok(rtrb_slot_transfer::<256>(cores, slots)),
        ("rtrb", 1024) => Ok(rtrb_slot_transfer::<1024>(cores, slots)),
        ("rtrb", _) => Ok(rtrb_byte_transfer(cores, block)),
        _ => Ok(ringbuf_byte_transfer(cores, block)),
    }
}

/// Starts a thread that calls `read` with each number of blocks that it receives over the first
/// returned channel. After each call, the thread replies over the second returned channel.
fn start_reader(
    cores: usize,
    mut read: impl FnMut(u64) + Send + 'static,
) -> (mpsc::Sender<u64>, mpsc::Receiver<()>) {
    let (orders, ordered) = mpsc::channel::<u64>();
    let (sender, done) = mpsc::channel();
    std::thread::spawn(move || {
        if pin(cores - 1).is_err() {
            return;
        }
        while let Ok(blocks) = ordered.recv() {
            read(blocks);
            if sender.send(()).is_err() {
                return;
            }
        }
    });
    (orders, done)
}

/// Returns a function that sends a number of blocks with `write`, and waits until the reader
/// replies that it has received all of them.
fn into_transfer(
    (orders, done): (mpsc::Sender<u64>, mpsc::Receiver<()>),
    mut write: impl FnMut(u64) + 'static,
) -> Transfer {
    Box::new(move |blocks| {
        orders.send(blocks).map_err(|why| why.to_string())?;
        write(blocks);
        done.recv().map_err(|why| why.to_string())
    })
}

/// Returns a function that transfers small blocks through a ring of rtrb, with one element per
/// block.
fn rtrb_slot_transfer<const N: usize>(cores: usize, slots: usize) -> Transfer {
    let (mut producer, mut consumer) = rtrb::RingBuffer::<[u8; N]>::new(slots);
    let reader = start_reader(cores, move |blocks| {
        for _ in 0..blocks {
            loop {
                if let Ok(block) = consumer.pop() {
                    black_box(&block);
                    break;
                }
                wait(cores);
            }
        }
    });
    let block = [7; N];
    into_transfer(reader, move |blocks| {
        for _ in 0..blocks {
            while producer.push(*black_box(&block)).is_err() {
                wait(cores);
            }
        }
    })
}

fn rtrb_byte_transfer(cores: usize, block: usize) -> Transfer {
    let (mut producer, mut consumer) = rtrb::RingBuffer::<u8>::new(CAPACITY);
    let mut out = vec![0; block];
    let reader = start_reader(cores, move |blocks| {
        for _ in 0..blocks {
            while consumer.pop_entire_slice(&mut out).is_err() {
                wait(cores);
            }
            black_box(&mut out);
        }
    });
    let block = vec![7; block];
    into_transfer(reader, move |blocks| {
        for _ in 0..blocks {
            while producer.push_entire_slice(black_box(&block)).is_err() {
                wait(cores);
            }
        }
    })
}

fn ringbuf_byte_transfer(cores: usize, block: usize) -> Transfer {
    let (mut producer, mut consumer) = HeapRb::<u8>::new(CAPACITY).split();
    let mut out = vec![0; block];
    let reader = start_reader(cores, move |blocks| {
        for _ in 0..blocks {
            while consumer.occupied_len() < out.len() {
                wait(cores);
            }
            consumer.pop_slice(&mut out);
            black_box(&mut out);
        }
    });
    let block = vec![7; block];
    into_transfer(reader, move |blocks| {
        for _ in 0..blocks {
            while producer.vacant_len() < block.len() {
                wait(cores);
            }
            producer.push_slice(black_box(&block));
        }
    })
}
