//! Tests of the interactive screens of `top` on a terminal, which `script` of util-linux provides.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::Folder;
use common::screen::Screen;

#[test]
fn top_keys_show_help_sort_filter_and_open_nodes() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let _path = folder.spawn_named_path("web", "generate rate=1000 | udp | count");
    let Some(mut screen) = Screen::start(&folder, "top --every=200ms web") else { return };
    screen.wait_for_text("? help, q quits");
    screen.press("?", "select a node");
    screen.press("?", "generate");
    screen.press("s", "blocks/s▾");
    screen.press("/", "/_");
    screen.press("ud\r", "clears)");
    // Expected texts are single words, because the terminal library does not print blank cells.
    screen.press("\r", "thread0:");
    screen.press("g", "○");
    screen.press("g", "blocks/s▾");
    assert!(!screen.output().contains("\x1b[31m"), "NO_COLOR is set");
    assert_eq!(screen.quit(), Some(0));
}

#[test]
fn top_keys_without_a_path_sort_filter_and_open_paths() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let _web = folder.spawn_named_path("web", "generate rate=1000 | udp | count");
    let _slow = folder.spawn_named_path("slow", "generate rate=10 | ip | count");
    let Some(mut screen) = Screen::start(&folder, "top --every=200ms") else { return };
    screen.wait_for_text("2 paths");
    screen.wait_for_text("Enter opens");
    screen.press("?", "select a path");
    screen.press("?", "rate=1000");
    screen.press("s", "BLOCKS/S▾");
    screen.press("/", "/_");
    screen.press("slow\r", "clears)");
    screen.press("\r", "thread0");
    screen.press("?", "select a node");
    screen.press("q", "clears)");
    screen.press("\x1b", "Enter opens");
    assert!(!screen.output().contains("\x1b[31m"), "NO_COLOR is set");
    assert_eq!(screen.quit(), Some(0));
}
