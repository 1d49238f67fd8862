//! Every input of the fuzz corpus, as a plain test of the fuzz target that it belongs to.

#[allow(dead_code)] // Each test of the wire uses its part.
#[path = "fuzz/src/targets.rs"]
mod targets;
#[path = "fuzz/src/targets_share.rs"]
mod targets_share;

use std::{fs, path::Path};

#[test]
fn every_input_of_the_corpus_holds() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    let share: targets::Target = ("share", targets_share::share);
    for (name, target) in targets::ALL.into_iter().chain([share]) {
        let mut inputs = 0;
        for entry in fs::read_dir(corpus.join(name)).expect(name) {
            let path = entry.unwrap().path();
            println!("{}", path.display());
            target(&fs::read(&path).unwrap());
            inputs += 1;
        }
        assert!(inputs > 0, "no corpus for {name}");
    }
}
