//! Grace periods with two threads of the host: the crate's example, run as a test. Loom does the same for all
//! interleavings of a shorter story.

#[path = "../examples/grace_period.rs"]
#[expect(dead_code, reason = "the example's `main` is not called here")]
mod example;

#[test]
fn objects_are_freed_under_a_reader_that_takes_no_lock() {
    let (updates, reads) = example::run(5_000);
    assert!(updates >= 5_000 && reads >= 5_000, "{updates} updates, {reads} reads");
}
