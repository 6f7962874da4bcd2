//! DECnet addresses: `decnet src 10.15`, an area of 6 bits and a node of 10.

use super::super::ast::{DirQualifier, Id, Qualifiers, TypeQualifier, describe};
use super::super::condition::Condition;
use super::link_protocol::DECNET;
use super::load::{HeaderBase, LoadSize};
use super::{Generated, Generator};

const AREA_MAX: u32 = 0x3f;
const NODE_MAX: u32 = 0x3ff;

impl Generator<'_> {
    pub(super) fn decnet_id(&mut self, q: Qualifiers, id: &Id) -> Generated<Condition> {
        let kind = q.kind.unwrap_or(TypeQualifier::Host);
        let text = match id {
            Id::Dotted(text) if kind == TypeQualifier::Host => text,
            Id::Number(_) if kind == TypeQualifier::Host => {
                let what = format!("invalid DECnet address `{}`", describe(id));
                return Err(self.mistake(what));
            }
            _ => return Err(self.not_valid("decnet", kind.word())),
        };
        self.only_ends(q.way)?;
        let Some(address) = address(text) else {
            return Err(self.mistake(format!("invalid DECnet address `{text}`")));
        };
        let decnet = self.link_protocol(DECNET)?;
        let address = u32::from(address.swap_bytes());
        let ends = match q.way {
            Some(DirQualifier::Source) => self.decnet_end(address, false)?,
            Some(DirQualifier::Target) => self.decnet_end(address, true)?,
            Some(DirQualifier::Both) => {
                let source = self.decnet_end(address, false)?;
                source.and(self.decnet_end(address, true)?)
            }
            _ => {
                let source = self.decnet_end(address, false)?;
                source.or(self.decnet_end(address, true)?)
            }
        };
        Ok(decnet.and(ends))
    }

    /// Tests one address in each of the header's four forms: short or long, padded or not.
    fn decnet_end(&mut self, address: u32, target: bool) -> Generated<Condition> {
        let (short, long) = if target { (1, 7) } else { (3, 15) };
        let flags = |g: &mut Self, size, k, mask| g.masked(HeaderBase::Network, 2, size, k, mask);
        let at = |g: &mut Self, place| g.equal(HeaderBase::Network, place, LoadSize::Half, address);
        let (plain, padded) = if target {
            (
                flags(self, LoadSize::Keyword, 0x0200_0000 | address << 8, 0x07ff_ff00)?,
                flags(self, LoadSize::Keyword, 0x8102_0000 | address, 0xff07_ffff)?,
            )
        } else {
            (
                flags(self, LoadSize::Byte, 0x02, 0x07)?.and(at(self, 2 + short)?),
                flags(self, LoadSize::Half, 0x8102, 0xff07)?.and(at(self, 3 + short)?),
            )
        };
        let long_plain = flags(self, LoadSize::Byte, 0x06, 0x07)?.and(at(self, 2 + long)?);
        let long_padded = flags(self, LoadSize::Half, 0x8106, 0xff07)?.and(at(self, 3 + long)?);
        Ok(plain.or(padded).or(long_plain).or(long_padded))
    }
}

/// `area.node`, both decimal.
fn address(text: &str) -> Option<u16> {
    let (area, node) = text.split_once('.')?;
    let number = |part: &str, maximum| {
        let decimal = part.bytes().all(|b| b.is_ascii_digit());
        part.parse::<u32>().ok().filter(|number| decimal && *number <= maximum)
    };
    let (area, node) = (number(area, AREA_MAX)?, number(node, NODE_MAX)?);
    u16::try_from(area << 10 | node).ok()
}
