//! The reference for the test twins in plain Rust. It makes the same decisions from the header
//! definitions, independently of the twins' code.

use ebpf::emit::{NATURAL_ZERO_CLASS, Outcome};
use ebpf::exam::{TwinJudge, TwinVerdict};
use ebpf::interpret::Packet;
use ebpf::{Counter, Hook, Program};

use super::{EXTENSION_HEADERS_MAX, TestFilter};

/// A reference that computes in plain Rust the answer and the counters that a chain of twins must
/// produce for a packet.
pub struct RustJudge<'p> {
    chain: &'p [TestFilter],
    program: &'p Program,
}

impl<'p> RustJudge<'p> {
    /// Creates the reference for a chain. `program` supplies only the hook and the order of the
    /// counters.
    pub fn new(chain: &'p [TestFilter], program: &'p Program) -> Self {
        Self { chain, program }
    }
}

impl TwinJudge for RustJudge<'_> {
    fn name(&self) -> &str {
        "plain"
    }

    fn judge(&mut self, packet: &Packet<'_>) -> TwinVerdict {
        let tag = packet.tag.filter(|_| self.program.hook != Hook::Xdp);
        let packet = Packet { tag, ..*packet };
        let mut view = View { at: 0, next: 0, l4: None, tags: 0 };
        let mut class = 0;
        let mut counted = vec![0; self.program.counters.len()];
        let mut outcome = None;
        let mut at = 0;
        for step in self.chain {
            let answer = match step {
                TestFilter::Eth => eth(&packet, &mut view),
                TestFilter::Vlan => vlan(&packet, &mut view),
                TestFilter::Ip => ip(&packet, &mut view),
                TestFilter::Udp => udp(&packet, &mut view),
                TestFilter::Dport => dport(&packet, &mut view),
            };
            match answer {
                Ok(answered) => class = answered,
                Err(NoAnswer::Unsure) => outcome = Some(Outcome::Unsure),
                Err(NoAnswer::Absent(name)) => {
                    outcome = Some(Outcome::Class(0));
                    let word = self.program.filters.iter().position(|word| word.at == at);
                    let wanted = Counter { filter: word, name: name.to_owned() };
                    let index = self.program.counters.iter().position(|c| *c == wanted);
                    match index.and_then(|index| counted.get_mut(index)) {
                        Some(count) => *count += 1,
                        None => return TwinVerdict::Broken(format!("no counter {wanted:?}")),
                    }
                }
            }
            if outcome.is_some() {
                break;
            }
            at += step.name().len() + " | ".len();
        }
        TwinVerdict::Answered {
            outcome: outcome.unwrap_or(Outcome::Class(class)),
            counter_increases: counted,
            frame: None,
        }
    }
}

