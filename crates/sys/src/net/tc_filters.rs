//! tc filters of an interface, except TCX programs, queried with RTM_GETTFILTER.
//!
//! For reports only: these filters run after TCX programs, and this crate never changes them.

use super::RouteSocket;
use super::links::{
    NETLINK_CALL, array_at, encode_message, exchange_request, parse_attributes, split_message,
    text_until_nul,
};
use crate::bpf::TrafficDirection;
use crate::error::{Error, Result};

/// Size of `struct tcmsg` in bytes.
const TC_MESSAGE_SIZE: usize = 20;
/// Parent handle of ingress filters under the classless qdisc `clsact`.
const TC_INGRESS_PARENT: u32 = 0xffff_fff2;
/// Parent handle of egress filters under the classless qdisc `clsact`.
const TC_EGRESS_PARENT: u32 = 0xffff_fff3;

/// Constants of `linux/rtnetlink.h` and `linux/pkt_cls.h`.
mod rtnetlink {
    pub(super) const ERROR: u16 = 2;
    pub(super) const DONE: u16 = 3;
    pub(super) const NEW_FILTER: u16 = 44;
    pub(super) const GET_FILTER: u16 = 46;
    pub(super) const REQUEST_DUMP: u16 = 0x301;
    pub(super) const KIND: u16 = 1;
    pub(super) const OPTIONS: u16 = 2;
    pub(super) const TCA_BPF_NAME: u16 = 7;
    pub(super) const TCA_BPF_ID: u16 = 11;
}

/// A tc filter of an interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TcFilter {
    /// Direction of the packets that the filter sees.
    pub side: TrafficDirection,
    /// Classifier kind, such as `bpf`, `flower` or `matchall`.
    pub kind: String,
    /// Priority of the filter. Filters with lower values run first.
    pub preference: u16,
    /// Handle of the filter, unique among the filters of one priority.
    pub handle: u32,
    /// Name of the filter's BPF program, if there is one.
    pub name: Option<String>,
    /// Id of the filter's BPF program, if there is one.
    pub program: Option<u32>,
}

impl RouteSocket {
    /// Lists the ingress and egress filters of the interface with this index.
    pub fn list_tc_filters(&self, index: u32) -> Result<Vec<TcFilter>> {
        let mut found = Vec::new();
        for (parent, side) in [
            (TC_INGRESS_PARENT, TrafficDirection::Ingress),
            (TC_EGRESS_PARENT, TrafficDirection::Egress),
        ] {
            let target = format!("the {side:?} filters of interface {index}").to_lowercase();
            self.request_dump(
                &target,
                |sequence| encode_request(sequence, index, parent),
                |kind, body| {
                    if kind == rtnetlink::NEW_FILTER {
                        found.extend(parse_filter(body, parent, side));
                    }
                },
            )?;
        }
        Ok(found)
    }

    /// Sends a dump request and passes the type and body of each message of the reply to `each`.
    /// `request` encodes the dump request, given its sequence number.
    pub(super) fn request_dump(
        &self,
        target: &str,
        request: impl FnOnce(u32) -> Vec<u8>,
        mut each: impl FnMut(u16, &[u8]),
    ) -> Result<()> {
        // The lock is held until the last reply has arrived.
        let held = self.lock_sequence();
        let sequence = *held;
        let mut code = 0;
        exchange_request(self.socket(), &request(sequence), target, |mut rest| {
            while let Some((kind, _, number, body, behind)) = split_message(rest) {
                rest = behind;
                match kind {
                    _ if number != sequence => {}
                    rtnetlink::ERROR | rtnetlink::DONE => {
                        code = array_at(body, 0).map_or(0, i32::from_ne_bytes);
                        return true;
                    }
                    kind => each(kind, body),
                }
            }
            false
        })?;
        let refused = || Err(Error::new(NETLINK_CALL, target.to_owned(), code.wrapping_neg()));
        if code < 0 { refused() } else { Ok(()) }
    }
}

