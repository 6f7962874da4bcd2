//! Tests of the filter `token` on datagrams with valid, forged, replayed, missing and truncated
//! tokens over a veth pair, in the kernel and in a thread. Both must pass the same datagrams and
//! count the same reasons for all others, and the key must not appear in any output. [SL §9.3]
//!
//! Equal frames may be reordered: it does not matter which of them passes.

use crate::change::{LiveRequest, change_request};
use crate::frame_sending::{capture_length, parse_capture, send_all};
use crate::observer::{Observer, ObserverResult};
use crate::privilege::copy_program_for_every_user;
use crate::scratch::Scratch;
use crate::shared_program::quiet_pair;
use filter::Key;
use filter::transport::token::token_writer::write_token;
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use testkit::net::{DevicePairSettings, NamespacePair, SERVER_DEVICE};
use testkit::{Frame, need};

/// The key of the filter `token` in these tests, in hexadecimal digits.
const KEY_HEX: &str = "5f8d1c0e77a92b346c01fe98d4b35a20";
/// Number of datagrams, less than the reordering window.
const DATAGRAMS: u64 = 120;

/// Creates a key file that only its owner may read; returns its path.
fn key_file(folder: &Scratch) -> PathBuf {
    let path = folder.path("switch.key");
    fs::write(&path, format!("{KEY_HEX}\n")).expect("a file");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("its mode");
    path
}

/// Returns a datagram with space for a token, and text after it.
fn datagram_without_token(number: u64) -> Vec<u8> {
    let text = vec![b'a'; 10 + number as usize % 90];
    let payload = [&[0; 16][..], &text].concat();
    Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1").udp(4000, 53, &payload)
}

fn datagram_with_token(number: u64) -> Vec<u8> {
    let mut frame = datagram_without_token(number);
    let key = Key::parse(KEY_HEX.as_bytes()).expect("digits");
    write_token(&mut frame, &key, number, 64);
    frame
}

/// Returns the frames to send, the frames that must pass, and the expected drop counts. Of the
/// datagrams with valid tokens, one in three is sent twice in a row, and all are repeated later.
/// Every fifth is preceded by a copy with one flipped bit, which must not use up the number of the
/// token. The last frames have no token or are truncated.
fn token_traffic() -> (Vec<Vec<u8>>, Vec<Vec<u8>>, Value) {
    let mut sent = Vec::new();
    let (mut forged, mut replayed) = (0, 0);
    for number in 1..=DATAGRAMS {
        let good = datagram_with_token(number);
        if number % 5 == 0 {
            let mut wrong = good.clone();
            // In an address, a port, the number, the tag, or the text.
            let at = [27, 33, 35, 49, 57, 60][number as usize / 5 % 6];
            wrong[at] ^= 0x10;
            sent.push(wrong);
            forged += 1;
        }
        if number % 3 == 0 {
            sent.push(good.clone());
            replayed += 1;
        }
        sent.push(good);
    }
    let good: Vec<Vec<u8>> = (1..=DATAGRAMS).map(datagram_with_token).collect();
    sent.extend(good.iter().cloned());
    replayed += DATAGRAMS;
    // No token, one byte too few, and a truncated datagram.
    let short =
        |length| Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1").udp(1, 2, &vec![0; length]);
    sent.extend([short(0), short(15)]);
    let whole = datagram_with_token(200);
    let (head, payload) = whole.split_at(42);
    let cut = Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1").udp(4000, 53, &payload[..20]);
    assert_eq!(cut[..12], head[..12]);
    sent.push(cut);
    forged += 1;
    sent.push(datagram_without_token(201));
    forged += 1;
    let why = json!({ "forged": forged, "replayed": replayed, "no token": 2 });
    (sent, good, why)
}

fn filter_entry<'r>(ran: &'r ObserverResult, name: &str) -> &'r Value {
    let filters = ran.ledger["filters"].as_array().expect("filters");
    filters.iter().find(|filter| filter["name"] == name).unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn h22_tokens_pass_alike_in_the_kernel_and_in_a_thread() {
    let Some(()) = need::require_bpf() else { return };
    let Some(pair) = NamespacePair::new(DevicePairSettings {
        addresses: false,
        ..DevicePairSettings::default()
    }) else {
        return;
    };
    let folder = Scratch::new();
    let file = key_file(&folder).display().to_string();
    let (frames, good, why) = token_traffic();
    for (rx, place) in [("rx@kernel", "kernel"), ("rx@thread0", "thread0")] {
        let line = format!("{rx} {SERVER_DEVICE} | ip | token key={file} | pcap good.pcap");
        let mut observer = Observer::start(&pair.server, &line);
        let command_line =
            fs::read(format!("/proc/{}/cmdline", observer.process_id())).expect("it runs");
        assert!(!String::from_utf8_lossy(&command_line).contains(KEY_HEX));
        send_all(&pair, &frames);
        observer.wait_until_file_has_length("good.pcap", capture_length(&good));
        let ran = observer.stop();
        ran.assert_lossless();
        let token = filter_entry(&ran, "token");
        assert_eq!(token["space"], place, "{}", ran.err);
        assert_eq!(token["taken"]["blocks"], frames.len() as u64, "{}", ran.ledger);
        assert_eq!(token["passed"]["blocks"], DATAGRAMS, "{}", ran.ledger);
        let mut came = ran.frames("good.pcap");
        came.sort_unstable_by_key(|frame| crate::numbered_frames::frame_number(frame));
        assert_eq!(came, good, "each once, as it was sent: {line}");
        let reasons: serde_json::Map<String, Value> = {
            let all = token["unanswered"].as_object().expect("reasons");
            all.iter()
                .filter(|(_, count)| **count != 0)
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect()
        };
        assert_eq!(Value::Object(reasons), why, "{}", ran.ledger);
        for text in [ran.err.clone(), ran.ledger.to_string()] {
            assert!(!text.contains(KEY_HEX), "{text}");
        }
    }
}

