//! Tests of the library from C: programs that `cc` compiles, some with several processes, and a run
//! under valgrind if it is installed.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

use abi::access::AccessList;
use buffer::state::{Column, TableShape, TableWriter};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use sys::process::effective_ids;
use testkit::need;

const C_TEST_PARTS: [&str; 6] = ["arguments", "calls", "region", "inbox", "mpipe", "threads"];

/// Returns a directory with a link to the library under its installed name. Cargo puts the library
/// beside this test.
fn library_directory() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().unwrap().join("libstreamline_c.so");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c");
    std::fs::create_dir_all(&folder).unwrap();
    // The link may exist already.
    let _ = std::os::unix::fs::symlink(built, folder.join("libstreamline.so"));
    folder
}

/// Returns true if the program is installed; otherwise records `tests` tests as skipped.
fn is_installed(program: &str, tests: usize) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        let left_out: Option<()> =
            need::report_skip(&format!("no `{program}`: {tests} tests from C"));
        assert!(left_out.is_none());
    }
    found
}

/// Compiles a C program against the header and the library; returns its path, or `None` if `cc` is
/// not installed.
fn compile_program(source: &str, name: &str) -> Option<PathBuf> {
    if !is_installed("cc", 1) {
        return None;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = folder.join(name);
    let built = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-O1", "-o"])
        .arg(&program)
        .arg(root.join(source))
        .arg("-I")
        .arg(root.join("include"))
        .arg("-L")
        .arg(library_directory())
        // An RPATH takes precedence over the `LD_LIBRARY_PATH` that cargo sets.
        .arg(format!("-Wl,--disable-new-dtags,-rpath,{}", library_directory().display()))
        .args(["-lstreamline", "-lpthread"])
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(program)
}

fn c_test_program() -> Option<&'static PathBuf> {
    static C_TEST_PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    C_TEST_PROGRAM.get_or_init(|| compile_program("tests/c/exam.c", "exam")).as_ref()
}

fn assert_success(output: &Output) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {text}", output.status);
}

fn run_c_test_part(name: &str) {
    let Some(program) = c_test_program() else { return };
    assert_success(&Command::new(program).arg(name).output().unwrap());
}

#[test]
fn hostile_arguments_are_errors() {
    run_c_test_part("arguments");
}

#[test]
fn a19_file_interface_calls_work_within_one_process() {
    run_c_test_part("calls");
}

#[test]
fn d17_c_program_reads_and_writes_a_region() {
    run_c_test_part("region");
}

#[test]
fn inbox_accepts_a_writer_in_another_process() {
    run_c_test_part("inbox");
}

#[test]
fn signal_handler_does_not_end_a_wait_early() {
    run_c_test_part("waits");
}

#[test]
fn d9_multiway_pipe_ends_are_inherited_over_fork() {
    run_c_test_part("mpipe");
}

/// Checks that `streamline_peek` returns a pointer into the writer's memory, also in another
/// process and from a ring that overwrites, and that a block that was overwritten in the meantime
/// cannot be released.
#[test]
fn d10_c_program_peeks_in_place_and_detects_overwrites() {
    run_c_test_part("peek");
}

/// A reader with a corrupt cursor is evicted; the writer and the other readers lose nothing (T3).
#[test]
fn t3_reader_with_a_corrupt_cursor_is_evicted() {
    run_c_test_part("evict");
}

#[test]
fn end_is_used_by_one_thread_at_a_time() {
    run_c_test_part("threads");
}

/// Reads published state from C: names, units, values, and the hang-up after the writer has gone.
#[test]
fn m3_c_program_reads_published_state() {
    let Some(program) = c_test_program() else { return };
    let name = format!("exam-{}", std::process::id());
    let column = |name: &str, unit: &str| Column { name: name.to_owned(), unit: unit.to_owned() };
    let columns = vec![column("blocks", "pcs"), column("bytes", "B")];
    let shape = TableShape { filter: "count".to_owned(), columns, rows: 4 };
    let mut writer =
        TableWriter::create(&name, AccessList::private(effective_ids()), shape).unwrap();
    writer.put_row(0, Some(&[1, 2]));
    writer.put_row(2, Some(&[3, 4]));
    writer.end_changes(1);
    let mut child = Command::new(program);
    child.args(["state", &name]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = child.stderr(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    // If the program prints nothing, it has failed, and the assertion below reports the reason.
    if output.next().is_some() {
        writer.put_row(3, Some(&[5, 6]));
        writer.end_changes(2);
        child.stdin.take().unwrap().write_all(b"5").unwrap();
        let _ = output.next();
    }
    drop(writer);
    assert_success(&child.wait_with_output().unwrap());
}

/// Checks that pointers move through three processes without a copy of the bytes, also if the last
/// process opens its end after the others have exited, and that the bytes are copied if one of the
/// ends carries bytes.
#[test]
fn e1_e2_c_program_splices_by_pointer_and_counts_no_copy() {
    let Some(program) = compile_program("tests/c/splice.c", "splice") else { return };
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("splice-contents");
    let contents: Vec<u8> = (0..1_200_000_u32).map(|at| (at * 7 / 11) as u8).collect();
    std::fs::write(&path, contents).unwrap();
    assert_success(&Command::new(program).arg(path).output().unwrap());
}

#[test]
fn book_example_compiles_and_runs() {
    let Some(program) = compile_program("../../examples/c/count.c", "count") else { return };
    let output = Command::new(program).output().unwrap();
    assert_success(&output);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "the sum is 5000050000\n");
}

#[test]
fn valgrind_reports_no_error() {
    let Some(program) = c_test_program() else { return };
    if !is_installed("valgrind", C_TEST_PARTS.len()) {
        return;
    }
    for part in C_TEST_PARTS {
        // After a fork, the child lacks the stacks of the other threads, so the memory to which
        // only they refer seems lost.
        let forks = ["inbox", "mpipe"].contains(&part);
        let leaks = if forks { "--leak-check=no" } else { "--leak-check=full" };
        let output = Command::new("valgrind")
            .args(["-q", "--error-exitcode=9", leaks, "--errors-for-leak-kinds=definite"])
            .args(["--show-leak-kinds=definite", "--child-silent-after-fork=yes"])
            // Threads must be scheduled fairly: otherwise a thread that retries in a loop could
            // keep the only processor forever.
            .arg("--fair-sched=yes")
            .arg(program)
            .arg(part)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{part}: {text}");
    }
}

#[test]
fn h19_program_reads_a_user_sink_and_writes_a_buffer_source() {
    let Some(program) = compile_program("tests/c/named.c", "named") else { return };
    let capture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/web.pcap");
    let name = format!("capi-named-{}", std::process::id());
    let output = Command::new(program).arg(capture).arg(name).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_success(&output);
    assert!(output.stdout.ends_with(b"26707\n"), "the bytes of the TCP frames: {output:?}");
}
