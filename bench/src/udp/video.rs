//! Rows `ffmpeg`: a transport stream over UDP, demultiplexed and not decoded, at fixed rates.
//! [SL §9.2.2, fig. 14] Goal G19
//!
//! The stream reaches the socket over veth, or the ring from memory, where it waits for at most
//! 1 ms. The result is the processor time of the program for each datagram.

use super::memory_socket::RingFeeder;
use super::ring_feed::{AnswerDestination, SOCKET_SETUP, UdpSetup};
use super::servers::{RunningServer, SERVER_PORT, UdpLaunch, UdpServer};
use crate::harness::{BetterDirection, Goal, Samples, is_row_selected, median, rows_of_samples};
use crate::options::Options;
use crate::processes::{is_installed, read_text};
use crate::replay::find_program;
use crate::row::Row;
use crate::sentinel::CacheRoundTrip;
use crate::temp_directory::TempDirectory;
use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Stdio};
use sys::clock;
use testkit::Frame;
use testkit::net::{CLIENT, NamespacePair, SERVER, wait_until};

/// Bytes of a datagram: seven packets of a transport stream.
const DATAGRAM_SIZE: usize = 7 * 188;
/// Bit rates of the transport stream in bits per second, each with its name in the result rows.
const BIT_RATES: [(&str, f64); 2] = [("100 Mb/s", 100e6), ("1 Gb/s", 1e9)];
/// Duration of a sample in s.
const SAMPLE_DURATION_S: f64 = 2.0;
/// Number of datagrams sent before a sample, at [`WARM_UP_RATE`] datagrams per second.
const WARM_UP_DATAGRAMS: usize = 4_000;
const WARM_UP_RATE: f64 = 20_000.0;

const RING_SETUP: UdpSetup = UdpSetup {
    name: "ring",
    launch: UdpLaunch::Exec("report,always,delay=1000"),
    is_fed: true,
    answers: AnswerDestination::Sent,
};

