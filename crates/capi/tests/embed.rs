//! Tests of programs in Rust, C and Python that open a request and count the URLs in a capture, and
//! in traffic between two network namespaces.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use testkit::need;
use testkit::net::{
    DevicePairSettings, Namespace, NamespacePair, SERVER, SERVER_DEVICE, is_capturing,
};
use testkit::wait_until;

fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns a directory with a link to the library under its installed name.
fn installed_library_directory() -> &'static PathBuf {
    static LIBRARY_DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY_DIRECTORY.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("embed");
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let beside = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
        let library = beside.join("libstreamline_c.so");
        std::os::unix::fs::symlink(library, folder.join("libstreamline.so")).unwrap();
        folder
    })
}

/// Returns the command of the example for each language whose compiler or interpreter is installed.
/// The example in C is built once for all tests, which run concurrently.
fn example_commands() -> &'static [Vec<String>] {
    static EXAMPLE_COMMANDS: OnceLock<Vec<Vec<String>>> = OnceLock::new();
    EXAMPLE_COMMANDS.get_or_init(find_example_commands)
}

fn find_example_commands() -> Vec<Vec<String>> {
    let text = |path: PathBuf| path.display().to_string();
    let beside = std::env::current_exe().unwrap();
    let rust = beside.parent().unwrap().parent().unwrap().join("examples/embed");
    let mut all = vec![vec![text(rust)]];
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if has("cc") {
        let program = installed_library_directory().join("embed");
        let library = text(installed_library_directory().clone());
        let built = Command::new("cc")
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&program)
            .arg(repository_root().join("examples/embed.c"))
            .arg(format!("-I{}", text(repository_root().join("crates/capi/include"))))
            // An RPATH takes precedence over the `LD_LIBRARY_PATH` that cargo sets.
            .args([format!("-L{library}"), format!("-Wl,--disable-new-dtags,-rpath,{library}")])
            .arg("-lstreamline")
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        all.push(vec![text(program)]);
    } else {
        let _: Option<()> = need::report_skip("no `cc`: no program from C");
    }
    if has("python3") {
        all.push(vec!["python3".to_owned(), text(repository_root().join("examples/embed.py"))]);
    } else {
        let _: Option<()> = need::report_skip("no `python3`: no program from Python");
    }
    all
}

/// Returns a command that runs in the network namespace `space`; `None` stands for the namespace of
/// this process.
fn command_in_namespace(words: &[String], space: Option<&Namespace>) -> Command {
    let mut command = match space {
        Some(space) => space.command(&words[0]),
        None => Command::new(&words[0]),
    };
    command.args(&words[1..]).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
        .env("STREAMLINE_LIBRARY", installed_library_directory().join("libstreamline.so"))
        .env("PYTHONPATH", repository_root().join("crates/capi/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

#[test]
fn programs_in_three_languages_count_the_urls_of_a_capture() {
    let capture = repository_root().join("examples/web.pcap");
    let source = format!("replay {}", capture.display());
    let mut counts = Vec::new();
    for words in example_commands() {
        let ran = command_in_namespace(words, None).arg(&source).output().unwrap();
        let message = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{words:?}: {message}");
        counts.push(String::from_utf8(ran.stdout).unwrap());
    }
    assert!(counts[0].lines().count() > 1, "{}", counts[0]);
    assert!(counts.iter().all(|count| *count == counts[0]), "{counts:#?}");
    // A mistake is reported with its position, and no process is left running.
    for words in example_commands() {
        let ran = command_in_namespace(words, None)
            .arg("replay no.pcap | no-such-filter")
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&ran.stderr);
        assert!(
            !ran.status.success() && message.contains("no-such-filter"),
            "{words:?}: {message}"
        );
    }
}

#[test]
fn python_limits_a_run_and_keeps_the_report_of_a_failed_one() {
    if Command::new("python3").arg("--version").output().is_err() {
        let _: Option<()> = need::report_skip("no `python3`: the runs of its module");
        return;
    }
    let program = "import signal, streamline\n\
                   signal.alarm(60)\n\
                   streamline.run('generate rate=1000 | count', seconds=0.0001).wait()\n\
                   run = streamline.run('generate count=5 | exec \"cat; exit 3\"')\n\
                   try:\n    run.wait()\n\
                   except streamline.Error as error:\n    print(error)\n\
                   try:\n    run.close()\n\
                   except streamline.Error:\n    print(run.report()['sources'][0]['name'])\n\
                   for wrong in {'count': -1}, {'seconds': -1}, {'seconds': float('inf')}, \
                   {'name': 'a\\0b'}, {'request': 'generate count=1\\0 | count'}:\n    \
                   try:\n        streamline.run(**{'request': 'generate | count'} | wrong)\n    \
                   except streamline.Error as error:\n        print(error.errno)";
    let words = ["python3", "-c", program].map(str::to_owned);
    let ran = command_in_namespace(&words, None).output().unwrap();
    let text = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{text}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(text.ends_with("generate\n22\n22\n22\n22\n22\n"), "{text}");
}

#[test]
fn examples_in_docstrings_of_python_have_their_results() {
    if Command::new("python3").arg("--version").output().is_err() {
        let _: Option<()> = need::report_skip("no `python3`: the examples of its module");
        return;
    }
    let program = "import doctest, sys, streamline\n\
                   names = {'streamline': streamline}\n\
                   done = doctest.testmod(streamline, extraglobs=names)\n\
                   print(done.attempted)\n\
                   sys.exit(done.failed > 0)";
    let words = ["python3", "-c", program].map(str::to_owned);
    let mut python = command_in_namespace(&words, None);
    let ran = python.current_dir(repository_root().join("examples")).output().unwrap();
    let text = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{text}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(text.trim().parse::<u32>().unwrap() >= 15, "{text}");
}

/// Answers `requests` HTTP requests with an empty response.
fn serve_empty_responses(listener: &TcpListener, requests: usize) {
    for stream in listener.incoming().take(requests) {
        let mut stream = stream.unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
        lines.take_while(|line| !line.is_empty()).for_each(drop);
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .unwrap();
    }
}

/// Requests a page, and blocks until the server closes the connection.
fn request_page(page: &str) {
    let mut stream = TcpStream::connect((SERVER, 80)).unwrap();
    write!(stream, "GET {page} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    BufReader::new(stream).lines().map_while(Result::ok).for_each(drop);
}

#[test]
fn programs_in_three_languages_count_the_urls_of_traffic() {
    let Some(pair) = NamespacePair::new(DevicePairSettings::default()) else { return };
    for words in example_commands() {
        let source = format!("rx {SERVER_DEVICE} both=yes");
        let mut program = command_in_namespace(words, Some(&pair.server));
        let program = program.args([&source, "3"]).spawn().unwrap();
        wait_until("the program watches", || is_capturing(&pair.server, program.id()));
        let listener =
            pair.server.run_in_network_namespace(|| TcpListener::bind((SERVER, 80)).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| serve_empty_responses(&listener, 3));
            pair.client.run_in_network_namespace(|| ["/one", "/two", "/one"].map(request_page));
        });
        let ran = program.wait_with_output().unwrap();
        let message = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{words:?}: {message}");
        assert_eq!(
            String::from_utf8_lossy(&ran.stdout),
            "2 /one\n1 /two\n",
            "{words:?}: {message}"
        );
    }
}
