//! Streams that are offered and opened.

use super::other::{receive, send};
use std::os::fd::AsFd;
use streamline_buffer::stream::{Input, Offer};

/// Offers a stream to the other process.
#[track_caller]
pub(crate) fn offer(socket: impl AsFd, offer: &Offer) {
    send(socket, b"offer", &offer.descriptors());
}

/// Opens what the other process has offered; `None`: it is gone.
#[track_caller]
pub(crate) fn open(socket: impl AsFd) -> Option<Input> {
    let (message, descriptors) = receive(socket);
    let opened = || Offer::from_descriptors(descriptors).unwrap().open().unwrap();
    (!message.is_empty()).then(opened)
}
