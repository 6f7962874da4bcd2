//! Test of a QUIC server from a package of the distribution (ngtcp2), whose replies must be the
//! same with and without a ring. [FEATURES C1]

use super::{PORT, STREAMLINE, prepare_server_test, reported_counts_per_socket};
use crate::common::{ChildGuard, Folder};
use std::fs::File;
use std::path::Path;
use std::process::Command;
use testkit::net::{NamespacePair, SERVER};
use testkit::{need, wait_until};

/// Size of the file that is sent in each direction, in bytes.
const FILE_SIZE: usize = 3_000_000;

/// Runs the QUIC client with additional arguments. Returns true if the client succeeds.
fn run_client(pair: &NamespacePair, client: &Path, folder: &Path, words: &[&str]) -> bool {
    let mut command = pair.client.command(client.display().to_string());
    command.args(["-q", "--no-quic-dump", "--no-http-dump", "--exit-on-all-streams-close"]);
    command.args(words).args(["--download", &folder.join("received").display().to_string()]);
    command.args([SERVER, &PORT.to_string(), "https://localhost/file"]);
    command.output().unwrap().status.success()
}

/// Starts the server, downloads a file from it, and uploads a file to it. If `is_ours` is true, the
/// server runs under `streamline exec`. Returns the bytes that the client received in each of the
/// two exchanges, and the output of the server.
fn exchange_files(pair: &NamespacePair, is_ours: bool) -> Option<([Vec<u8>; 2], String)> {
    let server = need::require_command("gtlsserver")?;
    let client = need::require_command("gtlsclient")?;
    let openssl = need::require_command("openssl")?;
    let folder = Folder::new();
    let place = folder.path();
    let path = |name: &str| place.join(name).display().to_string();
    ["documents", "received"].iter().for_each(|name| std::fs::create_dir(path(name)).unwrap());
    let bytes: Vec<u8> = (0..FILE_SIZE).map(|number| (number % 251) as u8).collect();
    std::fs::write(path("documents/file"), &bytes).unwrap();
    let (key, certificate) = (path("key"), path("certificate"));
    let mut command = Command::new(openssl);
    command.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]);
    command.args(["-keyout", &key, "-out", &certificate]);
    assert!(command.output().unwrap().status.success());

    let server = server.display().to_string();
    let mut command = pair.server.command(if is_ours { STREAMLINE } else { &server });
    if is_ours {
        command.args(["exec", "--with=udp", &server]);
    }
    command.args(["-q", "--no-quic-dump", "--no-http-dump", "-d", &path("documents")]);
    command.args(["0.0.0.0", &PORT.to_string(), &key, &certificate]);
    folder.set_environment(&mut command);
    command.env("STREAMLINE_UDP", "report,spin");
    let output = File::create(path("output")).unwrap();
    command.stdout(output.try_clone().unwrap()).stderr(output);
    let mut process = ChildGuard(command.spawn().unwrap());
    let ready = || run_client(pair, &client, place, &["-m", "HEAD"]);
    wait_until("the server answers", ready);
    let received = [&["-m", "GET"][..], &["-m", "POST", "-d", &path("documents/file")]];
    let received = received.map(|words| {
        let _ = std::fs::remove_file(path("received/file"));
        assert!(run_client(pair, &client, place, words), "{words:?}: {}", folder.read("output"));
        std::fs::read(path("received/file")).unwrap_or_default()
    });
    assert!(received[0] == bytes, "the file differs: {}", folder.read("output"));
    // The server handles SIGINT and exits normally.
    let number = process.0.id().to_string();
    assert!(Command::new("kill").args(["-INT", &number]).status().unwrap().success());
    process.0.wait().unwrap();
    Some((received, folder.read("output")))
}

#[test]
fn quic_server_answers_from_its_ring_as_from_its_socket() {
    let Some((pair, ..)) = prepare_server_test() else { return };
    let Some((by_kernel, _)) = exchange_files(&pair, false) else { return };
    let Some((by_ring, output)) = exchange_files(&pair, true) else { return };
    assert!(by_kernel == by_ring, "{output}");
    let [(ring, all)] = reported_counts_per_socket(&output)[..] else { panic!("{output}") };
    println!("gtlsserver: {ring} of {all} datagrams from the ring");
    assert!(ring >= 1000 && ring * 100 >= all * 95, "{ring} of {all}");
}
