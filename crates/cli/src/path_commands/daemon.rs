//! `streamline daemon`: runs the daemon of a machine or of one user, in the foreground or under a
//! service manager.

use super::program_supervisor::{Program, ProgramSupervisor};
use crate::arguments::paths::DaemonArguments;
use crate::status::Status;
use crate::terminal;
use daemon::directory::DirectoryError;
use daemon::log::{EventKind, Level, Log, Record};
use daemon::policy::{Policy, Visibility};
use daemon::server::Server;
use engine::signal;
use member::client::Client;
use member::daemon_directories::{self, MACHINE_DIRECTORY};
use member::rights::POLICY_FILE;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use streamline::figures::query_figures;
use streamline::metrics;
use sys::rollback::RollbackLog;
use sys::service;

/// Runs the daemon until a terminating signal arrives.
pub(super) fn run(arguments: &DaemonArguments) -> Result<Status, Status> {
    let log = Log::open(&arguments.log.clone().unwrap_or_default()).map_err(|error| {
        terminal::print_error(&error.to_string());
        Status::Failed
    })?;
    let served = serve(arguments, &log);
    log.flush();
    served.map_err(|why| {
        log.write(&Record::new(EventKind::DaemonFailed, Level::Error, why));
        Status::Failed
    })
}

/// Serves clients until a terminating signal arrives. Fails with the reason.
fn serve(arguments: &DaemonArguments, log: &Log) -> Result<Status, String> {
    let policy = read_policy(arguments)?;
    check_loopback_page(arguments, &policy)?;
    let stop = signal::watch_stop_signals().map_err(|error| error.to_string())?;
    let directory = daemon_directory(arguments)?;
    let others = match policy.others_see {
        Visibility::Nothing => "nothing",
        Visibility::Names => "names",
        Visibility::Lines => "all",
    };
    let steps = RollbackLog::with_fault(arguments.fault.clone().unwrap_or_default());
    let kept = service::take_descriptors();
    let server = match kept.is_empty() {
        // If the user specifies the directory, its permissions determine who can connect.
        true => Server::open(&directory, !arguments.user, policy, &steps),
        false => Server::from_descriptors(&directory, kept, policy, &steps),
    };
    let mut server = server.map_err(|error| describe_directory_error(&error))?;
    log_info(log, EventKind::DaemonStarted, &format!("the daemon is in {}", directory.display()));
    server.start_log(log.clone());
    steps.announce_step("it is there");
    notify_service_manager(&format!("READY=1\nSTATUS=in {}", directory.display()), log);
    let mount = arguments.mount.as_ref().and_then(|mount| {
        let (mount, socket) = (mount.clone(), directory.clone());
        let program = Program::Mount { directory: mount, socket, others, for_all: !arguments.user };
        ProgramSupervisor::start(program, log).inspect_err(|why| log_warning(log, why)).ok()
    });
    let metrics = start_metrics_servers(arguments, (&mut server, &directory), log)?;
    let page = arguments.page.as_ref().map(|listen| {
        let program = Program::Page { listen: listen.clone(), socket: directory.clone() };
        ProgramSupervisor::start(program, log)
    });
    let page = page.transpose()?;
    let served = server.serve(stop);
    drop((metrics, page, mount));
    notify_service_manager("STOPPING=1", log);
    served.map_err(|error| error.to_string())?;
    let paths = server.path_count();
    drop(server);
    let continuing = match paths {
        0 => String::new(),
        _ => format!("; paths that continue without a daemon: {paths}"),
    };
    let stopped = format!("the daemon in {} has stopped{continuing}", directory.display());
    log_info(log, EventKind::DaemonStopped, &stopped);
    Ok(Status::Done)
}

fn log_info(log: &Log, event: EventKind, what: &str) {
    log.write(&Record::new(event, Level::Info, what));
}

pub(super) fn log_warning(log: &Log, what: &str) {
    log.write(&Record::new(EventKind::DaemonWarning, Level::Warning, what));
}

