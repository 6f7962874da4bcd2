//! Pairing of requests with responses: the n-th request belongs to the n-th final response (RFC
//! 9112 §9.3.2); interim (1xx) responses are not counted.
//!
//! Pending descriptions are held in one list: a request under key `4 n`, the size of its body under
//! `4 n + 1`, its open response under `4 n + 2`. The body size and the response are held only if an
//! arc selects exchanges.

use super::describe::{ObservedBody, is_interim};
use super::reasons;
use super::state::Phase;
use super::walk::BlockWalk;
use crate::prelude::*;
use wire::http::RequestMethod;
use wire::record::{Field, Record};

const REQUEST_BODY_KEY: u32 = 1;
const RESPONSE_KEY: u32 = 2;
/// Mask of the two low bits of a key in the list of pending descriptions. These bits distinguish a
/// request, its body and its response.
const KEY_PART_MASK: u32 = 3;

impl<'a> BlockWalk<'_, '_, 'a> {
    /// Returns the oldest pending request and its key. The next response belongs to this request.
    /// Returns `None` if no request is pending.
    pub(super) fn pending_request(&self) -> Option<(u32, Record<'a>)> {
        let (key, block) = self.cx.front_block(&self.connection.pending_descriptions)?;
        let record = Record::parse(block.frame).filter(|_| key & KEY_PART_MASK == 0)?;
        Some((key, record))
    }

    /// Returns the method of the request to which the next response belongs; the framing of the
    /// response depends on it.
    pub(super) fn request_method(&self) -> RequestMethod {
        let method = self.pending_request().and_then(|(_, record)| record.text(Field::Method));
        match method {
            Some(b"HEAD") => RequestMethod::Head,
            Some(b"CONNECT") => RequestMethod::Connect,
            Some(_) => RequestMethod::Other,
            None => RequestMethod::Unknown,
        }
    }

    /// Records that messages of the current direction may be lost. If the direction carries
    /// requests, the next response may belong to a lost one.
    pub(super) fn note_lost_messages(&mut self) {
        self.connection.lost_directions |= 1 << self.direction;
    }

    /// Holds the description of a request until the response ends. If the description cannot be
    /// held, or if earlier requests that await their response may be lost, counts the request as
    /// unpaired and, if exchanges are emitted, emits its exchange at once, without a response.
    pub(super) fn hold_request(&mut self, described: &Block<'a>) {
        let key = self.connection.next_request << 2;
        let waiting = self.connection.pending_descriptions.len() as usize;
        let lost = self.connection.lost_directions >> self.direction & 1 != 0;
        let room =
            !lost && waiting < self.options.pending_max && self.connection.unheld_requests == 0;
        if room
            && self.cx.hold_created_block(&mut self.connection.pending_descriptions, described, key)
        {
            self.connection.next_request = self.connection.next_request.wrapping_add(1);
            return;
        }
        self.connection.unheld_requests = self.connection.unheld_requests.saturating_add(1);
        self.cx.count(reasons::UNPAIRED_MESSAGES, 1);
        if self.options.exchanges {
            self.emit_exchange(Record::parse(described.frame), None, None);
        }
    }

    /// Holds the description of a response until the response ends. `request` is the key of its
    /// request, or `None` if no request is pending.
    pub(super) fn hold_response(&mut self, described: &Block<'a>, request: Option<u32>) {
        let key = request.unwrap_or(self.connection.next_request << 2) | RESPONSE_KEY;
        if request.is_none() {
            self.connection.next_request = self.connection.next_request.wrapping_add(1);
        }
        self.cx.hold_created_block(&mut self.connection.pending_descriptions, described, key);
    }

