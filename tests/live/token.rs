//! `token`: datagrams with good, forged, replayed, missing and shortened tokens over a real cable,
//! verified in the kernel and in a thread. Which pass, and why the others do not, is the same; the
//! key is seen nowhere. [SL §9.3]
//!
//! Two frames that are alike may change places on their way: one of them passes, whichever.

use crate::change::{Line, set};
use crate::observer::{Observer, Ran};
use crate::privilege::for_everybody;
use crate::scratch::Scratch;
use crate::send::{capture_length, frames_of, send_all};
use crate::shared::silent;
use filter::Key;
use filter::transport::token::sealed::seal;
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use testkit::net::{Cable, Pair, SERVER_DEVICE};
use testkit::{Frame, need};

const DIGITS: &str = "5f8d1c0e77a92b346c01fe98d4b35a20";
/// Fewer than may overtake each other.
const GOOD: u64 = 120;

/// A key for its owner alone.
fn key(folder: &Scratch) -> PathBuf {
    let path = folder.path("switch.key");
    fs::write(&path, format!("{DIGITS}\n")).expect("a file");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("its mode");
    path
}

/// A datagram with room for a token, and some text behind it.
fn bare(number: u64) -> Vec<u8> {
    let text = vec![b'a'; 10 + number as usize % 90];
    let payload = [&[0; 16][..], &text].concat();
    Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1").udp(4000, 53, &payload)
}

fn sealed(number: u64) -> Vec<u8> {
    let mut frame = bare(number);
    let key = Key::read(DIGITS.as_bytes()).expect("digits");
    seal(&mut frame, &key, number, 64);
    frame
}

