//! Tests of readers that are too slow: tcpdump counts each packet either as captured or as dropped.

use super::*;

/// Number of datagrams sent to a stopped reader. It exceeds the capacity of the rings.
const DATAGRAMS_SENT: u64 = 2000;
/// Number of datagrams sent to a stopped reader, more than 16 rings of 256 KB can hold. After so
/// many datagrams, the kernel program assumes that the reader has exited, and stops copying.
const DATAGRAMS_BEYOND_READER_LIMIT: u64 = 8000;

/// Sends a signal, such as `-STOP`, to the program of an observer.
pub(super) fn signal_program(observer: &CaptureProgram, name: &str) {
    let number = observer.process.0.id().to_string();
    assert!(Command::new("kill").args([name, &number]).status().unwrap().success());
}

/// Waits until the program is in one of the states `states`, given as letters of proc_pid_stat(5).
pub(super) fn wait_for_process_state(observer: &CaptureProgram, states: &str) {
    let path = format!("/proc/{}/stat", observer.process.0.id());
    wait_until(&format!("the program is in a state of {states}"), || {
        let text = std::fs::read_to_string(&path).unwrap();
        let state = text.rsplit(')').next().and_then(|rest| rest.trim().chars().next());
        state.is_some_and(|state| states.contains(state))
    });
}

/// Returns the latest counts in the output of tcpdump: captured, received and dropped packets.
pub(super) fn parse_tcpdump_counts(text: &str) -> Option<[u64; 3]> {
    let number = |words: &str| {
        let before = text.rsplit_once(words)?.0;
        before.rsplit(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
    };
    Some([
        number(" packets captured")?,
        number(" packets received by filter")?,
        number(" packets dropped by kernel")?,
    ])
}

/// Stops a tcpdump with SIGSTOP while `sent` packets arrive, continues the program, and waits until
/// it has counted all packets. If `is_ours` is true, tcpdump runs under `streamline exec`. Returns
/// the final [`counts`] and the standard error of the program.
fn capture_while_stopped(
    (pair, folder): (&NamespacePair, &Folder),
    is_ours: bool,
    sent: u64,
) -> ([u64; 3], String) {
    let words = "tcpdump -n -U -Z root -B 512 -w /dev/null -i server0";
    assert!(words.contains(SERVER_DEVICE));
    let words: Vec<&str> = words.split_whitespace().chain(["udp port 5300"]).collect();
    let observer = CaptureProgram::start((pair, folder), is_ours, (&words, LISTENING_TEXT));
    signal_program(&observer, "-STOP");
    wait_for_process_state(&observer, "T");
    send_datagrams(pair, PORT, (0..sent).map(|_| 1300));
    // These datagrams do not match the expression.
    send_datagrams(pair, PORT + 1, [1300; 100]);
    signal_program(&observer, "-CONT");
    wait_for_process_state(&observer, "SR");
    let mut printed = None;
    wait_until("all packets are captured or dropped", || {
        // tcpdump prints its counts at this signal.
        signal_program(&observer, "-USR1");
        let now = parse_tcpdump_counts(&observer.errors());
        if now != printed {
            eprintln!("captured, received and dropped of {sent}: {now:?}");
            printed = now;
        }
        now.is_some_and(|[captured, _, dropped]| captured + dropped == sent)
    });
    let errors = observer.interrupt();
    (parse_tcpdump_counts(&errors).unwrap_or_else(|| panic!("{errors}")), errors)
}

#[test]
fn c5_stopped_tcpdump_has_captured_or_dropped_all_packets() {
    let Some((pair, folder)) = prepare_capture_test("tcpdump") else { return };
    for (is_ours, sent) in [
        (false, DATAGRAMS_SENT),
        (true, DATAGRAMS_SENT),
        (false, DATAGRAMS_BEYOND_READER_LIMIT),
        (true, DATAGRAMS_BEYOND_READER_LIMIT),
    ] {
        let ([captured, received, dropped], errors) =
            capture_while_stopped((&pair, &folder), is_ours, sent);
        eprintln!("from the ring {is_ours}: {captured} captured, {dropped} dropped of {sent}");
        assert!(dropped > 0 && (captured > 0 || sent == DATAGRAMS_BEYOND_READER_LIMIT), "{errors}");
        assert_eq!(captured + dropped, sent, "{errors}");
        // Without the library, the kernel may count a packet from before the filter was set.
        assert!(received == sent || !is_ours && received > sent, "{errors}");
        let from_ring = format!("{captured} of {captured} packets came from the ring");
        assert_eq!(errors.contains(&from_ring), is_ours, "{errors}");
    }
}

#[test]
fn tcpdump_stopped_beside_a_daemon_counts_all_dropped_packets() {
    let Some((pair, folder)) = prepare_capture_test("tcpdump") else { return };
    let _daemon = start_daemon(&pair, &folder);
    let ([captured, received, dropped], errors) =
        capture_while_stopped((&pair, &folder), true, DATAGRAMS_SENT);
    assert!(captured > 0 && dropped > 0, "{errors}");
    assert_eq!((captured + dropped, received), (DATAGRAMS_SENT, DATAGRAMS_SENT), "{errors}");
}
