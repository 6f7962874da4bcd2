//! A request that the daemon runs in the kernel, and its replacement by another request.

use super::DaemonHost;
use crate::client::{Caller, ClientError, mask_hidden_characters};
use crate::faults::{NOT_IN_KERNEL_ERROR, RETRY_CAUSE};
use crate::protocol::{AttachReply, CarriedStep, CountParameters, Replacement, SetTapsParameters};
use crate::varlink::Call;
use engine::build::BuildError;
use engine::kernel::delegation::{Attachment, Failure, FinalCounters, OpenTaps};
use engine::kernel::{
    AttachmentHandle, KernelRequest, PreparedSuccessor, ProgramSwitch, SwitchError,
};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A request that the daemon runs in the kernel.
#[derive(Debug)]
pub(super) struct RemoteRequest {
    daemon: DaemonHost,
    /// Number that the daemon assigned to the request.
    number: u64,
    /// Connection that keeps the request attached while it is open.
    caller: Caller,
    interface: String,
    /// The counters that the daemon reported last. A thread that receives a message holds this lock
    /// until it has recorded the message, so that messages are recorded in the order of their
    /// receipt.
    reported: Mutex<ReportedCounters>,
    ended: OnceLock<FinalCounters>,
    failure: Mutex<Option<Failure>>,
}

/// The counters of a request that the daemon reported last.
#[derive(Debug, Default)]
struct ReportedCounters {
    /// Number of the last `Count` call that this process sent.
    last_query: u64,
    /// Number of the last `Count` call that the daemon answered.
    last_answered: u64,
    latest: Option<FinalCounters>,
}

/// The event that ended a request in the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EndCause {
    /// This process has detached the request.
    Detached,
    /// Another request has replaced this one.
    Replaced,
    /// The daemon has removed the request.
    Removed,
}

impl RemoteRequest {
    /// Creates the handle to the request with this number, which `caller` keeps attached.
    pub(super) fn new(
        daemon: &DaemonHost,
        (line, caller): (u64, Caller),
        interface: String,
    ) -> Self {
        Self {
            daemon: daemon.clone(),
            number: line,
            caller,
            interface,
            reported: Mutex::default(),
            ended: OnceLock::new(),
            failure: Mutex::new(None),
        }
    }

    /// Returns the final counters of the request. If the request has not ended yet, ends it for the
    /// cause `why`, and receives the counters as [`Self::receive_final_counts`] does.
    fn finish(&self, why: EndCause) -> &FinalCounters {
        if let Some(ended) = self.ended.get() {
            return ended;
        }
        // Every thread takes this lock before it records the end.
        let mut counted = self.lock_reported_counters();
        self.ended.get_or_init(|| self.receive_final_counts(why, &mut counted))
    }

    /// Receives the final counters of the request from the daemon. If `why` is
    /// [`EndCause::Detached`], first asks the daemon to remove the request. Blocks for at most
    /// [`EXPENSIVE_CALL_TIMEOUT`](crate::client::EXPENSIVE_CALL_TIMEOUT) per message.
    fn receive_final_counts(&self, why: EndCause, counted: &mut ReportedCounters) -> FinalCounters {
        let nothing = serde_json::json!({});
        let call = Call::new("io.streamline.Detach", &nothing);
        if why == EndCause::Detached
            && let Err(error) = self.caller.send(&Call { oneway: true, ..call }, &[])
        {
            return self.record_lost_counters(&error.to_string());
        }
        let message = loop {
            if let Some(message) = self.receive_message(counted) {
                break message;
            }
        };
        self.interpret_final_message(why, message)
    }

