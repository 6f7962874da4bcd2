//! Tests of options of a run that contradict each other.

use streamline::{OpenError, Options};

#[test]
fn embedded_run_with_a_name_is_refused() {
    let name = Some("web".to_owned());
    for options in [
        Options { name, ..Options::without_daemon() },
        Options { registered: true, ..Options::without_daemon() },
    ] {
        let refused = streamline::open("generate count=1 | count", options).unwrap_err();
        assert!(matches!(refused, OpenError::Unfit(_)), "{refused}");
    }
}
