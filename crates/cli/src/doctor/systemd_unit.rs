//! Generation of a systemd unit file for a request (`streamline doctor unit`). The service has only
//! the capability CAP_NET_RAW, or no capability if the request does not use `rx`, `tx` or
//! `redirect`.
//!
//! The request is checked before its unit file is printed. Relative file names refer to the
//! service's state directory, `/var/lib/NAME`. NAME is derived from the filters of the request, so
//! that it differs from the name of the daemon's unit file (`streamline.service`).

use crate::arguments::RequestArguments;
use crate::failure;
use crate::request;
use crate::status::Status;
use crate::terminal;
use engine::doctor::ProgramFile;
use pipeline::Graph;
use std::path::Path;
use streamline::Options;
use streamline::privilege::INSTALLED_PATH;

/// Prints the unit file of a request. Refuses a request that enters a network namespace.
pub(super) fn print_unit(arguments: &RequestArguments) -> Status {
    let printed = request::request_text(arguments).and_then(|text| {
        let options = Options { notices: failure::notice_handler(false), ..Options::default() };
        let graph = streamline::read_graph(&text, &options).map_err(failure::report_open_error)?;
        if let Some(space) = network_namespace(&graph) {
            terminal::print_error("a service cannot change its namespace while it runs");
            terminal::print_note(&format!(
                "leave `netns={space}` out of the request, and write \
                 NetworkNamespacePath=/run/netns/{space} into the unit"
            ));
            return Err(Status::Usage);
        }
        Ok(terminal::print_text(&format_unit(
            (&text, &service_name(&graph)),
            needs_net_raw(&graph),
            &ProgramFile::locate(),
        )))
    });
    printed.unwrap_or_else(|status| status)
}

fn needs_net_raw(graph: &Graph) -> bool {
    let names =
        graph.nodes_with_ids().filter_map(|(_, node)| Some(node.filter()?.description.name));
    names.into_iter().any(|service_name| ["rx", "tx", "redirect"].contains(&service_name))
}

/// Returns the network namespace that a request enters, or `None` if it enters none.
fn network_namespace(graph: &Graph) -> Option<&str> {
    graph.nodes_with_ids().find_map(|(_, node)| node.filter()?.arguments.text("netns"))
}

/// Returns the name of the service, which is derived from the request's filters.
fn service_name(graph: &Graph) -> String {
    /// Maximum number of filters in the name of a service.
    const FILTERS_MAX: usize = 6;
    let names =
        graph.nodes_with_ids().filter_map(|(_, node)| Some(node.filter()?.description.name));
    let names: Vec<&str> = names.take(FILTERS_MAX).collect();
    format!("streamline-{}", names.join("-"))
}

/// Formats the unit file. `live` must be true if the request uses `rx`, `tx` or `redirect`, which
/// need CAP_NET_RAW.
fn format_unit((text, service_name): (&str, &str), live: bool, program: &ProgramFile) -> String {
    let (place, first) = service_program(program.path.as_deref());
    let capability = if live { "CAP_NET_RAW" } else { "" };
    let families = if live { "AF_PACKET AF_NETLINK AF_UNIX" } else { "AF_NETLINK AF_UNIX" };
    let (described, word) = (escape_description(text), quote_request(text));
    format!(
        "\
# streamline doctor unit '…' | sudo tee /etc/systemd/system/{service_name}.service
{first}# sudo systemctl daemon-reload && sudo systemctl start {service_name}
# What it prints: journalctl -u {service_name}. Its files: /var/lib/{service_name}.
[Unit]
Description=Streamline: {described}
Wants=network.target
After=network.target

[Service]
ExecStart={place} run {word}
# The first signal lets everything under way drain.
KillSignal=SIGINT
TimeoutStopSec=30
Restart=on-failure
StateDirectory={service_name}
WorkingDirectory=%S/{service_name}
Environment=XDG_STATE_HOME=%S/{service_name}

DynamicUser=yes
AmbientCapabilities={capability}
CapabilityBoundingSet={capability}
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictAddressFamilies={families}
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"
    )
}

