//! Tests of PipesFS files of filters that run in a program of the daemon in the kernel. Each stream
//! contains the frames that tcpdump captures with the same filter. Opening a stream does not
//! replace the program. If a reader or the mount's server is killed, its streams are closed.
//! Operations that such a file cannot perform are refused with the reason. FEATURES B8, B9, B10

use crate::frame_sending::{parse_capture, send_all};
use crate::scratch::Scratch;
use crate::second_job::{KillOnDropChild, MountGuard, spawn, streamline_command};
use crate::shared_program::{attached_program_ids, datagrams};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use testkit::need;
use testkit::net::{
    DevicePairSettings, NamespacePair, SERVER_DEVICE, packet_socket_inodes, wait_until,
};

/// A path whose filters are in the kernel, in a program of a daemon, and a mount that shows it.
struct MountedPathFixture {
    pair: NamespacePair,
    _daemon: KillOnDropChild,
    _path: KillOnDropChild,
    mounted: MountGuard,
    folder: Scratch,
    daemon: String,
}

impl MountedPathFixture {
    /// Starts all processes, and waits until the mount shows the path. `filter` is the directory of
    /// a filter below the source, which must run in the kernel. Returns `None` if the machine
    /// cannot run the test.
    fn new(request: &str, filter: &str) -> Option<Self> {
        need::require_root()?;
        need::require_file("/dev/fuse")?;
        let pair = NamespacePair::new(DevicePairSettings {
            addresses: false,
            ..DevicePairSettings::default()
        })?;
        let folder = Scratch::new();
        let daemon = folder.path("daemon").display().to_string();
        // The daemon attaches the program, so it runs where the interface is.
        let mut served = pair.server.command(testkit::streamline_program());
        served.args(["daemon", "--socket", &daemon]);
        let served = spawn(served);
        wait_until("a daemon answers", || {
            streamline_command(&["ps"], &daemon).output().is_ok_and(|ran| ran.status.success())
        });
        let mut path = pair.server.command(testkit::streamline_program());
        let request = request.replace("rx", &format!("rx {SERVER_DEVICE}"));
        path.args(["run", "-q", "--no-adapt", &request]).env("STREAMLINE_DAEMON", &daemon);
        let path = spawn(path);
        let mounted = mount_file_system(&folder, &daemon, "pipes");
        let scene = Self { pair, _daemon: served, _path: path, mounted, folder, daemon };
        let place = scene.file(&format!("{filter}/place"));
        wait_until("the path is shown", || fs::read_to_string(&place).is_ok());
        assert_eq!(fs::read_to_string(&place).expect("a place").trim(), "kernel");
        Some(scene)
    }

    /// Returns the path of a file in the source's directory of the mount.
    fn file(&self, name: &str) -> PathBuf {
        self.mounted.0.join(format!("rx:{SERVER_DEVICE}")).join(name)
    }

    /// Starts a cat(1) that copies the file `name` of the mount to the file `to`, and waits until
    /// it has opened the stream. Returns the process and the path of the copy.
    fn start_reader(&self, name: &str, to: &str) -> (KillOnDropChild, PathBuf) {
        let to = self.folder.path(to);
        let mut cat = Command::new("cat");
        cat.arg(self.file(name)).stdin(Stdio::null()).stderr(Stdio::null());
        let cat =
            KillOnDropChild(cat.stdout(File::create(&to).expect("a file")).spawn().expect("cat"));
        let streams = PathBuf::from(name);
        let stream = streams.parent().expect("a filter").join(".streams");
        let stream =
            self.file(stream.join(streams.file_name().expect("a name")).to_str().expect("text"));
        let folder = PathBuf::from(format!("/proc/{}/fd", cat.0.id()));
        wait_until("the stream is open", || {
            let mut open = fs::read_dir(&folder).expect("a process").flatten();
            open.any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == stream))
        });
        (cat, to)
    }

    /// Runs a shell command in the mount. Asserts that the command fails, and returns the reason
    /// that the mount gives.
    fn expect_failure(&self, command: &str) -> String {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &command.replace("rx/", &format!("rx:{SERVER_DEVICE}/"))])
            .current_dir(&self.mounted.0)
            .stderr(Stdio::null());
        assert!(!shell.status().expect("a shell").success(), "{command}");
        fs::read_to_string(self.mounted.0.join(".error")).expect("a reason")
    }
}

/// Mounts a file system of the daemon's running paths on a new directory.
fn mount_file_system(folder: &Scratch, daemon: &str, name: &str) -> MountGuard {
    let pipes = folder.path(name);
    fs::create_dir(&pipes).expect("a folder");
    let mounted = MountGuard(pipes.clone());
    let mut mount = streamline_command(&["mount"], daemon);
    assert!(mount.arg(&pipes).stderr(Stdio::null()).status().expect("a mount").success());
    mounted
}

