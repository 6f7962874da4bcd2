//! Test of the container recipe in `dist`: podman builds the image with a package of this program,
//! and runs requests in a container, first without privileges and then with the privileges for live
//! traffic.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::Folder;
use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Stdio};
use testkit::need;
use testkit::net::{CLIENT, DevicePairSettings, NamespacePair, SERVER, SERVER_DEVICE, wait_until};

/// The base image in the container recipe.
const BASE_IMAGE: &str = "docker.io/library/debian:bookworm-slim";
/// Options that prevent podman from raising limits, which some machines do not permit.
const PODMAN_LIMIT_OPTIONS: [&str; 2] = ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"];

/// The command podman, with the options with which containers run on this machine.
struct Podman {
    runtime: &'static [&'static str],
    limits: &'static [&'static str],
}

impl Podman {
    /// Finds options with which a container runs on this machine. Reports a skip and returns `None`
    /// if there are none.
    fn new() -> Option<Self> {
        need::require_command("podman")?;
        let mut refusals = Vec::new();
        if let Err(why) =
            run_and_read_stdout(Command::new("podman").args(["image", "exists", BASE_IMAGE]))
            && let Err(pull) =
                run_and_read_stdout(Command::new("podman").args(["pull", "--quiet", BASE_IMAGE]))
        {
            return need::report_skip(&format!("needs the image {BASE_IMAGE}: {why}{pull}"));
        }
        for runtime in [&[] as &[_], &["--runtime=runc"]] {
            for limits in [&[] as &[_], &PODMAN_LIMIT_OPTIONS] {
                let podman = Self { runtime, limits };
                match run_and_read_stdout(&mut podman.container_command(&[BASE_IMAGE, "true"])) {
                    Ok(_) => return Some(podman),
                    Err(why) => refusals.push(why.trim().to_owned()),
                }
            }
        }
        refusals.dedup();
        need::report_skip(&format!("needs podman to run containers: {}", refusals.join("; ")))
    }

    /// Returns a command that runs a container. `words` contains further options, the image and the
    /// arguments of its program.
    fn container_command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("podman");
        command.args(self.runtime).args(["run", "--rm"]).args(self.limits).args(words);
        command.stdin(Stdio::null());
        command
    }
}

/// A container image, removed on drop.
struct Image(String);

impl Image {
    /// Builds an image from the recipe in a directory. Reports a skip and returns `None` if the
    /// build cannot reach the Debian archive.
    fn build(context: &Path) -> Option<Self> {
        let image = Self(format!("localhost/streamline-test-{}", std::process::id()));
        let build = |isolation: &[&str]| {
            let mut command = Command::new("podman");
            command
                .args(["build", "--quiet", "--layers=false", "--tag", &image.0])
                .args(isolation)
                .arg(context);
            run_and_read_stdout(&mut command)
        };
        // If the runtime does not support the machine's control groups, only this isolation works.
        let built = build(&[]).or_else(|_| build(&["--isolation=chroot"]));
        match built {
            Err(why) if why.contains("Failed to fetch") || why.contains("Could not resolve") => {
                need::report_skip("needs an archive of Debian in the container")
            }
            built => built.map(|_| image).map_err(|why| panic!("{why}")).ok(),
        }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = run_and_read_stdout(Command::new("podman").args(["rmi", "--force", &self.0]));
    }
}

/// Runs a command, and returns its standard output. If the command fails, returns its standard
/// error as an error.
fn run_and_read_stdout(command: &mut Command) -> Result<String, String> {
    let ran = command.output().unwrap();
    match ran.status.success() {
        true => Ok(String::from_utf8_lossy(&ran.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&ran.stderr).into_owned()),
    }
}

/// Writes a minimal Debian package that contains the tested `streamline` into a directory.
fn write_package(folder: &Folder, context: &Path) {
    let tree = folder.path().join("package");
    for directory in ["DEBIAN", "usr/bin"] {
        fs::create_dir_all(tree.join(directory)).unwrap();
    }
    let control = "Package: streamline\nVersion: 0-1\nArchitecture: all\nMaintainer: test\n\
                   Description: the program of this build\n";
    fs::write(tree.join("DEBIAN/control"), control).unwrap();
    let program = tree.join("usr/bin/streamline");
    testkit::copy_program(Path::new(env!("CARGO_BIN_EXE_streamline")), &program);
    run_and_read_stdout(Command::new("strip").arg(&program)).unwrap();
    let mut pack = Command::new("dpkg-deb");
    pack.args(["--root-owner-group", "-Zgzip", "-z1", "--build"]);
    run_and_read_stdout(pack.arg(&tree).arg(context.join("streamline_0-1_all.deb"))).unwrap();
}

#[test]
fn container_runs_requests_on_files_and_live_traffic() {
    let Some(podman) = Podman::new() else { return };
    if ["dpkg-deb", "strip"].into_iter().any(|name| need::require_command(name).is_none()) {
        return;
    }
    let folder = Folder::accessible_to_all();
    let context = folder.path().join("context");
    fs::create_dir(&context).unwrap();
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/container/Containerfile");
    fs::write(context.join("Containerfile"), fs::read(recipe).unwrap()).unwrap();
    write_package(&folder, &context);
    let Some(image) = Image::build(&context) else { return };

    // A container without privileges reads a file of the host.
    let capture = folder.path().join("examples/web.pcap");
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("web.pcap"), fs::read(capture).unwrap()).unwrap();
    let shared = format!("{}:/data", data.display());
    let request = "replay web.pcap | dport |80 count";
    let counted = run_and_read_stdout(&mut podman.container_command(&[
        "--network=none",
        "--volume",
        &shared,
        &image.0,
        request,
    ]))
    .unwrap();
    assert_eq!(counted, folder.run(&["replay examples/web.pcap | dport |80 count"]).out);
    let refused = run_and_read_stdout(&mut podman.container_command(&[&image.0, "rx lo | count"]))
        .unwrap_err();
    assert!(refused.contains("CAP_NET_RAW"), "{refused}");

    // A container with the privileges in the recipe captures live traffic.
    let Some(pair) = NamespacePair::new(DevicePairSettings::default()) else { return };
    let network = format!("ns:{}", pair.server.path().display());
    let live = ["--network", &network, "--user", "root", "--cap-drop", "all"];
    let rights = ["--cap-add", "NET_ADMIN", "--cap-add", "NET_RAW", "--cap-add", "BPF"];
    let request = format!("rx {SERVER_DEVICE} | bpf \"udp port 9\" | print");
    let words: Vec<&str> = live
        .iter()
        .chain(&rights)
        .copied()
        .chain([image.0.as_str(), "run", "-c", "3", &request])
        .collect();
    let mut child = podman.container_command(&words).stdout(Stdio::piped()).spawn().unwrap();
    let sender = pair.client.run_in_network_namespace(|| UdpSocket::bind((CLIENT, 0)).unwrap());
    // Datagrams are sent until three are printed, because the first ones may arrive before the path
    // is running.
    wait_until("three datagrams are printed", || {
        sender.send_to(b"datagram", (SERVER, 9)).unwrap();
        child.try_wait().unwrap().is_some()
    });
    let ended = child.wait_with_output().unwrap();
    let lines = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{}: {lines}", ended.status);
    assert!(
        lines.lines().count() >= 3 && lines.lines().all(|line| line.contains(CLIENT)),
        "{lines}"
    );
}
