//! Tests of the daemon over real sockets, with cooperative and hostile clients.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use daemon::policy::Policy;
use daemon::server::Server;
use member::client::{Client, ClientError, QUERY_TIMEOUT};
use member::daemon_directories;
use member::protocol::{PathListEvent, RegisterParameters, TapParameters};
use member::varlink::{Call, MESSAGE_BYTES_MAX, Reply};
use serde_json::{Value, json};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use sys::eventfd::EventFd;
use sys::local_socket::{self, Framing};

/// `errno` of a read from a socket whose peer was closed with unread messages.
const ECONNRESET: i32 = 104;
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// A daemon in a temporary directory.
struct Daemon {
    folder: PathBuf,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    fn start() -> Self {
        let folder = Self::unused_directory();
        let mut server =
            Server::open(&folder, true, Policy::default(), &sys::rollback::NO_ROLLBACK_LOG)
                .unwrap();
        let stop = Arc::new(EventFd::new().unwrap());
        let stop_signal = Arc::clone(&stop);
        let thread = std::thread::spawn(move || server.serve(stop_signal.as_fd()).unwrap());
        Self { folder, stop, thread: Some(thread) }
    }

    /// Returns a directory that does not exist yet.
    fn unused_directory() -> PathBuf {
        static NEXT_DIRECTORY_NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NEXT_DIRECTORY_NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("streamline-server-{}-{number}", std::process::id());
        std::env::temp_dir().join(name)
    }

    fn connect_client(&self) -> Client {
        Client::find(Some(&self.folder)).unwrap()
    }

    fn connect_socket(&self, form: Framing) -> OwnedFd {
        let name = if form == Framing::Packets {
            daemon_directories::PACKET_SOCKET
        } else {
            daemon_directories::STREAM_SOCKET
        };
        local_socket::connect_to(&self.folder.join(name), form, REPLY_TIMEOUT).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.notify();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        assert!(!self.folder.exists(), "nothing is left behind");
    }
}

fn send_bytes(socket: &OwnedFd, bytes: &[u8]) {
    sys::descriptor::send(socket, bytes, &[]).unwrap();
}

/// Returns the next reply, or `None` if the daemon has closed the connection.
fn receive_reply(socket: &OwnedFd) -> Option<(Reply, Vec<OwnedFd>)> {
    let mut bytes = vec![0; 200_000];
    let (length, descriptors) = match sys::descriptor::receive(socket, &mut bytes) {
        // The daemon has closed the connection before it has received all messages.
        Err(error) if error.errno == ECONNRESET => return None,
        received => received.unwrap(),
    };
    let text = bytes[..length].strip_suffix(b"\0").unwrap_or(&bytes[..length]);
    (length > 0).then(|| (Reply::read(text).unwrap(), descriptors))
}

fn deserialize_result_value(reply: &Reply) -> Value {
    reply.parameters.deserialize().unwrap()
}

fn call_method(socket: &OwnedFd, method: &str, parameters: Value) -> Reply {
    send_bytes(socket, &Call::new(method, &parameters).to_bytes());
    receive_reply(socket).unwrap().0
}

/// Registers a path whose process is the test itself. Returns the registering connection, the
/// admission socket and the reply.
fn register_path(daemon: &Daemon, name: &str) -> (OwnedFd, OwnedFd, Reply) {
    register_path_over(daemon.connect_socket(Framing::Packets), name)
}

/// Registers a path over a connection as [`register_path`] does.
fn register_path_over(socket: OwnedFd, name: &str) -> (OwnedFd, OwnedFd, Reply) {
    let (near, far) = sys::descriptor::socket_pair().unwrap();
    let register = RegisterParameters {
        name: Some(name.to_owned()),
        line: "rx lo | count".to_owned(),
        ..RegisterParameters::default()
    };
    let call = Call::new("io.streamline.Register", &register);
    sys::descriptor::send(&socket, &call.to_bytes(), &[far.as_fd()]).unwrap();
    let answer = receive_reply(&socket).unwrap().0;
    (socket, near, answer)
}

