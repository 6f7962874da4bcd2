//! Link types that a capture declares at its beginning. The planner reads them.

use filter::Arguments;
use std::fs::{self, File};
use std::io::Read;
use wire::LinkType;
use wire::capture::{ReadOutcome, Reader};

/// Number of bytes at the start of a capture that are searched for link types.
const EXAMINED_BYTES_MAX: u64 = 1 << 20;

/// Returns the link types declared in the first mebibyte of a capture; for pcapng, the link types
/// of all interfaces described there. Returns `None` unless the input is a readable regular file:
/// opening and closing a pipe would send SIGPIPE to its writer.
pub(super) fn declared_link_types(arguments: &Arguments) -> Option<Vec<LinkType>> {
    let path = arguments.text("file").filter(|path| *path != "-")?;
    if !fs::metadata(path).is_ok_and(|found| found.is_file()) {
        return None;
    }
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(EXAMINED_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let (mut reader, mut links, mut rest) = (Reader::new(), Vec::new(), bytes.as_slice());
    loop {
        let step = reader.next(rest);
        for link in reader.link_types() {
            if !links.contains(&link) {
                links.push(link);
            }
        }
        match step {
            ReadOutcome::Packet(packet) => rest = rest.get(packet.consumed..).unwrap_or_default(),
            ReadOutcome::NeedMore { .. } | ReadOutcome::Error(_) => return Some(links),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;
    use filter::Value;
    use wire::capture::write;

    fn link_types_of_file(path: &str) -> Option<Vec<LinkType>> {
        let mut arguments = Arguments::default();
        arguments.set("file", Value::Text(path.to_owned()));
        declared_link_types(&arguments)
    }

    /// Returns a little-endian pcapng block.
    fn pcapng_block(kind: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(12 + body.len()).unwrap().to_le_bytes();
        [&kind.to_le_bytes(), &length[..], body, &length].concat()
    }

    fn section_block() -> Vec<u8> {
        pcapng_block(
            0x0a0d_0d0a,
            &[&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat(),
        )
    }

    fn interface_block(link: u16) -> Vec<u8> {
        pcapng_block(1, &[&link.to_le_bytes()[..], &[0; 6]].concat())
    }

    fn encode_packet_block(interface: u32) -> Vec<u8> {
        let words = [interface, 0, 0, 4, 4, 0].map(u32::to_le_bytes);
        pcapng_block(6, &words.concat())
    }

    #[test]
    fn link_types_are_known_before_replay() {
        let dir = TempDir::new();
        let of = |bytes: &[u8]| {
            let path = dir.path("x");
            fs::write(&path, bytes).unwrap();
            link_types_of_file(&path)
        };
        let wlan = LinkType(105);
        assert_eq!(of(&write::encode_file_header(wlan)), Some(vec![wlan]));
        // One interface is described after the first packet, and two interfaces in another section.
        let several = [
            section_block(),
            interface_block(105),
            encode_packet_block(0),
            interface_block(1),
            encode_packet_block(1),
            section_block(),
            interface_block(101),
            interface_block(1),
        ];
        let all = vec![wlan, LinkType::ETHERNET, LinkType::RAW];
        assert_eq!(of(&several.concat()), Some(all));
        assert_eq!(of(b"no capture"), Some(vec![]));
        assert_eq!(of(b""), Some(vec![]));
        assert_eq!(link_types_of_file(&dir.path("none")), None);
        assert_eq!(link_types_of_file("-"), None);
    }

    /// Checks that a FIFO is not opened, because its writer would receive SIGPIPE when the FIFO is
    /// closed again.
    #[test]
    fn link_type_lookup_does_not_open_pipes() {
        let dir = TempDir::new();
        let path = dir.path("fifo");
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert_eq!(link_types_of_file(&path), None);
        assert_eq!(link_types_of_file(&dir.path("")), None, "a folder");
    }
}
