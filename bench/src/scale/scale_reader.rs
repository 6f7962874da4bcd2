//! The reading process of `bench scale`: another instance of this program, which receives its
//! stream and its requests over a socket on its standard input.

use crate::child::{BenchChild, ParentConnection};
use buffer::stream::Offer;

/// Starts the reader on a processor, and sends it a stream of blocks of `block` bytes.
pub(super) fn start(processor: usize, offer: &Offer, block: usize) -> Result<BenchChild, String> {
    let words = ["scale", &processor.to_string(), &block.to_string()];
    BenchChild::start(words, &offer.descriptors())
}

/// Runs the reading process, which the bench starts with the arguments
/// `--reader scale PROCESSOR BLOCK`.
pub(crate) fn serve(words: &[String]) -> Result<(), String> {
    let (_, processor, block) = crate::child::parse_arguments(words)?;
    let (parent, descriptors) = ParentConnection::receive_descriptors(processor)?;
    let offer = Offer::from_descriptors(descriptors).map_err(|why| why.to_string())?;
    let mut input = offer.open().map_err(|why| why.to_string())?;
    if processor == 0 {
        input.set_spin_limit(0);
    }
    let mut out = vec![0; block];
    parent.serve_requests(|left| {
        let count = input.read(&mut out).map_err(|why| why.to_string())?;
        std::hint::black_box(&mut out);
        match count {
            0 => Err("the stream has ended".to_owned()),
            count => Ok(left.saturating_sub(count as u64)),
        }
    })
}
