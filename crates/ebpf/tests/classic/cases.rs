//! The external test cases: their directory, a reader for captures, and a resolver for the host and
//! network names in the cases.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ebpf::classic::{LinkType, Resolver};
use serde_json::Value;

use super::frames::Frame;

/// Returns the directory of the external test cases. If it is missing, reports this for the test
/// named `test` and returns `None`.
pub(crate) fn case_folder(test: &str) -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("STREAMLINE_CORPUS") {
        return Some(PathBuf::from(named));
    }
    // Crates are at different depths of the repository.
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let mut folders = above.map(|folder| folder.join("../shared/cases"));
    if let Some(folder) = folders.find(|folder| folder.join("libpcap-filter").is_dir()) {
        return Some(folder);
    }
    println!("skipped: {test}: ../shared/cases is not here");
    None
}

/// Reads a JSON table of the libpcap cases, such as `accept.json`.
pub(crate) fn read_table(folder: &Path, name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("libpcap-filter").join(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

pub(crate) fn text_value<'a>(case: &'a Value, key: &str) -> Option<&'a str> {
    case.get(key)?.as_str()
}

/// The link type, snap length and frames of a capture file.
pub(crate) struct Capture {
    pub(crate) link: LinkType,
    pub(crate) snaplen: u32,
    pub(crate) frames: Vec<Frame>,
}

/// Reads a file in the classic pcap format; returns `None` for any other file.
pub(crate) fn read_capture(path: &Path) -> Option<Capture> {
    let file = std::fs::read(path).ok()?;
    let word = |at: usize, swap: bool| -> Option<u32> {
        let bytes: [u8; 4] = file.get(at..at + 4)?.try_into().ok()?;
        Some(if swap { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    };
    let swap = match word(0, false)? {
        0xa1b2_c3d4 | 0xa1b2_3c4d => false,
        0xd4c3_b2a1 | 0x4d3c_b2a1 => true,
        _ => return None,
    };
    let snaplen = word(16, swap)?;
    let link = LinkType::from_file_number(word(20, swap)? & 0x03ff_ffff);
    let mut frames = Vec::new();
    let mut at = 24;
    while let (Some(length), Some(wire_length)) = (word(at + 8, swap), word(at + 12, swap)) {
        let Some(bytes) = file.get(at + 16..at + 16 + length as usize) else { break };
        frames.push(Frame { bytes: bytes.to_vec(), wire_length });
        at += 16 + length as usize;
    }
    Some(Capture { link, snaplen, frames })
}

/// Returns the frames of all captures in the external test cases, with their link types.
pub(crate) fn all_frames(folder: &Path) -> Vec<(LinkType, Frame)> {
    let mut frames = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        let mut entries: Vec<_> =
            std::fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "pcap" || e == "cap")
                && let Some(capture) = read_capture(&path)
            {
                let link = capture.link;
                frames.extend(capture.frames.into_iter().map(|frame| (link, frame)));
            }
        }
    }
    frames
}

/// A resolver for the hosts and networks that libpcap's tests install in `/etc`.
#[derive(Debug)]
pub(crate) struct InstalledNames;

impl Resolver for InstalledNames {
    fn resolve_host(&self, name: &str) -> Result<Vec<IpAddr>, String> {
        let name = name.to_ascii_lowercase();
        let Some((kind, host)) = name.strip_suffix(".libpcap.test").and_then(|n| n.split_once('.'))
        else {
            return Err("only hosts of the tests are known".to_owned());
        };
        let addresses: &[&str] = match host {
            "host123" => &["10.20.30.40", "fd00:a1b2:c3d4::1020:3040:5060:7080"],
            "host357" => &[
                "192.168.241.3",
                "192.168.242.4",
                "192.168.243.1",
                "192.168.244.2",
                "fd00:a1b2:c3d4::a0b0:c0d0:e0f0:1278",
                "fd00:a1b2:c3d4::a0b0:c0d0:e0f0:3456",
            ],
            _ => return Err("no such host".to_owned()),
        };
        let addresses = addresses.iter().map(|address| address.parse().unwrap());
        Ok(addresses
            .filter(|address: &IpAddr| match address {
                IpAddr::V4(_) => !kind.contains("noipv4"),
                IpAddr::V6(_) => !kind.contains("noipv6"),
            })
            .collect())
    }

    fn resolve_network(&self, name: &str) -> Option<u32> {
        match name.to_ascii_lowercase().as_str() {
            "net-10-0-0-0.libpcap.test" => Some(0x0a00_0000),
            "net-10-20-0-0.libpcap.test" => Some(0x0a14_0000),
            _ => None,
        }
    }

    fn resolve_link_address(&self, name: &str) -> Option<[u8; 6]> {
        let name = name.to_ascii_lowercase();
        match name.strip_suffix(".libpcap.test")?.strip_prefix("eth-")?.split_once('.')?.1 {
            "host123" => Some([0xaa, 0x00, 0x04, 0x00, 0x14, 0x0e]),
            "host357" => Some([0xaa, 0x00, 0x04, 0x00, 0x01, 0x08]),
            _ => None,
        }
    }
}