/// Measures the rows of ffmpeg. Returns no rows if ffmpeg is not installed.
pub(super) fn measure_rows(
    options: &Options,
    pair: &NamespacePair,
    folder: &TempDirectory,
) -> Result<Vec<Row>, String> {
    if !is_installed("ffmpeg", "ffmpeg") {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    for (setting, bits) in BIT_RATES {
        let row = format!("ffmpeg from memory, {setting}, delay 1 ms");
        if !is_row_selected(&row) {
            continue;
        }
        let rate = bits / 8.0 / DATAGRAM_SIZE as f64;
        let stream = generate_transport_stream(&folder.0)?;
        let mut samples = [SOCKET_SETUP, RING_SETUP].map(|setup| (setup, Vec::new()));
        let mut sentinels = Vec::new();
        for round in 0..=options.rounds {
            sentinels.push(CacheRoundTrip::measure());
            for (setup, samples) in &mut samples {
                let sample = measure(pair, folder, *setup, (&stream, rate))?;
                // The first round is a warm-up.
                if round > 0 {
                    samples.push(sample);
                }
            }
        }
        let samples = samples.map(|(setup, values)| Samples { name: setup.name, values });
        let goal = Goal {
            candidate: RING_SETUP.name,
            reference: SOCKET_SETUP.name,
            goal: "G19",
            target: 3.0,
        };
        let subject = ("udp", row.as_str(), f64::NAN);
        let unit = ("ns server/datagram", BetterDirection::Less);
        all.extend(rows_of_samples(subject, unit, median(&sentinels), &samples, &[goal]));
    }
    Ok(all)
}

/// Returns a transport stream of some seconds, in datagrams.
fn generate_transport_stream(folder: &Path) -> Result<Vec<Vec<u8>>, String> {
    let file = folder.join("stream.ts");
    if !file.is_file() {
        let mut command = Command::new("ffmpeg");
        command.args(["-v", "error", "-nostdin", "-f", "lavfi"]);
        command.args(["-i", "testsrc=size=1280x720:rate=30", "-t", "3", "-c:v", "mpeg2video"]);
        command.args(["-b:v", "40M", "-minrate", "40M", "-maxrate", "40M", "-bufsize", "8M"]);
        command.args(["-f", "mpegts"]).arg(&file).stdin(Stdio::null());
        let status = command.status().map_err(|why| why.to_string())?;
        if !status.success() {
            return Err(format!("ffmpeg made no stream: {status}"));
        }
    }
    let bytes = fs::read(&file).map_err(|why| why.to_string())?;
    Ok(bytes.chunks_exact(DATAGRAM_SIZE).map(<[u8]>::to_vec).collect())
}

/// Returns the arguments with which ffmpeg reads the stream until it is interrupted.
fn configure_ffmpeg(_: &Path) -> std::io::Result<Vec<String>> {
    let words = ["-nostdin", "-loglevel", "warning", "-f", "mpegts", "-i"];
    // `fifo_size=0` disables ffmpeg's own queue and the thread that fills it.
    let from = format!("udp://{SERVER}:{SERVER_PORT}?fifo_size=0");
    let rest = ["-map", "0", "-c", "copy", "-f", "null", "-"];
    let all = words.into_iter().map(str::to_owned).chain([from]);
    Ok(all.chain(rest.map(str::to_owned)).collect())
}

/// Sends the stream to ffmpeg at the given rate. Returns the processor time of ffmpeg per datagram,
/// in ns.
fn measure(
    pair: &NamespacePair,
    folder: &TempDirectory,
    setup: UdpSetup,
    (stream, rate): (&[Vec<u8>], f64),
) -> Result<f64, String> {
    find_program("ffmpeg").ok_or("ffmpeg is not installed")?;
    let server = UdpServer::new("ffmpeg", configure_ffmpeg);
    let running = RunningServer::start(&pair.server, &folder.0, setup.launch, &server, &[])?;
    let table = format!("/proc/{}/net/udp", running.process_id());
    wait_until("ffmpeg has its port", || {
        read_text(table.as_ref()).contains(&format!(":{SERVER_PORT:04X} "))
    });
    let _ = sys::process::pin_to_processor(0);
    let opened = pair.client.run_in_network_namespace(|| {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect((SERVER, SERVER_PORT))?;
        Ok::<_, std::io::Error>((socket.local_addr()?.port(), socket))
    });
    let (port, socket) = opened.map_err(|why| why.to_string())?;
    let mut datagrams = stream.iter().cycle();
    let mut send = |feeder: &mut Option<RingFeeder>, count: usize, rate: f64| {
        let begin = clock::monotonic_ns();
        let mut fed = 0;
        for number in 0..count {
            while ((clock::monotonic_ns() - begin) as f64) < number as f64 * 1e9 / rate {
                std::hint::spin_loop();
            }
            let datagram = datagrams.next().map_or(&[][..], Vec::as_slice);
            let entered = match feeder {
                Some(feeder) => {
                    let frame =
                        Frame::ethernet().ipv4(CLIENT, SERVER).udp(port, SERVER_PORT, datagram);
                    feeder.feed(&frame, 1)?
                }
                None => 0,
            };
            fed += entered;
            if entered == 0 {
                socket.send(datagram).map_err(|why| format!("sending: {why}"))?;
            }
        }
        Ok::<_, String>(fed)
    };
    send(&mut None, WARM_UP_DATAGRAMS, WARM_UP_RATE)?;
    let mut feeder = if setup.is_fed { RingFeeder::open(&pair.server)? } else { None };
    if setup.is_fed && feeder.is_none() {
        return Err(format!("ffmpeg has no ring: {}", running.output()));
    }
    send(&mut feeder, WARM_UP_DATAGRAMS, WARM_UP_RATE)?;
    let count = (rate * SAMPLE_DURATION_S) as usize;
    let before = running.processor_ns();
    let fed = send(&mut feeder, count, rate)?;
    let used = running.processor_ns().saturating_sub(before);
    let output = running.output();
    // An interrupted ffmpeg ends only after the next datagram.
    running.kill()?;
    if setup.is_fed && fed * 10 < count * 9 {
        return Err(format!("only {fed} of {count} datagrams entered the ring: {output}"));
    }
    Ok(used as f64 / count as f64)
}