/// Frames, and those of them that pass. Of each third number a copy is sent at once, and of all one
/// at the end; beside each fifth stands a forged one, whose number must not be taken away by it.
fn traffic() -> (Vec<Vec<u8>>, Vec<Vec<u8>>, Value) {
    let mut sent = Vec::new();
    let (mut forged, mut replayed) = (0, 0);
    for number in 1..=GOOD {
        let good = sealed(number);
        if number % 5 == 0 {
            let mut wrong = good.clone();
            // In an address, a port, the number, the tag, or in the text.
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
    let good: Vec<Vec<u8>> = (1..=GOOD).map(sealed).collect();
    sent.extend(good.iter().cloned());
    replayed += GOOD;
    // Nothing of a token, one byte too few for one, and one whose datagram was cut.
    let short =
        |length| Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1").udp(1, 2, &vec![0; length]);
    sent.extend([short(0), short(15)]);
    let whole = sealed(200);
    let (head, payload) = whole.split_at(42);
    let cut = Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1").udp(4000, 53, &payload[..20]);
    assert_eq!(cut[..12], head[..12]);
    sent.push(cut);
    forged += 1;
    sent.push(bare(201));
    forged += 1;
    let why = json!({ "forged": forged, "replayed": replayed, "no token": 2 });
    (sent, good, why)
}

fn filter<'r>(ran: &'r Ran, name: &str) -> &'r Value {
    let filters = ran.ledger["filters"].as_array().expect("filters");
    filters.iter().find(|filter| filter["name"] == name).unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn h22_the_same_tokens_pass_in_the_kernel_and_in_a_thread() {
    let Some(()) = need::bpf() else { return };
    let Some(pair) = Pair::new(Cable { addresses: false, ..Cable::default() }) else { return };
    let folder = Scratch::new();
    let file = key(&folder).display().to_string();
    let (frames, good, why) = traffic();
    for (rx, place) in [("rx@kernel", "kernel"), ("rx@thread0", "thread0")] {
        let line = format!("{rx} {SERVER_DEVICE} | ip | token key={file} | pcap good.pcap");
        let mut observer = Observer::start(&pair.server, &line);
        let shown = fs::read(format!("/proc/{}/cmdline", observer.process())).expect("it runs");
        assert!(!String::from_utf8_lossy(&shown).contains(DIGITS));
        send_all(&pair, &frames);
        observer.until_written("good.pcap", capture_length(&good));
        let ran = observer.stop();
        ran.assert_whole();
        let token = filter(&ran, "token");
        assert_eq!(token["space"], place, "{}", ran.err);
        assert_eq!(token["taken"]["blocks"], frames.len() as u64, "{}", ran.ledger);
        assert_eq!(token["passed"]["blocks"], GOOD, "{}", ran.ledger);
        let mut came = ran.frames("good.pcap");
        came.sort_unstable_by_key(|frame| crate::numbers::number(frame));
        assert_eq!(came, good, "each once, as it was sent: {line}");
        let told: serde_json::Map<String, Value> = {
            let all = token["unanswered"].as_object().expect("reasons");
            all.iter()
                .filter(|(_, count)| **count != 0)
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect()
        };
        assert_eq!(Value::Object(told), why, "{}", ran.ledger);
        for text in [ran.err.clone(), ran.ledger.to_string()] {
            assert!(!text.contains(DIGITS), "{text}");
        }
    }
}

/// In a process of its own that reads no files, it has its key all the same.
#[test]
fn t2_the_same_tokens_pass_in_a_sandbox() {
    let Some(pair) = Pair::new(Cable { addresses: false, ..Cable::default() }) else { return };
    let folder = Scratch::new();
    let file = key(&folder).display().to_string();
    let (frames, good, _) = traffic();
    let behind = format!("token key={file} untrusted=yes | pcap good.pcap");
    let mut observer =
        Observer::start(&pair.server, &format!("rx@thread0 {SERVER_DEVICE} | {behind}"));
    send_all(&pair, &frames);
    observer.until_written("good.pcap", capture_length(&good));
    let ran = observer.stop();
    ran.assert_whole();
    assert_eq!(filter(&ran, "token")["space"], "sandbox token", "{}", ran.err);
    let mut came = ran.frames("good.pcap");
    came.sort_unstable_by_key(|frame| crate::numbers::number(frame));
    assert_eq!(came, good, "each once, as it was sent");
    assert!(!ran.ledger.to_string().contains(DIGITS) && !ran.err.contains(DIGITS));
}

/// The numbers already passed move with the filter, so nothing passes twice.
#[test]
fn m1_a_filter_leaving_the_kernel_remembers_passed_tokens() {
    let Some(pair) = silent() else { return };
    let folder = Scratch::new();
    let (file, out) = (key(&folder).display().to_string(), folder.path("good.pcap"));
    let text = format!("rx@kernel {SERVER_DEVICE} | token key={file} | pcap '{}'", out.display());
    let line = Line::start(&pair, &text);
    let good: Vec<Vec<u8>> = (1..=GOOD).map(sealed).collect();
    let (first, rest) = good.split_at(good.len() / 3);
    let (second, third) = rest.split_at(rest.len() / 2);
    send_all(&pair, first);
    // It is in another program, and the same filter.
    set(&line.live, "insert ip before token");
    assert_eq!(line.in_kernel(), ["ip", "token"]);
    send_all(&pair, first);
    send_all(&pair, second);
    set(&line.live, "move token process");
    assert_eq!(line.in_kernel(), ["ip"]);
    // What has passed there passes nowhere again.
    send_all(&pair, first);
    send_all(&pair, second);
    send_all(&pair, third);
    let outcome = line.stop();
    let frames = frames_of(&fs::read(out).expect("a capture"));
    let came: Vec<u64> = frames.iter().map(|frame| crate::numbers::number(frame)).collect();
    assert_eq!(came, (1..=GOOD).collect::<Vec<_>>(), "each once: {:#?}", outcome.ledger);
}

/// Lines without access to a key, and keys readable by others, are refused.
#[test]
fn h22_a_key_is_for_its_owner_alone() {
    let folder = Scratch::new();
    fs::set_permissions(folder.path(""), Permissions::from_mode(0o777)).expect("our folder");
    let file = key(&folder);
    let program = for_everybody(&folder);
    let line = format!("replay x.pcap | token key={} | count", file.display());
    let told = |command: &mut Command, what: &str| {
        let ended = command.args([what, &line]).output().expect("it starts");
        let text = [ended.stdout, ended.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(!text.contains(DIGITS), "{text}");
        (ended.status.code(), text)
    };
    let (code, text) = told(&mut Command::new(&program), "explain");
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("token"), "{text}");
    fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("its mode");
    let (code, text) = told(&mut Command::new(&program), "explain");
    assert!(code != Some(0) && text.contains("chmod 600"), "{text}");
    fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("its mode");
    let Some(setpriv) = need::command("setpriv") else { return };
    let mut nobody = Command::new(setpriv);
    nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]);
    let (code, text) = told(nobody.arg(&program), "run");
    assert!(code != Some(0) && text.contains("Permission denied"), "{text}");
}
