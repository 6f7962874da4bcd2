//! iceoryx2: the writer loans, fills and sends slices; the reader receives them and copies them
//! out.

use crate::between::{ReaderProcess, read, text};
use crate::{CAPACITY, Mover, wait};
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::publish_subscribe::PortFactory;
use std::hint::black_box;

type Service = PortFactory<ipc::Service, [u8], ()>;

/// Returns the maximum number of blocks in transit.
fn depth(block: usize) -> usize {
    (CAPACITY / block).clamp(16, 1024)
}

fn service(node: &Node<ipc::Service>, name: &str, block: usize) -> Result<Service, String> {
    let name = name.try_into().map_err(text)?;
    node.service_builder(&name)
        .publish_subscribe::<[u8]>()
        .subscriber_max_buffer_size(depth(block))
        .enable_safe_overflow(false)
        .history_size(0)
        .max_publishers(1)
        .max_subscribers(1)
        .open_or_create()
        .map_err(text)
}

/// Runs the reading process.
pub(crate) fn reader(cores: usize, block: usize, name: &str) -> Result<(), String> {
    let node = NodeBuilder::new().create::<ipc::Service>().map_err(text)?;
    let service = service(&node, name, block)?;
    let subscriber = service.subscriber_builder().create().map_err(text)?;
    let mut out = vec![0; block];
    read(cores, |blocks| {
        for _ in 0..blocks {
            loop {
                if let Some(sample) = subscriber.receive().map_err(text)? {
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

/// Starts the reader and returns the mover of the writing process.
pub(crate) fn writer(cores: usize, block: usize) -> Result<Mover, String> {
    let name = format!("streamline-bench-{}-{block}", std::process::id());
    let node = NodeBuilder::new().create::<ipc::Service>().map_err(text)?;
    let service = service(&node, &name, block)?;
    let publisher = service
        .publisher_builder()
        .initial_max_slice_len(block)
        .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
        .create()
        .map_err(text)?;
    let other = ReaderProcess::start("iceoryx2", cores, block, &name)?;
    let data = vec![7; block];
    Ok(other.mover(move |blocks| {
        let _alive = (&node, &service);
        for _ in 0..blocks {
            let sample = publisher.loan_slice_uninit(data.len()).map_err(text)?;
            sample.write_from_slice(black_box(&data)).send().map_err(text)?;
        }
        Ok(())
    }))
}
