//! Solaris ATM: channels by number or name, signalling messages, and LAN emulation.

use super::super::ast::{Atm, AtmField, Relation};
use super::super::condition::Condition;
use super::load::{HeaderBase, LoadSize};
use super::{Generated, Generator, Offset, comparison};
use crate::classic::link::LinkType;

/// Offsets of the payload and of a signalling message's type.
const PAYLOAD: u32 = 4;
const MESSAGE_TYPE: u32 = PAYLOAD + 5;

/// Signalling messages.
const CALL_PROCEEDING: u32 = 0x02;
const SETUP: u32 = 0x05;
const CONNECT: u32 = 0x07;
const CONNECT_ACK: u32 = 0x0f;
const RELEASE: u32 = 0x4d;
const RELEASE_DONE: u32 = 0x5a;

impl Generator<'_> {
    pub(super) fn atm(&mut self, atm: Atm) -> Generated<Condition> {
        self.only_atm(word(atm))?;
        match atm {
            Atm::Metac => self.channel(&[1]),
            Atm::Bcc => self.channel(&[2]),
            Atm::OamF4Segment => self.channel(&[3]),
            Atm::OamF4End => self.channel(&[4]),
            Atm::Sc => self.channel(&[5]),
            Atm::Ilmic => self.channel(&[16]),
            Atm::Oam | Atm::OamF4 => self.channel(&[3, 4]),
            Atm::ConnectMessage => {
                let channel = self.channel(&[5])?;
                let kinds = [RELEASE_DONE, RELEASE, CONNECT_ACK, CONNECT, SETUP, CALL_PROCEEDING];
                Ok(channel.and(self.message(&kinds)?))
            }
            Atm::MetaConnect => {
                let channel = self.channel(&[1])?;
                let kinds = [RELEASE_DONE, RELEASE, CONNECT, SETUP, CALL_PROCEEDING];
                Ok(channel.and(self.message(&kinds)?))
            }
            Atm::Lane => self.lan_emulation(),
        }
    }

    /// Tests for virtual path 0 and one of these virtual channels.
    fn channel(&mut self, channels: &[u32]) -> Generated<Condition> {
        let path = self.atm_field(AtmField::Vpi, Relation::Equal, 0)?;
        let mut any = Condition::Never;
        for channel in channels {
            any = any.or(self.atm_field(AtmField::Vci, Relation::Equal, *channel)?);
        }
        Ok(path.and(any))
    }

    fn message(&mut self, kinds: &[u32]) -> Generated<Condition> {
        let mut any = Condition::Never;
        for kind in kinds {
            any = any.or(self.equal(HeaderBase::Header, MESSAGE_TYPE, LoadSize::Byte, *kind)?);
        }
        Ok(any)
    }

    /// Continues with the Ethernet frame inside LAN emulation.
    fn lan_emulation(&mut self) -> Generated<Condition> {
        let lane = self.atm_prototype(0x01)?;
        let header = Offset { constant: PAYLOAD + 2, word: None };
        self.enter(LinkType::EN10MB, header);
        self.protocol = Some(header.plus(12));
        self.payload = Some(header.plus(14));
        self.nl = 0;
        self.nl_nosnap = 3;
        Ok(lane)
    }

    pub(super) fn atm_field(
        &mut self,
        field: AtmField,
        relation: Relation,
        value: u32,
    ) -> Generated<Condition> {
        let (word, at, size, maximum) = match field {
            AtmField::Vpi => ("VPI", 1, LoadSize::Byte, 0xff),
            AtmField::Vci => ("VCI", 2, LoadSize::Half, 0xffff),
        };
        self.only_atm(word)?;
        self.at_most(word, value, maximum)?;
        let (op, wanted) = comparison(relation);
        Ok(self.test(HeaderBase::Header, at, size, op, value)?.is(wanted))
    }

    /// Tests the payload type: 1 LAN emulation, 2 LLC.
    pub(super) fn atm_prototype(&mut self, kind: u32) -> Generated<Condition> {
        self.masked(HeaderBase::Header, 0, LoadSize::Byte, kind, 0x0f)
    }

    fn only_atm(&self, word: &str) -> Generated<()> {
        if self.link == LinkType::SUNATM {
            return Ok(());
        }
        Err(self.mistake(format!("`{word}` is supported only on {}", LinkType::SUNATM)))
    }
}

fn word(atm: Atm) -> &'static str {
    match atm {
        Atm::Lane => "lane",
        Atm::Metac => "metac",
        Atm::Bcc => "bcc",
        Atm::OamF4Segment => "oamf4sc",
        Atm::OamF4End => "oamf4ec",
        Atm::Sc => "sc",
        Atm::Ilmic => "ilmic",
        Atm::Oam => "oam",
        Atm::OamF4 => "oamf4",
        Atm::ConnectMessage => "connectmsg",
        Atm::MetaConnect => "metaconnect",
    }
}
