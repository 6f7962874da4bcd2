//! Tests of hand-overs within one process, between ends that share only descriptors.

use super::*;
use crate::Fault;
use crate::stream::joinable_stream;
use crate::stream::tests::open;
use sys::doorbell::SendResult;

fn stream_config(policy: OverflowPolicy) -> Config {
    Config::new(DbufId::new(3).unwrap()).capacity(4096).policy(policy)
}

/// Rebuilds a hand-over from its message and descriptors, as if it had been sent over a socket.
fn transfer(handover: &Handover) -> Handover {
    let copies = handover.descriptors().iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
    Handover::from_parts(&handover.message(), copies).unwrap()
}

/// The stream is handed over repeatedly. Readers receive every byte and notice no change.
#[test]
fn stream_continues_with_another_writer() {
    for policy in [OverflowPolicy::Block, OverflowPolicy::DropNew, OverflowPolicy::Overwrite] {
        let (mut output, mut inputs) = open(&stream_config(policy).readers(2));
        for hand in 0..10u8 {
            assert!(output.write(&[hand; 100]).unwrap());
            assert!(output.write(&[hand; 50]).unwrap());
            output = {
                let handover = output.hand_over().unwrap();
                let successor = transfer(&handover);
                drop(handover);
                successor.open().unwrap()
            };
            // The first reader reads immediately, the second only after the last hand-over.
            let mut out = [0; 100];
            assert_eq!(inputs[0].read(&mut out).unwrap(), 100);
            assert_eq!(inputs[0].read(&mut out[..50]).unwrap(), 50);
            assert_eq!(out[..50], [hand; 50]);
            assert_eq!(inputs[0].try_read(&mut out).unwrap(), None);
        }
        assert_eq!((output.counts().blocks, output.segment_number()), (20, 10));
        drop(output);
        let mut all = 0;
        loop {
            match inputs[1].read(&mut [0; 100]).unwrap() {
                0 => break,
                count => all += count,
            }
        }
        assert_eq!((all, inputs[1].counts().blocks), (1500, 20));
        assert_eq!(inputs[0].read(&mut [0; 9]), Ok(0), "the end");
    }
}

/// A reader whose doorbell is full is disconnected. Later readers receive the new segment.
#[test]
fn unreachable_reader_does_not_cut_off_later_readers() {
    let (mut output, mut inputs) = open(&stream_config(OverflowPolicy::Block).readers(3));
    output.write(b"before").unwrap();
    let handover = output.hand_over().unwrap();
    let doorbell = SocketDoorbell::from(handover.reader_descriptors[1].1.try_clone().unwrap());
    while doorbell.send(&[2; 8], &[]) == SendResult::Queued {}
    let mut output = transfer(&handover).open().unwrap();
    drop((handover, doorbell));
    output.write(b"after!").unwrap();
    drop(output);
    for number in [0, 2] {
        let mut read = [0; 12];
        assert_eq!(inputs[number].read(&mut read[..6]), Ok(6));
        assert_eq!(inputs[number].read(&mut read[6..]), Ok(6), "reader {number}");
        assert_eq!(&read, b"beforeafter!");
        assert_eq!(inputs[number].read(&mut read), Ok(0), "the end");
    }
}

/// Readers that joined a running stream are handed over after admission has ended.
#[test]
fn joined_readers_are_handed_over() {
    let (mut output, admission) = joinable_stream(&stream_config(OverflowPolicy::Block)).unwrap();
    output.write(b"before anybody came").unwrap();
    output.flush();
    let join = || admission.admit().unwrap().unwrap().1.open().unwrap();
    let mut early = join();
    output.write(b"first").unwrap();
    output.flush();
    // This reader joins between two checks of the writer.
    let mut late = join();
    output.resize(8192).unwrap();
    output.write(b"second").unwrap();
    drop(admission);
    let mut output = transfer(&output.hand_over().unwrap()).open().unwrap();
    output.write(b"third").unwrap();
    drop(output);
    for (input, expected) in [(&mut early, "firstsecondthird"), (&mut late, "secondthird")] {
        let (mut all, mut out) = (Vec::new(), [0; 100]);
        loop {
            match input.read(&mut out).unwrap() {
                0 => break,
                count => all.extend_from_slice(&out[..count]),
            }
        }
        assert_eq!(String::from_utf8(all).unwrap(), expected);
    }
    // While readers can still join, the stream cannot be handed over.
    let (output, _admission) = joinable_stream(&stream_config(OverflowPolicy::Block)).unwrap();
    assert_eq!(output.hand_over().unwrap_err(), ChangeError::Admission);
}

#[test]
fn reader_waits_for_successor_until_handover_is_dropped() {
    let (mut output, mut inputs) = open(&stream_config(OverflowPolicy::Block));
    output.write(b"the last").unwrap();
    let handover = output.hand_over().unwrap();
    let input = &mut inputs[0];
    let mut out = [0; 100];
    assert_eq!(input.read(&mut out), Ok(8));
    assert_eq!(input.try_read(&mut out), Ok(None), "there may be a successor");
    let waited = input.wait(Some(std::time::Duration::from_millis(1)));
    assert_eq!(waited, Ok(crate::stream::WaitResult::NotReady));
    drop(handover);
    assert_eq!(input.read(&mut out), Err(Fault::Abandoned));
}

#[test]
fn malformed_handover_is_refused() {
    let (output, _inputs) = open(&stream_config(OverflowPolicy::Block));
    let handover = output.hand_over().unwrap();
    let message = handover.message();
    assert_eq!(message.len(), Handover::MESSAGE_LENGTH);
    for (at, value) in
        [(0, 9), (8, 9), (16, 3), (39, 0xff), (40, 1), (47, 0xff), (55, 0xff), (79, 0xff)]
    {
        let mut wrong = message.clone();
        wrong[at] = value;
        assert!(Handover::from_parts(&wrong, Vec::new()).is_err(), "{at}");
    }
    assert!(Handover::from_parts(&message[..72], Vec::new()).is_err());
    let mut odd = handover.descriptors().iter().map(|f| f.try_clone_to_owned().unwrap()).collect();
    assert!(Handover::from_parts(&message, odd).is_ok());
    odd = vec![handover.descriptors()[1].try_clone_to_owned().unwrap()];
    assert!(matches!(Handover::from_parts(&message, odd), Err(OfferRefusal::Descriptors(1))));
    // A doorbell is not a page.
    let doorbell = || handover.descriptors()[1].try_clone_to_owned().unwrap();
    let wrong = Handover::from_parts(&message, vec![doorbell(), doorbell()]).unwrap();
    assert!(wrong.open().is_err());
}
