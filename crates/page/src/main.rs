//! The program `streamline-page`, which serves the live page. The command `streamline page` runs
//! this program.
#![forbid(unsafe_code)]

use clap::Parser;
use page::access::Token;
use page::captures::Captures;
use page::commands::StreamlineProgram;
use page::listener::{Address, AllowedUsers, Listener};
use page::live::LiveFigures;
use page::server::Server;
use page::users::{self, HostOptions, own_process};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use streamline::paths::page_socket::{OpenPageParameters, find_page_url};

/// Exit status after a failure.
const FAILURE_EXIT_STATUS: u8 = 1;

/// Default time without a connection after which the process of a user ends, in ms.
const DEFAULT_IDLE_MS: &str = "30000";

/// Show the running paths in a browser.
///
/// Prints the URL of the page that the daemon of the machine serves (`streamline daemon --page`),
/// with a token of yours; without such a page, serves one. Whoever has the URL can do on this
/// machine what `streamline` can do for you. From another machine, reach it by `ssh -L
/// 7575:127.0.0.1:7575 HOST`. Paths cost nothing while no browser shows the page. ^C ends a page of
/// your own; paths go on.
#[derive(Parser, Debug)]
#[command(name = "streamline page", version)]
struct Arguments {
    /// Serve a page of your own at this address: PORT, 127.0.0.1:PORT, [::1]:PORT or unix:PATH;
    /// port 0 stands for any free port; default without a page of the daemon: 7575
    #[arg(long, value_name = "ADDR")]
    listen: Option<Address>,
    /// Show the paths of the daemon in this folder
    #[arg(long, value_name = "FOLDER")]
    socket: Option<PathBuf>,
    /// Make the URLs invalid that the page of the daemon gave you before
    #[arg(long, conflicts_with = "listen")]
    renew: bool,
    /// Serve all users of the machine, each with a process of this user; needs root, otherwise
    /// serves you alone
    #[arg(long, conflicts_with = "renew")]
    all_users: bool,
    /// End when standard input is closed, which the daemon holds open
    #[arg(long, hide = true, requires = "all_users")]
    of_daemon: bool,
    /// Time without a connection after which the process of a user ends, in ms
    #[arg(long, hide = true, value_name = "MS", default_value = DEFAULT_IDLE_MS)]
    idle: u64,
    /// Serve the connections that a page for all users hands over
    #[arg(long, hide = true)]
    of_user: bool,
}

fn main() -> ExitCode {
    let given = Arguments::parse();
    // This call cannot fail, because the signal and its action are valid.
    let _ = sys::children::keep_exited_children();
    match run(given) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // A failed write to standard error cannot be reported.
            let _ = writeln!(io::stderr(), "error: {why}");
            FAILURE_EXIT_STATUS.into()
        }
    }
}

fn run(given: Arguments) -> Result<(), String> {
    if given.of_user {
        return own_process::serve();
    }
    let listen = given.listen.clone().unwrap_or(Address::DEFAULT);
    if given.all_users {
        let idle = Duration::from_millis(given.idle);
        let (daemon, of_daemon) = (given.socket, given.of_daemon);
        return users::serve(HostOptions { listen, daemon, idle, of_daemon });
    }
    match given.listen {
        None if print_shared_page_url(&given)? => Ok(()),
        _ => serve(&listen, given.socket),
    }
}

/// Prints the URL of the page that the daemon serves, and returns true. Returns false if there is
/// no page or, after printing a note, if the page does not reply. With `--renew`, fails in both
/// cases.
fn print_shared_page_url(given: &Arguments) -> Result<bool, String> {
    let renew = given.renew.then_some(true);
    match find_page_url(given.socket.as_deref(), OpenPageParameters { renew }) {
        Ok(Some(url)) => {
            let _ = writeln!(io::stdout(), "{url}");
            Ok(true)
        }
        Ok(None) if given.renew => Err("no daemon serves a page for you".to_owned()),
        Ok(None) => Ok(false),
        Err(error) if given.renew => Err(error.to_string()),
        Err(error) => {
            let _ = writeln!(io::stderr(), "note: the page of the daemon: {error}");
            Ok(false)
        }
    }
}

/// Serves a page of this user until a signal arrives.
fn serve(listen: &Address, socket: Option<PathBuf>) -> Result<(), String> {
    let signals = sys::signal::watch_stop_signals().map_err(|error| error.to_string())?;
    let listener = Listener::bind(listen, AllowedUsers::OwnUser)
        .map_err(|error| listen.describe_failure(&error))?;
    let token = match &listener {
        Listener::Tcp(_) => Some(Token::random().map_err(|error| format!("no token: {error}"))?),
        Listener::Unix(..) => None,
    };
    let address = listener.describe().map_err(|error| error.to_string())?;
    let url = match &token {
        Some(token) => format!("{address}#token={}", token.text()),
        None => address,
    };
    let program = StreamlineProgram::find(socket.clone());
    let captures = Arc::new(Captures::default());
    let server =
        Server { live: LiveFigures::new(socket), token, program, captures: Arc::clone(&captures) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    let (ended, end) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        while !sys::poll::wait_until_readable(&[signals.as_fd()], None).contains(&true) {}
        ended.send(())
    });
    let _ = writeln!(io::stdout(), "{url}");
    let _ = io::stdout().flush();
    let served = runtime.block_on(async {
        tokio::select! {
            served = server.serve(&listener) => served,
            _ = end => Ok(()),
        }
    });
    runtime.shutdown_background();
    captures.stop_all();
    served.map_err(|error| format!("the page ended: {error}"))
}
