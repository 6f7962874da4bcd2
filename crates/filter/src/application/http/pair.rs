//! Pairs requests with responses: the n-th with the n-th (RFC 9112 §9.3.2), except interim
//! responses.
//!
//! Pending descriptions are held in one list: a request under key `4 n`, the observed part of its
//! body under `4 n + 1`, its open response under `4 n + 2`. The latter two exist only if exchanges
//! are requested.

use super::describe::{ObservedBody, is_interim};
use super::state::Phase;
use super::walk::Walk;
use super::why;
use crate::prelude::*;
use wire::http::RequestMethod;
use wire::record::{Field, Record};

const SENT: u32 = 1;
const RESPONSE: u32 = 2;
/// Mask of the bits in a key that distinguish request, body and response of an exchange.
const PART: u32 = 3;

impl<'a> Walk<'_, '_, 'a> {
    /// Returns the request to which the next response belongs, with its key.
    pub(super) fn request(&self) -> Option<(u32, Record<'a>)> {
        let (key, block) = self.cx.front(&self.it.asked)?;
        let record = Record::parse(block.frame).filter(|_| key & PART == 0)?;
        Some((key, record))
    }

    /// Returns the method of the request to which the next response belongs; the framing of the
    /// response depends on it.
    pub(super) fn request_method(&self) -> RequestMethod {
        let method = self.request().and_then(|(_, record)| record.text(Field::Method));
        match method {
            Some(b"HEAD") => RequestMethod::Head,
            Some(b"CONNECT") => RequestMethod::Connect,
            _ => RequestMethod::Other,
        }
    }

    /// Holds the description of a request until its response arrives.
    pub(super) fn hold_request(&mut self, described: &Block<'a>) {
        let key = self.it.serial << 2;
        let waiting = self.it.asked.len() as usize;
        let room = waiting < self.options.pending && self.it.unkept == 0;
        if room && self.cx.keep(&mut self.it.asked, described, key) {
            self.it.serial = self.it.serial.wrapping_add(1);
            return;
        }
        self.it.unkept = self.it.unkept.saturating_add(1);
        self.cx.count(why::UNPAIRED, 1);
        if self.options.exchanges {
            self.exchange(Record::parse(described.frame), None, None);
        }
    }

    /// Holds the description of a response until it ends.
    pub(super) fn hold_response(&mut self, described: &Block<'a>, request: Option<u32>) {
        let key = request.unwrap_or(self.it.serial << 2) | RESPONSE;
        if request.is_none() {
            self.it.serial = self.it.serial.wrapping_add(1);
        }
        self.cx.keep(&mut self.it.asked, described, key);
    }

    /// Handles the end of a request: with exchanges requested, holds the observed part of its body
    /// if the request is still pending.
    pub(super) fn request_ended(&mut self) {
        let seen = ObservedBody::of(self.way());
        let nothing = seen.bytes == 0 && seen.missing == 0 && !seen.broken;
        if nothing || !self.options.exchanges || self.it.unkept > 0 {
            return;
        }
        let last = self.it.serial.wrapping_sub(1) << 2;
        // The response may have arrived before the end of the request.
        let waits = self.cx.held(&self.it.asked).any(|(key, _)| key == last);
        if let (true, Some(record)) = (waits, self.hold_observed_body(seen)) {
            self.cx.keep(&mut self.it.asked, &record, last | SENT);
        }
    }

    /// Ends a response, and its request.
    pub(super) fn response_ended(&mut self) {
        if is_interim(Class(self.way().class)) {
            return;
        }
        let Some((front, _)) = self.cx.front(&self.it.asked) else {
            self.it.unkept = self.it.unkept.saturating_sub(1);
            return;
        };
        if self.options.exchanges {
            self.exchange_of_front(true);
        }
        if front & PART != 0 {
            self.it.unkept = self.it.unkept.saturating_sub(1);
        }
        self.forget_front(front);
    }

    /// Drops all pending requests: no response will arrive.
    pub(super) fn drain(&mut self) {
        while let Some((front, _)) = self.cx.front(&self.it.asked) {
            self.cx.count(why::UNPAIRED, 1);
            if self.options.exchanges {
                self.exchange_of_front(false);
            }
            self.forget_front(front);
        }
        self.it.unkept = 0;
    }

    fn forget_front(&mut self, front: u32) {
        while let Some((key, _)) = self.cx.front(&self.it.asked) {
            if key | PART != front | PART {
                break;
            }
            self.cx.forget(&mut self.it.asked);
        }
    }

    /// Emits the oldest exchange; `ended` if its response ended in this block.
    fn exchange_of_front(&mut self, ended: bool) {
        let (mut request, mut sent, mut response) = (None, None, None);
        let mut front = None;
        for (key, block) in self.cx.held(&self.it.asked) {
            if *front.get_or_insert(key | PART) != key | PART {
                break;
            }
            match key & PART {
                0 => request = Record::parse(block.frame),
                SENT => sent = Record::parse(block.frame),
                _ => response = Record::parse(block.frame).map(|r| (r, block.pointer.class.0)),
            }
        }
        let requests = usize::from(self.it.flipped);
        let open = &self.it.ways[requests];
        let last = self.it.serial.wrapping_sub(1) << 2 | PART;
        // A request that is still open when its response ends.
        if sent.is_none() && open.phase() == Phase::Body && front == Some(last) {
            let seen = ObservedBody { broken: true, ..ObservedBody::of(open) };
            sent = self.hold_observed_body(seen).and_then(|block| Record::parse(block.frame));
        }
        let way = &self.it.ways[1 - requests];
        let mut seen = ObservedBody::of(way);
        seen.broken |= !ended;
        let response = response.map(|(record, class)| (record, class, seen));
        self.exchange(request, sent, response);
    }
}
