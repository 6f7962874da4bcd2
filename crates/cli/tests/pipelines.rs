//! Tests that compare `streamline sh` with `sh`. Output and exit status must be identical, even if
//! the programs fork, exec, poll, mix system calls with stdio, or are killed. [C9] [D19]
//! (RELIABILITY T16)

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;
#[path = "pipelines/signals.rs"]
mod signals;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use testkit::{need, wait_until};

/// Maximum running time of a tested pipeline, after which the test fails.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Size in bytes of the text file that the tested pipelines read.
const TEXT_FILE_BYTES: usize = 6 << 20;

/// Builds the library and creates a file with [`TEXT_FILE_BYTES`] bytes of text, on the first call.
/// Returns the path of the file.
fn text_file() -> &'static Path {
    static TEXT_FILE: OnceLock<PathBuf> = OnceLock::new();
    TEXT_FILE.get_or_init(|| {
        let path = common::build_pipes_library()
            .with_file_name(format!("pipelines-{}.txt", std::process::id()));
        let mut text = Vec::with_capacity(TEXT_FILE_BYTES + 100);
        for line in 0_u64.. {
            let mark = if line % 50 == 0 { "x" } else { "" };
            let hash = line.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            text.extend(
                format!("line {line} {hash:016b} of some ordinary length {mark}\n").bytes(),
            );
            if text.len() >= TEXT_FILE_BYTES {
                break;
            }
        }
        std::fs::write(&path, text).unwrap();
        path
    })
}

fn shell_command(options: &[&str], script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamline"));
    command.arg("sh").args(options).args(["-c", script]).env("F", text_file());
    command
}

/// Runs a command and returns its output. Panics when the time limit expires.
fn run_with_timeout(mut command: Command) -> Output {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = child.spawn().unwrap();
    let id = child.id();
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        if wait.recv_timeout(TIMEOUT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let _ = Command::new("kill").args(["-9", &id.to_string()]).status();
            return false;
        }
        true
    });
    let output = child.wait_with_output().unwrap();
    drop(done);
    assert!(watch.join().unwrap(), "took longer than {TIMEOUT:?}: {command:?}");
    output
}

/// Asserts that a script has the same results in `sh` and in `streamline sh` with copies, with
/// pointers and with kernel pipes.
fn assert_same_results(script: &str) {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).env("F", text_file());
    let plain = run_with_timeout(shell);
    for options in [&[][..], &["--lazy"], &["--isolate"]] {
        let ours = run_with_timeout(shell_command(options, script));
        let about = String::from_utf8_lossy(&ours.stderr).into_owned();
        assert_eq!(ours.status.code(), plain.status.code(), "{options:?} {script}: {about}");
        assert!(
            ours.stdout == plain.stdout,
            "{options:?} {script}: {} bytes instead of {}: {about}",
            ours.stdout.len(),
            plain.stdout.len()
        );
    }
}

#[test]
fn c9_plain_pipeline_output_equals_that_of_sh() {
    for script in [
        "cat $F | grep x | wc -l",
        "cat $F | cat | cat | md5sum",
        "cat $F | sort | md5sum",
        "cat $F | tee /dev/null | md5sum",
        "cat $F | tail -n 5",
        "cat $F | dd bs=100000 status=none | md5sum",
        "dd if=$F bs=3 count=100000 status=none | cat | md5sum",
        "dd if=$F bs=1M status=none | dd bs=777 status=none | md5sum",
        "cat $F | head -n 3",
        "cat $F | head -n 30000 | md5sum",
        "yes | head -n 3",
        "yes | head -n 1000000 | md5sum",
        "grep -v x $F | sed s/line/LINE/ | awk '{print $2}' | md5sum",
        "cat $F | tr a-z A-Z | cut -c1-20 | uniq | wc",
        "cat < $F | wc -c 2>&1",
        "cat /nowhere 2>&1 | wc -c",
        "cat $F | grep nothing-like-this",
        "cat $F | false",
        "true | cat",
        "find /etc/default -type f | xargs cat | md5sum",
        "cat $F | xargs -n 5000 echo | md5sum",
    ] {
        assert_same_results(script);
    }
}

