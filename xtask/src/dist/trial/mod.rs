//! Trial of the packages in a virtual machine with systemd: installation, first request, service,
//! upgrade while a path runs, and removal.
//!
//! The machine is a Debian release made by mmdebstrap, with its kernel. It runs under KVM if the
//! processor has virtualization extensions; otherwise it is emulated, which is slow. The script
//! `guest.sh` runs in the machine and reports each check. Needs root, qemu, mmdebstrap and
//! mkfs.ext4; the Debian release is downloaded once.

use super::release::program_output;
use super::stage;
use crate::install::file_list::InstallFile;
use crate::kernels::guest::run_emulator;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian release for a trial of the packages if the command names none.
pub(super) const DEFAULT_SUITE: &str = "bookworm";

/// Size of the virtual machine's disk, in the format of mkfs.ext4(8).
const DISK_SIZE: &str = "3G";

/// Debian packages of the virtual machine: systemd, a kernel, and the programs that the checks
/// need.
const GUEST_PACKAGES: &str = "systemd,systemd-sysv,dbus,udev,linux-image-cloud-amd64,iproute2,\
                       iputils-ping,procps,python3,man-db,gcc,libc6-dev,pkgconf,bash-completion";

/// Unit file of the systemd service that runs `guest.sh` after the virtual machine has booted.
const TRIAL_SERVICE_UNIT: &str = "[Unit]\nDescription=Trial of packages\n\
                       After=multi-user.target\n\n\
                       [Service]\nType=oneshot\nExecStart=/root/guest.sh\nEnvironment=HOME=/root\n";

/// Tests the packages in a virtual machine with the Debian release `suite`, including an upgrade to
/// the same packages with a higher version. Prints the result of each check.
pub(super) fn run_trial(target: &Path, suite: &str, packages: &[PathBuf]) -> Result<(), String> {
    let home = target.join("dist-trial");
    fs::create_dir_all(&home).map_err(|why| format!("{}: {why}", home.display()))?;
    let archive = home.join(format!("{suite}.tar"));
    if !archive.exists() {
        download_suite(suite, &archive)?;
    }
    let next = packages.iter().map(|package| repack_with_higher_version(&home, package));
    let next = next.collect::<Result<Vec<_>, _>>()?;
    let root = home.join("root");
    stage::create_empty_directory(&root).map_err(|why| format!("{}: {why}", root.display()))?;
    program_output(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&root))?;
    stage::write_files(&root, &guest_files(packages, &next)?).map_err(|why| why.to_string())?;
    let wanted = root.join("etc/systemd/system/default.target.wants");
    fs::create_dir_all(&wanted)
        .and_then(|()| {
            let unit = "/etc/systemd/system/trial.service";
            std::os::unix::fs::symlink(unit, wanted.join("trial.service"))
        })
        .map_err(|why| why.to_string())?;
    let [kernel, ramdisk] = ["vmlinuz-", "initrd.img-"].map(|start| {
        let entries = fs::read_dir(root.join("boot")).into_iter().flatten().flatten();
        let mut paths = entries.map(|entry| entry.path());
        paths.find(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(start)))
    });
    let kernel = kernel.ok_or("the Debian release has no kernel")?;
    let ramdisk = ramdisk.ok_or("the Debian release has no initial ramdisk")?;
    let disk = home.join("disk.img");
    // The file may not exist.
    let _ = fs::remove_file(&disk);
    let mut mkfs = Command::new("mkfs.ext4");
    program_output(mkfs.args(["-q", "-d"]).arg(&root).arg(&disk).arg(DISK_SIZE))?;
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let accelerator = qemu_accelerator(&processor, Path::new("/dev/kvm").exists());
    println!("\n== {suite} in a virtual machine ({accelerator})");
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-accel", accelerator]);
    let machine = "-cpu max -smp 2 -m 2048 -nographic -no-reboot -nic none";
    qemu.args(machine.split(' '));
    qemu.arg("-kernel").arg(kernel).arg("-initrd").arg(ramdisk);
    qemu.arg("-drive").arg(format!("file={},if=virtio,format=raw", disk.display()));
    qemu.args(["-append", "root=/dev/vda rw console=ttyS0 quiet systemd.show_status=no panic=-1"]);
    let booted = run_emulator(&mut qemu)?;
    let _ = fs::remove_file(&disk);
    let _ = fs::remove_dir_all(&root);
    println!("\n{suite}:");
    booted.lines.iter().for_each(|line| println!("  {line}"));
    match booted.reached_end {
        true => Ok(()),
        false => Err(format!("the trial in {suite} failed")),
    }
}

