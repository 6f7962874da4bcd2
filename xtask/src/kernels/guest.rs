//! A kernel in a virtual machine: its package, its initial ramdisk, its boot, and the results that
//! the guest prints.

use super::archive::CpioArchive;
use super::{GuestPrograms, program_output, unpack_package};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Time limit for a guest, including its boot. Emulation is about thirty times slower than the
/// host, and a trial of packages on a busy machine takes twenty minutes.
const GUEST_TIME_LIMIT: Duration = Duration::from_secs(1800);

/// Kernel modules in loading order. Modules that are built into a kernel are skipped.
const KERNEL_MODULES: &[&str] =
    &["llc", "stp", "garp", "mrp", "8021q", "veth", "sch_ingress", "cls_bpf", "act_bpf"];

/// Prefix of the output lines of the virtual machine that become rows of the table of results.
const ROW_PREFIX: &str = "row: ";

/// A kernel, unpacked from its package.
pub(super) struct Kernel {
    /// Version of the kernel, as printed by `uname -r`.
    pub(super) version: String,
    image: PathBuf,
    modules: PathBuf,
}

/// Result of booting a virtual machine: whether its script reached the end, and its result lines.
pub(crate) struct BootResult {
    pub(crate) reached_end: bool,
    pub(crate) lines: Vec<String>,
}

impl Kernel {
    /// Returns the newest Debian kernel of a series such as `6.1`. Downloads and unpacks its
    /// package into `home`, unless `home` already contains a package of the series.
    pub(super) fn find_newest_kernel(home: &Path, series: &str) -> Result<Self, String> {
        let dots = series.replace('.', r"\.");
        let pattern = format!(r"^linux-image-{dots}\.[0-9].*cloud-amd64-unsigned$");
        let folder = unpack_package(home, series, &pattern)?;
        let boot = fs::read_dir(folder.join("boot")).map_err(|why| why.to_string())?;
        let names = boot.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let version = names.filter_map(|n| n.strip_prefix("vmlinuz-").map(str::to_owned)).next();
        let version = version.ok_or("its package has no kernel")?;
        let image = folder.join("boot").join(format!("vmlinuz-{version}"));
        let modules = folder.join("lib/modules").join(&version).join("kernel");
        Ok(Self { version, image, modules })
    }

    /// Boots the kernel in emulation. The guest runs all programs and powers off.
    pub(super) fn run(&self, home: &Path, programs: &GuestPrograms) -> Result<BootResult, String> {
        let system = home.join(format!("{}.cpio", self.version));
        fs::write(&system, self.build_initial_ramdisk(home, programs)?)
            .map_err(|why| why.to_string())?;
        println!("\n== Linux {}", self.version);
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args("-accel tcg -cpu max -smp 2 -m 3072 -nographic -no-reboot -nic none".split(' '));
        qemu.arg("-kernel").arg(&self.image).arg("-initrd").arg(&system);
        qemu.args(["-append", "console=ttyS0 quiet panic=-1"]);
        let begin = Instant::now();
        let mut run = run_emulator(&mut qemu)?;
        run.lines.push(format!("{} s in all", begin.elapsed().as_secs()));
        let _ = fs::remove_file(system);
        Ok(run)
    }

    /// Builds the initial ramdisk: busybox, the programs to run with their libraries, and the
    /// kernel modules.
    fn build_initial_ramdisk(
        &self,
        home: &Path,
        programs: &GuestPrograms,
    ) -> Result<Vec<u8>, String> {
        let busybox = unpack_package(home, "busybox", "^busybox-static$")?.join("bin/busybox");
        let mut system = CpioArchive::default();
        for folder in ["dev", "proc", "sys", "run/netns", "tmp", "etc"] {
            system.add_directory(folder);
        }
        system.add_file("/bin/busybox", &read_file(&busybox)?);
        let ip = program_output(Command::new("sh").args(["-c", "command -v ip"]))?;
        let ip = PathBuf::from(ip.trim());
        let mine = [("/exam", &programs.exam), ("/streamline", &programs.streamline), ("/ip", &ip)];
        for (path, program) in mine {
            system.add_file(&format!("/bin{path}"), &strip_program(home, program)?);
            for library in linked_libraries(program)? {
                system.add_file(&library, &read_file(Path::new(&library))?);
            }
        }
        for name in KERNEL_MODULES {
            if let Some(module) = self.module_bytes(name)? {
                system.add_file(&format!("/modules/{name}.ko"), &module);
            }
        }
        system.add_file("/init", include_bytes!("init.sh"));
        Ok(system.finish())
    }

    /// Returns the bytes of a kernel module, or `None` if the module is built into the kernel or
    /// missing.
    fn module_bytes(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        let found = program_output(
            Command::new("find").arg(&self.modules).args(["-name", &format!("{name}.ko*")]),
        )?;
        let Some(path) = found.lines().next().map(PathBuf::from) else { return Ok(None) };
        if path.extension().is_some_and(|end| end == "xz") {
            let plain = Command::new("xz").arg("-dc").arg(&path).output();
            return Ok(Some(plain.map_err(|why| why.to_string())?.stdout));
        }
        read_file(&path).map(Some)
    }
}

/// Returns a program without debug symbols, because unpacking them would take longer than running
/// the program. Returns it unchanged if `strip` fails.
fn strip_program(home: &Path, program: &Path) -> Result<Vec<u8>, String> {
    let small = home.join("stripped");
    match program_output(Command::new("strip").arg("-o").args([&small, program])) {
        Ok(_) => read_file(&small),
        Err(_) => read_file(program),
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|why| format!("{}: {why}", path.display()))
}

/// Returns the libraries that a program is linked to, including the loader.
fn linked_libraries(program: &Path) -> Result<Vec<String>, String> {
    let row = program_output(Command::new("ldd").arg(program))?;
    let words = row.split_whitespace().filter(|word| word.starts_with('/'));
    Ok(words.map(str::to_owned).collect())
}

/// Runs the emulator and prints the guest's output; kills the emulator after [`GUEST_TIME_LIMIT`].
pub(crate) fn run_emulator(qemu: &mut Command) -> Result<BootResult, String> {
    let mut child = qemu
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|why| format!("qemu: {why}"))?;
    let (send, lines) = mpsc::channel();
    let output = child.stdout.take().ok_or("qemu has no output")?;
    std::thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            if send.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                break;
            }
        }
    });
    let end = Instant::now() + GUEST_TIME_LIMIT;
    let mut run = BootResult { reached_end: false, lines: Vec::new() };
    loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                println!("{line}");
                if let Some((_, row)) = line.split_once(ROW_PREFIX) {
                    run.reached_end |= row == "done";
                    run.lines.push(row.to_owned());
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                run.lines.push(format!("FAILED: not done in {} s", GUEST_TIME_LIMIT.as_secs()));
                let _ = child.kill();
                break;
            }
        }
    }
    child.wait().map_err(|why| why.to_string())?;
    run.reached_end &= !run.lines.iter().any(|line| line.contains("FAILED"));
    Ok(run)
}
