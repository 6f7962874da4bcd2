//! One block of a direction: what in it belongs to which message.
//!
//! In: the state of its connection and the block. Out: fragments. The block itself goes on as the
//! first of them, so that one block for one message costs nothing but its description.

use super::decode::Decoder;
use super::state::{Connection, Kind, Way, at};
use super::{Emit, Options, why};
use crate::prelude::*;
use wire::http::{
    Body, Codings, Fields, Guess, Head, Manner, Piece, Seek, Start, Stop, guess, method_number,
};

/// The class of a response whose status is no number from 100 to 999.
const NO_STATUS: u32 = 999;
/// How far the head of a response may stand behind a line that belongs to none.
const JUNK_MAX: usize = 256;
/// So many bytes decide what a connection speaks.
const DECIDES: usize = 32;

/// A walk over one block.
pub(super) struct Walk<'w, 'c, 'a> {
    pub(super) options: &'w Options,
    pub(super) text: &'w mut Vec<u8>,
    pub(super) decoder: &'w mut Decoder,
    pub(super) cx: &'w mut StreamContext<'c, 'a>,
    pub(super) it: &'w mut Connection,
    pub(super) block: Block<'a>,
    /// Which direction the block goes.
    pub(super) way: usize,
    /// How far the block is taken.
    pub(super) at: u32,
    /// Where the fragment of the open message begins that was not given yet.
    pub(super) open: Option<u32>,
    /// Whether the block itself went on.
    pub(super) given: bool,
}

