//! Tests of pipe ends that are opened in different places, closed without being opened, or opened
//! twice.

use super::*;

fn pipe_config() -> Config {
    Config::new(DbufId::new(9).unwrap()).capacity(4096)
}

#[test]
fn d9_each_read_end_has_its_own_position() {
    let mut ends = mpipe(4, &pipe_config()).unwrap();
    let readers: Vec<_> = ends.split_off(1);
    let reading: Vec<_> = readers
        .into_iter()
        .enumerate()
        .map(|(number, end)| {
            std::thread::spawn(move || {
                let mut input = open_read_end(end).unwrap().unwrap();
                let (mut all, mut out) = (Vec::new(), vec![0; 7 + number * 100]);
                loop {
                    match input.read(&mut out).unwrap() {
                        0 => return all,
                        count => all.extend_from_slice(&out[..count]),
                    }
                }
            })
        })
        .collect();
    let (mut output, _) = open_write_end(ends.remove(0)).unwrap();
    let mut sent = Vec::new();
    for at in 0..5000u32 {
        let block = at.to_le_bytes().repeat(1 + at as usize % 50);
        assert!(output.write(&block).unwrap());
        sent.extend_from_slice(&block);
    }
    drop(output);
    for reader in reading {
        assert!(reader.join().unwrap() == sent, "every reader has everything");
    }
}

/// Opening the writing end creates the ring, possibly not in the process that configured the ring.
#[test]
fn f6_only_a_pipe_without_a_fixed_capacity_sizes_itself() {
    for (config, fixed) in
        [(pipe_config(), true), (Config::new(pipe_config().ring.id).self_sizing(), false)]
    {
        let mut ends = mpipe(2, &config).unwrap();
        let (output, _) = open_write_end(ends.remove(0)).unwrap();
        assert_eq!(output.sizing_state().is_none(), fixed);
        assert_eq!(output.capacity() == 4096, fixed);
    }
}

#[test]
fn unopened_ends_may_be_closed() {
    let mut ends = mpipe(3, &pipe_config()).unwrap();
    drop(ends.remove(0));
    assert!(open_read_end(ends.remove(0)).unwrap().is_none(), "no writer");
    let mut ends = mpipe(3, &pipe_config()).unwrap();
    let kept = ends.pop().unwrap();
    drop(ends.pop());
    let (mut output, _) = open_write_end(ends.remove(0)).unwrap();
    let mut input = open_read_end(kept).unwrap().unwrap();
    for at in 0..1000u32 {
        assert!(output.write(&at.to_le_bytes()).unwrap(), "nobody waits for the one that is gone");
        output.flush();
        let mut out = [0; 4];
        assert_eq!((input.read(&mut out).unwrap(), out), (4, at.to_le_bytes()));
    }
    drop(input);
    let fault = (0..10_000).find_map(|_| output.write(&[0; 100]).err());
    assert_eq!(fault, Some(Fault::Abandoned));
}

#[test]
fn end_opens_once_and_only_in_its_direction() {
    for n in [0, 1, PIPE_ENDS_MAX + 1, usize::MAX] {
        assert_eq!(mpipe(n, &pipe_config()).unwrap_err(), PipeError::Ends(n));
    }
    assert_eq!(mpipe(PIPE_ENDS_MAX, &pipe_config()).unwrap().len(), PIPE_ENDS_MAX);
    let mut ends = mpipe(2, &pipe_config()).unwrap();
    let again = ends[0].try_clone().unwrap();
    let _output = open_write_end(ends.remove(0)).unwrap();
    assert_eq!(open_write_end(again).unwrap_err(), PipeError::AlreadyOpened);
    let mut ends = mpipe(2, &pipe_config()).unwrap();
    let same = ends[0].try_clone().unwrap();
    assert_eq!(open_read_end(ends.remove(0)).unwrap_err(), PipeError::NotAPipeEnd);
    drop(open_write_end(same).unwrap());
    let file = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(open_read_end(file.into()).unwrap_err(), PipeError::NotAPipeEnd);
    let (one, other) = descriptor::socket_pair().unwrap();
    descriptor::send(&one, b"no end", &[]).unwrap();
    assert_eq!(open_write_end(other).unwrap_err(), PipeError::NotAPipeEnd);
}