#[test]
fn daemon_serves_any_number_of_passed_sockets() {
    let folder = Daemon::unused_directory();
    let names: Vec<PathBuf> = (0..20)
        .map(|number| std::env::temp_dir().join(format!("{}-{number}", folder.display())))
        .collect();
    let given = names.iter().map(|name| {
        (String::new(), OwnedFd::from(std::os::unix::net::UnixListener::bind(name).unwrap()))
    });
    let mut server = Server::from_descriptors(
        &folder,
        given.collect(),
        Policy::default(),
        &sys::rollback::NO_ROLLBACK_LOG,
    )
    .unwrap();
    let stop = Arc::new(EventFd::new().unwrap());
    let stop_signal = Arc::clone(&stop);
    let thread = std::thread::spawn(move || server.serve(stop_signal.as_fd()).unwrap());
    for name in &names {
        let socket = local_socket::connect_to(name, Framing::Stream, REPLY_TIMEOUT).unwrap();
        send_bytes(&socket, b"{\"method\":\"io.streamline.List\"}\0");
        let answer = receive_reply(&socket).unwrap().0;
        assert_eq!(deserialize_result_value(&answer)["paths"], json!([]), "{}", name.display());
    }
    stop.notify();
    thread.join().unwrap();
    names.iter().for_each(|name| std::fs::remove_file(name).unwrap());
}

#[test]
fn j3_stream_socket_serves_common_varlink_tools() {
    let daemon = Daemon::start();
    let stream = daemon.connect_socket(Framing::Stream);
    send_bytes(&stream, b"{\"method\":\"org.varlink.service.GetInfo\"}\0");
    let info = receive_reply(&stream).unwrap().0;
    assert_eq!(
        deserialize_result_value(&info)["interfaces"],
        json!(["org.varlink.service", "io.streamline"])
    );
    // Two calls are sent in three fragments.
    send_bytes(&stream, b"{\"method\":\"io.strea");
    send_bytes(&stream, b"mline.List\"}\0{\"method\":\"io.streamline.About\"");
    send_bytes(&stream, b"}\0");
    let mut both = Vec::new();
    while both.iter().filter(|byte| **byte == 0).count() < 2 {
        let mut bytes = [0; 4096];
        let (length, _) = sys::descriptor::receive(&stream, &mut bytes).unwrap();
        both.extend_from_slice(&bytes[..length]);
    }
    let replies: Vec<Reply> = both
        .split(|byte| *byte == 0)
        .filter(|text| !text.is_empty())
        .map(|text| Reply::read(text).unwrap())
        .collect();
    assert_eq!(deserialize_result_value(&replies[0])["paths"], json!([]));
    assert_eq!(deserialize_result_value(&replies[1])["process"], json!(std::process::id()));
}