    /// Receives the daemon's next message about the request. Returns the message if it reports the
    /// end of the request, and `None` otherwise. Current counters are stored in `counted`. A
    /// repeated reply to an earlier `Switch`, which a restarted daemon sends, is ignored.
    fn receive_message(
        &self,
        counted: &mut ReportedCounters,
    ) -> Option<Result<AttachReply, ClientError>> {
        let received = || -> Result<AttachReply, ClientError> {
            Ok(self.caller.receive_reply()?.0.deserialize_result()?)
        };
        match received() {
            Ok(AttachReply { switched: Some(_), .. }) => None,
            Ok(AttachReply { counted: Some(text), number, .. }) => {
                counted.latest = FinalCounters::from_text(&text);
                counted.last_answered = number.unwrap_or_default();
                None
            }
            message => Some(message),
        }
    }

    /// Receives a message if one has arrived and the request has not ended. Records the end if the
    /// message reports it. Returns true if a message was received.
    fn receive_pending_message(&self, counted: &mut ReportedCounters) -> bool {
        let arrived =
            sys::poll::wait_until_readable(&[self.caller.as_fd()], Some(Duration::ZERO)) == [true];
        if !arrived || self.ended.get().is_some() {
            return false;
        }
        if let Some(message) = self.receive_message(counted) {
            self.ended.get_or_init(|| self.interpret_final_message(EndCause::Removed, message));
        }
        true
    }

    fn lock_reported_counters(&self) -> MutexGuard<'_, ReportedCounters> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a message about the request arrives, for at most [`RETRY_INTERVAL`]. Returns
    /// true if the request is still attached.
    fn wait_while_attached(&self) -> bool {
        sys::poll::wait_until_readable_despite_signals(
            &[self.caller.as_fd()],
            Some(RETRY_INTERVAL),
        );
        Attachment::export_failure(self).is_none() && self.ended.get().is_none()
    }

    /// Returns the final counters that the daemon's last message about the request contains. Also
    /// records that the request has failed if the message gives a reason, if the daemon has removed
    /// the request by itself, or if there are no counters.
    fn interpret_final_message(
        &self,
        why: EndCause,
        message: Result<AttachReply, ClientError>,
    ) -> FinalCounters {
        let AttachReply { ended, why: reason, .. } = match message {
            Ok(message) => message,
            Err(ClientError::Disconnected) => {
                return self.record_lost_counters("the daemon has ended");
            }
            Err(other) => return self.record_lost_counters(&other.to_string()),
        };
        // This process did not detach the request, so the path must report a reason for the end.
        let unasked = (why == EndCause::Removed).then(|| "the daemon has removed it".to_owned());
        if let Some(why) = reason.or(unasked) {
            let failure = Failure::new("watch", &self.interface, mask_hidden_characters(&why));
            let hint = "all frames before that were processed; `--embedded` runs it without the \
                        daemon, with your own rights";
            self.set_failure(failure.with_hint(hint));
        }
        let ended = ended.as_deref().and_then(FinalCounters::from_text);
        ended.unwrap_or_else(|| self.record_lost_counters("the daemon does not report the counts"))
    }

    /// Records that the request has failed, and that its final counters will never arrive. `why` is
    /// the reason. Returns empty counters in their place.
    fn record_lost_counters(&self, why: &str) -> FinalCounters {
        let why = format!("{why}, and with it the program that delivered frames");
        let hint = "all frames that arrived before were processed; the kernel counts are lost, so \
                    the report counts only these frames; start again when the daemon is back";
        self.set_failure(Failure::new("watch", &self.interface, why).with_hint(hint));
        FinalCounters::lost_counters()
    }

