//! Tests that forged connection state with impossible values does not stall the filter (decision
//! 0041).

use super::super::TCP;
use super::super::connection::TcpConnection;
use super::*;
use crate::contract::PRIVATE_SESSION_KEY;
use crate::testing::{Arena, Node, Space};
use zerocopy::{FromBytes as _, IntoBytes as _};

/// Forged state contains held data that precedes the emitted data and exceeds the limit. Each
/// arriving segment then drops a held block.
#[test]
fn held_data_before_emitted_data_is_dropped() {
    let arena = Arena::new(16);
    let mut space = Space::new(&arena);
    let mut node = Node::new(&TCP, &[]).unwrap();
    node.process_batch(
        space.batch(&with_handshake([client_segment(0, 105, b"held")])),
        &mut space,
        0,
    );
    let mut saved = node.take_sessions();
    for moved in saved.iter_mut().filter(|moved| moved.key != PRIVATE_SESSION_KEY) {
        assert_eq!(moved.held.iter().flatten().count(), 1);
        let mut connection = TcpConnection::read_from_bytes(&moved.bytes).unwrap();
        for side in &mut connection.sides {
            (side.next, side.held_bytes) = (5000, u32::MAX);
        }
        moved.bytes = connection.as_bytes().to_vec();
    }
    let mut other = Node::new(&TCP, &[]).unwrap();
    other.restore_sessions(saved).unwrap();
    assert_eq!(other.counts.held.blocks, 1);
    let come =
        [client_segment(0, 6000, b"far"), server_segment(0, 501, b"").with_acknowledgement(6003)];
    other.process_batch(space.batch(&come), &mut space, 0);
    other.finish(&mut space, 0);
    assert_eq!(other.counts.held.blocks, 0);
}
