//! Fields of the header that OpenBSD's packet filter logs: interface, rule, reason, action.

use super::super::ast::PfField;
use super::super::condition::Condition;
use super::load::{HeaderBase, LoadSize};
use super::{Generated, Generator};
use crate::classic::link::LinkType;

/// Both names have room for 16 bytes, the last of them zero.
const NAME_MAX: usize = 15;

impl Generator<'_> {
    pub(super) fn pf_interface(&mut self, name: &str) -> Generated<Condition> {
        self.pf_name("ifname", 4, name)
    }

    pub(super) fn pf_ruleset(&mut self, name: &str) -> Generated<Condition> {
        self.pf_name("ruleset", 20, name)
    }

    fn pf_name(&mut self, word: &str, at: u32, name: &str) -> Generated<Condition> {
        self.only_pflog(word)?;
        if name.len() > NAME_MAX {
            let what = format!("`{word}` has at most {NAME_MAX} characters, `{name}` has more");
            return Err(self.mistake(what));
        }
        self.bytes(HeaderBase::Header, at, name.as_bytes())
    }

    pub(super) fn pf_number(&mut self, field: PfField, number: u32) -> Generated<Condition> {
        let (word, at, size) = match field {
            PfField::Rule => ("rnr", 36, LoadSize::Keyword),
            PfField::Subrule => ("srnr", 40, LoadSize::Keyword),
            PfField::Reason => ("reason", 3, LoadSize::Byte),
            PfField::Action => ("action", 2, LoadSize::Byte),
        };
        self.only_pflog(word)?;
        self.equal(HeaderBase::Header, at, size, number)
    }

    fn only_pflog(&self, word: &str) -> Generated<()> {
        if self.link == LinkType::PFLOG {
            return Ok(());
        }
        Err(self.mistake(format!("`{word}` is supported only on {}", LinkType::PFLOG)))
    }
}