    /// Queries the current counters of the request. Returns the counters in the reply to this
    /// query, or the final counters if the request has ended. Blocks for at most `limit`, and
    /// returns `None` if no reply has arrived by then.
    fn query_current_counters(&self, limit: Duration) -> Option<FinalCounters> {
        let mut counted = self.lock_reported_counters();
        while self.receive_pending_message(&mut counted) {}
        counted.last_query += 1;
        let query = CountParameters { number: Some(counted.last_query) };
        let call = Call::new("io.streamline.Count", &query);
        let is_running = self.ended.get().is_none();
        let sent = is_running && self.caller.send(&Call { oneway: true, ..call }, &[]).is_ok();
        let until = Instant::now() + limit;
        while sent && counted.last_answered != counted.last_query && self.ended.get().is_none() {
            let left = until.saturating_duration_since(Instant::now());
            sys::poll::wait_until_readable_despite_signals(&[self.caller.as_fd()], Some(left));
            if !self.receive_pending_message(&mut counted) {
                break;
            }
        }
        let answered = counted.last_answered == counted.last_query;
        let latest = || answered.then(|| counted.latest.clone()).flatten();
        self.ended.get().cloned().or_else(latest)
    }

    fn set_failure(&self, failure: Failure) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
    }
}

impl Attachment for RemoteRequest {
    fn detach(&self) {
        let _ = self.final_counters();
    }

    fn export_failure(&self) -> Option<Failure> {
        // A thread that holds the lock receives the pending messages itself.
        if let Ok(mut counted) = self.reported.try_lock() {
            while self.receive_pending_message(&mut counted) {}
        }
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl AttachmentHandle for RemoteRequest {
    fn final_counters(&self) -> &FinalCounters {
        self.finish(EndCause::Detached)
    }

    fn connection(&self) -> Option<BorrowedFd<'_>> {
        Some(self.caller.as_fd())
    }

    fn query_counters(&self, limit: Duration) -> Option<FinalCounters> {
        self.query_current_counters(limit).or_else(|| self.lock_reported_counters().latest.clone())
    }

    fn set_taps(&self, open: &OpenTaps, limit: Duration) -> Result<(), String> {
        let wanted = SetTapsParameters::new(open);
        let call = Call::new("io.streamline.SetTaps", &wanted);
        let sent = self.caller.send(&Call { oneway: true, ..call }, &[]);
        sent.map_err(|error| error.to_string())?;
        if limit.is_zero() {
            return Ok(());
        }
        // The daemon executes both calls in order, so the counters show which taps it has opened.
        let counters = self.query_current_counters(limit).ok_or("the daemon does not respond")?;
        match counters.open_taps() == open {
            true => Ok(()),
            false => Err("the daemon does not open it: the maximum number of filters is already \
                          being read in the program at this interface"
                .to_owned()),
        }
    }

    fn prepare_successor(
        self: Arc<Self>,
        request: &KernelRequest<'_>,
        stays: &[(usize, usize)],
        _about: &str,
    ) -> Result<PreparedSuccessor, BuildError> {
        let step = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let stays = stays.iter().map(|(was, is)| CarriedStep { was: step(*was), is: step(*is) });
        let taps = Some(SetTapsParameters::new(&request.taps).open).filter(|taps| !taps.is_empty());
        let instead = Replacement { line: self.number, stays: stays.collect(), taps };
        let mut answer = self.daemon.request_rings(request, Some(instead.clone()));
        let until = sys::clock::monotonic_ns().saturating_add(NEXT_DAEMON_TIMEOUT_NS);
        // If the daemon exits before it replies, the next daemon takes over the running request.
        while let Err(ClientError::Disconnected | ClientError::NoDaemon(_)) = answer
            && sys::clock::monotonic_ns() < until
            && self.wait_while_attached()
        {
            answer = self.daemon.request_rings(request, Some(instead.clone()));
        }
        let (lent, new) = self.daemon.map_rings(request, answer)?;
        Ok(PreparedSuccessor {
            attachment: lent,
            switch: Box::new(PreparedRequest { old: self, new }),
        })
    }
}

/// A request that the daemon has prepared in the kernel, with the running request that it will
/// replace.
#[derive(Debug)]
struct PreparedRequest {
    old: Arc<RemoteRequest>,
    new: Arc<RemoteRequest>,
}

impl ProgramSwitch for PreparedRequest {
    fn switch(&mut self) -> Result<(), SwitchError> {
        let nothing = serde_json::json!({});
        let call = Call::new("io.streamline.Switch", &nothing);
        let sent = self.new.caller.send(&Call { oneway: true, ..call }, &[]);
        let reply = sent.and_then(|()| self.new.caller.receive_reply());
        match reply.and_then(|(reply, _)| Ok(reply.deserialize_result()?)) {
            Ok(AttachReply { switched: Some(true), .. }) => {
                // The daemon has already sent the final counters of the old request.
                self.old.finish(EndCause::Replaced);
                Ok(())
            }
            Ok(AttachReply { why, .. }) => Err(SwitchError::Refused(mask_hidden_characters(
                &why.unwrap_or_else(|| MISSING_REASON_MESSAGE.to_owned()),
            ))),
            Err(ClientError::Refused(fault)) if fault.name == NOT_IN_KERNEL_ERROR => {
                let why = mask_hidden_characters(fault.text_parameter("why"));
                Err(match fault.text_parameter("by") == RETRY_CAUSE {
                    true => SwitchError::HostRestarted(why),
                    false => SwitchError::Refused(why),
                })
            }
            Err(other) => {
                let why = format!("the daemon does not change it: {other}");
                // If the next daemon did not inherit the connection, the switch has certainly not
                // taken place.
                Err(match other {
                    ClientError::Disconnected => SwitchError::HostRestarted(why),
                    _ => SwitchError::Refused(why),
                })
            }
        }
    }
}

/// Maximum time to wait for another daemon after the daemon has exited, in ns.
const NEXT_DAEMON_TIMEOUT_NS: u64 = 120_000_000_000;
/// Interval between two attempts to connect to a new daemon.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Reason that is shown for a refusal if the daemon has given no reason.
const MISSING_REASON_MESSAGE: &str = "the daemon gives no reason for the refusal";

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    /// Maximum time that the test waits for a reply of the daemon.
    const REPLY_TIMEOUT: Duration = Duration::from_millis(20);