enum NoAnswer {
    Absent(&'static str),
    Unsure,
}

struct View {
    at: usize,
    next: u16,
    l4: Option<TransportHeader>,
    tags: u8,
}

struct TransportHeader {
    at: usize,
    protocol: u8,
    length: usize,
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn natural_class(value: u16) -> u32 {
    if value == 0 { NATURAL_ZERO_CLASS } else { value.into() }
}

fn eth(packet: &Packet<'_>, view: &mut View) -> Result<u32, NoAnswer> {
    let inline = be16(packet.bytes, 12).ok_or(NoAnswer::Absent("short"))?;
    view.next = packet.tag.map_or(inline, |tag| tag.protocol);
    view.at = 14;
    Ok(view.next.into())
}

fn vlan(packet: &Packet<'_>, view: &mut View) -> Result<u32, NoAnswer> {
    if !matches!(view.next, 0x8100 | 0x88a8) {
        return Err(NoAnswer::Absent("untagged"));
    }
    let metadata_tag = packet.tag.filter(|_| view.tags == 0);
    let short = NoAnswer::Absent("short");
    let tci = match metadata_tag {
        Some(tag) => {
            view.next = be16(packet.bytes, 12).ok_or(short)?;
            tag.tci
        }
        None => {
            view.next = be16(packet.bytes, view.at + 2).ok_or(short)?;
            view.at += 4;
            be16(packet.bytes, view.at - 4).ok_or(NoAnswer::Absent("short"))?
        }
    };
    view.tags += 1;
    Ok(natural_class(tci & 0xfff))
}

fn ip(packet: &Packet<'_>, view: &mut View) -> Result<u32, NoAnswer> {
    let bytes = packet.bytes.get(view.at..).unwrap_or(&[]);
    let (class, l4) = match view.next {
        0x0800 => (4, ipv4(bytes)?),
        0x86dd => (6, ipv6(bytes)?),
        _ => return Err(NoAnswer::Absent("other")),
    };
    view.at += l4.at;
    view.l4 = Some(TransportHeader { at: view.at, ..l4 });
    Ok(class)
}

fn ipv4(bytes: &[u8]) -> Result<TransportHeader, NoAnswer> {
    let header: &[u8; 20] = bytes.first_chunk().ok_or(NoAnswer::Absent("short"))?;
    let words = usize::from(header[0] & 15) * 4;
    if header[0] >> 4 != 4 || words < 20 {
        return Err(NoAnswer::Absent("malformed"));
    }
    if be16(header, 6).unwrap_or(0) & 0x3fff != 0 {
        return Err(NoAnswer::Unsure);
    }
    let length = match usize::from(be16(header, 2).unwrap_or(0)) {
        0 => usize::MAX,
        total => total.checked_sub(words).ok_or(NoAnswer::Absent("malformed"))?,
    };
    Ok(TransportHeader { at: words, protocol: header[9], length })
}

fn ipv6(bytes: &[u8]) -> Result<TransportHeader, NoAnswer> {
    let header: &[u8; 40] = bytes.first_chunk().ok_or(NoAnswer::Absent("short"))?;
    if header[0] >> 4 != 6 {
        return Err(NoAnswer::Absent("malformed"));
    }
    let stated = usize::from(be16(header, 4).unwrap_or(0));
    let length = if stated == 0 { usize::MAX } else { stated };
    let mut l4 = TransportHeader { at: 40, protocol: header[6], length };
    for _ in 0..EXTENSION_HEADERS_MAX {
        match l4.protocol {
            0 | 43 | 60 => {}
            44 => return Err(NoAnswer::Unsure),
            _ => return Ok(l4),
        }
        let [next, units] =
            *bytes.get(l4.at..).and_then(|b| b.first_chunk()).ok_or(NoAnswer::Absent("short"))?;
        let size = (usize::from(units) + 1) * 8;
        l4.length = l4.length.checked_sub(size).ok_or(NoAnswer::Absent("malformed"))?;
        l4.at += size;
        l4.protocol = next;
    }
    if matches!(l4.protocol, 0 | 43 | 44 | 60) { Err(NoAnswer::Unsure) } else { Ok(l4) }
}

fn udp(packet: &Packet<'_>, view: &mut View) -> Result<u32, NoAnswer> {
    let l4 = view.l4.as_ref().ok_or(NoAnswer::Absent("other"))?;
    if l4.protocol != 17 {
        return Err(NoAnswer::Absent("other"));
    }
    if l4.length < 8 || packet.bytes.len() < l4.at + 8 {
        return Err(NoAnswer::Absent("short"));
    }
    view.at = l4.at + 8;
    Ok(1)
}

fn dport(packet: &Packet<'_>, view: &mut View) -> Result<u32, NoAnswer> {
    let no_port = || NoAnswer::Absent("no_port");
    let l4 = view.l4.as_ref().ok_or_else(no_port)?;
    if !matches!(l4.protocol, 6 | 17) || l4.length < 4 {
        return Err(no_port());
    }
    be16(packet.bytes, l4.at + 2).map(natural_class).ok_or_else(no_port)
}