fn encode_request(sequence: u32, index: u32, parent: u32) -> Vec<u8> {
    let body: [u32; TC_MESSAGE_SIZE / 4] = [0, index, 0, parent, 0];
    let body = body.map(u32::to_ne_bytes);
    encode_message(rtnetlink::GET_FILTER, rtnetlink::REQUEST_DUMP, sequence, body.as_flattened())
}

fn parse_filter(body: &[u8], wanted: u32, side: TrafficDirection) -> Option<TcFilter> {
    let word = |at| array_at(body, at).map(u32::from_ne_bytes);
    let (handle, parent, info) = (word(8)?, word(12)?, word(16)?);
    // An entry with handle 0 describes a priority, not a filter.
    if parent != wanted || handle == 0 {
        return None;
    }
    let options = || {
        let all = parse_attributes(body.get(TC_MESSAGE_SIZE..).unwrap_or(&[]));
        all.filter(|(kind, _)| *kind == rtnetlink::OPTIONS)
            .flat_map(|(_, value)| parse_attributes(value))
    };
    let kind = parse_attributes(body.get(TC_MESSAGE_SIZE..)?)
        .find(|(kind, _)| *kind == rtnetlink::KIND)?;
    let kind = text_until_nul(kind.1);
    let bpf = kind == "bpf";
    let option =
        |wanted| options().find(|(kind, _)| bpf && *kind == wanted).map(|(_, value)| value);
    Some(TcFilter {
        side,
        preference: (info >> 16) as u16,
        handle,
        name: option(rtnetlink::TCA_BPF_NAME).map(text_until_nul),
        program: option(rtnetlink::TCA_BPF_ID)
            .and_then(|value| array_at(value, 0).map(u32::from_ne_bytes)),
        kind,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::random::Random;

    /// Builds the body of a reply that describes a filter.
    fn filter_message(handle: u32, parent: u32, info: u32, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let words = [0, 2, handle, parent, info];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
        for (kind, value) in attributes {
            bytes.extend((4 + value.len() as u16).to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(*value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn bpf_filter_is_reported_with_its_program() {
        let mut options = filter_message(0, 0, 0, &[(7, b"tap\0"), (11, &77_u32.to_ne_bytes())]);
        let options = options.split_off(TC_MESSAGE_SIZE);
        let body =
            filter_message(1, TC_INGRESS_PARENT, 7 << 16 | 3, &[(1, b"bpf\0"), (2, &options)]);
        let found = parse_filter(&body, TC_INGRESS_PARENT, TrafficDirection::Ingress).unwrap();
        assert_eq!((found.kind.as_str(), found.preference, found.handle), ("bpf", 7, 1));
        assert_eq!((found.name.as_deref(), found.program), (Some("tap"), Some(77)));
        assert_eq!(
            parse_filter(&body, TC_EGRESS_PARENT, TrafficDirection::Egress),
            None,
            "of the other side"
        );
        let heading = filter_message(0, TC_INGRESS_PARENT, 7 << 16 | 3, &[(1, b"bpf\0")]);
        assert_eq!(parse_filter(&heading, TC_INGRESS_PARENT, TrafficDirection::Ingress), None);
    }

    #[test]
    fn malformed_filter_messages_parse_without_panic() {
        let mut random = Random::with_replayable_seed();
        for _ in 0..20_000 {
            let mut body = filter_message(
                1,
                TC_INGRESS_PARENT,
                1 << 16,
                &[(1, b"bpf\0"), (2, &[8, 0, 11, 0, 1, 2, 3, 4])],
            );
            for _ in 0..random.below(6) {
                let at = random.within(0..body.len());
                body[at] = random.below(256) as u8;
            }
            body.truncate(random.within(0..body.len() + 1));
            let _ = parse_filter(&body, TC_INGRESS_PARENT, TrafficDirection::Ingress);
        }
    }
}