#[test]
fn invalid_calls_get_standard_errors() {
    let daemon = Daemon::start();
    for form in [Framing::Packets, Framing::Stream] {
        let socket = daemon.connect_socket(form);
        let end: &[u8] = if form == Framing::Stream { b"\0" } else { b"" };
        for (call, error) in [
            (r#"{"method":"no.such.Thing"}"#, "org.varlink.service.InterfaceNotFound"),
            (r#"{"method":"io.streamline.Thing"}"#, "org.varlink.service.MethodNotFound"),
            (r#"{"method":"nothing"}"#, "org.varlink.service.InterfaceNotFound"),
            (r#"{"method":"io.streamline.Connect"}"#, "org.varlink.service.InvalidParameter"),
            (r#"{"method":"io.streamline.Watch"}"#, "org.varlink.service.ExpectedMore"),
            (
                r#"{"method":"io.streamline.Connect","parameters":{"path":"x"}}"#,
                if form == Framing::Stream {
                    "io.streamline.NeedsDescriptors"
                } else {
                    "io.streamline.NoSuchPath"
                },
            ),
            (
                "{\"method\":\"org.varlink.service.GetInterfaceDescription\",\
                  \"parameters\":{\"interface\":\"x\"}}",
                "org.varlink.service.InterfaceNotFound",
            ),
        ] {
            send_bytes(&socket, &[call.as_bytes(), end].concat());
            assert_eq!(receive_reply(&socket).unwrap().0.error.as_deref(), Some(error), "{call}");
        }
        send_bytes(&socket, &[b"garbage", end].concat());
        let last = receive_reply(&socket).unwrap().0;
        assert_eq!(last.error.as_deref(), Some("org.varlink.service.InvalidParameter"));
        assert!(receive_reply(&socket).is_none(), "who speaks no Varlink is hung up on");
    }
}

/// Two daemons that serve one directory, one after the other, never assign the same dbuf id twice.
#[test]
fn d3_q10_successive_daemons_never_repeat_dbuf_ids() {
    let folder = Daemon::unused_directory();
    // A directory that existed before the daemon stays when the daemon ends.
    std::fs::create_dir(&folder).unwrap();
    let mut all = Vec::new();
    for _ in 0..2 {
        let stop = Arc::new(EventFd::new().unwrap());
        let mut server =
            Server::open(&folder, true, Policy::default(), &sys::rollback::NO_ROLLBACK_LOG)
                .unwrap();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || server.serve(stopped.as_fd()).unwrap());
        for _ in 0..5 {
            let socket = local_socket::connect_to(
                &folder.join(daemon_directories::PACKET_SOCKET),
                Framing::Packets,
                REPLY_TIMEOUT,
            );
            let given = deserialize_result_value(&call_method(
                &socket.unwrap(),
                "io.streamline.DbufIds",
                json!({}),
            ));
            let number = |key: &str| given[key].as_u64().unwrap();
            all.extend(number("first")..number("first") + number("count"));
        }
        stop.notify();
        thread.join().unwrap();
    }
    std::fs::remove_dir_all(folder).unwrap();
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
    assert!(count >= 10 && all.iter().all(|id| (1 << 23..1 << 24).contains(id)), "{all:?}");
}

#[test]
fn interface_descriptions_are_served() {
    let daemon = Daemon::start();
    let socket = daemon.connect_socket(Framing::Packets);
    let method = "org.varlink.service.GetInterfaceDescription";
    let described = call_method(&socket, method, json!({"interface": "io.streamline"}));
    let described = deserialize_result_value(&described);
    let text = described["description"].as_str().unwrap();
    assert!(text.contains("method Register(") && text.contains("interface io.streamline\n"));
}

#[test]
fn path_is_registered_as_long_as_its_connection() {
    let daemon = Daemon::start();
    let watch = daemon.connect_socket(Framing::Packets);
    send_bytes(
        &watch,
        &Call { more: true, ..Call::new("io.streamline.Watch", &json!({})) }.to_bytes(),
    );
    let (socket, near, answer) = register_path(&daemon, "web");
    assert_eq!(deserialize_result_value(&answer)["number"], json!(1));
    let event = |wanted: &str| {
        let (reply, _) = receive_reply(&watch).unwrap();
        assert!(reply.continues);
        let event: PathListEvent = reply.deserialize_result().unwrap();
        assert_eq!((event.event.as_str(), event.path.name.as_deref()), (wanted, Some("web")));
    };
    event("came");
    let listed = daemon.connect_client().list_paths().unwrap();
    assert_eq!(listed.len(), 1);
    assert!(listed[0].yours && listed[0].line.as_deref() == Some("rx lo | count"));
    let (_, _, twice) = register_path(&daemon, "web");
    assert_eq!(twice.error.as_deref(), Some("io.streamline.NameTaken"));

    // The client receives one socket of a pair, the path the other.
    let to = daemon.connect_client().connect("web").unwrap();
    let mut bytes = [0; 999];
    let (length, descriptors) = sys::descriptor::receive(&near, &mut bytes).unwrap();
    let admit = Call::read(&bytes[..length]).unwrap();
    assert_eq!((admit.method.as_str(), admit.oneway), ("io.streamline.path.Admit", true));
    let other = descriptors.into_iter().next().unwrap();
    send_bytes(&other, &Reply::new(&json!({})).to_bytes());
    to.stop().unwrap();

    drop(socket);
    event("went");
    assert_eq!(daemon.connect_client().list_paths().unwrap(), []);
    assert!(matches!(daemon.connect_client().connect("web"), Err(ClientError::Refused(_))));
}

#[test]
fn incompletely_stored_path_is_disconnected_and_registers_again() {
    let (connection, peer) = sys::descriptor::socket_pair().unwrap();
    let (admissions, _) = sys::descriptor::socket_pair().unwrap();
    // The service manager keeps a duplicate of each descriptor that it passes.
    let stored = [connection, admissions];
    let passed = stored.iter().map(|descriptor| descriptor.try_clone().unwrap());
    // The entry is missing: the previous daemon was killed before it stored it.
    let names = ["path-2-connection", "path-2-way"].map(str::to_owned);
    let given = names.into_iter().zip(passed).collect();
    let folder = Daemon::unused_directory();
    let log = &sys::rollback::NO_ROLLBACK_LOG;
    let server = Server::from_descriptors(&folder, given, Policy::default(), log).unwrap();
    let hung_up = sys::poll::wait_until_readable(&[peer.as_fd()], Some(REPLY_TIMEOUT)) == [true];
    assert!(hung_up && receive_reply(&peer).is_none(), "the peer sees the end of the connection");
    drop(server);
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn bad_admission_socket_is_refused_and_full_one_is_busy() {
    let daemon = Daemon::start();
    let socket = daemon.connect_socket(Framing::Packets);
    let register =
        RegisterParameters { line: "rx lo | count".to_owned(), ..RegisterParameters::default() };
    let call = Call::new("io.streamline.Register", &register).to_bytes();
    let file = std::fs::File::open("/dev/null").unwrap();
    let (one, other) = sys::descriptor::socket_pair().unwrap();
    let wrong: [&[_]; 3] = [&[], &[file.as_fd()], &[one.as_fd(), other.as_fd()]];
    for descriptors in wrong {
        sys::descriptor::send(&socket, &call, descriptors).unwrap();
        let refused = receive_reply(&socket).unwrap().0;
        assert_eq!(refused.error.as_deref(), Some("io.streamline.Refused"));
    }
    let (_socket, _near, _) = register_path(&daemon, "deaf");
    let client = daemon.connect_client();
    let busy = (0..100_000).find_map(|_| client.connect("deaf").err());
    let busy = busy.expect("a way has an end").to_string();
    assert!(busy.contains("reads nothing"), "{busy}");
    assert_eq!(client.list_paths().unwrap().len(), 1, "and the daemon goes on");
}

#[test]
fn connecting_to_an_unresponsive_path_reports_no_path() {
    let daemon = Daemon::start();
    let client = daemon.connect_client();
    for round in 0..200 {
        let (socket, near, _) = register_path(&daemon, "short");
        // The path no longer replies but is still registered. A child process of another test may
        // briefly hold a duplicate of its socket, so the daemon may still pass connections to the
        // dead path.
        drop(near);
        let mut refused = None;
        testkit::wait_until("nobody is let in", || {
            refused = client.connect("short").err();
            refused.is_some()
        });
        let refused = refused.unwrap().to_string();
        assert!(refused.contains("no path is called"), "{round}: {refused}");
        drop(socket);
        testkit::wait_until("it is gone", || client.list_paths().unwrap().is_empty());
    }
}

#[test]
fn admitted_client_of_an_ended_path_gets_path_ended_errors() {
    let daemon = Daemon::start();
    let (_socket, near, _) = register_path(&daemon, "short");
    let to = daemon.connect_client().connect("short").unwrap();
    drop(near);
    let ended = ClientError::PathEnded("short".to_owned());
    assert_eq!(to.stop().unwrap_err(), ended);
    assert_eq!(to.counters().unwrap_err(), ended);
    assert_eq!(to.change(&[]).unwrap_err(), ended);
    assert_eq!(to.tap(&TapParameters::default()).unwrap_err(), ended);
    assert!(ended.to_string().contains("path `short` has just ended"), "{ended}");
}

/// A registered path that closes the connections of its clients is not reported as ended.
#[test]
fn query_of_a_path_that_closes_its_clients_times_out() {
    let daemon = Daemon::start();
    let client = daemon.connect_client();
    let (socket, near, _) = register_path(&daemon, "full");
    let query = || {
        let paths = [(0, "full".to_owned())];
        let mut counted =
            client.query_all_counters(&paths, &[], QUERY_TIMEOUT, |_, counters, _| Ok(counters));
        counted.pop().unwrap().unwrap_err()
    };
    std::thread::scope(|scope| {
        let closes = scope.spawn(|| {
            // The descriptor of the admitted client is closed unread.
            sys::poll::wait_until_readable(&[near.as_fd()], Some(testkit::wait::WAIT_TIMEOUT));
            let mut bytes = [0; 4096];
            drop(sys::descriptor::receive(&near, &mut bytes).unwrap());
        });
        assert_eq!(query(), ClientError::Timeout);
        closes.join().unwrap();
    });
    drop((socket, near));
    testkit::wait_until("it is gone", || client.list_paths().unwrap().is_empty());
    assert!(query().is_path_ended());
}

/// A client that floods the daemon, sends partial messages, never reads and reconnects repeatedly
/// does not disturb others.
#[test]
fn t8_t12_hostile_client_disturbs_no_others() {
    if !testkit::run_in_separate_process("t8_t12_hostile_client_disturbs_no_others") {
        return;
    }
    let daemon = Daemon::start();
    let (_socket, _near, _) = register_path(&daemon, "victim");
    let call = Call::new("io.streamline.List", &json!({})).to_bytes();
    // This client calls without reading replies, and is finally disconnected.
    let greedy = daemon.connect_socket(Framing::Packets);
    let sent = (0..1_000_000).find(|_| sys::descriptor::send(&greedy, &call, &[]).is_err());
    assert!(sent.is_some(), "nobody is served for ever");
    // Other clients send partial messages, overlong messages and unexpected descriptors.
    let mut halves = Vec::new();
    for _ in 0..50 {
        let half = daemon.connect_socket(Framing::Stream);
        send_bytes(&half, &vec![b'{'; MESSAGE_BYTES_MAX - 1]);
        halves.push(half);
    }
    let long = daemon.connect_socket(Framing::Packets);
    let _ = sys::descriptor::send(&long, &vec![b' '; MESSAGE_BYTES_MAX + 1], &[]);
    let (mut laden, mut refused) = (daemon.connect_socket(Framing::Packets), 0);
    testkit::wait_until("100 calls with descriptors are refused", || {
        for _ in 0..200 {
            let many = vec![laden.as_fd(); 64];
            let sent = sys::descriptor::send(&laden, b"{\"method\":\"x\"}", &many);
            match sent.ok().and_then(|_| receive_reply(&laden)) {
                Some((reply, _)) if reply.error.is_some() => refused += 1,
                Some((reply, _)) => panic!("{reply:?}"),
                // A client whose last descriptors are still being closed is disconnected.
                None => laden = daemon.connect_socket(Framing::Packets),
            }
        }
        refused >= 100
    });
    for _ in 0..2000 {
        drop(daemon.connect_socket(Framing::Packets));
        drop(daemon.connect_socket(Framing::Stream));
    }
    testkit::wait_until("others are served", || {
        // Until the descriptors of this user are closed, the daemon disconnects the user's clients.
        let listed = Client::find(Some(&daemon.folder)).and_then(|client| client.list_paths());
        listed.is_ok_and(|paths| paths.len() == 1)
    });
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    // The daemon may not yet have noticed every disconnect.
    testkit::wait_until("few descriptors are open", || open() < 400);
}

#[test]
fn t8_descriptor_that_lingers_delays_no_other_client() {
    const LINGER_TIME: Duration = Duration::from_secs(600);
    const OTHER_UID: u32 = 41_601;
    let Some(()) = testkit::need::require_root() else { return };
    let daemon = Daemon::start();
    let as_other = |form| {
        let connect = || daemon.connect_socket(form);
        sys::process::run_as_user((OTHER_UID, OTHER_UID), connect).unwrap()
    };
    let list = Call::new("io.streamline.List", &json!({})).to_bytes();
    // If the daemon waited for the descriptor to close, its reply would exceed the timeout of the
    // socket.
    let about = || {
        let socket = daemon.connect_socket(Framing::Packets);
        assert_eq!(call_method(&socket, "io.streamline.About", json!({})).error, None);
    };
    // The descriptor arrives with a call that needs none.
    let (slow, first_peer) = testkit::lingering_socket(LINGER_TIME);
    let socket = as_other(Framing::Packets);
    sys::descriptor::send(&socket, &list, &[slow.as_fd()]).unwrap();
    drop(slow);
    assert_eq!(receive_reply(&socket).unwrap().0.error, None, "it is served");
    about();
    // The descriptor arrives with a message that is not a call, and with the message after that.
    let (slow, second_peer) = testkit::lingering_socket(LINGER_TIME);
    for _ in 0..2 {
        let _ = sys::descriptor::send(&socket, b"no call", &[slow.as_fd()]);
    }
    drop(slow);
    assert!(receive_reply(&socket).unwrap().0.error.is_some());
    about();
    // The descriptor arrives from the process of a path.
    let (slow, third_peer) = testkit::lingering_socket(LINGER_TIME);
    let (_path, admissions, _) = register_path_over(as_other(Framing::Packets), "slow");
    sys::descriptor::send(&admissions, b"x", &[slow.as_fd()]).unwrap();
    drop(slow);
    about();
    // A message carries more descriptors than are permitted.
    let (slow, fourth_peer) = testkit::lingering_socket(LINGER_TIME);
    let socket = as_other(Framing::Packets);
    testkit::lingering::send_duplicates(&socket, &list, &slow);
    drop(slow);
    assert!(receive_reply(&socket).unwrap().0.error.is_some());
    about();
    // The descriptor arrives over the stream socket, which refuses descriptors since Linux 6.16.
    let (slow, fifth_peer) = testkit::lingering_socket(LINGER_TIME);
    let socket = as_other(Framing::Stream);
    match sys::descriptor::send(&socket, b"x", &[slow.as_fd()]) {
        Ok(()) => drop(slow),
        // This process then has the only copy. The socket closes without delay, because its peer is
        // closed first.
        Err(_) => drop((fifth_peer, slow)),
    }
    about();
    drop((first_peer, second_peer, third_peer, fourth_peer));
}

#[test]
fn error_for_a_missing_daemon_names_the_start_command() {
    let missing = Client::find(Some(std::path::Path::new("/no/such/place"))).unwrap_err();
    assert!(missing.to_string().contains("streamline daemon --user"), "{missing}");
}
