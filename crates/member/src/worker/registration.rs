//! The registration of a path with a daemon, and the state shared with the thread that runs the
//! path.

use crate::client::{Client, ClientError};
use crate::connection::Connection;
use crate::protocol::{Ended, Register};
use std::os::fd::AsFd as _;
use std::sync::Mutex;
use std::time::Duration;
use sys::eventfd::EventFd;
use sys::local_socket::Framing;

/// Interval between searches for a daemon while the path has none.
pub(super) const SEARCH_INTERVAL: Duration = Duration::from_millis(250);

/// State shared by the serving thread and the thread that runs the path.
#[derive(Debug)]
pub(super) struct Shared {
    /// Doorbell that ends the path.
    pub(super) stop: EventFd,
    /// Doorbell that wakes the serving thread.
    pub(super) wake: EventFd,
    pub(super) ended: Mutex<Option<Ended>>,
}

/// A registration with a daemon. A hangup of either socket means that the daemon has exited.
#[derive(Debug)]
pub(super) struct Registration {
    pub(super) client: Client,
    /// Socket that the daemon uses to pass client connections.
    pub(super) admissions: Connection,
    pub(super) number: u32,
}

impl Registration {
    pub(super) fn new(client: Client, register: &Register) -> Result<Self, ClientError> {
        let (near, far) = sys::descriptor::pair()?;
        let number = client.register(register, far.as_fd())?;
        Ok(Self { client, admissions: Connection::new(near, Framing::Packets), number })
    }
}
