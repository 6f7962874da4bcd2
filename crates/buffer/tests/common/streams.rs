//! Helpers that offer and open streams between processes.

use super::blocks::read_to_fault;
use super::other_process::{OtherUserProcess, receive, send};
use super::watchdog::with_watchdog;
use std::os::fd::AsFd;
use streamline_buffer::Fault;
use streamline_buffer::stream::{Input, Offer};
use testkit::Random;

/// Sends the offer of a stream to the other process.
#[track_caller]
pub(crate) fn send_offer(socket: impl AsFd, offer: &Offer) {
    send(socket, b"offer", &offer.descriptors());
}

/// Receives and opens an offer from the other process. Returns `None` if that process has exited.
#[track_caller]
pub(crate) fn receive_stream(socket: impl AsFd) -> Option<Input> {
    let (message, descriptors) = receive(socket);
    let opened = || Offer::from_descriptors(descriptors).unwrap().open().unwrap();
    (!message.is_empty()).then(opened)
}

/// Kills a writer a dozen times, each time after a random number of blocks up to `blocks_max`.
/// Checks that the reader receives all published blocks, and then the fault for a writer that was
/// killed.
#[track_caller]
pub(crate) fn check_published_blocks_survive_kill(blocks_max: u64) {
    let mut random = Random::with_replayable_seed();
    for _ in 0..12 {
        let Some(mut other) = OtherUserProcess::start("write") else { return };
        let mut input = receive_stream(&other).unwrap();
        let until = random.below(blocks_max);
        with_watchdog("so many blocks", || {
            while input.counts().blocks < until {
                input.read(&mut [0; 8192]).unwrap();
            }
        });
        other.kill();
        assert_eq!(read_to_fault(&mut input), Fault::Abandoned);
        let (written, taken) = (input.writer_counts(), input.counts());
        assert!(taken.blocks >= until, "{taken:?}");
        assert_eq!(written.resident_blocks(&taken), Some(0), "all published blocks");
    }
}
