//! `token`: passes UDP datagrams with a valid token.
//!
//! Input: any view into a frame. Output: the same blocks. Datagrams with a valid, unused token at
//! the start of the payload have class 1 and are viewed after the token; all other blocks have no
//! class. In the paper, a token-based switch routes packets by tokens, and a network processor
//! computes HMAC-SHA1 [SL §9.3]. Here the tag is SipHash-2-4, which is designed for short input and
//! needs no loops in a kernel program (docs/book/decisions/0031-tokens.md).
//!
//! ```text
//! 0          8          16
//! | number   | tag      | data …
//! ```
//!
//! The tag is SipHash-2-4, in the byte order of the function's output, over these bytes: the
//! number; the two ports; the length of the data in four bytes; the two addresses; the first
//! `covers` bytes of the data, or all if there are fewer. Numbers are in network byte order.
//!
//! A number is accepted only once. The state is the largest number accepted for each residue modulo
//! 256, so packets may be reordered by fewer than 256 positions. An update writes a single number,
//! so processors can update the state concurrently with one atomic exchange each.

mod emit;
#[cfg(any(test, feature = "testing"))]
pub mod token_writer;

#[cfg(test)]
mod tests;

use crate::layers::{self, HEAD_SIZE, HeaderError};
use crate::prelude::*;
use siphasher::sip::SipHasher24;
use std::hash::Hasher as _;
use wire::{ipv4, ipv6, udp};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Catalog entry of `token`, which passes UDP datagrams that begin with a valid token.
pub const TOKEN: Description = Description {
    name: "token",
    summary: "pass UDP datagrams that carry a valid token, each token once",
    details: "\
Passes UDP datagrams that begin with a valid token, each token once. The class is 1, and the view
moves past the token. A token is 16 bytes: a number, and a tag that requires the key. The tag is the
SipHash-2-4 of the number, the ports, the length of the data after the token, the addresses, and the
first `covers` bytes of the data, so a token is valid for one datagram between two addresses.

The key is 32 hexadecimal digits in a file that only its owner may read (`openssl rand -hex 16`). It
appears in no request and no report. No daemon reads it for another user: `token` then runs in the
process of that user. In the kernel `covers` is at most 128.

Numbers begin with 1 and increase. Each passes once while the request runs; one that is 256 or more
below the largest may be refused. If a kernel program verifies tokens, a frame that it cannot decide
does not pass.

Reasons for no class: `no token` (fewer than 16 bytes), `forged` (a wrong tag), `replayed` (a number
that was used, or is too old), `unsure`, `not udp`, `not ip`, `malformed`, `cut` (a covered byte was
not captured), `too deep`, `fragment`.",
    example: "rx eth0 | token key=switch.key | count",
    kind: FilterKind::Reordering,
    input_forms: Forms::FRAMED,
    output_form: OutputForm::Form(Form::Segment),
    reads: ReadDepth::Head(HEAD_SIZE + TOKEN_SIZE as u16 + COVERED_BYTES_MAX),
    parameters: &[
        Parameter::required(
            "key",
            ParameterType::Path,
            "the file with the key, readable by its owner only",
        ),
        Parameter::with_default(
            "covers",
            ParameterType::Number { low: 0, high: COVERED_BYTES_MAX as u64 },
            "64",
            "number of bytes after the token that the tag covers",
        ),
    ],
    classes: Classes::YesNo,
    reasons: &[
        "not ip",
        "malformed",
        "cut",
        "too deep",
        "fragment",
        "not udp",
        "no token",
        "forged",
        "replayed",
        "unsure",
    ],
    state: StateFacts::private_session::<UsedNumbers>(),
    constructor: Some(make_filter),
    emit_twin: Some(emit::emit_twin),
    analysis: ArgumentAnalysis {
        context_setting: Some(Arguments::is_fallback_of_twin),
        ..ArgumentAnalysis::NONE
    },
    twin_right: Some(FilterRight::UseSecret),
    twin_test_arguments: &["key=exam covers=20"],
    ..Description::FILTER_DEFAULTS
};

const _: () = HeaderError::assert_reason_names(TOKEN.reasons, 5);
const NOT_UDP: Reason = TOKEN.reason("not udp");
const NO_TOKEN: Reason = TOKEN.reason("no token");
const FORGED: Reason = TOKEN.reason("forged");
const REPLAYED: Reason = TOKEN.reason("replayed");
const UNSURE: Reason = TOKEN.reason("unsure");

/// Size of a token in bytes: the number and the tag.
const TOKEN_SIZE: usize = 16;
/// Size of the number in a token, in bytes.
const NUMBER_SIZE: usize = 8;
/// Maximum number of data bytes that the tag covers.
const COVERED_BYTES_MAX: u16 = 1024;
/// Number of residue classes into which the numbers of tokens are divided; a power of two. The
/// filter records used numbers separately for each residue.
const RESIDUE_COUNT: usize = 256;

/// The parsed arguments of `token`.
struct TokenArguments {
    key: Key,
    covers: u16,
}

