//! Hand-overs within one process, between ends that share nothing but descriptors.

use super::*;
use crate::Fault;
use crate::stream::tests::open;

fn config(policy: Policy) -> Config {
    Config::new(DbufId::new(3).unwrap()).capacity(4096).policy(policy)
}

/// What the successor gets.
fn sent(handover: &Handover) -> Handover {
    let copies = handover.descriptors().iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
    Handover::from_parts(&handover.message(), copies).unwrap()
}

/// The stream goes from hand to hand, and readers notice nothing.
#[test]
fn a_stream_goes_on_with_another_writer() {
    for policy in [Policy::Block, Policy::DropNew, Policy::Overwrite] {
        let (mut output, mut inputs) = open(&config(policy).readers(2));
        for hand in 0..10u8 {
            assert!(output.write(&[hand; 100]).unwrap());
            assert!(output.write(&[hand; 50]).unwrap());
            output = {
                let handover = output.hand_over().unwrap();
                let successor = sent(&handover);
                drop(handover);
                successor.open().unwrap()
            };
            // One of them reads at once, the other one later.
            let mut out = [0; 100];
            assert_eq!(inputs[0].read(&mut out).unwrap(), 100);
            assert_eq!(inputs[0].read(&mut out[..50]).unwrap(), 50);
            assert_eq!(out[..50], [hand; 50]);
            assert_eq!(inputs[0].try_read(&mut out).unwrap(), None);
        }
        assert_eq!((output.count().blocks, output.segment()), (20, 10));
        drop(output);
        let mut all = 0;
        loop {
            match inputs[1].read(&mut [0; 100]).unwrap() {
                0 => break,
                count => all += count,
            }
        }
        assert_eq!((all, inputs[1].count().blocks), (1500, 20));
        assert_eq!(inputs[0].read(&mut [0; 9]), Ok(0), "the end");
    }
}

#[test]
fn a_reader_waits_for_the_successor_and_is_told_when_there_is_none() {
    let (mut output, mut inputs) = open(&config(Policy::Block));
    output.write(b"the last").unwrap();
    let handover = output.hand_over().unwrap();
    let input = &mut inputs[0];
    let mut out = [0; 100];
    assert_eq!(input.read(&mut out), Ok(8));
    assert_eq!(input.try_read(&mut out), Ok(None), "there may be a successor");
    let waited = input.wait(Some(std::time::Duration::from_millis(1)));
    assert_eq!(waited, Ok(crate::stream::Ready::Nothing));
    drop(handover);
    assert_eq!(input.read(&mut out), Err(Fault::Abandoned));
}

#[test]
fn what_is_no_handover_is_refused() {
    let (output, _inputs) = open(&config(Policy::Block));
    let handover = output.hand_over().unwrap();
    let message = handover.message();
    assert_eq!(message.len(), Handover::MESSAGE);
    for (at, value) in [(0, 9), (8, 9), (16, 3), (40, 1), (47, 0xff)] {
        let mut wrong = message.clone();
        wrong[at] = value;
        assert!(Handover::from_parts(&wrong, Vec::new()).is_err(), "{at}");
    }
    assert!(Handover::from_parts(&message[..72], Vec::new()).is_err());
    let mut odd = handover.descriptors().iter().map(|f| f.try_clone_to_owned().unwrap()).collect();
    assert!(Handover::from_parts(&message, odd).is_ok());
    odd = vec![handover.descriptors()[1].try_clone_to_owned().unwrap()];
    assert!(matches!(Handover::from_parts(&message, odd), Err(Refusal::Descriptors(1))));
    // A bell is no page.
    let bell = || handover.descriptors()[1].try_clone_to_owned().unwrap();
    let wrong = Handover::from_parts(&message, vec![bell(), bell()]).unwrap();
    assert!(wrong.open().is_err());
}
