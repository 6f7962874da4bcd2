//! Test of more requests at one interface than fit into one program. The excess requests run in a
//! second program, and the results of all requests are complete.

use crate::frame_sending::send_all;
use crate::shared_program::{
    RunningRequest, attached_program_ids, datagrams, quiet_pair, reports_by_filter,
};
use engine::kernel::shared_attach_point::AttachPoints;
use engine::run::RunOutcome;
use testkit::net::{NamespacePair, SERVER_DEVICE};

/// Number of requests, more than fit into one kernel program. Such a program has at most 64 maps:
/// two of its own, one for each owner of a request, and three for each request of this test.
const REQUEST_COUNT: usize = 24;
/// Number of requests that fit into one kernel program.
const REQUESTS_PER_PROGRAM: usize = 20;
/// Number of frames sent; one in four goes to port 53.
const FRAMES_SENT: usize = 80;

fn start_request(pair: &NamespacePair, points: &AttachPoints) -> RunningRequest {
    RunningRequest::start(pair, points, &format!("rx {SERVER_DEVICE} | ip | udp | dport |53 count"))
}

fn frames_counted(outcome: &RunOutcome) -> u64 {
    reports_by_filter(outcome)["count"][0].1
}

/// Returns the number of requests in each program, in ascending order.
fn requests_per_program(points: &AttachPoints) -> Vec<usize> {
    let mut lines: Vec<usize> =
        points.status().iter().map(|(_, program)| program.request_count).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn o6_requests_beyond_a_full_program_get_a_second_program() {
    let Some(pair) = quiet_pair() else { return };
    let points = AttachPoints::default();
    let each = (FRAMES_SENT / 4) as u64;
    let mut running: Vec<RunningRequest> =
        (0..REQUEST_COUNT).map(|_| start_request(&pair, &points)).collect();
    assert_eq!(
        requests_per_program(&points),
        [REQUEST_COUNT - REQUESTS_PER_PROGRAM, REQUESTS_PER_PROGRAM]
    );
    assert_eq!(attached_program_ids(&pair).len(), 2, "two programs, one after the other");
    let program = points.status();
    let mut numbers: Vec<u32> = program
        .iter()
        .flat_map(|(_, program)| program.requests.iter().map(|line| line.number))
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), REQUEST_COUNT, "each has a number of its own: {program:?}");
    send_all(&pair, &datagrams(FRAMES_SENT));
    // The earliest requests end, and make room in the first program.
    let rest = running.split_off(REQUESTS_PER_PROGRAM / 2);
    for line in running {
        assert_eq!(frames_counted(&line.stop()), each);
    }
    assert_eq!(
        requests_per_program(&points),
        [REQUEST_COUNT - REQUESTS_PER_PROGRAM, REQUESTS_PER_PROGRAM / 2]
    );
    let late: Vec<RunningRequest> = (0..3).map(|_| start_request(&pair, &points)).collect();
    assert_eq!(
        requests_per_program(&points),
        [REQUEST_COUNT - REQUESTS_PER_PROGRAM, REQUESTS_PER_PROGRAM / 2 + 3],
        "where there is room again"
    );
    assert_eq!(attached_program_ids(&pair).len(), 2);
    send_all(&pair, &datagrams(FRAMES_SENT));
    for line in rest {
        assert_eq!(frames_counted(&line.stop()), 2 * each, "every frame once");
    }
    for line in late {
        assert_eq!(frames_counted(&line.stop()), each);
    }
    assert!(attached_program_ids(&pair).is_empty(), "nothing stays");
}
