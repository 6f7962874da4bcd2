//! The link types that a capture names at its beginning, before anything of it is given.

use filter::Arguments;
use std::fs::{self, File};
use std::io::Read;
use wire::LinkType;
use wire::capture::{Reader, Step};

/// Bytes of a capture that are examined.
const LOOKED_AT: u64 = 1 << 20;

/// The link types that the beginning of a capture names; of one in pcapng those of all interfaces
/// that it describes there. Nothing but a regular file is opened: a pipe that is opened and closed
/// again would end its writer.
pub(super) fn links(arguments: &Arguments) -> Option<Vec<LinkType>> {
    let path = arguments.text("file").filter(|path| *path != "-")?;
    if !fs::metadata(path).is_ok_and(|found| found.is_file()) {
        return None;
    }
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(LOOKED_AT).read_to_end(&mut bytes).ok()?;
    let (mut reader, mut links, mut rest) = (Reader::new(), Vec::new(), bytes.as_slice());
    loop {
        let step = reader.next(rest);
        for link in reader.links() {
            if !links.contains(&link) {
                links.push(link);
            }
        }
        match step {
            Step::Packet(packet) => rest = rest.get(packet.consumed..).unwrap_or_default(),
            Step::NeedMore { .. } | Step::Error(_) => return Some(links),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;
    use filter::Value;
    use wire::capture::write;

    fn named(path: &str) -> Option<Vec<LinkType>> {
        let mut arguments = Arguments::default();
        arguments.set("file", Value::Text(path.to_owned()));
        links(&arguments)
    }

    /// A block of pcapng in little-endian order.
    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(12 + body.len()).unwrap().to_le_bytes();
        [&kind.to_le_bytes(), &length[..], body, &length].concat()
    }

    fn section() -> Vec<u8> {
        block(
            0x0a0d_0d0a,
            &[&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat(),
        )
    }

    fn interface(link: u16) -> Vec<u8> {
        block(1, &[&link.to_le_bytes()[..], &[0; 6]].concat())
    }

    fn packet(interface: u32) -> Vec<u8> {
        let words = [interface, 0, 0, 4, 4, 0].map(u32::to_le_bytes);
        block(6, &words.concat())
    }

    #[test]
    fn captures_name_their_link_types_before_they_are_read() {
        let dir = TempDir::new();
        let of = |bytes: &[u8]| {
            let path = dir.path("x");
            fs::write(&path, bytes).unwrap();
            named(&path)
        };
        let wlan = LinkType(105);
        assert_eq!(of(&write::header(wlan)), Some(vec![wlan]));
        // One that is described behind the first packet, and one in another section.
        let several = [
            section(),
            interface(105),
            packet(0),
            interface(1),
            packet(1),
            section(),
            interface(101),
            interface(1),
        ];
        let all = vec![wlan, LinkType::ETHERNET, LinkType::RAW];
        assert_eq!(of(&several.concat()), Some(all));
        assert_eq!(of(b"no capture"), Some(vec![]));
        assert_eq!(of(b""), Some(vec![]));
        assert_eq!(named(&dir.path("none")), None);
        assert_eq!(named("-"), None);
    }

    /// The writer of a pipe must not see a reader come and go.
    #[test]
    fn pipes_are_not_opened_ahead() {
        let dir = TempDir::new();
        let path = dir.path("fifo");
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert_eq!(named(&path), None);
        assert_eq!(named(&dir.path("")), None, "a folder");
    }
}