/// Returns the accelerator with which qemu runs the machine: KVM if its device exists and the
/// processor has the extensions. If the host is itself a virtual machine, the device may exist
/// without the extensions, and then no guest boots with it.
fn qemu_accelerator(processor: &str, has_device: bool) -> &'static str {
    let mut words = processor.split_ascii_whitespace();
    match has_device && words.any(|word| matches!(word, "vmx" | "svm")) {
        true => "kvm",
        false => "tcg,thread=multi",
    }
}

/// Downloads a Debian release with the packages [`GUEST_PACKAGES`], and writes its files into a tar
/// archive.
fn download_suite(suite: &str, archive: &Path) -> Result<(), String> {
    println!("$ mmdebstrap {suite}");
    let part = archive.with_extension("part.tar");
    let mut mmdebstrap = Command::new("mmdebstrap");
    mmdebstrap.args([
        "--quiet",
        "--variant=minbase",
        &format!("--include={GUEST_PACKAGES}"),
        suite,
    ]);
    program_output(mmdebstrap.arg(&part).arg("http://deb.debian.org/debian"))?;
    fs::rename(&part, archive).map_err(|why| why.to_string())
}

/// Copies a package with a higher version, and returns the path of the copy.
fn repack_with_higher_version(home: &Path, package: &Path) -> Result<PathBuf, String> {
    let tree = home.join("next");
    stage::create_empty_directory(&tree).map_err(|why| format!("{}: {why}", tree.display()))?;
    program_output(Command::new("dpkg-deb").arg("-R").arg(package).arg(&tree))?;
    let control = tree.join("DEBIAN/control");
    let text = fs::read_to_string(&control).map_err(|why| format!("control: {why}"))?;
    let version = text.lines().find_map(|line| line.strip_prefix("Version: "));
    let version = version.ok_or("a package has no version")?.to_owned();
    // The packages depend on each other's exact versions.
    let text = text.replace(&version, &format!("{version}.1"));
    fs::write(&control, text).map_err(|why| format!("control: {why}"))?;
    let copy = home.join(package.file_name().unwrap_or_default());
    program_output(Command::new("dpkg-deb").args(["-Zgzip", "-z1", "-b"]).arg(&tree).arg(&copy))?;
    fs::remove_dir_all(&tree).map_err(|why| format!("{}: {why}", tree.display()))?;
    Ok(copy)
}

/// Returns the files that the trial of the packages needs in the virtual machine: the script, its
/// service, and the packages of both versions.
fn guest_files(packages: &[PathBuf], next: &[PathBuf]) -> Result<Vec<InstallFile>, String> {
    let script = include_bytes!("guest.sh").to_vec();
    let mut script = InstallFile::new("root/guest.sh", "the trial", script);
    script.mode = 0o755;
    let unit = "etc/systemd/system/trial.service";
    let mut files = vec![script, InstallFile::new(unit, "the trial", TRIAL_SERVICE_UNIT.into())];
    for (folder, packages) in [("root/now", packages), ("root/next", next)] {
        for path in packages {
            let bytes = fs::read(path).map_err(|why| format!("{}: {why}", path.display()))?;
            let to = Path::new(folder).join(path.file_name().unwrap_or_default());
            files.push(InstallFile::new(to, "the trial", bytes));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kvm_runs_the_trial_if_the_processor_has_its_extensions() {
        for (flags, has_device, expected) in [
            ("flags\t\t: fpu svm lm\n", true, "kvm"),
            ("flags\t\t: fpu vmx lm\n", true, "kvm"),
            ("flags\t\t: fpu svm lm\n", false, "tcg,thread=multi"),
            ("flags\t\t: fpu svm_lock lm\n", true, "tcg,thread=multi"),
        ] {
            assert_eq!(qemu_accelerator(flags, has_device), expected, "{flags}");
        }
    }
}
