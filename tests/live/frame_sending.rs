//! Functions that send frames over a veth pair unchanged, and read frames from captures.

use crate::scratch::Scratch;
use sys::packet::{PacketSender, QdiscMode};
use testkit::net::{
    CLIENT_DEVICE, Namespace, NamespacePair, SERVER_DEVICE, device_counters, wait_until,
    wait_until_received,
};

/// Sends frames from a device in the given order, each once, and all from one processor: the other
/// end of a veth pair has a queue per processor, so frames from several processors could arrive in
/// another order.
pub(crate) fn send_frames(space: &Namespace, device: &str, frames: &[Vec<u8>]) {
    let listing = space.run_ip(&format!("-o link show dev {device}"));
    let index = listing.split(':').next().and_then(|number| number.parse().ok()).expect("a number");
    space.run_in_network_namespace(|| {
        let processors = sys::process::allowed_processors().expect("this thread has some");
        sys::process::pin_to_processor(processors[0]).expect("one of its own");
        let mut sender = PacketSender::open(index, QdiscMode::Through).expect("root may send");
        let mut rest: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        wait_until("all frames are sent", || {
            let sent = sender.send(&rest);
            rest.drain(..sent.frames);
            rest.is_empty()
        });
    });
}

/// Sends frames from the client, and waits until the server's device has received and delivered all
/// of them.
pub(crate) fn send_all(pair: &NamespacePair, frames: &[Vec<u8>]) {
    let device = device_counters(&pair.server, SERVER_DEVICE).expect("the device is there");
    let before = device.received + device.receive_dropped;
    send_frames(&pair.client, CLIENT_DEVICE, frames);
    wait_until_received(&pair.server, SERVER_DEVICE, before + frames.len() as u64);
}

/// Returns the frames of a capture, in order.
pub(crate) fn parse_capture(capture: &[u8]) -> Vec<Vec<u8>> {
    wire::capture::packets(capture).map_while(Result::ok).map(|(_, frame)| frame.to_vec()).collect()
}

/// Writes frames to a capture file; returns its path.
pub(crate) fn write_capture(
    scratch: &Scratch,
    name: &str,
    frames: &[Vec<u8>],
) -> std::path::PathBuf {
    use wire::capture::write;
    let mut file = write::encode_file_header(wire::LinkType::ETHERNET).to_vec();
    for frame in frames {
        let length = u32::try_from(frame.len()).expect("a frame");
        file.extend(write::encode_record_header(0, length, length));
        file.extend(frame);
    }
    let path = scratch.path(name);
    std::fs::write(&path, file).expect("a file");
    path
}

/// Returns the length in bytes of a capture of these frames.
pub(crate) fn capture_length(frames: &[Vec<u8>]) -> u64 {
    let bytes: usize = frames.iter().map(|frame| frame.len() + 16).sum();
    24 + bytes as u64
}