/// Returns the path from which the service runs the program, and the command that installs the
/// program there. The command is empty if the service can run the program in place, or if the path
/// of the program is unknown.
fn service_program(path: Option<&Path>) -> (String, String) {
    let hidden = ["/home", "/root", "/run/user", "/tmp", "/var/tmp"];
    let Some(path) = path else { return (INSTALLED_PATH.to_owned(), String::new()) };
    let program = path.display().to_string();
    let is_plain = program.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+".contains(c));
    if is_plain && !hidden.iter().any(|folder| path.starts_with(folder)) {
        return (program, String::new());
    }
    (INSTALLED_PATH.to_owned(), format!("# sudo install -m 755 {program} {INSTALLED_PATH}\n"))
}

/// Formats a request as the value of `Description=`: on one line, with percent signs doubled.
fn escape_description(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('%', "%%")
}

/// Quotes a request as one word of `ExecStart=` (systemd.service(5), "Command lines").
fn quote_request(text: &str) -> String {
    let mut word = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => word.push_str("\\\""),
            '\\' => word.push_str("\\\\"),
            '\n' => word.push_str("\\n"),
            '\t' => word.push_str("\\t"),
            '%' => word.push_str("%%"),
            '$' => word.push_str("$$"),
            _ => word.push(c),
        }
    }
    word.push('"');
    word
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn program_file(path: &str) -> ProgramFile {
        ProgramFile { path: Some(PathBuf::from(path)), nosuid: false }
    }

    const SERVICE_NAME: &str = "streamline-rx-count";

    #[test]
    fn unit_name_differs_from_the_daemon_unit() {
        let (graph, _) =
            pipeline::read_request("rx | udp | count", &engine::registry::MachineRegistry::Local);
        let service_name = service_name(&graph);
        assert_eq!(service_name, "streamline-rx-udp-count");
        let text = format_unit(
            ("rx | udp | count", &service_name),
            true,
            &program_file("/usr/bin/streamline"),
        );
        assert!(text.contains(&format!("/etc/systemd/system/{service_name}.service\n")), "{text}");
        assert!(text.contains(&format!("\nStateDirectory={service_name}\n")), "{text}");
        assert!(!text.contains("streamline.service"), "{text}");
    }

    #[test]
    fn request_is_quoted_as_one_word_of_the_unit() {
        let line = "rx | bpf \"tcp port 80\" | match \"100% \\$x\" | count";
        let text = format_unit((line, SERVICE_NAME), true, &program_file("/usr/bin/streamline"));
        let word = r#""rx | bpf \"tcp port 80\" | match \"100%% \\$$x\" | count""#;
        assert!(text.contains(&format!("\nExecStart=/usr/bin/streamline run {word}\n")), "{text}");
        assert!(text.contains("\nDescription=Streamline: rx | bpf"), "{text}");
        assert_eq!(quote_request("a\nb\tc"), r#""a\nb\tc""#);
        assert_eq!(escape_description("a\n  b % c"), "a b %% c");
    }

    #[test]
    fn offline_request_gets_no_capability() {
        let live =
            format_unit(("rx | count", SERVICE_NAME), true, &program_file("/usr/bin/streamline"));
        assert!(live.contains("\nAmbientCapabilities=CAP_NET_RAW\n"), "{live}");
        assert!(live.contains("AF_PACKET"), "{live}");
        let dead = format_unit(
            ("replay x | count", SERVICE_NAME),
            false,
            &program_file("/usr/bin/streamline"),
        );
        assert!(dead.contains("\nAmbientCapabilities=\nCapabilityBoundingSet=\n"), "{dead}");
        assert!(!dead.contains("AF_PACKET") && !dead.contains("RAW"), "{dead}");
    }

    #[test]
    fn program_hidden_from_the_service_must_be_installed() {
        for path in ["/home/x/streamline", "/root/streamline", "/tmp/streamline", "/a b/streamline"]
        {
            let text = format_unit(("rx | count", SERVICE_NAME), true, &program_file(path));
            assert!(text.contains(&format!("\nExecStart={INSTALLED_PATH} run ")), "{text}");
            assert!(text.contains(&format!("\n# sudo install -m 755 {path} ")), "{text}");
        }
        let text =
            format_unit(("rx | count", SERVICE_NAME), true, &program_file("/opt/streamline"));
        assert!(text.contains("\nExecStart=/opt/streamline run "), "{text}");
        assert!(!text.contains("install -m"), "{text}");
    }
}