    fn request() -> (RemoteRequest, OwnedFd) {
        let (own_end, peer_end) = sys::descriptor::socket_pair().unwrap();
        let host = DaemonHost { directory: "".into(), release: String::new(), grants: None };
        (RemoteRequest::new(&host, (1, Caller::new(own_end)), "eth0".to_owned()), peer_end)
    }

    /// Plays the daemon: replies to the `Count` call with this number, and reports counters of a
    /// request with these open taps.
    fn send_counters(peer_end: &OwnedFd, number: u64, open: &OpenTaps) {
        let mut text: serde_json::Value =
            serde_json::from_str(&FinalCounters::default().to_text()).unwrap();
        text["taps"] = serde_json::to_value(open).unwrap();
        let counted = Some(text.to_string());
        let reply = AttachReply { counted, number: Some(number), ..AttachReply::default() };
        let reply = crate::varlink::Reply { continues: true, ..crate::varlink::Reply::new(&reply) };
        sys::descriptor::send(peer_end, &reply.to_bytes(), &[]).unwrap();
    }

    #[test]
    fn late_counters_do_not_answer_a_later_query_for_taps() {
        let (request, peer_end) = request();
        let open = OpenTaps::from_indices([1]);
        let silent = Err("the daemon does not respond".to_owned());
        assert_eq!(request.set_taps(&open, REPLY_TIMEOUT), silent);
        // The reply to the first query comes after its time.
        send_counters(&peer_end, 1, &OpenTaps::default());
        assert_eq!(request.set_taps(&open, REPLY_TIMEOUT), silent);
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| request.set_taps(&open, Duration::from_secs(60)));
            send_counters(&peer_end, 2, &OpenTaps::default());
            send_counters(&peer_end, 3, &open);
            assert_eq!(asked.join().unwrap(), Ok(()));
        });
        assert_eq!(request.query_counters(REPLY_TIMEOUT).unwrap().open_taps(), &open);
    }
}