/// Maximum time that a scrape of the metrics waits for the replies of all paths.
const SCRAPE_TIMEOUT: Duration = Duration::from_millis(800);

/// Starts the metrics servers of `--metrics`. They query the paths as clients of this daemon.
fn start_metrics_servers(
    arguments: &DaemonArguments,
    (server, directory): (&mut Server, &Path),
    log: &Log,
) -> Result<Vec<metrics::MetricsServer>, String> {
    if arguments.metrics.is_empty() {
        return Ok(Vec::new());
    }
    let acceptor = server.open_internal_socket().map_err(|error| error.to_string())?;
    let (acceptor, directory) = (Arc::new(acceptor), directory.to_owned());
    let start = |target: &metrics::MetricsTarget| {
        let (acceptor, directory) = (Arc::clone(&acceptor), directory.clone());
        let figures = move || {
            let client = Client::connect_in_process(acceptor.as_fd(), &directory);
            let figures = client.and_then(|client| query_figures(&client, SCRAPE_TIMEOUT));
            // An error means that the daemon is about to end, so there are no paths to report.
            figures.unwrap_or_default()
        };
        let started = metrics::MetricsServer::start(target, figures);
        let started = started.map_err(|error| error.to_string())?;
        let place = started.as_ref().map(|server| server.display_address().to_owned());
        if let Some(at) = &place {
            log_info(log, EventKind::MetricsStarted, &format!("metrics are at {at}"));
        }
        Ok(started)
    };
    let started: Result<Vec<_>, String> = arguments.metrics.iter().map(start).collect();
    Ok(started?.into_iter().flatten().collect())
}

fn read_policy(arguments: &DaemonArguments) -> Result<Policy, String> {
    let read = match &arguments.policy {
        Some(file) => Policy::read(file, true),
        None if arguments.user => Ok(Policy::default()),
        None => Policy::read(Path::new(POLICY_FILE), false),
    };
    read.map_err(|error| error.to_string())
}

/// Fails if the page listens on the loopback interface and the policy allows users to capture on
/// `lo`. These users could read the access tokens of other users in the captured requests.
fn check_loopback_page(arguments: &DaemonArguments, policy: &Policy) -> Result<(), String> {
    let on_loopback = arguments.page.as_ref().is_some_and(|listen| !listen.starts_with("unix:"));
    if !on_loopback || !policy.is_open_to_users("lo") {
        return Ok(());
    }
    let file = policy.file.as_ref().map(|file| format!(" {}", file.display())).unwrap_or_default();
    Err(format!(
        "the policy{file} lets users observe `lo`, where the tokens of the page's users can be \
         read: use --page=unix:PATH, or leave `lo` out of [[open]]"
    ))
}

fn daemon_directory(arguments: &DaemonArguments) -> Result<PathBuf, String> {
    match (&arguments.socket, arguments.user) {
        (Some(directory), _) => Ok(directory.clone()),
        (None, true) => daemon_directories::user_daemon_directory()
            .ok_or_else(|| describe_directory_error(&DirectoryError::NoDirectoryFound)),
        (None, false) => Ok(PathBuf::from(MACHINE_DIRECTORY)),
    }
}

/// Formats an error. If this user may not write to the machine-wide directory, appends a remedy.
fn describe_directory_error(error: &DirectoryError) -> String {
    let needs_root =
        matches!(error, DirectoryError::System(why) if why.target.starts_with(MACHINE_DIRECTORY));
    let remedy = match sys::process::effective_ids().0 != 0 && needs_root {
        true => "; a daemon for one user needs no privilege: `streamline daemon --user`",
        false => "",
    };
    format!("{error}{remedy}")
}

/// Sends assignments such as `READY=1`, one per line (sd_notify(3)), to the service manager, if
/// there is one.
fn notify_service_manager(lines: &str, log: &Log) {
    if let Err(error) = service::notify(lines, &[]) {
        log_warning(log, &format!("the service manager was not notified: {error}"));
    }
}