/// A hole in place of this block.
pub(super) fn hole_like(block: Block<'_>) -> Block<'_> {
    let pointer = RichPointer::hole(block.length());
    Block { pointer, frame: &[], marks: Marks::bare(block.length()), context: block.context }
}

/// What ends a direction of which no more blocks come: an empty hole.
pub(super) fn end_of<'a>(key: u64, way: usize, now: Time) -> Block<'a> {
    let back = if way == 1 { Flags::BACKWARD } else { Flags::NONE };
    let context = ContextLane {
        time: now,
        session: u32::try_from(key).unwrap_or_default(),
        origin: 0,
        flags: back.with(Flags::END),
    };
    Block { pointer: RichPointer::hole(0), frame: &[], marks: Marks::bare(0), context }
}

impl<'w, 'c, 'a> Walk<'w, 'c, 'a> {
    pub(super) fn new(
        options: &'w Options,
        text: &'w mut Vec<u8>,
        decoder: &'w mut Decoder,
        cx: &'w mut StreamContext<'c, 'a>,
        it: &'w mut Connection,
        block: Block<'a>,
    ) -> Self {
        let way = usize::from(block.context.flags.has(Flags::BACKWARD));
        Self { options, text, decoder, cx, it, block, way, at: 0, open: None, given: false }
    }

    /// Takes the whole block.
    pub(super) fn run(mut self) {
        let first = self.block.context.flags.has(Flags::FIRST);
        let length = self.block.length();
        if length > 0 && self.way().begun == 0 {
            let way = self.way();
            way.begun = 1;
            if !first {
                way.state = at::LOST;
            }
        }
        if self.block.pointer.is_hole() {
            self.hole();
        } else {
            while self.at < length {
                match self.way().state {
                    at::NEW | at::BETWEEN | at::LOST => self.begin(),
                    at::HEAD => self.gather(),
                    at::BODY => self.body(),
                    _ => self.aside(),
                }
            }
        }
        if self.block.context.flags.has(Flags::END) {
            self.end();
        }
        self.flush(false);
        if !self.given {
            self.cx.consume(&self.block);
        }
    }

    /// Ends the direction of a block that did not come.
    pub(super) fn close(mut self) {
        self.given = true;
        self.end();
        self.flush(false);
    }

    pub(super) fn way(&mut self) -> &mut Way {
        let [one, other] = &mut self.it.ways;
        if self.way == 0 { one } else { other }
    }

    /// Whether requests go this way.
    pub(super) fn is_requests(&self) -> bool {
        self.way == usize::from(self.it.flipped)
    }

    fn rest(&self) -> &'a [u8] {
        self.block.bytes().get(self.at as usize..).unwrap_or_default()
    }

    /// What stands where a message begins.
    fn begin(&mut self) {
        let blank = self.rest().iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        self.at += blank as u32;
        let rest = self.rest();
        if rest.is_empty() {
            return;
        }
        let lost = self.way().state == at::LOST;
        if self.it.kind == 0 && !self.chooses(rest) {
            return;
        }
        match self.read(rest) {
            Ok(head) => {
                self.cx.count(why::FOUND_AGAIN, u64::from(lost && self.it.kind != 0));
                let (from, to) = (self.at + head.begin as u32, self.at + head.end as u32);
                self.message(&head, from, to);
            }
            Err(Stop::More) if !lost || convinces(rest) => {
                let mut seek = Seek::default();
                // What a head may end with may need another byte to be sure: so the end is looked
                // for behind all of this.
                let _ = seek.ends_in(rest);
                self.hold_head(rest.len(), seek);
            }
            Err(Stop::More) => self.aside(),
            Err(Stop::Fault(_)) if self.answers_without_a_head() => self.headless(),
            Err(Stop::Fault(_)) => self.fault(),
        }
    }

    /// Whether what stands there may be a response all the same: the first bytes that answer a
    /// request.
    fn answers_without_a_head(&self) -> bool {
        let lenient = self.options.manner == Manner::Lenient;
        let first = self.it.ways[self.way].state == at::NEW;
        lenient && first && !self.is_requests() && self.request().is_some()
    }

    /// A head behind a line that belongs to none, or a body without a head (HTTP/0.9), which ends
    /// with its connection.
    fn headless(&mut self) {
        let rest = self.rest();
        let within = rest.get(..JUNK_MAX).unwrap_or(rest);
        let starts =
            |at: &usize| within.get(*at..).is_some_and(|rest| rest.starts_with(b"HTTP/1."));
        let ends = memchr::memchr2_iter(b'\n', b'\r', within).map(|end| end + 1);
        if let Some(start) = { ends }.find(starts) {
            let junk = self.block.narrow(self.at, start as u32);
            let class = self.cx.absent(why::MALFORMED);
            self.put(junk.with_class(class));
            self.at += start as u32;
            self.way().state = at::BETWEEN;
            return;
        }
        let start = Start::Response { status: 0, reason: &[] };
        let fields = Fields::default();
        let head = Head { begin: 0, end: 0, start, version: &[], modern: false, fields };
        self.message(&head, self.at, self.at);
    }

    /// Whether the connection may be HTTP/1 for all that its first bytes say; they also say which
    /// way requests go. Otherwise what stands there was dealt with.
    fn chooses(&mut self, rest: &[u8]) -> bool {
        let lost = self.way().state == at::LOST;
        let speaks = match guess(rest) {
            Guess::Request => {
                self.it.flipped = u8::from(self.way == 1);
                return true;
            }
            Guess::Response => {
                self.it.flipped = u8::from(self.way == 0);
                return true;
            }
            Guess::Short if !lost => return true,
            Guess::Tls => Kind::Tls,
            Guess::Http2 => Kind::Http2,
            Guess::Short | Guess::Other if lost => {
                self.aside();
                return false;
            }
            Guess::Short | Guess::Other => Kind::Other,
        };
        self.speaks(speaks);
        false
    }

    /// It is no HTTP/1: nothing of it is looked at any more.
    fn speaks(&mut self, kind: Kind) {
        self.it.kind = kind.number();
        for way in 0..2 {
            self.let_go(way, why::NOT_HTTP);
            self.it.ways[way].state = at::OTHER;
        }
        self.aside();
    }

    fn read<'t>(&self, text: &'t [u8]) -> Result<Head<'t>, Stop> {
        let manner = self.options.manner;
        match self.is_requests() {
            true => Head::request(text, manner),
            false => Head::response(text, manner),
        }
    }

    /// Keeps what is left of the block as a piece of a head.
    fn hold_head(&mut self, length: usize, seek: Seek) {
        let gathered = self.way().gathered.saturating_add(length as u32);
        if gathered as usize > self.options.head {
            return self.fault();
        }
        let way = self.way();
        way.state = at::HEAD;
        way.seek = seek.number();
        way.gathered = gathered;
        if !self.hold() {
            // There is no room for it: what it begins is lost.
            self.lose();
            self.at = self.block.length();
        }
    }

    /// Keeps what is left of the block. Answers false if there is no room for it.
    pub(super) fn hold(&mut self) -> bool {
        let piece = self.block.narrow(self.at, u32::MAX);
        self.at = self.block.length();
        let list = &mut self.it.ways[self.way].held;
        let key = list.len();
        match std::mem::replace(&mut self.given, true) {
            true => self.cx.keep(list, &piece, key),
            false => self.cx.hold(list, &piece, key),
        }
    }

    /// What goes on with a head of which pieces are held.
    fn gather(&mut self) {
        let rest = self.rest();
        let mut seek = Seek::of(self.way().seek);
        let ends = seek.ends_in(rest);
        let undecided = self.it.kind == 0 && (self.way().gathered as usize) < DECIDES;
        if !ends && !undecided {
            return self.hold_head(rest.len(), seek);
        }
        let mut text = std::mem::take(self.text);
        text.clear();
        for (_, piece) in self.cx.held(&self.it.ways[self.way].held) {
            text.extend_from_slice(piece.bytes());
        }
        let before = text.len();
        text.extend_from_slice(rest);
        if self.it.kind != 0 || self.chooses(&text) {
            match self.read(&text) {
                Ok(head) => {
                    let to = self.at + head.end.saturating_sub(before) as u32;
                    self.message(&head, self.at, to);
                }
                Err(Stop::More) => self.hold_head(rest.len(), seek),
                Err(Stop::Fault(_)) => self.fault(),
            }
        }
        *self.text = text;
    }

    /// A message begins, with a head whose last piece lies from `from` to `to`.
    fn message(&mut self, head: &Head<'_>, from: u32, to: u32) {
        let manner = self.options.manner;
        let (class, body) = match head.start {
            Start::Request { number, .. } => match Body::of_request(head, manner) {
                Ok(body) => (u32::from(number), body),
                Err(_) => return self.fault(),
            },
            Start::Response { status, .. } => {
                let class = if (100..1000).contains(&status) { status.into() } else { NO_STATUS };
                (class, Body::of_response(head, self.asked(), manner))
            }
        };
        self.it.kind = Kind::Http1.number();
        let decodes = self.options.decode && self.options.emit != Emit::Head;
        let strict = manner == Manner::Strict;
        let way = self.way();
        *way = Way {
            body,
            class,
            codings: if decodes { head.fields.codings.number() } else { 0 },
            state: at::BODY,
            closes: u8::from(strict && !head.persists()),
            begun: 1,
            held: way.held,
            gathered: way.gathered,
            ..Way::default()
        };
        if self.is_requests() {
            self.it.may_switch = u8::from(head.may_switch());
        }
        let bodiless = body.has_ended() || body.is_switched();
        let alone = self.options.emit == Emit::Body && bodiless;
        self.way().owes = u8::from(!alone);
        self.describe(head, alone);
        self.give_head(from, to);
        if bodiless {
            self.finish_message();
        }
    }

    fn give_head(&mut self, from: u32, to: u32) {
        self.at = to;
        self.way().gathered = 0;
        let mut held = std::mem::take(&mut self.way().held);
        let (class, emit) = (Class(self.way().class), self.options.emit);
        while !held.is_empty() {
            let turned = self.turned();
            match emit {
                Emit::Body => self.cx.forget(&mut held),
                Emit::Message | Emit::Head => self.cx.release(&mut held, |block| {
                    let mut block = block.with_class(class);
                    block.context.flags = turned(block.context.flags);
                    block
                }),
            }
        }
        if emit != Emit::Body {
            self.open = Some(from);
            if emit == Emit::Head || self.way().codings != 0 {
                self.flush(emit == Emit::Head);
            }
        }
    }

    /// What lies behind a head.
    fn body(&mut self) {
        let rest = self.rest();
        let at = self.at;
        let mut body = self.way().body;
        let taken = body.take(rest);
        self.way().body = body;
        match taken {
            Ok(Piece::Data(length)) => {
                self.at += length as u32;
                self.way().seen += length as u64;
                self.give_data(at, body.has_ended());
            }
            Ok(Piece::Framing(length)) => {
                self.at += length as u32;
                if self.options.emit == Emit::Message && self.way().codings == 0 {
                    self.open.get_or_insert(at);
                }
            }
            Ok(Piece::End) => {}
            Err(_) => {
                self.way().broken = 1;
                self.finish_message();
                return self.fault();
            }
        }
        if body.has_ended() || taken == Ok(Piece::End) {
            self.finish_message();
        }
    }

    /// The body of the open message goes on from `from` to where the block is taken.
    pub(super) fn give_data(&mut self, from: u32, last: bool) {
        let coded = self.way().codings != 0;
        match self.options.emit {
            Emit::Head => {}
            _ if coded => self.hold_data(from),
            Emit::Message => {
                self.open.get_or_insert(from);
            }
            Emit::Body => self.give(from, self.at, last),
        }
    }

    /// The open message ends here.
    pub(super) fn finish_message(&mut self) {
        if self.way().codings != 0 {
            self.decode();
        }
        if self.way().owes != 0 {
            self.open.get_or_insert(self.at);
            self.flush(true);
        }
        let (missing, broken) = (self.way().missing, self.way().broken);
        self.cx.count(why::MISSING, missing.into());
        self.cx.count(why::INCOMPLETE, broken.into());
        let switched = self.way().body.is_switched();
        match self.is_requests() {
            true => self.request_ended(),
            false => self.response_ended(),
        }
        let closes = self.way().closes != 0;
        self.way().state = if closes { at::CLOSED } else { at::BETWEEN };
        if switched {
            self.switch();
        }
    }

    /// From here on both directions speak another protocol.
    fn switch(&mut self) {
        for way in 0..2 {
            if self.it.ways[way].state == at::HEAD {
                self.let_go(way, why::SWITCHED);
            }
            if !matches!(self.it.ways[way].state, at::BODY | at::ENDED) {
                self.it.ways[way].state = at::SWITCHED;
            }
        }
    }

    /// What stands there breaks the rules.
    fn fault(&mut self) {
        let may_switch = self.it.may_switch != 0 && self.is_requests();
        if self.it.kind == 0 && self.way().begun != 0 && self.way().state != at::LOST {
            return self.speaks(Kind::Other);
        }
        if may_switch {
            self.let_go(self.way, why::SWITCHED);
            self.way().state = at::SWITCHED;
            return self.aside();
        }
        let lost = self.way().state == at::LOST;
        self.let_go(self.way, why::MALFORMED);
        if lost {
            return self.aside();
        }
        self.lose();
        self.give_aside(why::MALFORMED);
    }

    /// Where the next message begins is not known any more, nor which response belongs to which
    /// request.
    fn lose(&mut self) {
        self.let_go(self.way, why::LOST);
        self.way().state = at::LOST;
        if self.it.kind != 0 {
            self.drain();
        }
    }

    /// Bytes that were never seen.
    fn hole(&mut self) {
        let length = self.block.length();
        if length == 0 {
            return;
        }
        if self.way().state == at::BODY {
            if self.way().codings != 0 {
                self.give_up_decoding();
            }
            let mut body = self.way().body;
            let missed = body.miss(length.into()) as u32;
            self.way().body = body;
            self.way().missing = self.way().missing.saturating_add(missed);
            self.at = missed;
            if missed > 0 {
                self.give_data(0, body.has_ended());
            }
            if missed == length && !body.has_ended() {
                return;
            }
            self.way().broken = u8::from(!body.has_ended());
            self.finish_message();
        }
        if self.at < length {
            if matches!(self.way().state, at::NEW | at::BETWEEN | at::HEAD) {
                self.lose();
            }
            self.aside();
        }
    }

    /// The direction ends here.
    fn end(&mut self) {
        match self.way().state {
            at::BODY => {
                let whole = self.way().body.ends_with_connection();
                self.way().broken = u8::from(!whole);
                self.finish_message();
            }
            at::HEAD => {
                self.cx.count(why::INCOMPLETE, 1);
                self.let_go(self.way, why::CUT);
            }
            _ => {}
        }
        self.way().state = at::ENDED;
        if self.it.ways.iter().all(|way| way.state == at::ENDED) {
            self.drain();
        }
    }

    /// Gives the fragment of the open message up to where the block is taken.
    fn flush(&mut self, last: bool) {
        let from = self.open.take().filter(|from| last || *from < self.at);
        if let Some(from) = from {
            self.give(from, self.at, last);
        }
    }

    /// Gives a fragment of the open message.
    pub(super) fn give(&mut self, from: u32, to: u32, last: bool) {
        let mut piece = self.block.narrow(from, to - from).with_class(Class(self.way().class));
        let flags = self.turned()(piece.context.flags);
        piece.context.flags = if last { flags.with(Flags::LAST) } else { flags };
        self.way().owes &= u8::from(!last);
        self.put(piece);
    }

    fn put(&mut self, piece: Block<'a>) {
        match std::mem::replace(&mut self.given, true) {
            true => self.cx.make(piece),
            false => self.cx.pass(piece),
        }
    }

    /// The flags of a fragment without those that concern the stream, and with its true direction.
    pub(super) fn turned(&self) -> impl Fn(Flags) -> Flags + use<> {
        let requests = self.is_requests();
        move |flags: Flags| {
            let stream = Flags::FIRST.with(Flags::LAST).with(Flags::END).with(Flags::BACKWARD);
            let flags = flags.without(stream);
            if requests { flags } else { flags.with(Flags::BACKWARD) }
        }
    }

    /// Lets the rest of the block go on without an answer.
    fn aside(&mut self) {
        let reason = match self.way().state {
            at::SWITCHED => why::SWITCHED,
            at::CLOSED => why::AFTER_CLOSE,
            at::OTHER => why::NOT_HTTP,
            _ => why::LOST,
        };
        self.give_aside(reason);
    }

    fn give_aside(&mut self, reason: Reason) {
        self.flush(false);
        if self.at < self.block.length() {
            let class = self.cx.absent(reason);
            let piece = self.block.narrow(self.at, u32::MAX).with_class(class);
            self.put(piece);
        }
        self.at = self.block.length();
    }

    /// Lets held pieces of a head go on without an answer.
    fn let_go(&mut self, way: usize, reason: Reason) {
        let mut held = std::mem::take(&mut self.it.ways[way].held);
        self.it.ways[way].gathered = 0;
        while !held.is_empty() {
            let class = self.cx.absent(reason);
            self.cx.release(&mut held, |block| block.with_class(class));
        }
    }

    /// Whether the open body has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.it.ways[self.way].body.has_ended()
    }

    /// What the codings of the open body are.
    pub(super) fn codings(&mut self) -> Codings {
        Codings::of(self.way().codings)
    }
}

/// Whether a head begins here for certain, in the middle of bytes that nobody understands.
fn convinces(rest: &[u8]) -> bool {
    match guess(rest) {
        Guess::Request => {
            let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(0);
            method_number(rest.get(..end).unwrap_or_default()) != method_number(b"")
        }
        Guess::Response => true,
        Guess::Short | Guess::Http2 | Guess::Tls | Guess::Other => false,
    }
}