    /// Handles the end of a request. Holds a record of the observed size of its body, if exchanges
    /// are emitted and the description of the request is held. Does nothing for a complete request
    /// without a body, and while the connection has requests that could not be held.
    pub(super) fn end_request(&mut self) {
        let observed = ObservedBody::from_direction(self.direction());
        let nothing = observed.bytes == 0 && observed.missing == 0 && !observed.broken;
        if nothing || !self.options.exchanges || self.connection.unheld_requests > 0 {
            return;
        }
        let last = self.connection.next_request.wrapping_sub(1) << 2;
        // The response may have arrived before the end of the request.
        let waits =
            self.cx.held_blocks(&self.connection.pending_descriptions).any(|(key, _)| key == last);
        if let (true, Some(record)) = (waits, self.create_body_record(observed)) {
            self.cx.hold_created_block(
                &mut self.connection.pending_descriptions,
                &record,
                last | REQUEST_BODY_KEY,
            );
        }
    }

    /// Handles the end of a response. A final response also ends the request to which it belongs.
    /// The function then emits the exchange of the two if exchanges are emitted, and drops their
    /// descriptions. Does nothing for an interim response.
    pub(super) fn end_response(&mut self) {
        if is_interim(Class(self.direction().class)) {
            return;
        }
        self.connection.lost_directions = 0;
        let Some((front, _)) = self.cx.front_block(&self.connection.pending_descriptions) else {
            self.connection.unheld_requests = self.connection.unheld_requests.saturating_sub(1);
            return;
        };
        if self.options.exchanges {
            self.emit_front_exchange(true);
        }
        if front & KEY_PART_MASK != 0 {
            self.connection.unheld_requests = self.connection.unheld_requests.saturating_sub(1);
        }
        self.drop_front_request(front);
    }

    /// Ends all pending requests, whose responses are still missing or incomplete. Counts them as
    /// unpaired and, if exchanges are emitted, emits their exchanges.
    pub(super) fn drop_pending_requests(&mut self) {
        while let Some((front, _)) = self.cx.front_block(&self.connection.pending_descriptions) {
            self.cx.count(reasons::UNPAIRED_MESSAGES, 1);
            if self.options.exchanges {
                self.emit_front_exchange(false);
            }
            self.drop_front_request(front);
        }
        self.connection.unheld_requests = 0;
        self.connection.lost_directions = 0;
    }

    fn drop_front_request(&mut self, front: u32) {
        while let Some((key, _)) = self.cx.front_block(&self.connection.pending_descriptions) {
            if key | KEY_PART_MASK != front | KEY_PART_MASK {
                break;
            }
            self.cx.consume_front_block(&mut self.connection.pending_descriptions);
        }
    }

    /// Emits the exchange of the oldest pending request. `ended` is true if its response ended in
    /// the current block.
    fn emit_front_exchange(&mut self, ended: bool) {
        let (mut request, mut sent, mut response) = (None, None, None);
        let mut front = None;
        for (key, block) in self.cx.held_blocks(&self.connection.pending_descriptions) {
            if *front.get_or_insert(key | KEY_PART_MASK) != key | KEY_PART_MASK {
                break;
            }
            match key & KEY_PART_MASK {
                0 => request = Record::parse(block.frame),
                REQUEST_BODY_KEY => sent = Record::parse(block.frame),
                _ => response = Record::parse(block.frame).map(|r| (r, block.pointer.class.0)),
            }
        }
        let requests = usize::from(self.connection.requests_flow_backward);
        let open = &self.connection.directions[requests];
        let last = self.connection.next_request.wrapping_sub(1) << 2 | KEY_PART_MASK;
        // A request that is still open when its response ends.
        if sent.is_none() && open.phase() == Phase::InBody && front == Some(last) {
            let observed = ObservedBody { broken: true, ..ObservedBody::from_direction(open) };
            sent = self.create_body_record(observed).and_then(|block| Record::parse(block.frame));
        }
        let direction = &self.connection.directions[1 - requests];
        let mut observed = ObservedBody::from_direction(direction);
        observed.broken |= !ended;
        let response = response.map(|(record, class)| (record, class, observed));
        self.emit_exchange(request, sent, response);
    }
}