/// Lowers the descriptor limit below the descriptor numbers that streams need. Asserts that all
/// edges are kernel pipes, and that a single note reports the reason.
#[test]
fn sh_with_few_descriptors_falls_back_to_kernel_pipes() {
    let script = "cat $F | grep x | wc -l";
    let own = env!("CARGO_BIN_EXE_streamline");
    let mut command = Command::new("sh");
    let limited = format!("ulimit -n 512; exec \"{own}\" sh -c '{script}'");
    command.args(["-c", &limited]).env("F", text_file());
    let ran = run_with_timeout(command);
    let mut plain = Command::new("sh");
    plain.args(["-c", script]).env("F", text_file());
    assert_eq!((ran.status.code(), &ran.stdout), (Some(0), &run_with_timeout(plain).stdout));
    let stderr = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(stderr.starts_with("note: edges stay kernel pipes: "), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn command_that_is_no_plain_pipeline_runs_in_the_shell() {
    for script in [
        "(echo a; echo b) | cat",
        "head -n 200 $F | while read l; do echo $l; done | wc -l",
        "for i in 1 2 3; do echo $i; done | cat; exit 3",
        "{ seq 100000; echo done; } | tail -n 1",
    ] {
        assert_same_results(script);
    }
}

#[test]
fn shell_stage_forks_and_reads_as_with_pipes() {
    for shell in ["bash", "dash"] {
        let Some(_) = need::require_command(shell) else { continue };
        for body in [
            "while read l; do echo $l; done < <(head -n 200) 2>/dev/null || cat | md5sum",
            "head -n 300 | while read l; do echo $l; done; cat | wc -c > /dev/null",
            "(head -c 1000000 > /dev/null; cat) | wc -c",
            "cat; echo end",
            "exec cat",
            "cat & wait; echo after",
        ] {
            assert_same_results(&format!("cat $F | {shell} -c '{body}' | md5sum"));
        }
    }
}

/// Returns the path of the Python executable, not of a wrapper script.
fn python_path() -> Option<String> {
    let name = need::require_command("python3")?;
    let output = Command::new(name).args(["-c", "import sys; print(sys.executable)"]).output();
    Some(String::from_utf8(output.unwrap().stdout).unwrap().trim().to_owned())
}

/// Runs the shell pipeline that consists of the text `before`, a command with the Python program
/// `body`, and the text `after`. Asserts that the results are the same as in `sh`.
fn assert_same_python_results(before: &str, body: &str, after: &str) {
    let Some(python) = python_path() else { return };
    static NEXT_PROGRAM_NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NEXT_PROGRAM_NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = text_file().with_extension(format!("{number}.py"));
    std::fs::write(&path, body).unwrap();
    assert_same_results(&format!("{before}{python} {}{after}", path.display()));
    std::fs::remove_file(path).unwrap();
}

/// Python code that precedes a test program. It defines `some(n)`, which copies `n` bytes from
/// standard input to standard output, and then copies so many bytes that the edges of the pipeline
/// become rings.
const PYTHON_READ_PREAMBLE: &str = "import os, sys, subprocess, select\n\
    def some(n):\n    \
        while n > 0:\n        \
            b = os.read(0, 65536)\n        \
            if not b: break\n        \
            os.write(1, b); n -= len(b)\n\
    some(1500000)\n";

#[test]
fn forked_reader_shares_unread_bytes_with_its_child() {
    let bodies = [
        "subprocess.run(['cat'])",
        "subprocess.run('head -c 1000 > /dev/null; cat > /dev/null', shell=True)",
        "os.fork() or os._exit(0)\nos.wait()\nsome(1 << 30)",
        "p = os.fork()\nif p == 0:\n    some(1 << 30); os._exit(0)\nos.waitpid(p, 0)",
        "os.posix_spawn('/bin/true', ['true'], os.environ)\nsome(1 << 30)",
        "os.system('true')\nsome(1 << 30)",
        "try:\n    os.waitpid(-1, os.WNOHANG)\nexcept ChildProcessError: pass\n\
         os.system('true')\n\
         try:\n    os.waitpid(-1, os.WNOHANG); os.write(1, b'a child too many')\n\
         except ChildProcessError: pass\nsome(1 << 30)",
    ];
    for body in bodies {
        assert_same_python_results(
            "cat $F | ",
            &format!("{PYTHON_READ_PREAMBLE}{body}\n"),
            " | md5sum",
        );
    }
}

#[test]
fn reader_continues_after_exec_and_poll() {
    for body in [
        "os.execvp('cat', ['cat'])",
        "os.execvp('sh', ['sh', '-c', 'cat; echo end'])",
        "select.select([0], [], [])\nsome(1 << 30)",
        "p = select.poll(); p.register(0); p.poll()\nsome(1 << 30)",
        "d = os.dup(0); os.close(0); os.dup2(d, 0); os.close(d)\nsome(1 << 30)",
        "os.dup2(0, 9); os.close(0)\nos.dup2(9, 0)\nsome(1 << 30)",
        "os.set_blocking(0, False)\n\
         while True:\n    \
             try:\n        b = os.read(0, 10000)\n    \
             except BlockingIOError:\n        os.sched_yield(); continue\n    \
             if not b: break\n    \
             os.write(1, b)",
    ] {
        assert_same_python_results(
            "cat $F | ",
            &format!("{PYTHON_READ_PREAMBLE}{body}\n"),
            " | md5sum",
        );
    }
}

#[test]
fn writer_mixing_output_calls_keeps_its_order() {
    let some = "import os, sys, subprocess, ctypes\n\
        libc = ctypes.CDLL(None)\n\
        def some(n):\n    \
            for i in range(n): os.write(1, (b'%07d ' % i) * 1000)\n\
        some(200)\n";
    for body in [
        "subprocess.run(['echo', 'by a child'])\nsome(300)",
        "os.fork() or (os.write(1, b'by a child\\n'), os._exit(0))\nos.wait()\nsome(300)",
        // A preloaded library cannot intercept the C library's internal writes.
        "libc.puts(b'by stdio'); libc.fflush(None)\nsome(300)\n\
         libc.puts(b'by stdio'); libc.fflush(None)\nsome(30)",
        "os.execvp('sh', ['sh', '-c', 'echo by another program'])",
        "d = os.dup(1); os.close(1)\nos.write(d, b'by a copy'); os.dup2(d, 1)\nsome(30)",
        "for i in range(300): os.writev(1, [b'', b'one', b'two' * 9999])",
        "os.set_blocking(1, False)\nb = b'z' * 3000000\n\
         while b:\n    \
             try: b = b[os.write(1, b):]\n    \
             except BlockingIOError: os.sched_yield()",
        "os.kill(os.getpid(), 9)",
    ] {
        assert_same_python_results("", &format!("{some}{body}\n"), " | cat | md5sum");
        assert_same_python_results(
            "",
            &format!("{some}{body}\n"),
            " | dd bs=64k status=none | md5sum",
        );
    }
}

#[test]
fn writer_without_reader_ends_as_in_a_shell() {
    let ended = run_with_timeout(shell_command(&["--pipefail"], "yes | head -c 10000000 | wc -c"));
    assert_eq!((ended.status.code(), &*ended.stdout), (Some(141), &b"10000000\n"[..]));
    let Some(python) = python_path() else { return };
    let body = format!("{PYTHON_READ_PREAMBLE}os.kill(os.getpid(), 9)\n");
    let path = text_file().with_extension("killed.py");
    std::fs::write(&path, body).unwrap();
    let killed =
        run_with_timeout(shell_command(&[], &format!("yes | {python} {}", path.display())));
    assert_eq!(killed.status.code(), Some(137));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn large_transfer_uses_a_ring_and_leaves_no_resources() {
    let mut command = shell_command(&["-v"], "yes | cat");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let rings = |pid: &str| {
        std::fs::read_to_string(format!("/proc/{pid}/maps"))
            .is_ok_and(|maps| maps.contains("streamline-ring"))
    };
    let members = || {
        let path = format!("/proc/{0}/task/{0}/children", child.id());
        let list = std::fs::read_to_string(path).unwrap_or_default();
        list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    wait_until("both members have a ring", || {
        members().len() == 2 && members().iter().all(|pid| rings(pid))
    });
    // When one stage is killed, the others end as they do with pipes.
    let reader = members().pop().unwrap();
    assert!(Command::new("kill").args(["-9", &reader]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(137));
}

#[test]
fn d19_edge_is_a_kernel_pipe_if_isolated_or_not_preloadable() {
    let stderr = |options: &[&str], script| {
        let output = run_with_timeout(shell_command(options, script));
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(stderr(&["-v"], "true | cat").contains("edge 1, true → cat"), "a shell's own word");
    assert!(stderr(&["-v"], "cat /dev/null | cat").contains("cat → cat: a pipe, and a ring"));
    assert!(
        stderr(&["-v", "--isolate"], "cat /dev/null | cat").contains("a kernel pipe: --isolate")
    );
    assert!(stderr(&["-v"], "cat /dev/null; true").contains("not a plain pipeline"));
}

/// Asserts that the output of a copying command is the same with and without lazy copies, on
/// standard output and in a file.
fn assert_lazy_copy_equals_copy(words: &str) {
    let out = text_file().with_extension("out");
    let place = out.display().to_string();
    let words: Vec<String> = words
        .split(' ')
        .map(|word| word.replace("IN", &text_file().display().to_string()).replace("OUT", &place))
        .collect();
    let result = |mut command: Command| {
        let _ = std::fs::remove_file(&out);
        let output = run_with_timeout({
            command.args(&words);
            command
        });
        (output.status.code(), output.stdout, std::fs::read(&out).unwrap_or_default())
    };
    let plain = result(Command::new("env"));
    let mut ours = Command::new(env!("CARGO_BIN_EXE_streamline"));
    ours.args(["exec", "--lazy"]);
    assert!(result(ours) == plain, "{words:?}");
    let _ = std::fs::remove_file(out);
}

#[test]
fn e3_lazy_copy_output_equals_copy_whether_read_or_not() {
    for words in [
        "dd if=IN of=OUT bs=64k status=none",
        "dd if=IN of=OUT bs=4k status=none",
        "dd if=IN of=OUT bs=512 status=none",
        "dd if=IN of=OUT bs=100000 status=none",
        "dd if=IN of=OUT bs=1M skip=1 seek=2 count=3 status=none",
        "dd if=IN bs=64k count=20 status=none",
        // These programs access the data, which causes a page fault and, from then on, real copies.
        "dd if=IN of=OUT bs=64k conv=ucase status=none",
        "dd if=IN of=OUT bs=64k conv=sparse status=none",
        "dd if=IN of=OUT ibs=64k obs=16k status=none",
        "dd if=IN of=OUT ibs=4k obs=1M status=none",
        "dd if=IN of=OUT bs=64k iflag=direct status=none",
        "dd if=IN of=OUT bs=64k iflag=fullblock,nocache status=none",
        "cat IN IN IN",
        "cat -n IN",
        "cat -A IN IN",
        "cat IN /nowhere IN",
    ] {
        assert_lazy_copy_equals_copy(words);
    }
}

/// Returns the numbers of bytes that `-v` reports for one end of an edge: copied, passed by
/// pointer, and moved through the kernel pipe.
fn edge_counts(report: &str, end: &str) -> [usize; 3] {
    let line = report.lines().find(|line| line.contains(end));
    let numbers = line.unwrap_or_else(|| panic!("no line of `{end}`: {report}"));
    let (_, numbers) = numbers.split_once(end).unwrap();
    let mut numbers = numbers.split_whitespace().filter_map(|word| word.parse().ok());
    [numbers.next().unwrap(), numbers.next().unwrap(), numbers.next().unwrap()]
}

/// With `--lazy`, a file passes through a pipeline of the system's coreutils by pointer. `cat` and
/// `dd` do not read its bytes; `tee` and `wc` read them from the page cache. Only the first bytes,
/// before the rings exist, pass through the pipe.
#[test]
fn e1_g4_file_crosses_a_pipeline_by_pointer() {
    const FILES: usize = 4;
    let copy = text_file().with_extension("tee");
    let files = ["$F"; FILES].join(" ");
    let script = format!("cat {files} | tee {} | dd bs=64k status=none | wc -c", copy.display());
    let ran = run_with_timeout(shell_command(&["--lazy", "-v"], &script));
    let report = String::from_utf8(ran.stderr).unwrap();
    let text = std::fs::read(text_file()).unwrap().repeat(FILES);
    let size = text.len();
    assert_eq!(String::from_utf8(ran.stdout).unwrap().trim(), size.to_string());
    assert!(std::fs::read(&copy).unwrap() == text);
    std::fs::remove_file(copy).unwrap();
    // Some bytes are moved before a stage has a ring, more of them on a busy machine.
    let start = size / 2;
    for writer in ["cat wrote:", "tee wrote:", "dd wrote:"] {
        let [copied, passed, pipe] = edge_counts(&report, writer);
        assert_eq!(copied + passed + pipe, size, "{writer} {report}");
        assert!(passed > size - start && copied < start, "{writer} {report}");
    }
    for (reader, touches) in [("tee read:", true), ("dd read:", false), ("wc read:", true)] {
        let [copied, passed, pipe] = edge_counts(&report, reader);
        assert_eq!(copied + passed + pipe, size, "{reader} {report}");
        assert_eq!(copied > size - start, touches, "{reader} {report}");
        assert_eq!(passed > size - start, !touches, "{reader} {report}");
    }
    // Without `--lazy`, the report counts every byte as copied.
    let script = format!("cat {files} | dd bs=64k status=none | wc -c");
    let ran = run_with_timeout(shell_command(&["-v"], &script));
    let report = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(edge_counts(&report, "dd read:")[1], 0, "{report}");
    assert!(edge_counts(&report, "dd read:")[0] > size - start, "{report}");
}

/// Returns the current size in KB, the largest size in KB and the number of growth steps that
/// `streamline sh -v` reports for the ring of an edge. `edge` is the number of the edge in the
/// pipeline.
fn reported_ring_sizes(report: &str, edge: usize) -> [usize; 3] {
    let begin = format!("edge {edge}, ring: ");
    let line = report.lines().find_map(|line| line.split_once(&begin));
    let (_, line) = line.unwrap_or_else(|| panic!("no ring: {report}"));
    let numbers = line.split(|c: char| !c.is_ascii_digit());
    let mut numbers = numbers.filter_map(|word| word.parse().ok());
    [numbers.next().unwrap(), numbers.next().unwrap(), numbers.next().unwrap()]
}

/// Runs a pipeline whose reader is always slower than its writer. Asserts that the ring has its
/// maximum size at the end.
#[test]
fn f6_full_ring_of_a_pipeline_keeps_its_size() {
    let script = "cat $F $F $F $F $F $F $F $F | dd bs=64k conv=ucase status=none | md5sum";
    assert_same_results(script);
    let report =
        String::from_utf8(run_with_timeout(shell_command(&["-v"], script)).stderr).unwrap();
    let [size, most, _] = reported_ring_sizes(&report, 1);
    assert!(size == most && size > 0, "{report}");
}

/// Runs a pipeline whose reader keeps up with its writer, both on one processor. Asserts that the
/// ring shrinks.
#[test]
fn f6_ring_with_a_prompt_reader_shrinks() {
    let Some(program) = CompiledWriter::new("slow") else { return };
    if need::require_command("taskset").is_none() {
        return;
    }
    let script = format!("{} slow | dd bs=64k status=none | md5sum", program.0.display());
    let mut shell = Command::new("sh");
    let plain = run_with_timeout({
        shell.args(["-c", &script]);
        shell
    });
    let mut command = Command::new("taskset");
    let own = env!("CARGO_BIN_EXE_streamline");
    let processor = sys::process::allowed_processors().unwrap()[0].to_string();
    command.args(["-c", &processor, own, "sh", "-v", "-c", &script]);
    let ran = run_with_timeout(command);
    let report = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.stdout, plain.stdout, "{report}");
    let [size, most, _] = reported_ring_sizes(&report, 1);
    assert!(size < most, "{report}");
}

/// An executable compiled from [`WRITER_SOURCE`]. Removed on drop.
struct CompiledWriter(PathBuf);

impl CompiledWriter {
    /// Compiles [`WRITER_SOURCE`] to an executable whose file extension is `name`. Reports a skip
    /// and returns `None` if the machine has no compiler.
    fn new(name: &str) -> Option<Self> {
        let compiler = need::require_command("cc")?;
        let path = text_file().with_extension(name);
        let source = path.with_extension(format!("{name}.c"));
        std::fs::write(&source, WRITER_SOURCE).unwrap();
        let built = Command::new(compiler).arg("-o").args([&path, &source]).status().unwrap();
        assert!(built.success());
        std::fs::remove_file(source).unwrap();
        Some(Self(path))
    }
}

impl Drop for CompiledWriter {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// C program that writes to a ring many times the size of the ring. After its first writes, it
/// installs a seccomp filter that kills it if it calls `fallocate` or `memfd_create`. With an
/// argument, it writes slowly and installs no filter.
const WRITER_SOURCE: &str = r"
    #include <linux/filter.h>
    #include <linux/seccomp.h>
    #include <stddef.h>
    #include <sys/prctl.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    static char block[50000];
    static int put(int times) {
        while (times-- > 0)
            if (write(1, block, sizeof block) != sizeof block) return 0;
        return 1;
    }
    int main(int count, char **words) {
        (void)words;
        if (count > 1) {
            for (int at = 0; at < 400; at++)
                if (usleep(500) || !put(1)) return 5;
            return 0;
        }
        struct sock_filter code[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 1, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = { 5, code };
        if (!put(30)) return 1;
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 2;
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 3;
        return put(1000) ? 0 : 4;
    }
";

/// Runs a program with a seccomp filter that would kill it for the system calls that resize a ring.
/// Asserts that its ring is never resized.
#[test]
fn f6_program_with_a_syscall_filter_keeps_its_ring_size() {
    let Some(program) = CompiledWriter::new("restricted") else { return };
    let script = format!("{} | dd bs=64k status=none | md5sum", program.0.display());
    let ran = run_with_timeout(shell_command(&["-v", "--pipefail"], &script));
    let report = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(0), "{report}");
    let mut plain = Command::new("sh");
    plain.args(["-c", &script]);
    assert_eq!(ran.stdout, run_with_timeout(plain).stdout, "{report}");
    assert_eq!(reported_ring_sizes(&report, 1)[0], 2048, "{report}");
    assert!(edge_counts(&report, " wrote:")[0] > 40_000_000, "{report}");
}

/// A reader gets `EIO` for bytes of a file that was truncated before the read. It never gets wrong
/// bytes or a premature end of file.
#[test]
fn e5_read_of_a_pointer_to_truncated_file_data_fails() {
    let Some(python) = python_path() else { return };
    let (file, code) =
        (text_file().with_extension("cut-pointer"), text_file().with_extension("cut.py"));
    std::fs::write(&file, std::fs::read(text_file()).unwrap()).unwrap();
    let body = "import os, sys\n\
        got = b''\n\
        while len(got) < 2000000: got += os.read(0, 65536)\n\
        os.truncate(sys.argv[1], 0)\n\
        try:\n    \
            while True:\n        \
                b = os.read(0, 65536)\n        \
                if not b: print('end'); break\n        \
                got += b\n\
        except OSError as why: print(why.errno)\n\
        print(open(sys.argv[2], 'rb').read().startswith(got))\n";
    std::fs::write(&code, body).unwrap();
    let [code_path, file_path] = [&code, &file].map(|path| path.display().to_string());
    let original = text_file().display();
    let script = format!("cat {file_path} | {python} {code_path} {file_path} {original}");
    let ran = run_with_timeout(shell_command(&["--lazy"], &script));
    assert_eq!(String::from_utf8(ran.stdout).unwrap(), "5\nTrue\n");
    let _ = (std::fs::remove_file(file), std::fs::remove_file(code));
}

#[test]
fn e3_lazy_copy_of_a_changed_file_writes_the_new_contents() {
    let script = "cat $F | md5sum";
    let plain = run_with_timeout(shell_command(&[], script));
    assert_eq!(run_with_timeout(shell_command(&["--lazy"], script)).stdout, plain.stdout);
    for options in [&["--lazy"][..], &["--lazy", "--isolate"]] {
        let script = "cat $F $F $F | dd bs=64k status=none | md5sum";
        assert_eq!(
            run_with_timeout(shell_command(options, script)).stdout,
            run_with_timeout(shell_command(&[], script)).stdout
        );
    }
}

/// Traces `dd` on a file. If the output is a ring, `dd` makes no read or write call. If the output
/// is a file, which cannot accept a pointer, `dd` reads as usual.
#[test]
fn e1_lazy_copy_reads_only_if_output_accepts_no_pointer() {
    let Some(strace) = need::require_command("strace") else { return };
    let (trace, out) = (text_file().with_extension("trace"), text_file().with_extension("copy"));
    let blocks = TEXT_FILE_BYTES / 65536;
    let script = "dd if=$F bs=64k status=none | dd bs=64k status=none | wc -c";
    for (script, most) in [
        (script.to_owned(), blocks / 2),
        (format!("dd if=$F bs=64k status=none of={} | cat", out.display()), usize::MAX),
    ] {
        let mut command = Command::new(&strace);
        command.args(["-f", "-e", "trace=read,pread64,write", "-o"]).arg(&trace);
        command.arg(env!("CARGO_BIN_EXE_streamline")).args(["sh", "--lazy", "-c", &script]);
        let output = run_with_timeout({
            command.env("F", text_file());
            command
        });
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            return need::report_skip::<()>(&format!("strace may not run here: {why}"))
                .unwrap_or(());
        }
        let trace_text = std::fs::read_to_string(&trace).unwrap();
        let whole = trace_text.lines().filter(|line| line.contains(", 65536) = 65536")).count();
        assert!(whole <= most, "{script}: {whole} whole blocks");
        assert!(most < blocks || whole > blocks, "{script}: {whole} whole blocks");
    }
    assert!(std::fs::read(&out).unwrap() == std::fs::read(text_file()).unwrap());
    let _ = (std::fs::remove_file(trace), std::fs::remove_file(out));
}

#[test]
fn e5_file_truncated_under_a_lazy_copy_kills_no_program() {
    use std::io::Read as _;
    let path = text_file().with_extension("cut");
    std::fs::write(&path, std::fs::read(text_file()).unwrap()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamline"));
    command.args(["exec", "--lazy", "dd", "bs=64k"]).arg(format!("if={}", path.display()));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    let mut start = vec![0; 500_000];
    output.read_exact(&mut start).unwrap();
    assert!(std::fs::read(text_file()).unwrap().starts_with(&start));
    std::fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    output.read_to_end(&mut Vec::new()).unwrap();
    let code = child.wait().unwrap().code();
    assert!(matches!(code, Some(0 | 1)), "by a signal? {code:?}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn missing_library_is_reported_with_a_remedy() {
    let mut command = shell_command(&[], "cat /dev/null | cat");
    command.env("STREAMLINE_LIB", "/nowhere");
    let output = run_with_timeout(command);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(126), "{stderr}");
    assert!(stderr.contains("STREAMLINE_LIB: /nowhere is not a library"), "{stderr}");
}

#[test]
fn forged_edge_variables_are_ignored() {
    // The environment contains invalid entries, and entries that refer to descriptors of other
    // kinds.
    for edges in ["r:1:700:1", "w:0:0:0,r:0:0:0", "nonsense", "r:1:999999:1,,,,"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_streamline"));
        command.args(["exec", "cat"]).arg(text_file()).env("STREAMLINE_EDGES", edges);
        let output = run_with_timeout(command);
        assert!(output.stdout == std::fs::read(text_file()).unwrap(), "{edges}");
    }
}
