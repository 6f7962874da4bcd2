//! Protocol detection and hello parsing in the two directions of a TLS connection.
//!
//! Input: the blocks of one direction in order. Output: descriptions of hellos, and the input
//! blocks with their class.

use super::{
    CLIENT_HELLOS, CUT, GAP, HelloBuffers, MALFORMED, NO_HELLO, NOT_TLS, SERVER_HELLOS, TOO_LONG,
    ja4::fingerprint,
};
use crate::application::endpoints::{Endpoints, write_display};
use crate::prelude::*;
use wire::record::{Field, Record, RecordKind as About, Writer};
use wire::tls::{
    ClientHello, FirstHello, HANDSHAKE, ServerHello, Version, consists_of_complete_records,
    find_first_hello,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Maximum number of blocks held while a hello is incomplete.
const PIECES_MAX: u32 = 1024;
/// Maximum size of a description in bytes.
const DESCRIPTION_SIZE_MAX: usize = 4096;
/// Maximum length of a server name in bytes; names in DNS are shorter.
const SERVER_NAME_MAX: usize = 512;
/// Maximum number of application protocols in a description.
const ALPN_PROTOCOLS_MAX: usize = 8;

/// The TLS state of a connection.
#[derive(FromBytes, IntoBytes, Immutable, Default, Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct TlsConnection {
    forward: TlsDirection,
    backward: TlsDirection,
    /// Held description of the client's hello, from which the description of the server's hello
    /// copies the server name and the JA4 fingerprint.
    client_description: HeldList,
    /// The negotiated version. Until the server has chosen, the version that the client offered; 0
    /// if unknown.
    version: u16,
    /// Nonzero once the server has chosen the version.
    is_version_chosen: u8,
    /// Length in bytes of the session id that the client offers for resumption; 0 if none.
    resumed_id_length: u8,
    session: [u8; 32],
}

/// The TLS state of one direction of a connection.
#[derive(FromBytes, IntoBytes, Immutable, Default, Clone, Copy, Debug)]
#[repr(C)]
struct TlsDirection {
    /// Blocks held until it is known whether the direction is TLS.
    held: HeldList,
    /// Number of bytes in the held blocks.
    held_bytes: u32,
    /// Number of bytes of the direction that must have arrived before the hello is parsed again.
    needed_bytes: u32,
    /// Decision whether the direction carries TLS: 0 while undecided, 1 for TLS. Any other value is
    /// 1 plus the [`Reason::to_code`] of the reason why the direction has no readable hello.
    decision: u8,
    /// Nonzero after the first block of the direction.
    has_begun: u8,
    /// Nonzero after the last block of the direction.
    has_ended: u8,
    /// Progress of a HelloRetryRequest, after which the server sends a second hello: 0 if there was
    /// none, 1 in the block that contains the request, 2 after that block.
    retry_state: u8,
}

impl Session for TlsConnection {
    /// Returns the session number for a key of the session table. The key is the session number
    /// plus one, because key 0 is reserved for state that belongs to no connection.
    fn session_number(&self, key: u64) -> u64 {
        key.saturating_sub(1)
    }

    fn held_lists(&mut self) -> Vec<&mut HeldList> {
        vec![&mut self.forward.held, &mut self.backward.held, &mut self.client_description]
    }

    const FIELDS: &'static [crate::Field<Self>] = &[
        crate::Field::new(
            "version",
            Unit::Number,
            "chosen, or else offered; 0 if unknown",
            |it, _| it.version.into(),
        ),
        crate::Field::new("chosen", Unit::YesNo, "by the server", |it, _| {
            it.is_version_chosen.into()
        }),
        crate::Field::new(
            "resumes",
            Unit::YesNo,
            "the client offers to resume a session",
            |it, _| (it.resumed_id_length > 0).into(),
        ),
    ];
}

