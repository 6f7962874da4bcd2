//! The kernel thread and the queues of its commands.

use super::commands::{AdoptedRequests, Command, Completion};
use super::thread;
use crate::policy::Policy;
use crate::server::client;
use member::protocol::Quota;
use pipeline::plan::{Kernel, Machine};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use sys::eventfd::EventFd;
use sys::rollback::RollbackLog;
use sys::watcher::{EpollWatcher, EventInterest};

/// The kernel thread and its command queues.
#[derive(Debug)]
pub(in crate::server) struct KernelQueue {
    /// Release of the machine's kernel if the daemon runs kernel programs. Otherwise, the reason
    /// why it runs none.
    pub(in crate::server) kernel_release: Result<String, String>,
    pub(super) commands: Option<Sender<Command>>,
    pub(super) completions: Receiver<Completion>,
    /// Event with which the kernel thread notifies the server after it has completed a command.
    pub(super) doorbell: Arc<EventFd>,
    usage_by_user: Arc<Mutex<BTreeMap<u32, Quota>>>,
    thread: Option<JoinHandle<()>>,
    /// Commands that the thread executes before the commands of users, such as removals.
    pub(super) urgent: VecDeque<Command>,
    pub(super) queued: BTreeMap<u32, VecDeque<Command>>,
    /// Id of the user whose command was served last.
    last_user: u32,
    pub(super) busy: bool,
}

/// Maximum number of queued commands per user.
const COMMANDS_MAX: usize = 256;

impl KernelQueue {
    /// Starts the kernel thread if the daemon may load programs on this machine. The thread adopts
    /// the objects that the previous daemon has stored; without the thread, none are adopted.
    pub(in crate::server) fn start_and_adopt(
        policy: &Policy,
        watcher: &EpollWatcher,
        (stored, steps): (Vec<(String, OwnedFd)>, &RollbackLog),
    ) -> sys::Result<(Self, AdoptedRequests)> {
        let machine = engine::machine::inspect_machine();
        let open = match &machine.kernel {
            Kernel::Open { release, .. } => Ok(release.clone()),
            Kernel::Closed { why, .. } => Err(why.clone()),
        };
        let doorbell = Arc::new(EventFd::new()?);
        watcher.watch(
            &*doorbell,
            client::encode_event_number(
                client::internal_events::COMPLETION_EVENT,
                client::DescriptorKind::Listener,
            ),
            EventInterest::Read,
        )?;
        let (sender, completions) = channel();
        let usage_by_user = Arc::default();
        let mut kernel = Self {
            kernel_release: open,
            commands: None,
            completions,
            doorbell,
            usage_by_user,
            thread: None,
            urgent: VecDeque::new(),
            queued: BTreeMap::new(),
            last_user: 0,
            busy: false,
        };
        let mut adoption = AdoptedRequests::default();
        if kernel.kernel_release.is_ok() {
            adoption =
                kernel.start_thread(machine, policy.clone(), (stored, steps.clone(), sender))?;
        }
        Ok((kernel, adoption))
    }

    fn start_thread(
        &mut self,
        machine: Machine,
        policy: Policy,
        (stored, steps, completions): (Vec<(String, OwnedFd)>, RollbackLog, Sender<Completion>),
    ) -> sys::Result<AdoptedRequests> {
        let ((sender, commands), (adoption_sender, adoption_receiver)) = (channel(), channel());
        let (doorbell, usage_by_user) =
            (Arc::clone(&self.doorbell), Arc::clone(&self.usage_by_user));
        let work = move || {
            let mut work = thread::KernelThread::new(machine, policy, (usage_by_user, steps));
            let _ = adoption_sender.send(work.adopt_requests(stored));
            work.run(&commands, &completions, &doorbell);
        };
        let thread = std::thread::Builder::new().name("kernel".to_owned()).spawn(work);
        let thread = thread.map_err(|error| {
            sys::Error::new("clone", "a thread", error.raw_os_error().unwrap_or(0))
        })?;
        (self.commands, self.thread) = (Some(sender), Some(thread));
        // A panic of the thread is detected when the next command is sent.
        Ok(adoption_receiver.recv().unwrap_or_default())
    }

    /// Returns the resources that a user's requests occupy in the kernel.
    pub(in crate::server) fn user_usage(&self, uid: u32) -> Quota {
        let usage_by_user = self.usage_by_user.lock().unwrap_or_else(PoisonError::into_inner);
        usage_by_user.get(&uid).copied().unwrap_or_default()
    }

    /// Queues a command of a user. Returns `None` if the user's queue is full.
    pub(super) fn enqueue(&mut self, uid: u32, command: Command) -> Option<()> {
        let waiting = self.queued.entry(uid).or_default();
        (waiting.len() < COMMANDS_MAX).then(|| waiting.push_back(command))?;
        self.dispatch_next_command();
        Some(())
    }

    /// Queues a command ahead of the commands of all users.
    pub(super) fn push_urgent_command(&mut self, command: Command) {
        self.urgent.push_back(command);
        self.dispatch_next_command();
    }

    /// Sends the next command to the thread if the thread is idle. Urgent commands come first; then
    /// the users take turns.
    pub(super) fn dispatch_next_command(&mut self) {
        let Some(commands) = self.commands.as_ref().filter(|_| !self.busy) else { return };
        let command = self.urgent.pop_front().or_else(|| {
            let after = self.queued.range(self.last_user.saturating_add(1)..).next();
            let (uid, _) = after.or_else(|| self.queued.iter().next())?;
            let uid = *uid;
            self.last_user = uid;
            let waiting = self.queued.get_mut(&uid)?;
            let command = waiting.pop_front();
            if waiting.is_empty() {
                self.queued.remove(&uid);
            }
            command
        });
        let Some(command) = command else { return };
        self.busy = commands.send(command).is_ok();
        if !self.busy {
            self.kernel_release =
                Err("the thread that runs them has ended because of a bug: restart the \
                             daemon"
                    .to_owned());
        }
    }
}

impl Drop for KernelQueue {
    fn drop(&mut self) {
        // The thread ends when its queue closes, and removes all requests.
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread cannot be reported here.
            let _ended = thread.join();
        }
    }
}