impl TokenArguments {
    fn from_arguments(arguments: &Arguments) -> Result<Self, Mistake> {
        let covers = arguments.number("covers").and_then(|bytes| u16::try_from(bytes).ok());
        Ok(Self { key: arguments.read_key("key")?, covers: covers.unwrap_or(COVERED_BYTES_MAX) })
    }
}

fn make_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    let TokenArguments { key, covers } = TokenArguments::from_arguments(arguments)?;
    let used_numbers = Sessions::default();
    Ok(Filter::lanes(TokenFilter {
        key,
        covers,
        is_fallback: arguments.is_fallback_of_twin(),
        used_numbers,
    }))
}

/// The largest token number that has been accepted for each residue, or 0 if none has.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct UsedNumbers {
    numbers: [u64; RESIDUE_COUNT],
}

impl Default for UsedNumbers {
    fn default() -> Self {
        Self { numbers: [0; RESIDUE_COUNT] }
    }
}

impl Session for UsedNumbers {}

impl UsedNumbers {
    /// Accepts and records a token number if it is greater than every accepted number with the same
    /// remainder modulo [`RESIDUE_COUNT`]. Returns true if the number was accepted. The number 0 is
    /// therefore never accepted.
    fn record_if_new(&mut self, number: u64) -> bool {
        let place = self.numbers.get_mut(number as usize % RESIDUE_COUNT);
        let new = place.filter(|largest| **largest < number);
        new.map(|largest| *largest = number).is_some()
    }
}

struct TokenFilter {
    key: Key,
    covers: u16,
    /// True if this filter is the fallback of a kernel program, which stores the used token
    /// numbers. No datagram passes until these numbers have been moved to this filter.
    is_fallback: bool,
    used_numbers: Sessions<UsedNumbers>,
}

impl LaneFilter for TokenFilter {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut LaneContext<'_, 'a>) {
        cx.answer_each_lane(batch, |block, _| {
            let (data, end) = self.accept_token(block)?;
            *block = block.view_at(data, end.saturating_sub(data)).with_class(Class::YES);
            Ok(())
        });
    }

    fn state(&mut self) -> Option<&mut dyn FilterState> {
        Some(&mut self.used_numbers)
    }
}

impl TokenFilter {
    /// Validates the token of a datagram and records its number as used. Returns the start and end
    /// offsets of the data in the frame. Fails with the reason if the token is missing, invalid or
    /// already used.
    fn accept_token(&mut self, block: &mut Block<'_>) -> Result<(u32, u32), Reason> {
        if self.is_fallback && self.used_numbers.is_empty() {
            return Err(UNSURE);
        }
        let (_, payload, end) = layers::datagram_ports_and_payload(block)
            .map_err(HeaderError::reason)?
            .ok_or(NOT_UDP)?;
        let data = payload + TOKEN_SIZE as u32;
        let length = end.checked_sub(data).ok_or(NO_TOKEN)?;
        let found = TokenView::parse_frame_token(block, payload, length.min(self.covers.into()));
        let found = found.ok_or(HeaderError::Truncated.reason())?;
        if found.tag != found.expected_tag(&self.key, length) {
            return Err(FORGED);
        }
        if self
            .used_numbers
            .get_or_create(PRIVATE_SESSION_KEY)
            .record_if_new(u64::from_be_bytes(found.number))
        {
            Ok((data, end))
        } else {
            Err(REPLAYED)
        }
    }
}

/// A token and the bytes that it covers.
struct TokenView<'a> {
    number: [u8; NUMBER_SIZE],
    tag: u64,
    ports: [u8; 4],
    addresses: &'a [u8],
    data: &'a [u8],
}

impl<'a> TokenView<'a> {
    /// Returns the token at offset `payload` in the frame. Returns `None` if a byte of the token,
    /// or of the data that it covers, was not captured.
    fn parse_frame_token(block: &Block<'a>, payload: u32, covers: u32) -> Option<Self> {
        let payload = payload as usize;
        let network = block.frame.get(usize::from(block.marks.network)..)?;
        let addresses = match network.first()? >> 4 {
            4 => ipv4::SRC_OFFSET..ipv4::HEADER_LENGTH_MIN,
            _ => ipv6::SRC_OFFSET..ipv6::HEADER_LENGTH,
        };
        let header = block.frame.get(payload - udp::HEADER_LENGTH..)?;
        let token = block.frame.get(payload..)?;
        let (number, rest) = token.split_first_chunk::<NUMBER_SIZE>()?;
        let (tag, data) = rest.split_first_chunk::<8>()?;
        Some(Self {
            number: *number,
            tag: u64::from_le_bytes(*tag),
            ports: *header.first_chunk()?,
            addresses: network.get(addresses)?,
            data: data.get(..covers as usize)?,
        })
    }

    /// Returns the tag that makes the token valid. Tags must be compared in a single instruction,
    /// so that the time does not reveal how many bytes match.
    fn expected_tag(&self, key: &Key, length: u32) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&key.0);
        hasher.write(&self.number);
        hasher.write(&self.ports);
        hasher.write(&length.to_be_bytes());
        hasher.write(self.addresses);
        hasher.write(self.data);
        hasher.finish()
    }
}