/// A filter in a sandboxed process, which may not open files, still gets its key.
#[test]
fn t2_sandboxed_token_filter_gets_its_key() {
    let Some(pair) = NamespacePair::new(DevicePairSettings {
        addresses: false,
        ..DevicePairSettings::default()
    }) else {
        return;
    };
    let folder = Scratch::new();
    let file = key_file(&folder).display().to_string();
    let (frames, good, _) = token_traffic();
    let behind = format!("token key={file} untrusted=yes | pcap good.pcap");
    let mut observer =
        Observer::start(&pair.server, &format!("rx@thread0 {SERVER_DEVICE} | {behind}"));
    send_all(&pair, &frames);
    observer.wait_until_file_has_length("good.pcap", capture_length(&good));
    let ran = observer.stop();
    ran.assert_lossless();
    assert_eq!(filter_entry(&ran, "token")["space"], "sandbox token", "{}", ran.err);
    let mut came = ran.frames("good.pcap");
    came.sort_unstable_by_key(|frame| crate::numbered_frames::frame_number(frame));
    assert_eq!(came, good, "each once, as it was sent");
    assert!(!ran.ledger.to_string().contains(KEY_HEX) && !ran.err.contains(KEY_HEX));
}

/// Moves `token` to another program, and then to a thread. Asserts that no token passes twice,
/// because the set of used numbers moves with the filter.
#[test]
fn m1_filter_leaving_the_kernel_keeps_spent_tokens() {
    let Some(pair) = quiet_pair() else { return };
    let folder = Scratch::new();
    let (file, out) = (key_file(&folder).display().to_string(), folder.path("good.pcap"));
    let text = format!("rx@kernel {SERVER_DEVICE} | token key={file} | pcap '{}'", out.display());
    let line = LiveRequest::start(&pair, &text);
    let good: Vec<Vec<u8>> = (1..=DATAGRAMS).map(datagram_with_token).collect();
    let (first, rest) = good.split_at(good.len() / 3);
    let (second, third) = rest.split_at(rest.len() / 2);
    send_all(&pair, first);
    // The filter is the same, in another program.
    change_request(&line.live, "insert ip before token");
    assert_eq!(line.kernel_filters(), ["ip", "token"]);
    send_all(&pair, first);
    send_all(&pair, second);
    change_request(&line.live, "move token process");
    assert_eq!(line.kernel_filters(), ["ip"]);
    // What passed before does not pass again.
    send_all(&pair, first);
    send_all(&pair, second);
    send_all(&pair, third);
    let outcome = line.stop();
    let frames = parse_capture(&fs::read(out).expect("a capture"));
    let came: Vec<u64> =
        frames.iter().map(|frame| crate::numbered_frames::frame_number(frame)).collect();
    assert_eq!(came, (1..=DATAGRAMS).collect::<Vec<_>>(), "each once: {:#?}", outcome.ledger);
}

/// Requests are refused if the user may not read the key, or if other users may.
#[test]
fn h22_key_is_usable_by_its_owner_only() {
    let folder = Scratch::new();
    fs::set_permissions(folder.path(""), Permissions::from_mode(0o777)).expect("our folder");
    let file = key_file(&folder);
    let program = copy_program_for_every_user(&folder);
    let line = format!("replay x.pcap | token key={} | count", file.display());
    let run = |command: &mut Command, what: &str| {
        let ended = command.args([what, &line]).output().expect("it starts");
        let text = [ended.stdout, ended.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(!text.contains(KEY_HEX), "{text}");
        (ended.status.code(), text)
    };
    let (code, text) = run(&mut Command::new(&program), "explain");
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("token"), "{text}");
    fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("its mode");
    let (code, text) = run(&mut Command::new(&program), "explain");
    assert!(code != Some(0) && text.contains("chmod 600"), "{text}");
    fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("its mode");
    let Some(setpriv) = need::require_command("setpriv") else { return };
    let mut unprivileged = Command::new(setpriv);
    unprivileged.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]);
    let (code, text) = run(unprivileged.arg(&program), "run");
    assert!(code != Some(0) && text.contains("Permission denied"), "{text}");
}
