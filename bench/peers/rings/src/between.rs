//! iceoryx2 between two processes: slices that are loaned, filled and sent, received and copied
//! out.

use crate::{CAPACITY, Mover, pin, wait};
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::publish_subscribe::PortFactory;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

type Service = PortFactory<ipc::Service, [u8], ()>;

/// How many blocks may be under way.
fn depth(block: usize) -> usize {
    (CAPACITY / block).clamp(16, 1024)
}

fn text(why: impl std::fmt::Debug) -> String {
    format!("{why:?}")
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

/// The process that reads; its name is that of the one that started it.
pub(crate) fn read(cores: usize, block: usize) -> Result<(), String> {
    pin(cores - 1)?;
    let node = NodeBuilder::new().create::<ipc::Service>().map_err(text)?;
    let parent = std::os::unix::process::parent_id();
    let service = service(&node, &name(parent, block), block)?;
    let subscriber = service.subscriber_builder().create().map_err(text)?;
    let mut out = vec![0; block];
    answer("ready")?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(text)?;
        let blocks = line.trim().parse::<u64>().map_err(text)?;
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
        answer("done")?;
    }
    Ok(())
}

fn answer(word: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{word}").and_then(|()| out.flush()).map_err(text)
}

fn name(process: u32, block: usize) -> String {
    format!("streamline-bench-{process}-{block}")
}

/// The other process; ends with its standard input.
struct Other {
    process: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Other {
    fn listen(&mut self) -> Result<(), String> {
        let mut line = String::new();
        match self.answers.read_line(&mut line).map_err(text)? {
            0 => Err("the reading process has ended".to_owned()),
            _ => Ok(()),
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.process.wait();
    }
}

/// The process that writes.
pub(crate) fn write(cores: usize, block: usize) -> Result<Mover, String> {
    let node = NodeBuilder::new().create::<ipc::Service>().map_err(text)?;
    let service = service(&node, &name(std::process::id(), block), block)?;
    let publisher = service
        .publisher_builder()
        .initial_max_slice_len(block)
        .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
        .create()
        .map_err(text)?;
    let itself = std::env::current_exe().map_err(text)?;
    let mut process = Command::new(itself)
        .args(["iceoryx2-reader", &cores.to_string(), &block.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(text)?;
    let orders = process.stdin.take();
    let answers = BufReader::new(process.stdout.take().ok_or("no answers")?);
    let mut other = Other { process, orders, answers };
    other.listen()?;
    let data = vec![7; block];
    Ok(Box::new(move |blocks| {
        let _alive = (&node, &service);
        let orders = other.orders.as_mut().ok_or("no orders")?;
        writeln!(orders, "{blocks}").and_then(|()| orders.flush()).map_err(text)?;
        for _ in 0..blocks {
            let sample = publisher.loan_slice_uninit(data.len()).map_err(text)?;
            sample.write_from_slice(black_box(&data)).send().map_err(text)?;
        }
        other.listen()
    }))
}
