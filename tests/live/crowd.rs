//! More lines at one interface than one program takes: those that find no room get a program of
//! their own, and nobody notices anything.

use crate::send::send_all;
use crate::shared::{Running, chain, datagrams, reports, silent};
use engine::kernel::point::Points;
use engine::run::Outcome;
use testkit::net::{Pair, SERVER_DEVICE};

/// A program takes 64 maps: two of its own, one for the owner, three for each of these lines.
const LINES: usize = 24;
const FIT: usize = 20;
/// Frames sent; one in four goes to port 53.
const FRAMES: usize = 80;

fn start(pair: &Pair, points: &Points) -> Running {
    Running::start(pair, points, &format!("rx {SERVER_DEVICE} | ip | udp | dport |53 count"))
}

fn counted(outcome: &Outcome) -> u64 {
    reports(outcome)["count"][0].1
}

/// Returns the number of lines of each program, ascending.
fn lines(points: &Points) -> Vec<usize> {
    let mut lines: Vec<usize> = points.shown().iter().map(|(_, shown)| shown.lines).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn o6_lines_that_find_no_room_in_a_program_get_another_one() {
    let Some(pair) = silent() else { return };
    let points = Points::default();
    let each = (FRAMES / 4) as u64;
    let mut running: Vec<Running> = (0..LINES).map(|_| start(&pair, &points)).collect();
    assert_eq!(lines(&points), [LINES - FIT, FIT]);
    assert_eq!(chain(&pair).len(), 2, "two programs, one after the other");
    let shown = points.shown();
    let mut numbers: Vec<u32> =
        shown.iter().flat_map(|(_, shown)| shown.each.iter().map(|line| line.number)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), LINES, "each has a number of its own: {shown:?}");
    send_all(&pair, &datagrams(FRAMES));
    // Those that came first go, and make room in the first program.
    let rest = running.split_off(FIT / 2);
    for line in running {
        assert_eq!(counted(&line.stop()), each);
    }
    assert_eq!(lines(&points), [LINES - FIT, FIT / 2]);
    let late: Vec<Running> = (0..3).map(|_| start(&pair, &points)).collect();
    assert_eq!(lines(&points), [LINES - FIT, FIT / 2 + 3], "where there is room again");
    assert_eq!(chain(&pair).len(), 2);
    send_all(&pair, &datagrams(FRAMES));
    for line in rest {
        assert_eq!(counted(&line.stop()), 2 * each, "every frame once");
    }
    for line in late {
        assert_eq!(counted(&line.stop()), each);
    }
    assert!(chain(&pair).is_empty(), "nothing stays");
}