impl TlsConnection {
    /// Handles the next block of the connection. Returns true if each direction has ended or has
    /// not begun.
    pub(super) fn handle_block<'a>(
        &mut self,
        block: Block<'a>,
        buffers: &mut HelloBuffers,
        cx: &mut StreamContext<'_, 'a>,
    ) -> bool {
        let backward = block.context.flags.contains(BlockFlags::BACKWARD);
        let end = block.context.flags.contains(BlockFlags::SESSION_END);
        if self.direction(backward).decision == 0 {
            self.handle_undecided_block(block, backward, end, buffers, cx);
        } else {
            self.pass_block(block, backward, cx);
        }
        let direction = self.direction(backward);
        direction.has_begun = 1;
        direction.has_ended |= u8::from(end);
        [self.forward, self.backward]
            .iter()
            .all(|direction| direction.has_begun == direction.has_ended)
    }

    /// Emits all held blocks of both directions. Marks each undecided direction as unreadable for
    /// the reason `why`. Drops the description of the client's hello.
    pub(super) fn release_all(&mut self, why: Reason, cx: &mut StreamContext<'_, '_>) {
        self.record_tls_decision(false, Err(why), cx);
        self.record_tls_decision(true, Err(why), cx);
        self.drop_client_description(cx);
    }

    fn direction(&mut self, backward: bool) -> &mut TlsDirection {
        if backward { &mut self.backward } else { &mut self.forward }
    }

    /// Handles a block of a direction for which it is not decided yet whether it carries TLS. If
    /// the bytes up to the end of this block suffice for the decision, emits the block; otherwise
    /// holds it. Consumes a hole of length 0 that is not the end of the direction.
    fn handle_undecided_block<'a>(
        &mut self,
        block: Block<'a>,
        backward: bool,
        end: bool,
        buffers: &mut HelloBuffers,
        cx: &mut StreamContext<'_, 'a>,
    ) {
        let direction = *self.direction(backward);
        let decided = if block.pointer.is_hole() {
            match (block.length(), end) {
                (0, false) => return cx.consume(&block),
                (0, true) => Some(Err(CUT)),
                _ => Some(Err(GAP)),
            }
        } else {
            let total = direction.held_bytes.saturating_add(block.length());
            match self.parse_hello(block, backward, total, buffers, cx) {
                None if end => Some(Err(self.missing_hello_reason(block, backward, cx))),
                decided => decided,
            }
        };
        match decided {
            Some(decided) => {
                self.record_tls_decision(backward, decided, cx);
                self.pass_block(block, backward, cx);
                let direction = self.direction(backward);
                if direction.retry_state == 1 {
                    // Undecided again, until the second hello arrives.
                    (
                        direction.decision,
                        direction.held_bytes,
                        direction.needed_bytes,
                        direction.retry_state,
                    ) = (0, 0, 0, 2);
                }
            }
            None => self.hold_block(block, backward, cx),
        }
    }

    /// Returns the reason why a direction ended without a complete hello: the hello was truncated,
    /// or none had begun.
    fn missing_hello_reason<'a>(
        &mut self,
        block: Block<'a>,
        backward: bool,
        cx: &StreamContext<'_, 'a>,
    ) -> Reason {
        let first =
            cx.front_block(&self.direction(backward).held).map_or(block, |(_, first)| first);
        let begun = first.bytes().first().is_some_and(|content| *content == HANDSHAKE);
        if begun { CUT } else { NO_HELLO }
    }

    fn hold_block<'a>(&mut self, block: Block<'a>, backward: bool, cx: &mut StreamContext<'_, 'a>) {
        let direction = self.direction(backward);
        if direction.held.len() >= PIECES_MAX {
            self.record_tls_decision(backward, Err(TOO_LONG), cx);
            return self.pass_block(block, backward, cx);
        }
        direction.held_bytes = direction.held_bytes.saturating_add(block.length());
        let key = direction.held.len();
        if !cx.hold(&mut direction.held, &block, key) {
            self.record_tls_decision(backward, Err(TOO_LONG), cx);
        }
    }

    /// Parses all bytes received in a direction, including those of this block, and emits a
    /// description of the hello unless the hello is a HelloRetryRequest. Fails with the reason if
    /// the bytes contain no readable hello. Returns `None` if the hello is incomplete, or if bytes
    /// of this block have been overwritten.
    fn parse_hello<'a>(
        &mut self,
        block: Block<'a>,
        backward: bool,
        total: u32,
        buffers: &mut HelloBuffers,
        cx: &mut StreamContext<'_, 'a>,
    ) -> Option<Result<(), Reason>> {
        let direction = *self.direction(backward);
        if total < direction.needed_bytes || total == 0 {
            return None;
        }
        let HelloBuffers { block_bytes: blocks, record_payloads: records, numbers } = buffers;
        let first = cx.front_block(&direction.held).map_or(block, |(_, first)| first);
        let bytes = if direction.held.is_empty() {
            cx.complete_block(block)?.bytes()
        } else {
            cx.gather_views(&direction.held, blocks);
            blocks.extend_from_slice(cx.complete_block(block)?.bytes());
            blocks
        };
        Some(match find_first_hello(bytes, records) {
            FirstHello::NeedBytes(need) => {
                self.direction(backward).needed_bytes = u32::try_from(need).unwrap_or(u32::MAX);
                return None;
            }
            FirstHello::Client(hello) => {
                self.handle_client_hello(&hello, first, numbers, cx);
                Ok(())
            }
            FirstHello::Server(hello)
                if hello.is_retry
                    && direction.retry_state == 0
                    && consists_of_complete_records(bytes) =>
            {
                let version = hello.negotiated_version();
                (self.version, self.is_version_chosen) =
                    (version.normalized_version().unwrap_or(version).0, 1);
                self.direction(backward).retry_state = 1;
                Ok(())
            }
            FirstHello::Server(hello) => {
                self.handle_server_hello(&hello, first, cx);
                Ok(())
            }
            FirstHello::Malformed => Err(MALFORMED),
            FirstHello::TooLong => Err(TOO_LONG),
            // Only a peer that was addressed in TLS replies with an alert.
            FirstHello::Alert | FirstHello::NoHello => Err(NO_HELLO),
            FirstHello::NotTls => Err(NOT_TLS),
        })
    }

    /// Records whether the direction carries TLS, unless this is already decided, and emits its
    /// held blocks with the resulting class.
    fn record_tls_decision(
        &mut self,
        backward: bool,
        decided: Result<(), Reason>,
        cx: &mut StreamContext<'_, '_>,
    ) {
        let direction = self.direction(backward);
        if direction.decision == 0 {
            direction.decision =
                decided.map_or_else(|why| DECIDED_TLS + why.to_code(), |()| DECIDED_TLS);
        }
        let mut list = std::mem::take(&mut direction.held);
        while !list.is_empty() {
            let class = self.class(backward, cx);
            cx.release_front_block(&mut list, |block| block.with_class(class));
        }
    }

    /// Emits a block with the class of its direction.
    fn pass_block<'a>(&mut self, block: Block<'a>, backward: bool, cx: &mut StreamContext<'_, 'a>) {
        let class = self.class(backward, cx);
        cx.pass(block.with_class(class));
    }

    /// Returns the class for the next block of a direction: the TLS version. If the direction does
    /// not carry TLS, or if it is unreadable and the version is unknown, counts the reason and
    /// returns no class.
    fn class(&mut self, backward: bool, cx: &mut StreamContext<'_, '_>) -> Class {
        let version = self.version;
        match Reason::from_code(self.direction(backward).decision.saturating_sub(DECIDED_TLS)) {
            Some(why) if version == 0 || why == NOT_TLS => cx.answer_absent(why),
            _ => Class(version.into()),
        }
    }

    fn handle_client_hello<'a>(
        &mut self,
        hello: &ClientHello<'_>,
        first: Block<'a>,
        numbers: &mut Vec<u16>,
        cx: &mut StreamContext<'_, 'a>,
    ) {
        let offered = hello.highest_offered_version();
        if self.is_version_chosen == 0 {
            self.version = offered.0;
        }
        let session = hello.session_id.get(..self.session.len()).unwrap_or(hello.session_id);
        if let Some(place) = self.session.get_mut(..session.len()) {
            place.copy_from_slice(session);
            self.resumed_id_length = u8::try_from(session.len()).unwrap_or(0);
        }
        let ja4 = fingerprint(hello, numbers);
        let described = describe(self.version, first, false, cx, |writer| {
            let mut is_whole = true;
            write_display(writer, Field::TlsVersion, offered);
            if let Some(name) = hello.server_name() {
                let beginning = name.get(..SERVER_NAME_MAX);
                writer.add_text(Field::ServerName, beginning.unwrap_or(name));
                is_whole &= name.len() <= SERVER_NAME_MAX;
            }
            let mut protocols = hello.offered_protocols();
            for protocol in protocols.by_ref().take(ALPN_PROTOCOLS_MAX) {
                writer.add_text(Field::Alpn, protocol);
            }
            if !is_whole || protocols.next().is_some() {
                writer.mark_truncated();
            }
            writer.add_number(
                Field::Ciphers,
                hello.offered_cipher_suites().without_grease().count() as u64,
            );
            writer.add_text(Field::Ja4, &ja4);
        });
        cx.count(CLIENT_HELLOS, 1);
        if let Some(described) = described {
            cx.emit_created_block(described);
            if self.is_version_chosen == 0 && self.client_description.is_empty() {
                cx.hold_created_block(&mut self.client_description, &described, 0);
            }
        }
    }

    fn handle_server_hello<'a>(
        &mut self,
        hello: &ServerHello<'_>,
        first: Block<'a>,
        cx: &mut StreamContext<'_, 'a>,
    ) {
        let version = hello.negotiated_version();
        (self.version, self.is_version_chosen) =
            (version.normalized_version().unwrap_or(version).0, 1);
        let session = self.session.get(..usize::from(self.resumed_id_length)).unwrap_or_default();
        let resumed = match version.normalized_version() {
            Some(Version::TLS13) => hello.accepts_psk(),
            _ => !session.is_empty() && session == hello.session_id,
        };
        let client_description = cx
            .front_block(&self.client_description)
            .map(|(_, client_description)| client_description.frame);
        let described = describe(self.version, first, true, cx, |writer| {
            write_display(writer, Field::TlsVersion, version);
            let client_description = client_description.and_then(Record::parse);
            for (field, text) in client_description.iter().flat_map(Record::fields) {
                if matches!(field, Field::ServerName | Field::Ja4) {
                    writer.add_text(field, text);
                }
            }
            if let Some(protocol) = hello.negotiated_protocol() {
                writer.add_text(Field::Alpn, protocol);
            }
            write_display(writer, Field::Cipher, hello.cipher);
            if resumed {
                writer.add_number(Field::Resumed, 1);
            }
        });
        cx.count(SERVER_HELLOS, 1);
        if let Some(described) = described {
            cx.emit_created_block(described);
        }
        self.drop_client_description(cx);
    }

    /// Drops the held description of the client's hello.
    fn drop_client_description(&mut self, cx: &mut StreamContext<'_, '_>) {
        while !self.client_description.is_empty() {
            cx.consume_front_block(&mut self.client_description);
        }
    }
}

/// Creates the description of a TLS hello message. The hello begins in the block `first`. Returns
/// `None` if memory runs out.
fn describe<'a>(
    version: u16,
    first: Block<'a>,
    by_server: bool,
    cx: &mut StreamContext<'_, 'a>,
    write: impl FnOnce(&mut Writer<'_>),
) -> Option<Block<'a>> {
    let mut context = first.context;
    let flags = context.flags.without(BlockFlags::SESSION_END_MASK);
    context.flags = flags.with(BlockFlags::FIRST).with(BlockFlags::LAST);
    let ends = Endpoints::from_block(first, by_server);
    cx.append_description(DESCRIPTION_SIZE_MAX, Class(version.into()), context, |room| {
        let mut writer = Writer::new(room, About::Tls);
        writer.add_number(Field::Time, context.time);
        if let Some(ends) = ends {
            ends.write(&mut writer);
        }
        write(&mut writer);
        writer.finish()
    })
}

/// [`TlsDirection::decision`] of a direction that is TLS.
const DECIDED_TLS: u8 = 1;
