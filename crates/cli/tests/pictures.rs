//! Tests of drawings on the terminal: the view of a run (`--view`), and the bars of histograms.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::Folder;
use common::screen::Screen;

#[test]
fn view_shows_the_graph_with_rates_until_the_user_ends_the_path() {
    let folder = Folder::new();
    let words = "run --view 'generate rate=1000 | udp | count'";
    let Some(mut screen) = Screen::start(&folder, words) else { return };
    screen.wait_for_text("○");
    screen.wait_for_text("q ends the path");
    screen.press("?", "a rule names the space");
    screen.press("?", "count");
    assert!(screen.output().contains("/s"), "{}", screen.output());
    assert_eq!(screen.quit(), Some(0));
    let output = screen.output();
    // After the view, the reports are printed on the normal screen.
    let (_, after) = output.rsplit_once("\x1b[?1049l").unwrap();
    assert!(after.contains(" bytes\r\n") && after.contains("none lost"), "{after}");
    assert!(!output.contains("\x1b[31m"), "NO_COLOR is set");
}

#[test]
fn view_ends_with_its_path_and_then_prints_held_messages() {
    let folder = Folder::new();
    let words = "run --view --alarm 'blocks>0' 'generate rate=1000 count=1500 | count'";
    let Some(mut screen) = Screen::start(&folder, words) else { return };
    assert_eq!(screen.wait_for_exit(), Some(4), "{}", screen.output());
    let output = screen.output();
    let (_, after) = output.rsplit_once("\x1b[?1049l").unwrap();
    assert!(after.contains("warning: alarm `blocks>0`"), "{after}");
    assert!(after.contains("1500 blocks"), "{after}");
}

#[test]
fn view_without_a_separate_terminal_is_refused() {
    let folder = Folder::new();
    let ran = folder.run(&["run", "--view", "generate count=1 | count"]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.err.contains("streamline top PATH"), "{}", ran.err);
    let words = "run --view 'generate count=1 | print'";
    let Some(mut screen) = Screen::start(&folder, words) else { return };
    assert_eq!(screen.wait_for_exit(), Some(2));
    assert!(screen.output().contains("redirect its output"), "{}", screen.output());
}

#[test]
fn histogram_has_bars_on_a_terminal_only() {
    let folder = Folder::new();
    let line = "replay examples/web.pcap | hist of=length";
    let piped = folder.run(&[line]);
    assert!(piped.out.contains(" bytes\n") && !piped.out.contains('█'), "{}", piped.out);
    let Some(mut screen) = Screen::start(&folder, &format!("'{line}'")) else { return };
    assert_eq!(screen.wait_for_exit(), Some(0));
    let drawn = screen.output();
    let bars = |line: &&str| line.contains(" bytes ") && line.contains(['█', '▌', '▏', '▎', '▍']);
    assert!(drawn.lines().filter(bars).count() >= 3, "{drawn}");
    let longest = drawn.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(longest <= 100, "{drawn}");
    assert!(
        drawn.lines().next().unwrap().ends_with("  blocks\r") || drawn.contains("  blocks\r\n")
    );
}