#[test]
fn b8_kernel_filter_stream_equals_tcpdump_capture() {
    const FRAMES: usize = 400;
    if need::require_command("tcpdump").is_none() {
        return;
    }
    let Some(scene) = MountedPathFixture::new("rx | udp | dport |53 count", "udp") else { return };
    let programs = attached_program_ids(&scene.pair);
    let expected = scene.folder.path("tcpdump.pcap");
    let before = packet_socket_inodes(&scene.pair.server).len();
    let mut tcpdump = scene.pair.server.command("tcpdump");
    // With its default length of frames, its ring has room for eight.
    tcpdump.args(["-i", SERVER_DEVICE, "-s", "2048", "-U", "-Z", "root", "--immediate-mode", "-w"]);
    let _tcpdump = spawn({
        tcpdump.arg(&expected).arg("udp dst port 53");
        tcpdump
    });
    wait_until("tcpdump listens", || packet_socket_inodes(&scene.pair.server).len() > before);
    let frames = datagrams(FRAMES);
    let mut readers = vec![
        scene.start_reader("udp/dport/53/all.pcap", "class.pcap"),
        scene.start_reader("udp/dport/53/all.pcap", "again.pcap"),
        scene.start_reader("udp/all.pcap", "udp.pcap"),
        scene.start_reader("udp/dport/80/all.jsonl", "web.jsonl"),
        scene.start_reader("udp/dport/443/all", "bytes"),
    ];
    send_all(&scene.pair, &frames);
    let read = |file: &PathBuf| parse_capture(&fs::read(file).unwrap_or_default());
    for (file, count) in
        [(&expected, 100), (&readers[0].1, 100), (&readers[1].1, 100), (&readers[2].1, FRAMES)]
    {
        wait_until("all frames are read", || read(file).len() == count);
    }
    assert_eq!(read(&expected).len(), FRAMES / 4);
    assert!(read(&readers[0].1) == read(&expected) && read(&readers[1].1) == read(&expected));
    assert!(read(&readers[2].1) == frames);
    let lines = || fs::read_to_string(&readers[3].1).unwrap_or_default().lines().count();
    wait_until("all lines are read", || lines() == FRAMES / 4);
    let with_port = |port: u16| frames.iter().filter(move |f| f[36..38] == port.to_be_bytes());
    // What is in view behind `dport` is the payload.
    let payloads: Vec<u8> = with_port(443).flat_map(|frame| frame[42..].to_vec()).collect();
    let bytes = || fs::read(&readers[4].1).unwrap_or_default();
    wait_until("all bytes are read", || bytes().len() >= payloads.len());
    assert!(bytes() == payloads);
    // A reader that is killed closes its file, and others go on.
    readers.remove(0);
    send_all(&scene.pair, &frames);
    wait_until("the other reader goes on", || read(&readers[0].1).len() == FRAMES / 2);
    wait_until("the reader of all goes on", || read(&readers[1].1).len() == 2 * FRAMES);
    let taken = fs::read_to_string(scene.file("udp/stats/taken_by_readers")).expect("a number");
    let length = fs::metadata(&readers[1].1).expect("a file").len();
    assert_eq!(taken.trim(), length.to_string());
    drop(readers);
    assert_eq!(attached_program_ids(&scene.pair), programs, "the program stays");
}

#[test]
fn b9_killed_server_closes_the_streams_of_its_readers() {
    let request = "rx | ip | udp | sport | dport |53 count";
    let Some(scene) = MountedPathFixture::new(request, "ip/udp/sport/dport") else { return };
    let programs = attached_program_ids(&scene.pair);
    let other = mount_file_system(&scene.folder, &scene.daemon, "other");
    let place = other.0.join(format!("rx:{SERVER_DEVICE}"));
    wait_until("the path is shown there, too", || place.join("ip/udp").is_dir());
    // Four filters can be read at once: as many are open, until the server dies.
    let names = ["all.pcap", "ip/all.pcap", "ip/udp/all.pcap", "ip/udp/sport/all.pcap"];
    let _open = names.map(|name| File::open(place.join(name)).expect("a stream"));
    let fifth = "ip/udp/sport/dport/all.pcap";
    let why = scene.expect_failure(&format!("cat rx/{fifth}"));
    assert!(why.contains("can be read at once"), "{why}");
    let server = fs::read_dir("/proc").expect("processes").flatten().find_map(|one| {
        let words = fs::read(one.path().join("cmdline")).ok()?;
        let words = String::from_utf8_lossy(&words).into_owned();
        let ours = words.contains("mount") && words.contains(&other.0.display().to_string());
        ours.then(|| one.file_name().to_string_lossy().into_owned())
    });
    let killed = Command::new("kill").args(["-9", &server.expect("a server")]).status();
    assert!(killed.expect("kill").success());
    wait_until("what they opened is closed", || File::open(scene.file(fifth)).is_ok());
    let (_reader, read) = scene.start_reader(fifth, "dport.pcap");
    let frames = datagrams(40);
    send_all(&scene.pair, &frames);
    wait_until("all frames are read", || {
        parse_capture(&fs::read(&read).unwrap_or_default()).len() == frames.len()
    });
    assert_eq!(attached_program_ids(&scene.pair), programs, "the program stays");
}

#[test]
fn b10_frames_that_stay_in_the_kernel_can_be_read() {
    let Some(scene) = MountedPathFixture::new("rx | discard", "discard") else { return };
    let (_reader, read) = scene.start_reader("all.pcap", "all.pcap");
    let frames = datagrams(40);
    send_all(&scene.pair, &frames);
    wait_until("all frames are read", || {
        parse_capture(&fs::read(&read).unwrap_or_default()).len() == frames.len()
    });
    assert!(parse_capture(&fs::read(&read).expect("a capture")) == frames);
}

#[test]
fn b8_writes_that_bypass_kernel_filters_are_refused() {
    let Some(scene) = MountedPathFixture::new("rx | udp | dport |53 count", "udp") else { return };
    let why = scene.expect_failure("printf x > rx/all.pcap");
    assert!(
        why.contains("`udp` runs in the kernel, where it cannot receive written bytes"),
        "{why}"
    );
}
