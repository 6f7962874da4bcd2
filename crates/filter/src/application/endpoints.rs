//! Text fields that message descriptions share: the endpoints of a message, and values in their
//! `Display` format.

use crate::contract::Block;
use crate::layers;
use std::fmt::{self, Write as _};
use std::net::IpAddr;
use wire::record::{Field, Writer};

/// Maximum length in bytes of a value in its `Display` format. Longer text is truncated.
const TEXT_SIZE_MAX: usize = 1024;

/// Addresses and ports of the client and the server of a connection or datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Endpoints {
    client: (IpAddr, u16),
    server: (IpAddr, u16),
}

impl Endpoints {
    /// Reads the endpoints from the headers of a block's frame. `backward` means that the server
    /// sent the frame. Returns `None` for a block without a frame, and for a frame without
    /// addresses or ports.
    pub(super) fn from_block(mut block: Block<'_>, backward: bool) -> Option<Self> {
        if !block.marks.is_frame() || block.pointer.is_hole() {
            return None;
        }
        let protocol = layers::transport(&mut block).ok()?.protocol;
        let ports = layers::ports(&mut block).ok()??;
        let flow = layers::flow(&block, protocol, ports)?;
        let (sender, receiver) = ((flow.source, ports.source), (flow.target, ports.target));
        Some(match backward {
            false => Self { client: sender, server: receiver },
            true => Self { client: receiver, server: sender },
        })
    }

    /// Writes the addresses and ports as fields of a description.
    pub(super) fn write(&self, writer: &mut Writer<'_>) {
        write_address(writer, Field::Client, self.client.0);
        writer.add_number(Field::ClientPort, self.client.1.into());
        write_address(writer, Field::Server, self.server.0);
        writer.add_number(Field::ServerPort, self.server.1.into());
    }
}

fn write_address(writer: &mut Writer<'_>, field: Field, address: IpAddr) {
    match address {
        IpAddr::V4(address) => writer.add_text(field, &address.octets()),
        IpAddr::V6(address) => writer.add_text(field, &address.octets()),
    }
}

/// Writes the value as text, in its `Display` format. If the text is truncated, marks the record.
pub(super) fn write_display(writer: &mut Writer<'_>, field: Field, value: impl fmt::Display) {
    let mut text = BoundedText { bytes: [0; TEXT_SIZE_MAX], used: 0 };
    if write!(text, "{value}").is_err() {
        writer.mark_truncated();
    }
    writer.add_text(field, text.bytes.get(..text.used).unwrap_or_default());
}

/// A text buffer of bounded size. Writing beyond its end fails, which stops formatting.
struct BoundedText {
    bytes: [u8; TEXT_SIZE_MAX],
    used: usize,
}

impl fmt::Write for BoundedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.used..).unwrap_or_default();
        let length = text.len().min(room.len());
        if let (Some(to), Some(from)) = (room.get_mut(..length), text.as_bytes().get(..length)) {
            to.copy_from_slice(from);
        }
        self.used += length;
        if length == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}
