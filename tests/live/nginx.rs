//! Fixture of nginx in a namespace: one worker, a log in the format `combined`, and all files in
//! the test's directory.

use crate::scratch::Scratch;
use std::fs;
use std::process::{Child, Command};
use testkit::need;
use testkit::net::{Namespace, SERVER, SERVER6, wait_until};

/// A running nginx with its directory, killed on drop.
pub(crate) struct Nginx {
    child: Child,
    folder: Scratch,
}

impl Nginx {
    /// Starts the server on port 80, and waits until it listens. Reports a skip and returns `None`
    /// if nginx is not installed.
    pub(crate) fn start(space: &Namespace) -> Option<Self> {
        let program = need::require_command("nginx")?;
        let folder = Scratch::new();
        for (name, length) in SERVED_FILES {
            fs::write(folder.path(name), vec![b'x'; *length]).expect("a file");
        }
        let settings =
            NGINX_CONFIGURATION.replace("FOLDER", &folder.path("").display().to_string());
        fs::write(folder.path("nginx.conf"), settings).expect("a file");
        let mut command = space.command(program);
        command.arg("-e").arg(folder.path("error.log")).arg("-p").arg(folder.path(""));
        command.arg("-c").arg(folder.path("nginx.conf")).env("TZ", "UTC");
        let child = command.spawn().expect("nginx");
        space.wait_until_listening((SERVER, 80));
        space.wait_until_listening((SERVER6, 80));
        Some(Self { child, folder })
    }

    /// Stops the server after its current requests, and waits until it exits. Returns the access
    /// log.
    pub(crate) fn stop(mut self) -> String {
        let process = self.child.id().to_string();
        let sent = Command::new("kill").args(["-QUIT", &process]).status();
        assert!(sent.expect("kill").success());
        wait_until("nginx ends", || self.child.try_wait().expect("a child").is_some());
        fs::read_to_string(self.folder.path("access.log")).expect("nginx logs")
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // If the test has succeeded, the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Names and lengths in bytes of the files that the server serves.
const SERVED_FILES: &[(&str, usize)] = &[("small", 300), ("page", 3_000), ("large", 12_000)];

/// The configuration of nginx: one process in the foreground, with a log that states the time of
/// the last wake-up.
const NGINX_CONFIGURATION: &str = "
daemon off;
master_process off;
worker_processes 1;
user root;
pid FOLDER/nginx.pid;
events { worker_connections 1024; }
http {
    access_log FOLDER/access.log combined;
    client_body_temp_path FOLDER/body;
    proxy_temp_path FOLDER/proxy;
    fastcgi_temp_path FOLDER/fastcgi;
    uwsgi_temp_path FOLDER/uwsgi;
    scgi_temp_path FOLDER/scgi;
    keepalive_requests 1000000;
    server {
        listen 10.77.0.2:80;
        listen [fd77::2]:80;
        location /text/ { return 200 \"this is $request_uri\\n\"; }
        location /none/ { return 204; }
        location /moved/ { return 301 /text/; }
        location ~ ^/(small|page|large)/ { root FOLDER; try_files /$1 =404; }
    }
}
";
