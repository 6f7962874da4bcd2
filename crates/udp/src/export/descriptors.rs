//! Functions that close, duplicate, connect or configure descriptors, and the handler for forks.

use crate::flow_share;
use crate::socket::Socket;
use crate::socket_origin;
use crate::socket_table;
use std::ffi::{c_int, c_uint, c_void};
use sys::preload::interpose::{at_fork, catch_panic_and_preserve_errno, missing_function};
use sys::preload::udp;
use sys::{interpose, interpose_duplication, next_function, run_at_exit, run_at_start};

run_at_start!(start);
run_at_exit!(end);

extern "C" fn start() {
    catch_panic_and_preserve_errno(crate::promotion::record_firewall_rules);
    at_fork(before_fork, in_child);
}

/// Ends the rings of all sockets when the program exits, so that their counts are reported.
extern "C" fn end() {
    catch_panic_and_preserve_errno(|| socket_table::for_each_classified_socket(Socket::close));
}

/// Ends the rings of all promoted sockets before a fork, because a forked child could also read
/// from the kernel sockets (placeholders). A socket can be promoted again when it belongs to a
/// single process again.
extern "C" fn before_fork() {
    catch_panic_and_preserve_errno(|| {
        socket_origin::record_fork();
        socket_table::for_each_classified_socket(Socket::return_to_kernel_temporarily);
    });
}

extern "C" fn in_child() {
    catch_panic_and_preserve_errno(socket_table::forget_in_child);
}

type SocketFn = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;

/// Replaces `socket(2)`. Records that the program has created the socket itself, so that no other
/// process has inherited it.
///
/// # Safety
/// No requirements; the function is unsafe only because its type is that of a C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    let Some(next) = next_function!(c"socket" as SocketFn) else { return missing_function() };
    // SAFETY: I1; socket(2) takes any numbers.
    let number = unsafe { next(family, kind, protocol) };
    catch_panic_and_preserve_errno(|| socket_origin::record_created_socket(number));
    number
}

interpose!(
    /// Replaces `close(2)`. Forgets the socket of the descriptor first.
    close(number: c_int) -> c_int, c"close", |number| {
        socket_table::forget_descriptor(number);
        None
    }
);
interpose!(
    /// Replaces `close_range(2)`. Forgets the sockets of all descriptors in the range first.
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, c"close_range",
    |first, last, _| {
        for number in first..=last.min(u32::from(u16::MAX)) {
            socket_table::forget_descriptor(number.cast_signed());
        }
        None
    }
);
interpose!(
    /// Replaces `bind(2)`. First returns the promoted sockets of the same port to the kernel until
    /// their next promotion, because they may now have to share the port.
    bind(number: c_int, address: *const c_void, size: c_uint) -> c_int, c"bind",
    |_, address, size| {
        if !address.is_null() && size >= 4 && !socket_table::has_no_promoted_socket() {
            // SAFETY: U1: the address has `size` bytes. The port is at the same place in all
            // families.
            let place = unsafe { address.cast::<[u8; 2]>().add(1) };
            // SAFETY: U1.
            return_port_sockets_to_kernel(u16::from_be_bytes(unsafe { place.read() }));
        }
        None
    }
);
interpose!(
    /// Replaces `connect(2)`. A promoted socket returns to the kernel permanently.
    connect(number: c_int, address: *const c_void, size: c_uint) -> c_int, c"connect",
    |number, _, _| { demote_socket(number); None }
);
interpose!(
    /// Replaces `shutdown(2)`. A promoted socket returns to the kernel permanently.
    shutdown(number: c_int, how: c_int) -> c_int, c"shutdown", |number, _| {
        demote_socket(number);
        None
    }
);
interpose!(
    /// Replaces `setsockopt(2)`. A promoted socket returns to the kernel permanently if only the
    /// kernel can implement the option, and until its next promotion if the option sets the size of
    /// its receive buffer. If the option changes how datagrams are distributed among sockets, the
    /// promoted sockets of the same port return to the kernel.
    setsockopt(number: c_int, level: c_int, name: c_int, value: *const c_void, size: c_uint)
        -> c_int, c"setsockopt",
    |number, level, name, _, _| {
        if udp::is_kernel_only_option(level, name) {
            demote_socket(number);
        }
        if udp::is_device_binding_option(level, name)
            && let Some(facts) = udp::udp_socket_facts(number)
        {
            return_port_sockets_to_kernel(facts.local.port());
        }
        if udp::is_reuseport_program_option(level, name)
            && let Some(facts) = udp::udp_socket_facts(number)
        {
            let port = facts.local.port();
            flow_share::record_port_selector(port);
            socket_table::for_each_classified_socket(|socket| {
                if socket.is_promoted_on_port(port) {
                    socket.return_to_kernel_permanently();
                }
            });
        }
        None
    },
    after: |number, level, name, _, _| {
        if udp::is_control_message_option(level, name)
            && let Some(socket) = socket_table::find_promoted_socket(number)
        {
            socket.update_requested_control_messages(number);
        }
        // The next ring has the new size.
        if udp::is_receive_buffer_option(level, name)
            && let Some(socket) = socket_table::find_promoted_socket(number)
        {
            socket.return_to_kernel_temporarily();
        }
    }
);

/// Ends the rings of the promoted sockets of a port until the sockets are promoted again, because
/// the sockets that share the port are about to change.
fn return_port_sockets_to_kernel(port: u16) {
    socket_table::for_each_classified_socket(|socket| {
        if socket.is_promoted_on_port(port) {
            socket.return_to_kernel_temporarily();
        }
    });
}

/// Returns a promoted socket to the kernel permanently, by ending its ring.
fn demote_socket(number: c_int) {
    if let Some(socket) = socket_table::find_promoted_socket(number) {
        socket.return_to_kernel_permanently();
    }
}

interpose_duplication! { replaced: |_| (), duplicated: socket_table::record_duplicate }
