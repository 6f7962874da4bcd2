//! The ring of iceoryx2. The writer borrows slices from the ring, fills them and sends them; the
//! reader receives slices and copies their contents.

use crate::between::{ReaderProcess, error_text, serve_requests};
use crate::{CAPACITY, Transfer, wait};
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::publish_subscribe::PortFactory;
use std::hint::black_box;

type Service = PortFactory<ipc::Service, [u8], ()>;

/// Returns the maximum number of blocks that have been sent and not yet received, for a block size
/// in bytes.
fn blocks_in_transit_max(block: usize) -> usize {
    (CAPACITY / block).clamp(16, 1024)
}

fn service(node: &Node<ipc::Service>, name: &str, block: usize) -> Result<Service, String> {
    let name = name.try_into().map_err(error_text)?;
    node.service_builder(&name)
        .publish_subscribe::<[u8]>()
        .subscriber_max_buffer_size(blocks_in_transit_max(block))
        .enable_safe_overflow(false)
        .history_size(0)
        .max_publishers(1)
        .max_subscribers(1)
        .open_or_create()
        .map_err(error_text)
}

/// Runs the process that reads the ring called `name`, on 1 or 2 processors (`cores`), for blocks
/// of `block` bytes.
pub(crate) fn run_reader(cores: usize, block: usize, name: &str) -> Result<(), String> {
    let node = NodeBuilder::new().create::<ipc::Service>().map_err(error_text)?;
    let service = service(&node, name, block)?;
    let subscriber = service.subscriber_builder().create().map_err(error_text)?;
    let mut out = vec![0; block];
    serve_requests(cores, |blocks| {
        for _ in 0..blocks {
            loop {
                if let Some(sample) = subscriber.receive().map_err(error_text)? {
                    out.copy_from_slice(sample.payload());
                    black_box(&mut out);
                    break;
                }
                wait(cores);
            }
        }
        Ok(())
    })
}

/// Starts the reading process, and returns a function that transfers blocks of `block` bytes to it.
pub(crate) fn start(cores: usize, block: usize) -> Result<Transfer, String> {
    let name = format!("streamline-bench-{}-{block}", std::process::id());
    let node = NodeBuilder::new().create::<ipc::Service>().map_err(error_text)?;
    let service = service(&node, &name, block)?;
    let publisher = service
        .publisher_builder()
        .initial_max_slice_len(block)
        .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
        .create()
        .map_err(error_text)?;
    let other = ReaderProcess::start("iceoryx2", cores, block, &name)?;
    let data = vec![7; block];
    Ok(other.into_transfer(move |blocks| {
        let _alive = (&node, &service);
        for _ in 0..blocks {
            let sample = publisher.loan_slice_uninit(data.len()).map_err(error_text)?;
            sample.write_from_slice(black_box(&data)).send().map_err(error_text)?;
        }
        Ok(())
    }))
}
